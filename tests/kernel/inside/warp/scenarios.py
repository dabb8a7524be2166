"""Tasks that want all CPU time that they can get, and what the weights give each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

HOUR_MS = 3_600_000
X, Y = (f"machine.slice/machine-qemu\\x2d{number}\\x2d{name}.scope" for number, name in ((1, "x"), (2, "y")))
"""The groups of two VMs, as libvirt and systemd name them; their threads' are below."""
NICE_WEIGHT = {0: 1024, 5: 335}  # kernel/sched/core.c: sched_prio_to_weight


@dataclass(frozen=True, slots=True)
class Spin:
    """``count`` equal tasks in a group; ``cpus`` is what each should get, ``pinned`` where it may run (all: empty)."""

    path: str
    cpus: float
    count: int = 1
    nice: int = 0
    pinned: tuple[int, ...] = ()


def libvirt(weight_x: int, weight_y: int, vcpus: int) -> dict[str, int]:
    """The groups of the two VMs with their weights, and those that libvirt makes for their threads."""
    threads = ("emulator", *(f"vcpu{vcpu}" for vcpu in range(vcpus)))
    return {"machine.slice": 100, X: weight_x, Y: weight_y} | {
        f"{vm}/libvirt/{thread}": 100 for vm in (X, Y) for thread in threads
    }


@dataclass(frozen=True, slots=True)
class Scenario:
    """Groups with their weights, the one that has a warp when warps are tried, and tasks."""

    weights: Mapping[str, int]
    warped: str
    spins: tuple[Spin, ...]

    def start(self, warp_us: int) -> list[Load]:
        """Make the groups and start the tasks, which wait for ``go``."""
        for path, weight in self.weights.items():
            lab.group(path, weight)
        if warp_us:
            lab.set_warp(self.warped, warp_us)
        return [
            Load(each.path, "spin", HOUR_MS, nice=each.nice, cpus=each.pinned)
            for each in self.spins
            for _ in range(each.count)
        ]

    def shares(self, warp_us: int, span_s: float) -> tuple[list[float], float]:
        """CPUs that each of ``spins`` used on average over its count, and how many were idle.

        Of what all used together: interrupts take their part too.
        """
        used, idle = lab.measure(self.start(warp_us), span_s)
        scale = sum(each.cpus * each.count for each in self.spins) / sum(used)
        rest = iter(used)
        return [scale * sum(islice(rest, each.count)) / each.count for each in self.spins], idle


ONE_CPU = {
    "two groups": Scenario({"a": 100, "b": 300}, "a", (Spin("a", 0.25), Spin("b", 0.75))),
    # VMs in a slice share the slice's part, whatever the weights of others outside.
    "two levels": Scenario(
        {"machine.slice": 100, "machine.slice/x": 100, "machine.slice/y": 300, "other": 100},
        "machine.slice/x",
        (Spin("machine.slice/x", 0.125), Spin("machine.slice/y", 0.1875, 2), Spin("other", 0.5)),
    ),
    "two VMs as libvirt lays them out": Scenario(
        {**libvirt(300, 100, 2), "system.slice": 100},
        X,
        (
            *(Spin(f"{X}/libvirt/{thread}", 0.125) for thread in ("emulator", "vcpu0", "vcpu1")),
            *(Spin(f"{Y}/libvirt/{thread}", 0.125 / 3) for thread in ("emulator", "vcpu0", "vcpu1")),
            Spin("system.slice", 0.5),
        ),
    ),
    "eight tasks with nice": Scenario(
        dict.fromkeys("abcd", 100),
        "a",
        tuple(
            Spin(name, 0.25 * NICE_WEIGHT[nice] / sum(NICE_WEIGHT.values()), nice=nice)
            for name in "abcd"
            for nice in NICE_WEIGHT
        ),
    ),
}

FOUR_CPUS = {
    "five equal tasks": Scenario({"a": 100}, "a", (Spin("a", 0.8, 5),)),
    "two levels": Scenario(
        {"machine.slice": 100, "machine.slice/x": 100, "machine.slice/y": 300},
        "machine.slice/x",
        (Spin("machine.slice/x", 1 / 3, 3), Spin("machine.slice/y", 0.6, 5)),
    ),
    "a weight that one CPU cannot satisfy": Scenario(
        {"large": 10_000, "a": 100, "b": 300},
        "a",
        (Spin("large", 1.0), Spin("a", 0.25, 3), Spin("b", 0.5625, 4)),
    ),
    "pinned beside floating, which want the other CPUs": Scenario(
        {"a": 100, "b": 300, "c": 100},
        "a",
        (Spin("a", 0.25, pinned=(0,)), Spin("b", 0.75, pinned=(0,)), Spin("c", 1.0, 3)),
    ),
    # The floating ones may have more than the other three CPUs, but not so much that the pinned have less than theirs.
    "pinned beside floating, which want more": Scenario(
        {"a": 100, "b": 100},
        "a",
        (Spin("a", 1.0, pinned=(0,)), Spin("b", 0.75, 4)),
    ),
    "pinned that have less than a CPU": Scenario(
        {"a": 100, "b": 700},
        "a",
        (Spin("a", 0.5, pinned=(0,)), Spin("b", 0.875, 4)),
    ),
    # vCPUs on CPUs of their own, emulators anywhere.
    "two VMs as libvirt lays them out, vCPU by vCPU on two CPUs": Scenario(
        libvirt(300, 100, 2),
        X,
        (
            *(Spin(f"{X}/libvirt/vcpu{cpu}", 0.75, pinned=(cpu,)) for cpu in (0, 1)),
            *(Spin(f"{Y}/libvirt/vcpu{cpu}", 0.25, pinned=(cpu,)) for cpu in (0, 1)),
            *(Spin(f"{vm}/libvirt/emulator", 1.0) for vm in (X, Y)),
        ),
    ),
    "two pinned vCPUs that have half a CPU each, and others": Scenario(
        {"x": 100, "x/vcpu0": 100, "x/vcpu1": 100, "z": 300},
        "x",
        (
            *(Spin(f"x/vcpu{cpu}", 0.5, pinned=(cpu,)) for cpu in (0, 1)),
            Spin("z", 0.75, 4),
        ),
    ),
}
BY_CPUS = {1: ONE_CPU, 4: FOUR_CPUS}
