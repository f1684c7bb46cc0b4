"""The one interface between the library and the place it runs in (ComfyUI, or a command line)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
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
    ``follow_links``: links in these folders may lead out of them. ``allowed_hosts``: hosts that a remote
    address may name though they are this machine or in a private network.
    """

    input: Path
    output: Path
    temp: Path
    runs: Path
    cache: Path
    models: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    extra_read: tuple[Path, ...] = ()
    follow_links: bool = False
    allowed_hosts: tuple[str, ...] = ()

    def readable_roots(self) -> tuple[Path, ...]:
        """Every folder a workflow may read from."""
        roots = [self.input, self.output, self.temp, self.runs, *self.extra_read, examples_folder()]
        for folders in self.models.values():
            roots.extend(folders)
        return tuple(roots)

    def resolve_read(self, text: str, what: str = "path") -> Path:
        """The existing file or folder that ``text`` (from a workflow) names.

        ``bundled/…`` is looked up in this package's examples, a relative path under the input folder
        first and then under each allowed folder. Between folders stands ``/`` or ``\\``.

        Raises:
            CascadeError: it does not exist, or lies outside the allowed folders: after following links, or
                with ``follow_links`` before.
        """
        wanted = slashed(text.strip())
        if not wanted:
            raise CascadeError(f"the {what} is empty", fix=f"Give a path inside {self.input}")
        if "\0" in wanted:
            raise CascadeError(f"the {what} {wanted[:80]!r} holds a NUL byte", fix="Write it anew")
        if wanted.startswith(BUNDLED):
            candidates = [examples_folder() / wanted[len(BUNDLED) :]]
        elif Path(wanted).is_absolute():
            candidates = [Path(wanted)]
        else:
            candidates = [root / wanted for root in self.readable_roots()]
        for candidate in candidates:
            try:
                if not candidate.exists():
                    continue
                real = candidate.resolve()
            except (OSError, RuntimeError) as error:  # a name too long, links in a circle
                why = getattr(error, "strerror", None) or error
                raise CascadeError(f"the {what} '{wanted[:200]}' cannot be looked up: {why}") from None
            if self.may_read(real) or (self.follow_links and self._lies_inside(candidate)):
                return real
            if self._lies_inside(candidate):
                raise CascadeError(
                    f"the {what} '{wanted}' is or goes through a link that leads outside the folders that "
                    "may be read",
                    fix=f"Allow the folder it leads to (headless: --read {real.parent}), or all such links "
                    "(--follow-links)",
                )
            raise CascadeError(
                f"the {what} '{wanted}' lies outside the folders that may be read",
                fix=f"Move it under {self.input}, or allow its folder (headless: --read FOLDER)",
            )
        raise CascadeError(
            f"the {what} '{wanted[:200]}' does not exist",
            fix=f"Looked in {', '.join(str(c)[:300] for c in candidates[:3])}",
        )

    def may_read(self, path: Path) -> bool:
        """Whether ``path``, after following links, lies in a folder that a workflow may read from."""
        return any(stays_in(path, root) for root in self.readable_roots())

    def link_roots(self) -> tuple[str, ...] | None:
        """The folders that links must not lead out of; None where they may."""
        return None if self.follow_links else tuple(str(root.resolve()) for root in self.readable_roots())

    def _lies_inside(self, path: Path) -> bool:
        """Whether ``path`` lies in a readable folder as it is written, wherever its links lead."""
        return any(lies_in(path, root) for root in self.readable_roots())

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


def slashed(text: str) -> str:
    """A path as someone wrote it, with ``/`` between folders, whichever system it was written on."""
    if "\\" not in text or (Path(text).is_absolute() and Path(text).exists()):
        return text
    return text.replace("\\", "/")


def lies_in(path: Path, root: Path) -> bool:
    """Whether ``path`` lies in ``root`` as it is written, wherever links in it lead."""
    return Path(os.path.normpath(path.absolute())).is_relative_to(os.path.normpath(root.absolute()))


def stays_in(path: Path, root: Path) -> bool:
    """Whether ``path`` lies in ``root`` after following links."""
    return path.resolve().is_relative_to(root.resolve())


def shown_file(path: Path, folders: Folders) -> dict[str, str] | None:
    """``path`` as an output node tells ComfyUI of a file it wrote, which the browser then fetches by it; None
    where it lies in none of the folders that are served."""
    for kind, root in (("temp", folders.temp), ("output", folders.output)):
        if path.is_relative_to(root):
            inside = path.relative_to(root)
            subfolder = "" if inside.parent == Path() else inside.parent.as_posix()
            return {"filename": inside.name, "subfolder": subfolder, "type": kind}
    return None


@lru_cache(maxsize=1)
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

    def keeping(self) -> AbstractContextManager[None]:
        """Within the block there is work that lies on no disk yet: a stop waits until it is saved."""
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
