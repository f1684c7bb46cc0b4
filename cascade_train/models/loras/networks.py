"""The layers that a LoRA can change, by every name that files have for them. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from cascade_train.models import reading
from cascade_train.models.layouts import Shapes, diffusers_name, split_name, without_prefix
from cascade_train.models.spec import Part, PartFile

PREFIXES: Mapping[str, tuple[str, ...]] = {
    "stage_c": (
        "base_model.model.",
        "model.diffusion_model.",
        "diffusion_model.",
        "lora_prior_unet.",
        "prior.",
        "unet.",
        "lora_prior_unet_",
        "lora_unet_",
        "lycoris_",
    ),
    "text": (
        "base_model.model.",
        "text_encoders.",
        "prior_text_encoder.",
        "text_encoder.",
        "lora_prior_te.",
        "clip_g.",
        "transformer.",
        "lora_prior_te_",
        "lora_te2_",
        "lora_te_",
    ),
}
"""What files put before the name of a layer, by part; several may follow each other."""

Layer = tuple[str, ...]
"""The modules that one name in a file stands for: one, or an attention's q, k and v."""


@dataclass(frozen=True)
class Network:
    """The weights of a part that a LoRA can change: shapes by module, as the module's class calls them."""

    part: Part
    shapes: Mapping[str, tuple[int, ...]] = field(hash=False)

    @cached_property
    def _names(self) -> dict[str, Layer]:
        out: dict[str, Layer] = {}
        for module in self.shapes:
            for name in _spellings(module) if self.part == "stage_c" else (module,):
                out[name] = out[name.replace(".", "_")] = (module,)
        for stem in (name.removesuffix(".to_q") for name in self.shapes if name.endswith(".attention.to_q")):
            fused = tuple(f"{stem}.to_{letter}" for letter in "qkv")
            for name in (f"{stem}.attn.in_proj", f"{stem}.attn.in_proj_weight", f"{stem}.in_proj"):
                out[name] = out[name.replace(".", "_")] = fused
        return out

    def layer(self, name: str) -> Layer:
        """The modules that ``name``, a key of a file without its ending, stands for; () where none does."""
        while True:
            if name in self._names:
                return self._names[name]
            prefix = next((each for each in PREFIXES[self.part] if name.startswith(each)), None)
            if prefix is None:
                return ()
            name = name[len(prefix) :]

    def claims(self, name: str) -> bool:
        """Whether a file means this part by ``name``, whatever its layers."""
        return any(name.startswith(each) for each in PREFIXES[self.part] if each not in _SHARED)

    def size(self, layer: Layer) -> tuple[int, int]:
        """Rows and columns of the weight of ``layer``, kernels counted as columns."""
        shapes = [self.shapes[module] for module in layer]
        return sum(shape[0] for shape in shapes), _product(shapes[0][1:])

    def in_order(self) -> list[Layer]:
        """The layers in the order in which the reference counts them: as they are made, an attention's
        ``out_proj`` before its fused ``in_proj``."""
        fused = {}
        for module in self.shapes:
            if module.endswith((".attention.to_k", ".attention.to_v")):
                continue
            stem = module.removesuffix(".to_q")
            whole = tuple(f"{stem}.to_{letter}" for letter in "qkv") if stem != module else (module,)
            fused[whole] = _rank(split_name(module))
        return sorted(fused, key=fused.__getitem__)


_SHARED = ("base_model.model.", "transformer.")


def _product(numbers: Sequence[int]) -> int:
    out = 1
    for number in numbers:
        out *= number
    return out


def _spellings(module: str) -> Iterator[str]:
    native = split_name(module)
    yield module
    yield native
    for number, letter in enumerate("qkv"):  # OneTrainer since 2025
        if native.endswith(f".attn.to_{letter}"):
            yield native.removesuffix(f"to_{letter}") + f"in_proj.{number}"
    if module.endswith(".to_out.0"):
        yield module.removesuffix(".0")


_TOP = (
    "clip_txt_mapper",
    "clip_txt_pooled_mapper",
    "clip_img_mapper",
    "embedding",
    "down_blocks",
    "down_downscalers",
    "down_repeat_mappers",
    "up_blocks",
    "up_upscalers",
    "up_repeat_mappers",
    "clf",
)
_INNER = ("depthwise", "channelwise", "mapper", "mapper_sca", "mapper_crp", "attention", "kv_mapper")


def _rank(native: str) -> tuple[int, ...]:
    pieces = native.split(".")
    top = _TOP.index(pieces[0]) if pieces[0] in _TOP else len(_TOP)
    inner = [
        int(piece) if piece.isdigit() else _INNER.index(piece) if piece in _INNER else 0
        for piece in pieces[1:]
        if piece != "attn"
    ]
    return (top, *inner, int(not native.endswith("out_proj")))


