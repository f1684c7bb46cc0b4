"""Counted before it is paid: what each node of a graph needs of memory, what the whole does, and what would
make it fit. Imports no torch unless something has to be measured for the first time.

The command ``plan``, ``run --dry-run`` and the node Training Run call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from cascade_train.host.base import Host
from cascade_train.jobs.needs import counted
from cascade_train.jobs.phases import (
    LARGE,
    NETWORKS,
    Counting,
    Needs,
    Phase,
    drawing,
    encoding_a,
    parameters,
    training,
)
from cascade_train.jobs.savings import Option, alone, cheapest, in_use, together
from cascade_train.jobs.tasks import Task
from cascade_train.jobs.ways import AS_IT_IS, Way
from cascade_train.models import library
from cascade_train.models.owner import MARGIN
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.sampling.sizes import picture_size
from cascade_train.training.spec import KeptSpec, LoRATarget, RunSpec

Work = Callable[[Counting, Way, int], Needs]
"""What a node needs, by what is done otherwise and what of a trainer is kept meanwhile."""


@dataclass(frozen=True)
class NodeNeeds:
    """A node of a graph that loads, trains or draws, and what it needs as the workflow says."""

    node_id: str
    title: str
    work: Work
    needs: Needs


@dataclass
class Plan:
    """The nodes of a graph that need memory, in the order in which they would run."""

    counting: Counting
    nodes: list[NodeNeeds] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Titles of nodes whose inputs only running can tell."""
    kept: dict[str, Work] = field(default_factory=dict)
    _totals: dict[Way, int] = field(default_factory=dict)
    _precisions: set[str] = field(default_factory=set)

    def add(
        self, node_id: str, title: str, class_type: str, inputs: Mapping[str, Any], sources: Sequence[str]
    ) -> None:
        """Take up a node with its inputs as far as they are known, and the nodes that it is wired to."""
        before = next((self.kept[each] for each in sources if each in self.kept), None)
        if before is not None:
            self.kept[node_id] = before
        make = WORKS.get(class_type)
        if make is None:
            return
        try:
            works = make(inputs)
        except KeyError:
            self.unknown.append(title)
            return
        self._totals.clear()
        run = inputs.get("run")
        self._precisions.add((run.spec.models if run is not None else inputs["models"]).precision)
        for work in works:
            kept = self._kept(node_id, AS_IT_IS)
            self.nodes.append(NodeNeeds(node_id, title, work, work(self.counting, AS_IT_IS, kept)))
            if self.nodes[-1].needs.kept:
                self.kept[node_id] = work

    def _kept(self, node_id: str, way: Way) -> int:
        work = self.kept.get(node_id)
        return work(self.counting, way, 0).kept if work is not None else 0

    def peak(self, way: Way = AS_IT_IS) -> Phase | None:
        """The largest phase of all, with ``way``; None where nothing needs memory."""
        phases = [
            (
                node.needs
                if way == AS_IT_IS
                else node.work(self.counting, way, self._kept(node.node_id, way))
            ).peak
            for node in self.nodes
        ]
        return max(phases, key=lambda phase: phase.total, default=None)

    def first_over(self, limit: int) -> NodeNeeds | None:
        """The first node that needs more than ``limit`` bytes."""
        return next((node for node in self.nodes if node.needs.peak.total > limit), None)

    def cure(self, limit: int) -> tuple[Option, ...]:
        """The options that lose least of those that make all of it fit in ``limit`` bytes together; empty
        where none do."""
        return cheapest(self.total, limit)

    def alone(self, limit: int) -> Option | None:
        """The one option that loses least of those with which all of it fits."""
        return alone(self.total, limit)

    def in_use(self) -> tuple[Option, ...]:
        """The options that the graph has already and that make it smaller."""
        return in_use(self.total, "bf16" in self._precisions)

    def with_all(self, options: Sequence[Option]) -> Phase:
        """The largest phase with all of ``options``."""
        peak = self.peak(together(options))
        return peak if peak is not None else Phase("nothing")

    def total(self, way: Way = AS_IT_IS) -> int:
        """Bytes of the largest phase of all, with ``way``."""
        if way not in self._totals:
            peak = self.peak(way)
            self._totals[way] = peak.total if peak is not None else 0
        return self._totals[way]


def usable(memory: float) -> int:
    """Of ``memory`` GB of a GPU the bytes that tensors may take: the driver and gaps take the rest."""
    return int(memory * 1e9) - MARGIN


ONCE = "Counting memory that has not been counted before: some seconds, once."


def new_plan(host: Host, say: Callable[[str], None] = lambda text: None) -> Plan:
    """A plan that remembers in the cache folder of ``host``; ``say`` is told where something has to be
    measured first."""
    return Plan(cache(partial(counted, folder=host.folders.cache, tell=_once(say))))


