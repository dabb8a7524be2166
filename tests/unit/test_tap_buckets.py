"""The bucket that the program on taps counts a response time in, beside a search through all bounds."""

from __future__ import annotations

import ctypes
import random
import shutil
from bisect import bisect_left
from collections.abc import Callable

import pytest

from deploy.bpf.buckets import buckets_header, upper_bounds_ns
from deploy.bpf.toolchain import SOURCES
from deploy.lab.commands import run
from manager.model.histogram import FIRST_BUCKET

SOURCE = """
typedef unsigned int u32;
typedef unsigned long long u64;
#define __always_inline inline
#include "buckets.h"
#include "times.bpf.h"
int bucket(u64 time_ns) { return (int)find_bucket(time_ns); }
"""
BOUNDS = upper_bounds_ns()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    """The program's own function, compiled for this machine."""
    if shutil.which("gcc") is None:
        pytest.skip("NOT TESTED: needs gcc")
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "buckets.h").write_text(buckets_header())
    (folder / "bucket.c").write_text(SOURCE)
    library = folder / "bucket.so"
    run(["gcc", "-O2", "-shared", "-fPIC", f"-I{SOURCES / 'tap'}", "-o", str(library), str(folder / "bucket.c")])
    function = ctypes.CDLL(str(library)).bucket
    function.argtypes = (ctypes.c_uint64,)
    return function  # type: ignore[no-any-return]  # ctypes knows no more of it


def searched(time_ns: int) -> int:
    return FIRST_BUCKET + min(bisect_left(BOUNDS, time_ns), len(BOUNDS) - 1)


def test_at_every_bound_and_beside_it(bucket: Callable[[int], int]) -> None:
    times = [bound + beside for bound in BOUNDS for beside in (-1, 0, 1)]
    assert [bucket(time_ns) for time_ns in times] == [searched(time_ns) for time_ns in times]


def test_where_the_logarithm_turns_and_beyond_all_bounds(bucket: Callable[[int], int]) -> None:
    times = [(1 << power) + beside for power in range(64) for beside in (-1, 0, 1)] + [2**64 - 1]
    assert [bucket(time_ns) for time_ns in times] == [searched(time_ns) for time_ns in times]


def test_anywhere_between(bucket: Callable[[int], int]) -> None:
    chance = random.Random(1)
    times = [round(10 ** chance.uniform(3.5, 11.5)) for _ in range(20_000)]
    assert [bucket(time_ns) for time_ns in times] == [searched(time_ns) for time_ns in times]
