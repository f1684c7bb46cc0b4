"""The rules of the house, as functions over a tree of files: each answers what breaks it, a line a fault.

`test_house.py` applies them to the project, and to copies of it with one fault planted each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LIBRARY, NODES = "cascade_train", "cascade_train_nodes"
"""Names under which the two packages are imported; the second is the folder ``nodes``."""

ORDER = (
    *(
        "errors",
        "files",
        "digest",
        "words",
        "rasters",
        "migrations",
        "host",
        "drawing",
        "diffusion",
        "ranks",
        "models",
        "data",
        "control",
    ),
    *("training", "sampling", "formats", "jobs", "nodes"),
)
"""The rooms from the ground up: each may use those before it."""

APART = frozenset({"training", "sampling", "formats"})
"""Rooms that know nothing of each other; `ORDER` says nothing about them among themselves."""

MAY: dict[str, frozenset[str]] = {
    **{
        room: frozenset(ORDER[:place]) | (APART if room in APART else set())
        for place, room in enumerate(ORDER)
    },
    "graph": frozenset({"errors", "files", "rasters", "host"}),
    "nano": frozenset(ORDER[: ORDER.index("nodes")]),
    "commands": frozenset({*ORDER, "graph", "nano"}),
    "serve": frozenset({*ORDER, "graph", "nano", "commands"}),
    "cli": frozenset({*ORDER, "graph", "nano", "commands", "serve"}),
}
"""Which rooms each may use, besides itself."""

ALSO = {f"{LIBRARY}.graph.core.registry": frozenset({"nodes"})}
"""Files that may use more than their room: the graph finds the nodes in one place."""

HOSTS = (f"{LIBRARY}.host.comfy", f"{LIBRARY}.host.comfy_inside", f"{LIBRARY}.host.headless")
CHOOSE_A_HOST = frozenset({"host", "nano", "commands", "serve", "cli"})
"""The rooms that may say which host there is; all others are handed one."""

HEAVY = frozenset(
    {"torch", "torchvision", "numpy", "cv2", "diffusers", "transformers", "peft", "safetensors", "PIL"}
)
COMFYUI = re.compile(r"(comfy(_\w+)?|folder_paths|latent_preview|node_helpers)(\.\w+)*")
COMFYUI_WORDS = re.compile(r"(nodes|server|execution|app)(\.\w+)*")
"""Modules of ComfyUI with names that are words too: found only where something is imported by name."""
BY_NAME = frozenset({"import_module", "__import__", "find_spec", "resolve_name"})

OPEN_PICTURES = (f"{LIBRARY}.rasters", f"{LIBRARY}.data.pixels")
"""Where the formats are listed, and what hands OpenCV only what was opened there."""

OPENS = re.compile(r"(.*\.)?Image\.open|.*\.(imread\w*|imdecode\w*|VideoCapture)")

LONGEST = 420
SHORTEST = 30


@dataclass(frozen=True)
class Import:
    """A module that a file imports. ``typed``: only for type checking."""

    name: str
    line: int
    typed: bool


@dataclass(frozen=True)
class Module:
    """A file of the library or of the nodes, by the name under which it is imported."""

    name: str
    path: Path
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        return room_of(self.name)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self))

    @cached_property
    def comfyui(self) -> tuple[tuple[int, str], ...]:
        """Lines that name a module of ComfyUI, with its name."""
        return tuple(sorted(set(_comfyui(self))))

    def at(self, line: int) -> str:
        """Where, for people."""
        return f"{self.path.as_posix()}:{line}"


House = dict[str, Module]
"""Modules by name."""


def house(root: Path, known: House | None = None) -> House:
    """All modules of the library and the nodes in a checkout; paths are told relative to ``root``.

    Those that ``known`` has with the same source are taken from there, since reading them takes a while.
    """
    out: House = {}
    for folder, package in ((root / LIBRARY, LIBRARY), (root / "nodes", NODES)):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            if "examples" in inside:
                continue
            name = ".".join((package, *(part for part in inside if part != "__init__")))
            source = path.read_text(encoding="utf-8")
            there = (known or {}).get(name)
            same = there is not None and there.source == source
            out[name] = there if there and same else Module(name, path.relative_to(root), source)
    return out


def room_of(name: str) -> str:
    """The room that a dotted name lies in; "" for a package of others and for the library's own top."""
    first, _, rest = name.partition(".")
    if first == NODES:
        return "nodes"
    return rest.partition(".")[0] if first == LIBRARY else ""


