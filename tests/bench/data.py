"""How fast samples come: decoding, reading tars at random, warm caches, opening large datasets.

    python tests/bench/data.py [--json] [--quick]

Ratios of one run on this machine, each the median of several rounds on one core. JPEG photographs of about
2 megapixels are made first. The reference way is PIL decode, ToTensor, torchvision's antialiased resize and a
crop on float tensors. A folder of 100 000 files and 1 000 shards with indexes are opened in processes of
their own, twice each, and so is a tenth of them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from cascade_train.data.dataset import open_dataset
from cascade_train.data.folder import index_folder
from cascade_train.data.pack import pack
from cascade_train.data.pixels import cover_size, decode, fit
from cascade_train.data.readers import FolderReader, folder_source, tar_source
from cascade_train.data.spec import REFERENCE_RATIOS, BucketSpec, Dataset, WeightedSource
from cascade_train.nano.world_source import WorldSource

SIZES = ((1632, 1224), (1224, 1632), (1440, 1440), (1920, 1080))


def photograph(width: int, height: int, seed: int) -> bytes:
    """A JPEG with the statistics of a photograph: a 1/f spectrum, edges, grain."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for octave in range(2, 9):
        rows, columns = max(2, height >> octave), max(2, width >> octave)
        noise = rng.normal(0, 1, (rows, columns, 3)).astype(np.float32)
        picture += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) * 2.0 ** (octave * 0.8)
    picture = 128 + picture * (45 / picture.std())
    for _ in range(12):
        corners = rng.integers(0, (width, height), (3, 2)).astype(np.int32)
        cv2.fillConvexPoly(picture, corners, [float(v) for v in rng.integers(0, 255, 3)])
    picture += rng.normal(0, 3, picture.shape)
    out = io.BytesIO()
    Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median process time of ``work``."""
    work()
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def exact_area(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """The mean over each target pixel's area, weighting pixels by their overlap (float64)."""

    def weights(source: int, target: int) -> np.ndarray:
        edges = np.linspace(0, source, target + 1)
        places = np.arange(source)
        overlap = np.minimum(edges[1:, None], places + 1) - np.maximum(edges[:-1, None], places)
        return np.clip(overlap, 0, None) / (source / target)

    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    across = np.tensordot(columns, pixels.astype(np.float64), (1, 1))  # (x, row, channel)
    return np.tensordot(rows, across, (1, 1))


def decoding(folder: Path, rounds: int) -> dict[str, Any]:
    paths = sorted(folder.glob("*.jpg"))
    source = folder_source(folder, True, folder.parent / "index")
    dataset = Dataset((WeightedSource(source),), buckets=BucketSpec(ratios=REFERENCE_RATIOS, crop="center"))
    opened = open_dataset(dataset, multiple=32, native_side=768, cache=folder.parent)
    files = {path.name: path.read_bytes() for path in paths}
    draws = [opened.draws(0, step, 1)[0] for step in range(len(paths))]
    work = [(files[opened.entry(draw.sample).name], opened.entry(draw.sample), draw) for draw in draws]

    def reference() -> None:
        for data, entry, draw in work:
            tensor = F.to_tensor(Image.open(io.BytesIO(data)).convert("RGB"))
            width, height = cover_size(entry.width, entry.height, draw.width, draw.height)
            tensor = F.resize(tensor, [height, width], InterpolationMode.BILINEAR, antialias=True)
            F.center_crop(tensor, [draw.height, draw.width])

    def ours() -> None:
        for data, entry, draw in work:
            need = cover_size(entry.width, entry.height, draw.width, draw.height)
            fit(decode(data, need=need), draw.width, draw.height, draw.crop)

    slow, quick = seconds(reference, rounds), seconds(ours, rounds + 2)
    errors = []
    for data, entry, draw in work:
        need = cover_size(entry.width, entry.height, draw.width, draw.height)
        exact = exact_area(decode(data), *need)
        left, top = (need[0] - draw.width) // 2, (need[1] - draw.height) // 2
        window = exact[top : top + draw.height, left : left + draw.width]
        got = fit(decode(data, need=need), draw.width, draw.height, draw.crop)
        shifts = [
            np.abs(got - exact[top + dy : top + dy + draw.height, left + dx : left + dx + draw.width]).mean()
            for dy in (0, 1)
            for dx in (0, 1)
            if exact[top + dy : top + dy + draw.height, left + dx : left + dx + draw.width].shape
            == window.shape
        ]
        errors.append(min(shifts))  # an odd margin has two centres
    return {
        "decode_ms": 1e3 * quick / len(work),
        "reference_ms": 1e3 * slow / len(work),
        "decode_ratio": slow / quick,
        "area_error_mean": float(np.mean(errors)),
        "area_error_worst": float(np.max(errors)),
    }


