"""LoRA files in one call: laying one over models, converting, merging, extracting, resizing, describing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host, lies_in, slashed, stays_in
from cascade_train.host.progress import nothing
from cascade_train.models import library, reading
from cascade_train.models.loras import fit, kinds
from cascade_train.models.loras.networks import Network, network_from
from cascade_train.models.loras.state import content_of, networks_of
from cascade_train.models.spec import AppliedFile, FileToken, ModelsSpec, PartFile
from cascade_train.training.tokens import found_entries, new_tokens
from cascade_train.training.spec import TokenSpec

if TYPE_CHECKING:
    from torch import Tensor

    from cascade_train.models.loras.ranks import Kept
    from cascade_train.models.loras.reading import Changes

FOLDER = "loras"
"""ComfyUI's name of the folder that its LoRAs lie in."""

_DEPTH = 4
"""Folders below it that are looked into."""


def found(name: str, host: Host) -> Path:
    """The LoRA called ``name`` in the host's LoRA folders, or a path that may be read; it is one of Stage C.

    Raises:
        CascadeError: there is none, or it is something else; what, is said.
    """
    for root in host.folders.models.get(FOLDER, ()):
        candidate = root / slashed(name.strip())
        inside = lies_in(candidate, root) if host.folders.follow_links else stays_in(candidate, root)
        if name.strip() and candidate.exists() and inside:
            break
    else:
        candidate = host.folders.resolve_read(name, what="LoRA file")
    fit.check(candidate)
    return candidate


def listed(host: Host) -> list[str]:
    """The LoRAs of Stage C in the host's LoRA folders, by the names that `found` takes, sorted."""
    names = set()
    for root in host.folders.models.get(FOLDER, ()):
        for path in root.rglob("*.safetensors") if root.is_dir() else ():
            if len(path.relative_to(root).parts) <= _DEPTH and _fits_some(path):
                names.add(path.relative_to(root).as_posix())
    return sorted(names)


def _fits_some(path: Path) -> bool:
    try:
        return not kinds.foreign(fit.header_of(path)[0])
    except (OSError, CascadeError):
        return False


def apply_file(
    models: ModelsSpec, path: Path, strength: float, text_strength: float, words: str, host: Host
) -> ModelsSpec:
    """``models`` with the LoRA at ``path`` laid over them; nothing is loaded yet.

    Args:
        words: of an official file, which does not tell its new words: a line ``[name] = expression`` for each,
            as they were trained (`training.tokens.new_tokens`).

    Raises:
        CascadeError: the file does not fit the models, or the words are not those of the file.
    """
    for number in (strength, text_strength):
        if number != number or abs(number) == float("inf"):
            raise CascadeError(f"a strength of {number}", fix="Use a number such as 1")
    found_fit = fit.fitted(path, networks_of(models))
    said_unused(found_fit, path, host)
    tokens = _tokens(models, path, found_fit, words, host) if found_fit.embeddings else ()
    if strength == 0 and text_strength == 0 and not tokens:
        return models
    parts = tuple(file for file in models.parts if file.part in ("stage_c", "text"))
    file = AppliedFile(content_of(path), strength, text_strength, tokens, str(path), parts)
    return replace(models, applied=(*models.applied, file))


def said_unused(found_fit: fit.Fit, path: Path, host: Host) -> None:
    """Tell of the tensors that are left out."""
    if found_fit.unused:
        names = ", ".join(found_fit.unused[:3])
        host.warn(
            f"{path.name}: {len(found_fit.unused)} tensors of biases, norms or words are left out: {names}"
        )


def _tokens(
    models: ModelsSpec, path: Path, found_fit: fit.Fit, words: str, host: Host
) -> tuple[FileToken, ...]:
    from cascade_train.models.loras.reading import read

    changes = read(path, networks_of(models))
    assert changes.words is not None
    text = library.part_file(models, "text")
    width = reading.part_headers(text)[0]["text_model.embeddings.token_embedding.weight"][1]
    if changes.words.rows.shape[1] != width:
        raise CascadeError(
            f"the LoRA's words have {changes.words.rows.shape[1]} numbers and the text encoder's {width}",
            where=str(path),
            fix=fit.FIX,
        )
    tokens, left = words_of(changes, words, Path(text.path))
    if left:
        host.warn(
            f"{path.name} has {left} new words and does not tell their names: they are left out, until Load LoRA's "
            "words has a line [name] = expression for each, as they were trained"
        )
    return tokens


