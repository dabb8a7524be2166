"""Quantities in words: a number, a space and its unit."""

from __future__ import annotations


def percent(share: float, decimals: int = 0) -> str:
    """A share, 1 being all, such as ``7 %``."""
    return f"{share * 100:.{decimals}f} %"


MEBIBYTE = 1 << 20


def mebibytes(amount_bytes: float) -> str:
    """An amount of memory, such as ``1,536 MiB``."""
    return f"{amount_bytes / MEBIBYTE:,.0f} MiB"
