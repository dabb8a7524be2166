"""How numbers are written for people."""

from __future__ import annotations

import math

NOTHING = "–"
"""What stands for a number that is not known."""


def milliseconds(value: float | None) -> str:
    """A response time, such as ``0.84 ms``, ``5 ms``, ``12.3 ms``, ``612 ms``, ``42 s``."""
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{fixed(value / 1000, 1)} s"
    return f"{digits(value)} ms"


def digits(value: float, count: int = 3) -> str:
    """With so many significant digits, all before the point, and no power of ten: ``0.0123``, ``12.3``, ``1,234``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return fixed(value, min(max(count - 1 - math.floor(math.log10(abs(value))), 0), 6))


def fixed(value: float, digits: int) -> str:
    """With at most so many digits behind the point, and none that say nothing: ``5``, not ``5.0``."""
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def duration(seconds: float) -> str:
    """A length of time, such as ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{digits(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{fixed(seconds / 3600, 1)} h"
