"""A real ComfyUI, started with this pack as a plain copy in its custom_nodes, and spoken to over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACK_NAME = "Cascade Train - a copy (2)"
WHY = (
    "no ComfyUI here: set COMFYUI_PATH to its folder (git clone https://github.com/comfyanonymous/ComfyUI) "
    "and COMFYUI_PYTHON to a Python that has its requirements.txt and this pack's installed"
)


def comfyui_folder() -> Path | None:
    place = os.environ.get("COMFYUI_PATH")
    return Path(place) if place and (Path(place) / "main.py").is_file() else None


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """ComfyUI's folder; the test is skipped when there is none."""
    folder = comfyui_folder()
    if folder is None:
        pytest.skip(WHY)
    return folder


@pytest.fixture(scope="session")
def comfyui_python() -> str:
    return os.environ.get("COMFYUI_PYTHON", sys.executable)


def environment(**more: str) -> dict[str, str]:
    """One thread everywhere, so that sums on the CPU have the same order in every process."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COMFYUI_PATH")}
    return {**kept, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUTF8": "1", **more}


def copy_of_the_pack(target: Path) -> Path:
    """What a clone holds, as far as ComfyUI cares."""
    target.mkdir(parents=True)
    for name in ("__init__.py", "pyproject.toml", "requirements.txt"):
        shutil.copy2(ROOT / name, target / name)
    for name in ("cascade_train", "nodes", "web", "workflows"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target


class Server:
    """One running ComfyUI."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, base: Path, log: Path) -> None:
        self.process, self.port, self.base, self.log = process, port, base, log

    @property
    def output(self) -> Path:
        return self.base / "output"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.loads(answer.read())

    def post(self, path: str, value: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(value).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:2000]
            raise AssertionError(f"{path}: {error.code} {said}") from None

    def refusal(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """What the server answers to a prompt that it does not queue: ``error`` and ``node_errors``."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/prompt",
            json.dumps({"prompt": prompt}).encode(),
            {"Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 400
        return json.loads(refused.value.read())

    def queue(self, prompt: dict[str, Any], workflow: Any = None) -> Queued:
        """Queue a prompt as the browser does, listening for what the server tells."""
        return Queued(self, prompt, workflow)


class Queued:
    """A queued prompt and every message about it."""

    def __init__(self, server: Server, prompt: dict[str, Any], workflow: Any) -> None:
        self.server = server
        self.messages: list[dict[str, Any]] = []
        self.previews: list[bytes] = []
        self._news = threading.Condition()
        self._client = uuid.uuid4().hex
        self._listening = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._listening.wait(30), "the websocket did not open"
        extra = {"extra_pnginfo": {"workflow": workflow}} if workflow is not None else {}
        self.id = server.post("/prompt", {"prompt": prompt, "client_id": self._client, "extra_data": extra})[
            "prompt_id"
        ]

    def _listen(self) -> None:
        import asyncio

        asyncio.run(self._listen_async())

    async def _listen_async(self) -> None:
        import aiohttp

        url = f"http://127.0.0.1:{self.server.port}/ws?clientId={self._client}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket_:
            self._listening.set()
            async for message in socket_:
                with self._news:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        self.messages.append(json.loads(message.data))
                    elif message.type is aiohttp.WSMsgType.BINARY:
                        self.previews.append(message.data)
                    self._news.notify_all()

    def wait_for(self, wanted: Any, seconds: float = 400) -> Any:
        """The first message that ``wanted`` says True to; fails with the server's log when none comes."""
        end = time.monotonic() + seconds
        seen = 0
        with self._news:
            while True:
                for message in self.messages[seen:]:
                    seen += 1
                    if wanted(message):
                        return message
                self._news.wait(1.0)
                if time.monotonic() >= end or self.server.process.poll() is not None:
                    raise AssertionError(f"no such message; the log ends:\n{tail(self.server.log)}")

    def finished(self, seconds: float = 400) -> dict[str, Any]:
        """Wait for the end of the prompt; its last message."""
        kinds = ("execution_success", "execution_error", "execution_interrupted")
        return self.wait_for(lambda m: m["type"] in kinds and m["data"].get("prompt_id") == self.id, seconds)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        with self._news:
            return [m["data"] for m in self.messages if m["type"] == kind]

    def outputs(self) -> dict[str, Any]:
        """What the output nodes show; the server files it a moment after it says that all is done."""
        for _ in range(100):
            history = self.server.get(f"/history/{self.id}")
            if self.id in history:
                return history[self.id]["outputs"]
            time.sleep(0.1)
        raise AssertionError(f"the prompt is not in the history; the log ends:\n{tail(self.server.log)}")


def tail(log: Path, lines: int = 60) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PROBE = """
class Probe:
    RETURN_TYPES = ()
    FUNCTION = "run"
    CATEGORY = "test"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def run(self):
        import torch
        from comfy import model_management
        from comfy.model_patcher import ModelPatcher
        from PIL import Image
        from cascade_train.host.comfy import ComfyHost

        place = model_management.get_torch_device()
        theirs = ModelPatcher(torch.nn.Linear(4, 4), place, torch.device("cpu"))
        model_management.load_models_gpu([theirs])
        loaded = len(model_management.current_loaded_models)
        host = ComfyHost()
        host.progress(1, 2, "half way", Image.new("RGB", (32, 24), "red"))
        host.warn("mind the step")
        host.make_room()
        loaded = f"{loaded} {len(model_management.current_loaded_models)}"
        host.check_interrupt()
        folders = host.folders
        told = [loaded, host.device, str(folders.input), str(folders.runs), *sorted(folders.models)]
        return {"ui": {"text": told}}

NODE_CLASS_MAPPINGS = {"Probe": Probe}
"""
"""A pack that uses this one's host, to see what reaches the browser."""


@pytest.fixture(scope="session")
def server(comfyui: Path, comfyui_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("comfyui base")
    for name in ("input", "output", "temp", "user", "models"):
        (base / name).mkdir()
    copy_of_the_pack(base / "custom_nodes" / PACK_NAME)
    probe = base / "custom_nodes" / "probe"
    probe.mkdir()
    (probe / "__init__.py").write_text(PROBE, encoding="utf-8")
    port, log = free_port(), base / "log.txt"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                comfyui_python,
                "main.py",
                "--cpu",
                "--listen",
                "127.0.0.1",
                "--port",
                str(port),
                "--base-directory",
                str(base),
                "--disable-auto-launch",
                "--disable-api-nodes",
                "--preview-method",
                "auto",
            ],
            cwd=comfyui,
            env=environment(),
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    running = Server(process, port, base, log)
    try:
        for _ in range(1500):  # a busy machine takes minutes to import it all
            if process.poll() is not None:
                pytest.fail(f"ComfyUI ended:\n{tail(log)}")
            try:
                running.get("/system_stats")
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail(f"ComfyUI did not start:\n{tail(log)}")
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the packages as an installation names them."""
    folder = tmp_path_factory.mktemp("library")
    for source, name in (("cascade_train", "cascade_train"), ("nodes", "cascade_train_nodes")):
        shutil.copytree(ROOT / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def one_thread() -> Any:
    return environment


@pytest.fixture
def headless(comfyui_python: str, library: Path) -> Any:
    """Run ``cascade-train`` with ComfyUI's Python, so that both sides use the same torch."""

    def call(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [comfyui_python, "-m", "cascade_train.cli", *map(str, words)],
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=300,
            env=environment(PYTHONPATH=str(library)),
            encoding="utf-8",
        )

    return call


class Graph:
    """Builds API prompts of this pack's nodes with the defaults that their schemas give."""

    def __init__(self, object_info: dict[str, Any]) -> None:
        self.info = object_info
        self.prompt: dict[str, Any] = {}

    def add(self, class_type: str, **inputs: Any) -> str:
        from cascade_train.graph.check.schema import inputs_of

        defaults = {
            entry.name: entry.default
            for entry in inputs_of(self.info[class_type])
            if entry.required and entry.default is not None
        }
        node_id = str(len(self.prompt) + 1)
        self.prompt[node_id] = {"class_type": class_type, "inputs": {**defaults, **inputs}}
        return node_id

    def training(self, *blocks: int, seed: int = 0, total: int = 100) -> str:
        """nano, the bundled pictures and a LoRA, trained block by block; the id of the last block."""
        run = self.add(
            "CascadeTrainingRun",
            models=[self.add("CascadeLoadStableCascade"), 0],
            dataset=[self.add("CascadeImageFolder", path="bundled/crescent"), 0],
            target=[self.add("CascadeLoRATarget", rank=2), 0],
            optimizer=[self.add("CascadeOptimizer", learning_rate=1e-3), 0],
            seed=seed,
            batch_size=2,
            total_steps=total,
        )
        for steps in blocks:
            run = self.add("CascadeTrainSteps", run=[run, 0], steps=steps)
        return run


@pytest.fixture
def graph(server: Server) -> Graph:
    return Graph(server.get("/object_info"))
