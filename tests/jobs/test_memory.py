"""What is counted before anything is loaded, against the bytes of tensors that live while it is done."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from cascade_train.cli import main
from cascade_train.jobs import memory, phases
from cascade_train.jobs.measured import measure, passes
from cascade_train.jobs.needs import counted
from cascade_train.jobs.phases import Phase, drawing, training
from cascade_train.jobs.previews import RunPreview
from cascade_train.jobs.tasks import Footprint, Task
from cascade_train.jobs.ways import LITE_B, Way, frozen_bytes
from cascade_train.models import layouts, library, owner
from cascade_train.models.live import Live, held, tensors_of
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import Conditioning
from cascade_train.sampling.sizes import picture_size
from cascade_train.training.objectives import base
from cascade_train.training.previews import standing
from cascade_train.training.spec import Block, LoRATarget, Position, RunSpec
from cascade_train.training.trainer import Trainer

HERE = Path(__file__).resolve().parent
found = importlib.util.spec_from_file_location("jobs_headers", HERE / "headers.py")
assert found is not None and found.loader is not None
headers = importlib.util.module_from_spec(found)
found.loader.exec_module(headers)


@contextmanager
def nothing_loaded() -> Iterator[None]:
    library.forget()
    with torch.inference_mode(False), torch.enable_grad():
        yield
    library.forget()


def state_of(trainer: Trainer) -> list[torch.Tensor]:
    """Every tensor that a trainer holds between two steps."""
    objective = trainer.objective
    modules = [*objective.modules.values(), *([objective.unet] if hasattr(objective, "unet") else [])]
    tensors = [tensor for module in modules for tensor in tensors_of(module)]
    tensors += [each.grad for each in trainer.parameters.values() if each.grad is not None]
    for moments in trainer.optimizer.state.values():
        tensors += [value for value in moments.values() if isinstance(value, torch.Tensor)]
    return tensors + (list(trainer.ema.values.values()) if trainer.ema is not None else [])


def phase(needs: phases.Needs, name: str) -> Phase:
    (found,) = (each for each in needs.phases if each.name == name)
    return found


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("lora", {}),
        ("lora", {"models": "bf16"}),
        ("lora", {"accumulation": 3}),
        ("dora", {}),
        ("tokens", {}),
        ("stage_c", {}),
        ("stage_c", {"precision": "bf16"}),
        ("stage_b", {}),
        ("stage_a", {}),
        ("compressor", {}),
        ("lora", {"compact": "int8"}),
        ("lora", {"compact": "fp8", "models": "bf16"}),
        ("dora", {"precision": "bf16"}),
    ],
)
def test_a_training_step_takes_what_was_counted(
    kind: str, changes: dict[str, Any], studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    if changes.get("models") == "bf16":
        models = replace(models, precision="bf16")
    models = replace(models, compact=changes.get("compact", ""))
    changes = {key: value for key, value in changes.items() if key not in ("models", "compact")}
    spec: RunSpec = studio.spec(kind, models, **changes)
    needs = phase(training(spec, measure), "training")
    with nothing_loaded(), Live() as live:
        trainer = Trainer(spec, studio.CountingHost(tmp_path))
        for _ in range(3):  # moments are made, and what encoders give is remembered
            trainer.advance(Block(1))
        own = held(state_of(trainer))
        before, live.peak = live.now, live.now
        trainer.advance(Block(1))
        really = own + live.peak - before  # what feeds remember lies on the CPU, wherever one trains
    assert needs.total == pytest.approx(really, rel=0.05), (needs, really)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_preview_takes_what_was_counted(
    precision: str, studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """The pictures that come while one trains, beside what the trainer holds meanwhile."""
    target = LoRATarget(rank=2, alpha=2.0)
    spec: RunSpec = studio.spec("lora", models, target=target, batch_size=4, precision=precision)
    needs = training(spec, measure, previews=True, cached=True)
    said = max(each.total for each in needs.phases if each.name.startswith("previews"))
    host = studio.CountingHost(tmp_path)
    with nothing_loaded(), Live() as live:
        trainer = Trainer(spec, host)
        for _ in range(2):
            trainer.advance(Block(1))
        own = held(state_of(trainer))
        before, live.peak = live.now, live.now
        with standing(trainer, Position(spec, (), str(tmp_path))) as now:
            assert RunPreview(host)(now) is not None
        really = own + live.peak - before
    assert said == pytest.approx(really, rel=0.05)


@pytest.mark.parametrize(
    "part, cfg", [("stage_c", 4.0), ("stage_c", 1.0), ("stage_b", 4.0), ("stage_a", 1.0)]
)
def test_drawing_takes_what_was_counted(part: Any, cfg: float, models: ModelsSpec) -> None:
    size = picture_size(library.geometry(models))
    needs = drawing(models, size, measure, parts=(part,), guided=(part,) if cfg != 1 else ())
    with nothing_loaded(), torch.no_grad(), library.use(models, part) as module, Live() as live:
        live.add(tensors_of(module))
        really = _drawn(models, part, cfg, size, live)
    assert needs.peak.total == pytest.approx(really, rel=0.05), (needs, really)


def _drawn(models: ModelsSpec, part: str, cfg: float, size: Any, live: Live) -> int:
    """The most bytes that live while one picture is drawn with a part that is there."""
    sizes = library.geometry(models)
    text = Conditioning(torch.zeros(1, 16, sizes.text_width), torch.zeros(1, 1, sizes.pooled_width))
    settings = replace(stages.STAGE_C, steps=2, cfg=cfg)
    live.peak = live.now
    if part == "stage_c":
        stages.sample_c(models, text, text, seeds=[0], size=size.stage_c, settings=settings, preview=False)
    elif part == "stage_b":
        latents = torch.zeros(1, 16, *size.stage_c)
        stages.sample_b(models, latents, text, text, seeds=[0], size=size.stage_b, settings=settings)
    else:
        stages.decode_a(models, torch.zeros(1, 4, *size.stage_b))
    return live.peak


def test_a_deep_network_is_counted_by_its_first_layers(layout: Callable[[str], dict[str, list[int]]]) -> None:
    """The 1B model's widths, counted block by block, against what follows from two shallow ones."""
    config = layouts.unet_config(layout("stage_c_lite"))
    config |= {"down_num_layers_per_block": [4, 6], "up_num_layers_per_block": [6, 4]}
    task = Task("train", "stage_c", json.dumps(config), autocast=True, adapts="lora", rank=16, modules="attn")
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert measure(task).passes == pytest.approx(passes(FakeTensorMode, task, config), rel=0.01)


