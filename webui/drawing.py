"""Small pictures that the server draws: lines of response times, bars of shares. Coordinates are those of the SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120, 100  # so that most coordinates are whole numbers, which are short; they are stretched anyway
_ROOM = 1.25  # the highest value shown, by the SLA or the highest measured one


@dataclass(frozen=True, slots=True)
class Spark:
    """A line with gaps where nothing is known. ``over`` is the path around the steps above the limit."""

    lines: tuple[str, ...]
    over: str
    limit_y: int | None
    highest: float | None
    width: float = WIDTH
    height: float = HEIGHT


def spark(values: Sequence[float | None], limit: float | None, width: float = WIDTH, height: float = HEIGHT) -> Spark:
    """The line of values from the left to the right edge, with a limit that they are to stay below."""
    highest = max((value for value in values if value is not None), default=None)
    scale = height / (max(highest or 0.0, limit or 0.0, 1e-9) * _ROOM)
    step = width / max(len(values), 1)
    limit_y = None if limit is None else round(height - limit * scale)
    lines: list[str] = []
    points: list[str] = []
    over: list[str] = []
    for place, value in enumerate([*values, None]):
        if value is not None:
            y = round(height - value * scale)
            points.append(f"{round((place + 0.5) * step, 1):g},{y}")
            if limit is not None and value > limit:
                over.append(f"M{round(place * step, 1):g},{limit_y}V{y}h{step:.3g}V{limit_y}")
        elif points:
            # A line of one point would not be seen.
            before = f"{round((place - 1) * step, 1):g},{points[0].partition(',')[2]}"
            lines.append(" ".join(points if len(points) > 1 else [before, points[0]]))
            points = []
    return Spark(tuple(lines), "".join(over), limit_y, highest, width, height)


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
