"""What happened, as values: events while a graph runs and the report at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cascade_train.graph.check.classes import ClassFacts
from cascade_train.graph.run.prompt import LiveGraph

State = Literal["ran", "cached", "failed", "blocked", "skipped", "stopped"]
"""``skipped``: something it needs failed. ``stopped``: the person stopped it before it was done."""

EventKind = Literal["start", "cached", "node_start", "progress", "preview", "node_end", "warning", "finish"]


@dataclass(frozen=True)
class Event:
    """One thing that happened. ``data`` is plain JSON data; a preview's picture travels in ``image``."""

    kind: EventKind
    node_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    image: Any = None


Listener = Callable[[Event], None]


@dataclass
class NodeReport:
    """How one node of the file ended. ``error`` is one line for a person; ``trace`` a traceback, kept for
    errors that are not `CascadeError`; ``because`` the node whose failure kept this one from running."""

    node_id: str
    title: str
    class_type: str
    is_output: bool
    state: State
    seconds: float = 0.0
    error: str = ""
    trace: str = ""
    because: str = ""
    ui: Mapping[str, list[Any]] = field(default_factory=dict)

    def name(self) -> str:
        """Title and id, as messages give them."""
        return f"{self.title} (#{self.node_id})"


@dataclass
class ExecutionReport:
    """The end of an execution: every node of the file that was needed, in the order in which they ended."""

    nodes: list[NodeReport] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[NodeReport]:
        """Nodes that failed themselves (not those that failed nodes kept from running)."""
        return [n for n in self.nodes if n.state == "failed" or (n.state == "blocked" and n.error)]

    @property
    def ok(self) -> bool:
        """Whether every output ran (or was cached, or was left out on purpose by a silent block)."""
        return not self.interrupted and not self.failed

    @property
    def exit_code(self) -> int:
        """0 every output ran, 1 something failed, 130 the person stopped it."""
        return 130 if self.interrupted else 0 if self.ok else 1

    def outputs(self) -> dict[str, Mapping[str, list[Any]]]:
        """What output nodes show (file names, texts), by node id."""
        return {node.node_id: node.ui for node in self.nodes if node.ui}

    def as_json(self) -> dict[str, Any]:
        """Plain data: what ``--json`` prints on its last line."""
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
            "nodes": [
                {
                    key: value
                    for key, value in (
                        ("id", node.node_id),
                        ("title", node.title),
                        ("class", node.class_type),
                        ("output", node.is_output),
                        ("state", node.state),
                        ("seconds", round(node.seconds, 3)),
                        ("error", node.error),
                        ("because", node.because),
                        ("ui", plain(node.ui)),
                    )
                    if value not in ("", {})
                }
                for node in self.nodes
            ],
        }


class Recorder:
    """Notes how each node of the file ended (nodes of expansions are not reported), and says so at once."""

    def __init__(self, live: LiveGraph, facts_of: Callable[[str], ClassFacts], listener: Listener) -> None:
        self._live, self._facts_of, self.listen = live, facts_of, listener
        self.report = ExecutionReport()
        self.seconds: dict[str, float] = {}
        """How long a node of the file has worked, with all that it added."""
        self._ended: set[str] = set()
        self._blocked: dict[str, str] = {}

    def has_ended(self, real: str) -> bool:
        return real in self._ended

    def worked(self, real: str, seconds: float) -> None:
        self.seconds[real] = self.seconds.get(real, 0.0) + seconds

    def blocked(self, real: str, message: str | None) -> None:
        """A call of the node was kept from running; a message makes that its error."""
        self._blocked.setdefault(real, message or "")
        if message is not None:
            self._blocked[real] = message

    def done(self, real: str, ui: Mapping[str, list[Any]]) -> None:
        """A node of the file has its result."""
        if real in self._blocked:
            self.end(real, "blocked", ui=ui, error=self._blocked[real])
        else:
            self.end(real, "ran", ui=ui)

    def end(
        self,
        real: str,
        state: State,
        *,
        ui: Mapping[str, list[Any]] | None = None,
        error: str = "",
        trace: str = "",
        because: str = "",
    ) -> None:
        """Note a node's end; only the first counts."""
        if real in self._ended:
            return
        self._ended.add(real)
        facts = self._facts_of(real)
        node = NodeReport(
            real,
            self._live.title(real),
            facts.class_type,
            facts.is_output,
            state,
            self.seconds.get(real, 0.0),
            error,
            trace,
            because,
            ui or {},
        )
        self.report.nodes.append(node)
        data = {
            "title": node.title,
            "class": node.class_type,
            "state": state,
            "seconds": round(node.seconds, 4),
            "error": error,
            "because": because,
            "ui": plain(node.ui),
        }
        self.listen(Event("node_end", real, {k: v for k, v in data.items() if v not in ("", {})}))

    def warn(self, text: str) -> None:
        self.report.warnings.append(text)
        self.listen(Event("warning", None, {"text": text}))


def plain(value: Any) -> Any:
    """``value`` as JSON data; what JSON cannot say becomes its text."""
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value)
