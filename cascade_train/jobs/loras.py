"""LoRA files laid over models: which there are, whether one fits, and the words that it brings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host, lies_in, slashed, stays_in
from cascade_train.models import library, reading
from cascade_train.models.loras import fit, kinds
from cascade_train.models.loras.state import content_of, networks_of
from cascade_train.models.spec import AppliedFile, FileToken, ModelsSpec
from cascade_train.training.spec import StartFile, TokenSpec
from cascade_train.training.tokens import found_entries, new_tokens

if TYPE_CHECKING:
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
        words: of an official file, which does not tell its new words: a line ``[name] = expression`` for
            each, as they were trained (`training.tokens.new_tokens`).

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


def start_file(name: str, host: Host) -> StartFile:
    """The LoRA called ``name`` as what training starts from; raises as `found` does."""
    path = found(name, host)
    return StartFile(content_of(path), str(path))


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
            f"{path.name} has {left} new words and does not tell their names: they are left out, until Load "
            "LoRA's words has a line [name] = expression for each, as they were trained"
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
