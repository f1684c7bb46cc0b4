"""The converter against prompts that the official frontend made (frontend 1.58.1; see `record_pairs.py`).

`pairs/templates` are official workflow templates (MIT) for which frontends 1.35.9 and 1.58.1 agree;
`pairs/rules` are the workflows of `rule_cases.py`, which the frontend was given too.

Where the result differs from a frontend on purpose, by rule:

* 6: a file's values by name are preferred also where the class here has fewer widgets than when it was
  saved. The frontend goes by position then and shifts every later value by one.
* 5 and 11: a widget whose wire comes from a muted node is dropped, as every input is, by 1.27 and 1.35 too;
  1.58 sends the value that the widget shows. Validation then names the missing input.
* 11: frontends up to 1.35 still send the inner nodes of muted and bypassed subgraphs; 1.58 and this do not.
* 13: 1.58 gives nodes a new id where a subgraph repeats one of the graph around it; here ids stay as they
  are, as in 1.27 and 1.35.
* 13: with no value of its own, the outer one of two nested instances takes the inner instance's value, as in
  1.58; 1.35 takes the innermost widget's.
* 15: the frontend draws `{a|b}` anew each time; here it stays as it is, or is drawn from a seed.
* Widgets that only show something (`audioUI`, a preview's text) are not sent, as in 1.58; nor is what a
  browser captures when queueing (webcam, microphone, 3D view), nor its "refresh" buttons.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rule_cases import CASES

from cascade_train.graph.file.convert import to_prompt
from cascade_train.graph.file.load import read_workflow

PAIRS = Path(__file__).resolve().parent / "pairs"
VIEW_ONLY = {"audioUI", "preview", "preview_text", "preview_markdown", "previewMode"}
RECORDED = sorted(path for path in PAIRS.glob("*/*.api.json"))


def plain(prompt: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (
            node["class_type"],
            {name: value for name, value in node["inputs"].items() if name not in VIEW_ONLY},
        )
        for key, node in prompt.items()
    }


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.name.removesuffix(".api.json"))
def test_the_prompt_is_the_frontends(recorded: Path) -> None:
    info = json.loads((recorded.parent / "object_info.json").read_text(encoding="utf-8"))
    workflow = read_workflow(recorded.with_name(recorded.name.replace(".api.json", ".json")))
    assert plain(to_prompt(workflow, info)) == plain(json.loads(recorded.read_text(encoding="utf-8")))


def test_every_rule_was_recorded_but_those_that_need_a_pack() -> None:
    recorded = {path.name.removesuffix(".api.json") for path in RECORDED if path.parent.name == "rules"}
    assert set(CASES) - recorded == {"rule_12_set_and_get_pair_by_name"}
    assert len([path for path in RECORDED if path.parent.name == "templates"]) >= 20
