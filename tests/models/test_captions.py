"""Captions longer than the text encoder reads at a time: cut, which is said, or read in chunks."""

from __future__ import annotations

import functools
import http.server
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from cascade_train.data.sources import folder_dataset, tars_dataset
from cascade_train.data.spec import CaptionSpec, Dataset
from cascade_train.errors import CascadeError
from cascade_train.jobs.prepare import dataset_preview, with_caches
from cascade_train.jobs.validate import validate
from cascade_train.models import captions, clip, library, text
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import links, pipeline, stages
from cascade_train.sampling.conditioning import encode_prompts
from cascade_train.sampling.spec import Prompts
from cascade_train.training import run
from cascade_train.training.spec import LoRATarget, OptimizerSpec, TokenSpec

SHORT = "a red circle"
LONG = "a small red circle on the left, " * 8
LONGER = "two large blue squares below a green ring, " * 12
QUICK: Any = {"steps_c": 3, "steps_b": 1}


@pytest.fixture
def whole(models: ModelsSpec) -> ModelsSpec:
    return replace(models, captions="chunks")


@torch.no_grad()
def test_chunks_are_read_one_by_one(models: ModelsSpec) -> None:
    """Against the library's own model: each chunk by itself, one after the other, pooled of the first."""
    encoder: Any = library.part(models, "text")
    tokenizer = encoder.tokenizer
    size = text.text_length(tokenizer)
    states = text.encode_text(encoder, tokenizer, [LONGER], captions="chunks")
    words = tokenizer(LONGER).input_ids[1:-1]
    count = -(-len(words) // (size - 2))
    assert count > 2 and states.hidden.shape == (1, count * size, encoder.config.hidden_size)
    for number in range(count):
        row = words[number * (size - 2) : (number + 1) * (size - 2)]
        row = [tokenizer.bos_token_id, *row, tokenizer.eos_token_id]
        mask = torch.tensor([[1] * len(row) + [0] * (size - len(row))])
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (size - len(row))])
        theirs = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        here = slice(number * size, (number + 1) * size)
        torch.testing.assert_close(states.hidden[:, here], theirs.hidden_states[-1])
        assert torch.equal(states.mask[:, here], mask)
        if number == 0:
            torch.testing.assert_close(states.pooled[0], theirs.text_embeds)
            cut = text.encode_text(encoder, tokenizer, [LONGER])
            torch.testing.assert_close(cut.hidden, states.hidden[:, here])
            assert torch.equal(cut.mask, mask)
    short = [text.encode_text(encoder, tokenizer, [SHORT], captions=each) for each in ("cut", "chunks")]
    assert torch.equal(short[0].hidden, short[1].hidden) and short[1].own is None, "short ones are as before"


def test_nobody_writes_without_end(models: ModelsSpec) -> None:
    tokenizer = clip.load_tokenizer(Path(library.part_file(models, "text").path))
    given = text.tokenize(tokenizer, [SHORT * 3000], "chunks")
    assert given.chunks == (captions.MOST_CHUNKS,)
    assert captions.too_long(tokenizer, [SHORT * 3000], "chunks").count == 1


