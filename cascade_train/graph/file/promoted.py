"""Widgets that a subgraph shows on its instances: which inner widget, and the value that an instance keeps.

Newer files keep the values in the order of the subgraph's inputs (or by name); older ones by a list
``proxyWidgets`` of ``[inner node id or "-1", widget]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cascade_train.graph.file.document import Graph, Node, Port
from cascade_train.graph.file.expanded import MAX_DEPTH, Expanded, Scope
from cascade_train.graph.file.widgets import MISSING, sent_values

InnerWidget = tuple[Node, str]
"""An inner node, and its widget's or (of an inner instance) its input's name."""


class Promoted:
    """The promoted widgets of a expanded document."""

    def __init__(self, expanded: Expanded) -> None:
        self.expanded = expanded
        self._targets: dict[tuple[str, str], InnerWidget | None] = {}
        self._kept: dict[tuple[str, ...], dict[str, Any]] = {}
        for scope in expanded.scopes.values():
            if scope.instance is not None:
                self._kept[scope.path] = dict(self._saved(scope, scope.instance))

    def target(self, graph: Graph, port: Port, depth: int = 0) -> InnerWidget | None:
        """What a subgraph's input stands for; None when it is a plain socket."""
        key = (graph.id, port.name)
        if key not in self._targets:
            self._targets[key] = None  # the answer while looking: a definition may lead back to itself
            self._targets[key] = self._find(graph, port, depth) if depth < MAX_DEPTH else None
        return self._targets[key]

    def _find(self, graph: Graph, port: Port, depth: int) -> InnerWidget | None:
        for link in port.links:
            node, slot = self.expanded.fed(graph).get(link, (None, None))
            if node is None or slot is None:
                continue
            inner = self.expanded.document.subgraphs.get(node.type)
            schema = self.expanded.object_info.get(node.type)
            name = slot.widget or slot.name
            if inner is not None:
                deeper = next((p for p in inner.inputs if p.name == slot.name), None)
                if deeper is not None and self.target(inner, deeper, depth + 1):
                    return node, slot.name
            elif schema is None:
                if slot.widget:
                    return node, slot.widget
            elif name in sent_values(schema, node):
                return node, name
        return None

    def _saved(self, scope: Scope, node: Node) -> Iterator[tuple[str, Any]]:
        """The values in the instance's file entry, by the subgraph's input name."""
        ports = [(port, found) for port in scope.graph.inputs if (found := self.target(scope.graph, port))]
        proxies = node.properties.get("proxyWidgets")
        if isinstance(node.values, Mapping):
            yield from ((port.name, node.values[port.name]) for port, _ in ports if port.name in node.values)
        elif isinstance(proxies, list) and proxies:
            for proxy, value in zip(proxies, node.values):
                name = self._proxied(scope, ports, proxy, value)
                if name is not None and value is not None:
                    yield name, value
        elif node.named is not None and len(node.named) == len(node.values):
            yield from ((port.name, node.named[port.name]) for port, _ in ports if port.name in node.named)
        else:
            yield from ((port.name, value) for (port, _), value in zip(ports, node.values))

    def _proxied(
        self, scope: Scope, ports: list[tuple[Port, InnerWidget]], proxy: Any, value: Any
    ) -> str | None:
        """The input that ``[inner node id, widget]`` stands for; sets the inner widget when there is none."""
        if not isinstance(proxy, list) or len(proxy) < 2:
            return None
        inner_id, name = str(proxy[0]), str(proxy[1])
        for port, (node, widget) in ports:
            if (inner_id == "-1" and port.name == name) or (node.id == inner_id and widget == name):
                return port.name
        inner = scope.graph.nodes.get(inner_id)
        if inner is not None and value is not None and inner.type in self.expanded.object_info:
            values = self.expanded.values(scope, inner)
            if name in values:
                values[name] = value
        return None

    def value(self, scope: Scope, index: int) -> Any:
        """What the unlinked input ``index`` of the subgraph in ``scope`` holds; MISSING for a plain socket.

        The outermost instance that keeps a value wins; else it is the inner widget's.
        """
        while True:
            port = scope.graph.inputs[index]
            kept = self._kept.get(scope.path, {})
            if port.name in kept:
                return kept[port.name]
            found = self.target(scope.graph, port)
            if found is None:
                return MISSING
            node, name = found
            inside = self.expanded.scopes.get((*scope.path, node.id))
            if inside is None:
                if self.expanded.is_instance(node):
                    return MISSING
                return self.expanded.values(scope, node).get(name, MISSING)
            scope = inside
            index = next(i for i, inner in enumerate(scope.graph.inputs) if inner.name == name)
