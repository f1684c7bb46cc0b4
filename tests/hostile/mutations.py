"""A program: shipped workflows, changed at random from fixed seeds, through the checks that `validate` makes,
or through a run of cheap nodes.

    python mutations.py check|run FIRST COUNT FOLDER

Prints one JSON object: how many were right, wrong, refused; a line beginning with "FAULT" for each mutation
that ended in anything but that. The same numbers give the same mutations everywhere.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cascade_train.errors import CascadeError  # noqa: E402

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 64, 10**30, -(10**30), 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(
        "",
        " ",
        "x",
        "猫",
        "\x00",
        "\x1b[2J",
        "\ud800",
        "../../etc/passwd",
        "/etc/passwd",
        "bundled/",
        "C:\\x",
        "%date:%",
    ),
    *(
        "{a|b}",
        "/*" * 50,
        "s3:x/../y",
        "http://127.0.0.1/x.tar",
        "{0..9}{0..9}.tar",
        "a" * 3000,
        "[x, 'lambda s: s']",
    ),
    *(
        "round(1, -9999999)",
        "*",
        "-1",
        "1e9",
        "0x10",
        "nan",
        "true",
        "workflow>x",
        "workflow/x",
        "Reroute",
        "SetNode",
    ),
    *(
        "GetNode",
        "PrimitiveNode",
        [],
        {},
        [[]],
        [None],
        {"a": {}},
        ["1", 0],
        ["1", -1],
        [1, 0],
        {"__value__": [1]},
    ),
    *([["1", 0]], [0, 0, 0, 0, 0, "*"], {"nodes": []}),
]
SMALL: list[Any] = [value for value in VALUES if not (isinstance(value, (int, float)) and abs(value) > 64)]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of ``value`` but the whole."""
    found, pending = [], [(value, at)]
    while pending:
        one, path = pending.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in items:
            found.append((*path, key))
            pending.append((inner, (*path, key)))
    return found


def part(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutated(
    whole: Any, paths: list[tuple[Any, ...]], draw: random.Random, values: list[Any], most: int
) -> Any:
    """A copy of ``whole`` with up to ``most`` parts replaced, removed, repeated, exchanged or renamed."""
    changed = copy.deepcopy(whole)
    for _ in range(draw.randint(1, most)):
        try:
            *above, key = draw.choice(paths)
            owner = part(changed, tuple(above))
            kind = draw.randrange(6)
            if kind <= 2:
                owner[key] = copy.deepcopy(draw.choice(values))
            elif kind == 3:
                del owner[key]
            elif kind == 4:
                owner[key] = copy.deepcopy(part(whole, draw.choice(paths)))
            elif isinstance(owner, list):
                owner.insert(key, copy.deepcopy(owner[key]))
            elif isinstance(owner, dict):
                owner[draw.choice(["id", "x", "", str(draw.randrange(20))])] = owner.pop(key)
        except (KeyError, IndexError, TypeError, ValueError):  # an earlier change took it away
            continue
    return changed


def cheap() -> dict[str, Any]:
    """A prompt of nodes that cost nothing: texts, numbers, small pictures, descriptions of trainings."""

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs, "_meta": {"title": kind}}

    more = {"on_bad": "skip", "max_bad": 0.5, "background": "white"}
    keep = {"duplicates": "keep", "near_distance": 3}
    return {
        "1": node("PrimitiveInt", value=8),
        "2": node("EmptyImage", width=["1", 0], height=["1", 0], batch_size=2, color=255),
        "3": node("ImageBatch", image1=["2", 0], image2=["2", 0]),
        "4": node("SaveImage", images=["3", 0], filename_prefix="a/b"),
        "5": node("PrimitiveStringMultiline", value="red circle\nblue star"),
        "6": node("PreviewAny", source=["5", 0]),
        "7": node("CascadeImageFolder", path="bundled/crescent", recursive=True, **more),
        "8": node("CascadeFilterSamples", dataset=["7", 0], filters="width >= 8", **keep),
        "9": node("PreviewAny", source=["8", 0]),
        "10": node("ImageScale", image=["2", 0], upscale_method="area", width=4, height=4, crop="disabled"),
        "11": node("PreviewImage", images=["10", 0]),
    }


def outcome(judge: Callable[[Any], str], workflow: Any) -> str:
    try:
        return judge(workflow)
    except CascadeError as error:
        assert str(error).isprintable(), str(error)
        return "refused"


def main(what: str, first: int, count: int, folder: Path) -> int:
    from cascade_train.graph.check.checked import Wrong, checked
    from cascade_train.graph.check.classes import Classes
    from cascade_train.graph.core.registry import node_classes
    from cascade_train.graph.file.convert import to_prompt
    from cascade_train.graph.file.load import parse_json, workflow_in
    from cascade_train.host.headless import HeadlessHost, headless_folders

    (folder / "in").mkdir(parents=True, exist_ok=True)
    host = HeadlessHost(headless_folders(folder / "out", folder / "in"), "cpu")
    classes = Classes(node_classes(host))

    def judge(workflow: Any) -> str:
        text = json.dumps(workflow)
        found = checked(workflow_in(parse_json(text, "a file"), "a file"), classes, host)
        if isinstance(found, Wrong):
            for problem in found.problems:
                assert str(problem).isprintable(), str(problem)
                json.dumps(problem.as_json())
            return "wrong"
        if what == "run":
            from cascade_train.graph.run.loop import execute

            report = execute(found, host)
            for node in report.nodes:
                assert not node.trace, f"{node.name()}: {node.trace}"
            return "ran" if report.ok else "failed"
        return "right"

    files = sorted((ROOT / "workflows").rglob("*.json")) if what == "check" else []
    graphs = [json.loads(file.read_text(encoding="utf-8")) for file in files] or [cheap()]
    graphs += [to_prompt(graph, classes.schemas) for graph in graphs if "nodes" in graph]
    paths = [places(graph) for graph in graphs]
    typed = [[path for path in each if {"widgets_values", "inputs"} & set(path[:-1])] for each in paths]
    told: Counter[str] = Counter()
    for seed in range(first, first + count):
        draw = random.Random(seed)
        at = draw.randrange(len(graphs))
        where = draw.choice([paths[at], typed[at]])
        values, most = (VALUES, 4) if what == "check" else (SMALL, 1)
        changed = mutated(graphs[at], where, draw, values, most)
        try:
            told[outcome(judge, changed)] += 1
        except Exception:
            told["fault"] += 1
            print(f"FAULT {what} {seed}: {traceback.format_exc()}", file=sys.stderr)
    print(json.dumps(told))
    return 1 if told["fault"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
