"""The one interface between the library and the place it runs in (ComfyUI, or a command line)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from PIL import Image

BUNDLED = "bundled/"
"""A path in a workflow that starts so names something shipped inside this package (`examples/`)."""


@dataclass(frozen=True)
class Folders:
    """Where a host keeps things; all absolute.

    ``models`` maps ComfyUI's model folder names (``checkpoints``, ``unet``, ``vae``, ``clip``, …) to the
    folders searched, in order. ``extra_read`` are further folders that the person allowed to be read.
    """

    input: Path
    output: Path
    temp: Path
    runs: Path
    cache: Path
    models: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    extra_read: tuple[Path, ...] = ()

    def readable_roots(self) -> tuple[Path, ...]:
        """Every folder a workflow may read from."""
        roots = [self.input, self.output, self.temp, self.runs, *self.extra_read, examples_folder()]
        for folders in self.models.values():
            roots.extend(folders)
        return tuple(roots)

    def resolve_read(self, text: str, what: str = "path") -> Path:
        """The existing file or folder that ``text`` (from a workflow) names.

        ``bundled/…`` is looked up in this package's examples, a relative path under the input folder
        first and then under each allowed folder.

        Raises:
            CascadeError: it does not exist, or lies (after following links) outside the allowed folders.
        """
        wanted = text.strip()
        if not wanted:
            raise CascadeError(f"the {what} is empty", fix=f"Give a path inside {self.input}")
        if wanted.startswith(BUNDLED):
            candidates = [examples_folder() / wanted[len(BUNDLED) :]]
        elif Path(wanted).is_absolute():
            candidates = [Path(wanted)]
        else:
            candidates = [root / wanted for root in self.readable_roots()]
        for candidate in candidates:
            if candidate.exists():
                real = candidate.resolve()
                if any(real.is_relative_to(root.resolve()) for root in self.readable_roots()):
                    return real
                raise CascadeError(
                    f"the {what} '{wanted}' lies outside the folders that may be read",
                    fix=f"Move it under {self.input}, or allow its folder (headless: --read FOLDER)",
                )
        raise CascadeError(
            f"the {what} '{wanted}' does not exist",
            fix=f"Looked in {', '.join(str(c) for c in candidates[:3])}",
        )

    def resolve_write(self, text: str, what: str = "path") -> Path:
        """The path under the output folder that ``text`` names, with ``/`` or ``\\`` between folders.

        Raises:
            CascadeError: it leaves that folder, or names no file in it.
        """
        name = text.strip().replace("\\", "/")  # a workflow means the same on every system
        if not name.isprintable():
            raise CascadeError(
                f"the {what} {text!r} holds characters that no name can have",
                fix="Use letters, digits, - and _",
            )
        target, root = (self.output / name).resolve(), self.output.resolve()
        if not target.is_relative_to(root):
            raise CascadeError(
                f"the {what} '{text}' leaves the output folder",
                where=str(self.output),
                fix="Use a name inside it",
            )
        if target == root or name.endswith("/"):
            raise CascadeError(f"the {what} '{text}' names a folder", fix="Use the name of a file in it")
        return target


def shown_file(path: Path, folders: Folders) -> dict[str, str] | None:
    """``path`` as an output node tells ComfyUI of a file it wrote, which the browser then fetches by it; None
    where it lies in none of the folders that are served."""
    for kind, root in (("temp", folders.temp), ("output", folders.output)):
        if path.is_relative_to(root):
            inside = path.relative_to(root)
            subfolder = "" if inside.parent == Path() else inside.parent.as_posix()
            return {"filename": inside.name, "subfolder": subfolder, "type": kind}
    return None


def examples_folder() -> Path:
    """The folder of pictures that ship with this package."""
    return Path(__file__).resolve().parent.parent / "examples"


class Host(Protocol):
    """What code may ask of the place it runs in. Handed down to every node as ``self.host``."""

    @property
    def folders(self) -> Folders: ...

    @property
    def device(self) -> str:
        """The torch device to work on: ``"cpu"``, ``"cuda:0"``, ``"mps"``."""
        ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def blocked(self, message: str) -> Any:
        """An output that nothing can take: a node it is wired to is reported with ``message``."""
        ...

    def progress(self, done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        """Tell how far the current node is. ``text`` is a short line such as ``loss 0.123``.

        May raise the host's interrupt, as ComfyUI's progress hook does.
        """
        ...

    @property
    def previews(self) -> bool:
        """Whether anyone sees the pictures that are given to `progress`."""
        ...

    def check_interrupt(self) -> None:
        """Raise the host's own interrupt exception when the person asked to stop; else return."""
        ...

    def warn(self, text: str) -> None:
        """Tell the person something that does not stop the work (one line)."""
        ...

    def tell(self, text: str) -> None:
        """Tell the person, on the node that runs where there is one, how its work has ended (one line).

        Never raises the host's interrupt: it is what a person hears after asking for one.
        """
        ...

    def make_room(self) -> None:
        """Free accelerator memory that the host itself holds (ComfyUI's loaded models)."""
        ...


class ExecutingHost(Host, Protocol):
    """A host in which our own executor runs a graph; inside ComfyUI its executor does."""

    def executing(self, node_id: str, index: int) -> None:
        """A node's function is about to be called, for the ``index``-th row of its inputs."""
        ...

    def inference_mode(self, needs_torch: bool) -> AbstractContextManager[Any]:
        """What nodes run within: no gradients, as in ComfyUI. Where ``needs_torch`` is False (texts and
        numbers alone) torch is not loaded for it."""
        ...
