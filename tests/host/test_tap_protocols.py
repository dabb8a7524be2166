"""What the program on taps takes for requests and answers, by protocol, run by this kernel on packets."""

from __future__ import annotations

import time

import pytest

from manager.model.histogram import RELATIVE_ERROR
from manager.model.traffic import TapProtocol
from tests.host.packets import ACK, FIN, SYN, Connection
from tests.host.wire import GET, NEEDS_BPF, OK, PAUSE_S, Wire, time_us, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF


@pytest.mark.parametrize(
    ("protocol", "request_", "answer", "error"),
    [
        (TapProtocol.HTTP, GET, OK, b"HTTP/1.1 503 Service Unavailable\r\n\r\n"),
        (TapProtocol.MEMCACHED, b"get a b c\r\n", b"END\r\n", b"SERVER_ERROR out of memory\r\n"),
        (
            TapProtocol.MEMCACHED,
            b"set a 0 0 1 noreply\r\nb\r\nget a\r\n",
            b"VALUE a 0 1\r\nb\r\nEND\r\n",
            b"SERVER_ERROR\r\n",
        ),
        (TapProtocol.MEMCACHED, b"mg a v\r\n", b"EN\r\n", b"SERVER_ERROR\r\n"),
        (
            TapProtocol.MEMCACHED_BINARY,
            b"\x80\x00\x00\x01\x00\x00" + bytes(18) + b"a",
            b"\x81\x00\x00\x00\x00\x00\x00\x01" + bytes(16),
            b"\x81\x00\x00\x00\x00\x00\x00\x82" + bytes(16),
        ),
        (TapProtocol.OTHER, b"\x00\x00\x00\x08whatever", b"\x00", b""),
    ],
)
def test_protocols_and_their_errors(
    wire: Wire, protocol: TapProtocol, request_: bytes, answer: bytes, error: bytes
) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection, request_, answer)
    wire.turn(connection, request_, answer)
    if error:
        wire.turn(connection, request_, error)
    seen = wire.seen
    assert seen.protocol == (protocol, 1.0)
    assert (seen.answers, seen.errors) == (2 + bool(error), int(bool(error)))
    assert seen.times.count == seen.answers == sum(seen.requests.values()) // (1 + request_.count(b"noreply"))


