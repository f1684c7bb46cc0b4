"""The host of a command line: folders from options, one device, Ctrl-C, progress handed to a listener."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.host import place
from cascade_train.host.base import Folders
from cascade_train.host.blocker import ExecutionBlocker

if TYPE_CHECKING:
    from PIL import Image

MODEL_FOLDERS = {
    "checkpoints": ("checkpoints",),
    "unet": ("unet", "diffusion_models"),
    "diffusion_models": ("unet", "diffusion_models"),
    "vae": ("vae",),
    "vae_approx": ("vae_approx",),
    "diffusers": ("diffusers",),
    "clip": ("text_encoders", "clip"),
    "text_encoders": ("text_encoders", "clip"),
    "clip_vision": ("clip_vision",),
    "controlnet": ("controlnet",),
    "loras": ("loras",),
    "embeddings": ("embeddings",),
}
"""ComfyUI's names for kinds of models, and the folders under its ``models`` that hold them."""


class ProgressSink(Protocol):
    """Where a headless host's progress and warnings go."""

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None: ...

    def warn(self, text: str) -> None: ...


class Quiet:
    """Shows nothing and keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def tell(self, text: str) -> None:
        return None

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        return None

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def headless_folders(
    output: Path,
    input_folder: Path | None = None,
    models: Sequence[Path] = (),
    read: Sequence[Path] = (),
    *,
    follow_links: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> Folders:
    """The folders of a command line run; nothing is created yet.

    Args:
        output: where everything is written; runs and caches lie in ``cascade/`` under it.
        input_folder: where relative paths of a workflow are looked up first; ``input`` beside the working
            directory when None.
        models: folders laid out as ComfyUI's ``models``.
        read: further folders that a workflow may read from.
        follow_links, allowed_hosts: see `Folders`.
    """
    output = output.expanduser().absolute()
    source = (input_folder or Path("input")).expanduser().absolute()
    roots = [folder.expanduser().absolute() for folder in models]
    kinds = {
        kind: tuple(root / name for root in roots for name in names) for kind, names in MODEL_FOLDERS.items()
    }
    return Folders(
        input=source,
        output=output,
        temp=output / "temp",
        runs=output / "cascade" / "runs",
        cache=output / "cascade" / "cache",
        models=kinds if roots else {},
        extra_read=tuple(folder.expanduser().absolute() for folder in (*read, *roots)),
        follow_links=follow_links,
        allowed_hosts=tuple(allowed_hosts),
    )


class HeadlessHost:
    """What nodes ask of a command line. Nobody sees its previews, so none need be drawn.

    Args:
        folders: see `headless_folders`.
        device: ``auto`` (CUDA, else Apple's MPS, else CPU) or a torch device name.
        sink: shows progress and warnings.
    """

    previews = False

    def __init__(self, folders: Folders, device: str = "auto", sink: ProgressSink | None = None) -> None:
        self._folders = folders
        self._wanted = device
        self.sink: ProgressSink = sink or Quiet()
        self._stop = threading.Event()
        self._kept = 0
        self._warned: set[str] = set()

    @property
    def folders(self) -> Folders:
        return self._folders

    @cached_property
    def device(self) -> str:
        """The torch device, found on first use (so that checking a workflow never imports torch).

        Raises:
            CascadeError: the device asked for is not there.
        """
        import torch

        local = place.local_rank()
        if self._wanted == "auto":
            if torch.cuda.is_available():
                return f"cuda:{local if local < torch.cuda.device_count() else 0}"
            return "mps" if torch.backends.mps.is_available() else "cpu"
        try:
            device = torch.device(self._wanted)
        except RuntimeError:
            raise CascadeError(
                f"'{self._wanted}' is not a device", fix="Use auto, cpu, cuda, cuda:0 or mps"
            ) from None
        if device.type == "cuda":
            count = torch.cuda.device_count()
            index = local if device.index is None else device.index
            if index >= count:
                found = f"{count} CUDA device(s)" if count else "no CUDA device"
                raise CascadeError(
                    f"the device '{self._wanted}' is not there: torch finds {found}",
                    fix="Use --device cpu, or install torch for your GPU",
                )
            return f"cuda:{index}"
        if device.type == "mps" and not torch.backends.mps.is_available():
            raise CascadeError("the device 'mps' is not there", fix="Use --device cpu")
        return str(device)

    @property
    def rank(self) -> int:
        return place.rank()

    @property
    def world_size(self) -> int:
        return place.world_size()

    def progress(self, done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        """Raises `Interrupted` when the person asked to stop, as ComfyUI's progress does."""
        if self.rank == 0:
            self.sink.progress(done, total, text, preview)
        self.check_interrupt()

    def stop(self) -> None:
        """Ask the work to end at its next step boundary."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        self._kept += 1
        try:
            yield
        finally:
            self._kept -= 1

    @property
    def keeps(self) -> bool:
        """Whether work is going on that would be lost if the process ended now."""
        return self._kept > 0

    def check_interrupt(self) -> None:
        if self._stop.is_set():
            raise Interrupted("stopped")

    def warn(self, text: str) -> None:
        """Each line once, on rank 0."""
        if self.rank == 0 and text not in self._warned:
            self._warned.add(text)
            self.sink.warn(text)

    def tell(self, text: str) -> None:
        """On rank 0; a sink that has no ``tell`` shows it as a warning."""
        if self.rank == 0:
            getattr(self.sink, "tell", self.sink.warn)(text)

    def blocked(self, message: str) -> Any:
        return ExecutionBlocker(message)

    def make_room(self) -> None:
        return None

    def executing(self, node_id: str, index: int) -> None:
        return None

    def inference_mode(self, needs_torch: bool) -> AbstractContextManager[Any]:
        if not needs_torch and "torch" not in sys.modules:
            return nullcontext()
        try:
            import torch
        except ImportError:
            return nullcontext()
        return torch.inference_mode()
