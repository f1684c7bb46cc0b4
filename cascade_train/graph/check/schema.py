"""Node schemas in the form of ComfyUI's ``/object_info``, and how to read one input's entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.file.load import parse_json

Schema = Mapping[str, Any]
"""One class's entry: input, input_order, output, output_name, output_is_list, output_node, …"""


@dataclass(frozen=True)
class Input:
    """One input of a class: ``type`` is a type name, ``"COMBO"`` for every list of choices."""

    name: str
    type: str
    required: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Any, ...] | None = None
    """The values allowed, for a combo whose list is known."""

    @property
    def default(self) -> Any:
        """What a new widget shows."""
        if "default" in self.options:
            return self.options["default"]
        if self.type == "COMBO":
            return self.choices[0] if self.choices else None
        return {"INT": 0, "FLOAT": 0, "BOOLEAN": False, "STRING": ""}.get(self.type)


def read_input(name: str, entry: Any, required: bool) -> Input:
    """An input's ``/object_info`` entry (``[type]`` or ``[type, options]``) as an `Input`."""
    parts = entry if isinstance(entry, (list, tuple)) else [entry]
    kind = parts[0] if parts else "*"
    options = parts[1] if len(parts) > 1 and isinstance(parts[1], Mapping) else {}
    if isinstance(kind, (list, tuple)):
        return Input(name, "COMBO", required, options, tuple(kind))
    choices = None
    if kind == "COMBO" and isinstance(options.get("options"), (list, tuple)):
        choices = tuple(options["options"])
    return Input(name, str(kind), required, options, choices)


class ReadSchema(dict[str, Any]):
    """A class's entry whose inputs are read once, however often they are asked for."""

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(_read_inputs(self))


def inputs_of(schema: Schema) -> Sequence[Input]:
    """Inputs in the order of their sockets and widgets: required, optional (each by ``input_order``).

    Hidden inputs are left out.
    """
    return schema.inputs if isinstance(schema, ReadSchema) else tuple(_read_inputs(schema))


def _read_inputs(schema: Schema) -> Iterator[Input]:
    groups = schema.get("input") or {}
    orders = schema.get("input_order") or {}
    for group in ("required", "optional"):
        entries = groups.get(group) or {}
        order = [name for name in orders.get(group) or () if name in entries]
        listed = set(order)
        order += [name for name in entries if name not in listed]
        for name in order:
            yield read_input(name, entries[name], group == "required")


def read_object_info(path: Path) -> dict[str, Schema]:
    """The schemas in a file saved from ComfyUI's ``/object_info``.

    Raises:
        CascadeError: it cannot be read or is something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise CascadeError(f"the schemas cannot be read: {error}", where=str(path)) from None
    value = parse_json(text, str(path))
    if not isinstance(value, dict) or not all(_is_schema(entry) for entry in value.values()):
        raise CascadeError(
            "this is no /object_info: each class needs an object 'input' of objects",
            where=str(path),
            fix="Save http://127.0.0.1:8188/object_info of a running ComfyUI",
        )
    return value


def _is_schema(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("input"), dict)
        and all(isinstance(group, dict) for group in entry["input"].values())
        and isinstance(entry.get("input_order", {}), dict)
    )
