"""Errors that people read: what is wrong, where, and what would be right."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` on one line, with nothing that a terminal or a browser obeys: control characters, line ends
    and signs that turn writing round become spaces. Names and values come from strangers' files."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if sign.isprintable() or sign in _JOINERS:
        return sign
    return " "


_JOINERS = "\u200c\u200d\u3000\u00a0"
"""Within words and signs of some scripts; harmless."""


class CascadeError(Exception):
    """A problem that a person can mend.

    Args:
        what: what is wrong, with the value that is wrong.
        where: the file, folder, node or line it was found in, when known.
        fix: what would be right.
        typed: the input's name and the text that was typed there, where another node finds the mistake; who
            knows the graph can then name the node that has it.

    ``str(error)`` is one line, made `plain`: ``what (where). fix``; for want of another place, ``where`` is
    the input.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        typed: tuple[str, str] | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        self.typed = typed
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what.rstrip(". ")
        where = self.where or (f"input {self.typed[0]}" if self.typed else "")
        if where:
            text += f" ({where})"
        if self.fix:
            text += f". {self.fix.rstrip('. ')}"
        return plain(text + ".")


STOPPED = 130
"""Exit code of a process that a person stopped."""


class Interrupted(Exception):
    """The person asked to stop; everything done so far is on disk and running again continues."""
