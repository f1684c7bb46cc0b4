"""Errors that people read: what is wrong, where, and what would be right."""

from __future__ import annotations


class CascadeError(Exception):
    """A problem that a person can mend.

    Args:
        what: what is wrong, with the value that is wrong.
        where: the file, folder, node or line it was found in, when known.
        fix: what would be right.

    ``str(error)`` is one line: ``what (where). fix``.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what.rstrip(". ")
        if self.where:
            text += f" ({self.where})"
        if self.fix:
            text += f". {self.fix.rstrip('. ')}"
        return text + "."


class Interrupted(Exception):
    """The person asked to stop; everything done so far is on disk and running again continues."""
