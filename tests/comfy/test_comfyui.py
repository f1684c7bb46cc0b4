"""The pack in a real ComfyUI: a plain copy under an odd folder name loads, trains, stops and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image


def test_the_nodes_load_from_a_plain_copy_under_a_name_with_spaces_and_dashes(server: Any) -> None:
    import cascade_train_nodes

    known = server.get("/object_info")
    ours = {name: entry for name, entry in known.items() if name.startswith("Cascade")}
    assert set(ours) >= {node.ID for node in cascade_train_nodes.NODES}
    assert all(entry["category"].startswith("cascade") for entry in ours.values())
    assert known["KSampler"]["python_module"] == "nodes", "core's module of that name is not shadowed"


def test_comfyui_and_headless_give_the_same_weights_and_pictures(
    server: Any, graph: Any, headless: Any, tmp_path: Path
) -> None:
    run = graph.training(4, 4, seed=11)
    export = graph.add("CascadeExportRun", run=[run, 0], filename="same")
    prompts = graph.add("CascadePrompts", texts="a large red circle", pictures=1, steps_c=4, steps_b=2)
    grid = graph.add("CascadeValidate", prompts=[prompts, 0], run=[run, 0])
    graph.add("SaveImage", images=[grid, 1], filename_prefix="same")
    graph.add("PreviewAny", source=[export, 0])
    workflow = {"nodes": [], "note": "as the browser sends it"}

    queued = server.queue(graph.prompt, workflow)
    assert queued.finished()["type"] == "execution_success", queued.messages[-3:]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph.prompt), encoding="utf-8")
    done = headless("run", file, "--output-dir", "out", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    ours, theirs = tmp_path / "out", server.output
    assert (ours / "same.safetensors").read_bytes() == (theirs / "same.safetensors").read_bytes()
    with Image.open(ours / "same_00001_.png") as a, Image.open(theirs / "same_00001_.png") as b:
        assert a.tobytes() == b.tobytes()
        prompts = [json.loads(picture.info["prompt"]) for picture in (a, b)]
        assert prompts[0].keys() == prompts[1].keys() == graph.prompt.keys()
        assert json.loads(b.info["workflow"]) == workflow


def test_training_shows_progress_and_queueing_again_trains_nothing(server: Any, graph: Any) -> None:
    run = graph.training(6, seed=12)
    graph.add("PreviewAny", source=[run, 2])
    first = server.queue(graph.prompt)
    assert first.finished()["type"] == "execution_success"
    steps = [m["value"] for m in first.of_kind("progress") if m["node"] == run and m["max"] == 6]
    assert steps and steps == sorted(steps) and steps[-1] == 6
    loss = first.outputs()[max(graph.prompt, key=int)]["text"]

    server.post("/free", {"unload_models": True, "free_memory": True})  # forget ComfyUI's own cache
    again = server.queue(graph.prompt)
    assert again.finished()["type"] == "execution_success"
    assert again.outputs()[max(graph.prompt, key=int)]["text"] == loss
    assert not [m for m in again.of_kind("progress") if m["node"] == run], "nothing was trained"


def test_an_interrupted_training_goes_on_where_it_was_and_ends_the_same(
    server: Any, graph: Any, headless: Any, tmp_path: Path
) -> None:
    run = graph.training(30, seed=13)
    graph.add("CascadeExportRun", run=[run, 0], filename="stopped")
    before = set((server.output / "cascade" / "runs").glob("*"))
    queued = server.queue(graph.prompt)
    queued.wait_for(
        lambda m: m["type"] == "progress" and m["data"]["node"] == run and m["data"]["value"] >= 3)
    server.post("/interrupt", {})
    assert queued.finished(60)["type"] == "execution_interrupted"
    (folder,) = set((server.output / "cascade" / "runs").glob("*")) - before
    kept = [int(path.name.split("-")[0]) for path in (folder / "checkpoints").iterdir()]
    assert kept and 0 < max(kept) < 30, f"a checkpoint of the step it was stopped at: {kept}"

    again = server.queue(graph.prompt)
    assert again.finished()["type"] == "execution_success"
    seen = [m["value"] for m in again.of_kind("progress") if m["node"] == run]
    assert min(seen) >= max(kept), "it went on, and did not start again"
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph.prompt), encoding="utf-8")
    done = headless("run", file, "--output-dir", "out", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "stopped.safetensors").read_bytes() == (
        server.output / "stopped.safetensors").read_bytes()
