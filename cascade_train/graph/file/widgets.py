"""Which widgets a node has, and which saved value belongs to which.

A saved node keeps its widgets' values by position. A widget takes a slot when the frontend stores it, also
when it is never sent (the choice beside a seed, an upload button), so the slots have to be counted exactly
as the frontend creates them. Newer files keep the names too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.graph.check.schema import Input, Schema, inputs_of
from cascade_train.graph.file.document import Node

WIDGET_TYPES = frozenset(
    {
        "INT",
        "FLOAT",
        "STRING",
        "BOOLEAN",
        "COMBO",
        "MARKDOWN",
        "COLOR",
        "COLORS",
        "TEXTAREA",
        "CHART",
        "GALLERIA",
        "IMAGECOMPARE",
        "BOUNDING_BOX",
        "BOUNDING_BOXES",
        "CURVE",
        "RANGE",
        "PAINTER",
        "COMPOSITOR",
        "VIDEO_EDIT",
        "RESOLUTION_PREVIEW",
        "LIGHT_INFO_PREVIEW",
        "IMAGEUPLOAD",
        "AUDIOUPLOAD",
        "AUDIO_UI",
        "AUDIO_RECORD",
        "WEBCAM",
        "LOAD_3D",
        "LOAD_3D_ANIMATION",
        "PREVIEW_3D",
        "PREVIEW_3D_ANIMATION",
        "FILEUPLOAD",
        "SELECTBUTTON",
        "MULTISELECT",
        "TREESELECT",
    }
)
"""Input types for which the frontend makes a widget."""

DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
AUTOGROW = "COMFY_AUTOGROW_V3"
MATCH_TYPE = "COMFY_MATCHTYPE_V3"

NOT_SENT = frozenset(
    {"AUDIO_UI", "IMAGECOMPARE", "LIGHT_INFO_PREVIEW", "RESOLUTION_PREVIEW", "IMAGEUPLOAD", "AUDIOUPLOAD"}
)
"""Widgets that only show something, or are a button."""

BUTTONS_BEFORE = {"LOAD_3D": 3}

NOT_STORED = frozenset({"AUDIO_UI"})

VIEWERS_3D = frozenset({"SaveGLB", "Preview3D"})
"""Classes of ComfyUI to which the frontend adds a viewer, a widget ``image`` that is sent empty."""

UPLOADS = ("image_upload", "video_upload", "animated_image_upload")
SEED_NAMES = ("seed", "noise_seed")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""No value was saved; a saved null is None."""


@dataclass(frozen=True)
class Widget:
    """One widget in creation order."""

    input: Input
    sent: bool = True
    stored: bool = True
    extra_slots: int = 0
    """Stored widgets that follow it and are never sent."""
    slots_before: int = 0
    """Stored buttons in front of it."""

    @property
    def name(self) -> str:
        return self.input.name


def is_widget(entry: Input) -> bool:
    """Whether the frontend makes a widget for this input."""
    return _type(entry) in WIDGET_TYPES | {DYNAMIC_COMBO} and not entry.options.get("forceInput")


def _type(entry: Input) -> str:
    return str(entry.options.get("widgetType") or entry.type)


def has_control(entry: Input) -> bool:
    """Whether the widget gets a choice of what to do with its value after queueing."""
    flag = entry.options.get("control_after_generate")
    if _type(entry) == "INT":
        return bool(flag) if flag is not None else entry.name in SEED_NAMES
    return _type(entry) in ("FLOAT", "COMBO") and bool(flag)


def _widget(entry: Input) -> Widget:
    extra = 0
    if has_control(entry):
        extra = 2 if _type(entry) == "COMBO" else 1
    remote = entry.options.get("remote")
    if isinstance(remote, Mapping):
        extra += bool(remote.get("refresh_button")) + bool(remote.get("control_after_refresh"))
    kind = _type(entry)
    return Widget(
        entry,
        sent=kind not in NOT_SENT,
        stored=kind not in NOT_STORED,
        extra_slots=extra,
        slots_before=BUTTONS_BEFORE.get(kind, 0),
    )


