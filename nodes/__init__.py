"""What a person sees in ComfyUI: thin V1 node classes over cascade_train.

`build_mappings` binds them to a host. Ids, input names, their order and the order of outputs are a file
format: append only.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from . import caches, data, models, results, sampling, sources, targets, training
from .base import CascadeNode
from .checks import hooks

if TYPE_CHECKING:
    from cascade_train.host.base import Host

_TOPICS = (models, sources, data, caches, targets, training, results, sampling)
"""In the order in which their nodes are listed."""


def nodes_of(topic: ModuleType) -> tuple[type[CascadeNode], ...]:
    """The node classes that a module defines, in the order in which it does."""
    return tuple(
        found
        for found in vars(topic).values()
        if isinstance(found, type)
        and issubclass(found, CascadeNode)
        and found.__module__ == topic.__name__
        and hasattr(found, "ID")
    )


NODES: tuple[type[CascadeNode], ...] = tuple(node for topic in _TOPICS for node in nodes_of(topic))


def build_mappings(host: Host) -> tuple[dict[str, type], dict[str, str]]:
    """(classes by id with ``host`` and their checks bound, display names by id), as ComfyUI wants them."""
    classes = {
        node.ID: type(node.__name__, (node,), {"host": host, "__module__": node.__module__, **hooks(node)})
        for node in NODES
    }
    return classes, {node.ID: node.DISPLAY_NAME for node in NODES}
