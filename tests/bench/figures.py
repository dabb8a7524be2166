"""What the benchmarks of the agent share: figures of many measurements, and the machine they were taken on."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.registry import HostPaths

STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median and 99th percentile (nearest rank) of measurements, in the unit of those."""

    count: int
    mean: float
    median: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError without any."""
        if not values:
            raise ValueError("nothing was measured")
        ordered = sorted(values)
        p99 = ordered[math.ceil(len(ordered) * 0.99) - 1]
        return cls(len(ordered), statistics.fmean(ordered), statistics.median(ordered), p99, ordered[-1])


def machine() -> str:
    """What the figures were taken on."""
    controller = cpu_controller(read_mounts(HostPaths(Path("/"))))
    groups = f"cgroup v{controller.version}" if controller else "no cpu controller"
    cpus = len(os.sched_getaffinity(0))
    return f"{cpus} CPUs, Linux {platform.release()}, {groups}, Python {platform.python_version()}"


def host_cpu_s() -> tuple[float, float]:
    """Seconds that all CPUs of this machine were busy, and that passed on all of them, since boot (proc_stat(5))."""
    fields = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - fields[3] - fields[4]) / ticks_per_s, sum(fields) / ticks_per_s


def verdict(value: float, bar: float) -> str:
    """Whether a value is at most its bar."""
    return "met" if value <= bar else "VIOLATED"


def write_json(file: Path | None, body: Mapping[str, object]) -> None:
    """Write the results with the machine's description, where a file is wanted."""
    if file is not None:
        file.write_text(json.dumps({"machine": machine(), **body}, indent=2) + "\n")


@contextmanager
def undone_when_told_to_end() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what it made is taken away."""

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