def test_100_continue_is_no_answer(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection, b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n")
    time.sleep(PAUSE_S)
    begun_s = time.monotonic()
    wire.turn(connection, b"content")
    assert time_us(wire) <= (time.monotonic() - begun_s) * 1e6 * (1 + 2 * RELATIVE_ERROR)
    assert wire.seen.requests[TapProtocol.HTTP] == 1


def test_the_handshake_of_tls_is_no_request(wire: Wire) -> None:
    connection = wire.accept(Connection(port=443))
    wire.turn(connection, b"\x16\x03\x01\x02\x00 hello", b"\x16\x03\x03\x00\x7a hello")
    wire.to_guest(connection.to_guest(b"\x14\x03\x03\x00\x01\x01\x17\x03\x03 finished"))
    for _ in range(3):
        wire.turn(connection, b"\x17\x03\x03\x00\x50 request", b"\x17\x03\x03\x00\x50 answer")
    seen = wire.seen
    assert seen.protocol == (TapProtocol.TLS, 1.0)
    assert (seen.requests[TapProtocol.TLS], seen.answers, seen.untimed) == (3, 2, 1)


HELLO, REPLY = b"\x16\x03\x01\x02\x00\x01" + bytes(511), b"\x16\x03\x03\x00\x7a\x02" + bytes(121)
CIPHER = b"\x14\x03\x03\x00\x01\x01"


def record(length: int) -> bytes:
    """Of TLS, encrypted."""
    return b"\x17\x03\x03" + length.to_bytes(2, "big") + bytes(length)


FINISHED, ALERT, TICKET = record(0x45), record(0x13), record(0xD5)


@pytest.fixture
def tls(wire: Wire) -> Connection:
    """A connection of TLS 1.3 after its handshake, with a request and its answer."""
    connection = wire.accept(Connection(port=443))
    wire.turn(connection, HELLO, REPLY)
    wire.to_guest(connection.to_guest(CIPHER + FINISHED))
    wire.from_guest(connection.from_guest(TICKET))
    wire.turn(connection, record(80), record(200))
    assert (wire.seen.requests[TapProtocol.TLS], wire.seen.answers, wire.seen.untimed) == (1, 0, 1)
    return connection


def test_alerts_of_tls_neither_ask_nor_answer(wire: Wire, tls: Connection) -> None:
    """As close_notify, which clients and servers send at the end."""
    wire.to_guest(tls.to_guest(ALERT))
    wire.from_guest(tls.from_guest(ALERT))
    wire.from_guest(tls.from_guest(flags=FIN | ACK))
    seen = wire.seen
    assert (seen.requests[TapProtocol.TLS], seen.answers, seen.untimed, seen.unanswered) == (1, 0, 1, 0)


def test_a_handshake_of_tls_that_the_server_has_begin_again(wire: Wire) -> None:
    """HelloRetryRequest: the client's Finished comes alone, and a ticket after the first request."""
    connection = wire.accept(Connection(port=443))
    wire.turn(connection, HELLO, REPLY)
    wire.turn(connection, CIPHER + HELLO, REPLY)
    wire.to_guest(connection.to_guest(FINISHED))
    wire.from_guest(connection.from_guest(TICKET))
    wire.to_guest(connection.to_guest(record(80)))
    wire.from_guest(connection.from_guest(TICKET))
    wire.from_guest(connection.from_guest(record(200)))
    wire.turn(connection, record(80), record(200))
    seen = wire.seen
    assert (seen.requests[TapProtocol.TLS], seen.answers, seen.untimed, seen.unanswered) == (2, 1, 1, 0)


def test_a_request_in_the_packet_that_ends_the_handshake_of_tls(wire: Wire) -> None:
    connection = wire.accept(Connection(port=443))
    wire.turn(connection, HELLO, REPLY)
    wire.turn(connection, CIPHER + FINISHED + record(80), record(200))
    assert (wire.seen.requests[TapProtocol.TLS], wire.seen.untimed) == (1, 1)


@pytest.mark.parametrize("size", [0x35, 0x45])
def test_a_request_of_tls_1_2_is_no_finished_whatever_its_size(wire: Wire, size: int) -> None:
    connection = wire.accept(Connection(port=443))
    wire.turn(connection, HELLO, REPLY)
    exchange = b"\x16\x03\x03\x00\x25\x10" + bytes(36)
    wire.turn(connection, exchange + CIPHER + b"\x16\x03\x03\x00\x28" + bytes(40), CIPHER + b"\x16\x03\x03\x00\x28")
    for _ in range(2):
        wire.turn(connection, record(size), record(200))
    assert (wire.seen.requests[TapProtocol.TLS], wire.seen.answers, wire.seen.untimed) == (2, 1, 1)


def test_101_is_an_answer_and_what_follows_is_none(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection, GET, b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    wire.from_guest(connection.from_guest(b"\x81\x05hello"))
    wire.turn(connection, b"\x81\x85hello, too", b"\x81\x05hello")
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers) == (1, 1)


def test_the_rest_of_a_request_that_was_answered_early_is_none(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 413 Too Large\r\n\r\n")
    wire.turn(connection, b"the rest", b"and of it")
    wire.turn(connection)
    assert (sum(wire.seen.requests.values()), wire.seen.answers) == (2, 2)


@pytest.mark.parametrize(
    "command",
    [
        b"set a 0 0 1 noreply\r\nb\r\n",
        b"set " + b"k" * 90 + b" 0 0 1000 noreply\r\n" + b"v" * 1000 + b"\r\n",
        b"delete a noreply\r\n",
        b"incr counter 1 noreply\r\n",
    ],
)
def test_commands_of_memcached_that_want_no_answer_do_not_wait_for_one(wire: Wire, command: bytes) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(command))
    assert wire.seen.waiting.count == 0
    wire.turn(connection, b"get a\r\n", b"END\r\n")
    wire.to_guest(connection.to_guest(command))
    wire.turn(connection, b"get a\r\n", b"END\r\n")
    seen = wire.seen
    assert (seen.requests[TapProtocol.MEMCACHED], seen.answers, seen.untimed, seen.unanswered) == (4, 2, 0, 0)


def test_a_value_in_several_packets_that_wants_no_answer_is_one_request(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(b"set a 0 0 3000 noreply\r\n" + b"v" * 1400))
    wire.to_guest(connection.to_guest(b"v" * 1600 + b"\r\n"))
    wire.turn(connection, b"get a\r\n", b"END\r\n")
    assert (wire.seen.requests[TapProtocol.MEMCACHED], wire.seen.answers, wire.seen.untimed) == (2, 1, 0)


def test_a_request_that_comes_with_the_first_packet(wire: Wire) -> None:
    """TCP Fast Open: the SYN takes the number before it."""
    wire.accept(Connection(client_port=40_001))
    connection = Connection()
    wire.to_guest(connection.to_guest(GET, flags=SYN))
    wire.from_guest(connection.from_guest(flags=SYN | ACK))
    wire.from_guest(connection.from_guest(OK))
    wire.turn(connection)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers, wire.seen.unanswered) == (2, 2, 0)


def test_http2_is_told_and_not_timed(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(9))
    wire.turn(connection, bytes(9) + b"headers", bytes(9))
    assert wire.seen.protocol == (TapProtocol.HTTP2, 1.0)
    assert (wire.seen.answers, wire.seen.untimed) == (0, 2)
