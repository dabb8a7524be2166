"""Small pictures that the server draws: lines of response times, bars of shares. Coordinates are those of the SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120.0, 28.0
_ROOM = 1.25  # the highest value shown, by the SLA or the highest measured one


@dataclass(frozen=True, slots=True)
class Spark:
    """A line with gaps where nothing is known. ``over`` are the steps above the limit, as x, y and height."""

    lines: tuple[str, ...]
    over: tuple[tuple[float, float, float], ...]
    limit_y: float | None
    step: float
    highest: float | None
    width: float = WIDTH
    height: float = HEIGHT


def spark(values: Sequence[float | None], limit: float | None, width: float = WIDTH, height: float = HEIGHT) -> Spark:
    """The line of values from the left to the right edge, with a limit that they are to stay below."""
    known = [value for value in values if value is not None]
    top = max([*known, limit or 0.0, 1e-9]) * _ROOM
    step = width / max(len(values), 1)

    def y(value: float) -> float:
        return round(height - value / top * height, 1)

    lines: list[str] = []
    points: list[str] = []
    for place, value in enumerate([*values, None]):
        if value is not None:
            points.append(f"{round((place + 0.5) * step, 1)},{y(value)}")
        elif points:
            # A line of one point would not be seen.
            lines.append(" ".join(points if len(points) > 1 else [_moved(points[0], -step / 2), points[0]]))
            points = []
    over = tuple(
        (round(place * step, 1), y(value), round(y(limit) - y(value), 1))
        for place, value in enumerate(values)
        if limit is not None and value is not None and value > limit
    )
    return Spark(
        tuple(lines), over, None if limit is None else y(limit), round(step, 2), max(known, default=None), width, height
    )


def _moved(point: str, by: float) -> str:
    x, y = point.split(",")
    return f"{round(float(x) + by, 1)},{y}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: its share of the whole, and where it begins."""

    name: str
    share: float
    start: float


def split(shares: Sequence[tuple[str, float]]) -> tuple[Part, ...]:
    """A bar of named shares, one after the other, as far as they fit into one whole."""
    parts: list[Part] = []
    start = 0.0
    for name, share in shares:
        fitting = min(max(share, 0.0), 1.0 - start)
        parts.append(Part(name, fitting, start))
        start += fitting
    return tuple(parts)
