"""Leaving samples out: filters one after the other, what they see of a sample, and what they cost."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.filters.base import Filter
from cascade_train.data.filters.exact_duplicates import ExactDuplicates
from cascade_train.data.filters.expression import ExpressionFilter, expression_filters
from cascade_train.data.filters.near_duplicates import NearDuplicates, duplicate_filters
from cascade_train.data.measured import MeasureStore
from cascade_train.data.measures import Measure, brightness, sharpness
from cascade_train.data.readers import folder_source, tar_source
from cascade_train.data.sample import Sample
from cascade_train.data.sources import combine
from cascade_train.data.spec import CaptionSpec, Dataset, StreamSource, WeightedSource
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost

from .conftest import encoded, photo

MakeFolder = Callable[..., Path]
Opened = Callable[..., OpenDataset]

NEAR = duplicate_filters("remove near", 6)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the files that are really decoded, one after the other."""
    import cascade_train.data.arrivals as arrivals
    import cascade_train.data.readers as readers

    found: list[int] = []
    real = readers.decode

    def counted(data: bytes, *rest: Any, **more: Any) -> np.ndarray:
        found.append(len(data))
        return real(data, *rest, **more)

    monkeypatch.setattr(readers, "decode", counted)
    monkeypatch.setattr(arrivals, "decode", counted)
    return found


def dropped(opened: OpenDataset) -> dict[str, tuple[str, ...]]:
    return {count.reason: count.names for count in opened.report.dropped}


def names(opened: OpenDataset) -> list[str]:
    return [opened.key(sample).partition("/")[2] for sample in range(len(opened))]


def blurred(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(4))


def test_filters_apply_in_order_each_to_what_is_left(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(96, 64), (64, 64)])
    shutil.copy(root / "0000.png", root / "copy.png")
    (root / "copy.txt").write_text("kept by its caption")
    score = expression_filters("caption contains 'kept'")
    first = opened(root, filters=(*score, ExactDuplicates()))
    assert names(first) == ["copy.png"] and dropped(first) == {
        "not 'kept' in caption": ("0000.png", "0001.png")
    }
    with pytest.raises(CascadeError, match="no sample is left"):
        opened(root, filters=(ExactDuplicates(), *score))


def test_a_filter_belongs_to_the_name_of_the_dataset() -> None:
    plain = Dataset(())
    filtered = plain.with_filters(NearDuplicates())
    assert plain.digest != filtered.digest != plain.with_filters(NearDuplicates(4)).digest
    assert filtered.digest == plain.with_filters(NearDuplicates(3)).digest
    assert plain.with_filters(ExpressionFilter("width>3")) == plain.with_filters(
        *expression_filters("width > 3")
    )
    assert plain.with_filters(ExactDuplicates(), NearDuplicates()).digest != (
        plain.with_filters(NearDuplicates(), ExactDuplicates()).digest
    )


def test_a_part_has_its_own_filters_and_the_whole_has_more(make_folder: MakeFolder, tmp_path: Path) -> None:
    """Two folders share a picture: each alone has no duplicate, both together have one."""
    few, many = make_folder([(64, 64)] * 3, "few"), make_folder([(64, 64)] * 5, "many")
    index = tmp_path / "cache" / "index"
    small = Dataset((WeightedSource(folder_source(few, True, index)),)).with_filters(
        *expression_filters("file_name != '0001.png'"), ExactDuplicates()
    )
    large = Dataset((WeightedSource(folder_source(many, True, index)),)).with_filters(ExactDuplicates())

    def left(dataset: Dataset) -> OpenDataset:
        return open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "cache")

    both = combine([small, large], [1, 1], [0, 0])
    assert len(left(both)) == 2 + 5, "the expression is the small one's alone"
    merged = left(both.with_filters(ExactDuplicates(), *expression_filters("file_name != '0003.png'")))
    assert [merged.key(at) for at in range(len(merged))] == [
        *("few/0000.png", "few/0002.png"),
        *("many/0001.png", "many/0004.png"),
    ]
    assert dropped(merged)["duplicate"] == ("0000.png", "0002.png")


