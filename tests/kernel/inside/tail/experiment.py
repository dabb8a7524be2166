"""Critical VMs beside batch VMs with several vCPUs, in groups as libvirt makes them: how long critical vCPUs wait after
a wake-up, with and without one group above the batch VMs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CROWD = "/bin/crowd"
MACHINE, BATCH = CGROUPS / "machine.slice", CGROUPS / "machine.slice/machine-batch.slice"
GREATEST, DEFAULT, LEAST = 10_000, 100, 1  # of cpu.weight
CPUS = (0, 1)
ALL = 3
SERVICES = ((100, 350), (200, 700))
"""Work and mean sleep of each critical vCPU in microseconds: 22 % of a pCPU, between requests of 0.1 and 0.2 ms."""
BEAT = (20, 5)
SETTLE_MS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """Batch VMs, vCPUs of each, and what is done about them.

    ``common`` is the group above the batch VMs: none, ``weight`` (least) or ``idle``. ``pinned``: each critical VM has
    a pCPU to itself among critical ones. ``batch_pinned``: vCPU i only on pCPU i. ``single``: all of a VM's threads on
    one pCPU. ``services``: critical VMs on each pCPU. ``kind``: of the critical vCPUs, see crowd.c.
    """

    vms: int
    vcpus: int
    common: str = ""
    pinned: bool = True
    batch_pinned: bool = False
    single: bool = False
    services: int = 1
    kind: str = "wake"


def run(shape: Shape, duration_ms: int) -> dict[str, object]:
    """The shape with percentiles of the delays of both services, in microseconds, and the CPUs that batch VMs used."""
    with groups():
        lines = [*critical(shape), *batch(shape)]
        command = [CROWD, str(SETTLE_MS), str(duration_ms)]
        done = subprocess.run(command, input="\n".join(lines), stdout=subprocess.PIPE, check=True, text=True)
    members = json.loads(done.stdout)
    count = len(SERVICES) * shape.services
    per_vm = shape.vcpus + 1
    vms = [members[at : at + per_vm] for at in range(count, len(members), per_vm)]
    return {
        **{name: getattr(shape, name) for name in Shape.__slots__},
        "services_us": [percentiles(each["delays_us"]) for each in members[:count]],
        "batch_cpus": [round(sum(each["used"] for each in vm), 3) for vm in vms],
    }


def percentiles(delays_us: list[int]) -> dict[str, int]:
    ordered = sorted(delays_us) or [0]
    found = {f"p{share}": ordered[len(ordered) * share // 100] for share in (50, 95, 99)}
    return {"count": len(delays_us), **found, "max": ordered[-1]}


def critical(shape: Shape) -> Iterator[str]:
    """A VM with one vCPU for each service; several of them on a pCPU have services of the same kind."""
    for number in range(shape.services):
        for cpu, (work_us, sleep_us) in zip(CPUS, SERVICES, strict=True):
            scope = vm(MACHINE, f"critical{number}{cpu}", GREATEST)
            mask = 1 << cpu if shape.pinned else ALL
            yield f"critical{number}{cpu} {leaf(scope, 'vcpu0')} {mask} {shape.kind} {work_us} {sleep_us}"


def batch(shape: Shape) -> Iterator[str]:
    """VMs whose vCPUs are all full, and whose emulator thread wakes up and sleeps now and then."""
    above, weight = MACHINE, LEAST
    if shape.common:
        above, weight = group(BATCH), DEFAULT
        name, value = ("cpu.idle", 1) if shape.common == "idle" else ("cpu.weight", LEAST)
        (above / name).write_text(str(value))
    for number in range(shape.vms):
        scope = vm(above, f"batch{number}", weight)
        own = 1 << number % len(CPUS) if shape.single else ALL
        for vcpu in range(shape.vcpus):
            mask = 1 << vcpu % len(CPUS) if shape.batch_pinned else own
            yield f"batch{number}vcpu{vcpu} {leaf(scope, f'vcpu{vcpu}')} {mask} spin"
        yield f"batch{number}main {leaf(scope, 'emulator')} {own} beat {BEAT[0]} {BEAT[1]}"


def vm(above: Path, name: str, weight: int) -> Path:
    """The scope of a VM, and the group in it that libvirt's groups of threads are in."""
    scope = group(above / f"machine-qemu-{name}.scope")
    (scope / "cpu.weight").write_text(str(weight))
    return group(scope / "libvirt")


def leaf(scope: Path, name: str) -> Path:
    return group(scope / name)


def group(folder: Path) -> Path:
    """A group, whose parent has the cpu controller enabled for it."""
    (folder.parent / "cgroup.subtree_control").write_text("+cpu")
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def groups() -> Iterator[None]:
    """machine.slice, removed afterwards with all below."""
    group(MACHINE)
    try:
        yield
    finally:
        for folder in sorted(MACHINE.rglob("*/"), reverse=True):
            folder.rmdir()
        MACHINE.rmdir()