def words_of(changes: Changes, words: str, text: Path) -> tuple[tuple[FileToken, ...], int]:
    """The words of a file as the vocabulary of the text encoder at ``text`` has them, and how many new ones
    there are no names for.

    Raises:
        CascadeError: more names than words, or an expression that finds nothing.
    """
    from cascade_train.models.clip import load_tokenizer

    given = changes.words
    if given is None:
        return (), 0
    tokenizer = load_tokenizer(text)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    first = max(vocabulary.values()) + 1
    if given.names:
        return tuple(FileToken(f"[{name}]", first + n, n) for n, name in enumerate(given.names)), 0
    entries = {number: entry for entry, number in vocabulary.items()}
    fresh = sorted((number, row) for row, number in enumerate(given.ids) if number not in entries)
    pairs = new_tokens(words)
    if len(pairs) > len(fresh):
        raise CascadeError(
            f"{len(pairs)} new words are named and the file has {len(fresh)}",
            fix="Keep a line for each of its words",
        )
    starts, _ = found_entries(TokenSpec(pairs), vocabulary, set(tokenizer.all_special_ids))
    tokens = [
        FileToken(entries[number], number, row, new=False, start=(number,))
        for row, number in enumerate(given.ids)
        if number in entries
    ]
    for (number, row), (name, _), start in zip(fresh, pairs, starts):
        tokens.append(FileToken(f"[{name}]", number, row, start=tuple(vocabulary[each] for each in start)))
    return tuple(tokens), len(fresh) - len(pairs)


def networks_in(path: Path) -> tuple[Network, ...]:
    """The networks that LoRAs of the Stage C in ``path`` change: it, and a text encoder where its size is known.

    Raises:
        CascadeError: the file holds no Stage C.
    """
    file = _stage_c(path)
    network = network_from("stage_c", reading.part_headers(file)[0])
    wanted = network.shapes["clip_txt_mapper"][1]
    texts = [each[1] for each in (fit.official("3.6B"), fit.nano()) if _width(each[1]) == wanted]
    return (network, *texts[:1])


def _width(network: Network) -> int:
    return next(shape[1] for name, shape in network.shapes.items() if name.endswith("q_proj"))


def _stage_c(path: Path) -> PartFile:
    return PartFile("stage_c", "", str(path), reading.prefix_in("stage_c", path))


def weight_in(path: Path) -> Callable[[str], Tensor]:
    """A function that reads the weight of a module of the Stage C in ``path``."""
    from cascade_train.models.native import module_weight

    file = _stage_c(path)
    return lambda module: module_weight(file, module)


def convert(
    source: Path,
    target: Path,
    form: str,
    *,
    stage_c: Path | None = None,
    text: Path | None = None,
    words: str = "",
    check: Callable[[], object] = nothing,
) -> tuple[tuple[Path, ...], list[str]]:
    """Write the LoRA at ``source`` to ``target`` in another form; what was written, and what a person should
    know.

    Args:
        stage_c: what it was trained for, where that is not an official size.
        text, words: the text encoder and its new words, for those of an official file.

    Raises:
        CascadeError: see `loras.reading.read` and `lora_forms.write_form`.
    """
    from cascade_train.formats.lora_forms import write_form
    from cascade_train.models.loras.reading import read

    changes = read(source, networks_in(stage_c) if stage_c is not None else None)
    said = _left(changes)
    if form != "official" and changes.words is not None and changes.words.ids:
        changes, more = _absolute(changes, text, words)
        said += more
    weight = weight_in(stage_c) if stage_c is not None else None
    return write_form(
        target, changes, form, weight=weight, metadata=_kept_metadata(changes), check=check
    ), said


def _left(changes: Changes) -> list[str]:
    count = len(changes.unused)
    return [f"{count} tensors are left out: {', '.join(changes.unused[:3])}"] if count else []


