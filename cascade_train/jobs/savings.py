"""Ways to need less memory, what each costs, and the cheapest that suffice. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from cascade_train.jobs.ways import AS_IT_IS, Way

Total = Callable[[Way], int]
"""The bytes that a piece of work needs, by what is done otherwise."""


@dataclass(frozen=True)
class Option:
    """A way to need less, and what it costs.

    Args:
        costs: in words.
        slower: how much longer a step of the 3.6B LoRA takes, about, as a share of it.
        off: by how much a layer's output is off, relative, beyond what fp32 gives.
        without: the same without the option, where a graph may have it already.
    """

    name: str
    way: Way
    costs: str
    slower: float = 0.0
    off: float = 0.0
    without: Way | None = None

    @property
    def loss(self) -> float:
        """Speed and exactness in one number: 1 % of a layer's output for a tenth of the time."""
        return self.slower + 10 * self.off


OPTIONS: tuple[Option, ...] = (
    Option("lite Stage B", Way(lite_b=True), "validation's fine detail; nothing in training", off=0.002),
    Option(
        "8-bit AdamW",
        Way(optimizer="adamw8bit"),
        "moments rounded to 8 bits; needs bitsandbytes",
        off=0.004,
        without=Way(optimizer="adamw"),
    ),
    Option(
        "models in bf16",
        Way(precision="bf16"),
        "frozen weights rounded to 8 bits of precision, a layer's output off by about 1 %",
        off=0.01,
    ),
    Option(
        "one sample at a time (accumulation)",
        Way(single=True),
        "time, as a GPU is used less well; no other result",
        slower=0.2,
    ),
    Option(
        "base in int8",
        Way(compact="int8"),
        "a layer's output off by about 2 %, where bf16 is by 1 %",
        slower=0.1,
        off=0.02,
        without=Way(compact=""),
    ),
    Option(
        "gradient checkpointing",
        Way(checkpointing="on"),
        "half as much computing again; no other result",
        slower=0.5,
        without=Way(checkpointing="off"),
    ),
    Option("base in fp8", Way(compact="fp8"), "a layer's output off by 3 to 5 %", slower=0.1, off=0.04),
    Option(
        "base from the CPU, layer by layer",
        Way(offload=True),
        "its bytes over the bus in each pass, several times the time of a step; no other result",
        slower=5.0,
        without=Way(offload=False),
    ),
)
"""From what costs least to what costs most."""


def together(options: Sequence[Option]) -> Way:
    """All of ``options`` at once."""
    way = AS_IT_IS
    for each in options:
        way = way.and_(each.way)
    return way


def cheapest(total: Total, limit: int) -> tuple[Option, ...]:
    """The options that lose least, together, of those with which ``total`` is at most ``limit``; empty where
    none suffice. None of them could be left out."""
    choices = [some for count in range(len(OPTIONS) + 1) for some in combinations(OPTIONS, count)]
    choices.sort(key=lambda some: (round(sum(option.loss for option in some), 6), len(some)))
    if total(together(OPTIONS)) > limit:
        return ()
    return next((some for some in choices if _agree(some) and total(together(some)) <= limit), ())


def alone(total: Total, limit: int) -> Option | None:
    """The one option that loses least of those that suffice each for itself."""
    return next((each for each in sorted(OPTIONS, key=_loss) if total(each.way) <= limit), None)


def in_use(total: Total, half: bool) -> tuple[Option, ...]:
    """The options that the work has, without which it would need more; ``half``: its models are bf16."""
    plain = total(AS_IT_IS)

    def had(option: Option) -> bool:
        if option.way.precision == "bf16":
            return half
        return option.without is not None and total(option.without) > plain

    return tuple(filter(had, OPTIONS))


def _loss(option: Option) -> float:
    return option.loss


def _agree(some: Sequence[Option]) -> bool:
    """Whether no two of ``some`` are different values of one setting."""
    return len({each.way.compact for each in some} - {None}) <= 1
