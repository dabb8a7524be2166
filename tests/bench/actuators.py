"""What one application of each mechanism costs: write it to the kernel, and read it back.

    python -m tests.bench.actuators [--vms 50] [--times 10000] [--domain NAME] [--json FILE]

Bars (design, section 9): 50 us a setting of CPU, cache, memory and disk, 1 ms of network. The study of 2017 (isolation
mechanisms for interactive services on big and small servers) gives means of 10,000 applications: CPU 6.5 ms, cache
1.6 ms, memory 6.9 ms, network 2.4 ms. Measured is ``KernelHost.write`` as a tick calls it: the files are held open, and
that a VM is still the same process is checked before its threads are pinned. Applications go round the VMs and
alternate between two values, so that each changes something; only interrupts get the value that they have.

Durability is a line of its own: a tick journals all that it is about to change in one transaction. For comparison the
same settings by libvirt are measured on ``--domain``, a running domain of qemu:///system, which gets the values it has.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import libvirt
from rich.console import Console
from rich.table import Table

from manager.errors import HostError
from manager.host.kernel_host import KernelHost
from manager.loop.journal import Entry, Journal
from manager.model.decision import Owned
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.network import EgressGroup
from tests.bench.figures import Spread, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.vms import Listed, Vm, Vms, running_vms
from tests.host.uplink_wire import lacks, slow_wire

CPU_BAR_US, MEMORY_BAR_US, DISK_BAR_US, NETWORK_BAR_US = 50.0, 50.0, 50.0, 1000.0
CPU_2017_US, MEMORY_2017_US, NETWORK_2017_US = 6500.0, 6900.0, 2400.0
LIBVIRT_TIMES, COMMITS, MOVES = 1000, 2000, 1000
BATCHES = (1, 50, 400)
URI = "qemu:///system"


@dataclass(frozen=True)
class Row:
    """Microseconds of one mechanism; None: it was skipped, and ``note`` says why."""

    what: str
    us: Spread | None
    bar_us: float | None = None
    study_us: float | None = None
    note: str = ""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the collector, whose pauses are no part of a mechanism."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def timed(act: Callable[[int], object], times: int) -> Spread:
    """Microseconds of each of so many calls; ``act`` gets their number."""
    spent_us = []
    with undisturbed():
        for number in range(times):
            began_ns = time.perf_counter_ns()
            act(number)
            spent_us.append((time.perf_counter_ns() - began_ns) / 1000)
    return Spread.of(spent_us)


def of_knob(
    host: KernelHost, vms: Sequence[Vm], knob: Knob, index: int, values: tuple[KnobValue, KnobValue], times: int
) -> Spread:
    """Applications of one knob, round the VMs."""
    keys = [(vm.instance, KnobKey(vm.uuid, knob, index)) for vm in vms]
    count = len(keys)
    for instance, _ in keys:
        host.read(instance)  # opens its files

    def act(number: int) -> None:
        instance, key = keys[number % count]
        host.write(instance, key, values[number // count % 2])

    return timed(act, times)


def vm_rows(host: KernelHost, vms: Sequence[Vm], times: int) -> Iterator[Row]:
    """The knobs of VMs."""
    online = host.capabilities.online_cpus
    first, last = frozenset({min(online)}), frozenset({max(online)})
    state = host.read(vms[0].instance)
    if state.weight is not None:
        us = of_knob(host, vms, Knob.WEIGHT, 0, (2000, 3000), times)
        yield Row("weight", us, CPU_BAR_US, CPU_2017_US)
    else:
        yield Row("weight", None, note="no CPU group")
    if state.idle is None:
        yield Row("idle class", None, note="this kernel has no cpu.idle")
    else:
        yield Row("idle class", of_knob(host, vms, Knob.IDLE, 0, (1, 0), times), CPU_BAR_US, CPU_2017_US)
        for vm in vms:
            host.write(vm.instance, KnobKey(vm.uuid, Knob.IDLE), 0)
    if state.quota is None:
        yield Row("quota", None, note="this kernel has no quota")
    else:
        us = of_knob(host, vms, Knob.QUOTA, 0, (150_000, UNLIMITED), times)
        yield Row("quota", us, CPU_BAR_US, CPU_2017_US)
    us = of_knob(host, vms, Knob.VCPU_PIN, 1, (first, last), times)
    yield Row("vCPU affinity", us, CPU_BAR_US, CPU_2017_US)
    threads = len(list(Path(f"/proc/{vms[0].instance.pid}/task").iterdir())) - 2
    us = of_knob(host, vms, Knob.EMULATOR_PIN, 0, (first, last), times)
    note = f"{threads} threads of each VM, and looking for new ones"
    yield Row("emulator affinity", us, CPU_BAR_US, CPU_2017_US, note)


def limit_rows(host: KernelHost, vms: Sequence[Vm], times: int) -> Iterator[Row]:
    """Limits of memory and shares of disks, as far as this kernel has them; the first disk stands for all."""
    there = host.knobs(vms[0].instance, Family.MEMORY).keys() | host.knobs(vms[0].instance, Family.DISK).keys()
    indexes = {key.knob: key.index for key in sorted(there, reverse=True) if key.uuid != HOST_UUID}
    for knob, values, bar_us, study_us in (
        (Knob.MEMORY_PROTECTION, (1 << 28, 1 << 29), MEMORY_BAR_US, MEMORY_2017_US),
        (Knob.SWAPPINESS, (0, 60), MEMORY_BAR_US, MEMORY_2017_US),
        (Knob.MEMORY_CEILING, (1 << 30, 1 << 31), MEMORY_BAR_US, MEMORY_2017_US),
        (Knob.BFQ_WEIGHT, (20, 1000), DISK_BAR_US, None),
        (Knob.IO_WEIGHT, (20, 1000), DISK_BAR_US, None),
        (Knob.DISK_CEILING, (100, 200), DISK_BAR_US, None),
    ):
        what = knob.replace("_", " ")
        if knob not in indexes:
            yield Row(what, None, note="this kernel has none for these VMs")
            continue
        yield Row(what, of_knob(host, vms, knob, indexes[knob], values, times), bar_us, study_us)


def interrupt_row(host: KernelHost, times: int) -> Row:
    """The affinity of a network interface's interrupt, written as it is."""
    what = "interrupt affinity"
    for key, cpus in host.knobs(host.itself, Family.INTERRUPT).items():
        try:
            host.write(host.itself, key, cpus)
        except HostError:  # the kernel manages this one itself
            continue
        us = timed(lambda _number, key=key, cpus=cpus: host.write(host.itself, key, cpus), times)  # type: ignore[misc]
        return Row(what, us, NETWORK_BAR_US, NETWORK_2017_US, f"interrupt {key.index}, the value it has")
    return Row(what, None, note="no interrupt of a network interface that may be moved")


