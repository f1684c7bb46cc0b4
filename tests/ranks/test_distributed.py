"""Several processes that train one run see the samples, noise and losses that one process sees."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cascade_train.models.spec import ModelsSpec
from cascade_train.training import run
from cascade_train.training.spec import OptimizerSpec

RANK = """
import sys
sys.path.insert(0, {here!r})
import torch
import studio
from pathlib import Path
from cascade_train.errors import Interrupted
from cascade_train.models import library
from cascade_train.ranks.talk import leave
from cascade_train.training import run
from cascade_train.training.spec import OptimizerSpec

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
host = studio.CountingHost(Path({root!r}))
models = library.models_in(Path({models!r}), name="tiny")
spec = studio.spec({kind!r}, models, batch_size=4, optimizer={optimizer!r})
host.interrupt_before = 2 if host.rank == 1 else None
try:
    run.train(run.start(spec, host), 3, host=host)
except Interrupted:
    print("stopped", flush=True)
host.interrupt_before = None
position, metrics = run.train(run.start(spec, host), 3, host=host)
print(host.rank, len(metrics.rows), studio.fingerprint(position), flush=True)
leave()
"""


SHARING = """
import torch
from pathlib import Path
from cascade_train.errors import Interrupted
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.ranks.talk import leave, shared_out

torch.distributed.init_process_group("gloo")
host = HeadlessHost(headless_folders(Path("output")), "cpu")
print(shared_out(lambda first, last: (host.rank, first, last), 5, host))
print(shared_out(lambda first, last: (host.rank, first, last), 1, host))
for error in (OSError("no such picture"), Interrupted("stop")):
    def make(first, last):
        if host.rank == 1:
            raise error
    try:
        shared_out(make, 2, host)
    except Exception as caught:
        print(type(caught).__name__, caught)
leave()
"""


def two_processes(code: str) -> list[str]:
    """What two processes of a launcher print that run ``code`` to a good end, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    told = []
    try:
        for child in children:
            out, err = child.communicate(timeout=300)
            assert child.returncode == 0, err
            told.append(out)
    finally:
        for child in children:
            child.kill()
    return told


def test_work_is_shared_and_a_failure_is_everybodys() -> None:
    zero, one = (out.splitlines() for out in two_processes(SHARING))
    assert zero[:2] == one[:2] == ["[(0, 0, 2), (1, 2, 5)]", "[(1, 0, 1)]"]
    assert one[2:] == ["OSError no such picture", "Interrupted stop"]
    assert zero[2] == "CascadeError process 1, which works with this one, failed: OSError: no such picture."
    assert zero[3].startswith("Interrupted another process")


@pytest.mark.parametrize("kind, optimizer", [("lora", "adamw"), ("stage_c", "adamw8bit")])
def test_two_processes_train_the_run_of_one(
    studio: ModuleType, models: ModelsSpec, models_folder: Path, tmp_path: Path, kind: str, optimizer: Any
) -> None:
    if optimizer == "adamw8bit":
        pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    chosen = OptimizerSpec(optimizer, learning_rate=1e-3, ema=0.9, warmup=2)
    changes = {"batch_size": 4, "optimizer": chosen}
    here = str(Path(__file__).parents[1] / "training")
    code = RANK.format(
        here=here, root=str(tmp_path / "two"), models=str(models_folder), kind=kind, optimizer=chosen
    )
    told = [out.split() for out in two_processes(code)]
    # the stop of one is the stop of both, after which both go on
    assert [words[0] for words in told] == ["stopped", "stopped"]
    assert told[0][2:] == told[1][2:] and told[0][2] == "3"

    host = studio.CountingHost(tmp_path / "one")
    one, metrics = run.train(run.start(studio.spec(kind, models, **changes), host), 3, host=host)
    two_host = studio.CountingHost(tmp_path / "two")
    two, two_metrics = run.train(run.start(studio.spec(kind, models, **changes), two_host), 3, host=two_host)
    assert two_host.trained == 0  # it is the same run, and it is done
    assert [row["loss"] for row in two_metrics.rows] == pytest.approx(
        [row["loss"] for row in metrics.rows], rel=1e-4
    )
    for name, value in run.trained(one).tensors.items():
        torch.testing.assert_close(run.trained(two).tensors[name], value, rtol=1e-2, atol=1e-5)
    assert (
        json.loads((Path(two.folder) / "run.json").read_text(encoding="utf-8"))["digest"] == two.spec.digest
    )
