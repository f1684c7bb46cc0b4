"""Stand-ins for core's picture savers: PNG files that open as the graph that made them."""

from __future__ import annotations

import io
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cascade_train.errors import CascadeError
from cascade_train.files import write_bytes
from cascade_train.host.base import Host

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class SaveImage:
    host: ClassVar[Host]
    DISPLAY_NAME = "Save Image"
    CATEGORY = "image"
    DESCRIPTION = "Saves the images to the output folder, with the workflow inside."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    FUNCTION = "save"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "images": ("IMAGE", {"tooltip": "The images to save."}),
                "filename_prefix": (
                    "STRING",
                    {
                        "default": "ComfyUI",
                        "tooltip": "Start of the file names; may have folders, and %width%, %height%, "
                        "%year%, %month%, %day%, %hour%, %minute%, %second%.",
                    },
                ),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def save(
        self,
        images: Tensor,
        filename_prefix: str = "ComfyUI",
        prompt: Any = None,
        extra_pnginfo: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        output = self.host.folders.output
        return self._write(output, "output", images, filename_prefix, 4, prompt, extra_pnginfo)

    def _write(
        self,
        folder: Path,
        kind: str,
        images: Tensor,
        prefix: str,
        compression: int,
        prompt: Any,
        extra_pnginfo: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        if self.host.rank != 0:
            return {"ui": {"images": []}, "result": (images,)}
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        texts = PngInfo()
        if prompt is not None:
            texts.add_text("prompt", json.dumps(prompt))
        for name, value in (extra_pnginfo or {}).items():
            texts.add_text(name, json.dumps(value))
        target, stem, number, subfolder = next_name(folder, prefix, images.shape[2], images.shape[1])
        bad = [index for index, image in enumerate(images) if not image.isfinite().all()]
        if bad:
            self.host.warn(
                f"{len(bad)} of {len(images)} pictures hold values that are not numbers (NaN or infinite), "
                f"number {bad[0] + 1} first: they are saved black there. Look at the node that made them"
            )
        saved = []
        for index, image in enumerate(images):
            name = f"{stem.replace('%batch_num%', str(index))}_{number + index:05}_.png"
            data = io.BytesIO()
            Image.fromarray(to_bytes(image)).save(data, "PNG", pnginfo=texts, compress_level=compression)
            write_bytes(target / name, data.getvalue())
            saved.append({"filename": name, "subfolder": subfolder, "type": kind})
        return {"ui": {"images": saved}, "result": (images,)}


class PreviewImage(SaveImage):
    DISPLAY_NAME = "Preview Image"
    DESCRIPTION = "Shows the images; the files lie in the temp folder."
    FUNCTION = "preview"

    def __init__(self) -> None:
        # As in core, another name in each session, so that a browser never shows an old picture.
        self.mark = "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(5))

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"images": ("IMAGE",)},
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def preview(
        self, images: Tensor, prompt: Any = None, extra_pnginfo: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        prefix = f"ComfyUI_temp_{self.mark}"
        return self._write(self.host.folders.temp, "temp", images, prefix, 1, prompt, extra_pnginfo)


def to_bytes(image: Tensor) -> np.ndarray[Any, Any]:
    """An image (H, W, C) in [0, 1] as uint8, cut off (not rounded) as core does; NaN is black."""
    import numpy as np

    return np.nan_to_num(np.clip(255.0 * image.cpu().numpy(), 0, 255)).astype(np.uint8)


def next_name(output: Path, prefix: str, width: int, height: int) -> tuple[Path, str, int, str]:
    """Where the next picture of ``prefix`` goes: (folder, name's start, number, subfolder as in messages).

    The number is one more than the highest ``<start>_<number>_…`` in the folder. ``%width%``, ``%height%``
    and the parts of the local time are filled in.

    Raises:
        CascadeError: the prefix leaves the output folder.
    """
    now = time.localtime()
    values = {
        "width": str(width),
        "height": str(height),
        "year": str(now.tm_year),
        "month": f"{now.tm_mon:02}",
        "day": f"{now.tm_mday:02}",
        "hour": f"{now.tm_hour:02}",
        "minute": f"{now.tm_min:02}",
        "second": f"{now.tm_sec:02}",
    }
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    prefix = os.path.normpath(prefix.replace("\\", "/"))  # a workflow means the same on every system
    subfolder, stem = os.path.split(prefix)
    folder = output / subfolder
    if Path(subfolder).is_absolute() or not folder.resolve().is_relative_to(output.resolve()):
        raise CascadeError(
            f"the file name prefix '{prefix}' leaves the output folder",
            where=str(output),
            fix="Use a name inside it",
        )
    highest = 0
    if folder.is_dir():
        for entry in folder.iterdir():
            rest = os.path.normcase(entry.name)
            start = os.path.normcase(f"{stem}_")
            digits = rest.removeprefix(start).split("_")[0]
            if rest.startswith(start):
                highest = max(highest, int(digits) if digits.isdecimal() else 0)
    return folder, stem, highest + 1, subfolder
