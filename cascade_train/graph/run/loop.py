"""One execution of a checked prompt, with the contract that ComfyUI gives node classes.

Nodes that outputs need run one after another, nearest to an output first, in an order that is the same in
every process. A node that fails stops those that depend on it, and no others.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.graph.check.calls import Gathered, call_over_lists, gather, running, settled
from cascade_train.graph.check.checked import Checked
from cascade_train.graph.check.classes import ClassFacts
from cascade_train.graph.file.api import id_order, is_link
from cascade_train.graph.run.cache import Holds, Keys, Result, ResultCache
from cascade_train.graph.run.order import Schedule
from cascade_train.graph.run.outputs import Returned, in_columns, merged_ui, returned
from cascade_train.graph.run.prompt import LiveGraph
from cascade_train.graph.run.report import Event, ExecutionReport, Listener, Recorder
from cascade_train.host.base import ExecutingHost
from cascade_train.host.blocker import ExecutionBlocker


def execute(
    checked: Checked,
    host: ExecutingHost,
    *,
    extra_pnginfo: Mapping[str, Any] | None = None,
    cache: ResultCache | None = None,
    listener: Listener = lambda event: None,
) -> ExecutionReport:
    """Run the roots of ``checked`` and all that they need.

    Args:
        checked: see `cascade_train.graph.check.checked`.
        host: asked for an interrupt between nodes, and told which one runs.
        extra_pnginfo: what saved pictures carry beside the prompt; ``{"workflow": …}`` opens in ComfyUI.
        cache: results of earlier executions in this process; updated. Without one, results are let go as
            soon as no node can need them any more.
        listener: called in this thread with every event.

    Raises:
        CascadeError: the classes are known by their schemas alone; nothing has run.
    """
    if not checked.classes.can_run:
        raise CascadeError("the node classes are not here, only their schemas, so nothing can run")
    execution = Execution(checked, host, cache, extra_pnginfo, listener)
    torch = any(execution.facts(node_id).uses_torch for node_id in checked.needed)
    with host.inference_mode(torch):
        return asyncio.run(execution.run())


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


class Execution:
    """One execution: taking nodes in order, calling them, and keeping what happened to each."""

    def __init__(
        self,
        checked: Checked,
        host: ExecutingHost,
        cache: ResultCache | None,
        extra_pnginfo: Mapping[str, Any] | None,
        listener: Listener,
    ) -> None:
        self.checked, self.host, self.extra_pnginfo = checked, host, extra_pnginfo
        self.live = LiveGraph(checked.prompt, checked.classes)
        self.cache = cache or ResultCache()
        self.holds = Holds() if cache is None else None
        self.keys = Keys(self.live, checked.classes, self.cache)
        self.order = Schedule(self.live, self.facts, self.has_result)
        self.record = Recorder(self.live, self.facts, listener)
        self.unfinished: dict[str, _Unfinished] = {}
        self.expanded: set[str] = set()

    def facts(self, node_id: str) -> ClassFacts:
        return self.checked.classes[self.live.get_node(node_id)["class_type"]]

    def result(self, node_id: str) -> Result | None:
        key = self.keys.all().get(node_id)
        return None if key is None else self.cache.results.get(key)

    def has_result(self, node_id: str) -> bool:
        return self.result(node_id) is not None

    def outputs(self, node_id: str) -> list[list[Any]] | None:
        result = self.result(node_id)
        return None if result is None else result.outputs

    async def run(self) -> ExecutionReport:
        began = time.perf_counter()
        roots, needed = self.checked.roots, sorted(self.checked.needed, key=id_order)
        original = self.live.original
        await self.keys.add(needed if self.holds is not None else original)
        self.cache.start(self.keys.all(), [(n, node["class_type"]) for n, node in original.items()])
        for text in self.keys.warnings:
            self.record.warn(text)
        self._hold(needed)
        self.order.measure([n for n in needed if self.facts(n).is_output] + list(roots))
        self.record.listen(Event("start", None, {"nodes": len(needed), "outputs": list(roots)}))
        cached = [node_id for node_id in needed if self.has_result(node_id)]
        self.record.listen(Event("cached", None, {"nodes": cached}))
        for node_id in cached:
            self.record.end(node_id, "cached", ui=self.result(node_id).ui)  # type: ignore[union-attr]
        for node_id in roots:
            self.order.add_root(node_id)
        try:
            while self.order:
                self.host.check_interrupt()
                ready = self.order.take()
                if ready is not None:
                    await self._step(ready)
                    if self.host.world_size > 1 and self.record.report.failed:
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
        report = self.record.report
        report.seconds = time.perf_counter() - began
        self.record.listen(Event("finish", None, {"ok": report.ok, "interrupted": report.interrupted}))
        return report

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
        began = time.perf_counter()
        try:
            done = await self._advance(node_id, real)
        except BaseException as error:
            self.record.worked(real, time.perf_counter() - began)
            if is_interrupt(error):
                self.record.end(real, "stopped")
                raise
            if not isinstance(error, Exception):
                raise
            self._fail(node_id, error)
            return
        self.record.worked(real, time.perf_counter() - began)
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
        if node_id == real and real not in self.record.seconds:
            about = {"title": self.live.title(real), "class": facts.class_type}
            self.record.listen(Event("node_start", real, about))
        target = facts.cls if facts.is_v3 else self.cache.instance(node_id, facts.class_type, facts.cls)
        if facts.lazy_check and await self._lazy_inputs_wanted(node_id, facts, target, got):
            return False
        function = facts.bind(target, facts.function, got.hidden)
        results = await call_over_lists(
            facts,
            function,
            got.columns,
            on_blocked=lambda b: self._blocked(real, b),
            before_call=lambda index: self.host.executing(node_id, index),
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
            if node.get("class_type") not in self.checked.classes:
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
                    await self.keys.add([value[0]])
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
        self.cache.results[self.keys[node_id]] = Result(in_columns(facts, rows), ui)

    def _blocked(self, real: str, blocker: Any) -> Any:
        """A call that a blocker kept from running: with a message it is this node's error, told once."""
        self.record.blocked(real, blocker.message)
        return blocker if blocker.message is None else ExecutionBlocker(None)

    def _done(self, node_id: str) -> None:
        """A node has its result."""
        self.order.done(node_id)
        if node_id == self.live.get_real_node_id(node_id):
            result = self.result(node_id)
            self.record.done(node_id, result.ui if result else {})
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
        text += inner + _advice(error) + self.live.where_typed(node_id, error)
        self.record.end(real, "failed", error=text, trace=trace)
        for lost in dependants:
            self.record.end(self.live.get_real_node_id(lost), "skipped", because=real)

    def _fail_cycle(self) -> None:
        cycle = self.order.cycle()
        blamed = next((n for n in cycle if n not in self.live.original), cycle[0])
        names = ", ".join(f"{self.live.title(n)} (#{n})" for n in cycle[:5])
        self._fail(blamed, CascadeError(f"nodes wait for each other in a cycle: {names}"))

    def _abandon(self) -> None:
        """One of several processes has failed: run nothing more, which the others would do without it."""
        failed = self.record.report.failed[0].node_id
        for node_id in self.order.pending():
            for gone in (node_id, *self.order.fail(node_id)):
                self.record.end(self.live.get_real_node_id(gone), "skipped", because=failed)

    def _stop(self) -> None:
        self.record.report.interrupted = True
        for node_id in self.order.pending():
            self.record.end(self.live.get_real_node_id(node_id), "stopped")


def _advice(error: Exception) -> str:
    if type(error).__name__ == "OutOfMemoryError":
        return " Lower the batch size, raise the accumulation, or use bf16."
    return ""
