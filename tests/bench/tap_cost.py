"""What the program on taps costs for a packet, by the kernel's own test run.

    python -m tests.bench.tap_cost [--packets 1000000] [--json FILE]

Bar: at most 1 us. The kernel runs the program again and again on one packet and says how long it took on average; the
packet is in the CPU's caches then, and is not copied. *passed*: UDP, which is looked at no further. *no service*: TCP
to a port that nobody serves. *acknowledgement*: TCP without content. *sent again*: a request that was seen already.
*request* and *answer*: new ones by turns, one run each, as the kernel times them. *SYN* to *FIN*: of connections for
one request each. *looked through*: the first 16 messages of each connection. *two requests* and *two answers*: of a
client that pipelines, each two in one packet, which is looked through. Needs root and bpftool.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from manager.host.bpf_calls import call
from manager.host.taps import of_this_machine
from tests.bench.figures import machine, verdict, write_json
from tests.host.packets import ACK, FIN, PROG_TEST_RUN, SYN, TEST, Connection, run_on

BROWSER = b"""\
GET /shop/cart?item=4711 HTTP/1.1\r
Host: shop.example.org\r
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r
Accept-Language: en-US,en;q=0.5\r
Accept-Encoding: gzip, deflate, br\r
Connection: keep-alive\r
Cookie: session=0123456789abcdef0123456789abcdef\r
\r
"""
NGINX = (
    b"""\
HTTP/1.1 200 OK\r
Server: nginx/1.22.1\r
Date: Thu, 26 Nov 2026 12:00:00 GMT\r
Content-Type: text/html\r
Content-Length: 612\r
Last-Modified: Tue, 24 Nov 2026 08:00:00 GMT\r
Connection: keep-alive\r
ETag: "65e1c2a0-264"\r
Accept-Ranges: bytes\r
\r
"""
    + b"x" * 612
)
LOOKED_THROUGH = (
    (("a browser's request, looked through", "NGINX's answer, looked through"), BROWSER, NGINX),
    (
        ("memcached's get, looked through", "its answer of 100 bytes, looked through"),
        b"get user:4711\r\n",
        b"VALUE user:4711 0 100\r\n" + b"x" * 100 + b"\r\nEND\r\n",
    ),
)
LOOKED_AT = 16
"""Segments of requests of a connection whose client takes turns: MOST_YOUNG of manager/bpf/tap/tap.h."""
BAR_NS = 1000.0
LOOPBACK = 1
TURNS = 20_000
_DURATION_AT = 36


def repeated_ns(program: int, packet: bytes, times: int) -> int:
    """Mean time of the program for a packet, run so often."""
    data = ctypes.create_string_buffer(packet, len(packet))
    packed = TEST.pack(program, 0, len(packet), 0, ctypes.addressof(data), 0, times, *[0] * 8)
    attributes = ctypes.create_string_buffer(packed, len(packed))
    call("test run", PROG_TEST_RUN, attributes)
    return int(struct.unpack_from("=I", attributes, _DURATION_AT)[0])


def measure(packets: int) -> Iterator[tuple[str, float]]:
    """Nanoseconds for a packet, by what it is."""
    get, ok = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
    ended = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with closing(of_this_machine()) as program:
        program.admit(LOOPBACK)
        to_guest, from_guest = program.programs
        connection = Connection()
        run_on(from_guest, connection.from_guest(flags=SYN | ACK))
        udp = bytearray(connection.to_guest(b"x" * 40))
        udp[23] = 17
        yield "passed", repeated_ns(to_guest, bytes(udp), packets)
        yield "no service", repeated_ns(to_guest, Connection(port=81).to_guest(get), packets)
        yield "acknowledgement", repeated_ns(to_guest, connection.to_guest(flags=ACK), packets)
        run_on(to_guest, connection.to_guest(get))
        yield "sent again", repeated_ns(to_guest, connection.to_guest(get, back=len(get)), packets)
        turns = [(connection.to_guest(get), connection.from_guest(ok)) for _ in range(TURNS)]
        timed = [(repeated_ns(to_guest, request, 1), repeated_ns(from_guest, answer, 1)) for request, answer in turns]
        yield "request", fmean(request_ns for request_ns, _ in timed)
        yield "answer", fmean(answer_ns for _, answer_ns in timed)
        yield from anew(to_guest, from_guest, get, ended)
        for kinds, ask, answered in LOOKED_THROUGH:
            yield from zip(kinds, looked_through(to_guest, from_guest, ask, answered), strict=True)
        pipelining = Connection(client_port=40_001)
        run_on(from_guest, pipelining.from_guest(flags=SYN | ACK))
        turns = [(pipelining.to_guest(get * 2), pipelining.from_guest(ended * 2)) for _ in range(TURNS)]
        timed = [(repeated_ns(to_guest, request, 1), repeated_ns(from_guest, answer, 1)) for request, answer in turns]
        yield "two requests", fmean(request_ns for request_ns, _ in timed)
        yield "two answers", fmean(answer_ns for _, answer_ns in timed)


def anew(to_guest: int, from_guest: int, request: bytes, answer: bytes) -> Iterator[tuple[str, float]]:
    """Of connections that carry one request each."""
    timed: dict[str, list[int]] = {}
    for number in range(TURNS):
        connection = Connection(client_port=41_000 + number % 20_000, sent=number * 7919)
        for kind, program, packet in (
            ("SYN", to_guest, connection.to_guest(flags=SYN)),
            ("SYN, accepted", from_guest, connection.from_guest(flags=SYN | ACK)),
            ("first request", to_guest, connection.to_guest(request)),
            ("first answer", from_guest, connection.from_guest(answer)),
            ("FIN", from_guest, connection.from_guest(flags=FIN | ACK)),
        ):
            timed.setdefault(kind, []).append(repeated_ns(program, packet, 1))
    for kind, times_ns in timed.items():
        yield kind, fmean(times_ns)
    yield "a connection's, mean", fmean(time_ns for times_ns in timed.values() for time_ns in times_ns)


def looked_through(to_guest: int, from_guest: int, request: bytes, answer: bytes) -> tuple[float, float]:
    """Nanoseconds for a request and for its answer, of connections for as long as they are looked through."""
    timed: tuple[list[int], list[int]] = [], []
    for number in range(TURNS // LOOKED_AT):
        connection = Connection(client_port=41_000 + number % 20_000, sent=number * 7919)
        run_on(from_guest, connection.from_guest(flags=SYN | ACK))
        for _ in range(LOOKED_AT):
            timed[0].append(repeated_ns(to_guest, connection.to_guest(request), 1))
            timed[1].append(repeated_ns(from_guest, connection.from_guest(answer), 1))
        run_on(from_guest, connection.from_guest(flags=FIN | ACK))
    return fmean(timed[0]), fmean(timed[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000, help="of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    measured = dict(measure(options.packets))
    table = Table("packet", "ns", "bar")
    for kind, time_ns in measured.items():
        table.add_row(kind, f"{time_ns:.0f}", verdict(time_ns, BAR_NS))
    print(machine())
    Console(width=80).print(table)
    write_json(options.json, {"bar_ns": BAR_NS, "ns": measured})


if __name__ == "__main__":
    main()