def uplink_rows(host: KernelHost, vms: Sequence[Vm], times: int) -> Iterator[Row]:
    """The classes of an uplink, a veth pair of our own behind a bridge of our own, with one for each VM."""
    names = ("batch ceiling of an uplink", "share of an uplink")
    reason = lacks()
    if reason:
        yield from (Row(name, None, note=reason) for name in names)
        return
    with slow_wire() as wire:
        rate, ceiling = (KnobKey(HOST_UUID, knob, wire.index) for knob in (Knob.UPLINK_RATE, Knob.BATCH_EGRESS))
        host.look()
        try:
            host.write(host.itself, rate, 1_000_000)
        except HostError as error:
            yield from (Row(name, None, note=f"{error}") for name in names)
            return
        for vm in vms:
            host.write(vm.instance, KnobKey(vm.uuid, Knob.EGRESS_GROUP, wire.index), EgressGroup.BATCH)
        values = (400_000, 500_000)
        us = timed(lambda number: host.write(host.itself, ceiling, values[number % 2]), times)
        note = f"{len(vms)} VMs on it"
        yield Row(names[0], us, NETWORK_BAR_US, NETWORK_2017_US, note)
        groups = (EgressGroup.CRITICAL, EgressGroup.BATCH)
        us = of_knob(host, vms, Knob.EGRESS_GROUP, wire.index, groups, min(times, MOVES))
        note = "a class with its filter is made, and one removed"
        yield Row(names[1], us, None, None, note)


