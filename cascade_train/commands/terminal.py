"""What a person sees while a graph runs: one live line on a terminal, plain lines elsewhere, a table at the
end; or one JSON object a line for a machine."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from cascade_train.errors import plain
from cascade_train.graph.check.problems import one_line
from cascade_train.graph.run.report import Event, ExecutionReport, NodeReport
from cascade_train.host.base import Folders
from cascade_train.host.place import rank
from cascade_train.words import duration

if TYPE_CHECKING:
    from PIL import Image

LIVE_INTERVAL = 0.1
"""Least time between two redraws of the live line, in seconds."""
PLAIN_INTERVAL = 15.0
"""Least time between two progress lines in a log file, in seconds."""
MOST_TEXTS = 5
"""Texts of an output that the table at the end repeats."""


class Display(Protocol):
    """Shows a run: gets its events, its progress (as the host's sink) and its end."""

    def event(self, event: Event) -> None: ...

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None: ...

    def warn(self, text: str) -> None: ...

    def tell(self, text: str) -> None: ...

    def end(self, report: ExecutionReport, folders: Folders) -> None: ...


def span(seconds: float) -> str:
    """`duration`, with tenths of a second where they tell something: ``0.4 s``, ``3 min 05 s``."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


class Silent:
    """Shows nothing but failures: every process but the first runs the same graph and says the same."""

    def event(self, event: Event) -> None:
        return None

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        return None

    def warn(self, text: str) -> None:
        return None

    def tell(self, text: str) -> None:
        return None

    def end(self, report: ExecutionReport, folders: Folders) -> None:
        for node in report.failed:
            line = one_line(f"{node.name()}: {node.error}", 1000)
            print(f"cascade-train (process {rank()}): {line}", file=sys.stderr)


class TimeLeft:
    """Estimates what is left of one node's work from its progress, forgetting old speeds slowly."""

    def __init__(self) -> None:
        self._key: object = None
        self._last: tuple[float, int] | None = None
        self._per_step = 0.0

    def update(self, key: object, done: int, total: int, now: float) -> tuple[float, float] | None:
        """(seconds left, steps a second); None until two reports are known."""
        if key != self._key or (self._last is not None and done < self._last[1]):
            self._key, self._last, self._per_step = key, (now, done), 0.0
            return None
        assert self._last is not None
        before, at = self._last
        if done > at and now > before:
            fresh = (now - before) / (done - at)
            self._per_step = fresh if not self._per_step else 0.8 * self._per_step + 0.2 * fresh
            self._last = (now, done)
        if not self._per_step:
            return None
        return max(0, total - done) * self._per_step, 1 / self._per_step


class Terminal:
    """A live line and a table for people.

    Args:
        stream: standard output.
        traces: also print the traceback of unexpected errors.
    """

    def __init__(self, stream: IO[str] | None = None, *, traces: bool = False) -> None:
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.traces = traces
        self._node = ""
        self._left = TimeLeft()
        self._drawn = 0.0
        self._wide = 0

    def _clear(self) -> None:
        if self._wide:
            self.stream.write("\r" + " " * self._wide + "\r")
            self._wide = 0

    def _line(self, text: str) -> None:
        self._clear()
        try:
            self.stream.write(text + "\n")
        except UnicodeEncodeError:  # a console of another code page: show what it can
            encoding = getattr(self.stream, "encoding", None) or "ascii"
            self.stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self.stream.flush()

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        text = plain(text)
        shown = text if len(text) <= width else text[: max(0, width - 1)] + "…"
        self.stream.write("\r" + shown + " " * max(0, self._wide - len(shown)))
        self.stream.flush()
        self._wide = len(shown)

    def event(self, event: Event) -> None:
        if event.kind == "node_start":
            self._node = f"{one_line(event.data['title'])} (#{one_line(event.node_id or '')})"
            self._drawn = time.monotonic() if not self.live else 0.0
            if self.live:
                self._draw(f"{self._node} …")
        elif event.kind == "node_end":
            self._ended(event)
        elif event.kind == "warning":
            self.warn(str(event.data["text"]))

    def _ended(self, event: Event) -> None:
        data = event.data
        name = f"{one_line(data['title'])} (#{one_line(event.node_id or '')})"
        state = data["state"]
        if state == "ran":
            self._line(f"  done     {name}  {span(float(data.get('seconds', 0.0)))}")
            for text in _texts(data.get("ui", {})):
                for line in text.splitlines():
                    self._line("           " + one_line(line, 400))
        elif state == "cached":
            self._line(f"  cached   {name}")
        elif state in ("failed", "blocked") and data.get("error"):
            self._line(f"  FAILED   {name}: {one_line(data['error'], 1000)}")

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        now = time.monotonic()
        left = self._left.update(self._node, done, total, now)
        ended = 0 < total <= done
        if now - self._drawn < (LIVE_INTERVAL if self.live else PLAIN_INTERVAL) and not ended:
            return
        if not self.live and ended:
            return
        self._drawn = now
        parts = [self._node, f"{done}/{total}" if total else f"{done}"]
        if self.live and total > 0:
            filled = round(10 * min(1.0, done / total))
            parts.append("[" + "#" * filled + "." * (10 - filled) + "]")
        if left is not None:
            parts.append(f"{span(left[0])} left")
        if text:
            parts.append(text)
        if left is not None:
            parts.append(f"{left[1]:.1f} steps/s" if left[1] >= 1 else f"{span(1 / left[1])} a step")
        line = plain("  ".join(parts))
        if self.live:
            self._draw(line)
        else:
            self._line("  " + line)

    def warn(self, text: str) -> None:
        self._line(f"  warning  {plain(text)}")

    def tell(self, text: str) -> None:
        self._line(f"  note     {self._node}: {text}" if self._node else f"  note     {text}")

    def end(self, report: ExecutionReport, folders: Folders) -> None:
        self._clear()
        names = {node.node_id: one_line(node.name()) for node in report.nodes}
        rows = [node for node in report.nodes if node.is_output]
        self._line("")
        self._line("Outputs")
        for node in rows:
            self._line(f"  {node.state:<8} {names[node.node_id]}{one_line(_reason(node, names), 1000)}")
            for path in files_of(node.ui, folders):
                self._line(f"           {plain(str(path))}")
            for text in _texts(node.ui)[:MOST_TEXTS]:
                self._line("           " + one_line(text, 200))
        if self.traces:
            for node in report.failed:
                if node.trace:
                    self._line(f"\n{node.name()}\n{node.trace}")
        elif any(node.trace for node in report.failed):
            self._line("\nRun again with --traceback to see where an unexpected error came from.")
        counts: dict[str, int] = {}
        for node in report.nodes:
            counts[node.state] = counts.get(node.state, 0) + 1
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        ending = (
            "stopped; run the same file again to continue"
            if report.interrupted
            else ("finished" if report.ok else "finished with errors")
        )
        self._line(f"\n{ending.capitalize()} after {span(report.seconds)}: {summary}.")


def _reason(node: NodeReport, names: Mapping[str, str]) -> str:
    if node.error:
        return f": {node.error}"
    if node.because:
        return f": {names.get(node.because, node.because)} failed"
    if node.state == "blocked":
        return ": left out by a node before it"
    return ""


def _texts(ui: Mapping[str, Any]) -> list[str]:
    return [text for text in ui.get("text", ()) if isinstance(text, str)]


def files_of(ui: Mapping[str, Any], folders: Folders) -> list[Path]:
    """Paths of the files that an output node says it wrote (``{"filename", "subfolder", "type"}``)."""
    roots = {"output": folders.output, "temp": folders.temp, "input": folders.input}
    found: list[Path] = []
    for items in ui.values():
        for item in items if isinstance(items, (list, tuple)) else ():
            if isinstance(item, Mapping) and item.get("filename") and item.get("type") in roots:
                path = roots[str(item["type"])] / str(item.get("subfolder") or "") / str(item["filename"])
                found.append(path)
    return found


class JsonLines:
    """One JSON object a line: every event, and the report last."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout
        self._node: str | None = None

    def _say(self, kind: str, data: Mapping[str, Any]) -> None:
        self.stream.write(json.dumps({"event": kind, "time": round(time.time(), 3), **data}) + "\n")
        self.stream.flush()

    def event(self, event: Event) -> None:
        if event.kind == "node_start":
            self._node = event.node_id
        self._say(event.kind, {**({"node": event.node_id} if event.node_id else {}), **event.data})

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        told = {"text": text} if text else {}
        self._say("progress", {"node": self._node, "done": done, "total": total, **told})

    def warn(self, text: str) -> None:
        self._say("warning", {"text": text})

    def tell(self, text: str) -> None:
        self._say("note", {"node": self._node, "text": text})

    def end(self, report: ExecutionReport, folders: Folders) -> None:
        data = report.as_json()
        files = {node.node_id: [str(path) for path in files_of(node.ui, folders)] for node in report.nodes}
        for node in data["nodes"]:
            if files.get(node["id"]):
                node["files"] = files[node["id"]]
        self._say("report", data)
