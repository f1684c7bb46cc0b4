"""Which node classes a workflow may name: this pack's, and core's (stand-ins, or ComfyUI's own)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from cascade_train.errors import CascadeError
from cascade_train.graph.core.standins import standins
from cascade_train.host.base import Host

PACK = "cascade_train_nodes"
"""The name under which this pack's folder ``nodes`` is imported; core has a module called ``nodes``."""


def pack_nodes() -> ModuleType:
    """The package of this pack's nodes: installed, or the folder beside the library.

    Raises:
        CascadeError: neither is there.
    """
    if PACK in sys.modules:
        return sys.modules[PACK]
    try:
        return importlib.import_module(PACK)
    except ModuleNotFoundError as error:
        if error.name != PACK:
            raise
    folder = Path(__file__).resolve().parents[3] / "nodes"
    spec = importlib.util.spec_from_file_location(
        PACK, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if not folder.is_dir() or spec is None or spec.loader is None:
        raise CascadeError(
            "the nodes of Cascade Train are not installed", fix="Install it again: pip install cascade-train"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACK] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[PACK]
        raise
    return module


def node_classes(host: Host, comfyui: Mapping[str, type] | None = None) -> dict[str, type]:
    """Every class a workflow may name, by id: this pack's with ``host`` bound, and the stand-ins, or
    (``comfyui``) core's own and those of other packs. This pack's own always win."""
    others = standins(host) if comfyui is None else comfyui
    return {**others, **pack_nodes().build_mappings(host)[0]}