def tar_reading(folder: Path, rounds: int) -> dict[str, Any]:
    tar = folder.parent / "photos.tar"
    pack(FolderReader(folder, index_folder(folder, True, folder.parent / "index")), tar)
    from cascade_train.data.readers import open_source

    reader = open_source(tar_source(tar, folder.parent / "index"), folder.parent / "index")
    entries = list(reader.rows())
    repeat = max(1, 400 // len(entries))
    order = np.random.default_rng(0).permutation(len(entries) * repeat) % len(entries)

    def sequence() -> None:
        for _ in range(repeat):
            for entry in sorted(entries, key=lambda item: item.offset):
                reader.read(entry)

    def random() -> None:
        for at in order:
            reader.read(entries[at])

    # turn by turn, so that a busy machine slows both alike; the best of each is least disturbed
    taken: dict[str, list[float]] = {"sequence": [], "random": []}
    for _ in range(2 * rounds + 2):
        for name, work in (("sequence", sequence), ("random", random)):
            begin = time.process_time()
            work()
            taken[name].append(time.process_time() - begin)
    return {"tar_random_over_sequence": min(taken["random"]) / min(taken["sequence"])}


def warm_caches(folder: Path, rounds: int) -> dict[str, Any]:
    """Samples a second that the feed gives from disk, against those that nano's training step takes."""
    from cascade_train.data.caches import flush_all
    from cascade_train.host.headless import HeadlessHost, headless_folders
    from cascade_train.jobs.prepare import with_caches
    from cascade_train.models import library
    from cascade_train.training.feed import LatentFeed, PixelFeed, TextFeed
    from cascade_train.training.run import start
    from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec
    from cascade_train.training.stores import store_for
    from cascade_train.training.trainer import Trainer

    host = HeadlessHost(headless_folders(folder.parent / "out"), "cpu")
    models = library.load_models("nano", host=host)
    sizes = library.geometry(models)
    batch, steps = 16, 12
    plain = Dataset((WeightedSource(WorldSource("captioned", 0, 256)),))
    cached = with_caches(plain, models, latents=True, texts=True, crops=2, ahead=True, host=host)
    flush_all()
    opened = open_dataset(cached, multiple=sizes.size_multiple, native_side=sizes.native_side, host=host)
    device = torch.device("cpu")

    def nothing(*_: Any) -> Any:
        raise AssertionError("a warm cache encodes nothing")

    def feed() -> None:
        # new feeds each time: nothing is remembered in memory, all comes from disk
        latents = LatentFeed(
            PixelFeed(opened), nothing, device, store_for(cached, models, "compressor", host)
        )
        texts = TextFeed(nothing, device, store_for(cached, models, "text", host))
        for step in range(steps):
            draws = opened.draws(0, step, batch)
            latents.batch(draws)
            texts.batch([opened.caption(draw) for draw in draws])

    spec = RunSpec(
        models=models, dataset=cached, target=LoRATarget(), optimizer=OptimizerSpec(), batch_size=batch
    )
    position = start(spec, host)
    trainer = Trainer(position.settings, host)
    from cascade_train.training.spec import Block

    def train() -> None:
        for _ in range(4):
            trainer.advance(Block(1))

    delivered = batch * steps / seconds(feed, rounds)
    taken = batch * 4 / seconds(train, max(2, rounds // 2))
    return {
        "warm_samples_per_second": delivered,
        "trained_samples_per_second": taken,
        "warm_over_training": delivered / taken,
    }


OPENING = """
import json, sys, time
from pathlib import Path
from cascade_train.data.dataset import open_dataset
from cascade_train.data.pixels import open_image
from cascade_train.data.sources import folder_dataset, tars_dataset
from cascade_train.host.headless import HeadlessHost, headless_folders

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # Linux; what getrusage says there begins with the parent's
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

kind, path, out = sys.argv[1:]
host = HeadlessHost(headless_folders(Path(out), Path(path).parent), "cpu")
open_image(SMALLEST)  # what imports take is not counted
before, wall, begin = peak(), time.perf_counter(), time.process_time()
dataset = (folder_dataset(path, recursive=True, host=host) if kind == "folder"
           else tars_dataset(path, shuffle=1, host=host))
opened = open_dataset(dataset, multiple=8, native_side=64, host=host)
taken = time.process_time() - begin, time.perf_counter() - wall
opened.draws(0, 0, 32)
drawn = time.process_time()
for step in range(300):
    opened.draws(0, step, 32)
print(json.dumps({"samples": len(opened), "processor_seconds": taken[0], "seconds": taken[1],
                  "extra_megabytes": peak() - before,
                  "draw_ms": (time.process_time() - drawn) / 300 * 1e3}))
"""


def opening(kind: str, path: Path, out: Path) -> dict[str, Any]:
    """Opening ``path`` in a process of its own: how long, and by how much its memory's peak rises."""
    code = OPENING.replace("SMALLEST", repr(tiny_jpeg()))
    done = subprocess.run(
        [sys.executable, "-c", code, kind, str(path), str(out)], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tiny_jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


def large(folder: Path, files: int, shards: int) -> dict[str, Any]:
    """Opening a folder of ``files`` files, half of them pictures and half captions, and the same packed into
    ``shards`` shards with their indexes; and a tenth of each, to see what grows."""
    out: dict[str, Any] = {}
    host_out = folder.parent / "many out"
    for name, count, tars in (("tenth", files // 20, shards // 10), ("whole", files // 2, shards)):
        root = folder.parent / f"many {name}"
        root.mkdir()
        picture = tiny_jpeg()
        for number in range(count):
            (root / f"{number:06}.jpg").write_bytes(picture)
            (root / f"{number:06}.txt").write_text(f"picture {number}")
        for again in ("first", "again"):
            told = opening("folder", root, host_out)
            out |= {f"folder_{name}_{again}_{key}": value for key, value in told.items()}
        each = 2 * 512 + -(-len(picture) // 512) * 512 + 512  # two headers, the picture, the caption
        reader = FolderReader(root, index_folder(root, True, host_out / "cascade" / "cache" / "index"))
        packed = pack(reader, folder.parent / f"set {name}" / "set.tar", shard_bytes=each * (count // tars))
        for again in ("first", "again"):
            told = opening("tars", packed.shards[0].parent, host_out)
            out |= {f"tars_{name}_{again}_{key}": value for key, value in told.items()}
        out |= {f"folder_{name}_files": 2 * count, f"tars_{name}_shards": len(packed.shards)}
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer photographs, rounds and files")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    rounds = 3 if args.quick else 7
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "photos"
        folder.mkdir()
        for number in range(4 if args.quick else 16):
            (folder / f"{number:03}.jpg").write_bytes(photograph(*SIZES[number % len(SIZES)], number))
            (folder / f"{number:03}.txt").write_text("a photograph")
        for name, part in (
            ("decoding", lambda: decoding(folder, rounds)),
            ("tars", lambda: tar_reading(folder, rounds)),
            ("warm caches", lambda: warm_caches(folder, rounds)),
            ("large datasets", lambda: large(folder, *((10_000, 100) if args.quick else (100_000, 1_000)))),
        ):
            print(f"{name} …", file=sys.stderr, flush=True)
            found = part()
            out.update(found)
            for key, value in found.items():
                print(f"{key:40} {value:,.3f}")
    wanted = {
        "decode_ratio": out["decode_ratio"] >= 3,
        "area_error": out["area_error_worst"] <= 2,
        "tar_random": out["tar_random_over_sequence"] <= 1.1,
        "warm": out["warm_over_training"] >= 20,
        "opening": max(value for name, value in out.items() if name.endswith("processor_seconds")) < 30,
        "memory": not any(value >= 100 for name, value in out.items() if name.endswith("extra_megabytes")),
    }
    for name, holds in wanted.items():
        print(f"{name:40} {'holds' if holds else 'DOES NOT HOLD'}")
    if args.json:
        print(json.dumps({**{k: round(v, 4) for k, v in out.items()}, "holds": wanted}))
    return 0 if all(wanted.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
