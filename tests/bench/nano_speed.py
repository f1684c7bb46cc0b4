"""How fast nano is: loading after torch, and 16 pictures text → C (20 steps) → B (10) → A on two threads."""

from __future__ import annotations

import argparse
import json
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    began = time.perf_counter()
    from cascade_train.models import library

    models = library.models_in(library.nano_folder(), name="nano")
    library.part(models, "text")
    library.part(models, "stage_c")
    libraries = time.perf_counter() - began
    library.forget()
    began = time.perf_counter()
    for file in models.parts:
        library.part(models, file.part)
    loading = time.perf_counter() - began
    from cascade_train.sampling.pipeline import text_to_image

    captions = ["a large red star on a navy background"] * 16
    text_to_image(models, captions[:1], seeds=[0], steps_c=1, steps_b=1, preview=False)
    began = time.perf_counter()
    text_to_image(models, captions, seeds=list(range(16)), preview=False)
    drawing = time.perf_counter() - began
    numbers = {
        "first_load_with_libraries": round(libraries, 3),
        "load": round(loading, 3),
        "sixteen_pictures": round(drawing, 3),
        "threads": args.threads,
    }
    for name, value in numbers.items():
        print(f"{name:<28} {value}")
    if args.json:
        print(json.dumps(numbers))
    return 0 if loading < 1 and drawing < 6 else 1


if __name__ == "__main__":
    sys.exit(main())
