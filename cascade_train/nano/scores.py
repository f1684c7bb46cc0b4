"""How well models draw nano's world: captions of combinations that training never showed, each judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cascade_train.host.progress import Progress, silent
from cascade_train.models.spec import ModelsSpec
from cascade_train.nano.judge import judge, verdict
from cascade_train.nano.world import draw_scene, parse, render, scene

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS = 300
RECONSTRUCTED = 64
"""Pictures that are reconstructed for `Scores.psnr`."""

SEED = 77
GOALS = {"background": 0.97, "colour": 0.95, "shape": 0.95, "count": 0.95, "all": 0.92, "psnr": 26.0}
"""What nano has to reach."""


@dataclass(frozen=True)
class Scores:
    """Shares of pictures that are right in each attribute and in all at once; ``psnr`` in dB of held-out
    pictures through compressor, Stage B and Stage A; ``judge_…`` what the judge says of real renderings of
    the same captions."""

    background: float
    colour: float
    shape: float
    count: float
    size: float
    place: float
    all: float
    psnr: float
    judge_shape: float
    judge_all: float
    captions: int

    def as_json(self) -> dict[str, Any]:
        return {
            key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()
        }

    def missed(self) -> list[str]:
        """The goals that are not reached, as short texts."""
        return [
            f"{name} {getattr(self, name):.3f} < {goal}"
            for name, goal in GOALS.items()
            if getattr(self, name) < goal
        ]


def score(
    models: ModelsSpec,
    *,
    captions: int = CAPTIONS,
    pictures: int = RECONSTRUCTED,
    progress: Progress = silent,
) -> Scores:
    """Score ``models`` with default sampling settings, Stage C → B → A."""
    import numpy as np
    import torch

    from cascade_train.drawing.paper import to_bytes
    from cascade_train.models.stage_a import psnr
    from cascade_train.sampling.pipeline import reconstruct, text_to_image

    wanted = [scene("held-out", SEED, index) for index in range(captions)]
    totals: dict[str, int] = {}
    real = {"shape": 0, "all": 0}
    batch = 50
    for start in range(0, captions, batch):
        part = wanted[start : start + batch]
        drawn = text_to_image(
            models,
            [caption for _, caption in part],
            seeds=[SEED * 1000 + start + index for index in range(len(part))],
            preview=False,
        )
        for picture, (chosen, caption) in zip(to_bytes(drawn), part):
            answer = verdict(judge(picture), parse(caption))
            for name, right in answer.items():
                totals[name] = totals.get(name, 0) + right
            truth = verdict(judge(draw_scene(chosen)), parse(caption))
            real = {name: count + truth[name] for name, count in real.items()}
        progress(min(start + batch, captions), captions)
    shown = np.stack([render("held-out", SEED + 1, index)[0] for index in range(pictures)])
    images = torch.from_numpy(shown).float() / 255
    again = reconstruct(models, images)
    quality = float(psnr(again, images).mean())
    shares = {name: count / captions for name, count in totals.items()}
    return Scores(
        **shares,
        psnr=quality,
        judge_shape=real["shape"] / captions,
        judge_all=real["all"] / captions,
        captions=captions,
    )


def contact_sheet(models: ModelsSpec, count: int = 48) -> Image.Image:
    """``count`` samples of held-out captions, eight a row, each with its caption."""
    from cascade_train.drawing.cards import caption_card
    from cascade_train.drawing.paper import tiled, to_pictures
    from cascade_train.sampling.pipeline import text_to_image

    captions = [scene("held-out", SEED + 2, index)[1] for index in range(count)]
    drawn = to_pictures(text_to_image(models, captions, seeds=list(range(count)), preview=False))
    cards = [caption_card(picture, caption) for picture, caption in zip(drawn, captions)]
    return tiled(cards, 8, paper=(255, 255, 255))
