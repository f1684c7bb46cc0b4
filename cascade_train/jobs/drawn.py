"""Drawn pictures are values: kept on disk by the name of all they follow from, and read instead of drawn.

The pictures of one `Prompts` lie side by side in one PNG, a row for each text, at their own size: those of a
run in its folder, under ``samples``, those of models in the cache folder, which is bounded. Every picture is
rounded to 8 bits when it is drawn, so that reading it gives the same bytes. Imports no torch.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo

from cascade_train.digest import digest
from cascade_train.errors import CascadeError
from cascade_train.files import write_with
from cascade_train.host.base import Host
from cascade_train.models.library import geometry
from cascade_train.models.spec import AppliedRun, ModelsSpec
from cascade_train.sampling.kept import CONTENT, FOLDER, NAME, bound, told, used
from cascade_train.sampling.sizes import picture_size
from cascade_train.sampling.spec import DRAWING, Prompts
from cascade_train.training.spec import Position

MOST_PIXELS = 1 << 31
"""A larger sheet is none of ours."""


@dataclass(frozen=True)
class Drawing:
    """The pictures of ``prompts`` with ``models``, drawn or not, and the files that may hold them.

    ``models`` is their description as the network sees them, a run's position laid over them by name alone:
    it need not be on disk.
    """

    models: ModelsSpec
    prompts: Prompts
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The digest of all that the pictures follow from: every setting counts, defaults too."""
        return _name(self.models, self.prompts)

    def read(self, copy: bool = True) -> np.ndarray | None:
        """The pictures (N, H, W, 3) uint8 where a whole file of them is there.

        With ``copy`` the first of the files is made where another one has them.
        """
        for number, file in enumerate(self.files):
            pixels = _read(file, self.name, self.prompts)
            if pixels is not None:
                used(file)
                if number and copy:
                    with suppress(OSError):
                        _write(self.files[0], pixels, self.name, self.prompts)
                return pixels
        return None

    def there(self) -> bool:
        """Whether `read` would find them, going by their files' texts alone."""
        return any(_noted(file).get(NAME) == self.name for file in self.files)

    def keep(self, pixels: np.ndarray, host: Host) -> None:
        """Write ``pixels`` to each file. A disk that is full costs the copy alone, and is told."""
        for file in self.files:
            try:
                _write(file, pixels, self.name, self.prompts)
            except OSError as error:
                told(file, error, host)
        bound(host.folders.cache / FOLDER)


def drawing_of(
    prompts: Prompts,
    host: Host,
    *,
    run: Position | None = None,
    models: ModelsSpec | None = None,
    strength: float = 1.0,
) -> Drawing:
    """What `validate` draws of a run's position, or of models.

    Raises:
        CascadeError: neither a run nor models, or both; a size that the models cannot draw.
    """
    if (run is None) == (models is None):
        raise CascadeError(
            "Validate needs a run or models" + (", not both" if run is not None else ""),
            fix="Wire exactly one of them",
        )
    if not math.isfinite(strength):
        raise CascadeError(f"a strength of {strength}", fix="Use a number such as 1")
    base = run.spec.models if run is not None else models
    assert base is not None
    picture_size(geometry(base), prompts.width, prompts.height)
    cache = host.folders.cache / FOLDER
    if run is None:
        return Drawing(base, prompts, (cache / f"{_name(base, prompts)}.png",))
    plain, shown = run.step == 0 or strength == 0, base
    if not plain:
        shown = replace(shown, applied=(*shown.applied, AppliedRun(run.name, strength, "")))
    name = _name(shown, prompts)
    own = Path(run.folder) / "samples" / f"{stem(run, name)}.pictures.png"
    return Drawing(shown, prompts, (own, cache / f"{name}.png") if plain else (own,))


def stem(run: Position, name: str) -> str:
    """The beginning of a file's name in ``samples``: the step, the position, and what is drawn."""
    return f"{run.step:08d}-{run.name[:12]}-{name[:8]}"


def _name(models: ModelsSpec, prompts: Prompts) -> str:
    return digest({"drawing": DRAWING, "models": models.digest, "prompts": prompts.told()})


def _write(file: Path, pixels: np.ndarray, name: str, prompts: Prompts) -> None:
    rows, columns = len(prompts.texts), prompts.pictures
    _, height, width, _ = pixels.shape
    sheet = pixels.reshape(rows, columns, height, width, 3).transpose(0, 2, 1, 3, 4)
    texts = PngInfo()
    texts.add_text(NAME, name)
    texts.add_text(CONTENT, _content(pixels))
    picture = Image.fromarray(np.ascontiguousarray(sheet.reshape(rows * height, columns * width, 3)))
    write_with(file, lambda beside: picture.save(beside, format="PNG", pnginfo=texts, compress_level=2))


def _read(file: Path, name: str, prompts: Prompts) -> np.ndarray | None:
    """The pictures in ``file``; None where it is not there, damaged, or holds others."""
    rows, columns = len(prompts.texts), prompts.pictures
    try:
        with file.open("rb") as handle:
            # not by Image.open: its limit against bombs is below the sheets of large models
            sheet = PngImageFile(handle)
            width, height = sheet.size
            if sheet.mode != "RGB" or width * height > MOST_PIXELS or width % columns or height % rows:
                return None
            if sheet.info.get(NAME) != name:
                return None
            flat = np.asarray(sheet)
            content = sheet.info.get(CONTENT)
    except (OSError, SyntaxError, ValueError):  # Pillow says SyntaxError of what is no PNG
        return None
    sides = (rows, height // rows, columns, width // columns, 3)
    pixels = flat.reshape(sides).transpose(0, 2, 1, 3, 4).reshape(-1, sides[1], sides[3], 3)
    pixels = np.ascontiguousarray(pixels)
    return pixels if _content(pixels) == content else None


def _noted(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as handle:
            return {str(key): value for key, value in PngImageFile(handle).info.items()}
    except (OSError, SyntaxError, ValueError):
        return {}


def _content(pixels: np.ndarray) -> str:
    shape = ",".join(map(str, pixels.shape))
    return hashlib.sha256(shape.encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def keep_picture(path: Path, picture: Image.Image, host: Host, what: str = "the picture") -> None:
    """Write ``picture`` to ``path``. A disk that is full costs it alone, and is told."""
    try:
        write_with(path, lambda beside: picture.save(beside, format="PNG"))
    except OSError as error:
        host.warn(f"{what} could not be kept in {path} ({error.strerror or error})")


def in_floats(pixels: np.ndarray) -> np.ndarray:
    """uint8 pictures as the floats in [0, 1] that travel on an IMAGE link."""
    return pixels.astype(np.float32) / np.float32(255)


def counted(prompts: Prompts) -> str:
    """``12 pictures``."""
    count = len(prompts.texts) * prompts.pictures
    return f"{count} picture" + ("s" if count != 1 else "")
