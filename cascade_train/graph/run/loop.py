"""One run of a prompt: taking nodes in order, calling them, and keeping what happened to each."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.graph.run.cache import Keys, Result, ResultCache
from cascade_train.graph.run.classes import ClassFacts, Registry
from cascade_train.graph.run.inputs import (
    Gathered,
    Returned,
    call_over_lists,
    gather,
    merged,
    merged_ui,
    returned,
    running,
    settled,
)
from cascade_train.graph.run.order import Schedule
from cascade_train.graph.run.prompt import LiveGraph, id_order, is_link
from cascade_train.graph.run.release import Holds
from cascade_train.graph.run.report import Event, NodeReport, Report, State, plain
from cascade_train.graph.run.typed import typed_in
from cascade_train.host.base import Host
from cascade_train.host.blocker import ExecutionBlocker

Listener = Callable[[Event], None]

_current: ContextVar[str | None] = ContextVar("cascade_train_current_node", default=None)


def current_node() -> str | None:
    """The id (in the file) of the node whose function is running in this context."""
    return _current.get()


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception says that the person asked to stop (ours, Python's or ComfyUI's)."""
    return isinstance(error, (Interrupted, KeyboardInterrupt)) or (
        type(error).__name__ == "InterruptProcessingException"
    )


@dataclass
class _Unfinished:
    """A node that has run but has no result yet: async calls in flight, or expansions that must run."""

    tasks: list[Any] = field(default_factory=list)
    expansions: list[Returned] = field(default_factory=list)
    ui: Mapping[str, list[Any]] = field(default_factory=dict)


