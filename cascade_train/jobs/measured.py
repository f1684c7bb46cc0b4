"""Counting what a network takes while it works: the real modules and passes on tensors without memory.

Of Stage C, whose blocks are all alike, two shallow ones are counted and the rest follows by depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cascade_train.diffusion.samplers import SamplerSettings
from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.jobs.tasks import Footprint, Task
from cascade_train.models import build
from cascade_train.models.applied import Adapter, attach
from cascade_train.models.compact import CompactLinear, is_worth_it
from cascade_train.models.compressor import encode
from cascade_train.models.image import encode_image
from cascade_train.models.live import Live, materialised
from cascade_train.models.spec import Part
from cascade_train.models.text import encode_tokens
from cascade_train.sampling.stages import guided_network
from cascade_train.training.layers import chosen_layers
from cascade_train.training.objectives.adapters import RowEmbedding, inject_lora, layers_of
from cascade_train.training.spec import LoRATarget
from cascade_train.training.tokens import Row

SHALLOW = (2, 3)
"""Layers a level of the two Stage Cs that stand for a deeper one."""

SMALL = 4096
"""Tensors of fewer numbers keep their moments in fp32 under an 8-bit optimizer."""


def measure(task: Task) -> Footprint:
    """The count of ``task``, with no weights and nothing taken. Takes from half a second to some ten."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        config = _config_of(task.part, task.config)
        whole = _weights(task, config)
        depths = config.get("down_num_layers_per_block", [])
        if task.part == "stage_c" and min(depths, default=0) > max(SHALLOW):
            first, second = (passes(FakeTensorMode, task, _cut(config, depth)) for depth in SHALLOW)
            layers = sum(depths) + sum(config["up_num_layers_per_block"])
            groups = 2 * len(depths)
            rest = layers / groups - SHALLOW[0]
            beside = first + (second - first) * rest
            return replace(whole, passes=int(beside))
        return replace(whole, passes=passes(FakeTensorMode, task, config))


def _config_of(part: Part, text: str) -> dict[str, Any]:
    config = json.loads(text)
    return build.config_for(part, config["shapes"]) if "shapes" in config else config


