"""What saved workflows and ComfyUI rely on: ids, inputs, outputs never move; every input explains itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cascade_train_nodes
import pytest

from cascade_train.graph.check.classes import object_info
from cascade_train.host.headless import HeadlessHost, headless_folders

SNAPSHOT = Path(__file__).parent / "contract.json"
"""The nodes as they were shipped. After appending, rewrite it: ``python tests/nodes/test_contract.py``."""

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN")


def schemas() -> dict[str, Any]:
    host = HeadlessHost(headless_folders(Path("output")))
    return object_info(cascade_train_nodes.build_mappings(host)[0])


def contract() -> dict[str, Any]:
    """Of each node what a saved workflow names: inputs in order with types and choices, outputs."""
    out = {}
    for name, schema in schemas().items():
        inputs = {}
        for group in ("required", "optional"):
            for entry, (kind, *_options) in schema["input"].get(group, {}).items():
                inputs[entry] = ["COMBO", *kind] if isinstance(kind, list) else kind
        out[name] = {
            "inputs": inputs,
            "outputs": [list(pair) for pair in zip(schema["output_name"], schema["output"])],
        }
    return out


def test_saved_workflows_keep_their_meaning() -> None:
    shipped, now = json.loads(SNAPSHOT.read_text(encoding="utf-8")), contract()
    for name, node in shipped.items():
        assert name in now, f"{name} is gone: workflows that use it no longer open"
        before, after = node["inputs"], now[name]["inputs"]
        assert list(after)[: len(before)] == list(before), f"{name}: inputs may only be appended"
        for entry, kind in before.items():
            if isinstance(kind, list):
                lost = set(kind) - set(after[entry])
                assert not lost, f"{name}.{entry}: choices {sorted(lost)} are gone"
            else:
                assert after[entry] == kind, f"{name}.{entry} was {kind}"
        assert now[name]["outputs"][: len(node["outputs"])] == node["outputs"], (
            f"{name}: outputs may only be appended"
        )


def test_the_snapshot_knows_every_node() -> None:
    shipped, now = json.loads(SNAPSHOT.read_text(encoding="utf-8")), contract()
    assert shipped == now, "run python tests/nodes/test_contract.py and look at the difference"


@pytest.mark.parametrize("name", sorted(schemas()))
def test_every_input_explains_itself_and_has_sensible_bounds(name: str) -> None:
    schema = schemas()[name]
    assert name.startswith("Cascade") and schema["category"].startswith("cascade/")
    assert len(schema["description"]) > 20
    assert len(schema["output_tooltips"]) == len(schema["output"]) == len(schema["output_name"])
    for group in ("required", "optional"):
        for entry, (kind, options) in schema["input"].get(group, {}).items():
            where = f"{name}.{entry}"
            assert len(options["tooltip"]) > 10, where
            if kind in ("INT", "FLOAT"):
                assert options["min"] <= options["default"] <= options["max"], where
                assert options["step"] > 0 if "step" in options else "seed" in entry, where
            if isinstance(kind, list):
                assert options["default"] in kind, where
            if kind in WIDGETS or isinstance(kind, list):
                assert "default" in options, where
            if entry in ("seed", "noise_seed"):
                assert options["control_after_generate"] is False, (
                    f"{where}: would train anew after each queue"
                )


def test_every_node_has_its_help_page() -> None:
    """Pages are written by ``python tests/nodes/make_help.py`` from the schemas and a text for each node."""
    spec = importlib.util.spec_from_file_location("make_help", Path(__file__).with_name("make_help.py"))
    assert spec and spec.loader
    make_help = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_help)
    for name, schema in schemas().items():
        page = make_help.FOLDER / f"{name}.md"
        assert page.is_file(), f"no help page {page.name}"
        assert page.read_text(encoding="utf-8") == make_help.page(name, schema), f"{page.name} is out of date"


def test_schemas_come_without_heavy_libraries() -> None:
    code = (
        "import sys, pathlib, cascade_train_nodes\n"
        "from cascade_train.graph.check.classes import object_info\n"
        "from cascade_train.host.headless import HeadlessHost, headless_folders\n"
        "object_info(cascade_train_nodes.build_mappings(HeadlessHost(headless_folders(pathlib.Path('o'))))[0])\n"
        "heavy = {'torch', 'numpy', 'cv2', 'diffusers', 'transformers', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_choices_are_those_of_the_library() -> None:
    from typing import get_args, get_type_hints

    from cascade_train.diffusion.samplers import SAMPLERS
    from cascade_train.formats.export import FORMATS, PRECISIONS
    from cascade_train.models.spec import Variant
    from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec

    now = contract()

    def choices(node: str, entry: str) -> list[str]:
        return now[node]["inputs"][entry][1:]

    for node in ("CascadePrompts", "CascadeSampleStageC", "CascadeDecodeStageB"):
        assert choices(node, "sampler") == list(SAMPLERS)
    assert choices("CascadeExportRun", "format") == list(FORMATS)
    assert choices("CascadeExportRun", "precision") == list(PRECISIONS)
    assert choices("CascadeLoadStableCascade", "variant") == list(get_args(Variant))
    run, optimizer, lora = (get_type_hints(each) for each in (RunSpec, OptimizerSpec, LoRATarget))
    assert choices("CascadeTrainingRun", "precision") == list(get_args(run["precision"]))
    assert choices("CascadeTrainingRun", "loss_weight") == list(get_args(run["loss_weight"]))
    assert choices("CascadeTrainingRun", "objective") == list(get_args(run["objective"]))
    assert choices("CascadeOptimizer", "name") == list(get_args(optimizer["name"]))
    assert choices("CascadeOptimizer", "schedule") == list(get_args(optimizer["schedule"]))
    assert choices("CascadeLoRATarget", "kind") == list(get_args(lora["kind"]))


if __name__ == "__main__":
    SNAPSHOT.write_text(
        json.dumps(contract(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )
