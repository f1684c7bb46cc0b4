"""Mistakes that can be seen in an input alone are told at the node, before anything runs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import cascade_train_nodes
import pytest

from cascade_train.errors import CascadeError
from cascade_train.graph.check.classes import object_info
from cascade_train.graph.check.schema import inputs_of
from cascade_train.host.headless import HeadlessHost, headless_folders

CHECKS = {node.ID: node.CHECKS for node in cascade_train_nodes.NODES if node.CHECKS}


@pytest.fixture
def classes(tmp_path: Path) -> dict[str, type]:
    host = HeadlessHost(headless_folders(tmp_path / "output", tmp_path / "input"), "cpu")
    return cascade_train_nodes.build_mappings(host)[0]


WRONG = [
    ("CascadeImageFolder", "path", "no/such", "'no/such' does not exist"),
    ("CascadeImageFolder", "background", "whit", "'whit' is no colour"),
    ("CascadeWebDataset", "background", "#12", "'#12' is no colour"),
    ("CascadeWebDataset", "shards", "a{3..1}.tar", "runs backwards"),
    ("CascadeWebDataset", "shards", "set/{0000..0003}.tar", "the tar 'set/0000.tar' does not exist"),
    ("CascadeWebDataset", "shards", "*.tar", "'*.tar' matches no file"),
    ("CascadeWebDataset", "shards", "pipe:cat a.tar", "would start a program"),
    ("CascadeFilterSamples", "filters", "width >", "width >"),
    ("CascadeFilterSamples", "filters", "__import__('os')", "__import__"),
    ("CascadeCaptionOptions", "getter", "title +", "title +"),
    ("CascadeAspectBuckets", "ratios", "1/1, wide", "'wide' is no aspect ratio"),
    ("CascadeAspectBuckets", "resolutions", "768", "'768' is no resolution"),
    ("CascadeLoRATarget", "modules", "attn; channelwise", "'attn; channelwise' is no part of a layer's name"),
    ("CascadeTrainTokens", "new_tokens", "[a] = (", "'(' is not a regular expression"),
    ("CascadeTrainTokens", "new_tokens", "concept", "'concept' does not describe a new token"),
    ("CascadeTrainTokens", "existing_tokens", "*", "'*' is not a regular expression"),
    ("CascadePrompts", "texts", "# none", "there is no prompt"),
    ("CascadePrompts", "width", 8, "8 pixels are too few. Use 16 or more"),
    ("CascadeSampleStageC", "height", 100, "Use a multiple of 8, such as 96"),
    ("CascadeDecodeStageB", "width", 9000, "9000 pixels are too many"),
    ("CascadeExportRun", "filename", "../away", "'../away' leaves the output folder"),
    ("CascadeExportRun", "filename", "..\\away", "leaves the output folder"),
    ("CascadeExportRun", "filename", ".", "names a folder"),
    ("CascadeExportRun", "filename", "a\0b", "characters that no name can have"),
    ("CascadeLoadPictures", "path", "../..", "outside the folders"),
]


@pytest.mark.parametrize(("node", "name", "value", "words"), WRONG)
def test_a_wrong_value_is_told_with_the_name_of_its_input(
    classes: dict[str, type], node: str, name: str, value: str, words: str
) -> None:
    answer = classes[node].VALIDATE_INPUTS(**{name: value})  # type: ignore[attr-defined]
    assert isinstance(answer, str) and answer.startswith(f"{name}: ") and words in answer


@pytest.mark.parametrize(
    ("node", "name", "value", "words"),
    [
        case
        for case in WRONG
        if case[0] in ("CascadeLoRATarget", "CascadeTrainTokens", "CascadePrompts") and case[1] != "width"
    ],
)
def test_the_node_itself_refuses_it_too(
    classes: dict[str, type], node: str, name: str, value: str, words: str
) -> None:
    """A value that arrives by wire is known only when the node runs."""
    cls: Any = classes[node]
    entries = object_info({node: cls})[node]
    given = {entry.name: entry.default for entry in inputs_of(entries) if entry.required}
    with pytest.raises(CascadeError) as told:
        cls().run(**{**given, name: value})
    assert words in str(told.value)


TO_CHOOSE = {("CascadeWebDataset", "shards"), ("CascadeLoadLoRA", "lora"), ("CascadeLoadRun", "name")}
"""Inputs that have no default which could be right."""


def test_defaults_are_right_and_wired_inputs_are_left_alone(classes: dict[str, type]) -> None:
    info = object_info(classes)
    for node, checks in CHECKS.items():
        check = classes[node].VALIDATE_INPUTS  # type: ignore[attr-defined]
        defaults = {entry.name: entry.default for entry in inputs_of(info[node])}
        for name in checks:
            assert isinstance(defaults[name], (str, int)), f"{node}.{name} is typed"
            if (node, name) not in TO_CHOOSE:
                assert check(**{name: defaults[name]}) is True, (node, name)
        assert check(**dict.fromkeys(checks)) is True and check() is True


def test_comfyui_sees_which_inputs_the_hook_takes(classes: dict[str, type]) -> None:
    """It asks `inspect.getfullargspec`; an input it does not find there it checks itself."""
    for node, cls in classes.items():
        hook = getattr(cls, "VALIDATE_INPUTS", None)
        together = cls.CHECKED_TOGETHER  # type: ignore[attr-defined]
        assert (hook is not None) == (node in CHECKS or bool(together))
        if hook is not None:
            asked = inspect.getfullargspec(hook)
            assert asked.args == ["cls", *CHECKS.get(node, ()), *together] and asked.varkw is None


class Foreign:
    """As ComfyUI's blocker: a class that our own executor does not know."""

    def __init__(self, message: str) -> None:
        self.message = message


