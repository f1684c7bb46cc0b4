"""Which tensors of a LoRA file change which layers of given networks: every one, or it is refused.

Only headers are looked at. Imports no torch.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cascade_train.errors import CascadeError
from cascade_train.models import header, reading
from cascade_train.models.layouts import Shapes
from cascade_train.models.loras import kinds
from cascade_train.models.loras.networks import SIZES, Layer, Network, nano_file, network_from, official
from cascade_train.models.spec import Part

PARTS: tuple[Part, ...] = ("stage_c", "text")
"""The parts that a LoRA file can change."""

FIX = "Choose a LoRA that was trained for these models"


@dataclass(frozen=True)
class LayerKeys:
    """A layer that a file changes: its part and modules, and the file's tensors by what they are
    (`kinds.ENDINGS`)."""

    part: Part
    layer: Layer
    keys: Mapping[str, str]


@dataclass(frozen=True)
class Fit:
    """A LoRA file beside the networks it fits.

    ``form`` is whose names it has, ``kind`` how it changes layers, ``unused`` the tensors that are left out,
    ``embeddings`` those of words: by the word's name, or of an official file under ``""``.
    """

    form: str
    kind: str
    entries: tuple[LayerKeys, ...]
    unused: tuple[str, ...]
    embeddings: Mapping[str, str]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in PARTS if any(each.part == part for each in self.entries))


def header_of(path: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Shapes and metadata of a LoRA: a file, or a folder that peft saved.

    Raises:
        CascadeError: there is none, or it is no safetensors file.
    """
    file = tensors_file(path)
    return _header(str(file), file.stat().st_size, file.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _header(path: str, size: int, stamp: int) -> tuple[dict[str, list[int]], dict[str, str]]:
    found = header.read(Path(path))
    return dict(found.shapes), dict(found.metadata)


def tensors_file(path: Path) -> Path:
    """The file that holds the tensors of the LoRA at ``path``."""
    file = path / "adapter_model.safetensors" if path.is_dir() else path
    if file.suffix != ".safetensors" or not file.is_file():
        raise CascadeError(
            "this is no LoRA file",
            where=str(path),
            fix="Choose a .safetensors file, or a folder that peft saved (adapter_model.safetensors)",
        )
    return file


def check(path: Path) -> None:
    """Refuse what is no LoRA of a Stage C, saying what it is; whether it fits models is not looked at.

    Raises:
        CascadeError: it is another model's, or no LoRA.
    """
    shapes, _ = header_of(path)
    other = kinds.foreign(shapes)
    if other:
        raise CascadeError(
            f"the file holds {other}, not a LoRA of Stable Cascade's Stage C",
            where=str(path),
            fix="Choose a LoRA that was trained for Stable Cascade",
        )


def fitted(path: Path, networks: Sequence[Network]) -> Fit:
    """How the LoRA at ``path`` changes ``networks``.

    Raises:
        CascadeError: it is another model's; a tensor has no place in these networks (they are counted, the
            first named), or is missing.
    """
    check(path)
    shapes, metadata = header_of(path)
    return _fitted(shapes, metadata, networks, str(path))


def guessed(path: Path) -> tuple[Fit, tuple[Network, ...]]:
    """`fitted` to the known networks that it fits: the official sizes, then nano. Raises as it does."""
    check(path)
    shapes, metadata = header_of(path)
    first: CascadeError | None = None
    width = kinds.width(shapes)
    sizes = sorted(SIZES, key=lambda size: SIZES[size][0] != width)
    for networks in (*(official(size) for size in sizes), nano()):
        try:
            return _fitted(shapes, metadata, networks, str(path)), networks
        except CascadeError as error:
            first = first or error
    assert first is not None
    raise CascadeError(
        f"it fits neither an official Stage C nor nano: {first.what}",
        where=str(path),
        fix="Give the Stage C file that it was trained for (--models FILE)",
    )


def nano() -> tuple[Network, Network]:
    """The layers of the bundled nano."""
    c, text = (reading.read_headers(nano_file(part))[0] for part in PARTS)
    return network_from("stage_c", c), network_from("text", text)


def _fitted(shapes: Shapes, metadata: Mapping[str, str], networks: Sequence[Network], where: str) -> Fit:
    form, kind = kinds.form_of(shapes, metadata), kinds.kind_of(shapes)
    embeddings = _embeddings(shapes)
    unused = [
        key
        for key in shapes
        if key.endswith(kinds.UNUSED) or (key.startswith("bundle_emb.") and key not in embeddings.values())
    ]
    known = {*unused, *embeddings.values(), "embeddings.indices"}
    lost: list[str] = []
    if form == kinds.OFFICIAL:
        entries = _counted(shapes, networks, where)
    else:
        entries, lost = _named({key: shape for key, shape in shapes.items() if key not in known}, networks)
    if lost or not (entries or embeddings):
        _refuse(shapes, networks, lost, where)
    for entry in entries:
        _complete(entry, shapes, networks, where)
    return Fit(form, kind, tuple(entries), tuple(unused), embeddings)


def _refuse(shapes: Shapes, networks: Sequence[Network], lost: Sequence[str], where: str) -> None:
    if _of_another_size(shapes, networks):
        theirs, ours = kinds.width(shapes), max(_widths_of(networks))
        what = f"the LoRA is one of {kinds.size_named(theirs)}, and the models have {kinds.size_named(ours)}"
        raise CascadeError(what, where=where, fix=FIX)
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    what = (
        f"{len(lost)} of its {len(shapes)} tensors have no place in these models: {', '.join(lost[:3])}{more}"
    )
    raise CascadeError(what if lost else "the file holds no LoRA of these models", where=where, fix=FIX)


def _widths_of(networks: Sequence[Network]) -> set[int]:
    return {
        shape[0]
        for each in networks
        if each.part == "stage_c"
        for name, shape in each.shapes.items()
        if name.endswith(".to_q")
    }


def _of_another_size(shapes: Shapes, networks: Sequence[Network]) -> bool:
    theirs, ours = kinds.width(shapes), _widths_of(networks)
    return bool(theirs and ours) and theirs not in ours


def _named(shapes: Shapes, networks: Sequence[Network]) -> tuple[list[LayerKeys], list[str]]:
    """The layers by their names in the file, and the keys that no network has a layer for."""
    found: dict[tuple[Part, Layer], dict[str, str]] = {}
    lost = []
    for key in shapes:
        name, kind = kinds.split(key)
        claiming = [each for each in networks if each.claims(name)] or networks
        place = next(((each.part, layer) for each in claiming if (layer := each.layer(name))), None)
        if not kind or place is None:
            lost.append(key)
            continue
        found.setdefault(place, {})[kind] = key
    return [LayerKeys(part, layer, keys) for (part, layer), keys in found.items()], lost


def _counted(shapes: Shapes, networks: Sequence[Network], where: str) -> list[LayerKeys]:
    """The layers of an official file, which counts them in the network's order: those kinds of layers are
    meant whose shapes come in just this order, of several such choices the one with the fewest kinds."""
    entries = kinds.official_entries(shapes)
    stem = next(key for key in shapes if key.endswith(".lora_up")).rpartition("weights.")[0]
    network = next(each for each in networks if each.part == "stage_c")
    rows = [int(shape[0]) for _, shape in entries]
    columns = [int(shapes.get(f"{stem}weights.{number}.lora_down", (0, 0))[-1]) for number, _ in entries]
    wanted = list(zip(rows, columns))
    order = network.in_order()
    by_kind: dict[str, list[Layer]] = {}
    for layer in order:
        by_kind.setdefault(kind_of_layer(layer[0]), []).append(layer)
    names = sorted(by_kind, key=lambda name: name != "attention")
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            if sum(len(by_kind[name]) for name in chosen) != len(wanted):
                continue
            layers = [layer for layer in order if kind_of_layer(layer[0]) in chosen]
            if [_official_size(network, layer) for layer in layers] == wanted:
                return [
                    LayerKeys(
                        "stage_c", layer, {k: f"{stem}weights.{number}.lora_{k}" for k in ("down", "up")}
                    )
                    for (number, _), layer in zip(entries, layers)
                ]
    if _of_another_size(shapes, networks):
        _refuse(shapes, networks, [], where)
    raise CascadeError(
        f"the official LoRA's {len(wanted)} layers are not those of any kind of layers of these models",
        where=where,
        fix=FIX,
    )


def kind_of_layer(module: str) -> str:
    """The kind of a layer, as the reference's ``module_filters`` tell layers apart."""
    found = re.search(
        r"(attention|channelwise|depthwise|kv_mapper|mapper_sca|mapper_crp)|\.(mapper)$", module
    )
    return (found[1] or found[2]) if found else module.partition(".")[0]


def _official_size(network: Network, layer: Layer) -> tuple[int, int]:
    """Rows and columns of the reference's matrices: kernels are not counted."""
    shapes = [network.shapes[module] for module in layer]
    return sum(shape[0] for shape in shapes), shapes[0][1]


def _embeddings(shapes: Shapes) -> dict[str, str]:
    found = {
        key.split(".")[1]: key for key in shapes if re.fullmatch(r"bundle_emb\.[^.]+\.clip_g(?:_out)?", key)
    }
    if "embeddings.embeddings" in shapes and shapes["embeddings.embeddings"][0]:
        found[""] = "embeddings.embeddings"
    return found


def _complete(entry: LayerKeys, shapes: Shapes, networks: Sequence[Network], where: str) -> None:
    """Raises a CascadeError where a layer's tensors lack one, or have other sizes than its weight."""
    keys = entry.keys
    name = kinds.split(next(iter(keys.values())))[0]
    network = next(each for each in networks if each.part == entry.part)
    rows, columns = network.size(entry.layer)
    lokr = [f"lokr_w{n}" in keys or {f"lokr_w{n}_a", f"lokr_w{n}_b"} <= keys.keys() for n in (1, 2)]
    groups = (
        {"down", "up"} <= keys.keys(),
        {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"} <= keys.keys(),
        all(lokr),
        "diff" in keys,
    )
    if not any(groups):
        raise CascadeError(
            f"the tensors of '{name}' are not complete: {', '.join(sorted(keys.values()))}",
            where=where,
            fix="Download the file again",
        )
    for found in _misshapen(entry, shapes, rows, columns, network):
        if entry.part == "stage_c" and _of_another_size(shapes, networks):
            _refuse(shapes, networks, [], where)
        raise CascadeError(
            f"'{name}' is for a layer of {found}, which is {rows}×{columns} in these models",
            where=where,
            fix=FIX,
        )


def _misshapen(entry: LayerKeys, shapes: Shapes, rows: int, columns: int, network: Network) -> Iterator[str]:
    def size(kind: str) -> tuple[int, int]:
        shape = shapes[entry.keys[kind]]
        flat = 1
        for side in shape[1:]:
            flat *= int(side)
        return int(shape[0]), flat

    keys = entry.keys
    found: tuple[int, int] | None = None
    if "down" in keys and "up" in keys:
        found = (size("up")[0], size("down")[1])
        rank = (size("down")[0], size("up")[1])
        if "mid" in keys:
            found = (found[0], found[1] * size("mid")[1] // max(rank[0], 1))
        elif rank[0] != rank[1]:
            yield f"rank {rank[0]} and {rank[1]} at once"
    elif "hada_w1_a" in keys and "hada_t1" not in keys:
        found = (size("hada_w1_a")[0], size("hada_w1_b")[1])
    elif "diff" in keys:
        found = size("diff")
    elif ("lokr_w1" in keys or "lokr_w1_a" in keys) and "lokr_t2" not in keys:
        one = size("lokr_w1") if "lokr_w1" in keys else (size("lokr_w1_a")[0], size("lokr_w1_b")[1])
        two = size("lokr_w2") if "lokr_w2" in keys else (size("lokr_w2_a")[0], size("lokr_w2_b")[1])
        found = (one[0] * two[0], one[1] * two[1])
    if found is not None and found != (rows, columns):
        plain = _official_size(network, entry.layer)
        if not (entry.keys.get("down", "").endswith(".lora_down") and found == plain):
            yield f"{found[0]}×{found[1]}"


@dataclass(frozen=True)
class Alphas:
    """The alphas of a file whose tensors hold none: ``alpha`` of all layers, ``own`` of some by the end of
    their name; None: alpha is the rank. ``rooted``: the strength is alpha over the rank's square root."""

    alpha: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    rooted: bool = False

    def of(self, name: str, rank: int) -> float:
        """The alpha whose quotient by ``rank`` is the strength of the layer called ``name``."""
        own = [value for ending, value in self.own.items() if f".{name}".endswith(f".{ending}")]
        alpha = own[0] if own else self.alpha
        if alpha is None:
            return float(rank)
        return alpha * rank**0.5 if self.rooted else alpha


def alphas(path: Path) -> Alphas:
    """What a peft folder's configuration, or the metadata that diffusers writes, tells of alpha.

    Raises:
        CascadeError: the configuration cannot be read.
    """
    if path.is_dir():
        config = path / "adapter_config.json"
        try:
            found = json.loads(config.read_text(encoding="utf-8"))
            own = {str(name): float(value) for name, value in (found.get("alpha_pattern") or {}).items()}
            told = Alphas(float(found["lora_alpha"]), _endings(own, config), bool(found.get("use_rslora")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CascadeError(f"adapter_config.json cannot be read ({error})", where=str(config)) from None
        return told
    shapes, metadata = header_of(path)
    if kinds.official_entries(shapes):
        return Alphas(1.0)
    try:
        said = json.loads(metadata.get("lora_adapter_metadata", "{}"))
        found = [float(value) for name, value in said.items() if name.endswith("lora_alpha")]
    except (ValueError, AttributeError, TypeError):
        found = []
    return Alphas(found[0] if len(set(found)) == 1 else None)


def _endings(own: Mapping[str, float], where: Path) -> dict[str, float]:
    """peft takes expressions here; names and their ends are what it writes."""
    bare = {name.removeprefix("^").removesuffix("$").replace("\\.", "."): own[name] for name in own}
    odd = next((name for name in bare if not re.fullmatch(r"[\w.]+", name)), None)
    if odd is not None:
        raise CascadeError(
            f"the expression '{odd}' in alpha_pattern is not followed",
            where=str(where),
            fix="Write the name of each layer with its alpha",
        )
    return bare
