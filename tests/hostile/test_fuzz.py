"""Shipped workflows, changed at random: a result or a plain error, never a traceback, never a hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mutations.py")


def changed(what: str, first: int, count: int, folder: Path) -> dict[str, int]:
    """What became of ``count`` mutations from seed ``first``, in a process that must end within the time."""
    words = [sys.executable, str(PROGRAM), what, str(first), str(count), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=55)
    assert done.returncode == 0, done.stderr
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert sum(told.values()) == count
    return told


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_changed_workflows_are_checked(first: int, tmp_path: Path) -> None:
    told = changed("check", first, 500, tmp_path)
    assert min(told[kind] for kind in ("right", "wrong", "refused")) > 40, "changes of every kind"
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "checking writes nothing"


def test_changed_graphs_of_cheap_nodes_run(tmp_path: Path) -> None:
    told = changed("run", 0, 250, tmp_path / "work")
    assert told["ran"] > 25
    assert [path.name for path in tmp_path.iterdir()] == ["work"], "nothing is written outside"


def test_the_program_finds_faults(tmp_path: Path) -> None:
    """A check that fails in one place only, for a value that one of the seeds puts there."""
    plant = (
        "import runpy, sys\n"
        "import cascade_train.graph.check.values as values\n"
        "def broken(entry, value):\n"
        "    raise KeyError('planted')\n"
        "values._range = broken\n"
        f"sys.argv = ['mutations.py', 'check', '0', '40', {str(tmp_path)!r}]\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    root = PROGRAM.resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", plant], capture_output=True, text=True, timeout=55, cwd=root)
    assert done.returncode == 1 and "FAULT check" in done.stderr and "planted" in done.stderr
