"""What a tick takes to read the shares of an uplink with a class for each VM, with and without their turns.

    python -m tests.bench.uplink_reading [--vms 50] [--times 1000] [--json FILE]

The uplink is one of the kernel's own making behind a bridge; each VM has an address, a filter and a class, half of them
critical, every fifth with a turn of its own. One reading is what a tick does: look anew, then the host's knobs and
those of all VMs. Both ways read alternately, so that what else runs disturbs them alike. Everything is gone at the end.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manager.host.knob_files import VmTarget
from manager.host.network_shares import NetworkShares
from manager.host.registry import HostPaths
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import USUAL_TURN, EgressGroup
from tests.bench.figures import Spread, machine, undone_when_told_to_end, write_json
from tests.host.uplink_wire import Wire, lacks, slow_wire

RATE_KBIT = 45_000
WITH_TURN = 5


class WithoutTurns(NetworkShares):
    """As it is without the knob `egress_turn`: it asks for no VM's own class."""

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        if vm is None:
            return super().keys(vm)
        return [KnobKey(vm.uuid, Knob.EGRESS_GROUP, index) for index in self._examined() if self._is_ours(index)]


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one reading; ``knobs`` were read."""

    what: str
    knobs: int
    wall_us: Spread
    cpu_us: Spread


def targets(count: int) -> list[VmTarget]:
    """So many VMs, which are nothing but an address."""
    return [VmTarget(f"vm-{number}", None, ()) for number in range(count)]


def address(uuid: str) -> tuple[bytes]:
    """Of a VM's only interface."""
    return (bytes.fromhex("525400e9") + int(uuid.removeprefix("vm-")).to_bytes(2, "big"),)


def divide(shares: NetworkShares, index: int, vms: Sequence[VmTarget]) -> None:
    """Give the uplink its classes."""
    shares.look()
    shares.write(KnobKey(HOST_UUID, Knob.UPLINK_RATE, index), RATE_KBIT, None)
    for number, vm in enumerate(vms):
        group = (EgressGroup.CRITICAL, EgressGroup.BATCH)[number % 2]
        shares.write(KnobKey(vm.uuid, Knob.EGRESS_GROUP, index), int(group), vm)
        if number % WITH_TURN == 0:
            shares.write(KnobKey(vm.uuid, Knob.EGRESS_TURN, index), 2 * USUAL_TURN, vm)


def read(shares: NetworkShares, vms: Sequence[VmTarget]) -> int:
    """As a tick does. Returns how many knobs there are."""
    shares.look()
    return len(shares.read(None)) + sum(len(shares.read(vm)) for vm in vms)


def rows(wire: Wire, vms: Sequence[VmTarget], times: int) -> list[Row]:
    """Both ways alternately."""
    paths = HostPaths(Path("/"))
    ways = {"without turns": WithoutTurns(paths, address), "with turns": NetworkShares(paths, address)}
    divide(ways["with turns"], wire.index, vms)
    knobs = {what: read(shares, vms) for what, shares in ways.items()}
    wall: dict[str, list[float]] = {what: [] for what in ways}
    cpu: dict[str, list[float]] = {what: [] for what in ways}
    gc.collect()
    gc.disable()
    for _ in range(times):
        for what, shares in ways.items():
            began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            read(shares, vms)
            cpu[what].append((time.thread_time_ns() - cpu_ns) / 1000)
            wall[what].append((time.perf_counter_ns() - began_ns) / 1000)
    gc.enable()
    return [Row(what, knobs[what], Spread.of(wall[what]), Spread.of(cpu[what])) for what in ways]


def show(found: Sequence[Row]) -> None:
    """Print a line each."""
    table = Table("reading", "knobs", "times", "mean us", "median us", "p99 us", "CPU, mean us")
    for row in found:
        us = row.wall_us
        figures = (f"{us.mean:.0f}", f"{us.median:.0f}", f"{us.p99:.0f}", f"{row.cpu_us.mean:.0f}")
        table.add_row(row.what, f"{row.knobs}", f"{us.count}", *figures)
    Console(width=110).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--times", type=int, default=1000, help="readings of each way")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    reason = lacks()
    if reason:
        parser.error(f"this needs root, ip and tc: {reason}")
    with undone_when_told_to_end(), slow_wire() as wire:
        found = rows(wire, targets(options.vms), options.times)
    print(f"{machine()}, {options.vms} VMs")
    show(found)
    write_json(options.json, {"vms": options.vms, "results": [asdict(row) for row in found]})


if __name__ == "__main__":
    main()