def test_blurred_pictures_are_left_out_by_their_sharpness(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(128, 96)] * 4)
    for name in ("0001", "0002"):
        blurred(photo(128, 96, int(name))).save(root / f"{name}.png")
    Image.new("RGB", (128, 96)).save(root / "black.png")
    (root / "black.txt").write_text("nothing to see")
    dataset = opened(root, filters=expression_filters("brightness > 0.02\nsharpness > 20"))
    assert names(dataset) == ["0000.png", "0003.png"]
    assert dropped(dataset) == {
        "not brightness > 0.02": ("black.png",),
        "not sharpness > 20": ("0001.png", "0002.png"),
    }


def test_what_is_measured() -> None:
    board = np.zeros((64, 64, 3), np.uint8)
    board[::2, ::2] = board[1::2, 1::2] = 255
    assert sharpness(np.full((64, 64, 3), 77, np.uint8)) == 0
    assert sharpness(board) == pytest.approx((4 * 255) ** 2), "each Laplacian is 4 × 255, up or down"
    assert brightness(board) == pytest.approx(0.5)
    assert brightness(np.full((8, 8, 3), 255, np.uint8)) == 1


def test_each_picture_is_decoded_once_ever(
    make_folder: MakeFolder, opened: Opened, decoded: list[int], make_tar: Any, tmp_path: Path
) -> None:
    root = make_folder([(96, 64)] * 20)

    def taken(where: Path, *filters: Filter) -> int:
        decoded.clear()
        assert len(opened(where, filters=filters)) >= 20
        return len(decoded)

    assert [taken(root, *NEAR) for _ in range(3)] == [20, 0, 0]
    assert taken(root, *expression_filters("sharpness > 1 and brightness > 0.01")) == 0, "one decode for all"
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root, elsewhere)
    (elsewhere / "0004.png").rename(elsewhere / "other name.png")
    (elsewhere / "0004.txt").rename(elsewhere / "other name.txt")
    assert taken(elsewhere, *NEAR) == 0, "the same pictures in another folder"
    tar = make_tar([(f"{n}", encoded(photo(96, 64, n)), "words", None) for n in range(20)])
    source = tar_source(tar, tmp_path / "cache" / "index")
    dataset = Dataset((WeightedSource(source),)).with_filters(*NEAR)
    assert len(open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "cache")) == 20
    assert not decoded, "and in a tar"
    photo(96, 64, 99).save(root / "new.png")
    (root / "new.txt").write_text("new")
    assert taken(root, *NEAR) == 1, "only the new one"
    photo(96, 64, 98).save(root / "0007.png")
    assert taken(root, *NEAR) == 1, "only the changed one"


def test_an_expression_decodes_only_for_a_measure(
    make_folder: MakeFolder, opened: Opened, decoded: list[int]
) -> None:
    root = make_folder([(96, 64)] * 3)
    assert len(opened(root, filters=expression_filters("width > 3 and caption contains 'picture'"))) == 3
    assert not decoded
    opened(root, filters=expression_filters("file_name == '0001.png'\nbrightness > 0"))
    assert len(decoded) == 1, "and nothing that an earlier filter dropped"


OPENS = """
import sys
from pathlib import Path
from cascade_train.data import readers
from cascade_train.data.dataset import open_dataset
from cascade_train.data.filters.near_duplicates import duplicate_filters
from cascade_train.data.spec import Dataset, WeightedSource
real, count = readers.decode, [0]
def counted(*given):
    count[0] += 1
    return real(*given)
readers.decode = counted
place = Path(sys.argv[1])
for folder in sys.argv[2:]:
    source = readers.folder_source(place / folder, True, place / "cache" / "index")
    dataset = Dataset((WeightedSource(source),)).with_filters(*duplicate_filters("remove near", 6))
    opened = open_dataset(dataset, multiple=8, native_side=64, cache=place / "cache")
print(count[0], len(opened))
"""


