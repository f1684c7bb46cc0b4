"""Remote shards, served by a real HTTP server on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.filters.expression import expression_filters
from cascade_train.data.spec import BucketSpec, Dataset, StreamSource, WeightedSource
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders


def stream(urls: list[str], tmp_path: Path, cache: str = "cache", **settings: object) -> OpenDataset:
    dataset = Dataset((WeightedSource(StreamSource(tuple(urls), 8)),), **settings)  # type: ignore[arg-type]
    folders = headless_folders(tmp_path / cache, tmp_path, allowed_hosts=["127.0.0.1"])
    return open_dataset(dataset, multiple=8, native_side=64, host=HeadlessHost(folders, "cpu"))


def test_shards_stream_through_a_local_copy(server: str, shards: list[Path], tmp_path: Path) -> None:
    opened = stream([f"{server}/{s}.tar" for s in "abc"], tmp_path)
    seen = Counter(opened.load(draw).caption for step in range(18) for draw in opened.draws(0, step, 2))
    assert len(seen) > 30 and max(seen.values()) <= 2
    assert len(list((tmp_path / "cache" / "cascade" / "cache" / "shards").glob("*.tar"))) == 3
    assert any("replaying" in warning for warning in opened.report.warnings), "it says what cannot hold"


def test_a_resumed_stream_shows_what_an_uninterrupted_one_would(
    server: str, shards: list[Path], tmp_path: Path
) -> None:
    urls = [f"{server}/{s}.tar" for s in "abc"]
    straight = stream(urls, tmp_path)
    wanted = [[straight.caption(d) for d in straight.draws(3, step, 4)] for step in range(14)]
    resumed = stream(urls, tmp_path, cache="elsewhere")
    assert [resumed.caption(d) for d in resumed.draws(3, 11, 4)] == wanted[11]
    assert [resumed.caption(d) for d in resumed.draws(3, 2, 4)] == wanted[2], "and back again"
    assert [resumed.caption(d) for d in resumed.draws(4, 2, 4)] != wanted[2], "another seed, another order"


def test_batches_keep_to_one_bucket(server: str, shards: list[Path], tmp_path: Path) -> None:
    opened = stream([f"{server}/a.tar"], tmp_path, buckets=BucketSpec(ratios=("1/1", "4/5")))
    for step in range(6):
        draws = opened.draws(0, step, 3)
        assert len({(d.width, d.height) for d in draws}) == 1
        assert {opened.load(d).pixels.shape[:2] for d in draws} == {(draws[0].height, draws[0].width)}


def test_missing_and_half_shards_are_named(server: str, shards: list[Path], tmp_path: Path) -> None:
    half = shards[1].read_bytes()
    shards[1].write_bytes(half[: len(half) // 2 + 100])
    opened = stream([f"{server}/{s}.tar" for s in ("a", "b", "gone")], tmp_path)
    for step in range(12):
        opened.draws(0, step, 2)
    reasons = {count.reason: count.names for count in opened.bad_found()}
    assert any("gone.tar" in name for name in reasons["shard cannot be fetched"])
    assert any("b.tar" in name for name in reasons["shard is cut off or damaged"])


def test_nothing_to_fetch_is_an_error_at_once(server: str, tmp_path: Path) -> None:
    opened = stream([f"{server}/gone.tar"], tmp_path)
    with pytest.raises(CascadeError, match="no shard can be fetched"):
        opened.draws(0, 0, 1)


def test_filters_that_leave_nothing_do_not_wait_for_ever(
    server: str, shards: list[Path], tmp_path: Path
) -> None:
    opened = stream([f"{server}/a.tar"], tmp_path, filters=expression_filters("n > 99"))
    with pytest.raises(CascadeError, match="no sample is left"):
        opened.draws(0, 0, 1)


def test_a_dead_server_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    """A server that accepts and then says nothing: the copy hangs in its own thread, Ctrl-C and exit work."""
    code = f"""
import socket, threading, time
from pathlib import Path
from cascade_train.data.shards import ShardCache
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
shards = ShardCache(Path({str(tmp_path)!r}), None)
shards.begin(f"http://127.0.0.1:{{listening.getsockname()[1]}}/a.tar")
time.sleep(0.5)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "ends" and done.returncode == 0
