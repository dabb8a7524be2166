"""Which key a request is for."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate


def key_chooser(keys: int, zipf: float, generator: random.Random) -> Callable[[], int]:
    """Draws keys 0 to ``keys`` - 1: key k in proportion to 1 / (k + 1) ** ``zipf`` (Zipf's law); at 0 all alike."""
    draw = generator.random
    if zipf == 0:
        return lambda: int(draw() * keys)
    edges = list(accumulate(rank**-zipf for rank in range(1, keys + 1)))
    total = edges[-1]
    # A draw can round up to the total.
    return lambda: min(bisect_right(edges, draw() * total), keys - 1)
