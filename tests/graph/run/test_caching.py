"""Results are kept by content: class, IS_CHANGED and the literals of a node and its ancestors."""

from __future__ import annotations

from typing import Any

import pytest

from cascade_train.graph.run.cache import ResultCache


@pytest.fixture
def cache() -> ResultCache:
    return ResultCache()


def chain(bench: Any, a: Any = 1, kind: str = "Value") -> dict[str, Any]:
    return {
        "1": bench.node(kind, value=a),
        "2": bench.node("Add", a=["1", 0], b=1),
        "3": bench.node("Show", value=["2", 0]),
    }


def test_running_again_runs_nothing_and_shows_the_same(bench: Any, cache: ResultCache) -> None:
    first = bench.run(chain(bench), cache=cache)
    second = bench.run(chain(bench), cache=cache)
    assert bench.calls == [] and second.outputs() == first.outputs()
    assert {n.state for n in second.nodes} == {"cached"}


def test_another_literal_runs_the_node_and_all_after_it(bench: Any, cache: ResultCache) -> None:
    bench.run(chain(bench), cache=cache)
    changed = chain(bench)
    changed["2"]["inputs"]["b"] = 5
    bench.run(changed, cache=cache)
    assert bench.calls == [("Add", 1, 5), ("Show", 6)]


def long_chain(bench: Any, length: int) -> dict[str, Any]:
    """A chain of large results, each shown, and the first one wanted once more by the last."""
    prompt = {"0": bench.node("Large", size=0)}
    for number in range(1, length + 1):
        source = ["0", 0] if number == length else [str(number - 1), 0]
        prompt[str(number)] = bench.node("Large", size=number, before=source)
        prompt[f"show {number}"] = bench.node("Count", what=[str(number), 0])
    return prompt


def test_results_that_nobody_needs_any_more_are_let_go(bench: Any, cache: ResultCache) -> None:
    """At most the newest, the one before and the one that is still wanted are alive; with a cache all are."""
    import gc
    import weakref

    class Block:
        pass

    alive: weakref.WeakSet[Block] = weakref.WeakSet()
    most = []

    class Large:
        RETURN_TYPES = ("*",)
        FUNCTION = "run"
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"size": ("INT", {})}, "optional": {"before": ("*", {})}}

        def run(self, size: int, before: Any = None) -> tuple[Block]:
            bench.calls.append(("Large", size))
            block = Block()
            alive.add(block)
            gc.collect()
            most.append(len(alive))
            return (block,)

    class Count:
        RETURN_TYPES = ()
        FUNCTION = "run"
        OUTPUT_NODE = True
        USES_TORCH = False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"what": ("*", {})}}

        def run(self, what: Any) -> tuple[()]:
            assert isinstance(what, Block), "it is there when it is needed"
            return ()

    bench.add(Large)
    bench.add(Count)
    report = bench.run(long_chain(bench, 12))
    assert report.ok and len([call for call in bench.calls if call[0] == "Large"]) == 13
    assert max(most) <= 3, most
    most.clear()
    assert bench.run(long_chain(bench, 12), cache=cache).ok and max(most) == 13
    assert bench.run(long_chain(bench, 12), cache=cache).ok and bench.calls == []


def test_ids_and_titles_do_not_matter(bench: Any, cache: ResultCache) -> None:
    bench.run(chain(bench), cache=cache)
    moved = {
        "a": bench.node("Value", "other", value=1),
        "b": bench.node("Add", a=["a", 0], b=1),
        "c": bench.node("Show", value=["b", 0]),
    }
    bench.run(moved, cache=cache)
    assert bench.calls == []


