"""A disk that is full: cause and path in one line from whoever writes, and nothing that was there is lost.

A limit on the size of files gives the system's own errors. Where a small file system can be mounted (as root
on Linux), it is really full.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cascade_train.errors import CascadeError
from cascade_train.files import NotWritten, sweep_parts, write_bytes, write_json, written_beside

posix = pytest.mark.skipif(os.name != "posix", reason="a limit on the size of files is POSIX's")

WRITERS = """
import sys
from pathlib import Path
import resource, torch
from PIL import Image
from cascade_train.errors import CascadeError
from cascade_train.files import write_json, write_with
from cascade_train.formats import lora
from cascade_train.models.weights import write_tensors
from cascade_train.training.metrics import MetricsFile
from cascade_train.training import notes
from cascade_train.data.report import Report

root, limit = Path(sys.argv[1]), int(sys.argv[2])
big = torch.rand(300, 300)
adapters = lora.LoRA({"x.lora_A.weight": big, "x.lora_B.weight": big}, 1.0)
picture = Image.effect_noise((600, 600), 100)


def metrics():
    file = MetricsFile(root, "branch")
    for step in range(5000):
        file.append({"step": step})
    try:
        file.flush()
    finally:
        file.close()


WRITERS = {
    "a.safetensors": lambda: write_tensors(root / "a.safetensors", {"x": big}),
    "lora.safetensors": lambda: lora.write_comfy(root / "lora.safetensors", adapters),
    "adapter_model.safetensors": lambda: lora.write_peft(root / "folder", adapters),
    "word.safetensors": lambda: lora.write_token(root / "word.safetensors", "word", big),
    "run.json": lambda: write_json(root / "run.json", ["x" * 200_000]),
    "grid.png": lambda: write_with(root / "grid.png", lambda path: picture.save(path, format="PNG")),
    "metrics.jsonl": metrics,
}
for make in WRITERS.values():
    make()
before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
else:
    with (root / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
for name, write in WRITERS.items():
    try:
        write()
        print("WRITTEN", name)
    except CascadeError as error:
        print(name, "|", error)
    if name != "metrics.jsonl":
        assert all(path.read_bytes() == data for path, data in before.items() if path.name == name), name
assert not list(root.rglob("*.part"))
"""


def lines(root: Path, limit: int) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, str(root), str(limit)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    pairs = [line.partition(" | ")[::2] for line in done.stdout.splitlines()]
    assert len(pairs) == 7 and "WRITTEN" not in done.stdout, done.stdout
    return dict(pairs)


@posix
def test_every_writer_tells_cause_and_path(tmp_path: Path) -> None:
    for name, line in lines(tmp_path, 20_000).items():
        assert f"{name} cannot be written: the file is larger than files may be here" in line
        assert str(tmp_path) in line and "Free space and run again" in line


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tmpfs is Linux's")
def test_a_disk_that_is_really_full_is_called_so(small_disk: Path) -> None:
    for name, line in lines(small_disk, 0).items():
        assert f"{name} cannot be written: the disk is full ({small_disk}" in line
        assert "Free space and run again" in line


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_called_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(NotWritten, match="writing is not permitted"):
        write_json(tmp_path / "a.json", 1)


def test_the_systems_errors_of_other_things_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), written_beside(tmp_path / "a") as beside:
        beside.write_bytes((tmp_path / "not there").read_bytes())
    assert not list(tmp_path.iterdir())


def test_who_has_an_answer_to_a_full_disk_hears_of_it_as_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError) as told:
        write_bytes(tmp_path / ("x" * 250), b"data")
    assert isinstance(told.value, CascadeError) and "the name is too long" in str(told.value)
    assert told.value.strerror == "the name is too long"


KILLED = """
import sys, time
from pathlib import Path
from cascade_train.files import written_beside
with written_beside(Path(sys.argv[1])) as beside:
    beside.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_swept_and_what_another_writes_is_not(tmp_path: Path) -> None:
    def writer(name: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / name)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "writing\n"
        return child

    dead, alive = writer("dead.safetensors"), writer("alive.safetensors")
    try:
        dead.kill()
        dead.communicate()
        (tmp_path / ".mine.part").write_bytes(b"somebody else's")
        assert len(list(tmp_path.glob(".*.part"))) == 3
        assert sweep_parts(tmp_path, tmp_path / "not there") == 1
        left = {path.name.split(".")[1] for path in tmp_path.glob(".*.part")}
        assert left == ({"alive", "mine"} if os.name == "posix" else left)
    finally:
        alive.kill()
        alive.communicate()
    sweep_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.part"]
