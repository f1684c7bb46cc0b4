"""Blocks of training with pictures between and files after, as the nodes ask for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from cascade_train.data.sources import folder_dataset
from cascade_train.errors import CascadeError, Interrupted
from cascade_train.host.blocker import ExecutionBlocker
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.jobs.export import export, lora_of
from cascade_train.jobs.previews import RunPreview
from cascade_train.jobs.train import train_and_validate, train_block
from cascade_train.jobs.validate import draw_prompts, validate
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.weights import read_tensors
from cascade_train.sampling.spec import Prompts
from cascade_train.training import previews
from cascade_train.training import run as runs
from cascade_train.training.spec import FullTarget, LoRATarget, OptimizerSpec, Position, RunSpec, TokenSpec

PROMPTS = Prompts(texts=("a red [crescent] on a black background",), pictures=2, steps_c=2, steps_b=1)


class Watched:
    """Remembers what a host was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.pictures: list[Image.Image] = []
        self.warnings: list[str] = []

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        self.texts.append(text)
        if preview is not None:
            self.pictures.append(preview)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path / "output"), "cpu", Watched())


@pytest.fixture
def start(tiny: ModelsSpec, host: HeadlessHost) -> Position:
    target = LoRATarget(rank=2, alpha=2, tokens=TokenSpec(new=(("crescent", "^ring</w>$"),)))
    optimizer = OptimizerSpec(learning_rate=0.05)
    dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
    return runs.start(RunSpec(tiny, dataset, target, optimizer, batch_size=2, total_steps=6), host)


def test_pictures_before_between_and_after(start: Position, host: HeadlessHost) -> None:
    last, grids = train_and_validate(start, PROMPTS, 5, 2, None, host)
    assert last.step == 5 and len(grids) == 4, "before, after 2, 4 and 5 steps"
    assert all(not torch.equal(grids[0], grid) for grid in grids[1:]), "training changed the pictures"
    kept = sorted(path.name for path in (Path(last.folder) / "samples").iterdir())
    assert [name[:8] for name in kept if not name.endswith(".pictures.png")] == [
        "00000000",
        "00000002",
        "00000004",
        "00000005",
    ]
    again, same = train_and_validate(start, PROMPTS, 5, 2, None, host)
    assert again == last and torch.equal(grids, same)


def test_looking_changes_nothing(start: Position, host: HeadlessHost) -> None:
    half, *_ = train_block(start, 2, None, host)
    validate(PROMPTS, host, run=half)
    whole, plot, loss = train_block(half, 2, None, host)
    looked = runs.trained(whole)
    other = HeadlessHost(headless_folders(host.folders.output.parent / "elsewhere"), "cpu")
    runs.release()
    straight, *_ = train_block(runs.start(start.settings, other), 4, None, other)
    for name, value in runs.trained(straight).tensors.items():
        assert torch.equal(value, looked.tensors[name]), name
    assert plot.shape == (1, 360, 640, 3) and loss > 0


def test_strength_fades_what_was_learned(start: Position, host: HeadlessHost) -> None:
    later, *_ = train_block(start, 3, None, host)
    known = Prompts(texts=("a red ring on a black background",), pictures=1, steps_c=2, steps_b=1)
    models = later.spec.models

    def pictures(strength: float) -> torch.Tensor:
        return validate(known, host, run=later, strength=strength)[1]

    plain = validate(known, host, models=models)[1]
    assert torch.equal(pictures(0.0), plain)
    assert not torch.equal(pictures(1.0), plain)
    assert (pictures(0.1) - plain).abs().mean() < (pictures(1.0) - plain).abs().mean()


@pytest.fixture
def seen(host: HeadlessHost) -> HeadlessHost:
    """Another host, whose pictures somebody sees."""
    other = HeadlessHost(headless_folders(host.folders.output.parent / "seen"), "cpu", Watched())
    other.previews = True
    return other


def test_pictures_and_loss_are_shown_while_training(
    start: Position, host: HeadlessHost, seen: HeadlessHost
) -> None:
    """Captions as Stage C draws them now above the curve: after the first step, whatever the time, and at the
    end; a curve with every message; and the result is the same bits."""
    import numpy as np

    watched = seen.sink
    assert isinstance(watched, Watched) and isinstance(host.sink, Watched)
    unseen, *_ = train_block(start, 4, None, host, preview_every=2)
    assert not host.sink.pictures, "a command line shows none"
    assert any("loss" in text for text in host.sink.texts)

    runs.release()
    shown, *_ = train_block(runs.start(start.settings, seen), 4, None, seen, preview_every=1000)
    texts = [text for text in watched.texts if text.startswith("step ")]
    assert len(watched.pictures) == len(texts), "no message without its picture"
    first, last = (np.asarray(watched.pictures[index]) for index in (0, -1))
    height = first.shape[0] - 288
    assert first.shape[1:] == (512, 3) and height in (512, 256), "a square for each caption of the batch"
    assert (first[:height] != last[:height]).any() and (first[height:] != last[height:]).any()
    assert texts[0].startswith("step 1/4 ") and texts[-1].startswith("step 4/4 ")
    (kept,) = (Path(shown.folder) / "samples").glob("00000004-*-training.png")
    (other,) = (Path(unseen.folder) / "samples").glob("00000004-*-training.png")
    with Image.open(kept) as picture, Image.open(other) as same:
        assert picture.tobytes() == watched.pictures[-1].tobytes(), "what was shown last is kept"
        assert picture.tobytes() == same.tobytes(), "and is the same where nobody watched"
    for name, value in runs.trained(unseen).tensors.items():
        assert torch.equal(value, runs.trained(shown).tensors[name]), name


