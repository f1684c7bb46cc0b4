"""Stand-ins for core's picture loaders."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host, slashed
from cascade_train.rasters import open_raster

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from torch import Tensor

MOST_PIXELS = 1 << 27
"""Pixels of all frames of one file together; as ComfyUI's IMAGE and MASK they take 16 bytes each."""
MOST_FRAMES = 10_000

NO_MASK_SIDE = 64
"""Side of the empty mask that core gives with a picture that has no transparency, in pixels."""


def located(host: Host, name: str) -> Path:
    """The file that an image widget names: ``sub/cat.png``, or ``cat.png [output]`` for another folder.

    Raises:
        CascadeError: there is no such file, or it lies outside the allowed folders.
    """
    folder = host.folders.input
    for tag, tagged in (
        ("output", host.folders.output),
        ("input", host.folders.input),
        ("temp", host.folders.temp),
    ):
        if name.endswith(f"[{tag}]"):
            folder, name = tagged, name[: -len(tag) - 2].rstrip()
    path = folder / slashed(name)
    if not path.is_file():
        raise CascadeError(
            f"there is no picture '{name}'",
            where=str(folder),
            fix="Put it there, or give its folder (headless: --input-dir)",
        )
    return host.folders.resolve_read(str(path), "picture")


def _pictures(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.is_file()]
    return sorted(name for name in names if (mimetypes.guess_type(name)[0] or "").startswith("image/"))


def _content(path: Path) -> str:
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class _Loader:
    host: ClassVar[Host]
    FUNCTION = "load"

    @classmethod
    def IS_CHANGED(cls, image: str, **rest: Any) -> str:
        return _content(located(cls.host, image))

    @classmethod
    def VALIDATE_INPUTS(cls, image: str) -> bool | str:
        try:
            located(cls.host, image)
        except CascadeError as error:
            return str(error)
        return True


class LoadImage(_Loader):
    DISPLAY_NAME = "Load Image"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE", "MASK")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"image": (_pictures(cls.host.folders.input), {"image_upload": True})}}

    def load(self, image: str) -> tuple[Tensor, Tensor]:
        """Pixels (N, H, W, 3) and mask (N, H, W), 1 where transparent; N > 1 for animations, whose frames
        of another size than the first are left out."""
        import torch
        from PIL import ImageSequence

        with _opened(self.host, located(self.host, image)) as picture:
            single = picture.format == "MPO"
            pixels: list[Tensor] = []
            masks: list[Tensor] = []
            size: tuple[int, int] | None = None
            seen = 0
            if not single:
                count = int(getattr(picture, "n_frames", 1))
                _check_frames(image, count, count * picture.size[0] * picture.size[1])
            for number, raw in enumerate(ImageSequence.Iterator(picture)):
                seen += raw.size[0] * raw.size[1]
                _check_frames(image, number + 1, seen)
                frame = _upright(raw)
                rgb = frame.convert("RGB")
                size = size or rgb.size
                if rgb.size != size:
                    continue
                pixels.append(torch.from_numpy(_levels(rgb)))
                alpha = _alpha(frame)
                masks.append(
                    torch.zeros(NO_MASK_SIDE, NO_MASK_SIDE)
                    if alpha is None
                    else 1.0 - torch.from_numpy(alpha)
                )
                if single:
                    break
        return torch.stack(pixels), torch.stack(masks)


class LoadImageMask(_Loader):
    DISPLAY_NAME = "Load Image (as Mask)"
    CATEGORY = "mask"
    RETURN_TYPES = ("MASK",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "image": (_pictures(cls.host.folders.input), {"image_upload": True}),
                "channel": (["alpha", "red", "green", "blue"],),
            }
        }

    def load(self, image: str, channel: str) -> tuple[Tensor]:
        """One channel (1, H, W) in [0, 1]; alpha is turned round, so that 1 is transparent."""
        import torch

        with _opened(self.host, located(self.host, image)) as picture:
            frame = _upright(picture)
            if frame.getbands() != ("R", "G", "B", "A"):
                frame = frame.convert("RGBA")
            levels = torch.from_numpy(_levels(frame.getchannel(channel[0].upper())))
        return ((1.0 - levels if channel == "alpha" else levels)[None],)


def _check_frames(name: str, count: int, pixels: int) -> None:
    """CascadeError where the frames of an animation are too much to be held at once."""
    if count > 1 and (count > MOST_FRAMES or pixels > MOST_PIXELS):
        raise CascadeError(
            f"'{name}' holds {count} frames or more of {pixels // count} pixels each, too many to be held",
            fix=f"Use fewer or smaller frames: {MOST_PIXELS >> 20} million pixels together",
        )


def _opened(host: Host, path: Path) -> Image.Image:
    """The picture, decoded; one whose end is missing is loaded as far as it goes, with a warning."""
    from PIL import Image, ImageFile, UnidentifiedImageError

    try:
        picture = open_raster(path)
        picture.load()
        return picture
    except UnidentifiedImageError:
        raise CascadeError("this is not a picture that Pillow can read", where=str(path)) from None
    except Image.DecompressionBombError as error:
        raise CascadeError(f"the picture is too large: {error}", where=str(path)) from None
    except (OSError, ValueError, SyntaxError) as error:
        allowed, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
        try:
            picture = open_raster(path)
            picture.load()
        except (OSError, ValueError, SyntaxError):
            raise CascadeError(f"the picture is damaged: {error}", where=str(path)) from None
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = allowed
        host.warn(f"{path.name} is damaged ({error}); what could be read of it is used")
        return picture


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF data say; 32-bit grey brought to 8 bits' range."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(picture)
    if upright.mode == "I":
        upright = upright.point(lambda level: level * (1 / 255))
    return upright


def _levels(picture: Image.Image) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(picture).astype(np.float32) / 255.0


def _alpha(frame: Image.Image) -> np.ndarray[Any, Any] | None:
    if "A" in frame.getbands():
        return _levels(frame.getchannel("A"))
    if frame.mode == "P" and "transparency" in frame.info:
        return _levels(frame.convert("RGBA").getchannel("A"))
    return None
