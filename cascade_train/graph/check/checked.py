"""The one way from a workflow to something that may run: `checked` gives that, or all that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.graph.check.classes import Classes
from cascade_train.graph.check.overrides import apply_settings, find_node
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.check.reach import Reached, reached
from cascade_train.graph.check.refused import in_their_types, refusals
from cascade_train.graph.check.validate import (
    NO_OUTPUT,
    circle_problems,
    input_problems,
    shape_problems,
    unknown_problems,
)
from cascade_train.graph.file.api import Prompt, id_order, is_node, with_text_ids
from cascade_train.graph.file.convert import to_prompt, unknown_classes
from cascade_train.graph.file.load import is_ui
from cascade_train.host.base import Host


@dataclass(frozen=True)
class Checked:
    """A prompt that may run; what executes it or foresees it asks the classes nothing again.

    ``prompt`` is the whole of it, literals brought to their input's type; ``roots`` are the nodes to run
    (outputs, or those asked for), by id; ``needed`` all that they need and themselves, each after those that
    feed it.
    """

    prompt: Prompt
    classes: Classes
    roots: tuple[str, ...]
    needed: tuple[str, ...]


@dataclass(frozen=True)
class Wrong:
    """A prompt that must not run, and everything that is wrong with it."""

    prompt: Prompt
    problems: tuple[Problem, ...]


def checked(
    workflow: Any,
    classes: Classes,
    host: Host | None,
    *,
    settings: Sequence[str] = (),
    only: Iterable[str] = (),
) -> Checked | Wrong:
    """What would run of a UI workflow or API prompt, checked against the classes and by them.

    Only nodes that would run are checked; unknown classes are named wherever they are, unless ``only`` says
    what to run. Each needed node's ``VALIDATE_INPUTS`` is asked once, if nothing else is wrong with it.

    Args:
        workflow: the parsed JSON.
        classes: the classes that can run here; with schemas alone nothing is asked of them.
        host: whose folders files are looked for in; None skips the check of files.
        settings: ``node.input=value`` changes made first; see `apply_settings`.
        only: titles or ids of the nodes to run, outputs or not; all outputs when empty.

    Raises:
        CascadeError: the file is too damaged to be converted, or a setting or name fits nothing.
    """
    nodes, found = _nodes(workflow, classes)
    nodes = apply_settings(nodes, settings, classes.schemas)
    chosen = {find_node(nodes, name) for name in only}
    roots = sorted(chosen or _outputs(nodes, classes), key=id_order)
    reach = reached(nodes, roots, classes.takes)
    unknown = _unknown(workflow, nodes, classes, reach.order if chosen else nodes)
    if not roots and not unknown and not found:
        return Wrong(nodes, (NO_OUTPUT,))
    found += [*unknown, *_inside(nodes, classes, reach, host)]
    sound = set(reach.order) - {problem.node for problem in found}
    typed, more = in_their_types(nodes, classes, sound)
    found += more
    found += refusals(nodes, typed, classes, sound - {problem.node for problem in more})
    return Wrong(nodes, tuple(found)) if found else Checked(typed, classes, tuple(roots), reach.order)


def _nodes(workflow: Any, classes: Classes) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """The prompt's nodes, and a problem for each of its entries that is none."""
    if is_ui(workflow) or not isinstance(workflow, Mapping):
        return to_prompt(workflow, classes.schemas), []
    sound = {key: node for key, node in workflow.items() if is_node(node)}
    return with_text_ids(sound), list(shape_problems({str(key): node for key, node in workflow.items()}))


def _outputs(nodes: Prompt, classes: Classes) -> set[str]:
    return {
        key
        for key, node in nodes.items()
        if node["class_type"] in classes and classes[node["class_type"]].is_output
    }


def _unknown(workflow: Any, nodes: Prompt, classes: Classes, among: Collection[str]) -> list[Problem]:
    if all(nodes[key]["class_type"] in classes for key in among):
        return []
    told = unknown_classes(workflow, classes.schemas) if is_ui(workflow) else ()
    return list(unknown_problems(nodes, classes, among, {name: pack for name, pack, _ in told}))


def _inside(nodes: Prompt, classes: Classes, reach: Reached, host: Host | None) -> list[Problem]:
    needed = set(reach.order)
    return [*input_problems(nodes, classes, needed, host), *circle_problems(nodes, reach)]
