"""Set everything up in a virtual environment beside this file, then run the main job or the tests.

    python start.py                  teach the bundled nano model a new concept, and show the pictures
    python start.py test             check the code and run every test
    python start.py test --oldest    run every test with the oldest versions that pyproject.toml allows
    python start.py refresh          write the made files again: node contract, help pages, workflows, …

Needs Python 3.10 or newer and nothing else. Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WORKFLOW = ROOT / "workflows" / "teach_a_concept.json"


def main() -> int:
    """Parse the command line, prepare the environment, do the job; the exit code says whether it worked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "job",
        nargs="?",
        choices=["demo", "test", "refresh"],
        default="demo",
        help="demo (the default): teach nano a concept; test: pass the tests; refresh: write the made files",
    )
    parser.add_argument("--venv", type=Path, help="where the environment goes (.venv, .venv-oldest)")
    parser.add_argument("--oldest", action="store_true", help="test: with the oldest versions allowed")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "cascade-output",
        help="where pictures and runs go (cascade-output)",
    )
    parser.add_argument("--no-open", action="store_true", help="do not open the pictures when done")
    args, rest = parser.parse_known_args()
    if rest and args.job == "demo":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if args.oldest and args.job != "test":
        parser.error("--oldest is for test")
    if sys.version_info < (3, 10):  # noqa: UP036 (this file is what an older Python meets first)
        print(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 2
    venv = (args.venv or ROOT / (".venv-oldest" if args.oldest else ".venv")).resolve()
    python = environment(venv, "" if args.job == "demo" else "test", args.oldest)
    if args.job == "refresh":
        return subprocess.run([str(python), "-m", "scripts.refresh", *rest], cwd=ROOT).returncode
    if args.job == "test":
        return test(python, rest, checks=not args.oldest)
    return demo(python, args.output.resolve(), not args.no_open)


def environment(venv: Path, extra: str, oldest: bool = False) -> Path:
    """The Python of a virtual environment at ``venv`` that has this project (and ``extra``) installed.

    ``oldest`` takes the lowest version that each requirement allows, which uv can work out.
    """
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print(f"Making a virtual environment in {venv}", flush=True)
        run(
            [sys.executable, "-m", "venv", str(venv)],
            "The environment could not be made. On Debian and Ubuntu: apt install python3-venv.",
        )
    stamp = venv / f"cascade-train{'-' + extra if extra else ''}.stamp"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print("Installing what is needed (PyTorch is large: some minutes the first time)", flush=True)
        target = f"{ROOT}[{extra}]" if extra else str(ROOT)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        why = "The installation failed; the lines above say why. Is there a network?"
        if oldest:
            run([*install, "uv"], why)
            install = [str(python), "-m", "uv", "pip", "install", "--python", str(python), "--quiet"]
            install += ["--system-certs", "--resolution", "lowest-direct"]
        run([*install, "-e", target], why)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def demo(python: Path, output: Path, show: bool) -> int:
    """Run the main workflow and say where its pictures are."""
    print(
        "Teaching nano a new concept. Stop at any time with Ctrl-C: running this again continues.", flush=True
    )
    done = subprocess.run(
        [str(python), "-m", "cascade_train.cli", "run", str(WORKFLOW), "--output-dir", str(output)], cwd=ROOT
    )
    pictures = sorted(output.glob("*.png"), key=lambda path: path.stat().st_mtime)
    if pictures:
        print("\nPictures:")
        for picture in pictures:
            print(f"  {picture}")
        if show and done.returncode == 0 and sys.stdout.isatty():
            webbrowser.open(pictures[-1].as_uri())
    return done.returncode


def test(python: Path, pytest_arguments: list[str], checks: bool = True) -> int:
    """With ``checks`` lint and type-check, then test; the first failing exit code, after all have run."""
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONUTF8": "1"}
    jobs = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]] if checks else []
    jobs.append(["pytest", *(pytest_arguments or ["-n", "2"])])
    codes = []
    for job in jobs:
        print(f"\n== {' '.join(job)}", flush=True)
        codes.append(subprocess.run([str(python), "-m", *job], cwd=ROOT, env=env).returncode)
    return next((code for code in codes if code), 0)


def run(command: list[str], hint: str) -> None:
    """Run a set-up command; on failure print ``hint`` and stop."""
    if shutil.which(command[0]) is None or subprocess.run(command, cwd=ROOT).returncode != 0:
        print(hint, file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    raise SystemExit(main())
