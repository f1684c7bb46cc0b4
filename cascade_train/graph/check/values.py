"""Whether a literal value is right for an input: its type, range, choice, and the file that it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.near import alternatives, nearest, with_article
from cascade_train.graph.check.schema import Input
from cascade_train.graph.file.api import unwrapped
from cascade_train.graph.file.widgets import DYNAMIC_COMBO, UPLOADS
from cascade_train.host.base import Host, lies_in, slashed, stays_in

Finding = tuple[str, str, str]
"""What is wrong, what would be right, and a word for the kind."""


def value_problem(
    entry: Input, value: Any, host: Host | None, checks_itself: tuple[str, ...] = (), hint: bool = True
) -> Finding | None:
    """What is wrong with ``value`` for ``entry``; None when it is right.

    Args:
        entry: the input's schema.
        value: the literal in the prompt.
        host: whose folders files are looked for in; None skips files.
        checks_itself: inputs whose class has its own check (``VALIDATE_INPUTS``), ``*`` for all: their range
            and choices are not looked at here, as in ComfyUI.
        hint: whether names near a wrong one are looked for, which takes a while.
    """
    value = unwrapped(value)
    if host is not None:
        if entry.options.get("path") in ("file", "folder", "any"):
            return _path(entry, value, host)
        if any(entry.options.get(flag) for flag in UPLOADS):
            return _uploaded(entry, value, host, hint)
    own = entry.name in checks_itself or "*" in checks_itself
    if entry.type in ("COMBO", DYNAMIC_COMBO):
        return None if own else _choice(entry, value, hint)
    kind = entry.type if entry.type in _CONVERT else None
    if kind is None:
        if entry.required and entry.type != "*" and value is None:
            return "is required and has nothing", f"Connect {with_article(entry.type)}", "missing input"
        if value is not None and (entry.type in _WIRED or entry.type.startswith("CASCADE_")):
            return "is a value where a wire belongs", f"Connect {with_article(entry.type)}", "link type"
        return None
    found = _CONVERT[kind](value)
    if isinstance(found, str):
        return found, f"Give {_wanted(entry)}", "type"
    return None if own else _range(entry, found)


def from_text(entry: Input, text: str) -> Any:
    """``text`` from a command line as a value of the input's type.

    Raises:
        CascadeError: it is none.
    """
    if entry.type == "BOOLEAN":
        value = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }.get(text.strip().lower())
        if value is None:
            raise CascadeError(f"'{text}' is not true or false", fix="Give true or false")
        return value
    if entry.type in ("INT", "FLOAT"):
        try:
            number = float(text) if entry.type == "FLOAT" else int(text, 0)
        except ValueError:
            raise CascadeError(f"'{text}' is not {_wanted(entry)}", fix=f"Give {_wanted(entry)}") from None
        return number
    if entry.type == "COMBO":
        for choice in entry.choices or ():
            if not isinstance(choice, str) and str(choice).lower() == text.lower():
                return choice
    return text


def in_its_type(entry: Input, value: Any) -> Any:
    """``value`` as the node gets it: ``"3"`` is 3 for an INT, 3 is ``"3"`` for a STRING, and a file's name of
    another system (``sub\\x`` for ``sub/x``) is the choice that it means.

    Raises:
        ValueError, TypeError, OverflowError: it cannot be converted; `value_problem` says so in words.
    """
    target = _TYPES.get(entry.type)
    if entry.type == "COMBO" and entry.choices:
        return _chosen(unwrapped(value), entry.choices)
    if target is None:
        return value
    plain = unwrapped(value)
    return plain if type(plain) is target else target(plain)


_TYPES: dict[str, type] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


def _integer(value: Any) -> int | str:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return "is not a whole number"


def _number(value: Any) -> float | str:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return "is not a number"
    return "is not a number" if math.isnan(number) else number


def _text(value: Any) -> Any:
    return None if isinstance(value, (str, int, float, bool)) else "is not a text"


def _boolean(value: Any) -> Any:
    return None if isinstance(value, bool) or value in (0, 1) else "is not true or false"


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "INT": _integer,
    "FLOAT": _number,
    "STRING": _text,
    "BOOLEAN": _boolean,
}


_WIRED = frozenset(
    {"IMAGE", "MASK", "LATENT", "MODEL", "CLIP", "VAE", "CONDITIONING", "CONTROL_NET", "CLIP_VISION"}
)
"""Types of core that no widget gives; packs may have widgets for types of their own."""


def _wanted(entry: Input) -> str:
    if entry.type == "BOOLEAN":
        return "true or false"
    if entry.type == "STRING":
        return "a text"
    least, most = entry.options.get("min"), entry.options.get("max")
    noun = "a whole number" if entry.type == "INT" else "a number"
    if least is not None and most is not None:
        return f"{noun} from {least} to {most}"
    if least is not None:
        return f"{noun} of at least {least}"
    return f"{noun} of at most {most}" if most is not None else noun


def _range(entry: Input, number: Any) -> Finding | None:
    least, most = entry.options.get("min"), entry.options.get("max")
    if number is None or entry.type not in ("INT", "FLOAT"):
        return None
    if isinstance(least, (int, float)) and number < least:
        return "is too small", f"Give {_wanted(entry)}", "range"
    if isinstance(most, (int, float)) and number > most:
        return "is too large", f"Give {_wanted(entry)}", "range"
    return None


def _choice(entry: Input, value: Any, hint: bool) -> Finding | None:
    choices = entry.choices
    if entry.type == DYNAMIC_COMBO:
        options = entry.options.get("options")
        choices = (
            tuple(option["key"] for option in options if isinstance(option, Mapping) and "key" in option)
            if isinstance(options, (list, tuple))
            else None
        )
    if choices is None:
        return None
    picked = value if isinstance(value, list) and entry.options.get("multiselect") else [value]
    wrong = [one for one in picked if not _among(_chosen(one, choices), choices)]
    if not wrong:
        return None
    if not choices:
        return "is not there, and nothing else is", "Put the file where the host looks for it", "choice"
    near = nearest(wrong[0], choices) if hint else []
    fix = f"Nearest: {alternatives(near)}" if near else f"Choose {alternatives(choices, 5)}"
    if not near and len(choices) > 5:
        fix = f"Choose one of {len(choices)}, such as {alternatives(choices)}"
    return "is not one of the choices", fix, "choice"


def _among(value: Any, choices: tuple[Any, ...]) -> bool:
    """Membership by value and kind: True is not 1."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _chosen(value: Any, choices: tuple[Any, ...]) -> Any:
    """The choice that ``value`` means (each of a list): itself, or the one that differs only in the system's
    sign between folders. A workflow that was saved on Windows names ``sub\\x.safetensors``."""
    if isinstance(value, list):
        return [_chosen(one, choices) for one in value]
    if not isinstance(value, str) or not ("/" in value or "\\" in value) or value in choices:
        return value
    wanted = value.replace("\\", "/")
    alike = (one for one in choices if isinstance(one, str) and one.replace("\\", "/") == wanted)
    return next(alike, value)


