"""The shipped workflows: drawn as described, readable, and running as they stand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cascade_train.cli import main
from scripts import workflows

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("teach_a_concept", "text_to_image", "reconstruct")
SHORT = [
    argument
    for setting in (
        "Prompts.pictures=1",
        "Prompts.steps_c=2",
        "Prompts.steps_b=1",
        "Draw what it knows.steps_c=1",
        "Draw what it knows.steps_b=1",
        "Training Run.batch_size=2",
        "Train Steps 1.steps=2",
        "Train Steps 2.steps=2",
        "Train Steps 3.steps=2",
    )
    for argument in ("--set", setting)
]


def load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))


def test_files_are_what_the_script_writes() -> None:
    made = workflows.files()
    assert made.keys() == {f"workflows/{path.name}" for path in (ROOT / "workflows").glob("*.json")}
    for name, text in made.items():
        assert json.loads(text) == load(Path(name).stem), "run python start.py refresh"


@pytest.mark.parametrize("name", NAMES)
def test_laid_out_to_be_read(name: str) -> None:
    workflow = load(name)
    boxes = [(node.get("title") or node["type"], *node["pos"], *node["size"]) for node in workflow["nodes"]]
    for (first, x, y, w, h), (second, x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        apart = x + w <= x2 or x2 + w2 <= x or y + h + 30 <= y2 or y2 + h2 + 30 <= y
        assert apart, f"{first} and {second} overlap"
    for title, x, y, w, h in boxes:
        inside = [
            group["title"]
            for group in workflow["groups"]
            if group["bounding"][0] <= x
            and group["bounding"][1] <= y - 30
            and x + w <= group["bounding"][0] + group["bounding"][2]
            and y + h <= group["bounding"][1] + group["bounding"][3]
        ]
        assert len(inside) == 1, f"{title} lies in {inside}"
    assert any(node["type"] == "MarkdownNote" for node in workflow["nodes"]), "says what it is"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(ROOT / "workflows" / f"{name}.json")]) == 0


@pytest.mark.parametrize(
    "name, picture",
    [
        ("text_to_image", "text_to_image/stars_00001_.png"),
        ("reconstruct", "reconstruct/pictures_00001_.png"),
    ],
)
def test_it_draws(name: str, picture: str, tmp_path: Path) -> None:
    few = (
        ["--set", "Sample Stage C.steps=3", "--set", "Sample Stage C.pictures=2"]
        if name == "text_to_image"
        else []
    )
    file = ROOT / "workflows" / f"{name}.json"
    code = main(["run", str(file), "--output-dir", str(tmp_path), "--set", "Decode Stage B.steps=2", *few])
    assert code == 0
    with Image.open(tmp_path / picture) as drawn:
        assert drawn.width > 100 and "workflow" in drawn.info, "dragging it into ComfyUI opens the graph"


def test_the_main_job_runs_and_running_it_again_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(ROOT / "workflows" / "teach_a_concept.json")
    assert main(["run", file, "--output-dir", str(tmp_path), *SHORT]) == 0, capsys.readouterr().out
    out = tmp_path / "teach_a_concept"
    for made in (
        "before_after_00001_.png",
        "loss_00001_.png",
        "crescent_lora.safetensors",
        "crescent_lora-crescent.safetensors",
    ):
        assert (out / made).is_file(), made
    (run,) = (tmp_path / "cascade" / "runs").iterdir()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert sorted(path.name[:8] for path in (run / "checkpoints").iterdir()) == [
        "00000002",
        "00000004",
        "00000006",
    ]
    kept = [path.name for path in (run / "samples").iterdir()]
    assert len([name for name in kept if name.endswith(".pictures.png")]) == 3, "pictures after each block"
    before = (out / "crescent_lora.safetensors").read_bytes()

    assert main(["run", file, "--output-dir", str(tmp_path), *SHORT]) == 0
    assert (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() == lines, (
        "nothing was trained twice"
    )
    assert (out / "crescent_lora.safetensors").read_bytes() == before

    longer = [*SHORT, "--set", "Train Steps 3.steps=3"]
    assert main(["run", file, "--output-dir", str(tmp_path), *longer]) == 0
    steps = [
        json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert steps == [1, 2, 3, 4, 5, 6, 7], "only the step that was added"


WRONG = {
    "a missing folder": (
        ["Twenty pictures of a crescent.path=no/such/folder"],
        ["Twenty pictures of a crescent", "'no/such/folder' does not exist"],
    ),
    "a token expression that matches nothing": (
        ["Train Tokens (target).new_tokens=[crescent] = ^xyzzy</w>$"],
        [
            "Training Run (#16): no vocabulary entry matches the expression '^xyzzy</w>$' (input new_tokens)",
            "See Train Tokens (target) (#14): new_tokens = '[crescent] = ^xyzzy</w>$'",
        ],
    ),
    "a token line that is none": (
        ["Train Tokens (target).new_tokens=crescent"],
        [
            "Train Tokens (target) (id 14): new_tokens = 'crescent' is refused",
            "does not describe a new token. Write [name] = regular expression",
        ],
    ),
    "a LoRA filter that hits no layer": (
        ["LoRA (target).modules=atn"],
        [
            "Training Run (#16): the LoRA filter 'atn' hits no layer (input modules)",
            "See LoRA (target) (#13): modules = 'atn'",
        ],
    ),
    "a colour that is none": (
        ["Twenty pictures of a crescent.background=whit"],
        ["Twenty pictures of a crescent (id 3): background = 'whit' is refused", "#rrggbb"],
    ),
    "a wrong value": (["LoRA (target).rank=0"], ["LoRA (target)", "rank", "0", "1"]),
    "a value that is no choice": (["Optimizer.name=adam"], ["Optimizer", "name", "adam", "adamw"]),
    "models that are not there": (
        ["Load Stable Cascade.source=files"],
        ["Load Stable Cascade", "stage_c_bf16.safetensors", "diffusion_models"],
    ),
    "a name that leaves the output folder": (
        ["Export the LoRA.filename=../../away"],
        ["Export the LoRA (id 32): filename = '../../away'", "leaves the output folder"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_with_node_and_cure(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, words = WRONG[case]
    arguments = itertools.chain.from_iterable(("--set", each) for each in settings)
    code = main(
        [
            "run",
            str(ROOT / "workflows" / "teach_a_concept.json"),
            "--output-dir",
            str(tmp_path),
            *SHORT,
            "--only",
            "Export the LoRA",
            *arguments,
        ]
    )
    said = capsys.readouterr()
    text = said.out + said.err
    assert code in (1, 2), text
    assert not [word for word in words if word not in text], text
    assert "Traceback" not in text, text


def test_an_unknown_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = load("text_to_image")
    next(node for node in workflow["nodes"] if node["type"] == "CascadeSampleStageC")["type"] = (
        "CascadeSampleStageZ"
    )
    file = tmp_path / "other.json"
    file.write_text(json.dumps(workflow), encoding="utf-8")
    assert main(["run", str(file), "--output-dir", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "CascadeSampleStageZ" in said.out + said.err


def pictures(folder: Path, captions: bool) -> Path:
    folder.mkdir(parents=True)
    for index in range(3):
        Image.new("RGB", (64, 64), (index * 60, 0, 0)).save(folder / f"{index}.png")
        if captions and index:
            (folder / f"{index}.txt").write_text("a red thing", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "prepare, words",
    [
        (lambda folder: folder.mkdir(parents=True), ["mine", "no picture was found"]),
        (lambda folder: pictures(folder, captions=True), ["1 of 131", "0.png", "caption"]),
        (lambda folder: pictures(folder, captions=False), ["3 of 131", "caption"]),
    ],
)
def test_what_is_wrong_with_a_folder_is_told(
    prepare: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path / "input" / "mine")
    code = main(
        [
            "run",
            str(ROOT / "workflows" / "teach_a_concept.json"),
            "--output-dir",
            str(tmp_path / "output"),
            "--input-dir",
            str(tmp_path / "input"),
            "--set",
            "Twenty pictures of a crescent.path=mine",
            *SHORT,
            "--only",
            "Export the LoRA",
        ]
    )
    said = capsys.readouterr()
    text = said.out + said.err
    assert code == 1, text
    assert not [word for word in words if word not in text], text
