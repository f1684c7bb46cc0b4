"""The host inside ComfyUI. With `host.comfy_inside`, the only importer of ComfyUI's modules."""

from __future__ import annotations

import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import plain
from cascade_train.host.base import Folders

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger("cascade_train")

PREVIEW_SIDE = 512
"""Longest side of a preview that is sent to the browser, in pixels."""

ALLOW_HOST = "CASCADE_TRAIN_ALLOW_HOST"
"""Names the hosts that remote shards may come from though they are not public: ComfyUI has no option."""

TEXT_INTERVAL = 0.25
"""Least time between two lines of text on a node, in seconds."""


class ComfyHost:
    """What nodes ask of ComfyUI. Its modules are imported when first asked for, never at start."""

    previews = True

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()
        self._shown = 0.0

    @property
    def folders(self) -> Folders:
        """ComfyUI's folders as they are now (its options may move them)."""
        import folder_paths

        output = Path(folder_paths.get_output_directory()).absolute()
        models = {
            kind: tuple(Path(folder) for folder in entry[0])
            for kind, entry in folder_paths.folder_names_and_paths.items()
            if kind != "custom_nodes"
        }
        return Folders(
            input=Path(folder_paths.get_input_directory()).absolute(),
            output=output,
            temp=Path(folder_paths.get_temp_directory()).absolute(),
            runs=output / "cascade" / "runs",
            cache=output / "cascade" / "cache",
            models=models,
            follow_links=True,  # as ComfyUI itself does
            allowed_hosts=tuple(os.environ.get(ALLOW_HOST, "").replace(",", " ").split()),
        )

    @property
    def device(self) -> str:
        import comfy.model_management

        return str(comfy.model_management.get_torch_device())

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    def progress(self, done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        """Raises ComfyUI's interrupt when the person cancelled, as its progress hook does."""
        import comfy.utils

        # The hook is taken when a bar is made, and another prompt may have another: a fresh one each time.
        bar = comfy.utils.ProgressBar(max(1, total))
        picture = None if preview is None else ("JPEG", preview.convert("RGB"), PREVIEW_SIDE)
        if text:
            self._show(plain(text))
        bar.update_absolute(done, max(1, total), picture)

    def _show(self, text: str, at_once: bool = False) -> None:
        """A line of text on the node that runs, where this ComfyUI and its frontend can show one."""
        if not at_once and time.monotonic() - self._shown < TEXT_INTERVAL:
            return
        self._shown = time.monotonic()
        try:
            from comfy_execution.utils import get_executing_context
            from server import PromptServer

            context = get_executing_context()
            if context is not None:
                server = PromptServer.instance
                server.send_progress_text(text, context.node_id, server.client_id)
        except (ImportError, AttributeError):
            return

    def keeping(self) -> AbstractContextManager[None]:
        return nullcontext()  # nobody ends ComfyUI's process over a stop

    def check_interrupt(self) -> None:
        import comfy.model_management

        comfy.model_management.throw_exception_if_processing_interrupted()

    def warn(self, text: str) -> None:
        """In ComfyUI's log and in the browser, once for each queued prompt."""
        text = plain(text)
        once = (_prompt_id(), text)
        if once in self._warned:
            return
        self._warned.add(once)
        log.warning("%s", text)
        server = self._server()
        if server is not None:
            server.send_sync("cascade.warning", {"text": text}, server.client_id)

    def tell(self, text: str) -> None:
        """On the node, in ComfyUI's log and in the browser."""
        self._show(text, at_once=True)
        log.info("%s", text)
        server = self._server()
        if server is not None:
            server.send_sync("cascade.note", {"text": text, "node": _node_id()}, server.client_id)

    @staticmethod
    def _server() -> Any:
        try:
            from server import PromptServer
        except ImportError:
            return None
        return getattr(PromptServer, "instance", None)

    def blocked(self, message: str) -> Any:
        from comfy_execution.graph_utils import ExecutionBlocker

        return ExecutionBlocker(message)

    def make_room(self) -> None:
        """Unload the models that ComfyUI keeps; training memory is outside its accounting."""
        import comfy.model_management

        comfy.model_management.unload_all_models()
        comfy.model_management.soft_empty_cache()


def _context() -> Any:
    """The prompt and node that run, where this ComfyUI tells."""
    try:
        from comfy_execution.utils import get_executing_context
    except ImportError:
        return None
    return get_executing_context()


def _prompt_id() -> str:
    context = _context()
    return "" if context is None else str(context.prompt_id)


def _node_id() -> str:
    context = _context()
    return "" if context is None else str(context.node_id)
