"""Starting weights for parts that are trained from nothing, by the name of an initialisation.

``random`` is the library's own under a seed. Others register themselves (`register`) when their module is
imported. torch is imported only where it computes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec, Part

if TYPE_CHECKING:
    from torch import nn

Start = Callable[[Part, "nn.Module"], None]
"""Changes a part that has just been built by the library, in place; torch's random numbers are seeded."""

Sizes = Callable[[Part], Mapping[str, Any]]
"""The configuration of a part."""

_STARTS: dict[str, tuple[Start, str]] = {}
_SIZES: dict[str, Sizes] = {}


def register(init: str, start: Start, config: str = "") -> None:
    """Let ``init`` name ``start`` from now on; ``config`` is what it builds where none is given."""
    _STARTS[init] = start, config


def register_sizes(config: str, sizes: Sizes) -> None:
    """Let ``config`` name the configurations ``sizes`` from now on."""
    _SIZES[config] = sizes


def initial(part: Part, init: str, config: str, seed: int, models: ModelsSpec | None) -> nn.Module:
    """``part`` before its first step, fp32 on the CPU: a pure function of the arguments.

    Args:
        init: the name of an initialisation, such as ``random``.
        config: the configuration as JSON, or the name of registered ones; empty for those of ``init``.
        models: where the text encoder's tokenizer comes from; other parts need none.

    Raises:
        CascadeError: an unknown ``init`` or a configuration that cannot be read.
    """
    import torch

    from cascade_train.models import build, library

    if init not in _STARTS:
        raise CascadeError(f"there is no initialisation '{init}'", fix=f"One of {', '.join(sorted(_STARTS))}")
    start, usual = _STARTS[init]
    settings = _settings(part, config or usual)
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed_of(seed, part))
        module = build.build(part, settings)
        start(part, module)
        if part == "text":
            assert models is not None
            from cascade_train.models import clip

            module.tokenizer = clip.load_tokenizer(Path(library.part_file(models, "text").path))
        if part in ("stage_a", "compressor", "previewer"):
            # up to twice as fast on a CPU; values and names are the same
            module = module.to(memory_format=torch.channels_last)
        return module.float()


def library_start(part: Part, module: nn.Module) -> None:
    """The initialisation ``random``: what the library builds, with Stage A's blocks at a gain of 1.

    At the official 0 they only begin to learn after a while.
    """
    import torch

    if part == "stage_a":
        for name, value in module.named_parameters():
            if name.endswith("gammas"):
                value.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0]))
        torch.nn.init.normal_(module.vquantizer.codebook.weight, std=1.0)  # type: ignore[union-attr, arg-type]


register("random", library_start)


def _settings(part: Part, config: str) -> Mapping[str, Any]:
    if config in _SIZES:
        return _SIZES[config](part)
    try:
        value = json.loads(config)
    except ValueError:
        raise CascadeError(
            f"'{config[:60]}' is no configuration of {part}", fix=f"Use {', or '.join(['JSON', *_SIZES])}"
        ) from None
    return value.get(part, value)


def _seed_of(seed: int, part: Part) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}|{part}".encode()).digest()[:8], "big") >> 1
