"""Run a prompt: our own executor, with the contract that ComfyUI gives node classes.

Nodes that outputs need run one after another, nearest to an output first, in an order that is the same in
every process. A node that fails stops those that depend on it, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.run.cache import ResultCache
from cascade_train.graph.run.checks import coerced, refusals
from cascade_train.graph.run.classes import Registry
from cascade_train.graph.run.loop import Listener, Run
from cascade_train.graph.run.prompt import LiveGraph, Prompt, id_order
from cascade_train.graph.run.report import Report
from cascade_train.host.base import Host


def run_prompt(
    prompt: Prompt,
    classes: Mapping[str, type],
    host: Host,
    *,
    only: Iterable[str] = (),
    extra_pnginfo: Mapping[str, Any] | None = None,
    cache: ResultCache | None = None,
    listener: Listener = lambda event: None,
) -> Report:
    """Execute the output nodes of ``prompt`` (``only`` those ids, output nodes or not, when given).

    Args:
        prompt: API form, validated; see `cascade_train.graph.check.validate`.
        classes: node classes by id.
        host: asked for an interrupt between nodes.
        extra_pnginfo: what saved pictures carry beside the prompt; ``{"workflow": …}`` opens in ComfyUI.
        cache: results of earlier runs in this process; updated. Without one, results are let go as soon as no
            node can need them any more.
        listener: called in this thread with every event.

    Raises:
        CascadeError: an unknown class, no output node, or inputs that the classes refuse; nothing has run.
    """
    return asyncio.run(
        run_prompt_async(
            prompt, classes, host, only=only, extra_pnginfo=extra_pnginfo, cache=cache, listener=listener
        )
    )


async def run_prompt_async(
    prompt: Prompt,
    classes: Mapping[str, type],
    host: Host,
    *,
    only: Iterable[str] = (),
    extra_pnginfo: Mapping[str, Any] | None = None,
    cache: ResultCache | None = None,
    listener: Listener = lambda event: None,
) -> Report:
    """`run_prompt` inside an event loop of the caller's (which waits while a node works)."""
    ready = await prepared(prompt, classes, only)
    needed = needed_nodes(ready.live, ready.registry, ready.roots)
    with _inference_mode([ready.registry[ready.live.get_node(n)["class_type"]].cls for n in needed]):
        run = Run(ready.live, ready.registry, host, cache, extra_pnginfo, listener)
        return await run.execute(ready.roots, needed)


@dataclass(frozen=True)
class Prepared:
    """A prompt that may run: literals brought to their types, every class known, nothing refused."""

    live: LiveGraph
    registry: Registry
    roots: list[str]


async def prepared(prompt: Prompt, classes: Mapping[str, type], only: Iterable[str] = ()) -> Prepared:
    """Check ``prompt`` against the classes; see `run_prompt` for what is raised."""
    registry = Registry(classes)
    unknown = sorted({str(n.get("class_type")) for n in prompt.values()} - set(classes))
    if unknown:
        raise CascadeError(
            f"unknown node classes: {', '.join(unknown)}",
            fix="Install the pack that has them (headless: --comfyui DIR)",
        )
    checked, refused = coerced(prompt, registry)
    names = {name: str(getattr(cls, "DISPLAY_NAME", name)) for name, cls in classes.items()}
    live = LiveGraph(checked, names)
    roots = _roots(live, registry, only)
    needed = needed_nodes(live, registry, roots)
    refused = [r for r in refused if r.node_id in needed] + await refusals(checked, registry, needed)
    if refused:
        lines = [
            f"{live.title(r.node_id)} (#{r.node_id}) {r.input}: {r.text or 'not allowed'}" for r in refused
        ]
        raise CascadeError("; ".join(lines))
    return Prepared(live, registry, roots)


def _roots(live: LiveGraph, registry: Registry, only: Iterable[str]) -> list[str]:
    chosen = list(only)
    for node_id in chosen:
        if not live.has_node(node_id):
            raise CascadeError(f"there is no node #{node_id} to run")
    if not chosen:
        chosen = [n for n, node in live.original.items() if registry[node["class_type"]].is_output]
    if not chosen:
        raise CascadeError(
            "the workflow has no output node, so there is nothing to run",
            fix="Add one that saves or shows something, such as Preview Image",
        )
    return sorted(set(chosen), key=id_order)


def needed_nodes(
    live: LiveGraph, registry: Registry, roots: Sequence[str], *, sources_first: bool = False
) -> list[str]:
    """All nodes that the roots reach, lazy inputs included: in id order, or each after its sources."""
    seen: set[str] = set()
    placed: dict[str, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node_id, sources_done = stack.pop()
        if sources_done:
            placed[node_id] = None
            continue
        if node_id in seen:
            continue
        seen.add(node_id)
        stack.append((node_id, True))
        facts = registry[live.get_node(node_id)["class_type"]]
        for name, source, _ in live.links(node_id):
            if not facts.takes_link(name):
                continue
            if not live.has_node(source):
                raise CascadeError(
                    f"{live.title(node_id)} (#{node_id}): the input '{name}' is linked to node #{source}, "
                    "which does not exist"
                )
            stack.append((source, False))
    return list(placed) if sources_first else sorted(seen, key=id_order)


def _inference_mode(classes: Sequence[type]) -> contextlib.AbstractContextManager[Any]:
    """``torch.inference_mode()`` as in ComfyUI; torch stays unimported for graphs whose classes all say
    ``USES_TORCH = False`` (texts and numbers)."""
    if "torch" not in sys.modules and not any(getattr(cls, "USES_TORCH", True) for cls in classes):
        return contextlib.nullcontext()
    try:
        import torch
    except ImportError:
        return contextlib.nullcontext()
    return torch.inference_mode()
