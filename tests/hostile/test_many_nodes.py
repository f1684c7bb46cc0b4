"""Thousands of nodes, right and wrong: every way to be wrong costs work that grows with the file alone, and a
person reads twenty lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade_train.cli import main

N = 5_000
Make = Callable[[int], dict[str, Any]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def api(make: Make, sink: Make | None = None) -> dict[str, Any]:
    prompt = {str(i): make(i) for i in range(1, N + 1)}
    return {**prompt, **({f"s{i}": sink(i) for i in range(1, N + 1)} if sink else {})}


def ui(make: Make, links: list[list[Any]]) -> dict[str, Any]:
    return {"nodes": [{"id": i, **make(i)} for i in range(1, N + 1)], "links": links}


def shown(i: int) -> dict[str, Any]:
    return node("PreviewAny", source=[str(i), 0])


GRAPHS: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "unknown classes": (lambda: api(lambda i: node(f"CascadeImageFoldr{i}")), N),
    "missing inputs": (lambda: api(lambda i: node("SaveImage")), 2 * N),
    "wires to nowhere": (lambda: api(lambda i: node("PreviewAny", source=["q", 0])), N),
    "pictures that are not there": (lambda: api(lambda i: node("LoadImage", image=f"no{i}.png"), shown), N),
    "choices that are none": (
        lambda: api(lambda i: node("EmptyImage", width=8, height=8, batch_size=-i, color=0), shown),
        N,
    ),
    "primitives wired to each other": (
        lambda: ui(
            lambda i: {"type": "PrimitiveNode", "widgets_values": [i]},
            [[i, i, 0, i % N + 1, 0, "INT"] for i in range(1, N)],
        ),
        1,
    ),
    "names that are looked up": (
        lambda: ui(
            lambda i: {"type": "SaveImage", "title": f"t{i}", "widgets_values": ["%a.b%%c.d%" * 10]}, []
        ),
        N,
    ),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_list_of_problems_is_cut_and_counted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, count = GRAPHS[kind]
    (tmp_path / "in").mkdir()
    (tmp_path / "g.json").write_text(json.dumps(make()), encoding="utf-8")
    assert main(["validate", "g.json", "--input-dir", "in"]) == 2
    lines = capsys.readouterr().out.splitlines()
    if count > 1:
        assert len(lines) == 22 and lines[20].startswith(f"… and {count - 20} more problems")
    assert lines[-1].endswith(f" {count} problem{'s' if count > 1 else ''}")
    if kind == "unknown classes":
        assert main(["run", "g.json", "--input-dir", "in"]) == 2
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 22 and f"{count} problems; nothing ran" in told[-1]
        assert main(["validate", "g.json", "--input-dir", "in", "--json"]) == 2
        assert len(json.loads(capsys.readouterr().out)["problems"]) == count


def test_a_long_chain_is_right(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    chain = api(
        lambda i: (
            node("ImageBatch", image1=[str(i - 1), 0], image2=[str(max(1, i - 2)), 0])
            if i > 1
            else node("EmptyImage", width=8, height=8, batch_size=1, color=0)
        )
    )
    chain["s"] = node("PreviewImage", images=[str(N), 0])
    (tmp_path / "g.json").write_text(json.dumps(chain), encoding="utf-8")
    code = main(["validate", "g.json"])
    assert code == 0, capsys.readouterr().out
