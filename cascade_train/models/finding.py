"""Finding the files of a Stable Cascade in a host's model folders, by what they hold, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.host.base import lies_in, slashed
from cascade_train.models import reading
from cascade_train.models.recognise import NAMES, FoundPart, parts_in
from cascade_train.models.spec import Part

if TYPE_CHECKING:
    from cascade_train.host.base import Folders, Host

OFFICIAL: dict[Part, dict[str, tuple[str, ...]]] = {
    "stage_c": {
        "full": ("stage_c_bf16.safetensors", "stage_c.safetensors"),
        "lite": ("stage_c_lite_bf16.safetensors", "stage_c_lite.safetensors"),
    },
    "stage_b": {
        "full": ("stage_b_bf16.safetensors", "stage_b.safetensors"),
        "lite": ("stage_b_lite_bf16.safetensors", "stage_b_lite.safetensors"),
    },
    "stage_a": {"": ("stage_a.safetensors",)},
    "compressor": {"": ("effnet_encoder.safetensors",)},
    "previewer": {"": ("previewer.safetensors",)},
    "text": {"": ("stable_cascade_text_encoder", "stable-cascade/text_encoder", "text_encoder")},
    "image": {"": ("stable_cascade_image_encoder", "stable-cascade/image_encoder", "image_encoder")},
}
"""Names looked for first in the host's model folders when none is given."""

MODEL_FOLDERS: dict[Part, tuple[str, ...]] = {
    "stage_c": ("diffusion_models", "unet", "checkpoints", "diffusers"),
    "stage_b": ("diffusion_models", "unet", "checkpoints", "diffusers"),
    "stage_a": ("vae", "checkpoints", "diffusers"),
    "compressor": ("vae", "controlnet", "checkpoints"),
    "previewer": ("vae", "vae_approx", "checkpoints"),
    "text": ("text_encoders", "clip", "checkpoints", "diffusers"),
    "image": ("clip_vision", "checkpoints", "diffusers"),
}
"""ComfyUI's folder names that each part is looked for in, in order."""

OPTIONAL: tuple[Part, ...] = ("previewer", "image")
"""Parts that a Stable Cascade can do without."""

_DEPTH = 3
"""Folders below a model folder that are looked into."""

_MARKS = (
    b"clf.1.weight",
    b"vquantizer.",
    b"mapper.0.weight",
    b"blocks.2.running_mean",
    b'"text_model.',
    b'"text_encoder.',
    b'"clip_g.',
    b'"transformer.',
    b'"vision_model.',
    b'"clip_l_vision.',
    b'"visual.',
    b'"class_embedding"',
)
"""One of these is in the header of every file that holds a part; other headers need not be parsed.
Checkpoints of Stable Diffusion have ``text_model.`` too, but no name that begins so."""

_WIDTHS = {
    ("stage_c", "full"): ("down_blocks.0.0.depthwise.weight", 2048),
    ("stage_c", "lite"): ("down_blocks.0.0.depthwise.weight", 1536),
    ("stage_b", "full"): ("down_blocks.1.0.depthwise.weight", 640),
    ("stage_b", "lite"): ("down_blocks.1.0.depthwise.weight", 576),
}
"""What tells the official sizes apart."""


def named(part: Part, name: str, host: Host) -> Path:
    """The file or folder called ``name`` in the host's folders for ``part``, or a path that may be read.

    Raises:
        CascadeError: there is none.
    """
    for folder in MODEL_FOLDERS[part]:
        for root in host.folders.models.get(folder, ()):
            candidate = root / slashed(name)
            if candidate.exists() and lies_in(candidate, root) and allowed(candidate, host.folders):
                return candidate
    return host.folders.resolve_read(name, what=f"{part} file")


def allowed(path: Path, folders: Folders) -> bool:
    """Whether what ``path`` consists of may be read, wherever links lead: the files in a folder may be links
    themselves, as in the cache of the Hugging Face hub."""
    if folders.follow_links:
        return True
    try:
        return all(folders.may_read(each) for each in (path, *reading.files_of(path)))
    except CascadeError:  # no model: told by who reads it
        return folders.may_read(path)


