"""The value that tells the executor to run nothing that depends on it."""

from __future__ import annotations

from typing import Any


class ExecutionBlocker:
    """Returned by a node in place of an output: whatever takes it as an input does not run.

    With ``message`` None the branch ends silently; otherwise the node that would have taken it is reported
    as failed with that message. ComfyUI's own class of the same name is recognised as well.
    """

    def __init__(self, message: str | None = None) -> None:
        self.message = message


def is_blocker(value: Any) -> bool:
    """Whether ``value`` is an ExecutionBlocker, ours or ComfyUI's."""
    return isinstance(value, ExecutionBlocker) or (
        type(value).__name__ == "ExecutionBlocker" and hasattr(value, "message")
    )