def validate_inputs(answer: Any, taken: list[str], blocker: type) -> dict[str, str]:
    """What ComfyUI's loop over the inputs that a hook takes shows, by input."""
    told = {}
    assert not isinstance(answer, type(None)), "others ask what it is, too"
    for x in taken:
        if answer is not True and not isinstance(answer, blocker):
            told[x] = f"{x} - {answer!s}"
    return told


@pytest.mark.parametrize(
    ("node", "wrong", "right"),
    [
        ("CascadeImageFolder", {"path": "no/such"}, {"background": "white"}),
        ("CascadeImageFolder", {"background": "whit"}, {"path": "bundled/crescent"}),
        ("CascadeWebDataset", {"shards": "a{3..1}.tar"}, {"background": "white"}),
        ("CascadeTrainTokens", {"existing_tokens": "*"}, {"new_tokens": "[a] = ^b</w>$"}),
        ("CascadeAspectBuckets", {"resolutions": "768"}, {"ratios": "1/1"}),
        ("CascadeAspectBuckets", {"resolutions": "768", "ratios": "wide"}, {}),
        ("CascadePrompts", {"height": 8}, {"width": 0, "texts": "a cat"}),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_comfyui_accuses_the_wrong_inputs_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    node: str,
    wrong: dict[str, Any],
    right: dict[str, Any],
    backwards: bool,
) -> None:
    host = HeadlessHost(headless_folders(tmp_path / "output", tmp_path / "input"), "cpu")
    monkeypatch.setattr(host, "blocked", Foreign)
    hook = cascade_train_nodes.build_mappings(host)[0][node].VALIDATE_INPUTS
    given = dict(sorted({**wrong, **right}.items(), reverse=backwards))
    told = validate_inputs(hook(**given), list(given), Foreign)
    assert told.keys() == wrong.keys()
    assert all(text.startswith(f"{name} - {name}: ") for name, text in told.items())


def test_checks_come_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, cascade_train_nodes\n"
        "from cascade_train.host.headless import HeadlessHost, headless_folders\n"
        "host = HeadlessHost(headless_folders(pathlib.Path('o')))\n"
        "classes = cascade_train_nodes.build_mappings(host)[0]\n"
        "for node in classes.values():\n"
        "    for name in node.CHECKS:\n"
        "        node.VALIDATE_INPUTS(**{name: 8 if name in ('width', 'height') else '[a] = b'})\n"
        "heavy = {'torch', 'cv2', 'diffusers', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
