"""Read a workflow from whatever carries it: UI JSON, an API prompt, or a PNG or WebP that ComfyUI saved."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.file.api import is_node

MAX_FILE_BYTES = 256 * 2**20
MAX_TEXT_BYTES = 32 * 2**20
"""A workflow, or all the texts of a picture together, of more than this when unpacked is refused."""

MAX_VALUES = 1_500_000
"""Values in the JSON of a workflow; one of 10 000 nodes holds about half as many."""

MAX_NESTING = 100
"""Lists and objects inside each other; workflows stay below 20."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
CARRIERS = ("workflow", "prompt")
"""Names of the texts that ComfyUI keeps a workflow in, those tried first before others."""

ACCEPTED = (
    "Give a workflow saved by ComfyUI (.json), an API prompt (.json), or a PNG or WebP that carries one"
)


def read_workflow(path: str | Path) -> dict[str, Any]:
    """The workflow or API prompt in the file ``path``; of a picture that carries both, the workflow.

    Raises:
        CascadeError: the file cannot be read, is damaged, or holds no workflow.
    """
    path = Path(path)
    where = str(path)
    try:
        if path.is_dir():
            raise CascadeError("this is a folder, not a workflow file", where=where, fix=ACCEPTED)
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CascadeError("the file is too large to be a workflow", where=where, fix=ACCEPTED)
        data = path.read_bytes()
    except FileNotFoundError:
        raise CascadeError("there is no such file", where=where, fix=ACCEPTED) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CascadeError(f"the file cannot be read: {reason}", where=where) from None
    if data.startswith(PNG_MAGIC):
        texts, cut = _png_texts(data, where)
        return _carried(texts, where, cut)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _carried(dict(_webp_texts(data, where)), where)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CascadeError("the file is neither text nor a PNG or WebP", where=where, fix=ACCEPTED) from None
    value = parse_json(text, where)
    return workflow_in(value, where)


def parse_json(text: str, where: str) -> Any:
    """``text`` as JSON.

    Raises:
        CascadeError: it is damaged, or nested deeper than Python can follow.
    """
    if not text.strip():
        raise CascadeError("the file is empty", where=where, fix=ACCEPTED)
    if text.lstrip()[0] not in "{[":
        raise CascadeError("the file holds no JSON", where=where, fix=ACCEPTED)
    check_json(text, where)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        cut = "; the file seems to be cut off" if error.pos >= len(text.rstrip()) else ""
        raise CascadeError(
            f"the JSON is damaged at line {error.lineno}, column {error.colno}: {error.msg}{cut}",
            where=where,
            fix="Save the workflow again",
        ) from None
    except RecursionError:
        raise CascadeError(
            "the JSON is nested too deeply to be a workflow", where=where, fix=ACCEPTED
        ) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise CascadeError(f"the JSON cannot be read: {error}", where=where) from None
    if _deeper_than(value, MAX_NESTING):
        raise CascadeError("the JSON is nested too deeply to be a workflow", where=where, fix=ACCEPTED)
    return value


