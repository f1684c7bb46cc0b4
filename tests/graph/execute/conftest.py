"""Small node classes with every trait of the contract, and a way to run prompts made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade_train.graph.run.execute import run_prompt
from cascade_train.graph.run.report import Event, Report
from cascade_train.host.blocker import ExecutionBlocker
from cascade_train.host.headless import HeadlessHost, headless_folders


class Bench:
    """A set of node classes, the calls they got, and runs of prompts."""

    def __init__(self, folder: Path) -> None:
        self.host = HeadlessHost(headless_folders(folder / "out", folder / "in"), "cpu")
        self.calls: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.classes: dict[str, type] = {}
        self.salt: Any = "same"
        for cls in _classes(self):
            self.classes[cls.__name__] = cls

    def node(self, class_type: str, title: str = "", **inputs: Any) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": inputs, "_meta": {"title": title or class_type}}

    def run(self, prompt: dict[str, Any], **more: Any) -> Report:
        self.calls.clear()
        self.events.clear()
        return run_prompt(prompt, self.classes, self.host, listener=self.events.append, **more)

    def add(self, cls: type) -> type:
        self.classes[cls.__name__] = cls
        return cls


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def shown() -> Callable[[Report, str], list[str]]:
    """What a Show node of a report shows."""
    return lambda report, node_id: list(report.outputs()[node_id]["text"])


def _classes(bench: Bench) -> list[type]:
    class Value:
        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"value": ("*", {})}}

        def run(self, value: Any) -> tuple[Any]:
            bench.calls.append(("Value", value))
            return (value,)

    class Add:
        RETURN_TYPES = ("INT",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"a": ("INT", {"default": 0}), "b": ("INT", {"default": 0})}}

        def run(self, a: int, b: int) -> tuple[int]:
            bench.calls.append(("Add", a, b))
            return (a + b,)

    class Show:
        RETURN_TYPES = ()
        FUNCTION = "run"
        OUTPUT_NODE = True
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"value": ("*", {})}}

        def run(self, value: Any) -> dict[str, Any]:
            bench.calls.append(("Show", value))
            return {"ui": {"text": [str(value)]}}

    class Fail:
        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"text": ("STRING", {})}}

        def run(self, text: str) -> tuple[Any]:
            bench.calls.append(("Fail", text))
            raise RuntimeError(text)

    class Salted(Value):
        @classmethod
        def IS_CHANGED(cls, value: Any) -> Any:
            if isinstance(bench.salt, Exception):
                raise bench.salt
            return bench.salt

    class Many:
        """A list of numbers, as a list output."""

        RETURN_TYPES = ("INT",)
        OUTPUT_IS_LIST = (True,)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"count": ("INT", {})}}

        def run(self, count: int) -> tuple[list[int]]:
            return (list(range(count)),)

    class Total:
        RETURN_TYPES = ("INT",)
        INPUT_IS_LIST = True
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"values": ("INT", {}), "factor": ("INT", {})}}

        def run(self, values: list[int], factor: list[int]) -> tuple[int]:
            bench.calls.append(("Total", values, factor))
            return (sum(values) * factor[0],)

    class Choose:
        """Takes one of two inputs, and asks for that one only."""

        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            lazy = {"lazy": True}
            return {"required": {"first": ("BOOLEAN", {}), "a": ("*", lazy), "b": ("*", lazy)}}

        def check_lazy_status(self, first: bool, a: Any = None, b: Any = None) -> list[str]:
            return ["a" if first else "b"]

        def run(self, first: bool, a: Any = None, b: Any = None) -> tuple[Any]:
            return (a if first else b,)

    class Block:
        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            required: dict[str, Any] = {"value": ("*", {}), "when": ("*", {})}
            return {"required": required, "optional": {"message": ("STRING", {})}}

        def run(self, value: Any, when: Any, message: str = "") -> tuple[Any]:
            return (ExecutionBlocker(message or None) if value == when else value,)

    class Sum:
        """Adds 1 ``times`` times, each time in a node that it adds."""

        RETURN_TYPES = ("INT",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"start": ("INT", {}), "times": ("INT", {})}, "hidden": {"me": "UNIQUE_ID"}}

        def run(self, start: int, times: int, me: str) -> Any:
            bench.calls.append(("Sum", start, times))
            if times == 0:
                return (start,)
            rest = {"start": [f"{me}.add", 0], "times": times - 1}
            return {
                "result": ([f"{me}.rest", 0],),
                "expand": {
                    f"{me}.add": {"class_type": "Add", "inputs": {"a": start, "b": 1}},
                    f"{me}.rest": {"class_type": "Sum", "inputs": rest},
                },
            }

    class Later:
        """An async node."""

        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"value": ("*", {}), "seconds": ("FLOAT", {"default": 0.0})}}

        async def run(self, value: Any, seconds: float = 0.0) -> tuple[Any]:
            bench.calls.append(("Later starts", value))
            await asyncio.sleep(seconds)
            bench.calls.append(("Later ends", value))
            if value == "boom":
                raise ValueError("boom")
            return (value,)

    class Hidden:
        RETURN_TYPES = ()
        FUNCTION = "run"
        OUTPUT_NODE = True
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            kinds = {"me": "UNIQUE_ID", "prompt": "PROMPT", "extra": "EXTRA_PNGINFO", "live": "DYNPROMPT"}
            return {"required": {}, "hidden": kinds}

        def run(self, me: str, prompt: Any, extra: Any, live: Any) -> dict[str, Any]:
            bench.calls.append(("Hidden", me, prompt, extra, live))
            return {"ui": {"text": [me]}}

    class Raw:
        RETURN_TYPES = ()
        FUNCTION = "run"
        OUTPUT_NODE = True
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"wire": ("*", {"rawLink": True})}}

        def run(self, wire: Any) -> dict[str, Any]:
            return {"ui": {"text": [repr(wire)]}}

    return [Value, Add, Show, Fail, Salted, Many, Total, Choose, Block, Sum, Later, Hidden, Raw]
