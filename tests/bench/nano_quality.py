"""How well the bundled nano models (or others) draw held-out captions.

With ``--json`` the last line is one object: background, colour, shape, count, size, place, all, psnr (dB) and
judge_shape, the judge's own accuracy on real renderings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="a folder of parts, in place of the bundled models")
    parser.add_argument("--captions", type=int, default=300)
    parser.add_argument("--sheet", type=Path, help="also write a contact sheet of 48 samples here")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from cascade_train.models import library
    from cascade_train.nano import scores

    folder = args.models or library.nano_folder()
    models = library.models_in(folder, name=str(folder))
    began = time.monotonic()

    def tell(done: int, total: int, text: str = "", preview: object = None) -> None:
        print(f"{done}/{total}", file=sys.stderr)

    result = scores.score(models, captions=args.captions, progress=tell)
    if args.sheet:
        scores.contact_sheet(models).save(args.sheet)
    numbers = result.as_json()
    for name, value in numbers.items():
        print(f"{name:<12} {value}")
    print(f"took {time.monotonic() - began:.0f} s; below its goal: {', '.join(result.missed()) or 'nothing'}")
    if args.json:
        print(json.dumps(numbers))
    return 1 if result.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
