"""VALIDATE_INPUTS has its say before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from cascade_train.errors import CascadeError


def checked(bench: Any, hook: Any) -> type:
    cls = type("Checked", (bench.classes["Add"],), {"VALIDATE_INPUTS": classmethod(hook)})
    return bench.add(cls)


def prompt(bench: Any, a: Any = 1) -> dict[str, Any]:
    return {
        "1": bench.node("Value", value=2),
        "2": bench.node("Checked", "Mine", a=a, b=3),
        "3": bench.node("Show", value=["2", 0]),
    }


def test_true_lets_the_graph_run_and_a_text_refuses_it(bench: Any) -> None:
    checked(bench, lambda cls, a: True if a == 1 else f"{a} is not 1")
    assert bench.run(prompt(bench)).ok
    with pytest.raises(CascadeError, match=r"Mine \(id 2\): a = 2 is refused: 2 is not 1"):
        bench.run(prompt(bench, 2))
    assert bench.calls == []


def test_false_refuses_too(bench: Any) -> None:
    checked(bench, lambda cls, a: False)
    with pytest.raises(CascadeError, match=r"Mine \(id 2\): a = 1 is refused by the node"):
        bench.run(prompt(bench))


def test_kwargs_gets_every_input_and_links_come_as_none(bench: Any) -> None:
    seen: list[Any] = []

    def check(cls: Any, **inputs: Any) -> bool:
        seen.append(inputs)
        return True

    checked(bench, check)
    bench.run(prompt(bench, ["1", 0]))
    assert seen == [{"a": None, "b": 3}]


def test_the_types_of_linked_inputs_are_given_when_asked_for(bench: Any) -> None:
    seen: list[Any] = []

    def check(cls: Any, input_types: Any) -> bool:
        seen.append(input_types)
        return True

    checked(bench, check)
    bench.run(prompt(bench, ["1", 0]))
    assert seen == [{"a": "*"}]


def test_an_async_check_is_awaited(bench: Any) -> None:
    async def hook(cls: type, a: int) -> str:
        return "never"

    checked(bench, hook)
    with pytest.raises(CascadeError, match="never"):
        bench.run(prompt(bench))


def test_a_check_that_crashes_refuses_with_its_error(bench: Any) -> None:
    def hook(cls: type, a: int) -> bool:
        raise KeyError("colour")

    checked(bench, hook)
    with pytest.raises(CascadeError, match="its check of the inputs failed"):
        bench.run(prompt(bench))


def test_nodes_that_no_output_needs_are_not_asked(bench: Any) -> None:
    checked(bench, lambda cls, a: "never")
    assert bench.run({**prompt(bench), "3": bench.node("Show", value=["1", 0])}).ok
