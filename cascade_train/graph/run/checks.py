"""What only the classes can say about a prompt: values brought to their type, and VALIDATE_INPUTS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.graph.run.classes import ClassFacts, Registry
from cascade_train.graph.run.inputs import call_over_lists, gather, settled, unwrapped
from cascade_train.graph.run.prompt import Prompt, is_link
from cascade_train.host.blocker import is_blocker


@dataclass(frozen=True)
class Refusal:
    """A node that will not run with these inputs. ``input`` is empty when the hook names none."""

    node_id: str
    input: str
    text: str


def coerced(prompt: Prompt, registry: Registry) -> tuple[dict[str, dict[str, Any]], list[Refusal]]:
    """A copy of the prompt whose literals have their input's type (``"3"`` -> 3 for an INT).

    Unknown classes are left as they are; literals that cannot be converted are refused.
    """
    out: dict[str, dict[str, Any]] = {}
    refused: list[Refusal] = []
    for node_id, node in prompt.items():
        copy = out[node_id] = dict(node)
        inputs = copy["inputs"] = dict(node.get("inputs", {}))
        if copy.get("class_type") not in registry:
            continue
        facts = registry[copy["class_type"]]
        for name, value in inputs.items():
            if _is_numbered_link(value, prompt):
                inputs[name] = value = [str(value[0]), value[1]]
            entry = facts.declared(name)
            if entry is None or is_link(value):
                continue
            try:
                inputs[name] = _to_type(entry[0], value)
            except (TypeError, ValueError, OverflowError):
                refused.append(Refusal(node_id, name, f"{value!r} is not {_ARTICLES[entry[0]]}"))
    return out, refused


def _is_numbered_link(value: Any, prompt: Prompt) -> bool:
    """Scripts write ids as numbers: ``[4, 0]``."""
    return isinstance(value, list) and len(value) == 2 and type(value[0]) is int and str(value[0]) in prompt


_TYPES: dict[str, type] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}
_ARTICLES = {"INT": "a whole number", "FLOAT": "a number", "STRING": "a text", "BOOLEAN": "true or false"}


def _to_type(kind: Any, value: Any) -> Any:
    target = _TYPES.get(kind) if isinstance(kind, str) else None
    if target is None:
        return value
    plain = unwrapped(value)
    return plain if type(plain) is target else target(plain)


async def refusals(prompt: Prompt, registry: Registry, node_ids: Iterable[str]) -> list[Refusal]:
    """Ask each node's VALIDATE_INPUTS. Linked inputs reach it as None, their types as ``input_types``."""
    found: list[Refusal] = []
    for node_id in node_ids:
        node = prompt[node_id]
        facts = registry[node["class_type"]]
        names, any_name = facts.validator_arguments
        if facts.validator is None or not (names or any_name):
            continue
        got = gather(facts, node.get("inputs", {}), {"UNIQUE_ID": node_id, "PROMPT": {}}, lambda source: None)
        columns = {name: column for name, column in got.columns.items() if any_name or name in names}
        if "input_types" in names:
            columns["input_types"] = (_linked_types(prompt, registry, node),)
        try:
            hook = facts.bind(facts.cls, facts.validator, got.hidden)
            answers = await settled(await call_over_lists(facts, hook, columns))
        except Exception as error:
            found.append(Refusal(node_id, "", f"its check of the inputs failed: {error}"))
            continue
        asked = [name for name in columns if name != "input_types"]
        for answer in answers:
            if answer is not True and not is_blocker(answer):
                found.append(Refusal(node_id, *_blamed(asked, "" if answer is False else str(answer))))
    return found


def _blamed(asked: Sequence[str], answer: str) -> tuple[str, str]:
    """The input that an answer ``input: what is wrong`` names (else all that were asked), and the rest."""
    name, colon, text = answer.partition(": ")
    return (name, text) if colon and name in asked else (", ".join(asked), answer)


def _linked_types(prompt: Prompt, registry: Registry, node: Mapping[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for name, value in node.get("inputs", {}).items():
        if not is_link(value) or value[0] not in prompt:
            continue
        source: ClassFacts = registry[prompt[value[0]]["class_type"]]
        slot = int(value[1])
        if 0 <= slot < len(source.return_types):
            types[name] = source.return_types[slot]
    return types
