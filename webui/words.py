"""How numbers, times and states are written on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from manager.model.knobs import knob_name

NOTHING = "–"

STATES: Mapping[str, tuple[str, str]] = {
    "met": ("✓", "met"),
    "at_risk": ("▲", "at risk"),
    "missed": ("✗", "missed"),
    "no_data": ("○", "no data"),
}
"""Mark and word of each state of an SLA: readable without colour."""


def milliseconds(value: float | None) -> str:
    """A response time, such as ``0.84 ms``, ``5 ms``, ``12.3 ms``, ``612 ms``, ``42 s``."""
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{_plain(value / 1000, 1)} s"
    return f"{_digits(value)} ms"


def rate(value: float | None) -> str:
    """Requests a second."""
    return NOTHING if value is None else f"{_digits(value)}/s"


def percent(share: float | None) -> str:
    """A share, 0 to 1, as a percentage."""
    if share is None:
        return NOTHING
    shown = round(share * 100, 1)
    return f"{_plain(shown, 0 if shown >= 10 else 1)} %"


def kept(share: float) -> str:
    """The share of a promise that was kept: never rounded up to all of it."""
    return f"{_plain(100 if share >= 1 else min(share * 100, 99.99), 2)} %"


def duration(seconds: float) -> str:
    """A length of time, such as ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{_digits(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{_plain(seconds / 3600, 1)} h"


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


def setting(one: Mapping[str, Any]) -> str:
    """What a setting is called, from anything that has its ``knob`` and ``index``."""
    return knob_name(one["knob"], one["index"])


def state_mark(state: str) -> str:
    """The mark of an SLA's state."""
    return STATES[state][0]


def state_word(state: str) -> str:
    """The word for an SLA's state."""
    return STATES[state][1]


def _moment(value: str | datetime | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _digits(value: float) -> str:
    return _plain(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def _plain(value: float, digits: int) -> str:
    """With at most so many digits behind the point, and none that say nothing: ``5``, not ``5.0``."""
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


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
    "setting": setting,
    "state_mark": state_mark,
    "state_word": state_word,
}
