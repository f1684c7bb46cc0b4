"""Group nodes, an old form that cannot run here, can be looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_train.cli import main


def workflow() -> dict[str, Any]:
    """A loader, a group node of two nodes, and a picture saved."""
    nodes = [
        {"id": 1, "type": "LoadImage", "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [1]}]},
        {
            "id": 2,
            "type": "workflow>Sharpen twice",
            "inputs": [{"name": "image", "type": "IMAGE", "link": 1}],
            "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [2]}],
            "widgets_values": [1, 1.0],
        },
        {"id": 3, "type": "SaveImage", "inputs": [{"name": "images", "type": "IMAGE", "link": 2}]},
    ]
    inside = {"nodes": [{"type": "ImageSharpen"}, {"type": "ImageBlur"}], "links": [[0, 0, 1, 0, "IMAGE"]]}
    return {
        "version": 0.4,
        "nodes": [
            {"pos": [0, 0], "size": [1, 1], "mode": 0, "order": n, **node} for n, node in enumerate(nodes)
        ],
        "links": [[1, 1, 0, 2, 0, "IMAGE"], [2, 2, 0, 3, 0, "IMAGE"]],
        "groups": [],
        "extra": {"groupNodes": {"Sharpen twice": inside}},
    }


def test_they_are_drawn_with_what_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(workflow()), encoding="utf-8")
    assert main(["inspect", str(file)]) == 0
    said = capsys.readouterr().out
    assert "workflow>Sharpen twice (2)  [group node]" in said
    assert "image ← Load Image (1) IMAGE" in said and "images ← workflow>Sharpen twice (2)" in said
    assert "group node: workflow>Sharpen twice holds ImageSharpen, ImageBlur; to run it, convert" in said
    assert main(["inspect", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == [["workflow>Sharpen twice", ["ImageSharpen", "ImageBlur"]]]
    assert main(["run", str(file), "--output-dir", str(tmp_path / "out")]) == 2
    assert "Convert to nodes" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [None, {"groupNodes": []}, {"groupNodes": {"Sharpen twice": {"nodes": 3}}}])
def test_a_file_that_does_not_tell_what_is_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: Any
) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**workflow(), "extra": extra}), encoding="utf-8")
    assert main(["inspect", str(file)]) == 0
    assert "holds nothing that the file tells" in capsys.readouterr().out


def test_nobody_is_told_to_look_for_a_pack_that_has_ksampler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An API prompt does not say where a class comes from."""
    prompt = {
        str(number): {"class_type": name, "inputs": {}}
        for number, name in enumerate(("KSampler", "StableCascade_EmptyLatentImage", "Nobody Knows"))
    }
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps(prompt), encoding="utf-8")
    assert main(["run", str(file), "--output-dir", str(tmp_path / "out")]) == 2
    first, second, third = capsys.readouterr().err.splitlines()[:3]
    for line in (first, second):
        assert "one of ComfyUI's own nodes" in line and "pack" not in line
    assert "Install its pack" in third
