"""Samples for which an expression holds, such as ``width >= 512`` or ``sharpness > 100``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cascade_train.data.expressions import Expression, Missing, filter_lines, normalise
from cascade_train.data.filters.base import Dropped, Filter
from cascade_train.data.measures import NAMED, Measure
from cascade_train.data.sample import Sample

CAPTIONS = ("caption", "captions")
"""Names for the sample's first caption, and for the list of all."""


@dataclass(frozen=True)
class ExpressionFilter(Filter):
    """Keeps samples for which ``text`` is true (`expressions`; kept as a plain expression).

    Its names are `Sample.fields`, the measures of `measures.NAMED`, and `CAPTIONS`. Measures and captions
    come before metadata of the same name, which ``field("name")`` reaches.

    Raises:
        CascadeError: ``text`` is no expression, or holds something that is not allowed.
    """

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", normalise(self.text))

    @property
    def measures(self) -> tuple[Measure, ...]:
        names = _compiled(self.text).names
        return tuple(measure for name, measure in NAMED.items() if name in names)

    @property
    def reason(self) -> str:
        return f"not {self.text}"

    def keep(self, sample: Sample) -> bool:
        expression = _compiled(self.text)
        names = self._names(expression, sample)
        try:
            return bool(expression.value(sample.fields, names))
        except Missing as error:
            raise Dropped(f"without the field {error}") from error
        except Exception as error:  # whatever evaluating such values raises
            raise Dropped(f"where {self.text} fails ({type(error).__name__})") from error

    def _names(self, expression: Expression, sample: Sample) -> dict[str, Any] | None:
        own = expression.names & {*NAMED, *CAPTIONS}
        if not own:
            return None
        names = {name: value for name, value in sample.fields.items() if name not in own}
        names.update({measure.name: sample.measure(measure) for measure in self.measures})
        if not own.isdisjoint(CAPTIONS) and sample.captions:
            names.update(caption=sample.captions[0], captions=list(sample.captions))
        return names


def expression_filters(text: str) -> tuple[ExpressionFilter, ...]:
    """One filter for each line of ``text`` (`expressions.filter_lines`)."""
    return tuple(ExpressionFilter(line) for line in filter_lines(text))


@lru_cache(maxsize=64)
def _compiled(text: str) -> Expression:
    return Expression(text)
