"""The scheduler as it is shipped: the object, and how its maps look. equipoise_bvt.bpf.c says what it does."""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path

OBJECT = Path(__file__).parent / "equipoise_bvt.bpf.o"
NAME = "equipoise_bvt"
"""The kernel shows it in sched_ext/root/ops, with the build after it."""

WARPS, STATS, CPUS = "equipoise_warps", "equipoise_stats", "equipoise_cpus"
"""Names of the maps that are pinned."""

CGROUP = struct.Struct("=Q")
"""Key of WARPS: a control group's id, which is the inode number of its directory."""

_INTERFACE = (Path(__file__).parent / "interface.bpf.h").read_text()


def members(header: str, name: str) -> tuple[str, ...]:
    """Names of the members, all of 64 bits, of a struct in the text of a header."""
    body = re.search(rf"struct {name} {{\n(.*?)}};", header, re.DOTALL)
    return tuple(re.findall(r"^\tu64 (\w+);", body[1], re.MULTILINE)) if body else ()


def number(header: str, name: str) -> int:
    """A number that the text of a header defines. Raises TypeError where it does not."""
    return int(re.search(rf"^#define {name} (\w+)", header, re.MULTILINE)[1], 0)  # type: ignore[index]


WARP = struct.Struct(f"={len(members(_INTERFACE, 'warp'))}Q")
"""Value of WARPS: warp and limit of the borrowed CPU time, nanoseconds; limit 0: the scheduler's."""

COUNTERS = members(_INTERFACE, "stats")
"""Value of STATS, 64 bits each, for each possible CPU."""


@cache
def build_name() -> str:
    """The name of the build that is shipped, which has a digest of its sources at its end."""
    found = re.search(rb"\0(%s_[0-9a-f]{8})\0" % NAME.encode(), OBJECT.read_bytes())
    if found is None:
        raise ValueError(f"{OBJECT} has no name")
    return found[1].decode()
