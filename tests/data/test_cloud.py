"""Shards in object storage, served by servers on this machine that speak the real protocols."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade_train.data.dataset import open_dataset
from cascade_train.data.sources import tars_dataset
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    pytest.importorskip("s3fs", reason="pip install s3fs 'moto[server]'")
    moto = pytest.importorskip("moto.server", reason="pip install s3fs 'moto[server]'")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "anyone")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import fsspec

        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        yield system
    server.stop()


@pytest.fixture(scope="module")
def gs() -> Iterator[Any]:
    pytest.importorskip("gcsfs", reason="pip install gcsfs gcp-storage-emulator")
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="pip install gcsfs gcp-storage-emulator"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks another service, which is not there
        import fsspec

        yield fsspec.filesystem("gs")
    server.stop()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_is_streamed_resumed_and_kept(
    scheme: str, request: pytest.FixtureRequest, shards: list[Path], tmp_path: Path
) -> None:
    system = request.getfixturevalue(scheme)
    for shard in shards:
        system.put_file(str(shard), f"bucket/set/{shard.name}")
    host = HeadlessHost(headless_folders(tmp_path / "out", tmp_path), "cpu")
    dataset = tars_dataset(f"{scheme}://bucket/set/*.tar", shuffle=8, host=host)
    named = tars_dataset(f"{scheme}://bucket/set/{{a,b,c}}.tar", shuffle=8, host=host)
    assert dataset.digest == named.digest and dataset.streamed

    straight = open_dataset(dataset, multiple=8, native_side=64, host=host)
    wanted = [[straight.load(d).caption for d in straight.draws(3, step, 4)] for step in range(12)]
    assert len({caption for batch in wanted for caption in batch}) > 30
    elsewhere = open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "elsewhere")
    assert [elsewhere.caption(d) for d in elsewhere.draws(3, 10, 4)] == wanted[10], "resumed elsewhere"

    for shard in shards:
        system.rm(f"bucket/set/{shard.name}")
    kept = open_dataset(dataset, multiple=8, native_side=64, host=host)
    assert [kept.caption(d) for d in kept.draws(3, 10, 4)] == wanted[10], "from the copies alone"
    with pytest.raises(CascadeError, match=r"no shard can be fetched.*does not exist"):
        open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "empty").draws(0, 0, 1)
    for pattern in ("bucket/none/*.tar", "nowhere/*.tar"):
        with pytest.raises(CascadeError, match=r"matches no file|cannot be looked up"):
            tars_dataset(f"{scheme}://{pattern}", shuffle=8, host=host)
