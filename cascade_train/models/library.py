"""Which files make up a Stable Cascade, and the modules, loaded once and shared (`models.owner`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.errors import CascadeError
from cascade_train.models import finding, owner, reading
from cascade_train.models.finding import MODEL_FOLDERS, OFFICIAL
from cascade_train.models.geometry import Geometry, geometry
from cascade_train.models.spec import (
    AUTO,
    Applied,
    Captions,
    Compact,
    ModelsSpec,
    Part,
    PartFile,
    Precision,
    Variant,
)

if TYPE_CHECKING:
    from torch import nn

    from cascade_train.host.base import Host

NANO = "nano"
FILES = "files"
SOURCES = (NANO, FILES)
"""What `load_models` takes: the bundled nano models, or files in the host's model folders."""

REQUIRED: tuple[Part, ...] = tuple(part for part in OFFICIAL if part not in finding.OPTIONAL)


def nano_folder() -> Path:
    """The folder of the bundled nano models."""
    return Path(__file__).resolve().parent / NANO


def load_models(
    source: str = NANO,
    *,
    host: Host,
    variant: Variant = "full",
    precision: Precision | Literal["auto"] = "fp32",
    files: Mapping[Part, str] | None = None,
    compact: Compact = "",
    offload: bool = False,
    captions: Captions = "cut",
) -> ModelsSpec:
    """Describe a Stable Cascade; files are found and identified, nothing is loaded.

    Args:
        source: ``nano`` (or empty) for the bundled models, ``files`` for files of the host.
        variant: which official Stages B and C to look for, when their names are not given.
        precision: what the modules are held in; training keeps its own fp32 copies. ``auto`` is fp32 for
            nano, and for files what `suited` says.
        files: file (or, for text and image, folder) names by part, as they lie in the host's model folders
            or as paths that may be read. Parts left out are looked for by their official names.
        compact, offload, captions: see `ModelsSpec`.

    Raises:
        CascadeError: a part is not found, or a file is not of its part. All missing parts are named at once.
    """
    if source in ("", NANO):
        bundled = models_in(nano_folder(), name=NANO, precision="fp32" if precision == AUTO else precision)  # type: ignore[arg-type]
        return replace(bundled, compact=compact, offload=offload, captions=captions)
    if source != FILES:
        raise CascadeError(f"there are no models called '{source}'", fix=f"One of {', '.join(SOURCES)}")
    found: list[PartFile] = []
    missing: list[str] = []
    for part in OFFICIAL:
        given = (files or {}).get(part, "")
        try:
            path = finding.named(part, given, host) if given else finding.looked_for(part, variant, host)
            file = None if path is None else _part_file(part, path)
        except CascadeError as error:
            raise CascadeError(error.what, where=error.where, fix=error.fix, typed=(part, given)) from error
        if file is not None:
            found.append(file)
        elif part in REQUIRED:
            names = OFFICIAL[part].get(variant) or OFFICIAL[part].get("", ())
            missing.append(f"{part} ({names[0]} in {MODEL_FOLDERS[part][0]})")
    if missing:
        raise CascadeError(
            f"files of Stable Cascade are missing: {', '.join(missing)}",
            fix="Put them into ComfyUI's model folders, name them, or use the bundled nano",
        )
    _fit(found)
    if precision == AUTO:
        precision = suited(host.device)
    return ModelsSpec(
        name=f"Stable Cascade {variant}",
        parts=tuple(found),
        precision=precision,  # type: ignore[arg-type]
        compact=compact,
        offload=offload,
        captions=captions,
    )


def suited(device: str) -> Precision:
    """What full-size models are best held in on ``device``: bf16 where a GPU computes in it, else fp32.

    A GPU without it, such as one of before 2020, would take bf16 apart in fp32; a CPU is often slower in it.
    """
    if not device.startswith("cuda"):
        return "fp32"
    import torch

    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def models_in(folder: Path, *, name: str, precision: Precision = "fp32") -> ModelsSpec:
    """The models whose parts lie in ``folder`` as ``<part>.safetensors``, and ``text`` as a folder."""
    parts = []
    for part in OFFICIAL:
        path = folder / part if part in ("text", "image") else folder / f"{part}.safetensors"
        if path.exists():
            parts.append(_part_file(part, path, ""))  # our own layout, of which some may be still to come
    if not parts:
        raise CascadeError(
            "there are no models in this folder",
            where=str(folder),
            fix="Install the package with its data files, or run: cascade-train nano make",
        )
    return ModelsSpec(name=name, parts=tuple(parts), precision=precision)


def has(spec: ModelsSpec, part: Part) -> bool:
    """Whether the models include ``part``."""
    return any(file.part == part for file in spec.parts)


