"""What it costs the agent to read the program on taps, by how many VMs and connections there are.

    python -m tests.bench.tap_reading [--vms 50] [--readings 50] [--json FILE]

Bar: with 50 VMs, read every second, at most 1 % of a core: 10 ms of CPU time, user and system, for a reading. How many
requests passed makes no difference: the program counts them in the kernel, where each VM has two services here, with
80 buckets each. The connections are real ones of the program, the counters are written into its maps. Needs root and
bpftool.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from manager.bpf import tap
from manager.host.taps import TapProgram, of_this_machine
from manager.model.histogram import FIRST_BUCKET
from tests.bench.figures import machine, verdict, write_json
from tests.host.packets import ACK, SYN, Connection, run_on

BAR_MS = 10.0
LOOPBACK = 1
PORTS = (80, 443)
TIMES, HANDSHAKES = 60, 20
CONNECTIONS = (0, 10_000, 60_000)


def fill(program: TapProgram, vms: int) -> None:
    """Let there be services of VMs, with their histograms."""
    count = (1).to_bytes(8, "little")
    for interface in range(1000, 1000 + vms):
        for port in PORTS:
            program._services.write(tap.KEY.pack(interface, port, 0), count * len(tap.COUNTERS))
            for bucket in range(FIRST_BUCKET, FIRST_BUCKET + TIMES):
                program._times.write(tap.KEY.pack(interface, port, bucket), count)
            for bucket in range(FIRST_BUCKET, FIRST_BUCKET + HANDSHAKES):
                program._times.write(tap.KEY.pack(interface, port, bucket | tap.HANDSHAKE), count)


def connect(program: TapProgram, numbers: range) -> None:
    """Let there be so many connections more, of each hundredth of which a request waits."""
    to_guest, from_guest = program.programs
    for number in numbers:
        connection = Connection(client_port=number + 1)
        run_on(from_guest, connection.from_guest(flags=SYN | ACK))
        run_on(to_guest, connection.to_guest(b"GET / HTTP/1.1\r\n\r\n"))
        if number % 100:
            run_on(from_guest, connection.from_guest(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))


def measure(vms: int, readings: int) -> Iterator[tuple[int, float]]:
    """Connections, and milliseconds of CPU time for a reading."""
    with closing(of_this_machine()) as program:
        program.admit(LOOPBACK)
        fill(program, vms)
        before = 0
        for connections in CONNECTIONS:
            connect(program, range(before, connections))
            before = connections
            times_ms = []
            for _ in range(readings):
                begun_s = time.process_time()
                program.traffic()
                times_ms.append((time.process_time() - begun_s) * 1000)
            yield connections, fmean(times_ms)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--readings", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    measured = dict(measure(options.vms, options.readings))
    table = Table("connections", "ms for a reading", "of a core at 1 s, %", "at 50 ms, %", "bar at 1 s")
    for connections, time_ms in measured.items():
        shares = (f"{100 * time_ms / every_ms:.2f}" for every_ms in (1000, 50))
        table.add_row(f"{connections:,}", f"{time_ms:.1f}", *shares, verdict(time_ms, BAR_MS))
    print(f"{options.vms} VMs; {machine()}")
    Console(width=100).print(table)
    write_json(options.json, {"bar_ms": BAR_MS, "vms": options.vms, "ms": measured})


if __name__ == "__main__":
    main()
