"""The one door between what a command says and a terminal: nothing that a terminal obeys goes through.

Commands print names, titles, captions and paths of strangers' files. Those who write them make them one line
(`errors.plain`, `graph.check.problems.one_line`); what anyone forgets is caught here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TURNING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0x200E, 0x200F)
_OBEYED = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *_TURNING)
    if chr(code) not in "\t\n\r"
}
"""Control characters but tab, line end and the return that redraws a line, and those that turn writing round;
each is written as JSON writes it, so that JSON stays what it was."""


def _harmless(text: str) -> str:
    """A return is kept at either end, where what draws one line anew puts it, and in Windows' line ends."""
    inner = text.strip("\r").translate(_OBEYED)
    if "\r" in inner:
        inner = inner.replace("\r\n", "\n").replace("\r", "\\u000d")
    return "\r" * text.startswith("\r") + inner + "\r" * (len(text) > 1 and text.endswith("\r"))


class Printed:
    """A text stream without them; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text if text.isascii() and text.isprintable() else _harmless(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def printed() -> Iterator[None]:
    """Within the block standard output and error are `Printed`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Printed(before[0]), Printed(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