def _once(say: Callable[[str], None]) -> Callable[[Task], None]:
    told: list[Task] = []

    def tell(task: Task) -> None:
        if not told:
            say(ONCE)
        told.append(task)

    return tell


def tell_need(spec: RunSpec, host: Host) -> None:
    """Tell the person the peak of training ``spec``, where its models are large or work on a GPU."""
    part = "stage_c" if isinstance(spec.target, LoRATarget) else spec.target.part
    large = library.has(spec.models, part) and parameters(spec.models, part) >= LARGE
    if large or host.device != "cpu":
        host.tell(f"training {run_line(spec, host)}")


def run_line(spec: RunSpec, host: Host) -> str:
    """The peak of training ``spec`` in one line, from what is known or has been counted before; else the
    person is told that it is counted now.

    A run is not kept from training because its memory cannot be counted: the line then says why.
    """
    try:
        count = partial(counted, folder=host.folders.cache, tell=_once(host.tell))
        needs = training(spec, count, previews=True)
    except Exception as error:
        return f"needs memory that could not be counted ({error})"
    return f"needs {gigabytes(needs.peak.total)} of memory ({needs.peak.name})"


def graph_line(plan: Plan) -> str:
    """The peak of a whole graph in one line; empty where nothing needs memory."""
    peak = plan.peak()
    if peak is None:
        return ""
    node = max(plan.nodes, key=lambda node: node.needs.peak.total)
    return f"Memory: {gigabytes(peak.total)} at most, in {node.title} (#{node.node_id}), {peak.name}."


def gigabytes(number: int) -> str:
    """``7.9 GB``, ``76 MB``."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def _trains(inputs: Mapping[str, Any]) -> list[Work]:
    spec: RunSpec = inputs["run"].settings
    previews = inputs.get("preview_every", 20) > 0
    # a stand-in has no samples, and what encodes for it has not been asked for
    cached = spec.dataset.cache is not None and spec.dataset.cache.text and spec.dataset.cache.latents

    def work(count: Counting, way: Way, kept: int) -> Needs:
        return training(spec, count, way, previews=previews, cached=cached)

    return [work]


def _draws_prompts(inputs: Mapping[str, Any]) -> list[Work]:
    run, prompts = inputs.get("run"), inputs["prompts"]
    models: ModelsSpec = run.spec.models if run is not None else inputs["models"]
    guided: list[Part] = [part for part, cfg in zip(NETWORKS, (prompts.cfg_c, prompts.cfg_b)) if cfg != 1]
    spec = run.spec if run is not None else None
    target = spec.lora if isinstance(spec, KeptSpec) else getattr(spec, "target", None)
    laid = target if isinstance(target, LoRATarget) else None
    return [_drawing(models, prompts.width, prompts.height, guided=guided, laid=laid)]


def _drawing(models: ModelsSpec, width: int = 0, height: int = 0, **which: Any) -> Work:
    size = picture_size(library.geometry(models), width, height)

    def work(count: Counting, way: Way, kept: int) -> Needs:
        return drawing(models, size, count, way, kept=kept, **which)

    return work


def _one(*parts: Part) -> Callable[[Mapping[str, Any]], list[Work]]:
    """A node that draws or encodes with ``parts`` of its models."""

    def works(inputs: Mapping[str, Any]) -> list[Work]:
        guided = NETWORKS if inputs.get("cfg", 1) != 1 else ()
        sides = inputs.get("width", 0), inputs.get("height", 0)
        return [_drawing(inputs["models"], *sides, parts=parts, guided=guided)]

    return works


def _stage_a(inputs: Mapping[str, Any]) -> list[Work]:
    models: ModelsSpec = inputs["models"]
    size = picture_size(library.geometry(models))
    return [lambda count, way, kept: encoding_a(models, size, count, way)]


WORKS: Mapping[str, Callable[[Mapping[str, Any]], list[Work]]] = {
    "CascadeTrainSteps": _trains,
    "CascadeTrainAndValidate": lambda inputs: [*_trains(inputs), *_draws_prompts(inputs)],
    "CascadeValidate": _draws_prompts,
    "CascadeEncodeText": _one("text"),
    "CascadeSampleStageC": _one("stage_c"),
    "CascadeDecodeStageB": _one("stage_b"),
    "CascadeDecodeStageA": _one("stage_a"),
    "CascadeEncodeStageC": _one("compressor"),
    "CascadeEncodeStageA": _stage_a,
    "CascadePreviewLatent": _one("previewer"),
    "CascadeCacheLatents": _one("text", "compressor", "image"),
}
"""What nodes need by their ids; all others need none of the device's memory."""