def _absolute(changes: Changes, text: Path | None, words: str) -> tuple[Changes, list[str]]:
    """An official file's words, which it adds to rows of the encoder's table, as rows by themselves."""
    import torch

    from cascade_train.models.loras.reading import Words

    given = changes.words
    assert given is not None
    if text is None:
        what = f"{len(given.ids)} words are left out: what they are added to is in the text encoder (--text FILE)"
        return replace(changes, words=None), [what]
    tokens, left = words_of(changes, words, text)
    said = [f'{left} new words are left out: name them (--word "[name] = expression")'] if left else []
    table = _table(text)
    rows = [given.rows[token.row] + table[list(token.start)].float().mean(dim=0) for token in tokens]
    if not rows:
        return replace(changes, words=None), said
    return replace(changes, words=Words(torch.stack(rows), tuple(token.name for token in tokens))), said


def _table(text: Path) -> Tensor:
    file = PartFile("text", "", str(text), reading.prefix_in("text", text))
    name = "text_model.embeddings.token_embedding.weight"
    return reading.tensors(file, lambda key, value: iter([(key, value)] if key == name else []), None)[name]


def _kept_metadata(changes: Changes) -> dict[str, str]:
    """Of a file's metadata what stays true in another form."""
    dropped = ("ss_network_", "lora_adapter_metadata", "modelspec.")
    return {key: value for key, value in changes.metadata.items() if not key.startswith(dropped)}


@dataclass(frozen=True)
class Resized:
    """A LoRA of another rank: where it is, its ``rank``, and how much of its energy is kept."""

    files: tuple[Path, ...]
    rank: int
    kept: Kept
    said: tuple[str, ...] = ()


def resize(
    source: Path,
    target: Path,
    rank: int,
    *,
    stage_c: Path | None = None,
    check: Callable[[], object] = nothing,
) -> Resized:
    """Write the LoRA at ``source`` with layers of at most ``rank``, under ComfyUI's names (a DoRA under kohya's,
    unless it is made for ComfyUI's formula).

    Raises:
        CascadeError: see `loras.reading.read`; a rank below 1.
    """
    from cascade_train.formats.lora_forms import write_form
    from cascade_train.models.loras import ranks
    from cascade_train.models.loras.reading import read

    _positive(rank)
    changes = read(source, networks_in(stage_c) if stage_c is not None else None)
    kept, layers = ranks.Kept(), {}
    for place, change in changes.layers.items():
        check()
        layers[place], own = ranks.resized(change, rank)
        kept = kept.joined(own)
    made = replace(changes, layers=layers)
    form = "comfyui" if all(each.magnitude is None or each.over_base for each in layers.values()) else "kohya"
    files = write_form(target, made, form, metadata=_kept_metadata(changes), check=check)
    return Resized(files, max(made.ranks, default=0), kept, tuple(_left(changes)))


def extract(
    base: Path,
    tuned: Path,
    target: Path,
    rank: int,
    *,
    layers: str = "",
    check: Callable[[], object] = nothing,
) -> Resized:
    """Write the difference of two Stages C as a LoRA of at most ``rank``, for ComfyUI.

    Args:
        layers: parts of names, separated by commas, as in a training's filter; empty: all layers that differ.

    Raises:
        CascadeError: the files do not hold two Stages C of one size, or do not differ in these layers.
    """
    from cascade_train.formats.lora_forms import write_form
    from cascade_train.models.loras import ranks
    from cascade_train.models.loras.reading import Changes
    from cascade_train.models.native import module_weight
    from cascade_train.training.layers import chosen_layers

    _positive(rank)
    one, two = _stage_c(base), _stage_c(tuned)
    network = network_from("stage_c", reading.part_headers(one)[0])
    if dict(network_from("stage_c", reading.part_headers(two)[0]).shapes) != dict(network.shapes):
        raise CascadeError(
            "the two files hold Stages C of different sizes",
            where=str(tuned),
            fix="Give one and its own base",
        )
    wanted = chosen_layers(list(network.shapes), layers) if layers.strip() else list(network.shapes)
    kept, found = ranks.Kept(), {}
    for module in wanted:
        check()
        difference = module_weight(two, module).float() - module_weight(one, module).float()
        if difference.any():
            made, own = ranks.nearest(difference.flatten(1), rank, difference.shape[1:])
            found["stage_c", module], kept = made, kept.joined(own)
    if not found:
        raise CascadeError(
            "these layers of the two files are equal", where=str(tuned), fix="Give another file"
        )
    changes = Changes(found, (network,), metadata={})  # type: ignore[arg-type]
    files = write_form(target, changes, "comfyui", check=check)
    return Resized(files, max(changes.ranks), kept)


