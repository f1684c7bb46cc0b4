"""Stand-ins for numbers, texts, notes and the node that shows any value."""

from __future__ import annotations

import json
import sys
from typing import Any


class _Primitive:
    FUNCTION = "give"
    CATEGORY = "utils/primitive"
    USES_TORCH = False

    def give(self, value: Any) -> tuple[Any]:
        return (value,)


class PrimitiveInt(_Primitive):
    DISPLAY_NAME = "Int"
    RETURN_TYPES = ("INT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        limits = {"min": -sys.maxsize, "max": sys.maxsize, "control_after_generate": True}
        return {"required": {"value": ("INT", limits)}}


class PrimitiveFloat(_Primitive):
    DISPLAY_NAME = "Float"
    RETURN_TYPES = ("FLOAT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("FLOAT", {"min": -sys.maxsize, "max": sys.maxsize, "step": 0.1})}}


class PrimitiveString(_Primitive):
    DISPLAY_NAME = "String"
    RETURN_TYPES = ("STRING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("STRING", {"multiline": False})}}


class PrimitiveStringMultiline(_Primitive):
    DISPLAY_NAME = "String (Multiline)"
    RETURN_TYPES = ("STRING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("STRING", {"multiline": True})}}


class PrimitiveBoolean(_Primitive):
    DISPLAY_NAME = "Boolean"
    RETURN_TYPES = ("BOOLEAN",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("BOOLEAN", {})}}


class PreviewAny:
    """Shows any value as text and passes the text on; what JSON cannot say is shown as Python writes it."""

    DISPLAY_NAME = "Preview as Text"
    CATEGORY = "utils"
    RETURN_TYPES = ("STRING",)
    FUNCTION = "show"
    OUTPUT_NODE = True
    USES_TORCH = False

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"source": ("*", {})}}

    def show(self, source: Any = None) -> dict[str, Any]:
        if isinstance(source, str):
            text = source
        elif isinstance(source, (bool, int, float)) or source is None:
            text = str(source)
        else:
            try:
                text = json.dumps(source, indent=4, ensure_ascii=False)
            except (TypeError, ValueError, RecursionError):
                text = str(source)
        return {"ui": {"text": (text,)}, "result": (text,)}


class Reroute:
    """Passes its one input on. The frontend resolves reroutes; a prompt made by a script may have them."""

    CATEGORY = "utils"
    RETURN_TYPES = ("*",)
    FUNCTION = "give"
    USES_TORCH = False

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}, "optional": {"": ("*", {})}}

    def give(self, **inputs: Any) -> tuple[Any]:
        return (next(iter(inputs.values()), None),)


class Note:
    """Text for the reader of a graph; nothing runs."""

    CATEGORY = "utils"
    RETURN_TYPES = ()
    FUNCTION = "nothing"
    USES_TORCH = False

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}, "optional": {"text": ("STRING", {"default": "", "multiline": True})}}

    def nothing(self, text: str = "") -> tuple[()]:
        return ()


class MarkdownNote(Note):
    """A `Note` that the frontend renders as Markdown."""
