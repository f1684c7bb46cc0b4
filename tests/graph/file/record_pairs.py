"""Record what the official frontend makes of workflows: the reference for `test_pairs.py`.

Needs a running ComfyUI (its server alone is used, nothing is queued), Chromium and `pip install playwright`:

    python main.py --cpu --port 8188 [--front-end-root FRONTEND]      # in a ComfyUI folder
    python tests/graph/file/record_pairs.py --out tests/graph/file/pairs/core WORKFLOW.json …
    python tests/graph/file/record_pairs.py --out tests/graph/file/pairs/rules --rules

The page is given the server's node classes, the classes of `rule_nodes.py`, and those of --object-info FILE,
so that workflows of another ComfyUI version can be recorded too. A workflow with a class that none of them
has is left out and named. Written are NAME.json, NAME.api.json (without `_meta`) and one object_info.json
with the classes used, without texts, its lists of files cut.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FRONTEND_ONLY = {"Reroute", "PrimitiveNode", "Note", "MarkdownNote"}
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.ShowMissingNodesWarning": False,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
}
READY = """() => window.app && window.app.vueAppReady !== false && window.LiteGraph
    && Object.keys(window.LiteGraph.registered_node_types).includes('RuleLoad')"""
CONVERT = """async (workflow) => {
    await window.app.loadGraphData(workflow, true, true, null);
    await new Promise(done => setTimeout(done, 100));
    return JSON.parse(JSON.stringify((await window.app.graphToPrompt()).output));
}"""
KEPT = (
    "input",
    "input_order",
    "output",
    "output_name",
    "output_is_list",
    "output_node",
    "output_matchtypes",
    "name",
    "display_name",
    "category",
    "python_module",
)
TEXTS = ("tooltip", "placeholder", "description")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workflows", nargs="*", type=Path)
    parser.add_argument("--rules", action="store_true", help="record the cases of rule_cases.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8188")
    parser.add_argument("--object-info", type=Path, help="further node classes, which win over the server's")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    args = parser.parse_args()

    classes = served_classes(args.url, args.object_info)
    cases = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in args.workflows}
    if args.rules:
        import rule_cases

        cases |= {name: case()[0] for name, case in rule_cases.CASES.items()}
    known = {}
    for name, workflow in cases.items():
        missing = used_classes(workflow) - set(classes)
        if missing:
            print(f"left out {name}: {', '.join(sorted(missing))}", file=sys.stderr)
        else:
            known[name] = workflow
    args.out.mkdir(parents=True, exist_ok=True)
    recorded = 0
    for name, prompt in prompts(args.url, args.chromium, classes, known):
        if isinstance(prompt, str):
            print(f"failed {name}: {prompt}", file=sys.stderr)
            continue
        recorded += 1
        plain = {
            key: {"class_type": node.get("class_type"), "inputs": node["inputs"]}
            for key, node in prompt.items()
        }
        write(args.out / f"{name}.json", known[name])
        write(args.out / f"{name}.api.json", plain)
    used = set().union(*map(used_classes, known.values())) if known else set()
    write(args.out / "object_info.json", {name: trimmed(classes[name]) for name in sorted(used)})
    print(f"{recorded} of {len(cases)} recorded in {args.out}")
    return 0 if recorded == len(cases) else 1


def served_classes(url: str, further: Path | None) -> dict[str, Any]:
    from rule_nodes import NODE_CLASS_MAPPINGS

    from cascade_train.graph.check.classes import object_info

    with urllib.request.urlopen(f"{url}/object_info", timeout=120) as answer:
        classes: dict[str, Any] = json.load(answer)
    classes |= object_info(NODE_CLASS_MAPPINGS)
    if further is not None:
        classes |= json.loads(further.read_text(encoding="utf-8"))
    return classes


def used_classes(workflow: dict[str, Any]) -> set[str]:
    graphs = [workflow, *((workflow.get("definitions") or {}).get("subgraphs") or [])]
    own = {graph.get("id") for graph in graphs[1:]}
    return {node["type"] for graph in graphs for node in graph["nodes"]} - own - FRONTEND_ONLY


def prompts(url: str, chromium: str, classes: dict[str, Any], cases: dict[str, Any]) -> Any:
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.route("**/object_info", lambda route: route.fulfill(json=classes))
        page.route(
            "**/api/settings",
            lambda route: (
                route.fulfill(json=SETTINGS) if route.request.method == "GET" else route.continue_()
            ),
        )
        page.goto(url, wait_until="domcontentloaded", timeout=120_000)
        page.wait_for_function(READY, timeout=180_000)
        page.wait_for_timeout(2000)
        for name, workflow in cases.items():
            try:
                yield name, page.evaluate(CONVERT, workflow)
            except Error as error:
                yield name, str(error).splitlines()[0]
        browser.close()


def trimmed(schema: dict[str, Any]) -> dict[str, Any]:
    """A class's schema without texts and with short lists of choices."""
    kept = {key: schema[key] for key in KEPT if key in schema}
    kept["input"] = {
        group: {name: _trimmed_entry(entry) for name, entry in entries.items()}
        for group, entries in schema["input"].items()
        if group != "hidden"
    }
    return kept


def _trimmed_entry(entry: Any) -> Any:
    if not isinstance(entry, (list, tuple)):
        return entry
    parts = list(entry)
    if parts and isinstance(parts[0], list):
        parts[0] = parts[0][:3]
    if len(parts) > 1 and isinstance(parts[1], dict):
        options = {key: value for key, value in parts[1].items() if key not in TEXTS}
        if parts[0] == "COMBO" and isinstance(options.get("options"), list):
            options["options"] = options["options"][:3]
        parts[1] = options
    return parts


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
