"""What the executor asks of a node class, read once per run (``INPUT_TYPES`` may list a folder)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any


class ClassFacts:
    """The contract of one node class, V1 or ComfyUI's V3 (which offers V1's names as properties)."""

    def __init__(self, class_type: str, cls: type) -> None:
        self.class_type = class_type
        self.cls = cls
        self.is_v3 = hasattr(cls, "PREPARE_CLASS_CLONE") and hasattr(cls, "GET_SCHEMA")
        self.types: Mapping[str, Any] = cls.INPUT_TYPES()  # type: ignore[attr-defined]
        self.function: str = cls.FUNCTION  # type: ignore[attr-defined]
        self.is_output = getattr(cls, "OUTPUT_NODE", False) is True
        self.input_is_list = bool(getattr(cls, "INPUT_IS_LIST", False))
        self.return_types: tuple[Any, ...] = tuple(getattr(cls, "RETURN_TYPES", None) or ())
        flags = getattr(cls, "OUTPUT_IS_LIST", None)
        self.output_is_list: tuple[bool, ...] | None = None if flags is None else tuple(map(bool, flags))
        self.is_async = inspect.iscoroutinefunction(getattr(cls, self.function, None))
        self.hidden = {
            name: (kind[0] if isinstance(kind, (tuple, list)) and kind else kind)
            for name, kind in dict(self.types.get("hidden") or {}).items()
        }
        # V3's unique_id is not part of the cache key (facts: V1/V3); V1's is.
        self.keyed_by_id = bool(getattr(cls, "NOT_IDEMPOTENT", False)) or (
            not self.is_v3 and "UNIQUE_ID" in self.hidden.values()
        )
        self.fingerprint = self._overridden("fingerprint_inputs", "IS_CHANGED")
        self.validator = self._overridden("validate_inputs", "VALIDATE_INPUTS")
        self.lazy_check = self._overridden("check_lazy_status", "check_lazy_status")

    def _overridden(self, v3_name: str, v1_name: str) -> str | None:
        """The hook's name when the class has it (V3's base class has placeholders that do not count)."""
        if not self.is_v3:
            return v1_name if callable(getattr(self.cls, v1_name, None)) else None
        base = self.cls.GET_BASE_CLASS()  # type: ignore[attr-defined]
        mine, theirs = getattr(self.cls, v3_name, None), getattr(base, v3_name, None)
        own = getattr(mine, "__func__", mine) is not getattr(theirs, "__func__", theirs)
        return v3_name if own else None

    def declared(self, name: str) -> tuple[Any, str, Mapping[str, Any]] | None:
        """(type, category, options) of an input; None when INPUT_TYPES does not have it.

        Asked with ``in`` and ``[]`` only: packs pass dictionaries that answer for any name.
        """
        for category in ("required", "optional", "hidden"):
            group = self.types.get(category)
            if group is not None and name in group:
                entry = group[name]
                if not isinstance(entry, (tuple, list)):
                    return entry, category, {}
                options = entry[1] if len(entry) > 1 and isinstance(entry[1], Mapping) else {}
                return entry[0], category, options
        return None

    def is_lazy(self, name: str) -> bool:
        entry = self.declared(name)
        return entry is not None and bool(entry[2].get("lazy"))

    @cached_property
    def _parameters(self) -> tuple[frozenset[str], bool]:
        """Names that the node's function takes, and whether it takes any name."""
        try:
            signature = inspect.signature(getattr(self.cls, self.function))
        except (TypeError, ValueError):
            return frozenset(), True
        kinds = signature.parameters.values()
        return (
            frozenset(p.name for p in kinds),
            self.is_v3 or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in kinds),
        )

    def takes_link(self, name: str) -> bool:
        """Whether a linked input reaches the node: declared ones do, others only if its function could
        take them (nodes with a growing number of inputs); the rest are dropped, as ComfyUI drops literals."""
        if self.declared(name) is not None:
            return True
        names, any_name = self._parameters
        return any_name or name in names

    @cached_property
    def validator_arguments(self) -> tuple[frozenset[str], bool]:
        """Names that the validation hook takes, and whether it takes any (``**kwargs``)."""
        if self.validator is None:
            return frozenset(), False
        spec = inspect.getfullargspec(getattr(self.cls, self.validator))
        return frozenset([*spec.args, *spec.kwonlyargs]), spec.varkw is not None

    def bind(self, target: Any, function: str, hidden: Mapping[str, Any]) -> Callable[..., Any]:
        """The callable for one of the class's functions on ``target`` (an instance, or the class itself)."""
        if not self.is_v3:
            return getattr(target, function)
        clone = self.cls.PREPARE_CLASS_CLONE(dict(hidden))  # type: ignore[attr-defined]
        method = getattr(self.cls, function).__func__
        if inspect.iscoroutinefunction(method):

            async def bound_async(**inputs: Any) -> Any:
                return await method(clone, **inputs)

            return bound_async
        return lambda **inputs: method(clone, **inputs)


class Registry:
    """Node classes by id, with their facts read on first use."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._facts: dict[str, ClassFacts] = {}

    def __contains__(self, class_type: object) -> bool:
        return class_type in self._classes

    def __getitem__(self, class_type: str) -> ClassFacts:
        """KeyError when the class is unknown."""
        facts = self._facts.get(class_type)
        if facts is None:
            facts = self._facts[class_type] = ClassFacts(class_type, self._classes[class_type])
        return facts
