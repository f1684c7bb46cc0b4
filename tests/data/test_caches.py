"""What is kept on disk is found again by the right key alone, whoever wrote it, however it was stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from cascade_train.data.caches import Store, flush_all, listing, open_store, prune_caches, text_key
from cascade_train.data.dataset import OpenDataset
from cascade_train.data.spec import BucketSpec, CaptionSpec
from cascade_train.digest import digest

from .conftest import photo

WRITER = """
import sys, numpy as np
from pathlib import Path
from cascade_train.data.caches import Store
from cascade_train.digest import digest
import cascade_train.data.caches as caches
caches.FLUSH_BYTES = 20_000
store = Store(Path(sys.argv[1]))
print("ready", flush=True)
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    store.put(digest(n), {"latent": np.full((4, 8, 8), n, dtype=np.float32)})
store.flush()
print("done", flush=True)
"""


def value(n: int) -> np.ndarray:
    return np.full((4, 8, 8), n, dtype=np.float32)


def test_round_trip_and_a_second_opening(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.get(digest(1)) is None and digest(1) not in store
    store.put(digest(1), {"hidden": value(1), "mask": np.ones((1, 7), dtype=np.int64)})
    assert (store.get(digest(1))["hidden"] == value(1)).all()  # type: ignore[index]
    store.flush()
    again = Store(tmp_path / "store")
    found = again.get(digest(1))
    assert found is not None and set(found) == {"hidden", "mask"} and found["mask"].dtype == np.int64
    assert (found["hidden"] == value(1)).all() and len(again) == 1


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(first), str(first + 120)], stdout=subprocess.PIPE
        )
        for first in (0, 60, 120)
    ]
    for writer in writers:
        assert b"done" in writer.communicate(timeout=50)[0]
    store = Store(folder)
    for n in range(240):
        found = store.get(digest(n))
        assert found is not None and (found["latent"] == n).all()


def test_a_reader_learns_of_what_another_process_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = Store(tmp_path / "store"), Store(tmp_path / "store")
    writer.put(digest(5), {"latent": value(5)})
    writer.flush()
    monkeypatch.setattr("cascade_train.data.caches._REFRESH_SECONDS", 0.0)
    assert reader.get(digest(5)) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_being_killed_loses_only_what_was_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), "0", "1000000"], stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 40
    while len(list(folder.glob("[0-9]*.safetensors"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    store = Store(folder)
    assert len(store) >= 30
    for n in range(len(store)):
        assert (store.get(digest(n))["latent"] == n).all()  # type: ignore[index]


def test_damaged_and_vanished_shards_are_misses(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for n in range(3):
        store.put(digest(n), {"latent": value(n)})
        store.flush()
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[0].write_bytes(b"rubbish")
    again = Store(tmp_path)
    assert again.get(digest(0)) is None and again.get(digest(1)) is not None
    late = Store(tmp_path)
    shards[2].unlink()
    assert late.get(digest(2)) is None


@pytest.mark.parametrize("where", ["tensor", "key", "digest", "length"])
def test_bits_that_flip_in_a_shard_are_never_read(tmp_path: Path, where: str) -> None:
    """Damage of the right length: a tensor's bits, an entry's name, its digest; or one entry as another's."""
    store = Store(tmp_path)
    for n in range(3):
        store.put(digest(n), {"latent": np.arange(256, dtype=np.float32).reshape(4, 8, 8) + 1000 * n})
    store.flush()
    (shard,) = tmp_path.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    if where == "tensor":
        data[data.index(np.float32(1007).tobytes())] ^= 16
    elif where == "key":
        first, second = digest(0).encode(), digest(1).encode()
        data = bytearray(data.replace(first, b"#" * 32).replace(second, first).replace(b"#" * 32, second))
    elif where == "digest":
        data[-1] ^= 1
        data[-17] ^= 1
        data[-33] ^= 1
    else:
        data = bytearray(data.replace(b"[4,8,8]", b"[8,4,8]", 1))
    shard.write_bytes(data)
    told: list[str] = []
    again = Store(tmp_path, told.append)
    for n in range(3):
        found = again.get(digest(n))
        assert found is None or (found["latent"][0, 0, 0] == 1000 * n and found["latent"].shape == (4, 8, 8))
    assert len(told) == 1 and shard.name in told[0] and "worked out again" in told[0] and not shard.exists()
    again.put(digest(0), {"latent": value(0)})
    again.flush()
    last = Store(tmp_path, told.append)
    assert last.get(digest(0)) is not None and len(told) == 1, "made anew, and told once"


