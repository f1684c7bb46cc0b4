"""Plots of a run's loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from cascade_train.drawing.paper import INK, PAPER, Colour, font

FAINT = (225, 225, 225)
POINTS, CURVE, RATE = (178, 204, 232), (24, 95, 165), (216, 120, 40)


def loss_plot(
    rows: Sequence[Mapping[str, Any]], *, size: tuple[int, int] = (640, 360), most: int = 2000
) -> Image.Image:
    """The loss of every step as a point, its running mean as a line, and the learning rate under it.

    Args:
        rows: metrics with ``step``, ``loss`` and ``lr``, in order.
        size: width and height in pixels.
        most: points; of more rows each point is the mean of a few that follow each other.
    """
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    small = font(12)
    left, top, right, bottom = 56, 30, size[0] - 64, size[1] - 34
    finite = thinned([row for row in rows if math.isfinite(row["loss"])], most)
    if not finite:
        draw.text((left, top), "no step has been trained yet", fill=INK, font=small)
        return picture
    steps = [row["step"] for row in finite]
    losses = [float(row["loss"]) for row in finite]
    smooth = running_mean(losses, max(1, len(losses) // 20))
    low, high = _limits(losses)
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def at(step: float, value: float, floor: float, ceiling: float) -> tuple[float, float]:
        share = (min(max(value, floor), ceiling) - floor) / (ceiling - floor)
        return left + (step - first) / (last - first) * (right - left), bottom - share * (bottom - top)

    for mark in range(5):
        value = low + (high - low) * mark / 4
        y = at(first, value, low, high)[1]
        draw.line((left, y, right, y), fill=FAINT)
        draw.text((left - 6, y), f"{value:.3g}", fill=INK, font=small, anchor="rm")
        step = round(first + (last - first) * mark / 4)
        draw.text((at(step, low, low, high)[0], bottom + 8), str(step), fill=INK, font=small, anchor="mt")
    for step, loss in zip(steps, losses):
        x, y = at(step, loss, low, high)
        draw.rectangle((x - 1, y - 1, x, y), fill=POINTS)
    rates = [float(row.get("lr", 0.0)) for row in finite]
    ceiling = max(rates) * 1.05 or 1.0
    _line(draw, [at(step, rate, 0.0, ceiling) for step, rate in zip(steps, rates)], RATE, 1)
    draw.text(
        (right + 6, at(first, max(rates), 0.0, ceiling)[1]),
        f"{max(rates):.1e}",
        fill=RATE,
        font=small,
        anchor="lm",
    )
    _line(draw, [at(step, loss, low, high) for step, loss in zip(steps, smooth)], CURVE, 2)
    draw.text((left, 8), f"loss {smooth[-1]:.4f} at step {steps[-1]}", fill=CURVE, font=small)
    draw.text((right, 8), "learning rate", fill=RATE, font=small, anchor="ra")
    return picture


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to ``window`` − 1 before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        means.append(total / min(index + 1, window))
    return means


def thinned(rows: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """At most ``most`` rows: each has the mean loss of a few, and the step of the last of them."""
    if len(rows) <= most:
        return rows
    each = -(-len(rows) // most)
    parts = [rows[start : start + each] for start in range(0, len(rows), each)]
    return [{**part[-1], "loss": sum(float(row["loss"]) for row in part) / len(part)} for part in parts]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """A range that shows nearly all of ``values``; single spikes are cut off."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    pad = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return max(0.0, low - pad), high + pad


def _line(
    draw: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], colour: Colour, width: int
) -> None:
    if len(points) > 1:
        draw.line(list(points), fill=colour, width=width)
