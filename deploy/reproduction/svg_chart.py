"""Small line charts as SVG that is part of a page: colours come from its style sheet, so both light and dark are"
" legible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from deploy.reproduction.experiment import PlotAxes, PlotLine

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 22, 40
COLOURS = 6
ASIDE = 8.0
"""By how much points of another line stand aside where points are not connected: they may be the same."""
_TICKS = 5


@dataclass(frozen=True, slots=True)
class AxisScale:
    """From values to places; ``ticks`` are values."""

    low: float
    high: float
    logarithmic: bool
    begin: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Of a value."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = (math.log10(each) for each in (low, high, max(value, self.low)))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)


def axis_scale(values: Sequence[float], logarithmic: bool, begin: float, end: float) -> AxisScale:
    """An axis that holds all values."""
    if logarithmic and min(values) > 0:
        low = 10 ** math.floor(math.log10(min(values)))
        high = 10 ** math.ceil(math.log10(max(values) * 1.0001))
        count = round(math.log10(high / low))
        ticks = tuple(low * 10**power for power in range(count + 1))
        return AxisScale(low, high, True, begin, end, ticks)
    least, most = min(0.0, *values), max(values)
    step = nice_step((most - least or 1.0) / _TICKS)
    low, high = math.floor(least / step) * step, math.ceil((most or step) / step) * step
    count = round((high - low) / step)
    return AxisScale(low, high, False, begin, end, tuple(low + step * number for number in range(count + 1)))


def nice_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``about``."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * 0.999)


def line_chart(title: str, axes: PlotAxes, lines: Sequence[PlotLine], connected: bool = True) -> Markup:
    """A chart of these lines, at least one point in all; not ``connected``: a map of points."""
    points = [point for each in lines for point in each.points]
    across = axis_scale([x for x, _ in points], logarithmic_x(x for x, _ in points), LEFT, WIDTH - RIGHT)
    up = axis_scale([y for _, y in points], axes.logarithmic, HEIGHT - BOTTOM, TOP)
    legend_rows = len(lines)
    height = HEIGHT + 15 * legend_rows
    parts = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title),
        Markup('<text class="title" x="{}" y="13">{}</text>').format(LEFT, title),
    ]
    for tick in up.ticks:
        y = up.place(tick)
        parts.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        parts.append(Markup('<text class="y" x="{}" y="{:.1f}">{}</text>').format(LEFT - 5, y + 4, f"{tick:g}"))
    for tick in across.ticks:
        text = Markup('<text class="x" x="{:.1f}" y="{}">{}</text>')
        parts.append(text.format(across.place(tick), HEIGHT - BOTTOM + 14, f"{tick:g}"))
    parts.append(Markup('<text class="x" x="{}" y="{}">{}</text>').format((LEFT + WIDTH) // 2, HEIGHT - 10, axes.x))
    parts.append(
        Markup('<text class="y-name" transform="translate(11 {}) rotate(-90)">{}</text>').format(HEIGHT // 2, axes.y)
    )
    for number, each in enumerate(lines):
        colour = f"c{number % COLOURS}"
        aside = 0.0 if connected else ASIDE * (number - (len(lines) - 1) / 2)
        places = [(across.place(x) + aside, up.place(y)) for x, y in each.points]
        if connected and len(places) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(Markup('<path class="line {}" d="M{}"/>').format(colour, path))
        if len(places) <= 25:
            dots = Markup("").join(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"/>').format(x, y) for x, y in places)
            parts.append(Markup('<g class="dots {}">{}</g>').format(colour, dots))
        y = HEIGHT + 15 * number
        parts.append(Markup('<g class="dots {}"><circle cx="{}" cy="{}" r="4"/></g>').format(colour, LEFT, y))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(LEFT + 9, y + 4, each.name))
    return Markup("").join([*parts, Markup("</svg>")])


def logarithmic_x(values: Iterable[float]) -> bool:
    """Whether values of x, such as sizes, span so much that equal steps would hide most of them."""
    ordered = sorted(values)
    return ordered[0] > 0 and ordered[-1] / ordered[0] >= 500
