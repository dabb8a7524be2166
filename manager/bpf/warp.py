"""How large a warp should be."""

from __future__ import annotations

import math

SLOWEST_MS = 100.0
"""An SLA of this or more needs no warp: who waits that long for a CPU waits for its share, which the weight gives."""
STEP_US = 4000
MAX_US = 50_000


def auto_warp_us(response_time_ms: float) -> int:
    """The warp for an SLA: rate monotonic, as the 2014 study gave them.

    4 ms for each halving of the response time below 100 ms: 27 ms for 1 ms, 40 ms for 0.1 ms, at most 50 ms. So of two
    services the one with half the response time is let in before the other, which is twice the scheduler's allowance
    ahead at most when it is. Raises ValueError unless the response time is positive.
    """
    if not response_time_ms > 0:
        raise ValueError(f"a response time of {response_time_ms} ms")
    return max(0, min(MAX_US, round(STEP_US * math.log2(SLOWEST_MS / response_time_ms))))
