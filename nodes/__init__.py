"""What a person sees in ComfyUI: thin V1 node classes over cascade_train.

`build_mappings` binds them to a host. Ids, input names, their order and the order of outputs are a file
format: append only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import data, models, results, sampling, targets, training
from .checks import hooks

if TYPE_CHECKING:
    from cascade_train.host.base import Host

_TOPICS: tuple[Any, ...] = (models, data, targets, training, results, sampling)

NODES: tuple[type, ...] = tuple(node for topic in _TOPICS for node in topic.NODES)


def build_mappings(host: Host) -> tuple[dict[str, type], dict[str, str]]:
    """(classes by id with ``host`` and `checks` bound, display names by id), as ComfyUI wants them."""
    classes = {
        node.ID: type(node.__name__, (node,), {"host": host, "__module__": node.__module__, **hooks(node.ID)})
        for node in NODES
    }
    return classes, {node.ID: node.DISPLAY_NAME for node in NODES}
