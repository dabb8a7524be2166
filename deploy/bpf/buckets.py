"""The buckets of response times, for the program on taps."""

from __future__ import annotations

import math

from manager.model.histogram import FIRST_BUCKET, GAMMA, LAST_BUCKET


def upper_bounds_ns() -> list[int]:
    """The longest time of each bucket, in nanoseconds; the last one takes all that is longer."""
    return [math.floor(GAMMA**bucket * 1000) for bucket in range(FIRST_BUCKET, LAST_BUCKET + 1)]


def buckets_header() -> str:
    """As C."""
    bounds = upper_bounds_ns()
    logarithm, doubling = (math.floor(2**16 * math.log2(bounds[0])), round(2**16 / math.log2(GAMMA)))
    lines = "".join(f"\t{bound}ULL,\n" for bound in bounds)
    return (
        f"#define FIRST_BUCKET {FIRST_BUCKET}\n#define BUCKETS {len(bounds)}\n"
        f"#define SHORTEST_NS {bounds[0]}ULL\n#define SHORTEST_LOGARITHM {logarithm}ULL\n"
        f"#define BUCKETS_PER_DOUBLING {doubling}ULL\n"
        f"static const u64 upper_bound_ns[BUCKETS] = {{\n{lines}}};\n"
    )
