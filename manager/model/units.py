"""Quantities in words: a number, a space and its unit."""

from __future__ import annotations


def percent(share: float, decimals: int = 0) -> str:
    """A share, 1 being all, such as ``7 %``."""
    return f"{share * 100:.{decimals}f} %"