def network_of(file: PartFile) -> Network:
    """The layers of Stage C or the text encoder in ``file``, from its header.

    Raises:
        CascadeError: the file cannot be read.
    """
    return _network(file.part, file.path, file.prefix, file.content)


@lru_cache(maxsize=16)
def _network(part: Part, path: str, prefix: str, content: str) -> Network:
    shapes, _ = reading.part_headers(PartFile(part, content, path, prefix))
    return network_from(part, shapes)


def network_from(part: Part, shapes: Shapes) -> Network:
    """The same from the shapes of a file's tensors."""
    out: dict[str, tuple[int, ...]] = {}
    for key, shape in (without_prefix(shapes) if part == "stage_c" else shapes).items():
        sides = tuple(int(side) for side in shape)
        if ".attention.attn.in_proj_weight" in key:
            stem = key.removesuffix(".attn.in_proj_weight")
            out |= {f"{stem}.to_{letter}": (sides[0] // 3, *sides[1:]) for letter in "qkv"}
        elif part == "text" and key == "text_projection":  # OpenCLIP's, which multiplies from the other side
            out["text_projection"] = sides[::-1]
        elif key.endswith(".weight") and len(sides) >= 2 and "embeddings." not in key:
            module = key.removesuffix(".weight")
            out[diffusers_name(module) if part == "stage_c" else module] = sides
    return Network(part, out)


SIZES = {"3.6B": (2048, (8, 24)), "1B": (1536, (4, 12))}
"""The official Stages C: width, and triples of blocks on the way down by level (the way up mirrors them)."""


def official(size: str) -> tuple[Network, Network]:
    """Stage C and the text encoder of the official files, without their headers."""
    return _official_c(size), _clip_g()


@lru_cache(maxsize=2)
def _official_c(size: str) -> Network:
    width, blocks = SIZES[size]
    shapes: dict[str, tuple[int, ...]] = {
        "clip_txt_mapper": (width, 1280),
        "clip_txt_pooled_mapper": (4 * width, 1280),
        "clip_img_mapper": (4 * width, 768),
        "embedding.1": (width, 16, 1, 1),
        "down_downscalers.1.1.blocks.0": (width, width, 1, 1),
        "up_upscalers.0.1.blocks.1": (width, width, 1, 1),
        "clf.1": (16, width, 1, 1),
    }
    for side, counts in (("down_blocks", blocks), ("up_blocks", blocks[::-1])):
        for level, count in enumerate(counts):
            for triple in range(count):
                stem = f"{side}.{level}.{3 * triple}"
                skips = side == "up_blocks" and level == 1 and triple == 0
                shapes[f"{stem}.depthwise"] = (width, 1, 3, 3)
                shapes[f"{stem}.channelwise.0"] = (4 * width, 2 * width if skips else width)
                shapes[f"{stem}.channelwise.4"] = (width, 4 * width)
                stem = f"{side}.{level}.{3 * triple + 1}"
                shapes |= {
                    f"{stem}.{name}": (2 * width, 64) for name in ("mapper", "mapper_sca", "mapper_crp")
                }
                stem = f"{side}.{level}.{3 * triple + 2}"
                for name in ("to_q", "to_k", "to_v", "to_out.0"):
                    shapes[f"{stem}.attention.{name}"] = (width, width)
                shapes[f"{stem}.kv_mapper.1"] = (width, width)
    return Network("stage_c", shapes)


@lru_cache(maxsize=1)
def _clip_g() -> Network:
    shapes = {"text_projection": (1280, 1280)}
    for number in range(32):
        stem = f"text_model.encoder.layers.{number}"
        shapes |= {
            f"{stem}.self_attn.{name}": (1280, 1280) for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        }
        shapes |= {f"{stem}.mlp.fc1": (5120, 1280), f"{stem}.mlp.fc2": (1280, 5120)}
    return Network("text", shapes)


def short(modules: Sequence[str]) -> str:
    """What kinds of layers these are, for people: ``attention, channelwise``."""
    kinds = {re.sub(r"^(?:.*\.\d+\.)?(\w+?)(?:\.(?:to_.*|\d+))*$", r"\1", name) for name in modules}
    return ", ".join(sorted(kinds))


def nano_file(part: Part) -> Path:
    """Where nano's own ``part`` lies."""
    folder = Path(__file__).resolve().parent.parent / "nano"
    return folder / ("text/model.safetensors" if part == "text" else f"{part}.safetensors")
