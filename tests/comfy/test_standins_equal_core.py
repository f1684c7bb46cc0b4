"""The stand-ins against core's own classes: the same graphs, run with and without ``--comfyui``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

METHODS = ("nearest-exact", "bilinear", "area", "bicubic", "lanczos")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of every kind that the loaders treat in their own way."""
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(5)

    def noise(*shape: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))

    noise(24, 40, 3).save(folder / "rgb.png")
    noise(24, 40, 4).save(folder / "rgba.png")
    noise(24, 40).save(folder / "grey.png")
    Image.fromarray(rng.integers(0, 65536, (24, 40), dtype=np.uint16)).save(folder / "grey16.png")
    noise(24, 40, 3).quantize(16).save(folder / "palette.png", transparency=3)
    exif = Image.Exif()
    exif[0x0112] = 8
    noise(24, 40, 3).save(folder / "turned.jpg", exif=exif)
    frames = [noise(16, 16, 3) for _ in range(3)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    return folder


def test_core_and_stand_ins_write_the_same_bytes(
    comfyui: Path, headless: Any, pictures: Path, tmp_path: Path
) -> None:
    prompt: dict[str, Any] = {}

    def add(class_type: str, **inputs: Any) -> str:
        key = str(int(max(prompt, key=int, default="0")) + 1)
        prompt[key] = {"class_type": class_type, "inputs": inputs}
        return key

    def save(node: str, name: str) -> None:
        add("SaveImage", images=[node, 0], filename_prefix=f"%width%/{name}")

    # Newer versions of core print tensors in a way of their own; there masks cannot be compared as text.
    preview = comfyui / "comfy_extras" / "nodes_preview_any.py"
    tensors_as_text = "printoptions" not in preview.read_text(encoding="utf-8")
    loaded = {file.stem: add("LoadImage", image=file.name) for file in sorted(pictures.iterdir())}
    # Newer versions of core decode pictures with ffmpeg, whose JPEG, grey and animated pictures differ.
    if "VideoFromFile" in (comfyui / "nodes.py").read_text(encoding="utf-8"):
        for name in ("moving", "turned", "grey", "grey16"):
            prompt.pop(loaded.pop(name))
    for name, node in loaded.items():
        save(node, name)
        if tensors_as_text:
            add("PreviewAny", source=[node, 1])
    for channel in ("alpha", "red", "green", "blue") if tensors_as_text else ():
        add("PreviewAny", source=[add("LoadImageMask", image="rgba.png", channel=channel), 0])
    for method in METHODS:
        for crop, width, height in (("disabled", 17, 0), ("center", 33, 50), ("center", 64, 16)):
            scaled = add(
                "ImageScale",
                image=[loaded["rgb"], 0],
                upscale_method=method,
                width=width,
                height=height,
                crop=crop,
            )
            save(scaled, f"{method}_{crop}_{width}")
    save(add("ImageBatch", image1=[loaded["rgb"], 0], image2=[loaded["palette"], 0]), "batch")
    save(add("EmptyImage", width=9, height=5, batch_size=2, color=0xABCDEF), "empty")
    values = {"Int": 7, "Float": 0.1, "String": "a", "StringMultiline": "a\nb", "Boolean": True}
    for kind, value in values.items():
        add("PreviewAny", source=[add(f"Primitive{kind}", value=value), 0])

    file = tmp_path / "graph.json"
    file.write_text(json.dumps(prompt), encoding="utf-8")
    shown = {}
    for name, more in (("core", ["--comfyui", comfyui]), ("ours", [])):
        done = headless(
            "run",
            file,
            "--input-dir",
            pictures,
            "--output-dir",
            name,
            "--device",
            "cpu",
            "--json",
            *more,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        shown[name] = {node["id"]: node.get("ui") for node in report["nodes"]}
    assert shown["core"] == shown["ours"]

    files = {
        name: sorted(p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*.png"))
        for name in ("core", "ours")
    }
    assert files["core"] == files["ours"] and len(files["ours"]) >= 20
    differ = [
        str(p)
        for p in files["ours"]
        if (tmp_path / "core" / p).read_bytes() != (tmp_path / "ours" / p).read_bytes()
    ]
    assert differ == []


def test_the_schemas_of_the_stand_ins_are_cores(server: Any, tmp_path: Path) -> None:
    """Inputs, their order, types, defaults and ranges, and outputs: what a saved workflow depends on."""
    from cascade_train.graph.check.classes import object_info
    from cascade_train.graph.check.schema import inputs_of
    from cascade_train.graph.core.standins import standins
    from cascade_train.host.headless import HeadlessHost, headless_folders

    core = server.get("/object_info")
    ours = object_info(standins(HeadlessHost(headless_folders(tmp_path))))
    for name in sorted(set(ours) - {"Reroute", "Note", "MarkdownNote"}):
        for entry, theirs in zip(inputs_of(ours[name]), inputs_of(core[name]), strict=True):
            kind = (theirs.name, theirs.type, theirs.required)
            assert (entry.name, entry.type, entry.required) == kind, name
            for option in (
                "default",
                "min",
                "max",
                "step",
                "multiline",
                "control_after_generate",
                "image_upload",
            ):
                if option == "control_after_generate":  # True, or in later cores the mode it starts in
                    assert bool(entry.options.get(option)) == bool(theirs.options.get(option)), name
                elif option in theirs.options:
                    assert entry.options.get(option) == theirs.options[option], (name, entry.name, option)
            if entry.type == "COMBO" and entry.name != "image":
                assert entry.choices == theirs.choices
        outputs = list(ours[name]["output"])  # a later core may have appended one, as Preview as Text has
        assert core[name]["output"] in (outputs, outputs[:-1]), name
        assert ours[name]["output_node"] == core[name]["output_node"], name


def test_other_packs_nodes_run_headless(comfyui: Path, headless: Any, tmp_path: Path) -> None:
    """V3 nodes of core and a V1 node of another pack, found by extra_model_paths.yaml, in one graph."""
    folder = tmp_path / "comfy with packs"
    folder.mkdir()
    for entry in comfyui.iterdir():
        (folder / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())
    (folder / "extra_model_paths.yaml").unlink(missing_ok=True)
    (folder / "extra_model_paths.yaml").write_text(
        f"mine:\n  base_path: '{tmp_path.as_posix()}'\n  custom_nodes: packs\n", encoding="utf-8"
    )
    pack = tmp_path / "packs" / "double"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text(
        "from comfy.utils import ProgressBar\n"
        "print('packs print while they load')\n"
        "class Double:\n"
        "    RETURN_TYPES = ('INT',)\n    FUNCTION = 'run'\n    CATEGORY = 'test'\n"
        "    @classmethod\n"
        "    def INPUT_TYPES(cls):\n        return {'required': {'value': ('INT', {})}}\n"
        "    def run(self, value):\n        ProgressBar(2).update(1)\n        return (value * 2,)\n"
        "NODE_CLASS_MAPPINGS = {'Double': Double}\n",
        encoding="utf-8",
    )
    prompt = {
        "1": {"class_type": "PrimitiveInt", "inputs": {"value": 21}},
        "2": {"class_type": "Double", "inputs": {"value": ["1", 0]}},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }
    (tmp_path / "graph.json").write_text(json.dumps(prompt), encoding="utf-8")
    done = headless("run", "graph.json", "--comfyui", folder, "--json", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {node["id"]: node.get("ui") for node in lines[-1]["nodes"]}["3"] == {"text": ["42"]}
    assert [(line["done"], line["total"]) for line in lines if line["event"] == "progress"] == [(1, 2)]
