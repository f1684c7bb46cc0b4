"""What a person sees while a graph runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from cascade_train.commands.terminal import Terminal, TimeLeft, files_of, span
from cascade_train.graph.run.report import Event, ExecutionReport, NodeReport
from cascade_train.host.headless import headless_folders


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7860, "2 h 11 min"),
    ],
)
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_time_left_follows_the_speed_and_starts_anew_with_each_node() -> None:
    left = TimeLeft()
    assert left.update("a", 0, 100, 0.0) is None
    assert left.update("a", 10, 100, 5.0) == (45.0, 2.0)
    for second in range(1, 60):
        slow = left.update("a", 10 + second // 2, 100, 5.0 + 10 * second)
    assert slow is not None and slow[1] < 0.06, "the old speed is forgotten"
    assert left.update("b", 0, 10, 700.0) is None


def test_a_terminal_shows_a_live_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("cascade_train.commands.terminal.time.monotonic", lambda: float(next(clock)))
    screen = Screen()
    display = Terminal(screen)
    display.event(Event("node_start", "7", {"title": "Train Steps", "class": "CascadeTrainSteps"}))
    display.progress(1, 10, "", None)
    display.progress(5, 10, "loss 0.123", None)
    line = screen.getvalue().split("\r")[-1]
    for part in ("Train Steps (#7)", "5/10", "[#####.....]", "loss 0.123", "2.0 steps/s", "left"):
        assert part in line
    display.event(Event("node_end", "7", {"title": "Train Steps", "state": "ran", "seconds": 3.0}))
    assert screen.getvalue().endswith("  done     Train Steps (#7)  3.0 s\n"), "the live line is wiped"


def test_a_log_file_gets_whole_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("cascade_train.commands.terminal.time.monotonic", lambda: now[0])
    log = io.StringIO()
    display = Terminal(log)
    display.event(Event("node_start", "7", {"title": "Train", "class": "X"}))
    for step in range(1, 101):
        now[0] = step * 1.0
        display.progress(step, 100, "loss 0.1", None)
    lines = log.getvalue().splitlines()
    assert 4 <= len(lines) <= 7 and "\r" not in log.getvalue()
    assert lines[0].strip().startswith("Train (#7)  15/100  1 min 25 s left  loss 0.1")


def test_a_title_cannot_move_the_cursor_or_fake_a_line() -> None:
    screen = Screen()
    display = Terminal(screen)
    evil = "x\x1b[2J\nFinished after 1 s"
    display.event(Event("node_end", "1", {"title": evil, "state": "failed", "error": evil}))
    assert "\x1b" not in screen.getvalue() and screen.getvalue().count("\n") == 1


def test_the_end_says_which_outputs_exist(tmp_path: Path) -> None:
    folders = headless_folders(tmp_path)
    saved = {"images": [{"filename": "a_00001_.png", "subfolder": "set", "type": "output"}]}
    report = ExecutionReport(
        [
            NodeReport("1", "Broken", "X", False, "failed", error="no pictures"),
            NodeReport("2", "Grid", "SaveImage", True, "skipped", because="1"),
            NodeReport("3", "Keep", "SaveImage", True, "ran", ui=saved),
        ],
        seconds=75.0,
    )
    log = io.StringIO()
    Terminal(log).end(report, folders)
    said = log.getvalue()
    assert "skipped  Grid (#2): Broken (#1) failed" in said
    assert str(tmp_path / "set" / "a_00001_.png") in said
    assert said.endswith("Finished with errors after 1 min 15 s: 1 failed, 1 skipped, 1 ran.\n")
    assert files_of(saved, folders) == [tmp_path / "set" / "a_00001_.png"]
