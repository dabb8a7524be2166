"""The experiments of ``tests/kernel/run warp``, inside the guest. Each result is a line on the port of the reports."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from manager.bpf.warp import auto_warp_us
from tests.kernel.guest.relay import PORT
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

SERVICE_MS = 1.0
PERIOD_US = 1000
WAVE = ("wave", 6, 42, 3_600_000)
DURATION_MS = 1500
SLICE_NS = 100_000
SCHED_SETATTR = 314  # arch/x86/entry/syscalls/syscall_64.tbl

Result = dict[str, object]


def set_slice(pid: int, slice_ns: int) -> None:
    """EEVDF's slice of a task, sched_setattr(2)."""
    # size, policy, flags, nice, priority, runtime, deadline, period
    words = (ctypes.c_uint64 * 6)(48, 0, 0, slice_ns, 0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(SCHED_SETATTR, pid, ctypes.byref(words), 0):
        raise OSError(ctypes.get_errno(), "sched_setattr")


@contextmanager
def bvt(**warps_us: int) -> Iterator[None]:
    """The scheduler, loaded, with warps of groups."""
    scheduler = lab.scheduler()
    scheduler.load()
    for path, warp_us in warps_us.items():
        lab.set_warp(path, warp_us)
    yield
    if not scheduler.active:
        raise RuntimeError("the kernel ejected the scheduler")
    scheduler.unload()
    while scheduler.active:
        time.sleep(0.01)


def service_at(load_percent: int, antagonist: bool, slice_ns: int = 0) -> Result:
    """A service that wakes up every millisecond, beside the square wave or alone."""
    service = Load("service", "serve", PERIOD_US, PERIOD_US * load_percent // 100, DURATION_MS)
    wave = Load("batch", *WAVE) if antagonist else None
    if slice_ns:
        set_slice(service.process.pid, slice_ns)
    if wave:
        wave.go()
    service.go()
    result: Result = {"load_percent": load_percent, **service.result()}
    if wave:
        result["wave_used_ns"] = wave.used_ns()
        wave.end()
    return result


def square_wave(loads: range, tell: Callable[[Result], None]) -> None:
    """The 2014 study's Figure 5."""
    lab.group("service")
    lab.group("batch")
    for load in loads:
        tell({"mode": "alone", **service_at(load, antagonist=False)})
        tell({"mode": "eevdf", **service_at(load, antagonist=True)})
        tell({"mode": "eevdf-slice", **service_at(load, antagonist=True, slice_ns=SLICE_NS)})
    for mode, warp_us in (("bvt", 0), ("bvt-warp", auto_warp_us(SERVICE_MS))):
        with bvt(service=warp_us):
            for load in loads:
                tell({"mode": mode, "warp_us": warp_us, **service_at(load, antagonist=True)})


def two_services(loads: range, tell: Callable[[Result], None]) -> None:
    """The 2014 study's Figures 6 and 9: services of 100 us and of 1 ms for a request, at all pairs of loads."""
    work_us = {"fast": 100, "slow": 1000}
    for name in work_us:
        lab.group(name)

    def pair(fast: int, slow: int) -> Result:
        begun = {
            name: Load(name, "serve", work_us[name] * 100 // load, work_us[name], DURATION_MS, 7)
            for name, load in (("fast", fast), ("slow", slow))
            if load
        }
        for each in begun.values():
            each.go()
        return {"fast_percent": fast, "slow_percent": slow} | {name: each.result() for name, each in begun.items()}

    tell({"mode": "alone", **pair(10, 0)})
    tell({"mode": "alone", **pair(0, 10)})
    for fast in loads:
        for slow in loads:
            tell({"mode": "eevdf", **pair(fast, slow)})
    with bvt(fast=auto_warp_us(0.5), slow=auto_warp_us(5.0)):  # 5 times what a request takes
        for fast in loads:
            for slow in loads:
                tell({"mode": "bvt-warp", **pair(fast, slow)})


EXPERIMENTS = {"square-wave": square_wave, "two-services": two_services}


def main() -> None:
    port = os.open(os.environ[PORT], os.O_WRONLY | os.O_NOCTTY)
    tty.setraw(port)

    def tell(result: Result) -> None:
        os.write(port, json.dumps({"result": result}).encode() + b"\n")

    lab.be_prompt()
    EXPERIMENTS[sys.argv[1]](range(*map(int, sys.argv[2:5])), tell)


if __name__ == "__main__":
    main()
