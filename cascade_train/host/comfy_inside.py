"""A ComfyUI folder used from the command line: its node classes and its folders, without its server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.host.base import Folders
from cascade_train.host.headless import HeadlessHost, ProgressSink, headless_folders

log = logging.getLogger("cascade_train")


class ComfyInsideHost(HeadlessHost):
    """A headless host beside a loaded ComfyUI, which it tells what runs and asks for room."""

    def executing(self, node_id: str, index: int) -> None:
        """Core's GraphBuilder takes the prefix of new ids from the running node, and progress goes to it.

        ComfyUI's of before these modules are left alone.
        """
        builder = getattr(sys.modules.get("comfy_execution.graph_utils"), "GraphBuilder", None)
        if builder is not None:
            builder.set_default_prefix(node_id, index, 0)
        utils = sys.modules.get("comfy_execution.utils")
        if utils is not None and hasattr(utils, "current_executing_context"):
            utils.current_executing_context.set(utils.ExecutionContext("cascade-train", node_id, index))

    def make_room(self) -> None:
        import comfy.model_management

        comfy.model_management.unload_all_models()
        comfy.model_management.soft_empty_cache()


def enter_comfyui(
    folder: Path,
    *,
    output: Path | None = None,
    input_folder: Path | None = None,
    models: Sequence[Path] = (),
    read: Sequence[Path] = (),
    device: str = "auto",
    sink: ProgressSink | None = None,
    before_packs: Callable[[], object] = lambda: None,
    follow_links: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> tuple[HeadlessHost, Mapping[str, type]]:
    """Load the ComfyUI in ``folder`` into this process.

    Args:
        folder: where its ``main.py`` lies; goes first on ``sys.path``, since core's modules have short names.
        output, input_folder: its own ``output`` and ``input`` when None.
        models, read, follow_links, allowed_hosts: see `headless_folders`; its model folders are there too.
        before_packs: called before its custom nodes are loaded (to load what must not come from one of them).

    Returns:
        The host, and all its node classes by id: core's and the packs' under ``custom_nodes``.

    Raises:
        CascadeError: the folder holds no ComfyUI, or this Python lacks what it needs.
    """
    folder = folder.expanduser().absolute()
    if not (folder / "nodes.py").is_file() or not (folder / "folder_paths.py").is_file():
        raise CascadeError(f"there is no ComfyUI in '{folder}'", fix="Give the folder that holds its main.py")
    loaded = sys.modules.get("nodes")
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "?").parent != folder:
        raise CascadeError("another module called 'nodes' is loaded already", where=str(loaded.__file__))
    sys.path.insert(0, str(folder))
    folders = headless_folders(
        output or folder / "output",
        input_folder or folder / "input",
        models,
        read,
        follow_links=follow_links,
        allowed_hosts=allowed_hosts,
    )
    host = ComfyInsideHost(folders, device, sink)
    before_packs()
    # Core and packs print while they load; standard output belongs to this command's report.
    with contextlib.redirect_stdout(sys.stderr), _quiet_log():
        try:
            classes = _load(host, folder)
        except ModuleNotFoundError as error:
            raise CascadeError(
                f"ComfyUI needs the package '{error.name}', which this Python lacks",
                where=sys.executable,
                fix=f"Use ComfyUI's own Python, or: pip install -r {folder / 'requirements.txt'}",
            ) from None
    return host, classes


@contextlib.contextmanager
def _quiet_log() -> Any:
    """Only errors of the loading, so that a missing package of one custom node is still told."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def _load(host: HeadlessHost, folder: Path) -> Mapping[str, type]:
    from comfy.cli_args import args  # its parser is off unless main.py turns it on, so argv is left alone

    device = host.device
    args.cpu = device == "cpu"
    import folder_paths

    folder_paths.set_output_directory(str(host.folders.output))
    folder_paths.set_input_directory(str(host.folders.input))
    folder_paths.set_temp_directory(str(host.folders.temp))
    more = folder / "extra_model_paths.yaml"
    if more.is_file():
        importlib.import_module("utils.extra_config").load_extra_path_config(str(more))
    for kind, places in host.folders.models.items():
        for place in places:
            folder_paths.add_model_folder_path(kind, str(place), is_default=True)
    host._folders = _with_models(host.folders, folder_paths)
    if device.startswith("cuda:"):
        import torch

        torch.cuda.set_device(device)  # before core looks for the current one
    nodes: Any = importlib.import_module("nodes")
    _server()
    made = nodes.init_extra_nodes(init_custom_nodes=True, init_api_nodes=False)
    if asyncio.iscoroutine(made):
        asyncio.run(made)
    _follow_progress(host)
    return dict(nodes.NODE_CLASS_MAPPINGS)


def _with_models(folders: Folders, folder_paths: Any) -> Folders:
    models = {
        kind: tuple(Path(place) for place in entry[0])
        for kind, entry in folder_paths.folder_names_and_paths.items()
        if kind != "custom_nodes"
    }
    return replace(folders, models=models)


def _server() -> None:
    """Packs add routes to the server when they are loaded: an object that never listens is enough."""
    try:
        server: Any = importlib.import_module("server")
        if getattr(server.PromptServer, "instance", None) is None:
            server.PromptServer(asyncio.new_event_loop())
    except (Exception, SystemExit) as error:
        log.warning("packs that add routes to ComfyUI's server will not load: %s", error)


def _follow_progress(host: HeadlessHost) -> None:
    """Progress bars of core's and other packs' nodes go to the host, and stop as in ComfyUI."""
    import comfy.model_management
    import comfy.utils

    def hook(value: float, total: float, preview: Any = None, **more: Any) -> None:
        try:
            host.check_interrupt()
        except Interrupted:
            raise comfy.model_management.InterruptProcessingException() from None
        host.progress(int(value), int(total))

    comfy.utils.set_progress_bar_global_hook(hook)
