"""LoRA files made of others: converted, merged, extracted, brought to another rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.host.progress import nothing
from cascade_train.jobs.loras import words_of
from cascade_train.models import build, reading
from cascade_train.models.loras import fit
from cascade_train.models.loras.networks import Network, network_from
from cascade_train.models.spec import Part, PartFile
from cascade_train.training.spec import TokenSpec
from cascade_train.training.tokens import found_entries, new_tokens

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cascade_train.models.loras.ranks import EnergyKept
    from cascade_train.models.loras.reading import Changes


def networks_in(path: Path, text: Path | None = None) -> tuple[Network, ...]:
    """The networks that LoRAs of the Stage C in ``path`` change: it, and the encoder in ``text`` or else the
    known one of the size that it takes.

    Raises:
        CascadeError: the files hold no Stage C, or no text encoder.
    """
    file = _stage_c(path)
    network = network_from("stage_c", reading.part_headers(file)[0])
    if text is not None:
        return network, network_from("text", reading.part_headers(_text(text))[0])
    wanted = network.shapes["clip_txt_mapper"][1]
    texts = [each[1] for each in (fit.official("3.6B"), fit.nano()) if _width(each[1]) == wanted]
    return (network, *texts[:1])


def _width(network: Network) -> int:
    return next(shape[1] for name, shape in network.shapes.items() if name.endswith("q_proj"))


def _stage_c(path: Path) -> PartFile:
    return PartFile("stage_c", "", str(path), reading.prefix_in("stage_c", path))


def _text(path: Path) -> PartFile:
    return PartFile("text", "", str(path), reading.prefix_in("text", path))


def weight_in(path: Path, text: Path | None = None) -> Callable[[Part, str], Tensor]:
    """A function that reads the weight of a module of the Stage C in ``path``, or of the encoder ``text``."""
    from cascade_train.models.native import module_weight

    file = _stage_c(path)

    def weight(part: Part, module: str) -> Tensor:
        if part == "stage_c":
            return module_weight(file, module)
        if text is None:
            raise CascadeError(
                "the LoRA has DoRA of the text encoder's layers: converting it takes their weights",
                fix="Give the text encoder that it was trained for (--text FILE)",
            )
        found: Tensor = _encoder(text).get_submodule(module).weight  # type: ignore[assignment]
        return found

    return weight


@lru_cache(maxsize=1)
def _encoder(text: Path) -> nn.Module:
    return build.load("text", text)


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
        text: the text encoder that it was trained for, where that is not the official one; needed for the
            words of an official file, and to make such words.
        words: new words of an official file, a line ``[name] = expression`` for each, as they were trained.

    Raises:
        CascadeError: see `loras.reading.read` and `lora_forms.write_form`.
    """
    from cascade_train.formats.lora_forms import write_form
    from cascade_train.models.loras.reading import read

    changes = read(source, networks_in(stage_c, text) if stage_c is not None else None)
    said = _left(changes)
    if changes.words is not None and (form == "official") != bool(changes.words.ids):
        changes, more = (_added if form == "official" else _whole)(changes, text, words)
        said += more
    weight = weight_in(stage_c, text) if stage_c is not None else None
    return write_form(
        target, changes, form, weight=weight, metadata=_kept_metadata(changes), check=check
    ), said


def _left(changes: Changes) -> list[str]:
    count = len(changes.unused)
    return [f"{count} tensors are left out: {', '.join(changes.unused[:3])}"] if count else []


def _whole(changes: Changes, text: Path | None, words: str) -> tuple[Changes, list[str]]:
    """An official file's words, which it adds to rows of the encoder's table, as rows by themselves."""
    import torch

    from cascade_train.models.loras.reading import Words

    given = changes.words
    assert given is not None
    if text is None:
        what = f"{len(given.ids)} words are left out: what they are added to is in the text encoder"
        return replace(changes, words=None), [f"{what} (--text FILE)"]
    tokens, left = words_of(changes, words, text)
    said = [f'{left} new words are left out: name them (--word "[name] = expression")'] if left else []
    table = _table(text)
    rows = [given.rows[token.row] + table[list(token.start)].float().mean(dim=0) for token in tokens]
    if not rows:
        return replace(changes, words=None), said
    return replace(changes, words=Words(torch.stack(rows), tuple(token.name for token in tokens))), said


