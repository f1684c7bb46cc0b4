"""A command reads each class of a workflow once and asks each node's own check once, however it is called."""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import cascade_train.graph.core.registry as registry
from cascade_train.cli import main


class Asked:
    """How often ``INPUT_TYPES`` (by class) and ``VALIDATE_INPUTS`` (by class and what it was given) ran."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.checked: Counter[tuple[str, str]] = Counter()

    def counting(self, name: str, cls: Any) -> type:
        """``cls`` with both counted, and nothing else changed."""

        def input_types(kind: Any) -> Any:
            self.read[name] += 1
            return cls.INPUT_TYPES()

        found: dict[str, Any] = {"INPUT_TYPES": classmethod(input_types), "__module__": cls.__module__}
        if hasattr(cls, "VALIDATE_INPUTS"):
            hook = cls.VALIDATE_INPUTS.__func__

            @functools.wraps(hook)
            def validate_inputs(kind: Any, *args: Any, **given: Any) -> Any:
                self.checked[name, repr(given)] += 1
                return hook(kind, *args, **given)

            validate_inputs.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
            found["VALIDATE_INPUTS"] = classmethod(validate_inputs)
        return type(cls.__name__, (cls,), found)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """The classes that commands find here, counted."""
    counts = Asked()
    found = registry.node_classes

    def counted(host: Any, comfyui: Mapping[str, type] | None = None) -> dict[str, type]:
        return {name: counts.counting(name, cls) for name, cls in found(host, comfyui).items()}

    monkeypatch.setattr(registry, "node_classes", counted)
    monkeypatch.chdir(tmp_path)
    return counts


def node(class_type: str, title: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": title}}


def named(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


GRAPH = {
    "1": node("PrimitiveInt", "Side", value="8"),
    "2": node("LoadImage", "Cat", image="cat.png"),
    "3": node("LoadImage", "Dog", image="dog.png"),
    "4": node(
        "ImageScale", "Small", image=["2", 0], upscale_method="area", width=["1", 0], height=8, crop="center"
    ),
    "5": node("SaveImage", "Keep", images=["4", 0], filename_prefix="cat"),
    "6": node("PreviewImage", "Look", images=["3", 0]),
    "7": node("CascadeLoadPictures", "Nobody's", path="", first=0, count=1, width=8, height=8),
}


@pytest.mark.parametrize(
    ("words", "checks"),
    [
        (("validate",), 2),
        (("validate", "--json", "--set", "Side.value=4"), 2),
        (("run",), 2),
        (("run", "--json", "--set", "Side.value=4", "--set", "Small.height=4"), 2),
        (("run", "--only", "Keep"), 1),
        (("run", "--dry-run"), 2),
        (("run", "--dry-run", "--json", "--only", "Look", "--set", "Side.value=4"), 1),
    ],
    ids=named,
)
def test_a_prompt_is_read_and_asked_once(
    asked: Asked, tmp_path: Path, words: tuple[str, ...], checks: int
) -> None:
    (tmp_path / "input").mkdir()
    for name in ("cat", "dog"):
        Image.new("RGB", (16, 16)).save(tmp_path / "input" / f"{name}.png")
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    assert main([words[0], "graph.json", *words[1:]]) == 0
    used = {entry["class_type"] for entry in GRAPH.values()}
    assert asked.read == dict.fromkeys(used, 1)
    assert set(asked.checked.values()) == {1} and len(asked.checked) == checks, asked.checked


@pytest.mark.parametrize(
    "words", [("validate",), ("run", "--dry-run"), ("convert",), ("inspect",)], ids=named
)
def test_a_workflow_of_this_project_is_read_and_asked_once(asked: Asked, words: tuple[str, ...]) -> None:
    shipped = Path(__file__).resolve().parents[2] / "workflows" / "teach_a_concept.json"
    assert main([words[0], str(shipped), *words[1:]]) == 0
    used = {entry["type"] for entry in json.loads(shipped.read_text(encoding="utf-8"))["nodes"]}
    assert used <= asked.read.keys() | {"Note", "MarkdownNote", "Reroute", "PrimitiveNode"}
    assert asked.read.keys() <= used and set(asked.read.values()) == {1}
    assert set(asked.checked.values()) <= {1} and bool(asked.checked) is (words[0] in ("validate", "run"))


def test_what_is_refused_is_not_asked_again(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    assert main(["run", "graph.json"]) == 2
    assert set(asked.read.values()) == {1} and not asked.checked, "both pictures are missing already"


COMFYUI = {
    "folder_paths.py": """
        folder_names_and_paths = {}
        def set_output_directory(path): pass
        set_input_directory = set_temp_directory = set_output_directory
        """,
    "comfy/__init__.py": "",
    "comfy/cli_args.py": "import types; args = types.SimpleNamespace(cpu=False)",
    "comfy/model_management.py": "class InterruptProcessingException(Exception): pass",
    "comfy/utils.py": "def set_progress_bar_global_hook(hook): pass",
    "comfy_execution/__init__.py": "",
    "comfy_execution/graph_utils.py": """
        class GraphBuilder:
            prefix = None
            @classmethod
            def set_default_prefix(cls, node_id, index, graph): cls.prefix = f"{node_id}.{index}.{graph}."
        """,
    "nodes.py": """
        import atexit, json, pathlib
        import comfy_execution.graph_utils as graph_utils
        COUNTS = {}
        def count(what): COUNTS[what] = COUNTS.get(what, 0) + 1
        @atexit.register
        def write(): pathlib.Path("counts.json").write_text(json.dumps(COUNTS))

        class Old:
            RETURN_TYPES, FUNCTION, USES_TORCH = ("INT",), "run", False
            @classmethod
            def INPUT_TYPES(s):
                count("Old read")
                return {"required": {"value": ("INT", {"min": 0})}}
            @classmethod
            def VALIDATE_INPUTS(s, value, input_types):
                count("Old checked")
                return True
            def run(self, value): return (value,)

        class Base:
            @classmethod
            def validate_inputs(cls, **given): raise NotImplementedError
            fingerprint_inputs = check_lazy_status = validate_inputs
            @classmethod
            def GET_BASE_CLASS(cls): return Base
            @classmethod
            def GET_SCHEMA(cls): return None
            @classmethod
            def PREPARE_CLASS_CLONE(cls, hidden): return type(cls.__name__, (cls,), {"hidden": hidden})

        class New(Base):
            RETURN_TYPES, FUNCTION, USES_TORCH, OUTPUT_NODE = (), "execute", False, True
            @classmethod
            def INPUT_TYPES(cls):
                count("New read")
                return {"required": {"text": ("STRING", {}), "size": (["small"],), "number": ("INT", {})}}
            @classmethod
            def validate_inputs(cls, size):
                count("New checked")
                return True if size in ("small", "huge") else f"size: there is no {size}"
            @classmethod
            def execute(cls, text, size, number):
                return {"ui": {"text": [f"{text} {size} {number} {graph_utils.GraphBuilder.prefix}"]}}

        class Unused(Old):
            @classmethod
            def INPUT_TYPES(s): raise OSError("its folder is on a disk that sleeps")

        NODE_CLASS_MAPPINGS = {"Old": Old, "New": New, "Unused": Unused}
        def init_extra_nodes(init_custom_nodes, init_api_nodes): pass
        """,
}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "--json"), 0),
        (("run", "--json", "--dry-run"), 0),
        (("run", "--json", "--only", "Show"), 0),
        (("validate", "--json"), 0),
        (("validate", "--json", "--set", "Show.size=tiny"), 2),
    ],
    ids=named,
)
def test_classes_of_a_comfyui_are_read_and_asked_once(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    """A folder that has what the command asks a ComfyUI for: an old class, a new one, and one that nobody
    uses and that cannot be read now."""
    import textwrap

    for name, text in COMFYUI.items():
        (tmp_path / "comfyui" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "comfyui" / name).write_text(textwrap.dedent(text), encoding="utf-8")
    prompt = {
        "1": node("Old", "Number", value="3"),
        "2": node("New", "Show", text=5, size="huge", number=["1", 0]),
    }
    (tmp_path / "graph.json").write_text(json.dumps(prompt), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "cascade_train.cli",
        words[0],
        "graph.json",
        "--comfyui",
        "comfyui",
        *words[1:],
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text(encoding="utf-8"))
    assert counts == {"Old read": 1, "New read": 1, "Old checked": 1, "New checked": 1}
    last = json.loads(done.stdout.splitlines()[-1])
    if code:
        assert [p["text"] for p in last["problems"]] == [
            "Show (id 2): size = 'tiny' is refused: there is no tiny."
        ]
    elif last.get("event") == "report":
        (shown,) = (entry for entry in last["nodes"] if entry["id"] == "2")
        assert shown["ui"]["text"] == ["5 huge 3 2.0.0."], "core's builder is told which node runs"