def entries_of(schema: Schema) -> list[Input]:
    """A class's inputs as the frontend sees them: declared ones, then those that it adds itself."""
    entries = list(inputs_of(schema))
    if schema.get("name") in VIEWERS_3D and not any(entry.name == "image" for entry in entries):
        entries.append(Input("image", "PREVIEW_3D", True, {"default": ""}))
    for entry in entries:
        if entry.required and entry.options.get("audio_upload"):
            entries += [Input("audioUI", "AUDIO_UI", False), Input("upload", "AUDIOUPLOAD", False)]
            break
        if entry.required and any(entry.options.get(flag) for flag in UPLOADS):
            entries.append(Input("upload", "IMAGEUPLOAD", False))
            break
    return entries


def choice_inputs(entry: Input, choice: Any) -> list[Input]:
    """The inputs that a dynamic combo adds while ``choice`` is chosen, named ``combo.input``."""
    options = entry.options.get("options")
    for option in options if isinstance(options, (list, tuple)) else ():
        if isinstance(option, Mapping) and option.get("key") == choice:
            inner: Schema = {"input": option.get("inputs") or {}}
            return [_renamed(found, f"{entry.name}.{found.name}") for found in inputs_of(inner)]
    return []


def _renamed(entry: Input, name: str) -> Input:
    return Input(name, entry.type, entry.required, entry.options, entry.choices)


def first_choice(entry: Input) -> Any:
    """What a dynamic combo shows when new."""
    options = entry.options.get("options")
    first = options[0] if isinstance(options, (list, tuple)) and options else None
    return entry.options.get("default", first.get("key") if isinstance(first, Mapping) else None)


def grown_inputs(entry: Input, names: Sequence[str]) -> list[Input]:
    """The inputs that a growing list of inputs has in a node whose inputs are called ``names``."""
    template = entry.options.get("template")
    inner = template.get("input") if isinstance(template, Mapping) else None
    found = next(iter(inputs_of({"input": inner})), None) if isinstance(inner, Mapping) else None
    if found is None:
        return []
    prefix = f"{entry.name}."
    return [_renamed(found, name) for name in names if name.startswith(prefix)]


class _Values:
    """The saved values of one node, handed out in the order of its widgets."""

    def __init__(self, node: Node, entries: list[Input]) -> None:
        self.by_name: Mapping[str, Any] | None = None
        self.slots: Sequence[Any] = ()
        self.at = 0
        if isinstance(node.values, Mapping):
            self.by_name = node.values
        elif node.named is not None and len(node.named) == len(node.values):
            self.by_name = node.named
        else:
            self.slots = _without_dummies(node.values, entries)

    def take(self, widget: Widget) -> Any:
        if self.by_name is not None:
            return self.by_name.get(widget.name, MISSING)
        if not widget.stored:
            return MISSING
        self.at += widget.slots_before
        value = self.slots[self.at] if self.at < len(self.slots) else MISSING
        self.at += 1 + widget.extra_slots
        return value


def _without_dummies(values: Sequence[Any], entries: list[Input]) -> Sequence[Any]:
    """Drop the values that files from before frontend 1.16 hold for inputs with ``forceInput``.

    They are there when the count says so: one slot for each widget and each such input, one more for a
    control_after_generate.
    """
    dummies: list[bool] = []
    for entry in entries:
        forced = bool(entry.options.get("forceInput"))
        if forced or is_widget(entry):
            dummies.append(forced)
            if entry.options.get("control_after_generate"):
                dummies.append(False)
    if not any(dummies) or len(dummies) != len(values):
        return values
    return [value for value, dummy in zip(values, dummies) if not dummy]


