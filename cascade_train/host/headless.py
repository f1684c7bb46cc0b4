"""The host of a command line: folders from options, one device, Ctrl-C, progress handed to a listener."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from cascade_train.errors import STOPPED, CascadeError, Interrupted
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
    output: Path, input_folder: Path | None = None, models: Sequence[Path] = (), read: Sequence[Path] = ()
) -> Folders:
    """The folders of a command line run; nothing is created yet.

    Args:
        output: where everything is written; runs and caches lie in ``cascade/`` under it.
        input_folder: where relative paths of a workflow are looked up first; ``input`` beside the working
            directory when None.
        models: folders laid out as ComfyUI's ``models``.
        read: further folders that a workflow may read from.
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


SAME_REQUEST = 1.0
"""Seconds within which a second signal is the same request: a console tells all processes, and then their
launcher tells them again."""


@contextmanager
def stop_on_signals(host: HeadlessHost, told: Callable[[str], None]) -> Iterator[None]:
    """Within the block the first Ctrl-C (or SIGTERM) asks ``host`` to stop, a second one ends the process.
    ``told`` is told so on rank 0.

    Files are written beside and renamed, so ending at once loses only the work since the last checkpoint.
    Does nothing outside the main thread, where signals cannot be caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked = [0.0]

    def caught(number: int, frame: FrameType | None) -> None:
        if host.stopping:
            if host.world_size > 1 and time.monotonic() - asked[0] < SAME_REQUEST:
                return
            os._exit(STOPPED)
        asked[0] = time.monotonic()
        host.stop()
        if host.rank == 0:
            told(
                "Stopping at the next step; running the same file again continues. "
                "Ctrl-C again stops at once."
            )

    names = ("SIGINT", "SIGTERM", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before: list[Any] = [signal.signal(number, caught) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
