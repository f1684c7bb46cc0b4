"""What saved workflows and ComfyUI rely on: ids, inputs, outputs never move; every input explains itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.contract import broken, contract_of, schemas, shipped

ROOT = Path(__file__).resolve().parents[2]
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN")


def test_saved_workflows_keep_their_meaning() -> None:
    """``python start.py refresh`` writes what was appended into contract.json, and refuses anything else."""
    now = contract_of(schemas())
    assert broken(shipped(), now) == []
    assert shipped() == now, "run python start.py refresh and look at the difference"


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


def texts_in(value: ast.expr) -> tuple[str, ...]:
    """The texts that a tuple or list of nothing but texts holds; () for anything else."""
    found = [
        item.value for item in getattr(value, "elts", []) if isinstance(item, ast.Constant) and item.value
    ]
    whole = len(found) == len(getattr(value, "elts", []))
    return tuple(text for text in found if isinstance(text, str)) if whole else ()


def listed(folder: Path, arguments_of: str = "") -> dict[frozenset[str], str]:
    """Every list of texts that is written out in the modules of ``folder``: the texts, and where.

    With ``arguments_of`` only those that are handed to a function of that name.
    """
    out = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if arguments_of:
                called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == arguments_of
                values = node.args if isinstance(node, ast.Call) and called else []
            else:
                values = [node] if isinstance(node, (ast.Tuple, ast.List)) else []
            for value in values:
                if len(texts := texts_in(value)) > 1:
                    out[frozenset(texts)] = f"{path.relative_to(folder.parent)}:{value.lineno} {texts}"
    return out


def test_nodes_take_their_choices_from_the_library() -> None:
    """A choice that is written out in both would be changed in one place only."""
    library, nodes = listed(ROOT / "cascade_train"), listed(ROOT / "nodes", "choice")
    assert frozenset({"ddpm", "ddim"}) in library, "the library's are found"
    assert frozenset({"beside", "below"}) in nodes, "those of a node alone are its own"
    twice = [f"{nodes[texts]} is {library[texts]}" for texts in nodes.keys() & library.keys()]
    assert not twice, "use options(Spec, field): " + "; ".join(twice)