def _cut(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """The configuration of a Stage C with ``depth`` layers a level."""
    both = ("down_num_layers_per_block", "up_num_layers_per_block")
    return {**config, **{key: [min(depth, layers) for layers in config[key]] for key in both}}


@dataclass
class _Made:
    module: nn.Module
    text: nn.Module | None = None
    previewer: nn.Module | None = None

    @property
    def all(self) -> list[nn.Module]:
        return [each for each in (self.module, self.text, self.previewer) if each is not None]


def _build(task: Task, config: dict[str, Any]) -> _Made:
    """The networks of ``task`` on ``meta``, set up as training or drawing does."""
    with torch.device("meta"):
        module = build.build(task.part, config)
        text = build.build("text", json.loads(task.text_config)) if task.text_config else None
        shown = (
            build.build("previewer", _config_of("previewer", task.previewer_config))
            if task.previewer_config
            else None
        )
    if task.brings:
        _bring(module)
    if (task.kind == "train" or task.beside) and task.modules.strip():
        target = LoRATarget(task.rank, float(task.rank), task.modules, task.adapts)  # type: ignore[arg-type]
        inject_lora(module, target, chosen_layers(layers_of(module), task.modules))
    elif task.modules.strip():
        _lay_over(module, task)
    return _Made(module, text, shown)


def _bring(module: nn.Module) -> None:
    """Put in place of each Linear layer of ``module``, on ``meta``, the one that brings its weight."""
    for path in [name for name, layer in module.named_modules() if is_worth_it(layer)]:
        above, _, name = path.rpartition(".")
        owner = module.get_submodule(above)
        setattr(owner, name, CompactLinear(getattr(owner, name), "int8", offload=False))


def _lay_over(module: nn.Module, task: Task) -> None:
    """Adapters of a run over ``module``, on ``meta``, as drawing has them."""
    for name in chosen_layers(layers_of(module), task.modules):
        layer = module.get_submodule(name)
        weight: Tensor = layer.weight  # type: ignore[assignment]
        new = partial(torch.empty, device="meta")
        down, up = new(task.rank, *weight.shape[1:]), new(len(weight), task.rank, *(1,) * (weight.ndim - 2))
        attach(layer, Adapter(down, up, 1.0, 1.0, new(len(weight)) if task.adapts == "dora" else None))


def _trains(task: Task, name: str) -> bool:
    return task.kind == "train" and (not task.adapts or ".lora_" in name)


def _full_precision(task: Task, name: str) -> bool:
    return _trains(task, name) or (task.beside and ".lora_" in name)


_LAID = (".down", ".up", ".magnitude")
"""What an `Adapter` calls its tensors, which stay fp32."""


def _weights(task: Task, config: dict[str, Any]) -> Footprint:
    """Bytes of the weights alone, of the whole network."""
    made = _build(replace(task, brings=False), config)
    width = 2 if task.precision == "bf16" else 4
    trained: list[int] = []
    frozen, linear = 0, []
    for module in made.all:
        for name, value in module.named_parameters():
            if _trains(task, name):
                trained.append(value.numel())
            else:
                frozen += width * value.numel()
        for name, each in module.named_buffers():
            if name.endswith(_LAID):
                trained.append(each.numel())
            else:
                frozen += each.numel() * (width if each.is_floating_point() else each.element_size())
    # a layer that a run is laid over is of another class
    plain = _build(replace(task, brings=False, modules=""), config) if task.kind == "draw" else made
    for name, layer in plain.module.named_modules():
        if is_worth_it(layer) and not _trains(task, f"{name}.weight"):
            linear.append(layer.weight.shape)
    if task.tokens:
        trained.append(task.tokens * json.loads(task.text_config)["hidden_size"])
    return Footprint(
        frozen=frozen,
        trained=4 * sum(trained),
        linear=sum(rows * columns for rows, columns in linear),
        rows=sum(rows for rows, _ in linear),
        layer=max((rows * columns for rows, columns in linear), default=0),
        small=sum(each for each in trained if each < SMALL),
    )


def passes(fake: Callable[[], Any], task: Task, config: dict[str, Any]) -> int:
    """The most bytes beside the weights while ``task`` goes through the network of ``config``.

    ``fake`` makes the mode in which tensors take no memory; with `nullcontext` it is done in earnest.
    """
    made = _build(task, config)
    with fake(), Live() as live:
        dtype = torch.bfloat16 if task.precision == "bf16" else torch.float32
        for each in made.all:
            for layer in each.modules():
                if isinstance(layer, CompactLinear):
                    layer.dtype = dtype
            materialised(each, dtype, task.device, partial(_full_precision, task))
            whole = task.kind == "train" and task.adapts == ""
            each.train(whole)
            if whole:
                _masked(each)
        if made.text is not None and task.tokens:
            _with_rows(made.text, task.tokens)
        if task.checkpointing:
            made.module.enable_gradient_checkpointing()  # type: ignore[operator]
        before = live.now
        live.peak = live.now
        WORK[task.kind](task, made)
        return live.peak - before


def _train(task: Task, made: _Made) -> None:
    """The forward and backward passes of one update, as `training.trainer` makes them."""
    for _ in range(2 if task.pieces else 1):
        with torch.autocast(task.device, torch.bfloat16) if task.autocast else nullcontext():
            loss = _loss(task, made)
        (loss.float().sum() / task.batch).backward()
        del loss


def _loss(task: Task, made: _Made) -> Tensor:
    batch, module = task.batch, made.module
    new = lambda *shape: torch.zeros(shape, device=task.device)  # noqa: E731
    if task.part in ("stage_c", "stage_b"):
        network: Any = module
        config = network.config
        x = new(batch, config.in_channels, task.height, task.width)
        inputs: dict[str, Tensor] = {}
        if made.text is not None:
            length = _length(made.text)
            chunks = max(1, task.positions // length) if task.part == "stage_c" else 1
            ids = torch.zeros(batch * chunks, length, dtype=torch.long, device=task.device)
            states = encode_tokens(made.text, ids, torch.ones_like(ids), 0)
            hidden, pooled = (
                states.hidden.unflatten(0, (batch, chunks)).flatten(1, 2),
                states.pooled[::chunks],
            )
        else:
            pooled = new(batch, 1, config.clip_text_pooled_in_channels)
            hidden = (
                new(batch, task.positions, config.clip_text_in_channels) if task.part == "stage_c" else pooled
            )
        inputs["clip_text_pooled"] = pooled
        if task.part == "stage_c":
            inputs["clip_text"] = hidden
            inputs["clip_img"] = new(batch, 1, config.clip_image_in_channels or 1)
        else:
            patch = config.patch_size
            inputs["effnet"] = new(
                batch, config.effnet_in_channels, task.height // patch, task.width // patch
            )
        wanted = new(*x.shape)
        prediction = network(sample=x, timestep_ratio=new(batch), return_dict=False, **inputs)[0]
        return per_sample_mse(prediction.float(), wanted)
    pictures = new(batch, 3, task.height, task.width)
    if task.part == "stage_a":
        quantised = torch.zeros(batch, dtype=torch.bool, device=task.device)
        decoded, book = module(pictures, quantised)
        absolute = (decoded.float() - pictures).abs().flatten(1).mean(1)
        return per_sample_mse(decoded.float(), pictures) + 0.1 * absolute + 0.25 * book
    if task.part == "compressor":
        decoded = made.previewer(encode(module, pictures))  # type: ignore[misc]
        wanted = nn.functional.interpolate(pictures, size=decoded.shape[-2:], mode="area")
        return per_sample_mse(decoded.float(), wanted)
    decoded = module(new(batch, 16, task.height, task.width)).float()
    return per_sample_mse(decoded, torch.zeros_like(decoded))


@torch.no_grad()
def _draw(task: Task, made: _Made) -> None:
    """One step of sampling, as `sampling.stages` makes it."""
    network: Any = made.module
    config, batch = network.config, task.batch
    new = lambda *shape: torch.zeros(shape, device=task.device)  # noqa: E731
    inputs = {"clip_text_pooled": new(batch, 1, config.clip_text_pooled_in_channels)}
    if task.part == "stage_c":
        inputs["clip_text"] = new(batch, task.positions, config.clip_text_in_channels)
        inputs["clip_img"] = new(batch, 1, config.clip_image_in_channels or 1)
    else:
        sides = (max(1, task.height * 3 // 32), max(1, task.width * 3 // 32))
        inputs["effnet"] = new(batch, config.effnet_in_channels, *sides)
    denoise = guided_network(network, SamplerSettings(cfg=4.0 if task.guided else 1.0), inputs, inputs)
    x = new(batch, config.in_channels, task.height, task.width)
    with torch.autocast(task.device, torch.bfloat16) if task.autocast else nullcontext():
        noise = denoise(x, new(batch))
    clean = x - noise
    x = clean + noise


@torch.no_grad()
def _decode(task: Task, made: _Made) -> None:
    module: Any = made.module
    channels = module.config.latent if task.part == "stage_a" else 16
    x = torch.zeros(task.batch, channels, task.height, task.width, device=task.device)
    picture = module.pictures(x) if task.part == "stage_a" else module(x)
    picture.float().clamp(0, 1)


@torch.no_grad()
def _encode(task: Task, made: _Made) -> None:
    module: Any = made.module
    if task.part == "text":
        ids = torch.zeros(task.batch, _length(module), dtype=torch.long, device=task.device)
        encode_tokens(module, ids, torch.ones_like(ids), 0)
        return
    pictures = torch.zeros(task.batch, 3, task.height, task.width, device=task.device)
    if task.part == "image":
        encode_image(module, pictures)
    elif task.part == "stage_a":
        module.raw(pictures)
    else:
        encode(module, pictures).float()


WORK: dict[str, Callable[[Task, _Made], None]] = {
    "train": _train,
    "draw": _draw,
    "decode": _decode,
    "encode": _encode,
}


def _length(text: Any) -> int:
    return int(text.config.max_position_embeddings)


def _with_rows(text: Any, count: int) -> None:
    """Trainable rows in the embedding of ``text``, as token training has them."""
    table = text.text_model.embeddings.token_embedding
    rows = [Row(name=f"{index}", id=index, new=False) for index in range(count)]
    values = torch.zeros(count, table.embedding_dim, device=table.weight.device)
    text.text_model.embeddings.token_embedding = RowEmbedding(table, rows, values)


class _Masked(nn.Module):
    """What `training.dropout` keeps of a layer of dropout, without its random numbers."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device)) * (1 / (1 - self.p))


def _masked(module: nn.Module) -> None:
    for owner in list(module.modules()):
        for name, layer in list(owner.named_children()):
            if type(layer) is nn.Dropout and layer.p > 0:
                setattr(owner, name, _Masked(layer.p))