def _positive(rank: int) -> None:
    if rank < 1:
        raise CascadeError(f"a rank of {rank}", fix="Use 1 or more")


def merge(
    model: Path, lora: Path, target: Path, strength: float = 1.0, *, check: Callable[[], object] = nothing
) -> list[str]:
    """Write the Stage C in ``model`` with the LoRA merged, in the form and precision that it has; what is left
    out, in words.

    Raises:
        CascadeError: the LoRA does not fit, or ``model`` holds no Stage C.
    """
    from cascade_train.models.loras.reading import read
    from cascade_train.models.native import merged_file

    changes = read(lora, networks_in(model))
    said = _left(changes)
    if changes.of("text"):
        said.append(f"{len(changes.of('text'))} layers of the text encoder are left out: a Stage C has none")
    if changes.words is not None:
        said.append(f"{len(changes.words.rows)} words are left out: a Stage C has none")
    merged_file(_stage_c(model), changes.of("stage_c"), target, strength, check)
    return said


def described(path: Path, stage_c: Path | None = None) -> dict[str, Any]:
    """What a LoRA is, as plain data: form, kind, for which network, layers by kind, ranks, alphas, words, what
    is unused, metadata. Only its header and its alphas are read.

    Raises:
        CascadeError: it is no LoRA of Stage C, or fits no network that is known.
    """
    if stage_c is not None:
        networks: Sequence[Network] = networks_in(stage_c)
        found_fit = fit.fitted(path, networks)
    else:
        found_fit, networks = fit.guessed(path)
    shapes, metadata = fit.header_of(path)
    alphas = _alphas(path, found_fit)
    return {
        "file": str(path),
        "form": found_fit.form,
        "kind": found_fit.kind,
        "for": kinds.size_named(_width_c(networks)),
        "layers": {part: _by_kind(found_fit, part) for part in found_fit.parts},
        "ranks": _counts(_rank(entry, shapes) for entry in found_fit.entries),
        "alphas": _counts(alphas),
        "words": _word_count(found_fit, shapes),
        "unused": list(found_fit.unused),
        "metadata": dict(metadata),
    }


def _width_c(networks: Sequence[Network]) -> int:
    return next(
        shape[0]
        for each in networks
        for name, shape in each.shapes.items()
        if each.part == "stage_c" and name.endswith("to_q")
    )


def _by_kind(found_fit: fit.Fit, part: str) -> dict[str, int]:
    return _counts(
        fit.kind_of_layer(module) if part == "stage_c" else module.split(".")[-2 if "." in module else 0]
        for entry in found_fit.entries
        if entry.part == part
        for module in entry.layer
    )


def _rank(entry: fit.Entry, shapes: Mapping[str, Sequence[int]]) -> int | str:
    for kind in ("down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b"):
        if kind in entry.keys:
            return int(shapes[entry.keys[kind]][0])
    return "full"


def _alphas(path: Path, found_fit: fit.Fit) -> Iterator[float]:
    from safetensors import safe_open

    told, shapes = fit.alphas(path), fit.header_of(path)[0]
    with safe_open(fit.tensors_file(path), "pt") as stored:
        for entry in found_fit.entries:
            rank = _rank(entry, shapes)
            if "alpha" in entry.keys:
                yield round(float(stored.get_tensor(entry.keys["alpha"])), 6)
            elif "down" in entry.keys and isinstance(rank, int):
                yield round(told.of(entry.layer[0], rank), 6)


def _word_count(found_fit: fit.Fit, shapes: Mapping[str, Sequence[int]]) -> list[str] | int:
    if "" in found_fit.embeddings:
        return int(shapes[found_fit.embeddings[""]][0])
    return list(found_fit.embeddings)


def _counts(values: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for value in values:
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        out[shown] = out.get(shown, 0) + 1
    return out
