"""Sets of pCPU numbers and their kernel list format (``0-3,8``), as in cpuset(7) "FORMATS"."""

from __future__ import annotations

from collections.abc import Iterable

CpuSet = frozenset[int]

MAX_CPU = 8191  # the largest CONFIG_NR_CPUS of a mainline x86 kernel is 8192


def format_cpus(cpus: Iterable[int]) -> str:
    """Write a CPU set in the kernel's list format, sorted and with runs joined; the empty set is ``""``."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        parts.append(str(ordered[start]) if start == end else f"{ordered[start]}-{ordered[end]}")
        start = end + 1
    return ",".join(parts)


def parse_cpus(text: str) -> CpuSet:
    """Read the kernel's list format.

    Raises ValueError naming the offending part when it is not a list of numbers and ascending ranges
    between 0 and ``MAX_CPU``.
    """
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.strip().split(","))):
        first, dash, last = part.partition("-")
        if not part.isascii() or not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part!r} is not a CPU number or range such as 0-3,8")
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high > MAX_CPU:
            raise ValueError(f"{part!r} is not an ascending range between 0 and {MAX_CPU}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)
