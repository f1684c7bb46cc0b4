"""``tests/nodes/contract.json``: what saved workflows rely on. It may grow, and nothing in it may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "tests/nodes/contract.json"
ROOT = Path(__file__).resolve().parent.parent

Contract = Mapping[str, Mapping[str, Any]]
"""Of each node its inputs in order with types and choices, and its outputs."""


def schemas() -> dict[str, Mapping[str, Any]]:
    """The schema of each node of this pack, by id."""
    from cascade_train.graph.check.classes import object_info
    from cascade_train.graph.core.registry import pack_nodes
    from cascade_train.host.headless import HeadlessHost, headless_folders

    host = HeadlessHost(headless_folders(Path("output")))
    return object_info(pack_nodes().build_mappings(host)[0])


def contract_of(nodes: Mapping[str, Mapping[str, Any]]) -> Contract:
    """Of each schema what a saved workflow names."""
    out = {}
    for name, schema in nodes.items():
        inputs = {}
        for group in ("required", "optional"):
            for entry, (kind, *_options) in schema["input"].get(group, {}).items():
                inputs[entry] = ["COMBO", *kind] if isinstance(kind, list) else kind
        outputs = [list(pair) for pair in zip(schema["output_name"], schema["output"])]
        out[name] = {"inputs": inputs, "outputs": outputs}
    return out


def shipped() -> Contract:
    """The contract as it was written last."""
    return json.loads((ROOT / FILE).read_text(encoding="utf-8"))


def broken(before: Contract, now: Contract) -> list[str]:
    """What ``now`` takes away from ``before``, one line each; appending breaks nothing."""
    lines = []
    for name, node in before.items():
        if name not in now:
            lines.append(f"{name} is gone: workflows that use it no longer open")
            continue
        old, new = node["inputs"], now[name]["inputs"]
        if list(new)[: len(old)] != list(old):
            lines.append(f"{name}: inputs may only be appended; they were {', '.join(old)}")
            continue
        for entry, kind in old.items():
            if isinstance(kind, list) and isinstance(new[entry], list):
                if [choice for choice in new[entry] if choice in kind] != kind:
                    lines.append(f"{name}.{entry}: choices may only be appended; they were {kind[1:]}")
            elif new[entry] != kind:
                lines.append(f"{name}.{entry} was {kind if isinstance(kind, str) else 'a list of choices'}")
        outputs = node["outputs"]
        if now[name]["outputs"][: len(outputs)] != outputs:
            lines.append(f"{name}: outputs may only be appended; they were {outputs}")
    return lines


def files() -> dict[str, str]:
    """The contract of the nodes as they are.

    Raises:
        ValueError: it would take something away from what was shipped; the text says what.
    """
    now = contract_of(schemas())
    if lines := broken(shipped(), now):
        raise ValueError("saved workflows would lose their meaning:\n  " + "\n  ".join(lines))
    return {FILE: json.dumps(now, indent=1, ensure_ascii=False) + "\n"}
