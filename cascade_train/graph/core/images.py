"""Stand-ins for core's image arithmetic. IMAGE is (N, H, W, C) float32 in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from torch import Tensor

MAX_SIDE = 16384
"""The largest side that core's sliders allow, in pixels."""

MOST_PIXELS = 1 << 28
"""Pixels of all pictures that one node makes from nothing; they take 12 bytes each."""


class ImageScale:
    DISPLAY_NAME = "Upscale Image"
    CATEGORY = "image/upscaling"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "scale"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        side = {"default": 512, "min": 0, "max": MAX_SIDE, "step": 1}
        return {
            "required": {
                "image": ("IMAGE",),
                "upscale_method": (["nearest-exact", "bilinear", "area", "bicubic", "lanczos"],),
                "width": ("INT", dict(side)),
                "height": ("INT", dict(side)),
                "crop": (["disabled", "center"],),
            }
        }

    def scale(self, image: Tensor, upscale_method: str, width: int, height: int, crop: str) -> tuple[Tensor]:
        if width == 0 and height == 0:
            return (image,)
        rows, columns = image.shape[1], image.shape[2]
        width = width or max(1, round(columns * height / rows))
        height = height or max(1, round(rows * width / columns))
        return (resized(image, width, height, upscale_method, centred=crop == "center"),)


class ImageBatch:
    DISPLAY_NAME = "Batch Images"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "join"
    DEPRECATED = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"image1": ("IMAGE",), "image2": ("IMAGE",)}}

    def join(self, image1: Tensor, image2: Tensor) -> tuple[Tensor]:
        """The second batch takes the first one's size; an alpha channel that one lacks is opaque."""
        import torch
        from torch.nn.functional import pad

        if image1.shape[-1] < image2.shape[-1]:
            image1 = pad(image1, (0, image2.shape[-1] - image1.shape[-1]), value=1.0)
        elif image2.shape[-1] < image1.shape[-1]:
            image2 = pad(image2, (0, image1.shape[-1] - image2.shape[-1]), value=1.0)
        if image1.shape[1:] != image2.shape[1:]:
            image2 = resized(image2, image1.shape[2], image1.shape[1], "bilinear", centred=True)
        return (torch.cat((image1, image2)),)


class EmptyImage:
    DISPLAY_NAME = "EmptyImage"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "fill"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        side = {"default": 512, "min": 1, "max": MAX_SIDE, "step": 1}
        return {
            "required": {
                "width": ("INT", dict(side)),
                "height": ("INT", dict(side)),
                "batch_size": ("INT", {"default": 1, "min": 1, "max": 4096}),
                "color": ("INT", {"default": 0, "min": 0, "max": 0xFFFFFF, "step": 1, "display": "color"}),
            }
        }

    def fill(self, width: int, height: int, batch_size: int = 1, color: int = 0) -> tuple[Tensor]:
        """``color`` is 0xRRGGBB. CascadeError for sizes that a wire has brought and no picture has."""
        import torch

        if min(width, height, batch_size) < 1 or width * height * batch_size > MOST_PIXELS:
            raise CascadeError(
                f"{batch_size} pictures of {width}×{height} pixels cannot be made",
                fix=f"Use sides of 1 and more, and at most {MOST_PIXELS >> 20} million pixels together",
            )
        levels = torch.tensor([(color >> shift & 0xFF) / 0xFF for shift in (16, 8, 0)], dtype=torch.float32)
        return (levels.expand(batch_size, height, width, 3).clone(),)


def resized(images: Tensor, width: int, height: int, method: str, *, centred: bool) -> Tensor:
    """``images`` (N, H, W, C) at ``width`` × ``height``.

    Args:
        method: an interpolation mode of `torch.nn.functional.interpolate`, or ``lanczos`` (Pillow, 8 bits).
        centred: cut equal strips off the longer side first, to the nearest pixel, so that nothing is
            stretched.
    """
    from torch.nn.functional import interpolate

    if centred:
        images = _centre(images, width / height)
    if method == "lanczos":
        return _lanczos(images, width, height)
    return interpolate(images.movedim(-1, 1), size=(height, width), mode=method).movedim(1, -1)


def _centre(images: Tensor, aspect: float) -> Tensor:
    rows, columns = images.shape[1], images.shape[2]
    have = columns / rows
    if have > aspect:
        cut = round((columns - columns * (aspect / have)) / 2)
        return images[:, :, cut : columns - cut]
    if have < aspect:
        cut = round((rows - rows * (have / aspect)) / 2)
        return images[:, cut : rows - cut]
    return images


def _lanczos(images: Tensor, width: int, height: int) -> Tensor:
    import numpy as np
    import torch
    from PIL import Image

    from cascade_train.graph.core.save import to_bytes

    out = []
    for image in images:
        small = Image.fromarray(to_bytes(image)).resize((width, height), Image.Resampling.LANCZOS)
        out.append(torch.from_numpy(np.asarray(small).astype(np.float32) / 255.0))
    return torch.stack(out).to(images.device, images.dtype)