def test_samples_take_their_share_between_a_block_s_ends(
    start: Position, seen: HeadlessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    real = RunPreview.__call__

    def counted(self: RunPreview, now: Any) -> Any:
        drawn.append(now.position.step)
        return real(self, now)

    monkeypatch.setattr(RunPreview, "__call__", counted)
    train_block(start, 6, None, seen, preview_every=1)
    assert drawn[0] == 1 and drawn[-1] == 6 and len(drawn) < 6, "the steps between are too quick for more"
    monkeypatch.setattr(previews, "SHARE", float("inf"))
    drawn.clear()
    train_block(runs.start(replace(start.settings, seed=1), seen), 6, None, seen, preview_every=2)
    assert drawn == [1, 2, 4, 6]
    drawn.clear()
    train_block(runs.start(replace(start.settings, seed=2), seen), 6, None, seen, preview_every=0)
    assert drawn == [], "0 shows none"


def test_a_stop_tells_what_was_saved_and_where(start: Position, seen: HeadlessHost) -> None:
    class Stops(Watched):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[str] = []

        def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
            if done == 1:  # which is always told
                seen.stop()

        def tell(self, text: str) -> None:
            self.told.append(text)

    sink = seen.sink = Stops()
    begun = runs.start(start.settings, seen)
    with pytest.raises(Interrupted):
        train_block(begun, 5, None, seen, preview_every=1)
    (checkpoint,) = (Path(begun.folder) / "checkpoints").glob("0*")
    (told,) = sink.told
    assert told.startswith(f"saved at step {int(checkpoint.name[:8])} of 5 in {checkpoint}; ")


def test_a_stop_while_drawing_stops(start: Position, host: HeadlessHost) -> None:
    host.stop()
    with pytest.raises(Interrupted):
        validate(PROMPTS, host, run=start)


def test_validate_wants_one_thing_to_look_at(start: Position, tiny: ModelsSpec, host: HeadlessHost) -> None:
    with pytest.raises(CascadeError, match="needs a run or models"):
        validate(PROMPTS, host)
    with pytest.raises(CascadeError, match="not both"):
        validate(PROMPTS, host, run=start, models=tiny)
    with pytest.raises(CascadeError, match="blocks of 0"):
        train_and_validate(start, PROMPTS, 5, 0, None, host)


def test_exports_land_in_the_run_s_folder_or_where_asked(start: Position, host: HeadlessHost) -> None:
    later, *_ = train_block(start, 1, None, host)
    own = Path(export(later, "ComfyUI", "", "fp32", host)[0])
    assert own.parent == Path(later.folder) / "exports" and own.is_file()
    named = Path(export(later, "ComfyUI", "loras/mine", "fp16", host)[0])
    assert named == host.folders.output / "loras" / "mine.safetensors" and named.is_file()
    with pytest.raises(CascadeError, match="Train"):
        export(start, "ComfyUI", "", "fp32", host)
    on_link, in_file = export(later, "ComfyUI", "", "fp32", host)[1], read_tensors(own)
    assert on_link.keys() == in_file.keys()
    assert all(torch.equal(on_link[key], in_file[key]) for key in in_file)


@pytest.mark.parametrize("live", [True, False], ids=["still in memory", "read from disk"])
@pytest.mark.parametrize("job", ["validate", "export", "apply"])
def test_a_run_folder_deleted_between_two_queues_is_trained_again(
    start: Position, host: HeadlessHost, tmp_path: Path, live: bool, job: str
) -> None:
    """The host keeps what Train Steps gave, a position, and does not call it again."""
    half, *_ = train_block(start, 2, None, host)
    later, *_ = train_block(half, 1, 0.01, host)
    tensors = {name: value.clone() for name, value in runs.trained(later).tensors.items()}

    def work() -> torch.Tensor:
        if job == "validate":
            return validate(PROMPTS, host, run=later)[1]
        if job == "export":
            written = read_tensors(Path(export(later, "ComfyUI", "mine", "fp32", host)[0]))
            return torch.cat([written[name].flatten() for name in sorted(written)])
        models = runs.apply_trained(later.spec.models, later, 1.0, host)
        return validate(PROMPTS, host, models=models)[1]

    before = work()
    shutil.rmtree(Path(later.folder))
    shutil.rmtree(host.folders.cache / "drawn", ignore_errors=True)
    if not live:
        runs.release()
    assert torch.equal(work(), before)
    assert all(torch.equal(value, tensors[name]) for name, value in runs.trained(later).tensors.items())
    assert (Path(later.folder) / "run.json").is_file()
    assert any("is made anew: it is not on disk" in line for line in host.sink.warnings)  # type: ignore[attr-defined]


def test_models_that_a_deleted_run_was_laid_over_still_draw(start: Position, host: HeadlessHost) -> None:
    """The host keeps what Apply Run gave, too; sampling then asks for parts that are nowhere."""
    from cascade_train.models import library

    later, *_ = train_block(start, 2, None, host)
    models = runs.apply_trained(later.spec.models, later, 1.0, host)
    before = draw_prompts(models, PROMPTS, host)
    shutil.rmtree(Path(later.folder))
    runs.release()
    library.forget()
    assert torch.equal(draw_prompts(models, PROMPTS, host), before)
    shutil.rmtree(Path(later.folder))
    over = RunSpec(models, start.settings.dataset, LoRATarget(rank=1, alpha=1), start.settings.optimizer)
    assert runs.start(over, host).step == 0, "a run on top is described"
    assert checkpoint_there(later)


def checkpoint_there(position: Position) -> bool:
    return runs.checkpoint_of(position).is_dir()


def test_a_run_that_a_graph_still_names_is_trained_on_after_its_folder_is_gone(
    start: Position, host: HeadlessHost
) -> None:
    half, *_ = train_block(start, 2, None, host)
    whole, *_ = train_block(half, 2, None, host)
    expected = runs.trained(whole).tensors
    shutil.rmtree(Path(start.folder))
    runs.release()
    again, plot, loss = train_block(half, 2, None, host)
    assert again == whole and plot.shape[0] == 1 and loss > 0
    assert all(torch.equal(value, expected[name]) for name, value in runs.trained(again).tensors.items())


def test_every_exported_file_is_told(start: Position, host: HeadlessHost) -> None:
    """The token's file too: it is on the node, in the order in which it was written."""
    import cascade_train_nodes

    later, *_ = train_block(start, 1, None, host)
    node = cascade_train_nodes.build_mappings(host)[0]["CascadeExportRun"]()
    for format, names in (
        ("ComfyUI", ["mine.safetensors", "mine-crescent.safetensors"]),
        ("diffusers", ["mine", "mine-crescent.safetensors"]),
    ):
        given = node.run(run=later, format=format, filename="loras/mine", precision="fp32")
        assert given["ui"]["text"] == [str(host.folders.output / "loras" / name) for name in names]
        assert given["result"][0] == given["ui"]["text"][0]
        assert all(Path(path).exists() for path in given["ui"]["text"])


def test_a_run_that_predicts_v_is_read_so_everywhere(tiny: ModelsSpec, host: HeadlessHost) -> None:
    """Over the models it draws what its answers mean as v; its file says so, and a person is told."""
    from cascade_train.diffusion import samplers
    from cascade_train.diffusion.noise import batch_noise
    from cascade_train.diffusion.schedule import alpha_sigma, logsnr
    from cascade_train.models import build, library
    from cascade_train.sampling.conditioning import encode_prompts
    from cascade_train.sampling.stages import predicts, sample_c
    from cascade_train.training.run import apply_trained

    dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
    spec = RunSpec(
        tiny,
        dataset,
        FullTarget("stage_c"),
        OptimizerSpec(learning_rate=0.01),
        batch_size=2,
        total_steps=6,
        objective="v",
    )
    last, *_ = train_block(runs.start(spec, host), 2, None, host)
    applied = apply_trained(tiny, last)
    text = encode_prompts(applied, ["a red ring"])
    drawn = sample_c(
        applied,
        text,
        text,
        seeds=[4],
        size=(8, 8),
        preview=False,
        settings=samplers.SamplerSettings(steps=3, cfg=1.0),
    )

    network: Any = library.part(applied, "stage_c")
    none = torch.zeros(1, 1, network.config.clip_image_in_channels)

    def epsilon(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        v = network(
            x,
            timestep_ratio=time,
            clip_text_pooled=text.pooled,
            clip_text=text.hidden,
            clip_img=none,
            return_dict=False,
        )[0]
        a, b = alpha_sigma(logsnr(time[0].double()))
        return (a * v.double() + b * x.double()).float()

    start = batch_noise([4], 0, (16, 8, 8), samplers.STAGE_C_NOISE)
    torch.testing.assert_close(
        drawn, samplers.sample(epsilon, start, samplers.sampling_logsnrs(3), [4]), rtol=1e-3, atol=1e-3
    )
    assert predicts(network) == "v" and predicts(library.part(tiny, "stage_c")) == "epsilon"
    path, lora, _ = export(last, "ComfyUI", "", "fp32", host)
    file = Path(path)
    assert predicts(build.load("stage_c", file)) == "v"
    assert lora_of(last, runs.trained(last), "fp32") is None, "all weights are no LoRA"
    assert isinstance(lora, ExecutionBlocker) and "trains no LoRA" in str(lora.message)
    sink: Any = host.sink
    told = sink.warnings
    assert any("predicts v" in warning for warning in told), told
