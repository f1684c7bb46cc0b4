"""Runs inside ComfyUI's Python: ComfyUI's own executor tests, with our executor in place of its server.

python executor_suite.py COMFYUI_FOLDER WORK_FOLDER SITE_PACKAGES_WITH_PYTEST
"""

from __future__ import annotations

import asyncio
import io
import sys
import urllib.error
from pathlib import Path
from typing import Any

FOLDER, WORK = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.append(sys.argv[3])

import pytest  # noqa: E402
from PIL import Image  # noqa: E402

from cascade_train.errors import CascadeError  # noqa: E402
from cascade_train.graph.check.checked import Wrong, checked  # noqa: E402
from cascade_train.graph.check.classes import Classes  # noqa: E402
from cascade_train.graph.core.registry import node_classes, pack_nodes  # noqa: E402
from cascade_train.graph.run.cache import ResultCache  # noqa: E402
from cascade_train.graph.run.loop import execute  # noqa: E402
from cascade_train.host.comfy_inside import enter_comfyui  # noqa: E402

NOT_OURS = "offset or history or empty_list or job"
"""Tests of the server's history, jobs and HTTP parameters."""
ON_PURPOSE = ("test_missing_node_error",)
"""Done otherwise here: a prompt with a wire to nowhere is refused, where ComfyUI drops the output."""

host, others = enter_comfyui(FOLDER, output=WORK / "output", device="cpu", before_packs=pack_nodes)
core: Any = __import__("nodes")
asyncio.run(core.load_custom_node(str(FOLDER / "tests/execution/testing_nodes/testing-pack")))
classes = node_classes(host, dict(core.NODE_CLASS_MAPPINGS))


class Result:
    """What ComfyUI's tests ask of a run."""

    def __init__(self) -> None:
        self.outputs: dict[str, Any] = {}
        self.runs: set[str] = set()
        self.cached: set[str] = set()

    def get_output(self, node: Any) -> Any:
        return self.outputs.get(node.id)

    def did_run(self, node: Any) -> bool:
        return node.id in self.runs

    def was_cached(self, node: Any) -> bool:
        return node.id in self.cached

    def was_executed(self, node: Any) -> bool:
        return self.did_run(node) or self.was_cached(node)

    def get_images(self, node: Any) -> list[Any]:
        return (self.get_output(node) or {}).get("image_objects", [])

    def get_prompt_id(self) -> str:
        return "prompt"


def refused(text: str) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("/prompt", 400, text, {}, io.BytesIO(b"{}"))  # type: ignore[arg-type]


class Client:
    """Stands for the connection to a server: validates and runs a graph, keeping its cache."""

    def __init__(self) -> None:
        self.cache = ResultCache()
        self.name = ""

    def set_test_name(self, name: str) -> None:
        self.name = name

    def run(self, graph: Any, partial_execution_targets: Any = None) -> Result:
        prompt = graph.finalize()
        for node in graph.nodes.values():
            if node.class_type == "SaveImage":
                node.inputs["filename_prefix"] = self.name.replace("/", "_")
        only = [n for n in partial_execution_targets or () if n in prompt]
        only = [n for n in only if getattr(classes[prompt[n]["class_type"]], "OUTPUT_NODE", False)]
        try:
            found = checked(prompt, Classes(classes), None, only=only)
        except CascadeError as error:
            raise refused(str(error)) from None
        if isinstance(found, Wrong):
            raise refused("; ".join(map(str, found.problems)))
        result = Result()

        def listen(event: Any) -> None:
            if event.kind == "node_start":
                result.runs.add(event.node_id)
            elif event.kind == "cached":
                result.cached.update(event.data["nodes"])

        report = execute(found, host, cache=self.cache, listener=listen)
        for node in report.failed:
            raise RuntimeError(
                {
                    "prompt_id": "prompt",
                    "node_id": node.node_id,
                    "exception_message": node.error,
                    "exception_type": node.error.split(":")[0],
                    "traceback": [node.trace],
                }
            )
        folders = {"output": host.folders.output, "temp": host.folders.temp}
        for node_id, ui in report.outputs().items():
            pictures = [
                Image.open(folders[i["type"]] / i["subfolder"] / i["filename"]) for i in ui.get("images", ())
            ]
            result.outputs[node_id] = {**ui, "image_objects": pictures}
        return result


@pytest.fixture(scope="class", autouse=True)
def no_server(self: Any) -> Any:
    yield {"should_cache_results": True}


@pytest.fixture(scope="class", autouse=True)
def shared_client(self: Any) -> Any:
    yield Client()


class Plugin:
    def pytest_configure(self, config: Any) -> None:
        config.addinivalue_line("markers", "execution: ComfyUI's own")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.originalname not in ON_PURPOSE]

    @pytest.fixture
    def args_pytest(self) -> dict[str, Any]:
        return {}

    @pytest.fixture
    def skip_timing_checks(self) -> bool:
        return True


import tests.execution.test_async_nodes as async_tests  # noqa: E402
import tests.execution.test_execution as tests  # noqa: E402

for group in (tests.TestExecution, async_tests.TestAsyncNodes):
    for name in ("_server", "server"):  # one or the other, by version
        if hasattr(group, name):
            setattr(group, name, no_server)
    group.shared_client = shared_client

sys.exit(
    pytest.main(
        [
            "--import-mode=importlib",
            "--noconftest",
            "--rootdir",
            str(FOLDER),
            "-c",
            str(WORK / "none.ini"),
            "-p",
            "no:cacheprovider",
            "-k",
            f"not ({NOT_OURS})",
            str(FOLDER / "tests/execution/test_execution.py"),
            str(FOLDER / "tests/execution/test_async_nodes.py"),
        ],
        plugins=[Plugin()],
    )
)
