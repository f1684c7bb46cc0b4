"""Small node classes with every kind of input that the conversion rules speak of.

Loaded as a custom node pack by a real ComfyUI (`record_pairs.py`) and as plain classes by the tests.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RuleLoad:
    RETURN_TYPES = ("IMAGE", "MASK", "LATENT")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"name": (["first", "second", "third"],)}}


class RuleImage:
    RETURN_TYPES = ("IMAGE", "MASK")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "image": ("IMAGE",),
                "strength": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 2.0}),
            },
            "optional": {"mask": ("MASK",), "method": (["plain", "fancy"], {"default": "fancy"})},
        }


class RuleTwo:
    """Two inputs of one type, and the output's type second: bypassing has to choose."""

    RETURN_TYPES = ("LATENT", "IMAGE")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"mask": ("MASK",), "one": ("IMAGE",), "two": ("IMAGE",), "latent": ("LATENT",)}}


class RuleWide:
    """An input that takes two types."""

    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"either": ("MASK,IMAGE",), "latent": ("LATENT",)}}


class RuleSeed:
    RETURN_TYPES = ("LATENT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**53, "control_after_generate": True}),
                "steps": ("INT", {"default": 20, "min": 1, "max": 1000}),
                "latent": ("LATENT",),
                "style": (["a", "b", "c"], {"control_after_generate": True}),
                "cfg": ("FLOAT", {"default": 4.0, "min": 0.0, "max": 30.0}),
            }
        }


class RuleSeeds:
    """Seeds by name alone, and one that says it has no control."""

    RETURN_TYPES = ("LATENT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "noise_seed": ("INT", {"default": 0, "min": 0, "max": 2**53}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**53, "control_after_generate": False}),
                "last": ("STRING", {"default": "end"}),
            }
        }


class RuleForced:
    RETURN_TYPES = ("STRING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "before": ("STRING", {"default": ""}),
                "width": ("INT", {"default": 8, "forceInput": True}),
                "after": ("INT", {"default": 1, "min": 0, "max": 100}),
            }
        }


class RuleUpload:
    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "image": (["cat.png", "dog.png"], {"image_upload": True}),
                "scale": ("FLOAT", {"default": 1.0}),
            },
            "optional": {"tint": ("STRING", {"default": "none"})},
        }


class RuleSocketless:
    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "size": ("INT", {"default": 64, "socketless": True}),
                "image": ("IMAGE",),
                "count": ("INT", {"default": 1}),
            }
        }


class RuleText:
    RETURN_TYPES = ("STRING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "text": ("STRING", {"multiline": True, "dynamicPrompts": True}),
                "plain": ("STRING", {"default": ""}),
            }
        }


class RuleNumbers:
    RETURN_TYPES = ("INT", "FLOAT", "STRING")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "whole": ("INT", {"default": 1}),
                "real": ("FLOAT", {"default": 0.5}),
                "text": ("STRING", {"default": ""}),
            }
        }


class RuleAny:
    RETURN_TYPES = ("*",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"anything": ("*",)}, "optional": {"more": ("*",)}}


class RuleDynamic:
    """The two kinds of inputs that grow: a choice that brings inputs of its own, and a list."""

    RETURN_TYPES = ("IMAGE",)
    OPTIONS: ClassVar[list[dict[str, Any]]] = [
        {"key": "by factor", "inputs": {"required": {"factor": ("FLOAT", {"default": 2.0})}}},
        {
            "key": "to size",
            "inputs": {
                "required": {
                    "width": ("INT", {"default": 512}),
                    "height": ("INT", {"default": 256}),
                    "crop": ("COMBO", {"options": ["no", "yes"]}),
                }
            },
        },
        {"key": "like", "inputs": {"required": {"other": ("IMAGE", {})}}},
    ]

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "images": (
                    "COMFY_AUTOGROW_V3",
                    {
                        "template": {
                            "input": {"required": {"image": ("IMAGE", {})}},
                            "prefix": "image",
                            "min": 1,
                            "max": 5,
                        }
                    },
                ),
                "resize": ("COMFY_DYNAMICCOMBO_V3", {"options": cls.OPTIONS}),
                "last": ("STRING", {"default": "end"}),
            }
        }


class RuleShow:
    RETURN_TYPES = ()
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"images": ("IMAGE",)},
            "optional": {
                "latent": ("LATENT",),
                "label": ("STRING", {"default": "shown"}),
                "anything": ("*",),
            },
        }


CLASSES: tuple[type, ...] = (
    RuleLoad,
    RuleImage,
    RuleTwo,
    RuleWide,
    RuleSeed,
    RuleSeeds,
    RuleForced,
    RuleUpload,
    RuleSocketless,
    RuleText,
    RuleNumbers,
    RuleAny,
    RuleDynamic,
    RuleShow,
)
for _cls in CLASSES:
    _cls.FUNCTION = "run"  # type: ignore[attr-defined]
    _cls.CATEGORY = "rules"  # type: ignore[attr-defined]

NODE_CLASS_MAPPINGS: dict[str, type] = {cls.__name__: cls for cls in CLASSES}