def _imports(module: Module) -> Iterator[Import]:
    typed = {
        id(node)
        for block in ast.walk(module.tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for part in block.body
        for node in ast.walk(part)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in typed)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.package.split(".")[: len(module.package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, id(node) in typed)
        elif isinstance(node, ast.Call) and _last(node.func) in ("import_module", "__import__"):
            for name in filter(None, map(_text, node.args[:1])):
                yield Import(name, node.lineno, id(node) in typed)


def _last(node: ast.AST) -> str:
    """The last part of a dotted name: ``import_module`` of ``importlib.import_module``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    """The text that a constant is; "" for everything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _comfyui(module: Module) -> Iterator[tuple[int, str]]:
    for each in module.imports:
        if COMFYUI.fullmatch(each.name) or COMFYUI_WORDS.fullmatch(each.name):
            yield each.line, each.name
    prose = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if id(node) not in prose and COMFYUI.fullmatch(_text(node)):
            yield getattr(node, "lineno", 0), _text(node)
        if isinstance(node, ast.Call):
            named = node.args[:1] if _last(node.func) in BY_NAME or _from_modules(node.func) else []
        elif isinstance(node, ast.Subscript):
            named = [node.slice] if _is_modules(node.value) else []
        elif isinstance(node, ast.Compare):
            named = [node.left] if any(map(_is_modules, node.comparators)) else []
        else:
            continue
        for name in map(_text, named):
            if COMFYUI_WORDS.fullmatch(name):
                yield node.lineno, name


def _is_modules(node: ast.AST) -> bool:
    """Whether it is ``sys.modules``, also by ``getattr``."""
    return _last(node) == "modules" or (
        isinstance(node, ast.Call) and any(_text(a) == "modules" for a in node.args)
    )


def _from_modules(function: ast.AST) -> bool:
    """Whether it is a method of ``sys.modules``, such as ``sys.modules.get``."""
    return isinstance(function, ast.Attribute) and _is_modules(function.value)


def every_room_is_known(modules: House) -> list[str]:
    """A room of no name in `MAY` has no place in the house."""
    rooms = {module.room: module for module in modules.values() if module.room}
    return [
        f"{module.path.as_posix()}: no room is called {room}"
        for room, module in rooms.items()
        if room not in MAY
    ]


def imports_point_one_way(modules: House) -> list[str]:
    """Each room uses rooms below it alone; types count, since naming a type is knowing it."""
    return [
        f"{module.at(each.line)} imports {each.name}: {module.room} knows nothing of {room_of(each.name)}"
        for module in modules.values()
        for each in module.imports
        if (there := room_of(each.name)) in MAY and module.room in MAY and there != module.room
        if there not in MAY[module.room] | ALSO.get(module.name, frozenset())
    ]


def rooms_beside_each_other_stay_apart(modules: House) -> list[str]:
    """Training, sampling and formats know nothing of each other."""
    return [
        f"{module.at(each.line)} imports {each.name}"
        for module in modules.values()
        for each in module.imports
        if module.room in APART and room_of(each.name) in APART - {module.room}
    ]


def hosts_are_handed_down(modules: House) -> list[str]:
    """Which host there is, is decided on top; a room below is given one."""
    return [
        f"{module.at(each.line)} imports {each.name}"
        for module in modules.values()
        for each in module.imports
        if module.room in MAY
        and module.room not in CHOOSE_A_HOST
        and f"{each.name}.".startswith(tuple(f"{host}." for host in HOSTS))
    ]


def only_the_host_knows_comfyui(modules: House) -> list[str]:
    """No module of ComfyUI is named outside ``host``, however it would be imported."""
    return [
        f"{module.at(line)} names ComfyUI's module {name}"
        for module in modules.values()
        if module.room != "host"
        for line, name in module.comfyui
    ]


def nodes_hold_no_maths(modules: House) -> list[str]:
    """A node hands over to the library; neither it nor a function in it imports what calculates."""
    return [
        f"{module.at(each.line)} imports {each.name}"
        for module in modules.values()
        for each in module.imports
        if module.room == "nodes" and not each.typed and each.name.partition(".")[0] in HEAVY
    ]


def files_import_in_no_circle(modules: House) -> list[str]:
    """No file needs itself by way of others. Imports inside functions count, those for types alone do not."""
    needs: dict[str, set[str]] = {}
    for module in modules.values():
        found = {
            each.name if each.name in modules else each.name.rpartition(".")[0]
            for each in module.imports
            if not each.typed
        }
        needs[module.name] = (found & modules.keys()) - {module.name}
    return [" → ".join([*circle, circle[0]]) for circle in _circles(needs)]


def _circles(needs: dict[str, set[str]]) -> list[list[str]]:
    """One shortest circle through the first file of every knot of files that need each other."""
    out, seen = [], set()
    for start in sorted(needs):
        if start in seen:
            continue
        back, trail = {start: ""}, [start]
        for at in trail:
            for other in sorted(needs[at]):
                if other == start:
                    circle = [at]
                    while back[circle[-1]]:
                        circle.append(back[circle[-1]])
                    out.append(circle[::-1])
                    seen.update(circle)
                    trail.clear()
                    break
                if other not in back:
                    back[other] = at
                    trail.append(other)
    return out


def no_room_is_empty(modules: House) -> list[str]:
    """A package holds a module, or something in its ``__init__``."""
    return [
        f"{module.path.as_posix()}: nothing is in it"
        for module in modules.values()
        if module.path.name == "__init__.py"
        and all(isinstance(node, ast.Expr) for node in module.tree.body)
        and not any(name.startswith(f"{module.name}.") for name in modules)
    ]


def files_stay_small(modules: House) -> list[str]:
    """A file owns one idea; a long one owns several."""
    return [
        f"{module.path.as_posix()}: {lines} lines"
        for module in modules.values()
        if (lines := len(module.source.splitlines())) > LONGEST
    ]


def no_file_only_passes_on(modules: House) -> list[str]:
    """A short file that only imports has no idea of its own."""
    return [
        f"{module.path.as_posix()}: only passes on"
        for module in modules.values()
        if module.path.name != "__init__.py" and len(module.source.splitlines()) < SHORTEST
        if not any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.If))
            for node in module.tree.body
        )
    ]


