"""Node classes as the graph knows them: each read once, for its ``/object_info`` entry and for the executor.

``INPUT_TYPES`` may list a folder, so a class is read when it is first asked for, and never again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from cascade_train.graph.check.schema import Input, ReadSchema, Schema, read_input


class ClassFacts:
    """What one node class declares: V1, ComfyUI's V3 (which offers V1's names as properties), or only its
    ``/object_info`` entry ``saved`` somewhere (then ``cls`` is None and nothing of it can be called)."""

    def __init__(self, class_type: str, cls: Any, saved: Schema | None = None) -> None:
        self.class_type = class_type
        self.cls = cls
        self._saved = saved
        self.is_v3 = hasattr(cls, "PREPARE_CLASS_CLONE") and hasattr(cls, "GET_SCHEMA")
        self.types: Mapping[str, Any] = cls.INPUT_TYPES() if saved is None else saved.get("input") or {}
        self.function = str(getattr(cls, "FUNCTION", ""))
        if saved is None:
            self.is_output = getattr(cls, "OUTPUT_NODE", False) is True
            self.return_types: tuple[Any, ...] = tuple(getattr(cls, "RETURN_TYPES", None) or ())
        else:
            self.is_output = bool(saved.get("output_node"))
            self.return_types = tuple(saved.get("output") or ())
        self.input_is_list = bool(getattr(cls, "INPUT_IS_LIST", False))
        flags = getattr(cls, "OUTPUT_IS_LIST", None)
        self.output_is_list: tuple[bool, ...] | None = None if flags is None else tuple(map(bool, flags))
        self.is_async = inspect.iscoroutinefunction(getattr(cls, self.function, None))
        self.uses_torch = bool(getattr(cls, "USES_TORCH", True))
        self.fingerprint = self._overridden("fingerprint_inputs", "IS_CHANGED")
        self.validator = self._overridden("validate_inputs", "VALIDATE_INPUTS")
        self.lazy_check = self._overridden("check_lazy_status", "check_lazy_status")
        self._declared: dict[str, Input | None] = {}
        self._takes: dict[str, bool] = {}

    def _overridden(self, v3_name: str, v1_name: str) -> str | None:
        """The hook's name when the class has it (V3's base class has placeholders that do not count)."""
        if not self.is_v3:
            return v1_name if callable(getattr(self.cls, v1_name, None)) else None
        base = self.cls.GET_BASE_CLASS()
        mine, theirs = getattr(self.cls, v3_name, None), getattr(base, v3_name, None)
        own = getattr(mine, "__func__", mine) is not getattr(theirs, "__func__", theirs)
        return v3_name if own else None

    @cached_property
    def schema(self) -> Schema:
        """The class's ``/object_info`` entry."""
        if self._saved is not None:
            return ReadSchema(self._saved)
        cls = self.cls
        outputs = [list(kind) if isinstance(kind, (list, tuple)) else kind for kind in self.return_types]
        entry: dict[str, Any] = {
            "input": self.types,
            "input_order": {group: list(entries) for group, entries in self.types.items()},
            "output": outputs,
            "output_is_list": list(getattr(cls, "OUTPUT_IS_LIST", [False] * len(outputs))),
            "output_name": list(getattr(cls, "RETURN_NAMES", outputs)),
            "output_tooltips": list(getattr(cls, "OUTPUT_TOOLTIPS", ())),
            "name": self.class_type,
            "display_name": str(getattr(cls, "DISPLAY_NAME", self.class_type)),
            "description": str(getattr(cls, "DESCRIPTION", "")),
            "python_module": cls.__module__,
            "category": str(getattr(cls, "CATEGORY", "")),
            "output_node": self.is_output,
            "search_aliases": list(getattr(cls, "SEARCH_ALIASES", ())),
            "checks_itself": self._checks_itself(),
        }
        return ReadSchema(entry)

    def _checks_itself(self) -> list[str]:
        """Inputs that the class checks in its own hook, ``*`` for all (ComfyUI's entries do not say)."""
        names, any_name = self.validator_arguments
        return ["*"] if any_name else [name for name in names if name != "input_types"]

    @cached_property
    def hidden(self) -> Mapping[str, Any]:
        """The kind (``"UNIQUE_ID"``) of each hidden input, by name."""
        return {
            name: (kind[0] if isinstance(kind, (tuple, list)) and kind else kind)
            for name, kind in dict(self.types.get("hidden") or {}).items()
        }

    @cached_property
    def keyed_by_id(self) -> bool:
        """Whether equal nodes are told apart by their ids: V1's that ask for it; V3's are not."""
        asks = not self.is_v3 and "UNIQUE_ID" in self.hidden.values()
        return asks or bool(getattr(self.cls, "NOT_IDEMPOTENT", False))

    def declared(self, name: str) -> Input | None:
        """The input called ``name``, hidden ones included; None when INPUT_TYPES does not have it.

        Asked with ``in`` and ``[]`` only: packs pass dictionaries that answer for any name.
        """
        if name not in self._declared:
            self._declared[name] = self._read(name)
        return self._declared[name]

    def _read(self, name: str) -> Input | None:
        for group in ("required", "optional", "hidden"):
            entries = self.types.get(group)
            if entries is not None and name in entries:
                return read_input(name, entries[name], group == "required")
        return None

    def is_lazy(self, name: str) -> bool:
        entry = self.declared(name)
        return entry is not None and bool(entry.options.get("lazy"))

    def takes_link(self, name: str) -> bool:
        """Whether a linked input reaches the node: declared ones do, others only if its function could
        take them (nodes with a growing number of inputs, and classes whose function is not known); the rest
        are dropped, as ComfyUI drops literals."""
        if name not in self._takes:
            names, any_name = self._parameters
            self._takes[name] = any_name or name in names or self.declared(name) is not None
        return self._takes[name]

    @cached_property
    def _parameters(self) -> tuple[frozenset[str], bool]:
        """Names that the node's function takes, and whether it takes any name."""
        try:
            signature = inspect.signature(getattr(self.cls, self.function))
        except (AttributeError, TypeError, ValueError):
            return frozenset(), True
        kinds = signature.parameters.values()
        return (
            frozenset(p.name for p in kinds),
            self.is_v3 or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in kinds),
        )

    @cached_property
    def validator_arguments(self) -> tuple[tuple[str, ...], bool]:
        """Names that the validation hook takes, and whether it takes any (``**kwargs``)."""
        if self.validator is None:
            return (), False
        hook = getattr(self.cls, self.validator)
        spec = inspect.getfullargspec(hook)
        return (*spec.args[inspect.ismethod(hook) :], *spec.kwonlyargs), spec.varkw is not None

    def bind(self, target: Any, function: str, hidden: Mapping[str, Any]) -> Callable[..., Any]:
        """The callable for one of the class's functions on ``target`` (an instance, or the class itself)."""
        if not self.is_v3:
            return getattr(target, function)
        clone = self.cls.PREPARE_CLASS_CLONE(dict(hidden))
        method = getattr(self.cls, function).__func__
        if inspect.iscoroutinefunction(method):

            async def bound_async(**inputs: Any) -> Any:
                return await method(clone, **inputs)

            return bound_async
        return lambda **inputs: method(clone, **inputs)