def test_shards_of_an_earlier_version_are_made_anew(tmp_path: Path) -> None:
    save_file({f"{digest(0)}.latent": value(0)}, tmp_path / "0-1-2.safetensors")
    told: list[str] = []
    store = Store(tmp_path, told.append)
    assert store.get(digest(0)) is None and len(told) == 1 and "earlier version" in told[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for the size of files")
def test_a_full_disk_ends_the_caching_with_its_cause_and_path(tmp_path: Path) -> None:
    """In a process whose files may not grow beyond some kilobytes, as on a disk without room."""
    code = """
import resource, signal, sys, numpy as np
from pathlib import Path
from cascade_train.data.caches import open_store, flush_all
from cascade_train.digest import digest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(Path(sys.argv[1]), "latents", "a" * 32)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
store.put(digest(0), {"latent": np.ones((16, 64, 64), np.float32)})
flush_all()
store.put(digest(1), {"latent": np.ones((16, 64, 64), np.float32)})
print(store.trouble, store.get(digest(1)), [p.name for p in store.folder.iterdir()])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "large" in done.stdout and str(tmp_path) in done.stdout and "None ['about.json']" in done.stdout


def test_a_disk_that_cannot_be_written_ends_the_caching_not_the_work(tmp_path: Path) -> None:
    store = Store(tmp_path / "file" / "store")
    (tmp_path / "file").write_text("in the way")
    store.put(digest(0), {"latent": value(0)})
    store.flush()
    assert store.trouble
    store.put(digest(1), {"latent": value(1)})
    assert store.get(digest(1)) is None


def test_a_changed_picture_setting_caption_or_model_is_another_key(
    make_folder: Callable[..., Path], opened: Callable[..., OpenDataset]
) -> None:
    root = make_folder([(96, 64)] * 2)
    base = opened(root, buckets=BucketSpec(crop="center"))
    draw = base.draws(0, 0, 1)[0]
    key = base.cache_key(draw)
    assert opened(root, buckets=BucketSpec(crop="center")).cache_key(draw) == key
    assert (
        opened(root, buckets=BucketSpec(crop="center"), captions=CaptionSpec(prefix="x")).cache_key(draw)
        == key
    )
    others = [
        opened(root, buckets=BucketSpec(crop="top left")).cache_key(draw),
        opened(root, buckets=BucketSpec(crop="center", resize="pad")).cache_key(draw),
        opened(root, buckets=BucketSpec(crop="center"), background=(0, 0, 0)).cache_key(draw),
        base.cache_key(replace(draw, width=72)),
    ]
    name = base.entry(draw.sample).name
    data = (root / name).read_bytes()
    (root / name).write_bytes(data)
    os.utime(root / name, ns=(1, 1))
    shutil.copytree(root, root.parent / "elsewhere")
    for same in (root, root.parent / "elsewhere"):
        assert opened(same, buckets=BucketSpec(crop="center")).cache_key(draw) == key, "the same picture"
    photo(96, 64, 99).save(root / name)
    others.append(opened(root, buckets=BucketSpec(crop="center")).cache_key(draw))
    assert key not in others and len(set(others)) == len(others)
    assert text_key("a") != text_key("b") == text_key("b")


def test_ls_and_prune(tmp_path: Path) -> None:
    for model in ("aaaa", "bbbb"):
        store = open_store(tmp_path, "latents", model * 8, f"compressor of {model}")
        store.put(digest(model), {"latent": value(1)})
    flush_all()
    text = open_store(tmp_path, "text", "cccc" * 8, "text of nano")
    text.put(digest(0), {"hidden": value(0)})
    text.flush()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "a.sqlite").write_bytes(b"x" * 10)
    assert [(kept.kind, kept.about) for kept in listing(tmp_path)][-1] == (
        "index",
        "indexes of folders and tars",
    )
    assert {kept.about for kept in listing(tmp_path)} >= {"compressor of aaaa", "text of nano"}
    assert not prune_caches(tmp_path, older_than=3600.0)
    assert len(prune_caches(tmp_path, kinds=("text",), dry_run=True)) == 1 and text.folder.is_dir()
    assert [kept.kind for kept in prune_caches(tmp_path, kinds=("text",))] == [
        "text"
    ] and not text.folder.is_dir()
    reopened = open_store(tmp_path, "text", "cccc" * 8)
    assert reopened.get(digest(0)) is None, "a pruned store is empty in a process that had it open"
    prune_caches(tmp_path)
    assert all(kept.bytes == 0 for kept in listing(tmp_path) if kept.kind == "index")
