"""How numbers, times and states are written on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

NOTHING = "–"

STATES: Mapping[str, tuple[str, str]] = {
    "met": ("✓", "met"),
    "at_risk": ("▲", "at risk"),
    "missed": ("✗", "missed"),
    "no_data": ("○", "no data"),
}
"""Mark and word of each state of an SLA: readable without colour."""


def milliseconds(value: float | None) -> str:
    """A response time, such as ``0.84 ms``, ``12.3 ms``, ``612 ms``, ``4.2 s``."""
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{_digits(value)} ms"


def rate(value: float | None) -> str:
    """Requests a second."""
    return NOTHING if value is None else f"{_digits(value)}/s"


def percent(share: float | None) -> str:
    """A share, 0 to 1, as a percentage."""
    if share is None:
        return NOTHING
    shown = round(share * 100, 1)
    return f"{shown:.0f} %" if shown >= 10 or shown == 0 else f"{shown:.1f} %"


def kept(share: float) -> str:
    """The share of a promise that was kept: never rounded up to all of it."""
    return "100 %" if share >= 1 else f"{min(share * 100, 99.99):.2f} %"


def duration(seconds: float) -> str:
    """A length of time, such as ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{round(seconds / 3600, 1):g} h"


def number(value: float | None) -> str:
    """A number with separated thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def clock(value: str | datetime | None) -> str:
    """The time of day, UTC, as the page shows it before the browser turns it into local time."""
    moment = _moment(value)
    return NOTHING if moment is None else moment.strftime("%H:%M:%S")


def day_and_clock(value: str | datetime | None) -> str:
    """Date and time of day, UTC."""
    moment = _moment(value)
    return NOTHING if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """A time that has passed, such as ``12 s ago``, ``3 min ago``, ``2 h ago``, ``5 days ago``."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def state_mark(state: str) -> str:
    """The mark of an SLA's state."""
    return STATES[state][0]


def state_word(state: str) -> str:
    """The word for an SLA's state."""
    return STATES[state][1]


def _moment(value: str | datetime | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "ms": milliseconds,
    "rate": rate,
    "percent": percent,
    "number": number,
    "kept": kept,
    "duration": duration,
    "ago": ago,
    "clock": clock,
    "moment": day_and_clock,
    "state_mark": state_mark,
    "state_word": state_word,
}
