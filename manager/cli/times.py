"""Times and lengths of time as commands take them, `90s`, `10m`, `1h`, `2d` or an RFC 3339 time, and show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 3650 * 86_400


def local_time(moment: datetime) -> str:
    """As tables show it, in this machine's zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def length_s(option: str, text: str) -> float:
    """A length of time in seconds. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text, re.ASCII)
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is refused: use up to 3650d, such as 90s, 10m or 1h", param_hint=option)
    return seconds


def time_s(option: str, text: str, now_s: float) -> float:
    """Seconds since the epoch, from a time or from how long ago it is. Raises click.BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text)
        return moment.astimezone(UTC).timestamp()  # overflows where UTC has no such year
    except (ValueError, OverflowError):
        return now_s - length_s(option, text)
