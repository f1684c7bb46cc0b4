"""Graphs run as in ComfyUI: order, lists, lazy inputs, expansion, blockers, hidden inputs, async nodes."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from cascade_train.errors import CascadeError


def test_a_chain_runs_each_node_once_and_reports_what_it_shows(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Value", value=2),
            "2": bench.node("Add", a=["1", 0], b=3),
            "3": bench.node("Add", a=["2", 0], b=["1", 0]),
            "4": bench.node("Show", value=["3", 0]),
            "9": bench.node("Value", value="nobody needs this"),
        }
    )
    assert report.ok and report.exit_code == 0
    assert shown(report, "4") == ["7"]
    assert bench.calls == [("Value", 2), ("Add", 2, 3), ("Add", 5, 2), ("Show", 7)]
    assert [n.node_id for n in report.nodes] == ["1", "2", "3", "4"]


def test_literals_get_their_inputs_type_and_unknown_ones_are_dropped(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Add", a="4", b=1.0, colour="red"),
            "2": bench.node("Value", value={"__value__": [1, 2]}),
            "3": bench.node("Show", value=["1", 0]),
            "4": bench.node("Show", value=["2", 0], extra=["1", 0]),
        }
    )
    assert shown(report, "3") == ["5"] and shown(report, "4") == ["[1, 2]"]


def test_a_literal_that_cannot_be_converted_is_refused_before_anything_runs(bench: Any) -> None:
    with pytest.raises(CascadeError, match=r"Sum up \(id 1\): a = 'four' is not a whole number"):
        bench.run({"1": bench.node("Add", "Sum up", a="four", b=1), "2": bench.node("Show", value=["1", 0])})
    assert bench.calls == []


def test_outputs_run_in_the_same_order_however_the_file_is_written(bench: Any) -> None:
    prompt = {str(n): bench.node("Show", value=n) for n in (10, 2, 1, 33, 4)}
    prompt["5:2"] = bench.node("Show", value="5:2")
    orders = set()
    for seed in range(5):
        keys = list(prompt)
        random.Random(seed).shuffle(keys)
        report = bench.run({key: prompt[key] for key in keys})
        orders.add(tuple(n.node_id for n in report.nodes))
    assert orders == {("1", "2", "4", "5:2", "10", "33")}


def test_a_picture_is_shown_before_the_next_long_step(bench: Any) -> None:
    """A chain with a side branch after each link: every branch is done before the chain goes on."""
    bench.run(
        {
            "1": bench.node("Value", value=0),
            "2": bench.node("Add", a=["1", 0], b=1),
            "8": bench.node("Show", value=["2", 0]),
            "3": bench.node("Add", a=["2", 0], b=1),
            "7": bench.node("Show", value=["3", 0]),
            "4": bench.node("Add", a=["3", 0], b=1),
            "6": bench.node("Show", value=["4", 0]),
        }
    )
    assert [c[-1] for c in bench.calls if c[0] == "Show"] == [1, 2, 3]
    assert bench.calls.index(("Show", 1)) < bench.calls.index(("Add", 1, 1))


def test_lists_fan_out_and_shorter_ones_repeat_their_last(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Many", count=4),
            "2": bench.node("Many", count=2),
            "3": bench.node("Add", a=["1", 0], b=["2", 0]),
            "4": bench.node("Show", value=["3", 0]),
            "5": bench.node("Total", values=["3", 0], factor=10),
            "6": bench.node("Show", value=["5", 0]),
        }
    )
    assert shown(report, "4") == ["0", "2", "3", "4"]
    assert ("Total", [0, 2, 3, 4], [10]) in bench.calls
    assert shown(report, "6") == ["90"]


def test_an_empty_list_is_an_error_that_names_the_input(bench: Any) -> None:
    report = bench.run({"1": bench.node("Many", count=0), "2": bench.node("Show", "Look", value=["1", 0])})
    assert "the input 'value' is empty" in report.failed[0].error


def test_lazy_inputs_that_are_not_asked_for_do_not_run(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Value", value="cheap"),
            "2": bench.node("Fail", text="never run me"),
            "3": bench.node("Choose", first=True, a=["1", 0], b=["2", 0]),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    assert report.ok and shown(report, "4") == ["cheap"]
    assert [n.node_id for n in report.nodes] == ["1", "3", "4"]


def test_asking_for_a_lazy_input_that_is_not_linked_is_an_error_of_that_node(bench: Any) -> None:
    base: Any = bench.classes["Choose"]

    @bench.add
    class Greedy(base):
        def check_lazy_status(self, **inputs: Any) -> list[str]:
            return ["nothing"]

    report = bench.run(
        {
            "1": bench.node("Greedy", first=True, a=1, b=2),
            "2": bench.node("Show", value=["1", 0]),
        }
    )
    assert "asks for its input 'nothing', which is not linked" in report.failed[0].error


def test_a_node_may_expand_into_nodes_that_expand_again(bench: Any, shown: Any) -> None:
    report = bench.run({"1": bench.node("Sum", start=5, times=30), "2": bench.node("Show", value=["1", 0])})
    assert shown(report, "2") == ["35"]
    assert [n.node_id for n in report.nodes] == ["1", "2"], "only nodes of the file are reported"


def test_an_expansion_that_fails_fails_the_node_that_made_it(bench: Any) -> None:
    base: Any = bench.classes["Sum"]

    @bench.add
    class Maker(base):
        def run(self, me: str, **inputs: Any) -> Any:
            inner = {"x": {"class_type": "Fail", "inputs": {"text": "inside"}}}
            return {"result": (["x", 0],), "expand": inner}

    report = bench.run({"1": bench.node("Maker", start=0, times=0), "2": bench.node("Show", value=["1", 0])})
    assert [(n.node_id, n.state) for n in report.nodes] == [("1", "failed"), ("2", "skipped")]
    assert "RuntimeError: inside" in report.nodes[0].error


@pytest.mark.parametrize(
    "expand",
    [
        {"1": {"class_type": "Add", "inputs": {}}},
        {"new": {"class_type": "NoSuchClass", "inputs": {}}},
    ],
    ids=["an id that exists", "an unknown class"],
)
def test_a_bad_expansion_is_an_error_not_a_crash(bench: Any, expand: Any) -> None:
    base: Any = bench.classes["Sum"]

    @bench.add
    class Maker(base):
        def run(self, me: str, **inputs: Any) -> Any:
            return {"result": (0,), "expand": expand}

    report = bench.run({"1": bench.node("Maker", start=0, times=0), "2": bench.node("Show", value=["1", 0])})
    assert [n.state for n in report.nodes] == ["failed", "skipped"]


def test_a_cycle_made_by_an_expansion_is_found(bench: Any) -> None:
    base: Any = bench.classes["Sum"]

    @bench.add
    class Loop(base):
        def run(self, me: str, **inputs: Any) -> Any:
            return {
                "result": (["p", 0],),
                "expand": {
                    "p": {"class_type": "Add", "inputs": {"a": ["q", 0], "b": 1}},
                    "q": {"class_type": "Add", "inputs": {"a": ["p", 0], "b": 1}},
                },
            }

    report = bench.run({"1": bench.node("Loop", start=0, times=0), "2": bench.node("Show", value=["1", 0])})
    assert "cycle" in report.failed[0].error and report.failed[0].node_id == "1"


def test_a_silent_blocker_leaves_a_branch_out_and_is_no_failure(bench: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Block", value=1, when=1),
            "2": bench.node("Add", a=["1", 0], b=1),
            "3": bench.node("Show", value=["2", 0]),
            "4": bench.node("Show", value="other"),
        }
    )
    assert report.exit_code == 0
    states = {n.node_id: n.state for n in report.nodes}
    assert states == {"1": "ran", "2": "blocked", "3": "blocked", "4": "ran"}
    assert bench.calls == [("Show", "other")]


def test_a_blocker_with_a_message_is_an_error_of_the_first_node_that_takes_it(bench: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Block", value=1, when=1, message="no face found"),
            "2": bench.node("Add", a=["1", 0], b=1),
            "3": bench.node("Show", value=["2", 0]),
        }
    )
    assert report.exit_code == 1
    assert [(n.node_id, n.error) for n in report.failed] == [("2", "no face found")]


def test_a_blocker_in_a_list_drops_only_its_item(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Many", count=3),
            "2": bench.node("Block", value=["1", 0], when=1),
            "3": bench.node("Add", a=["2", 0], b=10),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    assert shown(report, "4") == ["10", "12"]


def test_comfyuis_own_blocker_is_recognised(bench: Any) -> None:
    foreign = type("ExecutionBlocker", (), {"message": None})

    base: Any = bench.classes["Value"]

    @bench.add
    class Foreign(base):
        def run(self, value: Any) -> Any:
            return foreign()

    report = bench.run({"1": bench.node("Foreign", value=1), "2": bench.node("Show", value=["1", 0])})
    assert {n.node_id: n.state for n in report.nodes} == {"1": "ran", "2": "blocked"}


def test_hidden_inputs_hold_the_id_the_prompt_and_the_workflow(bench: Any) -> None:
    prompt = {"1:7": bench.node("Hidden")}
    bench.run(prompt, extra_pnginfo={"workflow": {"nodes": []}})
    _, me, given, extra, live = bench.calls[0]
    assert me == "1:7" and extra == {"workflow": {"nodes": []}}
    assert given["1:7"]["class_type"] == "Hidden" and live.get_node("1:7")["class_type"] == "Hidden"


def test_a_raw_link_passes_the_link_itself(bench: Any, shown: Any) -> None:
    report = bench.run({"1": bench.node("Value", value=1), "2": bench.node("Raw", wire=["1", 0])})
    assert shown(report, "2") == ["['1', 0]"]


def test_a_growing_number_of_inputs_reaches_a_node_that_takes_any(bench: Any, shown: Any) -> None:
    base: Any = bench.classes["Value"]

    @bench.add
    class Join(base):
        def run(self, value: Any, **more: Any) -> tuple[str]:
            return ("+".join([str(value), *(str(more[k]) for k in sorted(more))]),)

    report = bench.run(
        {
            "1": bench.node("Value", value="b"),
            "2": bench.node("Join", value="a", value2=["1", 0], value3="dropped"),
            "3": bench.node("Show", value=["2", 0]),
        }
    )
    assert shown(report, "3") == ["a+b"]


def test_async_nodes_run_at_the_same_time(bench: Any, shown: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Later", value="a", seconds=0.05),
            "2": bench.node("Later", value="b", seconds=0.05),
            "3": bench.node("Show", value=["1", 0]),
            "4": bench.node("Show", value=["2", 0]),
        }
    )
    assert [c[0] for c in bench.calls[:2]] == ["Later starts", "Later starts"]
    assert shown(report, "3") == ["a"] and shown(report, "4") == ["b"]


def test_an_async_node_that_fails_stops_only_its_branch(bench: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Later", value="boom", seconds=0.01),
            "2": bench.node("Show", value=["1", 0]),
            "3": bench.node("Later", value="fine", seconds=0.03),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    states = {n.node_id: n.state for n in report.nodes}
    assert states == {"1": "failed", "2": "skipped", "3": "ran", "4": "ran"}


def test_a_failure_stops_its_dependants_only_and_what_only_they_needed_is_not_run(bench: Any) -> None:
    report = bench.run(
        {
            "1": bench.node("Fail", "Broken", text="bad picture"),
            "2": bench.node("Add", a=["1", 0], b=["3", 0]),
            "3": bench.node("Later", "expensive", value=1, seconds=0.2),
            "4": bench.node("Show", "A", value=["2", 0]),
            "5": bench.node("Value", value="fine"),
            "6": bench.node("Show", "B", value=["5", 0]),
        }
    )
    states = {n.node_id: n.state for n in report.nodes}
    assert report.exit_code == 1
    assert states == {"1": "failed", "2": "skipped", "4": "skipped", "5": "ran", "6": "ran"}
    assert {n.node_id: n.because for n in report.nodes if n.because} == {"2": "1", "4": "1"}
    assert report.failed[0].error == "RuntimeError: bad picture"
    assert "in run" in report.failed[0].trace


def test_a_node_that_returns_nonsense_is_named(bench: Any) -> None:
    base: Any = bench.classes["Value"]

    @bench.add
    class Odd(base):
        def run(self, value: Any) -> Any:
            return 5

    report = bench.run({"1": bench.node("Odd", value=1), "2": bench.node("Show", value=["1", 0])})
    assert "Odd.run returned int" in report.failed[0].error


def test_stopping_ends_between_nodes_and_says_what_was_not_done(bench: Any) -> None:
    base: Any = bench.classes["Value"]

    @bench.add
    class Stopper(base):
        def run(self, value: Any) -> tuple[Any]:
            bench.host.stop()
            return (value,)

    report = bench.run(
        {
            "1": bench.node("Stopper", value=1),
            "2": bench.node("Add", a=["1", 0], b=1),
            "3": bench.node("Show", value=["2", 0]),
        }
    )
    assert report.interrupted and report.exit_code == 130
    assert {n.node_id: n.state for n in report.nodes} == {"1": "ran", "2": "stopped", "3": "stopped"}


def test_comfyuis_interrupt_raised_inside_a_node_stops_the_run(bench: Any) -> None:
    interrupt = type("InterruptProcessingException", (Exception,), {})

    base: Any = bench.classes["Value"]

    @bench.add
    class Cancelled(base):
        def run(self, value: Any) -> tuple[Any]:
            raise interrupt()

    report = bench.run(
        {
            "1": bench.node("Cancelled", value=1),
            "2": bench.node("Show", value=["1", 0]),
            "3": bench.node("Value", value=2),
            "9": bench.node("Show", value=["3", 0]),
        }
    )
    assert report.interrupted and not report.failed
    assert {n.node_id: n.state for n in report.nodes}["1"] == "stopped"


def test_stopping_does_not_wait_for_a_sleeping_async_node(bench: Any) -> None:
    threading.Timer(0.3, bench.host.stop).start()
    began = time.monotonic()
    report = bench.run(
        {
            "1": bench.node("Later", value=1, seconds=60.0),
            "2": bench.node("Show", value=["1", 0]),
        }
    )
    assert report.interrupted and time.monotonic() - began < 30


def test_only_runs_the_named_node_even_when_it_is_no_output(bench: Any) -> None:
    prompt = {
        "1": bench.node("Value", value=1),
        "2": bench.node("Add", a=["1", 0], b=1),
        "3": bench.node("Show", value=["2", 0]),
    }
    report = bench.run(prompt, only=["2"])
    assert [n.node_id for n in report.nodes] == ["1", "2"] and report.ok


def test_a_graph_with_no_output_and_one_with_a_wire_to_nowhere_are_refused(bench: Any) -> None:
    with pytest.raises(CascadeError, match="no node of the workflow is an output"):
        bench.run({"1": bench.node("Value", value=1)})
    with pytest.raises(CascadeError, match="wired to node '77', which is not in the prompt"):
        bench.run({"1": bench.node("Show", value=["77", 0])})
    with pytest.raises(CascadeError, match=r"no node class 'Goo' here.*no node class 'Foo' here"):
        bench.run({"1": bench.node("Goo"), "2": bench.node("Foo")})


def test_a_chain_of_thousands_of_nodes_does_not_recurse(bench: Any, shown: Any) -> None:
    prompt = {"0": bench.node("Value", value=0)}
    for n in range(1, 3000):
        prompt[str(n)] = bench.node("Add", a=[str(n - 1), 0], b=1)
    prompt["end"] = bench.node("Show", value=["2999", 0])
    assert shown(bench.run(prompt), "end") == ["2999"]


def test_torch_nodes_run_in_inference_mode_as_in_comfyui(bench: Any, shown: Any) -> None:
    base: Any = bench.classes["Value"]

    @bench.add
    class Mode(base):
        USES_TORCH = True

        def run(self, value: Any) -> tuple[Any]:
            import torch

            return (torch.is_inference_mode_enabled(),)

    report = bench.run({"1": bench.node("Mode", value=1), "2": bench.node("Show", value=["1", 0])})
    assert shown(report, "2") == ["True"]