class Classes(Mapping[str, ClassFacts]):
    """The node classes that a workflow may name, by id; `from_schemas` when there are only their entries."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes: Mapping[str, Any] = classes
        self._saved: Mapping[str, Schema] | None = None
        self._facts: dict[str, ClassFacts] = {}

    @classmethod
    def from_schemas(cls, object_info: Mapping[str, Schema]) -> Classes:
        """Classes known by their ``/object_info`` entries alone: enough to check, not to run."""
        made = cls({})
        made._saved = object_info
        return made

    @property
    def can_run(self) -> bool:
        """Whether the classes themselves are here."""
        return self._saved is None

    def __getitem__(self, class_type: str) -> ClassFacts:
        """KeyError when the class is unknown."""
        facts = self._facts.get(class_type)
        if facts is None:
            if self._saved is None:
                facts = ClassFacts(class_type, self._classes[class_type])
            else:
                facts = ClassFacts(class_type, None, self._saved[class_type])
            self._facts[class_type] = facts
        return facts

    def __contains__(self, class_type: object) -> bool:
        return class_type in (self._classes if self._saved is None else self._saved)

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes if self._saved is None else self._saved)

    def __len__(self) -> int:
        return len(self._classes if self._saved is None else self._saved)

    def title(self, class_type: str) -> str:
        """The class's name for people, found without reading its inputs; "" when it has none."""
        return str(getattr(self._classes.get(class_type), "DISPLAY_NAME", ""))

    def takes(self, node: Mapping[str, Any], name: str) -> bool:
        """Whether a link at the node's input ``name`` reaches it; see `ClassFacts.takes_link`."""
        return node["class_type"] not in self or self[node["class_type"]].takes_link(name)

    @cached_property
    def schemas(self) -> Mapping[str, Schema]:
        """Every class's ``/object_info`` entry, made when it is asked for."""
        return _Schemas(self)


class _Schemas(Mapping[str, Schema]):
    def __init__(self, classes: Classes) -> None:
        self._classes = classes

    def __getitem__(self, class_type: str) -> Schema:
        return self._classes[class_type].schema

    def get(self, class_type: str, default: Any = None) -> Any:
        # Mapping's own would take a KeyError of a class's INPUT_TYPES for a class that is not there.
        return self[class_type] if class_type in self._classes else default

    def __contains__(self, class_type: object) -> bool:
        return class_type in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def object_info(classes: Mapping[str, type]) -> dict[str, Schema]:
    """The ``/object_info`` entry of each class, by id."""
    return dict(Classes(classes).schemas)