def classes_have_names_of_their_own(modules: House) -> list[str]:
    """A word means one thing: no two modules define a public class of one name."""
    where: dict[str, list[str]] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module.at(node.lineno))
    return [f"{name} is {' and '.join(places)}" for name, places in where.items() if len(places) > 1]


def pictures_are_opened_in_one_place(modules: House) -> list[str]:
    """Decoders find formats by content, and some of those are programs: one file asks for rasters."""
    return [
        f"{module.at(node.lineno)} opens pictures by {ast.unparse(node.func)}"
        for module in modules.values()
        if module.name not in OPEN_PICTURES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and re.fullmatch(
            r"(.*\.)?Image\.open|.*\.(imread\w*|imdecode\w*|VideoCapture)", ast.unparse(node.func)
        )
    ] + [
        f"{module.at(each.line)} imports {each.name}"
        for module in modules.values()
        for each in module.imports
        if each.name == "PIL.Image.open" or re.fullmatch(r"cv2\.(imread\w*|imdecode\w*)", each.name)
    ]


RULES: tuple[Callable[[House], list[str]], ...] = (
    every_room_is_known,
    imports_point_one_way,
    rooms_beside_each_other_stay_apart,
    hosts_are_handed_down,
    only_the_host_knows_comfyui,
    nodes_hold_no_maths,
    files_import_in_no_circle,
    no_room_is_empty,
    files_stay_small,
    no_file_only_passes_on,
    classes_have_names_of_their_own,
    pictures_are_opened_in_one_place,
)