def start(tmp_path: Path, *folders: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPENS, str(tmp_path), *folders], stdout=subprocess.PIPE, text=True
    )


def test_processes_share_what_they_measured_and_do_not_get_in_each_others_way(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    for number in range(12):  # so many files of measures that they are taken over into one more than once
        folder = tmp_path / f"set {number}"
        folder.mkdir()
        for name in range(2):
            photo(64, 64, 2 * number + name).save(folder / f"{name}.png")
            (folder / f"{name}.txt").write_text("words")
    sets = [path.name for path in sorted(tmp_path.glob("set *"))]
    together = [start(tmp_path, *order) for order in (sets, sets[::-1], sets[6:] + sets[:6])]
    for process in together:
        assert process.communicate(timeout=50)[0].split()[1] == "2" and not process.returncode
    after = start(tmp_path, *sets)
    assert after.communicate(timeout=50)[0].split() == ["0", "2"], "nothing that was measured got lost"
    assert 1 <= len(list((tmp_path / "cache" / "measures").glob("*.sqlite"))) < 12


def test_measures_on_disk_that_are_damaged_gone_or_not_writable_are_made_again(
    make_folder: MakeFolder, opened: Opened, decoded: list[int], tmp_path: Path
) -> None:
    root, folder = make_folder([(96, 64)] * 4), tmp_path / "cache" / "measures"
    near = names(opened(root, filters=NEAR))
    (written,) = folder.glob("*.sqlite")
    written.write_bytes(written.read_bytes()[:300] + b"rubbish" * 100)
    assert names(opened(root, filters=NEAR)) == near and len(decoded) == 8
    assert names(opened(root, filters=NEAR)) == near and len(decoded) == 8
    shutil.rmtree(folder)
    folder.write_text("in the way")
    again = opened(root, filters=NEAR)
    assert names(again) == near and len(decoded) == 12
    assert any("could not be kept" in warning for warning in again.report.warnings)


def test_many_measures_come_back_as_they_were(tmp_path: Path) -> None:
    store = MeasureStore(tmp_path)
    values = {f"{n}": {"hash 1": (1 << 64) - 1 - n, "sharpness 1": n / 7} for n in range(2000)}
    for content, measured in values.items():
        store.add(content, measured)
        if int(content) % 100 == 99:
            store.flush()
    store.add("5", {"other 2": 1.0})
    values["5"]["other 2"] = 1.0
    assert store.find([*values, "unknown"]) == values
    store.flush()
    assert MeasureStore(tmp_path).find([*values, "unknown"]) == values


def test_a_picture_that_cannot_be_decoded_is_bad_until_it_is_mended(
    make_folder: MakeFolder, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder([(96, 64)] * 5)
    whole = (root / "0002.png").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF  # in the middle, where the index does not look
    (root / "0002.png").write_bytes(damaged)
    monkeypatch.setattr("cascade_train.data.noted._LARGE", 1)
    for filters in (NEAR, expression_filters("sharpness > 0")):
        dataset = opened(root, filters=filters)
        assert [count.names for count in dataset.report.bad] == [("0002.png",)] and len(dataset) == 4
        with pytest.raises(CascadeError, match=r"1 samples are bad.*0002\.png"):
            opened(root, filters=filters, on_bad="error")
    (root / "0002.png").write_bytes(whole)
    assert len(opened(root, filters=NEAR)) == 5


def test_captions_are_fields(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(64, 64)] * 5)
    for number, words in enumerate(("a cat", "a dog\nthe cat's friend", "", "Cats", None)):
        path = root / f"{number:04}.txt"
        path.write_text(words) if words is not None else path.unlink()
    (root / "0004.json").write_text(json.dumps({"caption": "a cat of metadata"}))
    by_line = CaptionSpec(lines=True)

    def left(text: str, spec: CaptionSpec = by_line) -> list[str]:
        return [name[3] for name in names(opened(root, captions=spec, filters=expression_filters(text)))]

    assert left("caption contains 'cat'") == ["0", "4"], "the first caption, wherever the rule finds it"
    assert left("lower(caption) contains 'cat'") == ["0", "3", "4"]
    assert left("caption contains 'cat'", CaptionSpec()) == ["0", "1", "4"], "by the dataset's rule"
    assert left("len(captions) == 2") == ["1"]
    assert left("len(caption) > 4") == ["0", "1", "4"]
    assert left("caption not contains 'cat'") == ["1", "2", "3"]
    prefixed = CaptionSpec(source="fixed", fixed="words for all")
    assert left("caption == 'words for all'", prefixed) == list("01234")


def test_a_sample_without_caption_is_left_out_by_a_filter_on_captions(
    make_folder: MakeFolder, opened: Opened
) -> None:
    root = make_folder([(64, 64)] * 3)
    (root / "0001.txt").unlink()
    with pytest.raises(CascadeError, match="1 of 3 pictures have no caption"):
        opened(root, filters=expression_filters("width > 3"))
    dataset = opened(root, filters=expression_filters("len(caption) > 3"))
    assert dropped(dataset) == {"without the field caption": ("0001.png",)} and len(dataset) == 2
    for number in range(3):
        (root / f"{number:04}.json").write_text(json.dumps({"caption": "not by this rule"}))
    other = CaptionSpec(source="metadata", field="text")
    with pytest.raises(CascadeError, match="3 without the field caption"):
        opened(root, captions=other, filters=expression_filters("len(caption) > 3"))
    given = CaptionSpec(source="metadata", field="text", fallback="fixed", fixed="something")
    assert len(opened(root, captions=given, filters=expression_filters("len(caption) > 3"))) == 3


def test_measures_and_captions_come_before_metadata_of_the_same_name(
    make_folder: MakeFolder, opened: Opened, decoded: list[int]
) -> None:
    root = make_folder([(96, 64)] * 2)
    for number in range(2):
        said = {"sharpness": -number, "caption": "from metadata"}
        (root / f"{number:04}.json").write_text(json.dumps(said))
    assert len(opened(root, filters=expression_filters("sharpness > 0 and caption contains 'picture'"))) == 2
    decoded.clear()
    asked = opened(root, filters=expression_filters("field('sharpness') < 0"))
    assert names(asked) == ["0001.png"] and not decoded
    assert len(opened(root, filters=expression_filters("field('caption') == 'from metadata'"))) == 2


def test_a_caption_expression_that_fails_is_bad_for_filters_too(
    make_folder: MakeFolder, opened: Opened
) -> None:
    root = make_folder([(64, 64)] * 3)
    for number, value in enumerate((1, "x", 3)):
        (root / f"{number:04}.json").write_text(json.dumps({"n": value}))
    rule = CaptionSpec(getter="str(10 / n)")
    dataset = opened(root, captions=rule, filters=expression_filters("caption contains '.'"))
    (bad,) = dataset.report.bad
    assert bad.reason.startswith("caption expression") and bad.names == ("0001.png",) and len(dataset) == 2


@dataclass(frozen=True)
class Redder(Filter):
    """What a newcomer would write: a filter with a measure that nothing else knows."""

    least: float

    measures = (Measure("redness", lambda pixels: float(pixels[..., 0].mean() / 255)),)

    @property
    def reason(self) -> str:
        return f"redness below {self.least:g}"

    def keep(self, sample: Sample) -> bool:
        return sample.measure(self.measures[0]) >= self.least


@pytest.fixture
def colours(tmp_path: Path) -> list[tuple[str, bytes]]:
    """Three pictures: red, blue, and red again in another size."""
    shades = (("red", 64, (255, 0, 0)), ("blue", 64, (0, 0, 255)), ("large red", 96, (255, 0, 0)))
    return [(name, encoded(Image.new("RGB", (side, side), colour))) for name, side, colour in shades]


def test_a_new_filter_is_one_class(
    colours: list[tuple[str, bytes]], opened: Opened, decoded: list[int], tmp_path: Path
) -> None:
    root = tmp_path / "colours"
    root.mkdir()
    for name, data in colours:
        (root / f"{name}.png").write_bytes(data)
        (root / f"{name}.txt").write_text(name)
    for _ in range(2):
        dataset = opened(root, filters=(Redder(0.5),))
        assert names(dataset) == ["large red.png", "red.png"]
        assert dropped(dataset) == {"redness below 0.5": ("blue.png",)}
    opened(root, filters=NEAR)
    assert len(decoded) == 3, "its measure is remembered, and what others measure was measured with it"


@pytest.fixture
def streamed(server: str, near: HeadlessHost, make_tar: Any) -> Iterator[Callable[..., Any]]:
    """Samples (key, picture, caption) as two remote shards, opened for ÷8 models of side 64."""

    def make(samples: list[tuple[str, bytes, str | None]], *filters: Filter, **settings: Any) -> Any:
        half = -(-len(samples) // 2)
        for name, part in (("a", samples[:half]), ("b", samples[half:])):
            make_tar([(key, data, caption, None) for key, data, caption in part], f"{name}.tar")
        source = StreamSource((f"{server}/a.tar", f"{server}/b.tar"), 1)
        dataset = Dataset((WeightedSource(source),), **settings).with_filters(*filters)
        return open_dataset(dataset, multiple=8, native_side=64, host=near)

    yield make


def shown(opened: Any, steps: int, seed: int = 0) -> list[str]:
    return [opened.load(opened.draws(seed, step, 1)[0]).caption for step in range(steps)]


def test_a_stream_takes_the_same_filters(streamed: Callable[..., Any], decoded: list[int]) -> None:
    from cascade_train.data.survey import survey

    samples = [(f"{n}", encoded(photo(128, 96, n)), f"sharp {n}") for n in range(4)]
    samples += [(f"b{n}", encoded(blurred(photo(128, 96, n + 20))), f"blurred {n}") for n in range(2)]
    opened = streamed(samples, *expression_filters("sharpness > 20\ncaption contains 'sharp'"))
    report = survey(opened)
    assert {count.reason: count.names for count in report.dropped} == {
        "not sharpness > 20": ("b0.png", "b1.png")
    }
    assert report.samples == 4 and len(decoded) == 6
    assert sorted(set(shown(opened, 8))) == [f"sharp {n}" for n in range(4)]
    decoded.clear()
    wanted = opened.caption(opened.draws(5, 9, 1)[0])
    assert not decoded, "a step is reached by replaying the stream, and nothing is decoded for it again"
    again = streamed(samples, *expression_filters("sharpness > 20\ncaption contains 'sharp'"))
    assert again.caption(again.draws(5, 9, 1)[0]) == wanted and not decoded


def test_a_stream_drops_duplicates_of_what_it_has_seen_in_the_epoch(streamed: Callable[..., Any]) -> None:
    def copies(data: bytes, name: str, count: int) -> list[tuple[str, bytes, str]]:
        return [(f"{name}{n}", data, f"{name} {n}") for n in range(count)]

    smaller = encoded(photo(96, 64, 2).resize((72, 48)))
    samples = [
        *copies(encoded(photo(96, 64, 1)), "one", 3),
        *copies(encoded(photo(96, 64, 2)), "two", 2),
        ("two small", smaller, "two small"),
    ]
    exact = streamed(samples, *duplicate_filters("remove"))
    for epoch in range(4):
        seen = [words.split()[0] for words in shown(exact, 12)[3 * epoch : 3 * epoch + 3]]
        assert sorted(seen) == ["one", "two", "two"], "each epoch shows each picture once again"
    assert any("each epoch anew" in warning for warning in exact.report.warnings), "what cannot hold is said"
    near = streamed(samples, *NEAR)
    assert sorted(words.split()[0] for words in shown(near, 2)) == ["one", "two"]


def test_a_stream_says_why_it_stops_at_a_sample_without_caption(streamed: Callable[..., Any]) -> None:
    samples = [("a", encoded(photo(64, 64, 1)), "said"), ("b", encoded(photo(64, 64, 2)), None)]
    with pytest.raises(CascadeError, match=r"b\.png has no caption"):
        shown(streamed(samples), 3)
    assert set(shown(streamed(samples, *expression_filters("len(caption) > 0")), 4)) == {"said"}


def test_filters_of_one_who_wraps_a_stream_come_behind_its_own(
    streamed: Callable[..., Any], near: HeadlessHost
) -> None:
    samples = [(f"{n}", encoded(photo(64, 64 + 8 * n, n)), f"{n}") for n in range(4)]
    inner = streamed(samples, *expression_filters("height > 64")).dataset
    outer = Dataset((WeightedSource(inner),)).with_filters(*expression_filters("height < 88"))
    opened = open_dataset(outer, multiple=8, native_side=64, host=near)
    assert sorted(set(shown(opened, 6))) == ["1", "2"]


def test_a_large_dataset_is_chosen_from_once(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note holds for all sources that share a filter which remembers, and never for other ones."""
    monkeypatch.setattr("cascade_train.data.noted._LARGE", 4)
    one, two = make_folder([(64, 64)] * 5, "one"), make_folder([(64, 64)] * 7, "two")
    index = tmp_path / "cache" / "index"
    parts = [Dataset((WeightedSource(folder_source(root, True, index)),)) for root in (one, two)]

    def left(dataset: Dataset) -> OpenDataset:
        return open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "cache")

    both = combine(parts, [1, 1], [0, 0]).with_filters(ExactDuplicates())
    first = left(both)
    assert len(first) == 7 and dropped(first)["duplicate"] == tuple(f"{n:04}.png" for n in range(5))
    notes = set(index.glob("selected-*.npz"))
    assert len(notes) == 1
    monkeypatch.setattr("cascade_train.data.noted.choose", None)  # not asked again
    again = left(both)
    assert again.report == first.report and [again.key(n) for n in range(7)] == [
        first.key(n) for n in range(7)
    ]
    monkeypatch.undo()
    monkeypatch.setattr("cascade_train.data.noted._LARGE", 4)
    each = combine([part.with_filters(ExactDuplicates()) for part in parts], [1, 1], [0, 0])
    assert len(left(each)) == 12, "each on its own has no duplicates"
    assert len(left(replace(both, filters=()))) == 12


def test_a_world_is_known_wherever_it_arrives(tmp_path: Path) -> None:
    """A spawned worker gets a dataset by pickle: the data room does not know nano's world before that."""
    from cascade_train.nano.world_source import WorldSource

    dataset = Dataset((WeightedSource(WorldSource("captioned", 3, 6)),)).with_filters(
        *expression_filters("brightness > 0\nlen(caption) > 3")
    )
    opened = open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path)
    (tmp_path / "said").write_bytes(pickle.dumps((dataset, opened)))
    code = f"""
import pickle, sys
from pathlib import Path
from cascade_train.data.dataset import open_dataset
assert not [name for name in sys.modules if name.startswith("cascade_train.nano")]
dataset, opened = pickle.loads(Path({str(tmp_path / "said")!r}).read_bytes())
again = open_dataset(dataset, multiple=8, native_side=64, cache=Path({str(tmp_path)!r}))
draw = again.draws(0, 0, 2)[1]
assert opened.draws(0, 0, 2)[1] == draw and len(again) == 6
print(dataset.digest, again.load(draw).caption == opened.load(draw).caption, again.load(draw).caption)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout.split(" ", 2)[:2] == [dataset.digest, "True"], done.stderr
    assert len(done.stdout.split()) > 4
    assert not (tmp_path / "measures").exists(), "pictures that are drawn anew are not worth remembering"
