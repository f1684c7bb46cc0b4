"""The pack in a real ComfyUI: a plain copy under an odd folder name loads, trains, stops and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file


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


def test_core_takes_the_lora_from_the_link_as_it_is_in_the_file(server: Any, graph: Any) -> None:
    saver = next((name for name in ("SaveLoRA", "SaveLoRANode") if server.get(f"/object_info/{name}")), None)
    if saver is None:
        pytest.skip("this ComfyUI has no LoRAs on links: set COMFYUI_PATH to 0.3.48 or later")
    run = graph.training(2, seed=21)
    export = graph.add("CascadeExportRun", run=[run, 0], filename="loras/linked", precision="fp32")
    graph.add(saver, lora=[export, 1], prefix="loras/saved")
    queued = server.queue(graph.prompt)
    assert queued.finished()["type"] == "execution_success", queued.messages[-3:]
    folder = server.output / "loras"
    (saved,) = folder.glob("saved*.safetensors")
    by_link, by_file = load_file(saved), load_file(folder / "linked.safetensors")
    assert by_link.keys() == by_file.keys()
    assert all(torch.equal(by_link[key], by_file[key]) for key in by_file)
    loaders = server.get("/object_info/LoraLoader")["LoraLoader"]["input"]["required"]["lora_name"][0]
    assert "linked.safetensors" in loaders, "and core's Load LoRA lists the file where it is"


def test_training_shows_progress_and_queueing_again_trains_nothing(server: Any, graph: Any) -> None:
    run = graph.training(6, seed=12)
    graph.add("PreviewAny", source=[run, 2])
    first = server.queue(graph.prompt)
    assert first.finished()["type"] == "execution_success"
    steps = [m["value"] for m in first.of_kind("progress") if m["node"] == run and m["max"] == 6]
    assert steps and steps == sorted(steps) and steps[-1] == 6
    loss = first.outputs()[max(graph.prompt, key=int)]["text"]
    (shown,) = first.outputs()[run]["images"]
    with Image.open(server.base / shown["type"] / shown["subfolder"] / shown["filename"]) as picture:
        assert picture.size[0] == 512 and shown["filename"].endswith("-training.png"), "the node keeps it"
    assert len([m for m in first.previews if b"\xff\xd8\xff" in m[:64]]) >= 2, "early, and at the end"

    server.post("/free", {"unload_models": True, "free_memory": True})  # forget ComfyUI's own cache
    again = server.queue(graph.prompt)
    assert again.finished()["type"] == "execution_success"
    assert again.outputs()[max(graph.prompt, key=int)]["text"] == loss
    assert not [m for m in again.of_kind("progress") if m["node"] == run], "nothing was trained"


def test_a_mistake_in_a_text_is_shown_at_its_node_when_the_graph_is_queued(server: Any, graph: Any) -> None:
    tokens = graph.add("CascadeTrainTokens", new_tokens="[concept] = (")
    lora = graph.add("CascadeLoRATarget", modules="attn; channelwise")
    folder = graph.add("CascadeImageFolder", path="no/such/folder")
    run = graph.training(2, seed=14)
    described = graph.prompt[graph.prompt[run]["inputs"]["run"][0]]["inputs"]
    described.update(target=[tokens, 0], dataset=[folder, 0])
    graph.prompt[tokens]["inputs"]["target"] = [lora, 0]
    export = graph.add("CascadeExportRun", run=[run, 0], filename="../away")
    answer = server.refusal(graph.prompt)
    answers = answer["node_errors"].items()
    told = {key: [error["details"] for error in entry["errors"]] for key, entry in answers}
    words = {
        tokens: "new_tokens: '(' is not a regular expression",
        lora: "modules: 'attn; channelwise' is no part of a layer's name",
        folder: "path: the picture folder 'no/such/folder' does not exist",
        export: "filename: the filename '../away' leaves the output folder",
    }
    assert not [key for key, text in words.items() if not any(text in line for line in told[key])], told
    accused = {key: {e["extra_info"]["input_name"] for e in entry["errors"]} for key, entry in answers}
    assert accused == {tokens: {"new_tokens"}, lora: {"modules"}, folder: {"path"}, export: {"filename"}}


def test_a_word_that_the_models_do_not_have_is_told_before_training(server: Any, graph: Any) -> None:
    tokens = graph.add("CascadeTrainTokens", new_tokens="[concept] = ^xyzzy</w>$")
    run = graph.training(2, seed=15)
    described = graph.prompt[run]["inputs"]["run"][0]
    graph.prompt[described]["inputs"]["target"] = [tokens, 0]
    graph.add("PreviewAny", source=[run, 2])
    end = server.queue(graph.prompt).finished()
    assert end["type"] == "execution_error" and end["data"]["node_id"] == described
    assert "'^xyzzy</w>$' (input new_tokens)" in end["data"]["exception_message"]


def test_an_interrupted_training_goes_on_where_it_was_and_ends_the_same(
    server: Any, graph: Any, headless: Any, tmp_path: Path
) -> None:
    run = graph.training(30, seed=13)
    graph.add("CascadeExportRun", run=[run, 0], filename="stopped")
    before = set((server.output / "cascade" / "runs").glob("*"))
    queued = server.queue(graph.prompt)
    queued.wait_for(
        lambda m: m["type"] == "progress" and m["data"]["node"] == run and m["data"]["value"] >= 3
    )
    server.post("/interrupt", {})
    assert queued.finished(60)["type"] == "execution_interrupted"
    (folder,) = set((server.output / "cascade" / "runs").glob("*")) - before
    kept = [int(path.name.split("-")[0]) for path in (folder / "checkpoints").iterdir()]
    assert kept and 0 < max(kept) < 30, f"a checkpoint of the step it was stopped at: {kept}"
    (note,) = queued.of_kind("cascade.note")
    assert note["node"] == run and note["text"].startswith(f"saved at step {max(kept)} of 30 in {folder}")
    assert any(note["text"].encode() in message for message in queued.previews), "and on the node"

    again = server.queue(graph.prompt)
    assert again.finished()["type"] == "execution_success"
    seen = [m["value"] for m in again.of_kind("progress") if m["node"] == run]
    assert min(seen) >= max(kept), "it went on, and did not start again"
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph.prompt), encoding="utf-8")
    done = headless("run", file, "--output-dir", "out", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "stopped.safetensors").read_bytes() == (
        server.output / "stopped.safetensors"
    ).read_bytes()


def test_previews_texts_warnings_and_requests_for_room_arrive(server: Any) -> None:
    queued = server.queue({"1": {"class_type": "Probe", "inputs": {}}})
    assert queued.finished()["type"] == "execution_success"
    assert [(m["value"], m["max"], m["node"]) for m in queued.of_kind("progress")] == [(1, 2, "1")]
    assert any(b"\xff\xd8\xff" in message[:64] for message in queued.previews), "a JPEG"
    assert any(b"half way" in message for message in queued.previews)
    assert queued.of_kind("cascade.warning") == [{"text": "mind the step"}]
    loaded, device, source, runs, *models = queued.outputs()["1"]["text"]
    assert loaded == "1 0", "ComfyUI's own model has left where room was asked for"
    assert device == "cpu" and Path(source) == server.base / "input"
    assert Path(runs) == server.output / "cascade" / "runs"
    assert {"checkpoints", "vae", "loras"} <= set(models) and "custom_nodes" not in models


@pytest.mark.parametrize("name", ["text_to_image", "reconstruct", "teach_a_concept"])
def test_a_workflow_of_this_project_runs_as_it_stands(
    server: Any, headless: Any, tmp_path: Path, name: str
) -> None:
    """The file that people open: converted with the server's own schemas, queued there, and run headless.

    Only counts are cut down; every picture, and what was trained, is the same on both sides.
    """
    from cascade_train.graph.check.overrides import apply_settings
    from cascade_train.graph.file.convert import to_prompt
    from cascade_train.graph.file.load import read_workflow

    workflow = Path(__file__).resolve().parents[2] / "workflows" / f"{name}.json"
    info = server.get("/object_info")
    prompt = to_prompt(read_workflow(workflow), info)
    counts = {"steps": 2, "steps_c": 2, "steps_b": 1, "pictures": 1, "batch_size": 2}
    few = [
        f"{key}.{entry}={value}"
        for key, node in prompt.items()
        for entry, value in counts.items()
        if entry in node["inputs"]
    ]
    queued = server.queue(apply_settings(prompt, few, info))
    assert queued.finished()["type"] == "execution_success", queued.messages[-3:]
    options = [word for setting in few for word in ("--set", setting)]
    done = headless(
        "run", workflow, *options, "--output-dir", "out", "--device", "cpu", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr

    ours = json.loads(done.stdout.splitlines()[-1])
    shown = {node["id"]: node["files"] for node in ours["nodes"] if node.get("files")}
    theirs = queued.outputs()
    assert shown and shown.keys() == {key for key, ui in theirs.items() if ui.get("images")}
    for key, files in shown.items():
        for file, there in zip(files, theirs[key]["images"], strict=True):
            place = server.base / there["type"] / there["subfolder"] / there["filename"]
            with Image.open(file) as a, Image.open(place) as b:
                assert a.size == b.size and a.tobytes() == b.tobytes(), (key, file)
    for file in (tmp_path / "out").glob("*/*.safetensors"):
        there = server.output / file.relative_to(tmp_path / "out")
        assert file.read_bytes() == there.read_bytes(), file.name
