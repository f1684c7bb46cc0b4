"""Who a process is among those that work as one: said in one place, and told to those started here."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from cascade_train.errors import STOPPED, CascadeError
from cascade_train.host import place
from cascade_train.ranks.processes import apart, together

ROOT = Path(__file__).parents[2]
NAMES = re.compile(r"\b(LOCAL_)?(RANK|WORLD_SIZE)\b")


def naming(root: Path) -> list[str]:
    """The files of the project's code under ``root`` that name what a launcher sets."""
    files = [*(root / "cascade_train").rglob("*.py"), *(root / "nodes").rglob("*.py"), *root.glob("*.py")]
    return sorted(
        file.relative_to(root).as_posix() for file in files if NAMES.search(file.read_text(encoding="utf-8"))
    )


def test_one_module_names_what_launchers_set(tmp_path: Path) -> None:
    assert naming(ROOT) == ["cascade_train/host/place.py"]
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        planted = tmp_path / name / "cascade_train" / "models" / "reads.py"
        planted.parent.mkdir(parents=True)
        planted.write_text(f"import os\nhere = os.environ.get('{name}', '0')\n", encoding="utf-8")
        assert naming(tmp_path / name) == ["cascade_train/models/reads.py"]


def who(folder: str, code: int) -> int:
    """Write down who this process is; of several the last one ends with ``code``."""
    number = place.rank()
    said = f"{number} {place.local_rank()} {place.world_size()} {place.started_here()} {os.getpid()}"
    (Path(folder) / str(number)).write_text(said, encoding="utf-8")
    place.check_launched()
    return code if number == place.world_size() - 1 else 0


def named(folder: str, name: str, code: int) -> int:
    (Path(folder) / name).write_text(f"{place.rank()} {place.world_size()}", encoding="utf-8")
    return code


def stops_its_starter(folder: str) -> int:
    """Wait to be told to stop, as a run does; the first to be there sends the signal that a person sends."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    (Path(folder) / f"ready {place.rank()}").touch()
    while len(list(Path(folder).glob("ready *"))) < place.world_size():
        time.sleep(0.01)
    if place.rank() == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    while not told:
        time.sleep(0.01)
    (Path(folder) / f"told {place.rank()}").touch()
    return STOPPED


def test_processes_started_here_know_their_place_and_the_worst_code_is_told(tmp_path: Path) -> None:
    assert together(3, who, str(tmp_path), 7) == 7
    said = [(tmp_path / str(number)).read_text(encoding="utf-8").split() for number in range(3)]
    assert [words[:4] for words in said] == [[str(n), str(n), "3", "True"] for n in range(3)]
    assert len({words[4] for words in said} | {str(os.getpid())}) == 4
    assert place.world_size() == 1 and not place.started_here(), "whoever starts them stays who it was"
    assert together(2, who, str(tmp_path), 0) == 0


def test_works_apart_know_nothing_of_each_other(tmp_path: Path) -> None:
    work = {name: (named, (str(tmp_path), name, code)) for name, code in (("a", 0), ("b", 3), ("c", 0))}
    assert apart(work, at_once=2) == {"a": 0, "b": 3, "c": 0}
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"0 1"}


@pytest.mark.skipif(os.name == "nt", reason="sends SIGTERM, which ends a process at once on Windows")
def test_a_signal_to_the_starter_reaches_all(tmp_path: Path) -> None:
    assert together(2, stops_its_starter, str(tmp_path)) == STOPPED
    assert len(list(tmp_path.glob("told *"))) == 2


def test_several_within_several_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(CascadeError, match="2 processes within a launcher's 4 processes"):
        together(2, sys.exit)
