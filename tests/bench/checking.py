"""How long reading, converting and checking a workflow of 200 nodes takes, and the command as a whole.

python tests/bench/checking.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cascade_train.graph.check.checked import checked
from cascade_train.graph.check.classes import Classes, object_info
from cascade_train.graph.core.registry import node_classes
from cascade_train.graph.file.convert import to_prompt
from cascade_train.host.headless import HeadlessHost, headless_folders


def workflow(count: int) -> dict[str, Any]:
    """Pictures that are scaled again and again, each scaling previewed: ``count`` nodes."""
    nodes: list[dict[str, Any]] = [
        {
            "id": 1,
            "type": "CascadeLoadPictures",
            "inputs": [],
            "widgets_values": ["bundled/crescent", 0, 4, 64, 64],
        }
    ]
    links = []
    for number in range(2, count + 1, 2):
        links.append([number, max(1, number - 2), 0, number, 0, "IMAGE"])
        links.append([number + 1, number, 0, number + 1, 0, "IMAGE"])
        nodes.append(
            {
                "id": number,
                "type": "ImageScale",
                "inputs": [{"name": "image", "type": "IMAGE", "link": number}],
                "widgets_values": ["bilinear", 64, 64, "disabled"],
            }
        )
        nodes.append(
            {
                "id": number + 1,
                "type": "PreviewImage",
                "inputs": [{"name": "images", "type": "IMAGE", "link": number + 1}],
            }
        )
    return {"nodes": nodes, "links": links, "version": 0.4}


def best(work: Callable[[], Any], times: int = 5) -> float:
    """Shortest of ``times`` runs in milliseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - start))
    return min(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        path.write_text(json.dumps(workflow(200)), encoding="utf-8")
        host = HeadlessHost(headless_folders(Path(folder) / "output"), "cpu")
        info = object_info(node_classes(host))
        data = workflow(200)
        prompt = to_prompt(data, info)
        command = [sys.executable, "-m", "cascade_train.cli", "validate", str(path)]
        print(f"nodes     {len(prompt)}")
        print(f"convert   {best(lambda: to_prompt(data, info)):7.1f} ms")
        print(f"check     {best(lambda: checked(prompt, Classes(node_classes(host)), host)):7.1f} ms")
        print(f"schemas   {best(lambda: object_info(node_classes(host))):7.1f} ms")
        print(f"command   {best(lambda: subprocess.run(command, check=True, capture_output=True)):7.1f} ms")


if __name__ == "__main__":
    main()
