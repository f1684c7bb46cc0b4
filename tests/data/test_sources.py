"""Folders, tars, lists of tars, pictures from other nodes: indexed once, identified by content."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.filters.expression import expression_filters
from cascade_train.data.folder import index_folder
from cascade_train.data.pack import pack
from cascade_train.data.readers import FolderReader, folder_source, tar_source
from cascade_train.data.sidecar import beside
from cascade_train.data.sources import combine, folder_dataset, pictures_dataset, tars_dataset, tars_state
from cascade_train.data.spec import CaptionSpec, Dataset, WeightedSource
from cascade_train.data.tars import index_tar
from cascade_train.data.unused import RIVAL
from cascade_train.data.urls import expand, expand_braces
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.nano.world_source import WorldSource

from .conftest import encoded, photo

Opened = Callable[..., OpenDataset]


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    (tmp_path / "in").mkdir(exist_ok=True)
    return HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu")


def test_the_same_pictures_elsewhere_are_the_same_dataset(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_folder([(64, 64)] * 5)
    first = folder_source(root, True, tmp_path / "cache")
    shutil.copytree(root, tmp_path / "elsewhere" / "moved")
    moved = folder_source(tmp_path / "elsewhere" / "moved", True, tmp_path / "other cache")
    assert first.content == moved.content and first.path != moved.path
    assert Dataset((WeightedSource(first),)).digest == Dataset((WeightedSource(moved),)).digest


@pytest.mark.parametrize("change", ["caption", "picture", "new", "gone", "name", "json"])
def test_any_change_is_another_dataset(change: str, make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = make_folder([(64, 64)] * 5)
    before = folder_source(root, True, tmp_path / "cache")
    if change == "caption":
        (root / "0002.txt").write_text("picture two")
    elif change == "picture":
        photo(64, 64, 99).save(root / "0002.png")
    elif change == "new":
        photo(64, 64, 98).save(root / "new.png")
    elif change == "gone":
        (root / "0002.png").unlink()
    elif change == "name":
        (root / "0002.png").rename(root / "other.png")
    else:
        (root / "0002.json").write_text('{"a": 1}')
    assert folder_source(root, True, tmp_path / "cache").content != before.content
    with pytest.raises(CascadeError, match="has changed since"):
        open_dataset(Dataset((WeightedSource(before),)), multiple=8, native_side=64, cache=tmp_path / "c2")


def test_only_what_changed_is_looked_at_again(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = make_folder([(64, 64)] * 40)
    index_folder(root, True, tmp_path / "cache")
    photo(64, 64, 77).save(root / "more.png")
    again = index_folder(root, True, tmp_path / "cache")
    assert len(again) == 41 and not any(entry.bad for entry in again.rows())
    # Size and time of writing kept, something else in it: the time of the change tells.
    state = (root / "0007.png").stat()
    (root / "0007.png").write_bytes(bytes(state.st_size))
    os.utime(root / "0007.png", ns=(state.st_atime_ns, state.st_mtime_ns))
    again = index_folder(root, True, tmp_path / "cache")
    assert [entry.name for entry in again.rows() if entry.bad] == ["0007.png"]
    assert len(list((tmp_path / "cache").glob("*.sqlite"))) == 1, "the old index is gone"


def test_folders_inside_and_not(make_folder: Callable[..., Path], opened: Opened, tmp_path: Path) -> None:
    make_folder([(64, 64)] * 2)
    make_folder([(64, 64)] * 3, "pictures/red/deep")
    root = tmp_path / "pictures"
    assert len(opened(root)) == 5
    flat = folder_source(root, False, tmp_path / "cache")
    assert (
        len(
            open_dataset(
                Dataset((WeightedSource(flat),)), multiple=8, native_side=64, cache=tmp_path / "cache"
            )
        )
        == 2
    )


def test_whose_a_text_file_is(make_folder: Callable[..., Path], opened: Opened, tmp_path: Path) -> None:
    root = make_folder([(64, 64)] * 3, captions=False)
    photo(64, 64, 9).save(root / "0002.jpg")
    (root / "0000.png.txt").write_text("of the whole name")
    (root / "0001.wd.txt").write_text("tagged")
    (root / "0001.png.json").write_text('{"score": 4}')
    (root / "0002.txt").write_text("of both")
    (root / "0003.txt").write_text("of none")
    dataset = opened(root, captions=CaptionSpec(fallback="empty", extension="wd.txt"))
    said = {dataset.key(i): dataset.captions(i) for i in range(len(dataset))}
    assert said == {
        "pictures/0000.png": ("of the whole name",),
        "pictures/0001.png": ("tagged",),
        "pictures/0002.jpg": ("of both",),
    }
    assert ("0002.png", RIVAL) in dataset.report.unused
    assert dataset.entry(1).metadata() == {"score": 4}
    (root / "0002.png.txt").write_text("of its whole name")
    both = opened(root, captions=CaptionSpec(fallback="empty"))
    said = {both.key(i): both.captions(i) for i in range(len(both))}
    assert said["pictures/0002.png"] == ("of its whole name",) and said["pictures/0002.jpg"] == ("of both",)
    assert any("0003.txt" in warning for warning in dataset.report.warnings)


def test_metadata_tables_reach_their_pictures(
    make_folder: Callable[..., Path], opened: Opened, tmp_path: Path
) -> None:
    root = make_folder([(64, 64)] * 3, captions=False)
    make_folder([(64, 64)] * 2, "pictures/sub", captions=False)
    (root / "metadata.jsonl").write_text(
        "\n".join(
            json.dumps(row)
            for row in (
                {"file_name": "0000.png", "text": "zero\u2028line", "score": 1},
                {"file_name": "sub/0001.png", "text": "sub one", "score": 5},
            )
        ),
        encoding="utf-8",
    )
    (root / "more.csv").write_text('file_name,text,score\n0001,"one, quoted",2.5\n', encoding="utf-8")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(
        pyarrow.table({"image": ["./0002.png"], "text": [["two", "zwei"]], "score": [float("nan")]}),
        root / "t.parquet",
    )
    dataset = opened(root, captions=CaptionSpec(source="metadata", field="text", fallback="empty"))
    said = {dataset.key(i): dataset.captions(i) for i in range(len(dataset))}
    assert said == {
        "pictures/0000.png": ("zero\u2028line",),
        "pictures/0001.png": ("one, quoted",),
        "pictures/0002.png": ("two", "zwei"),
        "pictures/sub/0000.png": ("",),
        "pictures/sub/0001.png": ("sub one",),
    }
    scored = opened(root, captions=CaptionSpec(source="fixed"), filters=expression_filters("score > 1.5"))
    assert len(scored) == 2
    without = {count.reason: count.names for count in scored.report.dropped}["without the field score"]
    assert without == ("0002.png", "sub/0000.png"), "NaN is no score"
    (root / "broken.jsonl").write_text('{"file_name": "0000.png"}\n{oops\n')
    assert any(
        "broken.jsonl: line 2" in warning
        for warning in opened(root, captions=CaptionSpec(source="fixed")).report.warnings
    )


def test_a_tar_is_indexed_once_and_read_at_random(make_tar: Callable[..., Path], tmp_path: Path) -> None:
    pictures = [encoded(photo(64, 64, n)) for n in range(20)]
    path = make_tar([(f"{n:04}", pictures[n], f"caption {n}", {"n": n}) for n in range(20)])
    index = index_tar(path, tmp_path / "cache")
    assert len(index) == 20 and [entry.metadata()["n"] for entry in index.rows()] == list(range(20))
    data = path.read_bytes()
    for row in (19, 0, 7):
        entry = index.row(row)
        assert data[entry.offset : entry.offset + entry.size] == pictures[row]
    written = next((tmp_path / "cache").glob("tar-*.sqlite"))
    before = written.stat().st_mtime_ns
    assert index_tar(path, tmp_path / "cache").content == index.content
    assert written.stat().st_mtime_ns == before
    assert tar_source(path, tmp_path / "c2").content == index.content, "by content, not by cache"


def test_a_packed_folder_is_the_same_dataset_in_a_tar(
    make_folder: Callable[..., Path], tmp_path: Path, opened: Opened
) -> None:
    root = make_folder([(80, 64), (64, 80), (64, 64)] * 3)
    (root / "sub.v2").mkdir()
    photo(64, 64, 50).save(root / "sub.v2" / "a.b.jpg")
    (root / "sub.v2" / "a.b.caption").write_text("dots 🦊", encoding="utf-8")
    (root / "0001.json").write_text('{"score": 7}')
    reader = FolderReader(root, index_folder(root, True, tmp_path / "cache"))
    done = pack(reader, tmp_path / "set.tar")
    assert done.shards == (tmp_path / "set.tar",) and done.samples == 10 and beside(done.shards[0]).is_file()

    dataset = Dataset((WeightedSource(tar_source(tmp_path / "set.tar", tmp_path / "c2" / "index")),))
    packed = open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "c2")
    folder = opened(root)
    shown = {
        loaded.caption: loaded.pixels for i in range(10) for loaded in [packed.load(packed.draws(0, i, 1)[0])]
    }
    for step in range(10):
        loaded = folder.load(folder.draws(0, step, 1)[0])
        assert (shown[loaded.caption] == loaded.pixels).all() or loaded.pixels.shape != (64, 64, 3)
    with pytest.raises(CascadeError, match="exists already"):
        pack(reader, tmp_path / "set.tar")
    with pytest.raises(CascadeError, match="no tar"):
        pack(reader, tmp_path / "set.zip")


def test_shards_of_a_size_are_read_by_the_webdataset_library(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    wds = pytest.importorskip("webdataset")
    root = make_folder([(64, 64)] * 12)
    done = pack(
        FolderReader(root, index_folder(root, True, tmp_path / "cache")),
        tmp_path / "set.tar",
        shard_bytes=40_000,
    )
    assert len(done.shards) > 1 and done.shards[0].name == "set-00000.tar"
    assert all(shard.stat().st_size < 60_000 for shard in done.shards)
    samples = list(wds.WebDataset([str(shard) for shard in done.shards], shardshuffle=False))
    assert sorted(sample["txt"].decode() for sample in samples) == sorted(f"picture {n}" for n in range(12))
    assert all(sample["png"].startswith(b"\x89PNG") for sample in samples)


def test_a_failed_packing_leaves_no_half_tar(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = make_folder([(64, 64)] * 4)
    reader = FolderReader(root, index_folder(root, True, tmp_path / "cache"))

    def stop(done: int, total: int, text: str = "", preview: object = None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(reader, tmp_path / "set.tar", progress=stop)
    assert not list(tmp_path.glob("*set*"))


def test_all_ways_to_name_tars(host: HeadlessHost, make_tar: Callable[..., Path], tmp_path: Path) -> None:
    inside = tmp_path / "in"
    (inside / "set").mkdir()
    for n in range(3):
        make_tar([(f"{n}", encoded(photo()), "c", None)], f"in/set/{n:02}.tar")
    paths = [inside.resolve() / "set" / f"{n:02}.tar" for n in range(3)]
    (inside / "list.yml").write_text(yaml.safe_dump(["set/00.tar", "set/{01..02}.tar"]))
    (inside / "tree.yaml").write_text(yaml.safe_dump({"train": {"urls": ["set/*.tar"]}}))
    for text in (
        "set/{00..02}.tar",
        "set/*.tar",
        "set",
        "set/00.tar\nset/01.tar\n# note\nset/02.tar",
        "list.yml",
        "tree.yaml",
        f"file://{paths[0].as_posix()}\nfile:set/{{01,02}}.tar",
    ):
        assert expand(text, host.folders) == paths, text
    assert len(tars_dataset("set", shuffle=1, host=host).sources) == 3
    state = tars_state("set", host)
    os.utime(paths[0], ns=(1, 1))
    assert tars_state("set", host) != state


def test_brace_ranges() -> None:
    assert expand_braces("a{08..11}.tar") == ["a08.tar", "a09.tar", "a10.tar", "a11.tar"]
    assert expand_braces("{x,y}/{0..1}") == ["x/0", "x/1", "y/0", "y/1"]
    assert expand_braces("plain{name}.tar") == ["plain{name}.tar"]
    for wrong in ("{3..1}", "{0..999999999}", "{0..999}{0..999}"):
        with pytest.raises(CascadeError):
            expand_braces(wrong)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("pipe:curl http://x/a.tar", "start a program"),
        ("PIPE: cat a.tar", "start a program"),
        ("| cat x", "start a program"),
        ("cat x.tar |", "start a program"),
        ("ftp://x/a.tar", "scheme"),
        ("../../etc/passwd", "lies outside|does not exist"),
        ("gone.tar", "does not exist"),
        ("", "no tar is named"),
        ("set/*.zip", "matches no file|does not exist"),
        ("https://x/a.tar\nreal.tar", "cannot be mixed"),
    ],
)
def test_what_is_refused(text: str, what: str, host: HeadlessHost, make_tar: Callable[..., Path]) -> None:
    make_tar([("0", encoded(photo()), "c", None)], "in/real.tar")
    with pytest.raises(CascadeError, match=what):
        tars_dataset(text, shuffle=1, host=host)


def test_a_list_cannot_smuggle_a_program_or_another_folder(
    host: HeadlessHost, tmp_path: Path, make_tar: Callable[..., Path]
) -> None:
    make_tar([("0", encoded(photo()), "c", None)], "outside.tar")
    for entry in ("pipe:touch hacked", str(tmp_path / "outside.tar"), "../outside.tar"):
        (tmp_path / "in" / "bad.yml").write_text(yaml.safe_dump([entry]))
        with pytest.raises(CascadeError):
            tars_dataset("bad.yml", shuffle=1, host=host)
    (tmp_path / "in" / "loop.yml").write_text(yaml.safe_dump(["loop.yml"]))
    with pytest.raises(CascadeError, match="too deeply"):
        tars_dataset("loop.yml", shuffle=1, host=host)
    (tmp_path / "in" / "obj.yml").write_text("!!python/object/apply:os.system ['touch hacked']")
    with pytest.raises(CascadeError, match="YAML"):
        tars_dataset("obj.yml", shuffle=1, host=host)


def test_pictures_of_other_nodes(host: HeadlessHost) -> None:
    pictures = np.random.default_rng(0).random((3, 64, 64, 3)).astype(np.float32)
    dataset = pictures_dataset(pictures, ["a", "b", "c"], host=host)
    assert dataset.digest == pictures_dataset(pictures.copy(), ["a", "b", "c"], host=host).digest
    assert dataset.digest != pictures_dataset(pictures, ["a", "b", "d"], host=host).digest
    opened = open_dataset(dataset, multiple=8, native_side=64, host=host)
    loaded = {item.caption: item for item in (opened.load(opened.draws(0, s, 1)[0]) for s in range(3))}
    assert np.abs(loaded["b"].pixels / 255.0 - pictures[1]).max() <= 0.5 / 255 + 1e-6
    assert loaded["b"].key.startswith("images/")
    kept = Path(dataset.sources[0].source.path) / "00001.png"  # type: ignore[union-attr]
    whole = kept.read_bytes()
    kept.write_bytes(whole[:6000] + bytes([whole[6000] ^ 1]) + whole[6001:])
    assert pictures_dataset(pictures, ["a", "b", "c"], host=host).digest == dataset.digest
    assert kept.read_bytes() == whole, "damaged ones are written anew"
    warned = "".join(host.sink.warnings)  # type: ignore[attr-defined]
    assert "damaged" in warned and not list(kept.parent.parent.glob(".*"))
    with pytest.raises(CascadeError, match="3 pictures and 2 captions"):
        pictures_dataset(pictures, ["a", "b"], host=host)


def test_combining_with_repeats_and_with_shares(
    make_folder: Callable[..., Path], tmp_path: Path, host: HeadlessHost
) -> None:
    few = folder_dataset(str(make_folder([(64, 64)] * 4, "in/few")), recursive=True, host=host)
    many = folder_dataset(str(make_folder([(64, 64)] * 12, "in/many")), recursive=True, host=host)
    repeated = open_dataset(combine([few, many], [3, 1], [0, 0]), multiple=8, native_side=64, host=host)
    assert len(repeated) == 16 and repeated.report.epoch == 24
    keys = [repeated.key(d.sample) for step in range(6) for d in repeated.draws(0, step, 4)]
    assert sorted(keys) == sorted(
        [f"few/{n:04}.png" for n in range(4)] * 3 + [f"many/{n:04}.png" for n in range(12)]
    )

    shared = open_dataset(combine([few, many], [1, 1], [1.0, 1.0]), multiple=8, native_side=64, host=host)
    assert shared.report.epoch == 24
    with pytest.raises(CascadeError, match="some of the combined datasets have a share"):
        combine([few, many], [1, 1], [1.0, 0.0])
    both = combine([few, combine([many, few], [2, 1], [0, 0])], [1, 5], [0, 0])
    assert open_dataset(both, multiple=8, native_side=64, host=host).report.epoch == 4 + 5 * (24 + 4)
    assert both.digest != repeated.dataset.digest


def test_the_world_is_a_source() -> None:
    dataset = Dataset((WeightedSource(WorldSource("captioned", 3, 50)),))
    opened = open_dataset(dataset, multiple=8, native_side=64, cache="unused")
    assert len(opened) == 50
    draw = opened.draws(0, 4, 8)[5]
    loaded = opened.load(draw)
    from cascade_train.nano.world import render

    pixels, caption = render("captioned", 3, draw.sample)
    assert (loaded.pixels == pixels).all() and loaded.caption == caption == opened.caption(draw)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on open files to set")
def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    """No index and no tar is kept open for each: 200 shards, a limit of 90 open files, four threads."""
    code = f"""
import io, resource, tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from PIL import Image
from cascade_train.data.dataset import open_dataset
from cascade_train.data.readers import tar_source
from cascade_train.data.spec import Dataset, WeightedSource
resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))
root = Path({str(tmp_path)!r})
picture = io.BytesIO(); Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture, "PNG")
for n in range(200):
    with tarfile.open(root / f"{{n:03}}.tar", "w") as tar:
        for name, data in (("0.png", picture.getvalue()), ("0.txt", b"shard %d" % n)):
            info = tarfile.TarInfo(name); info.size = len(data); tar.addfile(info, io.BytesIO(data))
sources = tuple(WeightedSource(tar_source(root / f"{{n:03}}.tar", root / "index")) for n in range(200))
opened = open_dataset(Dataset(sources), multiple=8, native_side=64, cache=root)
with ThreadPoolExecutor(4) as pool:
    loaded = list(pool.map(opened.load, [d for step in range(50) for d in opened.draws(0, step, 4)]))
print(len({{item.caption for item in loaded}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=55)
    assert done.stdout.strip() == "200", done.stderr