def test_a_text_does_not_see_what_fills_it_up(whole: ModelsSpec) -> None:
    """Texts of one, two and three chunks in a batch, and each alone: equal answers, and equal gradients when
    blocks are computed again on the way back."""
    network: Any = library.own_copy(whole, "stage_c").eval().requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 16, 8, 8, generator=generator)
    time, image = torch.tensor([0.2, 0.5, 0.9]), torch.zeros(3, 1, network.config.clip_image_in_channels)
    texts = [SHORT, LONG, LONGER]

    def answers(pieces: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        network.zero_grad()
        out = []
        for rows in pieces:
            given = encode_prompts(whole, [texts[row] for row in rows])
            out.append(
                network(
                    x[rows],
                    timestep_ratio=time[rows],
                    clip_text_pooled=given.pooled,
                    clip_text=text.marked(given.hidden, given.own),
                    clip_img=image[rows],
                    return_dict=False,
                )[0]
            )
        made = torch.cat(out)
        made.square().sum().backward()
        return made.detach(), torch.cat([each.grad.flatten() for each in network.parameters()])

    alone = answers([[0], [1], [2]])
    batch = answers([[0, 1, 2]])
    network.enable_gradient_checkpointing()
    again = answers([[0, 1, 2]])
    for each in (batch, again):
        for found, wanted in zip(each, alone):
            assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    assert torch.equal(batch[1], again[1])


def test_pictures_do_not_depend_on_the_longest_prompt(models: ModelsSpec, whole: ModelsSpec) -> None:
    def draw(each: ModelsSpec, *texts: str, seeds: Any, negative: str = "") -> torch.Tensor:
        return pipeline.text_to_image(each, texts, seeds=seeds, negative=negative, **QUICK)

    among = draw(whole, SHORT, LONG, LONGER, seeds=[1, 2, 3], negative=LONG)
    for number, each in enumerate((SHORT, LONG, LONGER)):
        alone = draw(whole, each, seeds=[number + 1], negative=LONG)
        assert (among[number] - alone[0]).abs().max() < 2e-3
    assert torch.equal(draw(whole, SHORT, seeds=[1]), draw(models, SHORT, seeds=[1]))
    assert (draw(whole, LONGER, seeds=[1]) - draw(models, LONGER, seeds=[1])).abs().max() > 1e-3


class Room:
    """A host, and datasets of a few captions under it."""

    def __init__(self, studio: ModuleType, root: Path) -> None:
        self.studio, self.root = studio, root
        self.host = studio.CountingHost(root / "output")
        self.host._folders = replace(self.host.folders, extra_read=(root,))

    def dataset(self, *texts: str, **spec: Any) -> Dataset:
        folder = self.root / "pictures"
        folder.mkdir()
        for number, caption in enumerate(texts):
            Image.new("RGB", (64, 64), (20 * number, 0, 0)).save(folder / f"{number}.png")
            (folder / f"{number}.txt").write_text(caption, encoding="utf-8")
        found = folder_dataset(str(folder), recursive=False, host=self.host)
        return found.with_captions(CaptionSpec(**spec))

    def told(self) -> list[str]:
        return [line for line in self.host.sink.warnings if "tokens that are read" in line]


@pytest.fixture
def room(studio: ModuleType, tmp_path: Path) -> Room:
    return Room(studio, tmp_path)


@pytest.mark.parametrize("kind", ["lora", "stage_c", "stage_b"])
def test_a_batch_may_be_split_whatever_the_lengths(
    studio: ModuleType, whole: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    """Training (its dropout, frozen and trained text encoders) sees the same alone and together."""
    losses = []
    for pieces in (1, 3):
        room = Room(studio, tmp_path / str(pieces))
        room.root.mkdir()
        data = room.dataset(*(f"[concept] circle {each}" for each in (SHORT, LONG, LONGER)))
        spec = studio.spec(
            kind, whole, dataset=data, accumulation=pieces, optimizer=OptimizerSpec(learning_rate=1e-3)
        )
        _, metrics = run.train(run.start(spec, room.host), 3, host=room.host)
        losses.append([row["loss"] for row in metrics.rows])
        assert not room.told()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_word_far_behind_is_trained_in_chunks(room: Room, models: ModelsSpec, whole: ModelsSpec) -> None:
    target = LoRATarget(modules="", tokens=TokenSpec((("crescent", "^star</w>$"),)))
    data = room.dataset(f"{LONG}[crescent]")

    def train(each: ModelsSpec) -> run.Position:
        spec = room.studio.spec("lora", each, target=target, dataset=data, batch_size=1, caption_dropout=0.0)
        return run.train(run.start(spec, room.host), 2, host=room.host)[0]

    with pytest.raises(CascadeError, match="behind the 30 tokens that are read"):
        train(models)
    position = train(whole)
    row = run.trained(position).tensors["tokens.rows"]
    encoder: Any = library.part(whole, "text")
    start = encoder.text_model.embeddings.token_embedding.weight[encoder.tokenizer.get_vocab()["star</w>"]]
    assert not torch.equal(row[0], start)
    applied = run.apply_trained(whole, position)
    prompts = [f"{LONG}[crescent]", f"{LONG}star"]
    read = encode_prompts(applied, prompts)
    assert not torch.equal(read.hidden[0], read.hidden[1])
    assert torch.equal(read.pooled[0], read.pooled[1]), "the first chunk's, where it is not said"


def test_what_is_cut_is_said_once_with_its_number(room: Room, models: ModelsSpec) -> None:
    data = room.dataset(SHORT, LONG, LONGER, prefix="a photo of ")
    spec = room.studio.spec("stage_b", models, dataset=data)
    position = run.start(spec, room.host)
    for _ in range(2):
        position, _ = run.train(position, 1, host=room.host)
    (line,) = room.told()
    assert "2 of 3 captions are longer than the 30 tokens" in line
    assert "'a photo of two large blue squares" in line and "'chunks' reads them whole" in line
    run.release()
    again = room.studio.CountingHost(room.root / "output")
    run.train(run.start(spec, again), 2, host=again)
    assert line in again.sink.warnings, "also when nothing is left to train"
    report = dataset_preview(data, models, count=3, seed=0, batch_size=1, host=again)[1]
    assert f"warning: {line}" in report
    whole = replace(models, captions="chunks")
    assert (
        "tokens that are read"
        not in dataset_preview(data, whole, count=3, seed=0, batch_size=1, host=again)[1]
    )


def test_a_stream_says_what_it_cuts_as_it_comes(room: Room, models: ModelsSpec, whole: ModelsSpec) -> None:
    """Nobody knows a stream's captions before; in chunks it trains as the folder does, and cuts nothing."""
    tar = room.root / "set.tar"
    with tarfile.open(tar, "w") as box:
        for number, caption in enumerate((SHORT, LONG, LONGER)):
            picture = io.BytesIO()
            Image.new("RGB", (64, 64), (20 * number, 0, 0)).save(picture, format="PNG")
            for ending, content in ((".png", picture.getvalue()), (".txt", caption.encode())):
                member = tarfile.TarInfo(f"{number}{ending}")
                member.size = len(content)
                box.addfile(member, io.BytesIO(content))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    serve = functools.partial(Quiet, directory=str(room.root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        room.host._folders = replace(room.host.folders, allowed_hosts=("127.0.0.1",))
        place = f"http://127.0.0.1:{server.server_address[1]}/set.tar"
        data = tars_dataset(place, shuffle=1, host=room.host)
        for each in (whole, models):
            spec = room.studio.spec("lora", each, dataset=data, batch_size=3, caption_dropout=0.0)
            _, metrics = run.train(run.start(spec, room.host), 2, host=room.host)
            assert all(math.isfinite(row["loss"]) for row in metrics.rows)
            assert bool(room.told()) == (each is models)
        server.shutdown()
    first, *_, last = room.told()
    assert "the caption is longer than the 30 tokens" in first and "more are counted as they come" in first
    assert "2 captions that were streamed are longer" in last
    run.release()
    again = room.studio.CountingHost(room.root / "output")
    run.train(run.start(spec, again), 2, host=again)
    assert last in again.sink.warnings, "also when nothing is left to train"


def test_prompts_that_are_cut_are_said(room: Room, models: ModelsSpec) -> None:
    host = room.host
    links.encode_prompt(models, LONG, None, host)
    assert "the caption is longer" in room.told()[-1] and "its end is cut" in room.told()[-1]
    prompts = Prompts((SHORT, LONG), pictures=1, steps_c=1, steps_b=1)
    validate(prompts, host, models=models)
    assert "1 of 3 captions are longer" in room.told()[-1]
    count = len(room.told())
    links.encode_prompt(replace(models, captions="chunks"), LONG, None, host)
    assert len(room.told()) == count


def test_caches_and_names_follow_the_setting(room: Room, models: ModelsSpec, whole: ModelsSpec) -> None:
    assert models.digest == replace(models, captions="cut").digest != whole.digest
    data = room.dataset(SHORT, LONG)
    for each in (models, whole):
        with_caches(data, each, latents=False, texts=True, crops=0, ahead=True, host=room.host)
    stores = sorted((room.host.folders.cache / "text").iterdir())
    assert len(stores) == 2
    lengths = {
        max(file.shape[1] for name, file in load_file(path).items() if "hidden" in name)
        for store in stores
        for path in store.glob("*.safetensors")
    }
    assert len(lengths) == 2 and max(lengths) > min(lengths)


def test_a_link_takes_texts_of_any_length(room: Room, whole: ModelsSpec) -> None:
    """As core's nodes have it: (1, chunks · length, width), and shapes may differ between the two."""
    first, second = (links.encode_prompt(whole, each, None, room.host) for each in (LONG, SHORT))
    assert first[0][0].shape[1] > second[0][0].shape[1]
    drawn = links.sample_stage_c(
        whole,
        first,
        room.host,
        seed=1,
        pictures=2,
        width=64,
        height=64,
        steps=2,
        cfg=4.0,
        rescale=0.7,
        sampler="ddpm",
        shift=1.0,
        strength=1.0,
        negative=second,
    )
    condition, empty = encode_prompts(whole, [LONG]), encode_prompts(whole, [SHORT])
    settings = stages.SamplerSettings(2, 4.0, 0.7, "ddpm")
    direct = stages.sample_c(whole, condition, empty, seeds=[1, 2], size=(8, 8), settings=settings)
    torch.testing.assert_close(drawn["samples"], direct)


COMFYUI = os.environ.get("COMFYUI_PATH", "")

ASK_COMFYUI = """
import json, sys
folder, weights, out, text, config = sys.argv[1:6]
sys.path.insert(0, folder)
sys.argv = ["ask", "--cpu"]
import comfy.options
comfy.options.enable_args_parsing()
import torch
from comfy.sdxl_clip import StableCascadeClipModel, StableCascadeTokenizer
from safetensors.torch import load_file, save_file
tokens = StableCascadeTokenizer().tokenize_with_weights(text)
model = StableCascadeClipModel(dtype=torch.float32, model_options={"clip_g_model_config": json.loads(config)})
print(model.load_sd(load_file(weights)))
hidden, pooled = model.encode_token_weights(tokens)[:2]
ids = torch.tensor([[token for token, _ in row] for row in tokens["g"]])
save_file({"ids": ids, "hidden": hidden.contiguous(), "pooled": pooled.contiguous()}, out)
"""


@pytest.mark.skipif(not COMFYUI, reason="COMFYUI_PATH is not set")
@torch.no_grad()
def test_comfyui_reads_long_captions_alike(tmp_path: Path) -> None:
    """The same tokens in the same chunks, and the same states, of its text encoder for Stable Cascade."""
    from transformers import CLIPTokenizer

    config = {
        "vocab_size": 49408,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "projection_dim": 32,
        "hidden_act": "gelu",
        "max_position_embeddings": 77,
        "eos_token_id": 49407,
    }
    torch.manual_seed(0)
    encoder = text.build_text_model(config).eval()
    for parameter in encoder.parameters():
        parameter.normal_(std=0.1)
    save_file({name: value.contiguous() for name, value in encoder.state_dict().items()}, tmp_path / "text")
    tokenizer = CLIPTokenizer.from_pretrained(Path(COMFYUI) / "comfy" / "sd1_tokenizer")
    tokenizer.model_max_length = 77
    for caption in (SHORT, "a photo of an unbelievably incomprehensible contraption, " * 20, ""):
        out = tmp_path / "out"
        done = subprocess.run(
            [
                os.environ.get("COMFYUI_PYTHON", sys.executable),
                "-c",
                ASK_COMFYUI,
                COMFYUI,
                str(tmp_path / "text"),
                str(out),
                caption,
                json.dumps(config),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        theirs = load_file(out)
        tokens = text.tokenize(tokenizer, [caption], "chunks")
        assert torch.equal(tokens.ids, theirs["ids"])
        states = text.encode_text(encoder, tokenizer, [caption], captions="chunks")
        torch.testing.assert_close(states.hidden, theirs["hidden"], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states.pooled[:, 0], theirs["pooled"], rtol=1e-4, atol=1e-4)
