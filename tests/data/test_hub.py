"""Shards in a dataset of the Hugging Face Hub, served by a small server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

WHERE = "pip install 'cascade-train[remote]'"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/pictures"
TOKEN = "hf_of_someone"

CHILD = """
import contextlib, io, json, sys
from pathlib import Path
import huggingface_hub, webdataset
from cascade_train.cli import main
from cascade_train.data.dataset import open_dataset
from cascade_train.data.sources import tars_dataset
from cascade_train.host.headless import HeadlessHost, headless_folders

def inspect(url, out):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["dataset", "inspect", url, "--nano", "--json", "--output-dir", out])
    return json.loads(printed.getvalue().strip().splitlines()[-1])

def batches(url, out):
    host = HeadlessHost(headless_folders(Path(out), Path.cwd()), "cpu")
    with contextlib.redirect_stdout(sys.stderr):
        opened = open_dataset(tars_dataset(url, shuffle=4, host=host), multiple=8, native_side=64, host=host)
        loaded = [opened.load(draw) for step in range(4) for draw in opened.draws(3, step, 4)]
    return [(sample.caption, sample.pixels.shape) for sample in loaded]

for line in sys.stdin:
    what, *words = json.loads(line)
    print(json.dumps({"inspect": inspect, "batches": batches}[what](*words)), flush=True)
"""
"""Does what it is asked on its input: huggingface_hub reads its environment once, when it is imported."""


class Hub:
    """One dataset, as far as ``HfFileSystem`` asks for it; only those with the token see it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_POST = do_GET

        self.serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.serving.server_address[1]}"
        self.running = True
        threading.Thread(target=self.serving.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self.running:
            self.running = False
            self.serving.shutdown()
            self.serving.server_close()

    def entry(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        return {
            "type": "file",
            "path": name,
            "size": len(data),
            "oid": hashlib.sha1(data).hexdigest(),
            "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130},
        }

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0)).decode("utf-8")
        path = unquote(urlsplit(request.path).path)
        if not self.running:  # connections outlive the server
            request.close_connection = True
            return
        self.asked.append(f"{request.command} {path} {request.headers.get('Range', '')}".strip())
        api = f"/api/datasets/{NAME}"
        file = re.fullmatch(rf"/datasets/{NAME}/resolve/(?:main|{COMMIT})/(.+)", path)
        if not path.startswith((api, f"/datasets/{NAME}")):
            self.send(request, 404, {"error": "Not found"}, {"X-Error-Code": "RepoNotFound"})
        elif request.headers.get("Authorization") != f"Bearer {TOKEN}":
            said = "Invalid username or password."
            code = "RepoNotFound"  # what the client takes any 401 of https:// for
            self.send(request, 401, {"error": said}, {"X-Error-Message": said, "X-Error-Code": code})
        elif path in (api, f"{api}/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            self.send(request, 200, {"id": NAME, "sha": COMMIT, "private": True, "siblings": siblings})
        elif re.fullmatch(rf"{api}/tree/(main|{COMMIT})/?", path):
            self.send(request, 200, [self.entry(name) for name in self.files])
        elif re.fullmatch(rf"{api}/paths-info/(main|{COMMIT})", path):
            wanted = parse_qs(body).get("paths", [])
            self.send(request, 200, [self.entry(name) for name in wanted if name in self.files])
        elif file and file[1] in self.files:
            self.send_file(request, self.files[file[1]])
        else:
            self.send(request, 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})

    def send_file(self, request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if not span:
            self.send(request, 200, data, headers)
            return
        first, last = int(span[1]), min(int(span[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self.send(request, 206, data[first : last + 1], headers)

    def send(
        self,
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        content: Any,
        headers: dict[str, str] | None = None,
    ) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8")
        request.send_response(status)
        request.send_header(
            "Content-Type", "application/octet-stream" if data is content else "application/json"
        )
        request.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)


@pytest.fixture
def hub(shards: list[Path]) -> Iterator[Hub]:
    pytest.importorskip("fsspec", reason=WHERE)
    pytest.importorskip("huggingface_hub", reason=WHERE)
    hub = Hub({f"shard-{n:03}.tar": shard.read_bytes() for n, shard in enumerate(shards)})
    yield hub
    hub.stop()


@pytest.fixture
def ask(hub: Hub, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Asks a program that knows the token, or with ``token=False`` one that does not."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) and not name.lower().endswith("_proxy")
    }
    clean |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONIOENCODING": "utf-8"}
    errors = {
        known: (tmp_path / f"errors {known}.txt").open("w+", encoding="utf-8") for known in (True, False)
    }
    programs = {
        known: subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=tmp_path,
            env=clean | ({"HF_TOKEN": TOKEN} if known else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors[known],
            text=True,
            encoding="utf-8",
        )
        for known in (True, False)
    }

    def one(*words: str, token: bool = True) -> Any:
        program = programs[token]
        assert program.stdin and program.stdout
        program.stdin.write(json.dumps(words) + "\n")
        program.stdin.flush()
        answer = program.stdout.readline()
        assert answer, Path(errors[token].name).read_text(encoding="utf-8")
        return json.loads(answer)

    yield one
    for known, program in programs.items():
        program.kill()
        program.communicate()
        errors[known].close()


def test_a_dataset_of_the_hub_is_inspected_streamed_and_kept(hub: Hub, ask: Callable[..., Any]) -> None:
    place = f"hf://datasets/{NAME}"
    named = f"{place}/shard-{{000..002}}.tar"
    one = ask("inspect", f"{place}/shard-000.tar", "one")
    assert (one["samples"], one["bad"]) == (12, 0)
    assert any(line.startswith(f"GET /datasets/{NAME}/resolve/") for line in hub.asked), hub.asked

    every = ask("inspect", f"{place}/*.tar", "every")
    assert (every["samples"], every["bad"]) == (36, 0)
    streamed = ask("batches", named, "every")
    assert len({caption for caption, _ in streamed}) == 16

    missing = ask("inspect", f"{place}/shard-007.tar", "empty")
    assert "(it does not exist)" in missing["error"]
    for url in (f"{place}/shard-000.tar", f"{place}/*.tar"):
        private = ask("inspect", url, "empty", token=False)
        assert "or it is private" in private["error"] and "HF_TOKEN" in private["error"]

    hub.stop()
    again = ask("inspect", named, "every", token=False)
    assert (again["samples"], again["bad"], again["digest"]) == (36, 0, every["digest"])
    assert ask("batches", named, "every", token=False) == streamed, "from the copies alone"