def check_json(text: str, where: str, most: int = MAX_VALUES) -> None:
    """See that what ``text`` holds as JSON fits into memory, without reading it.

    Raises:
        CascadeError: it is too long, or holds more than ``most`` values by the signs that begin one.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise CascadeError(
            f"the JSON is too long to be a workflow: {len(text) >> 20} MiB of at most {MAX_TEXT_BYTES >> 20}",
            where=where,
            fix=ACCEPTED,
        )
    if sum(map(text.count, ",[{")) > most:
        raise CascadeError(
            f"the JSON holds more than {most} values, too many for a workflow", where=where, fix=ACCEPTED
        )


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def workflow_in(value: Any, where: str) -> dict[str, Any]:
    """``value`` when it is a UI workflow or an API prompt, or the one in a wrapper such as ``{"prompt": …}``.

    Raises:
        CascadeError: it is neither.
    """
    if isinstance(value, dict) and (is_ui(value) or is_api(value)):
        return value
    if isinstance(value, dict):
        for key in ("workflow", "prompt", "output"):
            inner = value.get(key)
            if isinstance(inner, dict) and (is_ui(inner) or is_api(inner)):
                return inner
        extra = value.get("extra")
        if isinstance(extra, dict) and isinstance(extra.get("groupNodes"), dict):
            raise CascadeError("the workflow has no list of nodes", where=where, fix=ACCEPTED)
    raise CascadeError(
        "this JSON is neither a workflow (a list 'nodes') nor an API prompt (a 'class_type' in every value)",
        where=where,
        fix=ACCEPTED,
    )


def is_ui(value: Any) -> bool:
    """Whether ``value`` has the shape of a UI workflow."""
    return isinstance(value, dict) and isinstance(value.get("nodes"), list)


def is_api(value: Any) -> bool:
    """Whether ``value`` is shaped as an API prompt: each value a str ``class_type`` and a dict ``inputs``."""
    return isinstance(value, dict) and bool(value) and all(is_node(node) for node in value.values())


def _carried(texts: dict[str, str], where: str, cut: bool = False) -> dict[str, Any]:
    """The workflow, else the prompt, among a picture's ``texts``; ``cut`` says that its end is missing."""
    for key in CARRIERS:
        if key in texts:
            return workflow_in(parse_json(texts[key], f"{where}, text '{key}'"), where)
    if cut:
        raise CascadeError(
            "the picture is cut off, and no workflow stands in what is left",
            where=where,
            fix="Copy or download it again",
        )
    raise CascadeError(
        "this picture carries no workflow",
        where=where,
        fix="Use the picture as ComfyUI saved it: chat programs and editors strip the workflow",
    )


def _png_texts(data: bytes, where: str) -> tuple[dict[str, str], bool]:
    """The text chunks of a PNG that may carry a workflow, by keyword (PNG specification, 11.3.3), and whether
    its end is missing."""
    texts: dict[str, str] = {}
    at, left = len(PNG_MAGIC), MAX_TEXT_BYTES
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IEND":
            return texts, False
        if len(body) < length:
            break
        at += 12 + length
        keyword, _, rest = body.partition(b"\0")
        key = keyword.decode("latin-1").lower()
        if key not in CARRIERS:
            continue
        found = b""
        if kind == b"tEXt":
            found = rest
        elif kind == b"zTXt" and rest[:1] == b"\0":
            found = _unpack(rest[1:], left, where)
        elif kind == b"iTXt" and len(rest) >= 2:
            text = rest[2:].split(b"\0", 2)[-1]
            found = _unpack(text, left, where) if rest[0] == 1 else text
        else:
            continue
        left -= len(found)
        if left < 0:
            raise _too_long(where)
        texts[key] = _text(found)
    return texts, True


def _unpack(data: bytes, most: int, where: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, most + 1)
    except zlib.error:
        raise CascadeError("the text in this picture is damaged", where=where) from None
    if len(text) > most:
        raise _too_long(where)
    return text


def _too_long(where: str) -> CascadeError:
    return CascadeError("the text in this picture is too long to be a workflow", where=where)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _webp_texts(data: bytes, where: str) -> Iterator[tuple[str, str]]:
    """``workflow:…`` and ``prompt:…`` from the ASCII tags of a WebP's EXIF block, where ComfyUI puts them."""
    at, left = 12, MAX_TEXT_BYTES
    while at + 8 <= len(data):
        kind, length = struct.unpack("<4sI", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
        if kind != b"EXIF":
            continue
        for tiff, start, size in _exif_texts(body.removeprefix(b"Exif\0\0")):
            key, colon, _ = tiff[start : start + 12].partition(b":")
            name = key.decode("latin-1").lower()
            if not colon or name not in CARRIERS:
                continue
            left -= size  # values may lie over each other
            if left < 0:
                raise _too_long(where)
            value = tiff[start + len(key) + 1 : start + size]
            yield name, value.rstrip(b"\0").decode("utf-8", "replace")


def _exif_texts(tiff: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Where each ASCII value in the first directory of a TIFF block lies: the block, its start, its size."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return
    (start,) = struct.unpack(order + "I", tiff[4:8])
    if start + 2 > len(tiff):
        return
    (count,) = struct.unpack(order + "H", tiff[start : start + 2])
    for i in range(count):
        entry = tiff[start + 2 + 12 * i : start + 14 + 12 * i]
        if len(entry) < 12:
            return
        _tag, kind, size, offset = struct.unpack(order + "HHII", entry)
        if kind == 2 and offset + size <= len(tiff):
            yield tiff, offset, size
