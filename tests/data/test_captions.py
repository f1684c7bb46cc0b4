"""What a sample says, from wherever people keep it, and how it varies from step to step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_train.data.captions import captions_of, pick
from cascade_train.data.dataset import OpenDataset
from cascade_train.data.expressions import normalise
from cascade_train.data.spec import CaptionSpec

META = {"caption": "from meta", "title": "A Fox", "tags": ["red", "small"], "deep": {"text": "inner"}, "n": 3}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (CaptionSpec(), ("from txt",)),
        (CaptionSpec(extension=".caption"), ("from caption",)),
        (CaptionSpec(extension="wd.txt"), ("tagged",)),
        (CaptionSpec(extension=".none"), ("from txt",)),
        (CaptionSpec(source="metadata"), ("from meta",)),
        (CaptionSpec(source="metadata", field="tags"), ("red", "small")),
        (CaptionSpec(source="metadata", field="deep.text"), ("inner",)),
        (CaptionSpec(source="file name"), ("red fox 2",)),
        (CaptionSpec(source="folder name"), ("wild animals",)),
        (CaptionSpec(source="fixed", fixed="a photo of [zorp]"), ("a photo of [zorp]",)),
        (CaptionSpec(getter=normalise("[title, 'lambda t: lower(t)']")), ("a fox",)),
        (CaptionSpec(getter=normalise("[title, join(tags)]")), ("A Fox", "red, small")),
        (CaptionSpec(source="metadata", getter=normalise("txt + '!'")), ("from txt!",)),
        (CaptionSpec(source="metadata", field="nowhere"), None),
        (CaptionSpec(source="metadata", field="n"), ("3",)),
        (CaptionSpec(source="metadata", field="deep"), None),
        (CaptionSpec(source="metadata", field="deep", fallback="empty"), ("",)),
        (CaptionSpec(source="metadata", field="deep", fallback="file name"), ("red fox 2",)),
        (CaptionSpec(source="metadata", field="deep", fallback="fixed", fixed="x"), ("x",)),
    ],
)
def test_where_captions_come_from(spec: CaptionSpec, expected: object) -> None:
    texts = {".txt": " from txt\n", ".caption": "from caption", ".wd.txt": "tagged"}
    assert captions_of(spec, "wild_animals/red_fox-2.png", texts, META, "pictures") == expected


def test_an_empty_caption_file_is_a_caption_and_a_missing_one_is_not() -> None:
    assert captions_of(CaptionSpec(), "a.png", {".txt": " \n"}, {}) == ("",)
    assert captions_of(CaptionSpec(), "a.png", {}, {}) is None
    assert captions_of(CaptionSpec(), "a.png", {}, {"caption": "m"}) == ("m",), "metadata is the last resort"
    assert captions_of(CaptionSpec(source="folder name"), "a.png", {}, {}, "my_cat") == ("my cat",)


def test_one_of_several_is_drawn_evenly() -> None:
    counts = Counter(pick(CaptionSpec(), ("a", "b", "c"), (n + 0.5) / 3000) for n in range(3000))
    assert counts == {"a": 1000, "b": 1000, "c": 1000}
    lines = captions_of(CaptionSpec(lines=True), "a.png", {".txt": "one\n\ntwo \r\nthree"}, {})
    assert lines == ("one", "two", "three")


def test_prefix_and_suffix() -> None:
    assert pick(CaptionSpec(prefix="a ", suffix=", 4k"), ("fox",), 0.3) == "a fox, 4k"


@given(st.floats(0, 1, exclude_max=True))
def test_tags_are_shuffled_behind_the_first(chance: float) -> None:
    spec = CaptionSpec(shuffle_tags=True, keep_first=2)
    out = pick(spec, ("a, b,c ,d, e, f",), chance).split(", ")
    assert out[:2] == ["a", "b"] and sorted(out) == list("abcdef")
    assert pick(spec, ("a, b,c ,d, e, f",), chance) == ", ".join(out), "the same chance, the same caption"


def test_tags_take_every_place_and_are_dropped_as_often_as_asked() -> None:
    spec = CaptionSpec(shuffle_tags=True, tag_dropout=0.25, keep_first=1)
    drawn = [pick(spec, ("k, a, b, c",), n / 4000).split(", ") for n in range(4000)]
    assert all(tags[0] == "k" for tags in drawn)
    left = sum(len(tags) - 1 for tags in drawn) / 4000
    assert abs(left - 2.25) < 0.06
    firsts = Counter(tags[1] for tags in drawn if len(tags) == 4)
    assert min(firsts[tag] for tag in "abc") > 0.25 * sum(firsts.values())


def test_each_step_draws_anew_and_always_the_same(
    make_folder: Callable[..., Path], opened: Callable[..., OpenDataset]
) -> None:
    root = make_folder([(64, 64)] * 2)
    (root / "0000.txt").write_text("one\ntwo\nthree")
    (root / "0001.txt").write_text("eins\nzwei")
    dataset = opened(root, captions=CaptionSpec(lines=True))
    drawn = [dataset.load(draw).caption for step in range(60) for draw in dataset.draws(1, step, 2)]
    assert set(drawn) == {"one", "two", "three", "eins", "zwei"}
    again = opened(root, captions=CaptionSpec(lines=True))
    assert [again.caption(draw) for step in range(60) for draw in again.draws(1, step, 2)] == drawn
    assert dataset.report.several_captions == 2
