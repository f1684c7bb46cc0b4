"""The house stands: imports point one way, light things stay light, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cascade_train"

# A room may import rooms of its own floor and of floors below it, never of a floor above.
FLOOR = {
    "errors": 0,
    "digest": 0,
    "files": 0,
    "words": 0,
    "migrations": 0,
    "host": 0,
    "drawing": 1,
    "diffusion": 1,
    "ranks": 1,
    "models": 2,
    "data": 3,
    "control": 3,
    "formats": 4,
    "training": 4,
    "sampling": 4,
    "jobs": 5,
    "nano": 6,
    "graph": 6,
    "serve": 7,
    "commands": 7,
    "cli": 7,
}
ROOT_NAME = {"nodes": "cascade_train_nodes"}
HOSTS = {"cascade_train.host.comfy", "cascade_train.host.headless"}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "examples" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, relative ones made absolute, those for type checking left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for part in block.body
        for node in ast.walk(part)
    }
    base = path.relative_to(ROOT).with_suffix("").parts
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = node.module or ""
            if node.level:
                prefix = ".".join(
                    [
                        ROOT_NAME.get(base[0], base[0]),
                        *base[1 : -node.level],
                        *([node.module] if node.module else []),
                    ]
                )
            found.add(prefix)
            found.update(f"{prefix}.{alias.name}" for alias in node.names)
    return found


def test_every_room_has_a_floor() -> None:
    rooms = {room(path) for path in modules(PACKAGE)} - {"__init__"}
    assert rooms <= FLOOR.keys(), f"rooms without a place in the house: {sorted(rooms - FLOOR.keys())}"


def test_imports_point_one_way() -> None:
    wrong = []
    for path in modules(PACKAGE):
        here = room(path)
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "cascade_train" or len(parts) < 2 or parts[1] not in FLOOR or here not in FLOOR:
                continue
            if FLOOR[parts[1]] > FLOOR[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            if name in HOSTS and FLOOR[here] < FLOOR["graph"] and here != "host":
                wrong.append(f"{path.relative_to(ROOT)} reaches for a host: {name}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_rooms_of_one_floor_do_not_import_in_circles() -> None:
    edges: dict[str, set[str]] = {}
    for path in modules(PACKAGE):
        for name in imports(path):
            parts = name.split(".")
            # Descriptions (spec modules) are words that every room may use.
            if parts[0] == "cascade_train" and len(parts) > 1 and parts[1] in FLOOR and "spec" not in parts:
                edges.setdefault(room(path), set()).add(parts[1])
    done: set[str] = set()

    def visit(at: str, trail: tuple[str, ...]) -> None:
        assert at not in trail, f"a circle of rooms: {' -> '.join([*trail, at])}"
        if at not in done:
            for other in sorted(edges.get(at, set()) - {at}):
                visit(other, (*trail, at))
            done.add(at)

    for start in sorted(edges):
        visit(start, ())


def test_only_the_comfyui_host_knows_comfyui() -> None:
    comfy = {"comfy", "folder_paths", "server", "comfy_api", "comfy_execution", "execution", "nodes"}
    allowed = {"host", "graph"}  # graph: hosting core's own classes on request
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in [*modules(PACKAGE), *modules(ROOT / "nodes")]
        if not (path.is_relative_to(PACKAGE) and room(path) in allowed)
        for name in imports(path)
        if name.split(".")[0] in comfy
    ]
    assert not wrong, "\n".join(wrong)


def test_nodes_hold_no_maths() -> None:
    heavy = {"torch", "numpy", "cv2", "diffusers", "transformers", "peft", "safetensors"}
    wrong = []
    for path in modules(ROOT / "nodes"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            wrong += [f"{path.name}:{node.lineno} {name}" for name in names if name.split(".")[0] in heavy]
    assert not wrong, "nodes import heavy libraries when the pack loads: " + ", ".join(wrong)


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*modules(PACKAGE), *modules(ROOT / "nodes")]
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert not long, f"what are these really? {long}"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["validate", "--help"],
        ["nodes"],
        ["nano", "--help"],
        ["dataset", "--help"],
        ["cache", "--help"],
    ],
)
def test_help_comes_without_torch(command: list[str]) -> None:
    code = (
        "import sys; from cascade_train.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = sorted({'torch', 'diffusers', 'transformers', 'cv2'} & set(sys.modules))\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