def test_counts_are_remembered(models: ModelsSpec, tmp_path: Path) -> None:
    task = phases.drawing_task(models, "stage_a", picture_size(library.geometry(models)))
    first = counted(task, tmp_path)
    (file,) = (tmp_path / "memory").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "passes": 7}), encoding="utf-8")
    assert counted(task, tmp_path) == replace(first, passes=7)
    file.write_text("no JSON", encoding="utf-8")
    assert counted(task, tmp_path) == first


def test_what_is_said_of_options_is_theirs(layout: Callable[[str], dict[str, list[int]]]) -> None:
    """Numbers that other modules hold, and bytes by hand."""
    assert phases.LARGE == base.LARGE and memory.MARGIN == owner.MARGIN
    lite = json.loads(json.dumps(layouts.unet_config(layout("stage_b_lite"))))
    assert json.loads(json.dumps(LITE_B)) == lite
    count = Footprint(frozen=2 * 1000, linear=800, rows=20, layer=300)
    models = ModelsSpec("real", precision="bf16")
    for way, there in (
        (Way(compact="int8"), 800 + 4 * 20),
        (Way(offload=True), 0),
        (Way(compact="fp8", offload=True), 4 * 20 + 300),
    ):
        assert frozen_bytes(count, "stage_c", way.of(models)) == 2 * 200 + there


@pytest.fixture
def full_size(tmp_path: Path) -> Path:
    """A models folder of full-size files that hold a true header and nothing else."""
    return headers.write_full_size(tmp_path / "models")


@pytest.fixture
def layout() -> Callable[[str], dict[str, list[int]]]:
    return headers.layout


def test_the_real_model_is_planned_from_its_headers(
    full_size: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pictures = tmp_path / "input" / "mine"
    pictures.mkdir(parents=True)
    Image.new("RGB", (800, 800)).save(pictures / "cat.png")
    Path("lora.json").write_text(json.dumps(headers.defaults(headers.graph(pictures))), encoding="utf-8")

    def plan(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["plan", "lora.json", "--models-dir", str(full_size), *words])
        return code, capsys.readouterr().out

    code, out = plan("--memory", "24", "--json")
    said = json.loads(out)
    train = next(each for each in said["nodes"] if each["title"] == "Train it")
    by_name = {each["name"]: each["total"] for each in train["phases"]}
    assert code == 0 and "over" not in said
    assert by_name["training"] == pytest.approx(7.9e9, rel=0.03)
    assert by_name["training"] < said["peak"] < 16e9
    assert {"previews", "previews, decoded", "encoding captions"} <= by_name.keys()
    look = next(each for each in said["nodes"] if each["title"] == "Look at it")
    held_back = {each["kept"] for each in look["phases"]}  # the trainer's own, while its run is drawn
    assert len(look["phases"]) == 4 and len(held_back) == 1 and held_back.pop() > 0.2e9
    code, out = plan("--memory", "12")
    assert code == 0 and "It fits in 12 GB" in out and "with what it has already:" in out
    assert "models in bf16 (costs: " in out and "gradient checkpointing (costs: half as much" in out
    code, out = plan("--memory", "8")
    assert code == 1 and "Train it (#6) is the first that needs more" in out
    assert "  base in int8 (costs: a layer's output off by about 2 %" in out.split("It fits, with")[1]
    assert main(["run", "lora.json", "--models-dir", str(full_size), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "needs 8.8 GB of memory" in out and "Memory: 8.8 GB at most, in Train it (#6)" in out


def test_what_is_known_is_said_without_torch(full_size: Path, tmp_path: Path) -> None:
    """Which takes seconds to import: the line of a dry run is there at once."""
    (tmp_path / "input" / "mine").mkdir(parents=True)
    Image.new("RGB", (800, 800)).save(tmp_path / "input" / "mine" / "cat.png")
    prompt = headers.defaults(headers.graph(tmp_path / "input" / "mine"))
    (tmp_path / "lora.json").write_text(json.dumps(prompt), encoding="utf-8")
    code = "import sys; from cascade_train.cli import main; code = main(sys.argv[1:]); assert not code; "
    code += "assert 'torch' not in sys.modules"
    words = ["run", "lora.json", "--dry-run", "--models-dir", str(full_size)]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Memory: " in done.stdout
