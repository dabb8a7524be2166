"""Quantities in words: a number, a space and its unit."""

from __future__ import annotations

from manager.model.numbers import digits


def percent(share: float, decimals: int = 0) -> str:
    """A share, 1 being all, such as ``7 %``."""
    return f"{share * 100:.{decimals}f} %"


def per_second(rate_rps: float) -> str:
    """A rate of requests, such as ``1,536 req/s`` or ``0.25 req/s``."""
    return f"{digits(rate_rps, 4)} req/s"


MEBIBYTE = 1 << 20


def mebibytes(amount_bytes: float) -> str:
    """An amount of memory, such as ``1,536 MiB``."""
    return f"{amount_bytes / MEBIBYTE:,.0f} MiB"
