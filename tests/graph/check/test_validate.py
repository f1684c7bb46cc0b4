"""A wrong workflow is told everything that is wrong with it at once, each in a line that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cascade_train.graph.check.checked import Wrong, checked
from cascade_train.graph.check.classes import Classes, object_info
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.check.refused import in_their_types
from cascade_train.graph.core.registry import node_classes
from cascade_train.host.headless import HeadlessHost, headless_folders


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    (tmp_path / "in" / "cats").mkdir(parents=True)
    (tmp_path / "in" / "cat.png").write_bytes(b"not looked into")
    return HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu")


@pytest.fixture
def info(host: HeadlessHost) -> dict[str, Any]:
    return object_info(node_classes(host))


def training() -> dict[str, Any]:
    """A training as an API prompt, every value right."""
    return {
        "1": {
            "class_type": "CascadeLoadStableCascade",
            "_meta": {"title": "Models"},
            "inputs": {"source": "nano (bundled)", "variant": "full", "precision": "fp32"},
        },
        "2": {
            "class_type": "CascadeLoadPictures",
            "_meta": {"title": "Pictures"},
            "inputs": {"path": "cats", "first": 0, "count": 4, "width": 64, "height": 64},
        },
        "3": {"class_type": "CascadeEncodeStageC", "inputs": {"models": ["1", 0], "image": ["2", 0]}},
        "4": {"class_type": "CascadePreviewLatent", "inputs": {"models": ["1", 0], "stage_c": ["3", 0]}},
        "5": {
            "class_type": "SaveImage",
            "_meta": {"title": "Keep"},
            "inputs": {"images": ["4", 0], "filename_prefix": "cats"},
        },
    }


def problems(
    workflow: dict[str, Any], info: dict[str, Any], host: HeadlessHost | None
) -> tuple[Problem, ...]:
    found = checked(workflow, Classes.from_schemas(info), host)
    return found.problems if isinstance(found, Wrong) else ()


def lines(prompt: dict[str, Any], info: dict[str, Any], host: HeadlessHost | None) -> list[str]:
    return [str(problem) for problem in problems(prompt, info, host)]


def test_a_right_workflow_has_no_problem(info: dict[str, Any], host: HeadlessHost) -> None:
    assert lines(training(), info, host) == []


def test_everything_wrong_is_told_at_once_one_line_each(info: dict[str, Any], host: HeadlessHost) -> None:
    prompt = training()
    prompt["1"]["inputs"] |= {"precision": None}
    prompt["2"]["inputs"] |= {"count": 0, "width": "wide", "path": "dogs"}
    del prompt["3"]["inputs"]["image"]
    prompt["4"]["inputs"]["stage_c"] = ["2", 0]
    prompt["5"]["inputs"]["images"] = ["9", 0]
    prompt["5"]["inputs"]["filename_prefix"] = {"an": "object"}
    prompt["6"] = {"class_type": "SaveImage", "inputs": {"images": ["4", 0], "filename_prefix": "x"}}
    prompt["7"] = {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}}
    told = lines(prompt, info, host)
    inside = host.folders.input
    assert told == [
        "Models (id 1): precision is not one of the choices. Choose 'fp32', 'bf16' or 'auto'.",
        f"Pictures (id 2): path = 'dogs' does not exist. Looked in {inside / 'dogs'}, "
        f"{host.folders.output / 'dogs'}, {host.folders.temp / 'dogs'}.",
        "Pictures (id 2): count = 0 is too small. Give a whole number from 1 to 256.",
        "Pictures (id 2): width = 'wide' is not a whole number. Give a whole number from 8 to 8192.",
        "CascadeEncodeStageC (id 3): image is required and has nothing. Connect an IMAGE.",
        "CascadePreviewLatent (id 4): stage_c takes a LATENT, but 'Pictures' (id 2) gives an IMAGE. "
        "Connect a LATENT.",
        "Keep (id 5): images is wired to node '9', which is not in the prompt. Connect it again.",
        "Keep (id 5): filename_prefix = an object is not a text. Give a text.",
        "SaveImage (id 7): images takes an IMAGE, but 'CascadeEncodeStageC' (id 3) gives a LATENT. "
        "Connect an IMAGE.",
    ]


def test_unknown_classes_are_named_wherever_they_are_with_what_helps(info: dict[str, Any]) -> None:
    workflow = {
        "nodes": [
            {"id": 1, "type": "SaveImges", "title": "Typo"},
            {"id": 2, "type": "KSampler", "properties": {"cnr_id": "comfy-core"}},
            {"id": 3, "type": "KSampler", "properties": {"cnr_id": "comfy-core"}},
            {"id": 4, "type": "FancyMask", "properties": {"aux_id": "someone/fancy-nodes"}},
            {"id": 5, "type": "Nobody Knows"},
        ],
        "links": [],
    }
    assert lines(workflow, info, None) == [
        "Typo (id 1): there is no node class 'SaveImges' here. Nearest here: 'SaveImage'.",
        "KSampler (id 2): there is no node class 'KSampler' here, and 1 more such nodes. "
        "It is one of ComfyUI's "
        "own nodes: run with --comfyui FOLDER, the folder of a ComfyUI that has it.",
        "FancyMask (id 4): there is no node class 'FancyMask' here. "
        "It is from the pack 'someone/fancy-nodes': "
        "install it in a ComfyUI and run with --comfyui FOLDER.",
        "Nobody Knows (id 5): there is no node class 'Nobody Knows' here. "
        "Install its pack in a ComfyUI and run "
        "with --comfyui FOLDER.",
    ]


def test_nothing_to_run(info: dict[str, Any]) -> None:
    prompt = training()
    del prompt["5"]
    assert [problem.kind for problem in problems(prompt, info, None)] == ["no output"]
    assert [problem.kind for problem in problems({}, info, None)] == ["no output"]


def test_what_no_output_needs_is_not_checked_since_it_does_not_run(info: dict[str, Any]) -> None:
    prompt = training()
    prompt["8"] = {"class_type": "CascadeEncodeStageC", "inputs": {}}
    assert lines(prompt, info, None) == []


def test_a_circle_names_every_node_in_it(info: dict[str, Any]) -> None:
    prompt = training()
    prompt["6"] = {
        "class_type": "ImageScale",
        "_meta": {"title": "A"},
        "inputs": {
            "image": ["7", 0],
            "upscale_method": "bilinear",
            "width": 64,
            "height": 64,
            "crop": "disabled",
        },
    }
    prompt["7"] = {
        "class_type": "ImageScale",
        "_meta": {"title": "B"},
        "inputs": {**prompt["6"]["inputs"], "image": ["6", 0]},
    }
    prompt["5"]["inputs"]["images"] = ["7", 0]
    (told,) = lines(prompt, info, None)
    assert "'A' (id 6)" in told and "'B' (id 7)" in told and "circle" in told


def test_paths_stay_inside_what_may_be_read(info: dict[str, Any], host: HeadlessHost, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    for path in ("../secret", str(tmp_path / "secret"), "cats/../../secret"):
        prompt = training()
        prompt["2"]["inputs"]["path"] = path
        (told,) = lines(prompt, info, host)
        assert "may be read" in told, told
    prompt["2"]["inputs"]["path"] = "nul\0byte"
    assert len(lines(prompt, info, host)) == 1


def test_pictures_chosen_in_comfyui_must_be_there(info: dict[str, Any], host: HeadlessHost) -> None:
    prompt: dict[str, Any] = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    assert lines(prompt, info, host) == []
    prompt["1"]["inputs"]["image"] = "cst.png"
    assert lines(prompt, info, host) == [
        f"LoadImage (id 1): image = 'cst.png' does not exist in {host.folders.input}. "
        f"Nearest there: 'cat.png'."
    ]
    prompt["1"]["inputs"]["image"] = "kept.png [output]"
    host.folders.output.mkdir()
    (host.folders.output / "kept.png").write_bytes(b"x")
    assert lines(prompt, info, host) == []
    prompt["1"]["inputs"]["image"] = "../../secret.png"
    assert "outside" in lines(prompt, info, host)[0]


def test_a_misspelt_input_is_pointed_out(info: dict[str, Any]) -> None:
    prompt = training()
    prompt["2"]["inputs"]["heigth"] = prompt["2"]["inputs"].pop("height")
    assert lines(prompt, info, None) == [
        "Pictures (id 2): height is required and has nothing. "
        "It has an input 'heigth' that this class does not "
        "know: is that the one?"
    ]


def test_what_comfyui_would_convert_is_no_problem(info: dict[str, Any]) -> None:
    prompt = training()
    prompt["2"]["inputs"] |= {"count": "3", "width": 64.0, "unknown": 5}
    prompt["5"]["inputs"]["filename_prefix"] = 7
    assert lines(prompt, info, None) == []
    prompt["2"]["inputs"]["count"] = float("nan")
    assert "is not a whole number" in lines(prompt, info, None)[0]


def test_dynamic_inputs_are_checked_like_others() -> None:
    class Dynamic:
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            image: dict[str, Any] = {
                "input": {"required": {"image": ("IMAGE", {})}},
                "prefix": "image",
                "min": 2,
            }
            return {
                "required": {
                    "images": ("COMFY_AUTOGROW_V3", {"template": image}),
                    "size": (
                        "COMFY_DYNAMICCOMBO_V3",
                        {
                            "options": [
                                {
                                    "key": "exact",
                                    "inputs": {"required": {"width": ("INT", {"min": 1, "max": 9})}},
                                },
                                {"key": "same", "inputs": {}},
                            ]
                        },
                    ),
                }
            }

    info = object_info({"Dynamic": Dynamic})
    prompt: dict[str, Any] = {
        "1": {
            "class_type": "Dynamic",
            "inputs": {"images.image0": ["1", 0], "size": "exact", "size.width": 12},
        }
    }
    told = lines(prompt, info, None)
    assert any("images.image1 is required" in line for line in told)
    assert any("size.width = 12 is too large. Give a whole number from 1 to 9" in line for line in told)
    prompt["1"]["inputs"]["size"] = "exakt"
    assert any(
        "size = 'exakt' is not one of the choices. Nearest: 'exact'" in line
        for line in lines(prompt, info, None)
    )


def test_two_hundred_nodes_are_checked_without_the_heavy_libraries(tmp_path: Path) -> None:
    """In its own process: neither reading the nodes nor checking a large graph imports torch."""
    import json
    import subprocess

    prompt = training()
    for number in range(10, 210):
        prompt[str(number)] = {
            "class_type": "CascadeDecodeStageB",
            "inputs": {
                "models": ["1", 0],
                "stage_c": ["3", 0],
                "seed": -1,
                "steps": 0,
                "cfg": 4.0,
                "sampler": "dpm",
                "width": 0,
                "height": 0,
            },
        }
        prompt[str(number + 1000)] = {
            "class_type": "SaveImage",
            "inputs": {"images": [str(number), 0], "filename_prefix": "x"},
        }
    path = tmp_path / "large.json"
    path.write_text(json.dumps(prompt), encoding="utf-8")
    script = (
        "import sys; from cascade_train.cli import main; code = main(['validate', sys.argv[1]]); "
        "heavy = {'torch', 'numpy', 'diffusers', 'transformers', 'cv2', 'PIL'} & set(sys.modules); "
        "sys.exit(9 if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "800 problems" in done.stdout or "801 problems" in done.stdout
    assert list(tmp_path.iterdir()) == [path], "checking writes nothing"


def test_a_file_chosen_on_another_system_is_the_same_file() -> None:
    """Every list of files, of core's and other packs' nodes too: the check takes the value, and the node gets
    the choice that is there."""

    class Lists:
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {
                "required": {
                    "lora_name": (["sub/x.safetensors", "y.safetensors", "a\\b"],),
                    "from_windows": (["sub\\x.safetensors", "sub\\deep\\z.pt"],),
                    "several": ("COMBO", {"options": ["sub/x", "sub/y"], "multiselect": True}),
                }
            }

    chosen: dict[str, Any] = {
        "lora_name": "sub\\x.safetensors",
        "from_windows": "sub/deep/z.pt",
        "several": {"__value__": ["sub\\y", "sub/x"]},
    }
    prompt: dict[str, Any] = {"1": {"class_type": "Lists", "inputs": chosen}}
    assert lines(prompt, object_info({"Lists": Lists}), None) == []
    typed, wrong = in_their_types(prompt, Classes({"Lists": Lists}), ["1"])
    assert not wrong and typed["1"]["inputs"] == {
        "lora_name": "sub/x.safetensors",
        "from_windows": "sub\\deep\\z.pt",
        "several": ["sub/y", "sub/x"],
    }
    for value in ("sub\\missing", "x.safetensors", "SUB\\x.safetensors"):
        chosen["lora_name"] = value
        assert len(lines(prompt, object_info({"Lists": Lists}), None)) == 1
    chosen["lora_name"] = "a\\b"
    assert in_their_types(prompt, Classes({"Lists": Lists}), ["1"])[0]["1"]["inputs"]["lora_name"] == "a\\b"