def read_widgets(schema: Schema, node: Node) -> Iterator[tuple[Widget, Any]]:
    """Each widget of ``node`` in creation order with its saved value, or the default when none was saved."""
    entries = entries_of(schema)
    values = _Values(node, entries)
    names = [slot.name for slot in node.inputs]
    pending = list(reversed(entries))
    while pending:
        entry = pending.pop()
        if entry.type == AUTOGROW:
            pending += reversed(grown_inputs(entry, names))
            continue
        if not is_widget(entry):
            continue
        widget = _widget(entry)
        value = values.take(widget)
        if entry.type == DYNAMIC_COMBO:
            value = first_choice(entry) if value is MISSING else value
            yield widget, value
            pending += reversed(_in_saved_order(choice_inputs(entry, value), names))
        else:
            if value is MISSING and entry.default is not None:
                value = entry.default
            yield widget, value


def _in_saved_order(entries: list[Input], names: Sequence[str]) -> list[Input]:
    """``entries`` as the saved node lists them: a JSON writer that sorts has lost the schema's order."""
    place = {name: i for i, name in enumerate(names)}
    return sorted(entries, key=lambda entry: place.get(entry.name, len(place)))


def typed_in(entry: Input, value: Any) -> Any:
    """What a widget makes of a number typed into it, or written by a primitive: rounded to its step.

    Values from a file are taken as they are.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return value
    if _type(entry) == "INT":
        step = _positive(entry.options.get("step"), 1)
        rest = 0 if step == 1 else math.fmod(_number(entry.options.get("min"), 0), step)
        return _plain(math.floor((value - rest) / step + 0.5) * step + rest)
    if _type(entry) != "FLOAT":
        return value
    digits = max(0, -math.floor(math.log10(_positive(entry.options.get("step"), 0.5))))
    unit = entry.options.get("round") or (10.0**-digits if digits else None)
    if not isinstance(unit, (int, float)) or isinstance(unit, bool) or unit <= 0:
        return value
    rounded = _plain(round(math.floor(value / unit + 0.5) * unit, digits))
    return min(max(rounded, _number(entry.options.get("min"), 0)), _number(entry.options.get("max"), 2048))


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _positive(value: Any, default: float) -> float:
    number = _number(value, default)
    return number if number > 0 and math.isfinite(number) else default


def _plain(value: float) -> float:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def sent_values(schema: Schema, node: Node) -> dict[str, Any]:
    """The values of ``node``'s widgets in a prompt, by input name; one with no value at all is left out."""
    return {
        widget.name: value
        for widget, value in read_widgets(schema, node)
        if widget.sent and value is not MISSING
    }


def sockets(schema: Schema, node: Node) -> list[Input]:
    """Every input that a wire may go into, in the frontend's order: plain sockets, then widgets' sockets."""
    names = [slot.name for slot in node.inputs]
    plain: list[Input] = []
    widgets: list[Input] = []
    for entry in inputs_of(schema):
        if entry.type == AUTOGROW:
            plain += grown_inputs(entry, names)
        elif not is_widget(entry):
            plain.append(entry)
        else:
            if not entry.options.get("socketless"):
                widgets.append(entry)
            if entry.type == DYNAMIC_COMBO:
                value = next((v for w, v in read_widgets(schema, node) if w.name == entry.name), None)
                for inner in choice_inputs(entry, value):
                    (widgets if is_widget(inner) else plain).append(inner)
    return plain + widgets


def reads(schema: Schema, name: str) -> Input | None:
    """The declared input called ``name``, or the one that a dynamic input would make under that name."""
    for entry in inputs_of(schema):
        if entry.name == name:
            return entry
        if name.startswith(f"{entry.name}."):
            found = _inside(entry, name)
            if found is not None:
                return found
    return None


def _inside(entry: Input, name: str) -> Input | None:
    if entry.type == AUTOGROW:
        grown = grown_inputs(entry, [name])
        return grown[0] if grown else None
    if entry.type != DYNAMIC_COMBO:
        return None
    for option in entry.options.get("options") or ():
        key = option.get("key") if isinstance(option, Mapping) else None
        for inner in choice_inputs(entry, key):
            if inner.name == name:
                return inner
            if name.startswith(f"{inner.name}."):
                found = _inside(inner, name)
                if found is not None:
                    return found
    return None