def _added(changes: Changes, text: Path | None, words: str) -> tuple[Changes, list[str]]:
    """Words that are given whole as what the reference adds to the mean that each started from."""
    import torch

    from cascade_train.models.clip import load_tokenizer
    from cascade_train.models.loras.reading import Words

    given = changes.words
    assert given is not None
    lines = dict(new_tokens(words)) if text is not None else {}
    unknown = next((name for name in lines if name not in given.names), None)
    if unknown is not None:
        raise CascadeError(
            f"the LoRA has no word [{unknown}]", fix=f"It has {', '.join(f'[{n}]' for n in given.names[:5])}"
        )
    left = [name for name in given.names if name not in lines]
    what = f"{len(left)} words are left out: an official LoRA holds what is added to their start"
    said = [f'{what} (--text FILE --word "[name] = expression")'] if left else []
    if text is None or not lines:
        return replace(changes, words=None), said
    tokenizer, table = load_tokenizer(text), _table(text)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    starts, _ = found_entries(TokenSpec(tuple(lines.items())), vocabulary, set(tokenizer.all_special_ids))
    first = max(vocabulary.values()) + 1
    rows = [
        given.rows[given.names.index(name)]
        - table[[vocabulary[entry] for entry in start]].float().mean(dim=0)
        for name, start in zip(lines, starts)
    ]
    made = Words(torch.stack(rows), ids=tuple(range(first, first + len(rows))))
    return replace(changes, words=made), said


def _table(text: Path) -> Tensor:
    found: Tensor = _encoder(text).get_submodule("text_model.embeddings.token_embedding").weight  # type: ignore[assignment]
    return found


def _kept_metadata(changes: Changes) -> dict[str, str]:
    """Of a file's metadata what stays true in another form."""
    dropped = ("ss_network_", "lora_adapter_metadata", "modelspec.")
    return {key: value for key, value in changes.metadata.items() if not key.startswith(dropped)}


@dataclass(frozen=True)
class Resized:
    """A LoRA of another rank: where it is, its ``rank``, and how much of its energy is kept."""

    files: tuple[Path, ...]
    rank: int
    kept: EnergyKept
    said: tuple[str, ...] = ()


def resize(
    source: Path,
    target: Path,
    rank: int,
    *,
    stage_c: Path | None = None,
    check: Callable[[], object] = nothing,
) -> Resized:
    """Write the LoRA at ``source`` with layers of at most ``rank``, under ComfyUI's names (a DoRA under
    kohya's, unless it is made for ComfyUI's formula).

    Raises:
        CascadeError: see `loras.reading.read`; a rank below 1.
    """
    from cascade_train.formats.lora_forms import write_form
    from cascade_train.models.loras import ranks
    from cascade_train.models.loras.reading import read

    _positive(rank)
    changes = read(source, networks_in(stage_c) if stage_c is not None else None)
    kept, layers = ranks.EnergyKept(), {}
    for place, change in changes.layers.items():
        check()
        layers[place], own = ranks.resized(change, rank)
        kept = kept.joined(own)
    made = replace(changes, layers=layers)
    form = "comfyui" if all(each.magnitude is None or each.over_base for each in layers.values()) else "kohya"
    files = write_form(target, made, form, metadata=_kept_metadata(changes), check=check)
    said = _left(changes)
    if changes.words is not None and changes.words.ids:
        said.append(
            f"{len(changes.words.ids)} words are left out: convert-lora --text keeps those of this form"
        )
    return Resized(files, max(made.ranks, default=0), kept, tuple(said))


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
    kept, found = ranks.EnergyKept(), {}
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
    """Write the Stage C in ``model`` with the LoRA merged, in the form and precision that it has; what is
    left out, in words.

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
