"""How near nano in bf16 is to nano in fp32: single-step latents, 64 pictures, the scores of 100 captions.

Some two minutes of one core. With ``--json`` the last line is one object: step (largest relative error),
median and worst (mean absolute difference of a picture of [0, 1]), fp32 and bf16 (share of captions drawn all
right).
The exit code is 1 where one misses its goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

PICTURES, CAPTIONS = 64, 100
GOALS = {"step": 0.02, "median": 0.01, "scores apart": 0.03}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=CAPTIONS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import numpy as np

    from cascade_train.drawing.paper import to_bytes
    from cascade_train.models import library
    from cascade_train.nano.judge import judge, verdict
    from cascade_train.nano.world import parse, scene
    from cascade_train.sampling.pipeline import text_to_image

    began = time.monotonic()
    nano = library.models_in(library.nano_folder(), name="nano")
    half = replace(nano, precision="bf16")
    captions = [scene("held-out", 5, index)[1] for index in range(args.captions)]
    drawn = {
        each.precision: text_to_image(each, captions, seeds=range(len(captions)), preview=False)
        for each in (nano, half)
    }
    apart = (drawn["fp32"] - drawn["bf16"]).abs().flatten(1).mean(1)[:PICTURES]
    numbers = {
        "step": step_error(nano, half, captions[:8]),
        "median": float(apart.median()),
        "worst": float(apart.max()),
    }
    for precision, pictures in drawn.items():
        right = [verdict(judge(p), parse(c))["all"] for p, c in zip(to_bytes(pictures), captions)]
        numbers[precision] = float(np.mean(right))
    numbers["scores apart"] = abs(numbers["fp32"] - numbers["bf16"])
    missed = [name for name, goal in GOALS.items() if numbers[name] > goal + 1e-9]
    for name, value in numbers.items():
        print(f"{name:<14} {value:.4f}")
    print(f"took {time.monotonic() - began:.0f} s; misses its goal: {', '.join(missed) or 'nothing'}")
    if args.json:
        print(json.dumps(numbers))
    return 1 if missed else 0


def step_error(nano: Any, half: Any, captions: list[str]) -> float:
    """The largest error of one answer of Stage C or B relative to its norm, from nearly clean to noise."""
    import torch

    from cascade_train.diffusion.noise import batch_noise
    from cascade_train.diffusion.samplers import STAGE_C_NOISE
    from cascade_train.diffusion.schedule import logsnr, time_input
    from cascade_train.diffusion.targets import noised
    from cascade_train.models import library
    from cascade_train.nano.world import render
    from cascade_train.sampling import stages
    from cascade_train.sampling.conditioning import encode_prompts

    count = len(captions)
    pictures = torch.stack([torch.from_numpy(render("held-out", 5, index)[0]) for index in range(count)])
    text, semantic = encode_prompts(nano, captions), stages.encode_c(nano, pictures.float() / 255)
    worst = 0.0
    for part, clean in (
        ("stage_c", semantic),
        ("stage_b", stages.encode_a(nano, pictures.float() / 255) / 0.43),
    ):
        noise = batch_noise(range(count), 0, clean.shape[1:], STAGE_C_NOISE)
        for time_ in (0.02, 0.05, 0.2, 0.5, 0.8, 0.99):
            level = logsnr(torch.full((count,), time_))
            x, answers = noised(clean, noise, level), []
            for each in (nano, half):
                network: Any = library.part(each, part)  # type: ignore[arg-type]
                kind = network.embedding[1].weight.dtype
                inputs = {"clip_text_pooled": text.pooled}
                if part == "stage_c":
                    image = torch.zeros(count, 1, network.config.clip_image_in_channels)
                    inputs |= {"clip_text": text.hidden, "clip_img": image}
                else:
                    inputs["effnet"] = semantic
                cast = {name: value.to(kind) for name, value in inputs.items()}
                with torch.no_grad():
                    made = network(x.to(kind), timestep_ratio=time_input(level), return_dict=False, **cast)[0]
                answers.append(made.float())
            worst = max(worst, float((answers[1] - answers[0]).norm() / answers[0].norm()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