def part_file(spec: ModelsSpec, part: Part) -> PartFile:
    """The file of ``part``; CascadeError when the models have none."""
    for file in spec.parts:
        if file.part == part:
            return file
    raise CascadeError(
        f"the models '{spec.name}' have no {part}", fix="Load them with that part, or leave out what needs it"
    )


SHIFT = "cascade_train.shift"
"""In the metadata of a Stage C: the schedule shift that it draws best with."""
USUAL_SHIFT = 2.0
"""That of the official models, as ComfyUI samples them."""


def own_shift(spec: ModelsSpec) -> float:
    """The schedule shift that Stage C of the models draws best with."""
    try:
        return float(reading.part_headers(part_file(spec, "stage_c"))[1].get(SHIFT, USUAL_SHIFT))
    except ValueError:
        return USUAL_SHIFT


def part(spec: ModelsSpec, part: Part, device: str = "cpu") -> nn.Module:
    """The module of ``part``, in eval mode and without gradients, on ``device``.

    It is shared: never change it, train a twin or a copy. ``text`` has its tokenizer as ``module.tokenizer``.
    Runs applied to the models are laid over a twin. It may leave the device as soon as another part needs the
    room: compute with it inside `use`, or ask for it again.

    Raises:
        CascadeError: the models lack the part, or its file is broken.
    """
    return _held(spec, part, device)[1]


@contextmanager
def use(spec: ModelsSpec, part: Part, device: str = "cpu") -> Iterator[Any]:
    """What `part` gives, which stays on ``device`` while the block runs. Raises as it does."""
    base, module = _held(spec, part, device)
    with owner.using(base, device):
        yield module


@contextmanager
def in_place(spec: ModelsSpec, parts: Sequence[Part], device: str) -> Iterator[None]:
    """Keep ``parts`` on ``device`` while the block runs, for twins of them."""
    with ExitStack() as stack:
        for each in parts:
            stack.enter_context(owner.using(_held(spec, each, device)[0], device))
        yield


def ask_for_room(spec: ModelsSpec, parts: Sequence[Part], host: Host, work: int = 0) -> None:
    """Let the host unload its own models where the largest of ``parts`` does not fit beside them, with
    ``work`` bytes of activations for one picture.

    ComfyUI keeps what it used last on the GPU, outside of our accounting.
    """
    device = str(host.device)
    if device == "cpu":
        return
    sizes = [
        _bytes(file, spec.precision)
        for file in spec.parts
        if file.part in parts and not owner.lies_on((*_name(spec, file), ()), device)
    ]
    if (sizes or work) and owner.free_bytes(device) < max(sizes, default=0) + work:
        host.make_room()


def own_twin(spec: ModelsSpec, part: Part, device: str = "cpu") -> nn.Module:
    """A `owner.twin` of `part`, to put adapters into: its parameters are shared and stay frozen. What it
    computes with, `in_place` keeps on the device."""
    import torch

    with torch.inference_mode(False), owner.LOCK:
        base, module = _held(spec, part, device)
        own = owner.twin(module)
        base.lent.add(own)
        return own


def own_copy(spec: ModelsSpec, part: Part) -> nn.Module:
    """A copy of `part` on the CPU, to be trained; nothing of it is kept for others."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        file = part_file(spec, part)
        plain = replace(spec, compact="", offload=False)
        held = owner.held((*_name(plain, file), ()))
        module = copy.deepcopy(held.module).to("cpu") if held is not None else _loaded(spec, file)
        for run in _touching(spec, part):
            from cascade_train.models import applied

            module = applied.merged(module, part, run)
        return module


def forget() -> None:
    """Drop every loaded part that nobody else holds."""
    owner.forget()


TWINS = 3
"""Of each part, how many ways of laying runs over it are kept ready, beside the base itself."""


def _name(spec: ModelsSpec, file: PartFile) -> tuple[Any, ...]:
    if spec.makes_compact(file.part):
        return file.part, file.content, spec.precision, spec.compact, spec.offload
    return file.part, file.content, spec.precision


def _base(
    spec: ModelsSpec, file: PartFile, runs: Sequence[Applied], device: str
) -> tuple[owner.Base, Sequence[Applied]]:
    """The base of a part, and which of ``runs`` are to be laid over it.

    A run that trained all weights leaves nothing of the file's to share: the part as it made it is a base.
    """
    import torch

    from cascade_train.models import applied
    from cascade_train.models.compact import compacted

    own = max((number for number, run in enumerate(runs, 1) if applied.kind_of(run) == "full"), default=0)
    name = (*_name(spec, file), tuple(run.key for run in runs[:own]))

    def load(where: str) -> nn.Module:
        module = _loaded(spec, file, where)
        for run in runs[:own]:
            module = applied.merged(module, file.part, run)
        with torch.inference_mode(False), torch.no_grad():
            return compacted(module, file.part, spec)

    straight = not own and not spec.makes_compact(file.part)
    return owner.get(name, file.part, device, load, _bytes(file, spec.precision), straight), runs[own:]


def _held(spec: ModelsSpec, part_name: Part, device: str) -> tuple[owner.Base, nn.Module]:
    """The base of a part, and the module that has the spec's runs laid over it."""
    import torch

    from cascade_train.models import applied

    file = part_file(spec, part_name)
    with owner.LOCK:
        base, runs = _base(spec, file, _touching(spec, part_name), str(device))
        if not runs:
            return base, base.module
        key = tuple(run.key for run in runs)
        module = base.twins.pop(key, None)
        if module is None:
            # ordinary tensors, whatever mode the caller is in
            with torch.inference_mode(False), torch.no_grad():
                module = base.module
                for run in runs:
                    module = applied.lay_over(module, part_name, run)
                module = module.to(device).eval().requires_grad_(False)
        base.twins[key] = module  # at the end, as the newest
        while len(base.twins) > TWINS:
            del base.twins[next(iter(base.twins))]
        return base, module


