"""Names, titles, captions and labels of strangers reach no terminal as something that it obeys."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cascade_train.commands.printing import Printed
from cascade_train.errors import CascadeError, plain

EVIL = "x\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\u202eevil\u2028 y"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def call(tmp_path: Path, *words: str) -> tuple[int, str]:
    """``cascade-train`` as from a shell; what it says on both streams, free of control characters."""
    done = subprocess.run(
        [sys.executable, "-m", "cascade_train.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        timeout=55,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
    )
    said = (done.stdout + done.stderr).decode("utf-8").replace("\r\n", "\n")
    found = OBEYED.search(said)
    assert found is None, said[max(0, found.start() - 200) : found.end() + 40].encode("unicode_escape")
    return done.returncode, said


ROOT = Path(__file__).resolve().parents[2]


def test_an_error_is_one_plain_line() -> None:
    text = str(CascadeError(EVIL, where=EVIL, fix=EVIL))
    assert text.isprintable() and "evil" in text
    assert plain("猫 a\u3000b \U0001f468\u200d\U0001f469") == "猫 a\u3000b \U0001f468\u200d\U0001f469"


def test_the_door_lets_nothing_through_and_keeps_json() -> None:
    out = io.StringIO()
    door = Printed(out)
    print(EVIL, file=door)
    print(json.dumps({"a": EVIL}, ensure_ascii=False), file=door)
    first, *_, last = out.getvalue().split("\n")[:-1]
    assert not OBEYED.search(out.getvalue().replace("\r", "")) and "\\u001b[2J" in first
    assert json.loads(last) == {"a": EVIL}


def workflow(tmp_path: Path) -> Path:
    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs, "_meta": {"title": EVIL}}

    prompt = {
        "1": node("PrimitiveString", value=EVIL),
        f"2{EVIL}": node("PreviewAny", source=["1", 0]),
        "3": node("CascadeImageFolder", path=EVIL, on_bad=EVIL, **{EVIL: EVIL}),
        "4": node(EVIL),
        "5": node("PreviewAny", source=["3", 0]),
        "6": node("LoadImage", image=EVIL),
        "7": node("SaveImage", images=["6", 0], filename_prefix=EVIL),
    }
    path = tmp_path / "evil.json"
    path.write_text(json.dumps(prompt), encoding="utf-8")
    return path


def test_commands_over_an_evil_workflow(tmp_path: Path) -> None:
    workflow(tmp_path)
    for words in (("validate",), ("validate", "--json"), ("inspect",), ("inspect", "--values"), ("run",)):
        code, said = call(tmp_path, *words[:1], "evil.json", *words[1:])
        assert said and code in (0, 2)
    for wrong in (("run", "evil.json", "--set", f"1.value={EVIL[:6]}"), ("validate", f"{EVIL[:6]}.json")):
        assert call(tmp_path, *wrong)[0] == 2


def test_a_run_of_what_is_right_prints_plainly(tmp_path: Path) -> None:
    prompt = json.loads(workflow(tmp_path).read_text(encoding="utf-8"))
    keep = {key: node for key, node in prompt.items() if key[0] in "12"}
    (tmp_path / "ok.json").write_text(json.dumps(keep), encoding="utf-8")
    for more in ((), ("--json",), ("--dry-run",)):
        code, said = call(tmp_path, "run", "ok.json", *more)
        assert code == 0 and "evil" in said


@pytest.mark.skipif(os.name == "nt", reason="no such file names there")
def test_a_dataset_with_evil_names(tmp_path: Path) -> None:
    name = EVIL.replace("/", "")
    folder = tmp_path / f"set{name}"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(EVIL, encoding="utf-8", newline="")
    (folder / f"bad{name}.png").write_bytes(b"no picture")
    (folder / f"alone{name}.txt").write_text("a", encoding="utf-8")
    (folder / f"table{name}.csv").write_bytes(b"\xff\x00\xfe")
    (folder / f"link{name}.png").symlink_to("/etc/hostname")
    code, said = call(tmp_path, "dataset", "inspect", folder.name, "--nano")
    assert code == 0 and "1 sample" in said
    assert (
        call(tmp_path, "dataset", "inspect", folder.name, "--nano", "--json", "--filter", "width > 99")[0]
        == 0
    )
    call(tmp_path, "dataset", "pack", folder.name, f"out{name}.tar")
    assert call(tmp_path, "dataset", "inspect", f"gone{name}")[0] == 2


def test_runs_with_evil_labels(tmp_path: Path) -> None:
    folder = tmp_path / "output" / "cascade" / "runs" / ("0" * 32)
    folder.mkdir(parents=True)
    told = {"format": 1, "digest": "0" * 32, "label": EVIL, "made": EVIL, "spec": {"target": {"part": EVIL}}}
    (folder / "run.json").write_text(json.dumps(told), encoding="utf-8")
    code, said = call(tmp_path, "runs", "ls")
    assert code == 0 and "evil" in said
    for words in (("show", "0"), ("show", EVIL[:6]), ("show", "0", "--json")):
        call(tmp_path, "runs", *words)
