"""The program on taps in the newest kernel: its verifier takes it, it is attached, and it counts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.model.traffic import TapProtocol
from tests.host.packets import ACK, SYN, Connection, run_on

LOOPBACK = 1


def test_it_is_loaded_attached_and_counts() -> None:
    with closing(TapProgram(HostPaths(Path("/")))) as program:
        program.attach(LOOPBACK)
        to_guest, from_guest = program.programs
        connection = Connection()
        assert run_on(from_guest, connection.from_guest(flags=SYN | ACK)) == -1
        assert run_on(to_guest, connection.to_guest(b"GET / HTTP/1.1\r\n\r\n")) == -1
        assert run_on(from_guest, connection.from_guest(b"HTTP/1.1 200 OK\r\n\r\n")) == -1
        [seen] = program.traffic()
        assert (seen.protocol, seen.answers, seen.times.count) == ((TapProtocol.HTTP, 1.0), 1, 1)
        program.detach(LOOPBACK)
        assert program.traffic() == []
    assert not list(Path("/sys/fs/bpf").glob("equipoise_tap*"))
