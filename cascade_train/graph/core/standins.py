"""The few core nodes that a training graph uses, for when ComfyUI is not there.

Ids, inputs, defaults and outputs are those of ComfyUI's core; pixels are equal to the byte where core's are
deterministic. With ``--comfyui`` core's own classes take their place.
"""

from __future__ import annotations

from cascade_train.graph.core.images import EmptyImage, ImageBatch, ImageScale
from cascade_train.graph.core.load import LoadImage, LoadImageMask
from cascade_train.graph.core.save import PreviewImage, SaveImage
from cascade_train.graph.core.values import (
    MarkdownNote,
    Note,
    PreviewAny,
    PrimitiveBoolean,
    PrimitiveFloat,
    PrimitiveInt,
    PrimitiveString,
    PrimitiveStringMultiline,
    Reroute,
)
from cascade_train.host.base import Host

STANDINS: tuple[type, ...] = (
    LoadImage,
    LoadImageMask,
    SaveImage,
    PreviewImage,
    PreviewAny,
    ImageScale,
    ImageBatch,
    EmptyImage,
    PrimitiveInt,
    PrimitiveFloat,
    PrimitiveString,
    PrimitiveStringMultiline,
    PrimitiveBoolean,
    Reroute,
    Note,
    MarkdownNote,
)


def standins(host: Host) -> dict[str, type]:
    """The stand-ins by core's ids, with ``host`` bound."""
    return {
        cls.__name__: type(cls.__name__, (cls,), {"host": host, "__module__": cls.__module__})
        for cls in STANDINS
    }
