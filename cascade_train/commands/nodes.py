"""``cascade-train nodes``: the nodes that a workflow may use here, with their inputs and outputs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

HELP = "list the nodes that can run here, with their inputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_places

    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="only nodes whose id, title or category has this in it"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object in the form of ComfyUI's /object_info"
    )
    add_places(parser)
    parser.set_defaults(object_info=None)


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.places import place_or_schemas
    from cascade_train.errors import CascadeError
    from cascade_train.graph.check.near import alternatives, nearest

    info = place_or_schemas(args)[1].schemas
    wanted = (args.name or "").casefold()
    chosen = {
        name: schema
        for name, schema in info.items()
        if any(wanted in str(text).casefold() for text in (name, schema["display_name"], schema["category"]))
    }
    if not chosen:
        near = nearest(args.name, [*info, *(schema["display_name"] for schema in info.values())])
        raise CascadeError(
            f"no node is called '{args.name}'", fix=f"Nearest: {alternatives(near)}" if near else None
        )
    if args.json:
        print(json.dumps(chosen, default=str))
        return 0
    in_full = args.name is not None
    for name, schema in sorted(chosen.items(), key=lambda item: (item[1]["category"], item[0])):
        print("\n".join(_described(name, schema, in_full)))
    return 0


def _described(name: str, schema: Mapping[str, Any], in_full: bool) -> Iterator[str]:
    from cascade_train.graph.check.schema import inputs_of

    kind = " (output)" if schema["output_node"] else ""
    yield f"{name}  '{schema['display_name']}'  {schema['category']}{kind}"
    if in_full and schema["description"]:
        yield f"    {schema['description']}"
    for entry in inputs_of(schema):
        line = f"    {entry.name}: {entry.type}"
        if entry.options.get("default") not in (None, ""):
            line += f" = {entry.options['default']}"
        line += _limits(entry) + ("" if entry.required else ", optional")
        tooltip = entry.options.get("tooltip")
        yield line + (f"\n        {tooltip}" if in_full and tooltip else "")
    outputs = [
        f"{label}: {kind}" if label != kind else str(kind)
        for label, kind in zip(schema["output_name"], schema["output"])
    ]
    if outputs:
        yield f"    → {', '.join(outputs)}"


def _limits(entry: Any) -> str:
    if entry.choices is not None:
        shown = [str(choice) for choice in entry.choices[:6]]
        return f" [{', '.join(shown)}{', …' if len(entry.choices) > 6 else ''}]"
    least, most = entry.options.get("min"), entry.options.get("max")
    if least is None and most is None:
        return ""
    return f" ({'' if least is None else least}…{'' if most is None else most})"
