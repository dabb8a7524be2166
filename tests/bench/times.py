"""The way in which a benchmark reads the times of threads: by the BPF program, or by files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from manager.host.registry import HostPaths
from manager.host.thread_times import ThreadTimes


def add_times(parser: argparse.ArgumentParser) -> None:
    """The option ``--times``."""
    parser.add_argument("--times", choices=("bpf", "files"), default="bpf", help="how threads are read (%(default)s)")


@contextmanager
def times_of(way: str) -> Iterator[ThreadTimes | None]:
    """The program; ``files``: None."""
    if way == "files":
        yield None
        return
    with closing(ThreadTimes(HostPaths(Path("/")))) as times:
        yield times