def test_equal_nodes_of_one_prompt_run_once(bench: Any) -> None:
    bench.run(
        {
            "1": bench.node("Value", value=1),
            "2": bench.node("Value", value=1),
            "3": bench.node("Add", a=["1", 0], b=["2", 0]),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    assert bench.calls.count(("Value", 1)) == 1


def test_nodes_that_ask_for_their_id_are_kept_apart(bench: Any) -> None:
    report = bench.run({"1": bench.node("Hidden"), "2": bench.node("Hidden")})
    assert [c[1] for c in bench.calls] == ["1", "2"] and len(report.outputs()) == 2


def test_nodes_that_are_not_idempotent_are_kept_apart(bench: Any) -> None:
    bench.classes["Value"].NOT_IDEMPOTENT = True
    bench.run(
        {
            "1": bench.node("Value", value=1),
            "2": bench.node("Value", value=1),
            "3": bench.node("Add", a=["1", 0], b=["2", 0]),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    assert bench.calls.count(("Value", 1)) == 2


@pytest.mark.parametrize(
    "before, after, runs",
    [
        ("same", "same", False),
        ("one", "two", True),
        (True, True, False),
        (float("nan"), float("nan"), True),
        ({"a": [1]}, {"a": [1]}, False),
        (1, 1.0, False),
        (RuntimeError("x"), RuntimeError("x"), True),
    ],
    ids=["equal", "different", "constant True", "NaN", "nested", "equal numbers", "an error"],
)
def test_is_changed_decides(bench: Any, cache: ResultCache, before: Any, after: Any, runs: bool) -> None:
    bench.salt = before
    bench.run(chain(bench, kind="Salted"), cache=cache)
    assert bench.calls[0] == ("Value", 1)
    bench.salt = after
    report = bench.run(chain(bench, kind="Salted"), cache=cache)
    assert (bench.calls != []) is runs
    assert bool(report.warnings) is isinstance(after, Exception)


def test_is_changed_gets_linked_inputs_as_none(bench: Any) -> None:
    seen = []

    base: Any = bench.classes["Add"]

    @bench.add
    class Watch(base):
        @classmethod
        def IS_CHANGED(cls, a: Any, b: Any) -> str:
            seen.append((a, b))
            return ""

    bench.run(
        {
            "1": bench.node("Value", value=4),
            "2": bench.node("Watch", a=["1", 0], b=2),
            "3": bench.node("Show", value=["2", 0]),
        }
    )
    assert seen == [(None, 2)]


def test_nan_runs_the_node_once_in_a_run_though_two_need_it(bench: Any) -> None:
    bench.salt = float("nan")
    bench.run(
        {
            "1": bench.node("Salted", value=1),
            "2": bench.node("Show", value=["1", 0]),
            "3": bench.node("Add", a=["1", 0], b=1),
            "4": bench.node("Show", value=["3", 0]),
        }
    )
    assert bench.calls.count(("Value", 1)) == 1


def test_true_and_one_are_different_inputs(bench: Any, cache: ResultCache, shown: Any) -> None:
    for value in (1, True, 1.0):
        prompt = {"1": bench.node("Value", value=value), "4": bench.node("Show", value=["1", 0])}
        assert shown(bench.run(prompt, cache=cache), "4") == [str(value)]


def test_an_instance_is_kept_per_id_and_class(bench: Any, cache: ResultCache, shown: Any) -> None:
    base: Any = bench.classes["Value"]

    @bench.add
    class Counter(base):
        def __init__(self) -> None:
            self.count = 0

        def run(self, value: Any) -> tuple[int]:
            self.count += 1
            return (self.count,)

    for expected, value in enumerate(("a", "b", "c"), 1):
        report = bench.run(
            {"1": bench.node("Counter", value=value), "2": bench.node("Show", value=["1", 0])}, cache=cache
        )
        assert shown(report, "2") == [str(expected)]
    other = {"9": bench.node("Counter", value="d"), "2": bench.node("Show", value=["9", 0])}
    report = bench.run(other, cache=cache)
    assert shown(report, "2") == ["1"]


def test_a_failed_node_is_tried_again(bench: Any, cache: ResultCache) -> None:
    prompt = {"1": bench.node("Fail", text="x"), "2": bench.node("Show", value=["1", 0])}
    bench.run(prompt, cache=cache)
    assert bench.run(prompt, cache=cache).exit_code == 1 and bench.calls == [("Fail", "x")]


def test_expansions_are_cached_node_by_node(bench: Any, cache: ResultCache) -> None:
    prompt = {"1": bench.node("Sum", start=5, times=3), "2": bench.node("Show", value=["1", 0])}
    bench.run(prompt, cache=cache)
    assert bench.run(prompt, cache=cache).ok and bench.calls == []
    prompt["1"]["inputs"]["times"] = 2
    bench.run(prompt, cache=cache)
    assert ("Add", 5, 1) not in bench.calls, "the first addition of the expansion is the same node as before"


def test_results_nobody_asks_for_any_more_are_forgotten(bench: Any, cache: ResultCache) -> None:
    for value in range(20):
        bench.run(chain(bench, value), cache=cache)
    assert len(cache.results) == 3 and len(cache._names) == 3
