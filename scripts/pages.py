"""``web/docs``: the page that ComfyUI shows for each node, from its schema and the prose on its class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from scripts.contract import schemas


def prose(text: str) -> str:
    """``text`` as it stands on a class, the lines of each paragraph joined; tables and lists stay."""
    return re.sub(r"(?<!\n)\n(?![\n|]|- )", " ", inspect.cleandoc(text))


def page(schema: Mapping[str, Any], help_text: str) -> str:
    """The help page of one node, Markdown."""
    lines = [f"# {schema['display_name']}", "", schema["description"], "", prose(help_text), ""]
    lines += ["## Inputs", "", "| input | type | default | |", "|---|---|---|---|"]
    for group in ("required", "optional"):
        for entry, (kind, options) in schema["input"].get(group, {}).items():
            shown = ("choice" if isinstance(kind, list) else str(kind)) + ", optional" * (group == "optional")
            default = _cell(str(options.get("default", "")))
            default = f"`{default}`" if default else ""
            lines.append(f"| `{entry}` | {shown} | {default} | {_cell(options['tooltip'])} |")
    if schema["output"]:
        lines += ["", "## Outputs", "", "| output | type | |", "|---|---|---|"]
        for label, kind, tip in zip(schema["output_name"], schema["output"], schema["output_tooltips"]):
            lines.append(f"| `{label}` | {kind} | {tip} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def files() -> dict[str, str]:
    """The page of each node.

    Raises:
        ValueError: a node says nothing about itself.
    """
    from cascade_train.graph.core.registry import pack_nodes

    help_texts = {node.ID: getattr(node, "HELP", "").strip() for node in pack_nodes().NODES}
    if silent := [name for name, text in help_texts.items() if not text]:
        raise ValueError(f"without HELP on the class: {', '.join(silent)}")
    return {f"web/docs/{name}.md": page(schema, help_texts[name]) for name, schema in schemas().items()}