def journal_rows(host: KernelHost, vms: Sequence[Vm], folder: Path) -> Iterator[Row]:
    """A durable commit of intents, by how many knobs there are in it."""
    values = itertools.cycle((2000, 3000))
    for size in BATCHES:
        journal = Journal(folder / f"journal-{size}.db", host.boot_id)

        def act(_number: int, size: int = size, journal: Journal = journal) -> None:
            owned = Owned(1024, previous=1024, intended=next(values))
            put = {
                KnobKey(f"{vms[number % len(vms)].uuid}", Knob.VCPU_PIN, number): Entry(vms[0].instance, "vm", owned)
                for number in range(size)
            }
            journal.update(put)

        us = timed(act, COMMITS // (10 if size > 100 else 1))
        journal.close()
        yield Row(f"journal commit, {size} settings", us, note=f"{us.median / size:.1f} us a setting")


def libvirt_rows(name: str) -> Iterator[Row]:
    """The same settings by libvirt, on a running domain."""
    calls = ("setSchedulerParametersFlags", "pinVcpu")
    if not name:
        yield from (Row(f"libvirt {call}", None, note="no --domain given") for call in calls)
        return
    connection = libvirt.open(URI)
    try:
        domain = connection.lookupByName(name)
        shares = {"cpu_shares": domain.schedulerParameters()["cpu_shares"]}
        pinned = domain.vcpuPinInfo()[0]
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        weigh = timed(lambda _number: domain.setSchedulerParametersFlags(shares, live), LIBVIRT_TIMES)
        yield Row(f"libvirt {calls[0]}", weigh, note="the value it has")
        yield Row(f"libvirt {calls[1]}", timed(lambda _n: domain.pinVcpu(0, pinned), LIBVIRT_TIMES), note="as above")
    finally:
        connection.close()


def measure(vms: Vms, started: Sequence[Vm], times: int, domain: str) -> Iterator[Row]:
    """All rows. What a VM's knobs were is of no interest: the VMs end with the benchmark."""
    host = KernelHost(vms.paths, Listed.of(started))  # type: ignore[arg-type]
    try:
        yield from vm_rows(host, started, times)
        yield from limit_rows(host, started, times)
        yield interrupt_row(host, times)
        yield from uplink_rows(host, started, times)
    finally:
        host.forget(frozenset())
    with tempfile.TemporaryDirectory(dir=vms.folder) as folder:
        yield from journal_rows(host, started, Path(folder))
    yield from libvirt_rows(domain)


def show(rows: Sequence[Row]) -> None:
    """Print a line a mechanism."""
    table = Table("mechanism", "times", "mean us", "median", "p99", "bar (mean)", "2017 us", "faster", "")
    for row in rows:
        if row.us is None:
            table.add_row(row.what, "skipped", *("" for _ in range(6)), row.note)
            continue
        bar = f"<= {row.bar_us:g}: {verdict(row.us.mean, row.bar_us)}" if row.bar_us else ""
        numbers = (f"{row.us.mean:.1f}", f"{row.us.median:.1f}", f"{row.us.p99:.1f}")
        study = (f"{row.study_us:g}", f"{row.study_us / row.us.mean:,.0f} x") if row.study_us else ("", "")
        table.add_row(row.what, f"{row.us.count}", *numbers, bar, *study, row.note)
    Console(width=150).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--domain", default="", help="a running domain to try libvirt's own calls on")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with undone_when_told_to_end(), ExitStack() as stack:
        vms, started = stack.enter_context(running_vms(options.vms))
        rows = list(measure(vms, started, options.times, options.domain))
    print(machine())
    show(rows)
    write_json(options.json, {"results": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
