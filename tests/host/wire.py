"""The program on taps with one interface, and packets that are handed to it one by one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing

import pytest

from manager.host.taps import TapProgram
from manager.model.traffic import ServiceTraffic
from tests.host.conftest import REAL
from tests.host.packets import ACK, SYN, Connection, run_on

INTERFACE = 1
"""That of packets of a test run: the loopback."""
PASSES = -1
PAUSE_S = 0.02
GET, OK = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NEEDS_BPF = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bpftool") is None, reason="NOT TESTED: needs root and bpftool"
)


class Wire:
    """The program with one interface that it looks at; packets are handed to it one by one."""

    def __init__(self, program: TapProgram) -> None:
        self.program = program
        program.admit(INTERFACE)

    def to_guest(self, packet: bytes) -> None:
        assert run_on(self.program.programs[0], packet) == PASSES

    def from_guest(self, packet: bytes) -> None:
        assert run_on(self.program.programs[1], packet) == PASSES

    def accept(self, connection: Connection) -> Connection:
        """Its handshake."""
        self.to_guest(connection.to_guest(flags=SYN))
        self.from_guest(connection.from_guest(flags=SYN | ACK))
        self.to_guest(connection.to_guest(flags=ACK))
        return connection

    def turn(self, connection: Connection, request: bytes = GET, answer: bytes = OK) -> None:
        """A request and its answer."""
        self.to_guest(connection.to_guest(request))
        self.from_guest(connection.from_guest(answer))

    @property
    def all(self) -> list[ServiceTraffic]:
        return self.program.traffic()

    @property
    def seen(self) -> ServiceTraffic:
        """Of the only service."""
        [only] = self.all
        return only

    @property
    def lost(self) -> dict[str, int]:
        return self.program.lost()

    @property
    def sampled_share(self) -> float:
        return self.program.sampled_share

    def detach(self) -> None:
        self.program.detach(INTERFACE)
        self.program.admit(INTERFACE)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(TapProgram(REAL)) as program:
        yield Wire(program)


def time_us(wire: Wire) -> float:
    """The one response time that was seen."""
    assert wire.seen.times.count == 1
    return wire.seen.times.percentile_us(50) or 0.0
