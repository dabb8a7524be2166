"""Round trips of a critical VM beside a batch VM that floods their uplink, without and with shares.

    python -m tests.bench.network_shares [--seconds 10] [--rate-mbit 45] [--json FILE]

The two VMs are network namespaces behind a bridge, on this kernel. Their uplink leads to a wire of 50 Mbit/s (tbf with
a queue of 100 ms); the batch VM sends over four TCP connections what it can, the critical one asks for 1,000 bytes each
4 ms, over one. The uplink's rate is set a little below the wire's, so that packets wait where Equipoise orders
them; the ceiling of the batch VM is what Heracles' formula gives while the critical one sends next to nothing. What a
flood gets is shown, too. Everything is gone at the end.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manager.control.network_plan import batch_ceiling_kbit, floor_kbit
from manager.host.knob_files import VmTarget
from manager.host.network_shares import NetworkShares
from manager.host.registry import HostPaths
from manager.host.resources.link_counters import read_links
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import NO_RATE, EgressGroup
from tests.bench.figures import machine, undone_when_told_to_end, write_json
from tests.host.uplink_wire import BATCH_ADDRESS, CRITICAL_ADDRESS, WIRE_MBIT, Wire, lacks, slow_wire

GROUPS = {"web": (CRITICAL_ADDRESS, EgressGroup.CRITICAL), "hog": (BATCH_ADDRESS, EgressGroup.BATCH)}
FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of round trips of the critical VM, and what the uplink sent meanwhile."""

    what: str
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    uplink_mbit: float


def measured(what: str, wire: Wire, seconds: float, *, flooded: bool) -> Row:
    """So many seconds of round trips. The flood also sends while it warms up, and while it is started and ended."""
    before = read_links()[wire.index].sent_bytes
    times = wire.round_trips_ms(seconds, flooded=flooded)
    sent = read_links()[wire.index].sent_bytes - before
    of = [times[int(len(times) * part)] for part in (0.5, 0.95, 0.99)]
    return Row(what, len(times), *of, sent * 8 / 1e6 / (seconds + (1.0 if flooded else 0.0)))


def rows(wire: Wire, seconds: float, rate_kbit: int) -> Iterator[Row]:
    """Alone, beside the flood, and beside it with shares."""
    yield measured("alone", wire, seconds, flooded=False)
    yield measured("beside the flood", wire, seconds, flooded=True)
    addresses = {name: (bytes.fromhex(address.replace(":", "")),) for name, (address, _) in GROUPS.items()}
    shares = NetworkShares(HostPaths(Path("/")), addresses.__getitem__)
    index = socket.if_nametoindex(wire.uplink)
    shares.write(KnobKey(HOST_UUID, Knob.UPLINK_RATE, index), rate_kbit, None)
    for name, (_, group) in GROUPS.items():
        shares.write(KnobKey(name, Knob.EGRESS_GROUP, index), int(group), VmTarget(name, None, ()))
    yield measured("beside it, with shares", wire, seconds, flooded=True)
    ceiling = batch_ceiling_kbit(rate_kbit, 0, floor_kbit(rate_kbit, FLOOR))
    shares.write(KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index), ceiling, None)
    yield measured("and a ceiling for batch", wire, seconds, flooded=True)
    shares.write(KnobKey(HOST_UUID, Knob.UPLINK_RATE, index), NO_RATE, None)


def show(found: Sequence[Row]) -> None:
    """Print a line each."""
    table = Table("critical VM", "round trips", "p50 ms", "p95 ms", "p99 ms", "uplink Mbit/s", "p95 x alone")
    for row in found:
        times = (f"{row.p50_ms:.2f}", f"{row.p95_ms:.2f}", f"{row.p99_ms:.2f}")
        table.add_row(row.what, f"{row.count}", *times, f"{row.uplink_mbit:.1f}", f"{row.p95_ms / found[0].p95_ms:.1f}")
    Console(width=130).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each line")
    parser.add_argument("--rate-mbit", type=float, default=WIRE_MBIT * 0.9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    reason = lacks()
    if reason:
        parser.error(f"this needs root, ip and tc: {reason}")
    with undone_when_told_to_end(), slow_wire() as wire:
        found = list(rows(wire, options.seconds, round(options.rate_mbit * 1000)))
    print(machine())
    show(found)
    write_json(options.json, {"results": [asdict(row) for row in found]})


if __name__ == "__main__":
    main()
