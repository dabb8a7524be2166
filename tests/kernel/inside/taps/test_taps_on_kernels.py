"""The program on taps in this guest's kernel: its verifier takes it, and it counts what passes."""

from __future__ import annotations

import platform
import re
import socket
import threading
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.model.traffic import TapProtocol, TapWay
from tests.host.packets import ACK, SYN, Connection, answer_to, binary, run_on

LOOPBACK = 1
HOST = HostPaths(Path("/"))
HAS_TCX = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 6)
GET, OK = b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
PAGE, UPLOAD = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET "
LONG_OK = b"HTTP/1.1 200 OK\r\nServer: any\r\nContent-Length: 17\r\n\r\nHTTP/1.1 200 OK\r\n"
CHUNKED_OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nHTTP/\r\n0\r\n\r\n"
QUIET, VALUE = b"set q 0 0 3 noreply\r\nget\r\n", b"VALUE a 0 5\r\nEND\r\n\r\n"
TURNS = 20


def test_packets_with_known_answers(program: TapProgram) -> None:
    program.admit(LOOPBACK)
    to_guest, from_guest = program.programs
    connection = Connection()
    assert run_on(from_guest, connection.from_guest(flags=SYN | ACK)) == -1
    assert run_on(to_guest, connection.to_guest(GET)) == -1
    assert [seen.waiting.count for seen in program.traffic()] == [1]
    assert run_on(from_guest, connection.from_guest(OK)) == -1
    [seen] = program.traffic()
    assert (seen.protocol, seen.answers, seen.times.count) == ((TapProtocol.HTTP, 1.0), 1, 1)
    assert seen.waiting.count == 0


def test_pipelined_requests_behind_extension_headers(program: TapProgram) -> None:
    program.admit(LOOPBACK)
    to_guest, from_guest = program.programs
    connection = Connection(port=11211, version=6, extensions=((0, bytes(6)), (60, bytes(6))))
    run_on(from_guest, connection.from_guest(flags=SYN | ACK))
    for opaque in (1, 2, 3):
        run_on(to_guest, connection.to_guest(binary(opaque)))
    run_on(from_guest, connection.from_guest(answer_to(1) + answer_to(2)))
    [seen] = program.traffic()
    assert (seen.protocol, seen.answers, seen.untimed) == ((TapProtocol.MEMCACHED_BINARY, 1.0), 2, 0)
    assert seen.waiting.count == 1


@pytest.mark.parametrize(
    ("port", "requests", "answers"),
    [
        (80, PAGE + UPLOAD + PAGE, LONG_OK + b"HTTP/1.1 204 No Content\r\n\r\n" + CHUNKED_OK),
        (11211, b"get a b\r\n" + QUIET + b"get c\r\nset d 0 0 1\r\nx\r\n", VALUE + b"END\r\nEND\r\nSTORED\r\n"),
    ],
)
def test_requests_and_answers_that_share_packets(
    program: TapProgram, port: int, requests: bytes, answers: bytes
) -> None:
    program.admit(LOOPBACK)
    to_guest, from_guest = program.programs
    connection = Connection(port=port, client_port=40_001)  # no test before it had that one
    run_on(from_guest, connection.from_guest(flags=SYN | ACK))
    run_on(to_guest, connection.to_guest(requests[:45]))
    run_on(to_guest, connection.to_guest(requests[45:]))
    assert [seen.waiting.count for seen in program.traffic()] == [3]
    run_on(from_guest, connection.from_guest(answers[:30]))
    run_on(from_guest, connection.from_guest(answers[30:]))
    [seen] = program.traffic()
    assert (seen.answers, seen.untimed, seen.times.count, seen.waiting.count) == (3, 0, 3, 0)


@pytest.mark.parametrize("way", TapWay)
def test_real_connections(program: TapProgram, monkeypatch: pytest.MonkeyPatch, way: TapWay) -> None:
    monkeypatch.setattr(program, "_ways", [way])
    if way is TapWay.TCX and not HAS_TCX:
        with pytest.raises(HostError):
            program.attach(LOOPBACK)
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        program.attach(LOOPBACK)
        serving = threading.Thread(target=answer_turns, args=(server,))
        serving.start()
        for _ in range(2):
            with socket.create_connection(server.getsockname()) as client:
                for _ in range(TURNS):
                    client.sendall(GET)
                    client.recv(1000)
        serving.join()
        [seen] = [seen for seen in program.traffic() if seen.port == server.getsockname()[1]]
        assert (seen.requests[TapProtocol.HTTP], seen.answers, seen.connections) == (2 * TURNS, 2 * TURNS, 2)
        assert seen.handshakes.count == 1  # of the second one: that it serves is known by then


def test_the_first_way_that_the_kernel_knows_is_taken(program: TapProgram) -> None:
    assert program.attach(LOOPBACK) is (TapWay.TCX if HAS_TCX else TapWay.PACKET_SOCKET)


def answer_turns(server: socket.socket) -> None:
    for _ in range(2):
        client, _ = server.accept()
        with client:
            while client.recv(1000):
                client.sendall(OK)
