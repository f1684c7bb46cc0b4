"""ComfyUI's own tests of its executor pass with ours in its place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest


def test_our_executor_passes_comfyuis_own_tests(
    comfyui: Path, comfyui_python: str, library: Path, one_thread: Any, tmp_path: Path
) -> None:
    if not (comfyui / "tests" / "execution" / "test_execution.py").is_file():
        pytest.skip("this ComfyUI comes without its tests (a release archive); use a clone of its repository")
    (tmp_path / "none.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [
            comfyui_python,
            str(Path(__file__).with_name("executor_suite.py")),
            str(comfyui),
            str(tmp_path),
            str(Path(pytest.__file__).parents[1]),
        ],
        cwd=comfyui,
        capture_output=True,
        text=True,
        timeout=600,
        env=one_thread(PYTHONPATH=str(library)),
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) >= 50
