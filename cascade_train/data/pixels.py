"""From the bytes of an image file to upright sRGB pixels of a wanted size."""

from __future__ import annotations

import io
import math
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from cascade_train.data.upright import left_to_turn, orientation, turned, upright_size
from cascade_train.rasters import EXTENSIONS as EXTENSIONS
from cascade_train.rasters import open_raster

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 178_956_970
"""Larger pictures are refused as decompression bombs (Pillow's own limit, whatever a host sets it to)."""


class BadImage(Exception):
    """A picture that cannot be used; the message is a short reason."""


def open_image(source: bytes | BinaryIO) -> Image.Image:
    """The undecoded PIL image in ``source``; BadImage when it is none or too large to be safe."""
    if source == b"":
        raise BadImage("zero bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = open_raster(source)
    except Exception as error:
        if type(error).__name__ == "DecompressionBombError":
            raise BadImage("decompression bomb") from error
        raise BadImage("not a picture that can be read") from error
    if image.width * image.height > MAX_PIXELS:
        raise BadImage("decompression bomb")
    if not image.width or not image.height:
        raise BadImage("no pixels")
    return image


def looks_whole(data_start: bytes, data_end: bytes, size: int) -> bool:
    """Whether a file's ends look as if nothing was cut off; False only means that it has to be decoded.

    ``data_start`` and ``data_end`` are the file's first and last bytes (some KiB), ``size`` its length.
    """
    if data_start.startswith(b"\xff\xd8"):
        return b"\xff\xd9" in data_end[-64:]
    if data_start.startswith(b"\x89PNG"):
        return b"IEND" in data_end[-16:]
    if data_start.startswith(b"RIFF") and data_start[8:12] == b"WEBP":
        return int.from_bytes(data_start[4:8], "little") + 8 <= size
    if data_start.startswith(b"GIF8"):
        return data_end.endswith(b";")
    if data_start.startswith(b"BM"):
        return int.from_bytes(data_start[2:6], "little") <= size
    return False


def decode(
    data: bytes,
    background: tuple[int, int, int] = (255, 255, 255),
    need: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Upright sRGB pixels, uint8 (H, W, 3).

    The first frame; orientation applied (`upright`); ICC profiles converted to sRGB; transparency composited
    on ``background``; 16-bit scaled, CMYK and palettes converted. With ``need`` (width, height) a JPEG may
    come at 1/2, 1/4 or 1/8 of its size as long as it still covers ``need`` (libjpeg's scaled decoding).
    ``size`` is the (width, height) that an index has of it.

    Raises:
        BadImage: the data is no picture, is cut off, is too large to be safe, or has another size.
    """
    image = open_image(data)
    turn = orientation(image)
    seen = upright_size(image, turn)
    if size is not None and seen != size:
        raise BadImage(_other_size(seen, size))
    if (
        image.format == "JPEG"
        and image.mode in ("RGB", "L")
        and "icc_profile" not in image.info
        and looks_whole(data[:4], data[-64:], len(data))
    ):
        pixels, scale = _decode_jpeg(data, seen, need)
        pixels = turned(pixels, turn)
    else:
        scale = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image.load()
                pixels = turned(_to_rgb(image, background), left_to_turn(image, turn))
        except BadImage:
            raise
        except MemoryError as error:
            raise BadImage("too large for memory") from error
        except Exception as error:
            text = str(error).lower()
            cut = "truncated" in text or "unexpected end" in text or "end of" in text
            raise BadImage("truncated" if cut else "damaged") from error
    height, width = pixels.shape[:2]
    if (width, height) != (-(-seen[0] // scale), -(-seen[1] // scale)):
        raise BadImage(_other_size((width, height), seen))
    return pixels


def _other_size(found: tuple[int, int], told: tuple[int, int]) -> str:
    return f"its pixels are {found[0]}×{found[1]}, not {told[0]}×{told[1]}"


def _decode_jpeg(
    data: bytes, size: tuple[int, int], need: tuple[int, int] | None
) -> tuple[np.ndarray, Literal[1, 2, 4, 8]]:
    """The pixels of a JPEG, not yet turned, and by what they were brought down; ``size`` is upright."""
    import cv2

    scale: Any = 1
    while need and scale < 8 and size[0] // (scale * 2) >= need[0] and size[1] // (scale * 2) >= need[1]:
        scale *= 2
    flag = {
        1: cv2.IMREAD_COLOR,
        2: cv2.IMREAD_REDUCED_COLOR_2,
        4: cv2.IMREAD_REDUCED_COLOR_4,
        8: cv2.IMREAD_REDUCED_COLOR_8,
    }[scale]
    direct = scale == 1 and hasattr(cv2, "IMREAD_COLOR_RGB")  # from OpenCV 4.11 on
    flag = cv2.IMREAD_COLOR_RGB if direct else flag
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise BadImage("damaged")
    return pixels if direct else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), scale


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> np.ndarray:
    from PIL import Image as image_module

    profile = image.info.get("icc_profile")
    if image.mode.startswith(("I;16", "I", "F")):
        values = np.asarray(image).astype(np.float64)
        top = (
            1.0
            if image.mode == "F" and values.max(initial=0) <= 1.0
            else (65535.0 if image.mode != "F" or values.max(initial=0) > 255 else 255.0)
        )
        values = np.nan_to_num(values)
        gray = np.clip(np.round(values / top * 255), 0, 255).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    alpha = None
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
        image = image.convert("RGB")
    elif image.mode == "P":
        image = image.convert("RGB")
    if profile:
        image = _to_srgb(image, profile)
    image = image.convert("RGB")
    if alpha is not None:
        canvas = image_module.new("RGB", image.size, background)
        canvas.paste(image, mask=alpha)
        image = canvas
    return np.asarray(image)


def _to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """``image`` through its ICC profile; unchanged when the profile is damaged or fits another mode."""
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if {"RGB": "RGB", "CMYK": "CMYK", "GRAY": "L"}.get(space) != image.mode:
            return image
        out = ImageCms.profileToProfile(
            image,
            source,
            ImageCms.createProfile("sRGB"),
            outputMode="RGB",
            renderingIntent=ImageCms.Intent.PERCEPTUAL,
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    return out if out is not None else image


@cache
def reducer() -> Literal["torch", "opencv"]:
    """What reduces pictures here by factors that are not whole: torch where it has its code for 8-bit pixels
    (AVX2 and later; elsewhere it is ten times slower), else OpenCV."""
    import torch

    return "torch" if torch.backends.cpu.get_cpu_capability().startswith("AVX") else "opencv"


def area_resize(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """``pixels`` (H, W, 3) uint8 at (height, width): the mean over each target pixel's area when reducing,
    bicubic when enlarging.

    Exact for whole-number factors. For others every target pixel is a weighted mean of its surroundings that
    stays within a fraction of 1/255 of that on photographs: torch's antialiased bilinear filter, which is the
    reference's, or the picture brought bilinearly to a whole multiple of the target and averaged. Weighting
    pixels by their exact overlap takes several times as long as either.
    """
    import cv2

    rows, columns = pixels.shape[:2]
    if (rows, columns) == (height, width):
        return pixels
    if columns < width or rows < height:
        if columns <= width and rows <= height:
            return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
        return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    if columns % width == 0 and rows % height == 0:
        return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    if reducer() == "torch":
        return _antialiased(pixels, width, height)
    between = width * _factor(columns / width), height * _factor(rows / height)
    if between != (columns, rows):
        pixels = cv2.resize(pixels, between, interpolation=cv2.INTER_LINEAR)
    return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)


def _antialiased(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    import torch
    from torch.nn.functional import interpolate

    if not (pixels.flags.writeable and pixels.flags.c_contiguous):  # torch warns of what it could write to
        pixels = np.array(pixels, order="C")
    batch = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # channels last, which its quick code wants
    out = interpolate(batch, size=(height, width), mode="bilinear", antialias=True)
    return out[0].permute(1, 2, 0).numpy()


def _factor(ratio: float) -> int:
    return 1 if ratio == 1 else max(2, round(ratio))


def cover_size(width: int, height: int, to_width: int, to_height: int) -> tuple[int, int]:
    """The smallest size of a picture's shape (sides rounded up) that covers (to_width, to_height)."""
    scale = max(to_width / width, to_height / height)
    return (max(to_width, math.ceil(width * scale - 1e-6)), max(to_height, math.ceil(height * scale - 1e-6)))


def crop_corner(
    width: int, height: int, to_width: int, to_height: int, crop: tuple[float, float]
) -> tuple[int, int]:
    """(left, top) of a window in a (width, height) picture; ``crop`` is in [0, 1] of the room there is."""
    return (
        int(min(crop[0], 1.0) * (width - to_width) + 0.5),
        int(min(crop[1], 1.0) * (height - to_height) + 0.5),
    )


def fit(
    pixels: np.ndarray,
    width: int,
    height: int,
    crop: tuple[float, float] = (0.5, 0.5),
    resize: Literal["cover", "none", "stretch", "pad"] = "cover",
    background: tuple[int, int, int] = (255, 255, 255),
) -> np.ndarray:
    """``pixels`` (H, W, 3) brought to (height, width, 3), contiguous.

    ``cover`` resizes until the target is covered and crops; ``none`` crops at the picture's own scale
    (enlarging only what is too small); ``stretch`` ignores the aspect; ``pad`` keeps all and fills the rest.
    """
    rows, columns = pixels.shape[:2]
    if resize == "stretch":
        return np.ascontiguousarray(area_resize(pixels, width, height))
    if resize == "pad":
        scale = min(width / columns, height / rows)
        inner = area_resize(
            pixels, max(1, min(width, round(columns * scale))), max(1, min(height, round(rows * scale)))
        )
        canvas = np.empty((height, width, 3), dtype=np.uint8)
        canvas[:] = background
        left, top = (width - inner.shape[1]) // 2, (height - inner.shape[0]) // 2
        canvas[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        return canvas
    if resize == "cover" or columns < width or rows < height:
        pixels = area_resize(pixels, *cover_size(columns, rows, width, height))
    left, top = crop_corner(pixels.shape[1], pixels.shape[0], width, height, crop)
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])
