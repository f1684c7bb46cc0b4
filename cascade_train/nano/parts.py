"""nano's files: the start that only has words, and what each finished stage adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.files import write_text
from cascade_train.models import build, library, starts, weights
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.nano import widths
from cascade_train.nano.calibrate import unit_compressor, unit_stage_a
from cascade_train.nano.recipe import INIT, RESULT_PARTS, Recipe, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cascade_train.training.spec import Position


SHIFT = "4"
"""The schedule shift that nano's Stage C draws best with: of 1, 2, 3, 4 and 6, on captions that are not those
of the scores."""


def write_start(folder: Path, of: Recipe) -> ModelsSpec:
    """The models before any training: a tokenizer and the text encoder, which is never trained."""
    text = folder / "text"
    if not (text / "model.safetensors").is_file():
        widths.write_tokenizer(text)
        only_words = library.models_in(folder, name="nano start")
        write_part(folder, "text", starts.initial("text", INIT, of.config, of.seed, only_words))
    return library.models_in(folder, name="nano start")


def write_part(folder: Path, part: Part, module: nn.Module) -> None:
    """Store ``module`` in ``folder`` as fp16, where `library.models_in` looks for it."""
    if part == "text":
        text = folder / "text"
        widths.write_tokenizer(text)
        sizes = {"native_side": widths.NATIVE_SIDE, "image_width": widths.IMAGE_WIDTH}
        config = {**widths.config("text"), "cascade_geometry": sizes}
        weights.write_tensors(text / "model.safetensors", module.state_dict(), half=True)
        write_text(text / "config.json", json.dumps(config, indent=2) + "\n")
        return
    about = {library.SHIFT: SHIFT} if part == "stage_c" else {}
    build.save(part, module, folder / f"{part}.safetensors", half=True, metadata=about)


def write_result(folder: Path, stage: Stage, position: Position, of: Recipe) -> None:
    """Store the parts that the run of ``stage`` has made by ``position``."""
    from cascade_train.training.run import trained

    tensors = trained(position).tensors
    modules: dict[str, nn.Module] = {}
    for part in RESULT_PARTS[stage]:
        module = starts.initial(part, INIT, of.config, of.seed, position.spec.models)  # type: ignore[arg-type]
        own = {key[len(part) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{part}.")}
        module.load_state_dict(own)
        modules[part] = module.eval().requires_grad_(False)
    if stage == "compressor":
        unit_compressor(modules["compressor"], modules["previewer"], _pictures("captioned", of))
    elif stage == "stage_a":
        unit_stage_a(modules["stage_a"], _pictures("rich", of))
    elif stage.startswith("stage_b"):
        forget_text(modules["stage_b"], position.spec.models)
    for part, module in modules.items():
        write_part(folder, part, module)  # type: ignore[arg-type]


def _pictures(kind: str, of: Recipe) -> Tensor:
    """Pictures (N, 3, 64, 64) in [0, 1] that no stage is trained on."""
    import numpy as np
    import torch

    from cascade_train.nano.world import render

    count = min(1024, of.captions)
    drawn = np.stack([render(kind, of.seed + 9, index)[0] for index in range(count)])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255


def forget_text(stage_b: nn.Module, models: ModelsSpec) -> None:
    """Let Stage B give for every text what it gives for the empty one.

    It was trained with empty captions alone, so the vectors of other texts would be strange to it.
    """
    import torch

    from cascade_train.models.text import encode_text

    text = library.part(models, "text")
    empty = encode_text(text, text.tokenizer, [""]).pooled[0, 0]
    mapper = stage_b.clip_txt_pooled_mapper
    with torch.no_grad():
        mapper.bias.copy_(mapper(empty))  # type: ignore[union-attr, operator]
        mapper.weight.zero_()  # type: ignore[union-attr, operator]