def looked_for(part: Part, variant: str, host: Host) -> Path | None:
    """Where ``part`` is: under an official name, else the one file that holds it, of ``variant`` where it has
    several sizes.

    Of several that hold a part that can be done without, the first one.

    Raises:
        CascadeError: several files hold it, or it is a link that must not be followed.
    """
    names = OFFICIAL[part].get(variant) or OFFICIAL[part].get("", ())
    for folder in MODEL_FOLDERS[part]:
        for root in host.folders.models.get(folder, ()):
            for name in names:
                for place in (root, root / "stable-cascade", root / "Stable-Cascade"):
                    if (place / name).exists():
                        # named: where it is a link that must not be followed, that is said
                        return named(part, (place / name).relative_to(root).as_posix(), host)
    fitting = [path for path in dict.fromkeys(holding(part, host)) if _of_variant(part, variant, path)]
    # a file of its own is meant before a checkpoint that has the part too
    own = [path for path in fitting if _parts(path) == (FoundPart(part, ""),)] or fitting
    if len(own) > 1 and part in OPTIONAL:
        return own[0]
    if len(own) > 1:
        raise CascadeError(
            f"{len(own)} files hold {NAMES[part]}: {', '.join(path.name for path in own[:5])}",
            fix="Choose one in Load Stable Cascade",
        )
    return own[0] if own else None


def holding(part: Part, host: Host) -> Iterator[Path]:
    """Every file and folder in the host's folders for ``part`` that holds it, sorted in each folder."""
    for _, path in listed(part, host):
        yield path


def listed(part: Part, host: Host) -> Iterator[tuple[str, Path]]:
    """`holding` with the names that they are chosen by: relative to the model folder."""
    roots = [root for folder in MODEL_FOLDERS[part] for root in host.folders.models.get(folder, ())]
    for root in dict.fromkeys(roots):  # ComfyUI has two names for some folders
        for path in _candidates(root, host.folders):
            if any(found.part == part for found in _parts(path)):
                yield path.relative_to(root).as_posix(), path


def _candidates(root: Path, folders: Folders) -> list[Path]:
    """Single files, and folders in Hugging Face layout, whose files are no candidates of their own; of those
    that may be read."""
    found: set[Path] = set()
    walked: set[str] = set()
    for place, inner, names in os.walk(root, followlinks=True):
        here = Path(place)
        real = os.path.realpath(place)
        if real in walked or not (folders.follow_links or folders.may_read(here)):
            inner.clear()  # a circle of links, or one that leads out
            continue
        walked.add(real)
        inner.sort()
        if len(here.relative_to(root).parts) >= _DEPTH - 1:
            inner.clear()
        files = [name for name in names if name.endswith(".safetensors")]
        if files and here != root and "config.json" in names:
            found.add(here)
        else:
            found.update(here / name for name in files)
    # the folders were asked about already: of the files, links alone lead elsewhere
    return sorted(
        path for path in found if not (path.is_symlink() or path.is_dir()) or allowed(path, folders)
    )


def _parts(path: Path) -> tuple[FoundPart, ...]:
    try:
        files = reading.files_of(path)
        return _found(
            str(path), tuple((str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in files)
        )
    except (OSError, CascadeError):
        return ()


@lru_cache(maxsize=4096)
def _found(path: str, stamps: tuple[tuple[str, int, int], ...]) -> tuple[FoundPart, ...]:
    if not any(_may_hold(Path(file)) for file, _, _ in stamps):
        return ()
    shapes, metadata = reading.read_headers(Path(path))
    said = metadata.get("part")
    return tuple(each for each in parts_in(shapes) if said in (None, each.part))


def _may_hold(path: Path) -> bool:
    with path.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        start = handle.read(min(size, 32 << 20))
    return any(mark in start for mark in _MARKS)


def _of_variant(part: Part, variant: str, path: Path) -> bool:
    """Whether the file does not hold the other official size; models of sizes of their own are of any."""
    others = [rule for (name, size), rule in _WIDTHS.items() if name == part and size != variant]
    shapes, _ = reading.read_headers(path)
    prefix = next(found.prefix for found in _parts(path) if found.part == part)
    return not any(shapes.get(prefix + name, (0,))[0] == width for name, width in others)
