"""The experiments of ``tests/kernel/run warp``, inside the guest. Each result is a line on the port of the reports."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from manager.control.warp_plan import auto_warp_us
from tests.kernel.guest.relay import PORT
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load
from tests.kernel.inside.warp.scenarios import BY_CPUS
from tests.kernel.inside.warp.soak import run as run_soak

SERVICE_MS = 1.0
PERIOD_US = 1000
WAVE = ("wave", 6, 42, 3_600_000)
DURATION_MS = 1500
SLICE_NS = 100_000
SCHED_SETATTR = 314  # arch/x86/entry/syscalls/syscall_64.tbl

WORK_US = {"fast": 100, "slow": 1000}
SEEDS = {"fast": 18, "slow": 389}  # of arrivals whose number is within 2 % of what the load says, however few
FIFO = {"fast": 30, "slow": 20}
QUOTA_PERIOD_US = 24_000
PAIR_MS = 2000
AT_BAR_PERCENT, AT_BAR_MS = 80, 10_000  # where it is close: in 2 s there are few requests of 1 ms, 15 % of noise in p95
ALONE_MS = 10_000  # it is mostly idle
PEAK_MS = 2000

WARP_US = 12_000
SPAN_S = 4.0  # a warp moves some milliseconds from one second into another

SOAK_S = 60


@dataclass(frozen=True, slots=True)
class Options:
    """What an experiment may be told: the step of its loads in percent, a seed, and how long it may take."""

    step: int
    seed: int
    seconds: int


Result = dict[str, object]
Tell = Callable[[Result], None]


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


def square_wave(options: Options, tell: Tell) -> None:
    """The 2014 study's Figure 5."""
    lab.group("service")
    lab.group("batch")
    loads = range(10, 101, options.step)
    for load in loads:
        tell({"mode": "alone", **service_at(load, antagonist=False)})
        tell({"mode": "eevdf", **service_at(load, antagonist=True)})
        tell({"mode": "eevdf-slice", **service_at(load, antagonist=True, slice_ns=SLICE_NS)})
    for mode, warp_us in (("bvt", 0), ("bvt-warp", auto_warp_us(SERVICE_MS))):
        with bvt(service=warp_us):
            for load in loads:
                tell({"mode": mode, "warp_us": warp_us, **service_at(load, antagonist=True)})


def pair(percent: dict[str, int], quotas: bool = False, duration_ms: int = 0) -> Result:
    """Both services at loads in percent, 0: not at all; ``duration_ms`` 0: long enough to see who meets its bar.

    With quotas as in the 2014 study, section 4.3.3: each has of the CPU what its load is of both, and real-time
    priorities are rate monotonic.
    """
    total = sum(percent.values())
    duration_ms = duration_ms or (AT_BAR_MS if total == AT_BAR_PERCENT else PAIR_MS)
    begun = {
        name: Load(
            *(name, "serve", work_us * 100 // percent[name], work_us, duration_ms, SEEDS[name]),
            fifo=FIFO[name] if quotas else 0,
        )
        for name, work_us in WORK_US.items()
        if percent[name]
    }
    limits = [(each.process.pid, QUOTA_PERIOD_US * percent[name] // total) for name, each in begun.items()]
    quota = Load("", "quota", QUOTA_PERIOD_US, *itertools.chain(*limits), fifo=40) if quotas else None
    for each in (quota, *begun.values()):
        if each:
            each.go()
    found: Result = {f"{name}_percent": load for name, load in percent.items()}
    found |= {name: each.result() for name, each in begun.items()}
    if quota:
        quota.end()
    return found


def peaks() -> Result:
    """How many requests each service finishes in a second when it is alone and offered twice what it can do.

    This is the 2014 study's 100 %. Ours is less: it is what a service can do that goes to sleep after each request, as
    it does not at its peak (docs/concepts/warp.md).
    """
    found: Result = {}
    for name, work_us in WORK_US.items():
        (served,) = lab.run_together(Load(name, "serve", work_us // 2, work_us, PEAK_MS))
        found[f"{name}_per_s"] = round(served["requests"] / served["wall_ns"] * 1e9, 1)
    return found


def two_services(options: Options, tell: Tell) -> None:
    """The 2014 study's Figures 6 and 9: services of 100 us and of 1 ms for a request, at all pairs of loads."""
    for name in WORK_US:
        lab.group(name)
    loads = range(10, 101, options.step)
    pairs = [{"fast": fast, "slow": slow} for fast in loads for slow in loads]
    for name in WORK_US:
        tell({"mode": "alone", **pair({**dict.fromkeys(WORK_US, 0), name: 10}, duration_ms=ALONE_MS)})
    for each in pairs:
        tell({"mode": "eevdf", **pair(each)})
    for each in pairs:
        tell({"mode": "fifo-quota", **pair(each, quotas=True)})
    with bvt(**{name: auto_warp_us(5 * work_us / 1000) for name, work_us in WORK_US.items()}):
        for each in pairs:
            tell({"mode": "bvt-warp", **pair(each)})
        tell({"mode": "peak", "scheduler": "bvt-warp", **peaks()})
    tell({"mode": "peak", "scheduler": "eevdf", **peaks()})


def shares(_options: Options, tell: Tell) -> None:
    """Long-run shares of tasks that want all they can get."""
    cpus = os.cpu_count() or 1
    for name, scenario in BY_CPUS[cpus].items():
        for warp_us in (0, WARP_US):
            with bvt():
                found, idle = scenario.shares(warp_us, SPAN_S)
            lab.remove_groups()
            wanted = [each.cpus for each in scenario.spins]
            error = max(abs(got / want - 1) for got, want in zip(found, wanted, strict=True))
            tell(
                {"cpus": cpus, "scenario": name, "warp_us": warp_us, "error": round(error, 4), "idle": round(idle, 3)}
                | {"wanted": [round(each, 4) for each in wanted], "found": [round(each, 4) for each in found]}
            )


def random_soak(options: Options, tell: Tell) -> None:
    """The random workload, minute by minute, each with a seed of its own."""
    seeds = range(options.seed, options.seed + max(1, options.seconds // SOAK_S))
    with bvt():
        for seed in seeds:
            soak = run_soak(lab.scheduler(), min(SOAK_S, options.seconds), seed)
            tell({"seed": seed, "done": soak.done, "counters": soak.counters})


EXPERIMENTS = {"square-wave": square_wave, "two-services": two_services, "shares": shares, "soak": random_soak}


def main() -> None:
    port = os.open(os.environ[PORT], os.O_WRONLY | os.O_NOCTTY)
    tty.setraw(port)

    def tell(result: Result) -> None:
        os.write(port, json.dumps({"result": result}).encode() + b"\n")

    lab.be_prompt()
    EXPERIMENTS[sys.argv[1]](Options(*map(int, sys.argv[2:])), tell)


if __name__ == "__main__":
    main()
