"""Whether the files of a checkpoint are those that were written: their digests, which checkpoint.json holds.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cascade_train.digest import file_digest
from cascade_train.errors import CascadeError
from cascade_train.migrations import read_forward

INFO = "checkpoint.json"
DIGESTS = "digests"
"""The entry of checkpoint.json that holds the SHA-256 of each file beside it, by name; those of before have
none."""

_KINDS = ("block end", "timed")


def read_info(checkpoint: Path) -> dict[str, Any]:
    """What checkpoint.json holds.

    Raises:
        OSError, ValueError: it is not there, or damaged.
        CascadeError: a later version has written it.
    """
    info = read_forward(checkpoint / INFO, "checkpoint")
    blocks, digests = info.get("blocks"), info.get(DIGESTS, {})
    if (
        info.get("kind") not in _KINDS
        or not isinstance(blocks, list)
        or not all(isinstance(block, Mapping) and isinstance(block.get("steps"), int) for block in blocks)
        or not isinstance(info.get("in_trained"), list)
        or not isinstance(digests, dict)
    ):
        raise ValueError(f"{checkpoint / INFO} is damaged")
    return info


def damage(checkpoint: Path, *names: str) -> str:
    """What is wrong with the files ``names`` of a checkpoint: they are read whole; "" when they are right.

    Raises:
        CascadeError: a later version has written the checkpoint.
    """
    try:
        digests = read_info(checkpoint)[DIGESTS] if (checkpoint / INFO).exists() else {}
    except KeyError:
        digests = {}
    except (OSError, ValueError):
        return f"{INFO} is damaged"
    for name in names:
        wanted = digests.get(name)
        try:
            if wanted is not None and file_digest(checkpoint / name) != wanted:
                return f"{name} is not what was written: the disk or a copy has changed it"
            if not (checkpoint / name).is_file():
                return f"{name} is gone"
        except FileNotFoundError:
            return f"{name} is gone"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""


def checked(checkpoint: Path, *names: str) -> None:
    """Raises CascadeError where `damage` finds something."""
    why = damage(checkpoint, *names)
    if why:
        raise CascadeError(
            why, where=str(checkpoint), fix="Run the training again: it goes on from the checkpoint before"
        )
