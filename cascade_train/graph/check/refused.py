"""What the classes' own ``VALIDATE_INPUTS`` say against a prompt that fits the schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from cascade_train.graph.check.overrides import title_of
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.check.reach import needed
from cascade_train.graph.check.validate import is_node
from cascade_train.graph.run.checks import coerced, refusals
from cascade_train.graph.run.classes import Registry


def refused(
    prompt: Mapping[str, Mapping[str, Any]], classes: Mapping[str, type], wrong: Collection[str] = ()
) -> list[Problem]:
    """The problems that the classes find, of the nodes that an output needs, but for those in ``wrong``,
    which have been found to be wrong already."""
    registry = Registry(classes)
    known = {key: node for key, node in prompt.items() if is_node(node) and node["class_type"] in classes}
    wanted = needed(known, [key for key, node in known.items() if registry[node["class_type"]].is_output])
    checked, _ = coerced(known, registry)
    asked = [key for key in known if key in wanted and key not in wrong]
    found = []
    for one in asyncio.run(refusals(checked, registry, asked)):
        node = known[one.node_id]
        found.append(
            Problem(
                what=f"is refused: {one.text.rstrip('. ')}" if one.text else "is refused by the node",
                node=one.node_id,
                title=title_of(node),
                input=one.input or "its input",
                value=node["inputs"].get(one.input),
                class_type=node["class_type"],
                kind="refused",
            )
        )
    return found
