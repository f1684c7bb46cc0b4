"""Caches worked out ahead: stopped, damaged and on a full disk, they cost time and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from cascade_train.data import caches
from cascade_train.data.caches import listing
from cascade_train.data.sources import folder_dataset
from cascade_train.data.spec import Dataset
from cascade_train.errors import Interrupted
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.jobs.prepare import with_caches
from cascade_train.models.spec import ModelsSpec
from cascade_train.training.run import metrics, start, train
from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec


class Watching:
    """Remembers what a host was told, and asks it to stop at a line that begins so."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.warnings: list[str] = []
        self.stop_at = "never"
        self.host: HeadlessHost

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        self.texts.append(text)
        if text.startswith(self.stop_at):
            self.host.stop()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def a_host(folder: Path) -> tuple[HeadlessHost, Watching]:
    sink = Watching()
    sink.host = HeadlessHost(headless_folders(folder), "cpu", sink)
    return sink.host, sink


def cached(tiny: ModelsSpec, host: HeadlessHost) -> Dataset:
    dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
    return with_caches(dataset, tiny, latents=True, texts=True, crops=1, ahead=True, host=host)


def losses(dataset: Dataset, tiny: ModelsSpec, host: HeadlessHost, runs: Path) -> list[float]:
    there = HeadlessHost(replace(host.folders, runs=runs), "cpu", host.sink)
    spec = RunSpec(tiny, dataset, LoRATarget(rank=2), OptimizerSpec(), batch_size=2, total_steps=2)
    return [row["loss"] for row in metrics(train(start(spec, there), 2, host=there)[0])]


def test_a_stop_while_caching_keeps_what_was_made(tiny: ModelsSpec, tmp_path: Path) -> None:
    host, sink = a_host(tmp_path)
    sink.stop_at = "cached 3 of 20"
    with pytest.raises(Interrupted):
        cached(tiny, host)
    assert sum(text.startswith("cached") for text in sink.texts) == 3, "it stops between two pictures"
    files = set(host.folders.cache.rglob("*.safetensors"))
    assert len(files) == 2 and not list(host.folders.cache.rglob("*.part"))
    again, sink = a_host(tmp_path)
    cached(tiny, again)
    assert files < set(host.folders.cache.rglob("*.safetensors"))
    assert sink.texts[-1].startswith("cached 20 samples") and not sink.warnings


def test_damage_in_a_cache_trains_the_same_weights_and_is_told(
    tiny: ModelsSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, sink = a_host(tmp_path / "a")
    dataset = cached(tiny, host)
    right = losses(dataset, tiny, host, tmp_path / "one")
    assert not sink.warnings
    for kind in ("latents", "text"):
        (folder,) = (kept.path for kept in listing(host.folders.cache) if kept.kind == kind)
        for path in folder.glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            begin = 8 + int.from_bytes(data[:8], "little")
            for at in range(begin, len(data), 64):
                data[at] ^= 8
            path.unlink()
            path.write_bytes(data)
    monkeypatch.setattr(caches, "_OPEN", {})  # as in a process of its own
    assert losses(dataset, tiny, host, tmp_path / "two") == right
    assert {line.partition(":")[0] for line in sink.warnings} == {"cache latents", "cache text"}
    assert all("is damaged" in line and "worked out again" in line for line in sink.warnings)


FULL = """
import resource, signal, sys
from pathlib import Path
from cascade_train.data.sources import folder_dataset
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.jobs.prepare import with_caches
from cascade_train.models import library

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
host = HeadlessHost(headless_folders(Path(sys.argv[2])), "cpu", Quiet())
dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
tiny = library.models_in(Path(sys.argv[1]), name="tiny")
cached = with_caches(dataset, tiny, latents=True, texts=True, crops=1, ahead=True, host=host)
print(len(host.sink.warnings), *host.sink.warnings, sep="\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for the size of files")
def test_a_full_disk_ends_the_caching_and_is_told_with_its_path(tiny_folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tiny_folder), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=58,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "2" and all("cache ends here, it cannot be written" in line for line in lines[1:])
    assert all(str(tmp_path) in line and "large" in line for line in lines[1:])
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".safetensors")]


INDEX = """
import resource, signal, sys
from pathlib import Path
from cascade_train.data.readers import folder_source
from cascade_train.errors import CascadeError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
try:
    folder_source(Path(sys.argv[1]), True, Path(sys.argv[2]))
except CascadeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for the size of files")
def test_an_index_that_cannot_be_written_is_an_error_with_cause_and_path(tmp_path: Path) -> None:
    pictures = Path(caches.__file__).parent.parent / "examples" / "crescent"
    done = subprocess.run(
        [sys.executable, "-c", INDEX, str(pictures), str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=58,
    )
    assert done.returncode == 0, done.stderr
    assert "index cannot be written" in done.stdout and str(tmp_path / "index") in done.stdout
    assert not list((tmp_path / "index").iterdir())