def _path(entry: Input, value: Any, host: Host) -> Finding | None:
    if not isinstance(value, str):
        return "is not a path", "Give a path as text", "type"
    if not value.strip() and not entry.required:
        return None
    try:
        found = host.folders.resolve_read(value, entry.name)
    except CascadeError as error:
        what = error.what.removeprefix(f"the {entry.name} '{value.strip()}' ").removeprefix(
            f"the {entry.name} "
        )
        return what, error.fix or "", "file"
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be looked up: {error}", "Give a path inside the input folder", "file"
    if entry.options["path"] == "folder" and not found.is_dir():
        return "is a file, not a folder", "Give a folder", "file"
    if entry.options["path"] == "file" and not found.is_file():
        return "is a folder, not a file", "Give a file", "file"
    return None


def _uploaded(entry: Input, value: Any, host: Host, hint: bool) -> Finding | None:
    """A file chosen in ComfyUI: a name under the input folder, or ``name [output]``, ``name [temp]``."""
    if not isinstance(value, str) or not value.strip():
        return "names no file", f"Give the name of a file in {host.folders.input}", "file"
    name, folder = value, host.folders.input
    for kind, place in (
        ("input", host.folders.input),
        ("output", host.folders.output),
        ("temp", host.folders.temp),
    ):
        if value.endswith(f"[{kind}]"):
            name, folder = value[: -len(kind) - 2].strip(), place
    try:
        target = folder / slashed(name)
        inside = lies_in(target, folder)
        if inside and target.is_file():
            inside = host.folders.follow_links or stays_in(target, folder)
            if inside:
                return None
        if not inside:
            return "lies outside the folder", f"Give the name of a file in {folder}", "file"
        there = [path.relative_to(folder).as_posix() for path in _some_files(folder)] if hint else []
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be looked up: {error}", f"Give the name of a file in {folder}", "file"
    near = nearest(name, there)
    return (
        f"does not exist in {folder}",
        f"Nearest there: {alternatives(near)}" if near else "Put the file there",
        "file",
    )


def _some_files(folder: Path, most: int = 2000) -> list[Path]:
    if not folder.is_dir():
        return []
    found: list[Path] = []
    for path in folder.iterdir():
        if path.is_file():
            found.append(path)
        if len(found) >= most:
            break
    return found
