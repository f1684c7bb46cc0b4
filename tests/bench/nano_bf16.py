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
from itertools import pairwise
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
    """The largest error of the latents after one step of Stage C or B, relative to their norm, at every step
    of the sampler's path but the first: out of pure noise the clean estimate divides by a signal of 0.01."""
    import torch

    from cascade_train.diffusion.noise import batch_noise
    from cascade_train.diffusion.samplers import STAGE_C_NOISE, SamplerSettings, sampling_logsnrs
    from cascade_train.diffusion.schedule import time_input
    from cascade_train.diffusion.targets import clean_estimate, noised
    from cascade_train.models import library
    from cascade_train.nano.world import render
    from cascade_train.sampling import stages
    from cascade_train.sampling.conditioning import encode_prompts

    count = len(captions)
    pictures = (
        torch.stack([torch.from_numpy(render("held-out", 5, index)[0]) for index in range(count)]) / 255
    )
    text, semantic = encode_prompts(nano, captions), stages.encode_c(nano, pictures)
    stage_c: Any = library.part(nano, "stage_c")
    image = torch.zeros(count, 1, stage_c.config.clip_image_in_channels)
    given = {
        "stage_c": {"clip_text_pooled": text.pooled, "clip_text": text.hidden, "clip_img": image},
        "stage_b": {"clip_text_pooled": text.pooled, "effnet": semantic},
    }
    worst = 0.0
    for part, clean, steps, shift in (
        ("stage_c", semantic, 20, library.own_shift(nano)),
        ("stage_b", stages.encode_a(nano, pictures) / stages.SCALE, 10, 1.0),
    ):
        noise = batch_noise(range(count), 0, clean.shape[1:], STAGE_C_NOISE)
        levels = sampling_logsnrs(steps, shift)
        for now, then in pairwise(levels[1:]):
            x, stepped = noised(clean, noise, now), []
            for each in (nano, half):
                network: Any = library.part(each, part)  # type: ignore[arg-type]
                alone = SamplerSettings(steps, 1.0, 0.0)
                denoise = stages.guided_network(network, alone, given[part], given[part])
                with torch.no_grad():
                    answer = denoise(x, time_input(now).expand(count))
                stepped.append(noised(clean_estimate(x, answer, now), answer, then))
            worst = max(worst, float((stepped[1] - stepped[0]).norm() / stepped[0].norm()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
