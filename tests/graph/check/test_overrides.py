"""``--set`` and ``--only``: nodes by title or id, values by the schema's type, near names if nothing fits."""

from __future__ import annotations

from typing import Any

import pytest

from cascade_train.errors import CascadeError
from cascade_train.graph.check.classes import object_info
from cascade_train.graph.check.overrides import apply_settings, find_node
from cascade_train.graph.check.reach import reached


class Numbers:
    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "steps": ("INT", {"default": 20}),
                "rate": ("FLOAT", {"default": 1e-4}),
                "on": ("BOOLEAN", {}),
                "name": ("STRING", {"default": ""}),
                "kind": (["lora", "full"],),
                "rank": ([4, 8, 16],),
                "image": ("IMAGE",),
            }
        }


INFO = object_info({"Numbers": Numbers})


def prompt() -> dict[str, Any]:
    def node(title: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": "Numbers", "inputs": inputs, "_meta": {"title": title}}

    return {
        "1": node("Train Steps", steps=20, image=["2", 0]),
        "2": node("v1.5 model", name="a"),
        "7:3": node("Twin"),
        "8": node("Twin"),
        "9": node("train steps two", image=["1", 0]),
    }


def changed(*settings: str) -> dict[str, Any]:
    return apply_settings(prompt(), settings, INFO)


def test_values_have_the_type_that_the_schema_says() -> None:
    inputs = changed(
        "Train Steps.steps=200", "1.rate=3e-5", "1.on=false", "1.name=007", "1.kind=full", "1.rank=8"
    )["1"]["inputs"]
    assert inputs == {
        "steps": 200,
        "rate": 3e-5,
        "on": False,
        "name": "007",
        "kind": "full",
        "rank": 8,
        "image": ["2", 0],
    }
    assert prompt()["1"]["inputs"]["steps"] == 20


def test_titles_may_have_dots_quotes_and_any_case_and_values_equals_signs() -> None:
    assert changed("v1.5 model.name=x=y")["2"]["inputs"]["name"] == "x=y"
    assert changed('"V1.5 MODEL".name=')["2"]["inputs"]["name"] == ""
    assert changed("7:3.steps=1")["7:3"]["inputs"]["steps"] == 1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "Train Stps.steps=1",
            "no node is called 'Train Stps' (--set Train Stps.steps=1). Nearest: 'Train Steps'",
        ),
        ("1.step=1", "'Train Steps' has no input 'step' (--set 1.step=1). Nearest: 'steps'"),
        ("1.steps=many", "'many' is not a whole number"),
        ("1.on=perhaps", "is not true or false"),
        ("1.image=x", "takes an IMAGE at 'image', which only a wire can bring"),
        ("Twin.steps=1", "2 nodes are called 'Twin'"),
        ("steps", "has not the form node.input=value"),
        ("steps=3", "has not the form node.input=value"),
    ],
)
def test_what_does_not_fit_says_what_would(setting: str, words: str) -> None:
    with pytest.raises(CascadeError) as error:
        changed(setting)
    assert words in str(error.value)


def test_named_nodes_keep_what_they_need() -> None:
    def only(*names: str) -> set[str]:
        return set(reached(prompt(), [find_node(prompt(), name) for name in names]).order)

    assert only("Train Steps") == {"1", "2"}
    assert only("9", "8") == {"1", "2", "8", "9"}
    assert only(*prompt()) == set(prompt())
    with pytest.raises(CascadeError, match="Nearest"):
        only("Train Stps")


def test_an_exact_title_wins_over_one_in_other_case() -> None:
    nodes = prompt()
    nodes["10"] = {"class_type": "Numbers", "inputs": {}, "_meta": {"title": "TRAIN STEPS"}}
    assert find_node(nodes, "Train Steps") == "1"
    assert find_node(nodes, "TRAIN STEPS") == "10"