def _touching(spec: ModelsSpec, part_name: Part) -> tuple[Applied, ...]:
    """The applied runs that change ``part_name``; the other parts are shared with the models as they were."""
    if not spec.applied:
        return ()
    from cascade_train.models import applied

    return tuple(run for run in spec.applied if applied.touches(run, part_name))


def _loaded(spec: ModelsSpec, file: PartFile, device: str = "cpu") -> nn.Module:
    import torch

    from cascade_train.models import build

    # ordinary tensors, whatever mode the caller is in: inference tensors could never be trained on a copy
    with torch.inference_mode(False), torch.no_grad():
        dtype = torch.bfloat16 if spec.precision == "bf16" else torch.float32
        return build.load(file.part, Path(file.path), dtype, prefix=file.prefix, device=device)


def _bytes(file: PartFile, precision: Precision) -> int:
    """About how many bytes a part takes in ``precision``; at most, for a file of half precision."""
    path = Path(file.path)
    try:
        stored = sum(each.stat().st_size for each in reading.files_of(path))
    except (OSError, CascadeError):
        return 0
    return stored if precision == "bf16" else 2 * stored


def _part_file(part_name: Part, path: Path, prefix: str | None = None) -> PartFile:
    """``path`` as the file of a part; without a ``prefix`` it is looked at, refused if it is another's."""
    if prefix is None:
        prefix = reading.prefix_in(part_name, path)
    return PartFile(part_name, _content(part_name, str(path), prefix, _stamp(path)), str(path), prefix)


def _fit(files: Sequence[PartFile]) -> None:
    """Raises a CascadeError where encoders are not those that Stage C takes, or there is no tokenizer."""
    from cascade_train.models import build, clip

    described = {file.part: build.described(file)[0] for file in files}
    clip.tokenizer_place(Path(next(file.path for file in files if file.part == "text")))
    for file in files:
        wanted, theirs = _WIDTHS_OF_ENCODERS.get(file.part, ("", ""))
        width, needed = described[file.part].get(theirs), described["stage_c"].get(wanted)
        if width and needed and width != needed:
            raise CascadeError(
                f"the {file.part} encoder gives {width} channels and Stage C takes {needed}",
                where=file.path,
                fix="Stable Cascade uses CLIP ViT-bigG-14 for text and CLIP ViT-L-14 for pictures",
            )


_WIDTHS_OF_ENCODERS: dict[Part, tuple[str, str]] = {
    "text": ("clip_text_in_channels", "hidden_size"),
    "image": ("clip_image_in_channels", "projection_dim"),
}
"""What Stage C's configuration calls a width, and what the encoder's does."""


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)


@lru_cache(maxsize=256)
def _content(part_name: Part, path: str, prefix: str, _stamp: object) -> str:
    return reading.content_id(PartFile(part_name, "", path, prefix))


__all__ = [
    "FILES",
    "MODEL_FOLDERS",
    "NANO",
    "OFFICIAL",
    "REQUIRED",
    "SOURCES",
    "Geometry",
    "ask_for_room",
    "forget",
    "geometry",
    "has",
    "in_place",
    "load_models",
    "models_in",
    "nano_folder",
    "own_copy",
    "own_shift",
    "own_twin",
    "part",
    "part_file",
    "suited",
    "use",
]