class Run:
    """One execution of a prompt."""

    def __init__(
        self,
        live: LiveGraph,
        registry: Registry,
        host: Host,
        cache: ResultCache | None,
        extra_pnginfo: Mapping[str, Any] | None,
        listener: Listener,
    ) -> None:
        """Without a ``cache`` each result is let go as soon as no node can need it any more."""
        self.live, self.registry, self.host = live, registry, host
        self.cache = cache or ResultCache()
        self.holds = Holds() if cache is None else None
        self.extra_pnginfo, self.listen = extra_pnginfo, listener
        self.keys = Keys(live, registry, self.cache)
        self.order = Schedule(live, self.facts, self.has_result)
        self.report = Report()
        self.unfinished: dict[str, _Unfinished] = {}
        self.seconds: dict[str, float] = {}
        self.ended: set[str] = set()
        self.messages: dict[str, str] = {}
        self.expanded: set[str] = set()

    def facts(self, node_id: str) -> ClassFacts:
        return self.registry[self.live.get_node(node_id)["class_type"]]

    def result(self, node_id: str) -> Result | None:
        key = self.keys.all().get(node_id)
        return None if key is None else self.cache.results.get(key)

    def has_result(self, node_id: str) -> bool:
        return self.result(node_id) is not None

    def outputs(self, node_id: str) -> list[list[Any]] | None:
        result = self.result(node_id)
        return None if result is None else result.outputs

    async def execute(self, roots: Sequence[str], needed: Sequence[str]) -> Report:
        began = time.perf_counter()
        await self.keys.add(self.live.original)
        self.cache.start(self.keys.all(), [(n, self.facts(n).class_type) for n in self.live.original])
        self._warnings()
        self._hold(needed)
        self.order.measure([n for n in needed if self.facts(n).is_output] + list(roots))
        self.listen(Event("start", None, {"nodes": len(needed), "outputs": list(roots)}))
        cached = [node_id for node_id in needed if self.has_result(node_id)]
        self.listen(Event("cached", None, {"nodes": cached}))
        for node_id in cached:
            self._end(node_id, "cached", ui=self.result(node_id).ui)  # type: ignore[union-attr]
        for node_id in roots:
            self.order.add_root(node_id)
        try:
            while self.order:
                self.host.check_interrupt()
                ready = self.order.take()
                if ready is not None:
                    await self._step(ready)
                    if self.host.world_size > 1 and self.report.failed:
                        self._abandon()
                elif any(u.tasks for u in self.unfinished.values()):
                    await self._wait()
                else:
                    self._fail_cycle()
        except BaseException as error:
            if not is_interrupt(error):
                raise
            self._stop()
        finally:
            for unfinished in self.unfinished.values():
                for task in running(unfinished.tasks):
                    task.cancel()
        self.report.seconds = time.perf_counter() - began
        self.listen(Event("finish", None, {"ok": self.report.ok, "interrupted": self.report.interrupted}))
        return self.report

    async def _wait(self) -> None:
        """Sleep until an async node is done, waking often enough to notice an interrupt."""
        tasks = [t for u in self.unfinished.values() for t in running(u.tasks)]
        if tasks:
            await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        for node_id, unfinished in self.unfinished.items():
            if unfinished.tasks and not running(unfinished.tasks):
                self.order.release(node_id)

    async def _step(self, node_id: str) -> None:
        """Run a node as far as it goes now: to its result, its error, or something it has to wait for."""
        real = self.live.get_real_node_id(node_id)
        if self.has_result(node_id):
            self._done(node_id)
            return
        token = _current.set(real)
        began = time.perf_counter()
        try:
            done = await self._advance(node_id, real)
        except BaseException as error:
            self.seconds[real] = self.seconds.get(real, 0.0) + time.perf_counter() - began
            if is_interrupt(error):
                if real not in self.ended:
                    self._end(real, "stopped")
                raise
            if not isinstance(error, Exception):
                raise
            self._fail(node_id, error)
            return
        finally:
            _current.reset(token)
        self.seconds[real] = self.seconds.get(real, 0.0) + time.perf_counter() - began
        if done:
            self._done(node_id)
        else:
            self.order.put_back(node_id)

    async def _advance(self, node_id: str, real: str) -> bool:
        facts = self.facts(node_id)
        unfinished = self.unfinished.get(node_id)
        if unfinished is not None and unfinished.tasks:
            tasks, unfinished.tasks = unfinished.tasks, []
            return await self._take_results(node_id, facts, await settled(tasks))
        if unfinished is not None and unfinished.expansions:
            rows = [self._resolved(r) for r in unfinished.expansions]
            self._store(node_id, facts, rows, unfinished.ui)
            return True
        node = self.live.get_node(node_id)
        hidden = {
            "UNIQUE_ID": node_id,
            "PROMPT": self.live.original,
            "DYNPROMPT": self.live,
            "EXTRA_PNGINFO": self.extra_pnginfo,
        }
        got = gather(facts, node.get("inputs", {}), hidden, self.outputs)
        if node_id == real and real not in self.seconds:
            about = {"title": self.live.title(real), "class": facts.class_type}
            self.listen(Event("node_start", real, about))
        target = facts.cls if facts.is_v3 else self.cache.instance(node_id, facts.class_type, facts.cls)
        if facts.lazy_check and await self._lazy_inputs_wanted(node_id, facts, target, got):
            return False
        function = facts.bind(target, facts.function, got.hidden)
        results = await call_over_lists(
            facts,
            function,
            got.columns,
            on_blocked=lambda b: self._blocked(real, b),
            before_call=lambda index: _tell_comfyui(node_id, index),
        )
        if running(results):
            self.unfinished[node_id] = _Unfinished(tasks=results)
            self.order.hold(node_id)
            return False
        return await self._take_results(node_id, facts, results)

    async def _lazy_inputs_wanted(self, node_id: str, facts: ClassFacts, target: Any, got: Gathered) -> bool:
        """Ask check_lazy_status; True when the node now waits for inputs it named."""
        check = facts.bind(target, facts.lazy_check or "", got.hidden)
        answers = await settled(await call_over_lists(facts, check, got.columns))
        named = {name for answer in answers if isinstance(answer, (list, tuple)) for name in answer}
        wanted = [n for n in sorted(named, key=str) if n not in got.columns or n in got.missing]
        inputs = self.live.get_node(node_id).get("inputs", {})
        for name in wanted:
            if not is_link(inputs.get(name)):
                raise CascadeError(f"it asks for its input '{name}', which is not linked")
            if self.has_result(inputs[name][0]):
                raise CascadeError(
                    f"it asks for its input '{name}', but the node that feeds it gave nothing there"
                )
        for name in wanted:
            await self.keys.add([inputs[name][0]])
            self.order.wait_for(node_id, inputs[name][0])
        return bool(wanted)

    async def _take_results(self, node_id: str, facts: ClassFacts, results: Sequence[Any]) -> bool:
        rows = [returned(facts, await r if asyncio.isfuture(r) else r) for r in results]
        ui = merged_ui([row.ui for row in rows if row.ui is not None])
        if not any(row.expand for row in rows):
            self._store(node_id, facts, [r.values for r in rows if r.values is not None], ui)
            return True
        self.unfinished[node_id] = _Unfinished(expansions=rows, ui=ui)
        await self._expand(node_id, rows)
        return False

    async def _expand(self, parent: str, rows: Sequence[Returned]) -> None:
        """Add the nodes of an expansion; the parent waits for those that its result links to."""
        made = {n: node for row in rows for n, node in (row.expand or {}).items()}
        for node_id, node in made.items():
            if self.live.has_node(node_id):
                raise CascadeError(f"it adds a node #{node_id}, which exists already")
            if node.get("class_type") not in self.registry:
                raise CascadeError(f"it adds a node of the unknown class '{node.get('class_type')}'")
            self.live.add_ephemeral_node(node_id, node, parent, node.get("override_display_id", parent))
        await self.keys.add(made)
        self._hold(made)
        real = self.live.get_real_node_id(parent)
        self.cache.expanded(
            (real, self.facts(real).class_type), [self.keys[n] for n in made], first=real not in self.expanded
        )
        self.expanded.add(real)
        for node_id in sorted(made, key=id_order):
            if self.facts(node_id).is_output:
                self.order.add_root(node_id)
        for row in rows:
            for value in row.values or () if row.expand else ():
                if is_link(value):
                    if not self.live.has_node(value[0]):
                        raise CascadeError(f"its result is linked to node #{value[0]}, which does not exist")
                    self.order.wait_for(parent, value[0])
                    if self.holds is not None:
                        self.holds.add(parent, [self.keys[value[0]]])

    def _resolved(self, row: Returned) -> tuple[Any, ...]:
        """A call's values with links into its expansion replaced by what those nodes gave."""
        if not row.expand:
            return row.values or ()
        values: list[Any] = []
        for value in row.values or ():
            if is_link(value):
                values.extend((self.outputs(value[0]) or [])[int(value[1])])
            else:
                values.append(value)
        return tuple(values)

    def _store(
        self, node_id: str, facts: ClassFacts, rows: Sequence[tuple[Any, ...]], ui: Mapping[str, list[Any]]
    ) -> None:
        self.unfinished.pop(node_id, None)
        self.cache.results[self.keys[node_id]] = Result(merged(facts, rows), ui)

    def _blocked(self, real: str, blocker: Any) -> Any:
        """A call that a blocker kept from running: with a message it is this node's error, told once."""
        self.messages.setdefault(real, blocker.message or "")
        if blocker.message is not None:
            self.messages[real] = blocker.message
            return ExecutionBlocker(None)
        return blocker

    def _done(self, node_id: str) -> None:
        """A node has its result."""
        self.order.done(node_id)
        self._finish(node_id)
        self._let_go(node_id)

    def _hold(self, node_ids: Iterable[str]) -> None:
        """Keep what these nodes give and take until they have ended."""
        if self.holds is not None:
            for node_id in node_ids:
                sources = [source for _, source, _ in self.live.links(node_id)]
                keys = [self.keys.all().get(each) for each in (node_id, *sources)]
                self.holds.add(node_id, [key for key in keys if key is not None])

    def _let_go(self, node_id: str) -> None:
        for key in self.holds.drop(node_id) if self.holds is not None else ():
            self.cache.results.pop(key, None)

    def _finish(self, node_id: str) -> None:
        """Note that a node of the file has its result (nodes of expansions are not reported)."""
        real = self.live.get_real_node_id(node_id)
        if node_id != real or real in self.ended:
            return
        result = self.result(node_id)
        ui = result.ui if result else {}
        if real in self.messages:
            self._end(real, "blocked", ui=ui, error=self.messages[real])
        else:
            self._end(real, "ran", ui=ui)

    def _end(
        self,
        real: str,
        state: State,
        *,
        ui: Mapping[str, list[Any]] | None = None,
        error: str = "",
        trace: str = "",
        because: str = "",
    ) -> None:
        self.ended.add(real)
        facts = self.facts(real)
        node = NodeReport(
            real,
            self.live.title(real),
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

    def _fail(self, node_id: str, error: Exception) -> None:
        real = self.live.get_real_node_id(node_id)
        inner = f" (in the node {self.live.title(node_id)} that it added)" if node_id != real else ""
        known = isinstance(error, CascadeError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        trace = "" if known else "".join(traceback.format_exception(type(error), error, error.__traceback__))
        dependants = self.order.fail(node_id)
        for gone in (node_id, *dependants):
            self.unfinished.pop(gone, None)
            self._let_go(gone)
        if real not in self.ended:
            text += inner + _advice(error) + typed_in(self.live, node_id, error)
            self._end(real, "failed", error=text, trace=trace)
        for lost in dependants:
            owner = self.live.get_real_node_id(lost)
            if owner not in self.ended:
                self._end(owner, "skipped", because=real)

    def _fail_cycle(self) -> None:
        cycle = self.order.cycle()
        blamed = next((n for n in cycle if n not in self.live.original), cycle[0])
        names = ", ".join(f"{self.live.title(n)} (#{n})" for n in cycle[:5])
        self._fail(blamed, CascadeError(f"nodes wait for each other in a cycle: {names}"))

    def _abandon(self) -> None:
        """One of several processes has failed: run nothing more, which the others would do without it."""
        failed = self.report.failed[0].node_id
        for node_id in self.order.pending():
            dependants = self.order.fail(node_id)
            for gone in (node_id, *dependants):
                real = self.live.get_real_node_id(gone)
                if real not in self.ended:
                    self._end(real, "skipped", because=failed)

    def _stop(self) -> None:
        self.report.interrupted = True
        for node_id in self.order.pending():
            real = self.live.get_real_node_id(node_id)
            if real not in self.ended:
                self._end(real, "stopped")

    def _warnings(self) -> None:
        for text in self.keys.warnings:
            self.report.warnings.append(text)
            self.listen(Event("warning", None, {"text": text}))
        self.keys.warnings.clear()


def _advice(error: Exception) -> str:
    if type(error).__name__ == "OutOfMemoryError":
        return " Lower the batch size, raise the accumulation, or use bf16."
    return ""


def _tell_comfyui(node_id: str, index: int) -> None:
    """What packs ask a loaded ComfyUI for: its GraphBuilder takes the prefix of new ids from the running
    node, and its progress goes to that node."""
    builder = getattr(sys.modules.get("comfy_execution.graph_utils"), "GraphBuilder", None)
    if builder is not None:
        builder.set_default_prefix(node_id, index, 0)
    utils = sys.modules.get("comfy_execution.utils")
    if utils is not None and hasattr(utils, "current_executing_context"):
        utils.current_executing_context.set(utils.ExecutionContext("cascade-train", node_id, index))
