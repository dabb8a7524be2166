"""Requests of HTTP/1 and memcached's text protocol that wait in their order, on the program on taps."""

from __future__ import annotations

import time

import pytest

from manager.model.histogram import bucket_value_us
from manager.model.traffic import TapProtocol
from tests.host.packets import ACK, FIN, RST, Connection
from tests.host.test_tap_pipelines import assert_apart, outcome, times_ms
from tests.host.wire import GET, NEEDS_BPF, OK, PAUSE_S, Wire, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF

SILENCE_S = 1.01
PLACES, YOUNG, ORDERS = 16, 16, 4096
POST = b"POST / HTTP/1.1\r\nHost: shop\r\ncontent-LENGTH:  9\r\n\r\nGET / HTT"
CHUNKED_POST = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nGET \r\n0\r\nSum: 1\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: shop\r\n\r\n"
PAGE = (
    b"HTTP/1.1 200 OK\r\nServer: a\r\nDate: Mon\r\nContent-Type: text/html\r\nContent-Length: 17\r\n\r\n"
    + b"HTTP/1.1 200 OK\r\n"
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nConnection: keep-alive\r\n\r\n"
    b"19\r\nHTTP/1.1 200 OK\r\n\r\n0\r\n\r\nx\r\n0\r\n\r\n"
)
UNCHANGED = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
NO_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
FAILED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"

LONG_GET = (
    b"GET /cart?item=4711 HTTP/1.1\r\nHost: shop.example.org\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0)"
    b" Gecko/20100101 Firefox/128.0\r\nAccept: */*\r\nContent-Lengthy: 5\r\nTransfer-Encodings: chunked\r\nA: b\r\n\r\n"
)
LONG_PAGE = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Thu, 26 Nov 2026 12:00:00 GMT\r\nContent-Type: text/html\r\n"
    b"CONTENT-LENGTH:\t0000000000000000017\r\nContent-: 9\r\nLast-Modified: Tue, 24 Nov 2026 08:00:00 GMT\r\nX: "
    + b"x" * 31
    + b"\r\nY: "
    + b"y" * 64
    + b"\r\n\r\nHTTP/1.1 200 OK\r\n"
)

QUIETLY = b"set a 0 0 5 noreply\r\nget a\r\ndelete b noreply\r\n"
VALUE = b"VALUE a 0 29\r\nEND\r\nVALUE b 0 1\r\nx\r\nSTORED\r\n\r\nVALUE bb 0 1 777\r\nx\r\nEND\r\n"

HTTP_TURNS = [
    (GET, PAGE),
    (POST, CHUNKED),
    (HEAD, INTERIM + NO_BODY),
    (CHUNKED_POST, OK),
    (GET, UNCHANGED),
    (LONG_GET, LONG_PAGE),
    (GET, FAILED),
]
TEXT_TURNS = [
    (b"get a bb\r\n", VALUE),
    (b"set noreply 0 0 7\r\nget a\r\n\r\n", b"STORED\r\n"),
    (QUIETLY + b"gets a\r\n", b"END\r\n"),
    (b"cas a 0 0 1 55\r\nx\r\n", b"NOT_FOUND\r\n"),
    (b"incr n 1\r\n", b"12345678\r\n"),
    (b"stats\r\n", b"STAT pid 1\r\nSTAT END 2\r\nEND\r\n"),
    (b"mg q v t\r\n", b"VA 5 t-1\r\nEND\r\n\r\n"),
    (b"ms k 2 T0\r\nmg\r\n", b"HD\r\n"),
    (b"mn\r\n", b"MN\r\n"),
    (b"version\r\n", b"VERSION 1.6.38\r\n"),
    (b"get " + b"k" * 250 + b"\r\n", b"SERVER_ERROR out of memory\r\n"),
]
TURNS = {80: HTTP_TURNS, 11211: TEXT_TURNS}


def joined(turns: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """All requests, and all answers."""
    return b"".join(request for request, _ in turns), b"".join(answer for _, answer in turns)


def older(wire: Wire, port: int = 80) -> Connection:
    """A connection that is older than the program, with a turn that is not seen."""
    connection = Connection(port=port)
    wire.turn(connection)
    return connection


@pytest.fixture
def waiting(wire: Wire) -> Connection:
    """A client with four requests over HTTP that wait, 20 ms apart."""
    connection = wire.accept(Connection())
    for _ in range(4):
        wire.to_guest(connection.to_guest(GET))
        time.sleep(PAUSE_S)
    assert outcome(wire) == (0, 0, 0, 4)
    return connection


def test_each_is_timed_by_its_own_answer(wire: Wire, waiting: Connection) -> None:
    for _ in range(4):
        wire.from_guest(waiting.from_guest(OK))
    assert outcome(wire) == (4, 0, 0, 0)
    for place, time_ms in enumerate(times_ms(wire), start=1):
        assert time_ms >= 0.98 * place * 1000 * PAUSE_S


def test_answers_that_share_a_packet_are_each_timed(wire: Wire, waiting: Connection) -> None:
    wire.from_guest(waiting.from_guest(PAGE + CHUNKED + INTERIM + UNCHANGED + FAILED))
    assert outcome(wire) == (4, 0, 0, 0)
    assert wire.seen.errors == 1
    assert_apart(times_ms(wire))


@pytest.mark.parametrize("port", TURNS)
def test_requests_that_share_a_packet_are_each_counted(wire: Wire, port: int) -> None:
    connection = wire.accept(Connection(port=port))
    requests, answers = joined(TURNS[port])
    quiet = 2 if port == 11211 else 0
    wire.to_guest(connection.to_guest(requests))
    assert outcome(wire) == (0, 0, 0, len(TURNS[port]))
    assert sum(wire.seen.requests.values()) == len(TURNS[port]) + quiet
    wire.from_guest(connection.from_guest(answers))
    assert outcome(wire) == (len(TURNS[port]), 0, 0, 0)
    assert wire.seen.errors == 1


@pytest.mark.parametrize("port", TURNS)
def test_messages_may_be_cut_anywhere(wire: Wire, port: int) -> None:
    requests, answers = joined(TURNS[port])
    done = 0
    for cut in range(4, max(len(requests), len(answers))):  # what does not show a protocol has no order
        connection = wire.accept(Connection(port=port, client_port=20_000 + cut))
        for part in (requests[:cut], requests[cut:]):
            wire.to_guest(connection.to_guest(part))
        for part in (answers[:cut], answers[cut:]):
            wire.from_guest(connection.from_guest(part))
        done += len(TURNS[port])
        assert outcome(wire) == (done, 0, 0, 0), cut


@pytest.mark.parametrize("port", TURNS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11])
def test_messages_may_come_in_small_pieces(wire: Wire, port: int, size: int) -> None:
    requests, answers = joined(TURNS[port])
    connection = wire.accept(Connection(port=port))
    # What does not even show a protocol has no order.
    for begin in (0, *range(4, len(requests), size)):
        wire.to_guest(connection.to_guest(requests[begin : begin + size] if begin else requests[:4]))
    for begin in range(0, len(answers), size):
        wire.from_guest(connection.from_guest(answers[begin : begin + size]))
    assert outcome(wire) == (len(TURNS[port]), 0, 0, 0)


def test_the_first_byte_of_an_answer_counts_and_the_last_one_of_a_request(wire: Wire) -> None:
    connection = wire.accept(Connection())
    began_s = time.monotonic()
    wire.to_guest(connection.to_guest(GET))
    wire.to_guest(connection.to_guest(POST[:-4]))
    time.sleep(PAUSE_S)
    asked_s = time.monotonic()
    wire.to_guest(connection.to_guest(POST[-4:]))
    wire.from_guest(connection.from_guest(OK + OK[:1]))
    answered_s = time.monotonic()  # on a busy machine a pause may last twice as long
    time.sleep(2 * PAUSE_S)
    wire.from_guest(connection.from_guest(OK[1:]))
    assert outcome(wire) == (2, 0, 0, 0)
    short_ms, long_ms = times_ms(wire)
    assert short_ms * 0.98 < 1000 * (answered_s - asked_s)
    assert long_ms * 1.02 >= 1000 * PAUSE_S
    assert long_ms * 0.98 < 1000 * (answered_s - began_s)


def test_an_answer_that_is_still_sent_is_none_to_the_next_request(wire: Wire) -> None:
    """Also where each of its segments begins as an answer does."""
    connection = wire.accept(Connection())
    page = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (3 * len(OK))
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(page))
    wire.to_guest(connection.to_guest(GET))
    for _ in range(3):
        wire.from_guest(connection.from_guest(OK))
        assert outcome(wire) == (1, 0, 0, 1)
    wire.from_guest(connection.from_guest(OK))
    assert outcome(wire) == (2, 0, 0, 0)


def test_values_that_look_like_answers_are_none(wire: Wire) -> None:
    connection = wire.accept(Connection(port=11211))
    value = b"END\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    for _ in range(3):
        wire.to_guest(connection.to_guest(b"get a\r\n"))
    wire.from_guest(connection.from_guest(b"VALUE a 0 %d\r\n" % len(2 * value) + value))
    assert outcome(wire) == (1, 0, 0, 2)
    wire.from_guest(connection.from_guest(value))
    assert outcome(wire) == (1, 0, 0, 2)
    wire.from_guest(connection.from_guest(b"\r\nEND\r\nEND\r\n"))
    assert outcome(wire) == (2, 0, 0, 1)


def test_what_is_sent_again_is_seen_once(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET + GET[:9]))
    wire.to_guest(connection.to_guest(GET + GET[:9], back=len(GET) + 9))
    wire.to_guest(connection.to_guest(GET + GET, back=len(GET) + 9))
    assert outcome(wire) == (0, 0, 0, 2)
    wire.from_guest(connection.from_guest(OK + OK[:20]))
    wire.from_guest(connection.from_guest(OK + OK[:20], back=len(OK) + 20))
    wire.from_guest(connection.from_guest(OK + OK, back=len(OK) + 20))
    assert outcome(wire) == (2, 0, 0, 0)


@pytest.mark.parametrize("from_guest", [False, True])
def test_segments_in_another_order_are_not_timed_until_both_were_silent(
    wire: Wire, waiting: Connection, from_guest: bool
) -> None:
    if from_guest:
        first, second = waiting.from_guest(OK), waiting.from_guest(OK)
        wire.from_guest(second)
        wire.from_guest(first)
    else:
        first, second = waiting.to_guest(GET), waiting.to_guest(GET)
        wire.to_guest(second)
        wire.to_guest(first)
    for _ in range(4):
        wire.from_guest(waiting.from_guest(OK))
    answers, untimed, unanswered, left = outcome(wire)
    assert (answers, unanswered, left) == (0, 0, 0)
    assert untimed >= 4
    time.sleep(SILENCE_S)
    wire.to_guest(waiting.to_guest(GET + GET))
    wire.from_guest(waiting.from_guest(OK + OK))
    assert outcome(wire) == (2, untimed, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"CLIENT_ERROR bad data chunk\r\n",
        b"ERROR\r\n",
        b"STORED\r\n",
        b"\x00\x01\x02",
        b"VALUE a 0 -1\r\n",
        b"VALUE a 0 1073741825\r\n",
        b"\r\n",
        b"x" * 30,
    ],
)
def test_what_does_not_fit_is_never_timed(wire: Wire, answer: bytes) -> None:
    connection = wire.accept(Connection(port=11211))
    for _ in range(3):
        wire.to_guest(connection.to_guest(b"get a\r\n"))
    wire.from_guest(connection.from_guest(answer))
    for _ in range(3):
        wire.from_guest(connection.from_guest(b"END\r\n"))
    answers, untimed, unanswered, left = outcome(wire)
    assert answers == answer.startswith(b"VALUE")  # whose beginning is right
    assert (answers + untimed, unanswered, left) == (3, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A:\r\n" * 620,
    ],
)
def test_an_answer_whose_end_is_not_known_is_the_last_one_that_is_timed(wire: Wire, answer: bytes) -> None:
    connection = wire.accept(Connection())
    for _ in range(3):
        wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(answer))
    for _ in range(3):
        wire.from_guest(connection.from_guest(OK))
    assert outcome(wire) == (1, 2, 0, 0)


def test_of_more_than_sixteen_that_wait_the_further_ones_are_not_timed(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET * 10))
    wire.to_guest(connection.to_guest(GET * 10))
    assert outcome(wire) == (0, 4, 0, PLACES)
    wire.from_guest(connection.from_guest(OK * 19))
    assert outcome(wire) == (PLACES, 4, 0, 0)
    wire.to_guest(connection.to_guest(GET))  # there is a further one before it
    wire.from_guest(connection.from_guest(OK * 2))
    assert outcome(wire) == (PLACES, 5, 0, 0)
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(OK))
    assert outcome(wire) == (PLACES + 1, 5, 0, 0)


def test_more_than_a_thousand_that_wait_are_counted(wire: Wire) -> None:
    connection = wire.accept(Connection(port=11211))
    for _ in range(120):
        wire.to_guest(connection.to_guest(b"get a\r\n" * 10))
    seen = wire.seen
    assert (seen.answers, seen.unanswered) == (0, 0)
    assert seen.requests[TapProtocol.MEMCACHED] >= 1024
    assert seen.untimed + seen.waiting.count == seen.requests[TapProtocol.MEMCACHED]


def test_a_client_of_which_the_beginning_was_not_seen_is_not_timed_until_both_were_silent(wire: Wire) -> None:
    connection = older(wire)
    for _ in range(2):
        wire.to_guest(connection.to_guest(GET))
    for _ in range(2):
        wire.from_guest(connection.from_guest(OK))
    assert outcome(wire) == (0, 2, 0, 0)
    for expected in (2, 4):
        time.sleep(SILENCE_S)
        wire.to_guest(connection.to_guest(GET + GET))
        wire.from_guest(connection.from_guest(OK + OK))
        assert outcome(wire) == (expected, 2, 0, 0)


def test_a_client_that_took_turns_for_long_is_not_timed_when_it_first_pipelines(wire: Wire) -> None:
    connection = wire.accept(Connection())
    for _ in range(YOUNG + 1):
        wire.turn(connection)
    wire.to_guest(connection.to_guest(GET))
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(OK + OK))
    assert outcome(wire) == (YOUNG + 1, 2, 0, 0)


def test_a_client_that_pipelined_early_is_followed_on(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET + GET))
    wire.from_guest(connection.from_guest(OK + OK))
    for _ in range(2 * YOUNG):
        wire.turn(connection)
    wire.to_guest(connection.to_guest(GET + GET))
    wire.from_guest(connection.from_guest(OK + OK))
    assert outcome(wire) == (2 * YOUNG + 4, 0, 0, 0)


def test_requests_of_which_one_ends_in_a_segment_that_was_overtaken_are_not_timed(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET + GET))
    wire.from_guest(connection.from_guest(OK + OK))
    wire.to_guest(connection.to_guest(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nfive "))
    end, following = connection.to_guest(b"more"), connection.to_guest(GET)
    wire.to_guest(following)
    wire.to_guest(end)
    wire.from_guest(connection.from_guest(OK + OK))
    assert outcome(wire)[0] == 2


def test_of_more_connections_than_there_are_orders_some_are_not_timed_and_all_counted(wire: Wire) -> None:
    connections = [wire.accept(Connection(client_port=port)) for port in range(1, 1 + 2 * ORDERS)]
    for connection in connections:
        wire.to_guest(connection.to_guest(GET))
    asked = wire.seen
    assert asked.requests[TapProtocol.HTTP] == len(connections)
    assert asked.untimed + asked.waiting.count == len(connections)
    for connection in connections:
        wire.from_guest(connection.from_guest(OK))
    answers, untimed, unanswered, left = outcome(wire)
    assert (answers + untimed, unanswered, left) == (len(connections), 0, 0)
    assert answers >= ORDERS


def test_an_answer_that_nobody_asked_for_is_none(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET + GET))
    wire.from_guest(connection.from_guest(OK + OK + OK))
    assert outcome(wire) == (2, 0, 0, 0)
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(OK))
    assert outcome(wire) == (2, 1, 0, 0)


@pytest.mark.parametrize("flags", [RST, FIN | ACK])
def test_those_whose_connection_ends_are_unanswered(wire: Wire, waiting: Connection, flags: int) -> None:
    wire.from_guest(waiting.from_guest(OK))
    wire.from_guest(waiting.from_guest(flags=flags))
    assert outcome(wire) == (1, 0, 3, 0)


def test_another_connection_in_its_place_has_another_order(wire: Wire, waiting: Connection) -> None:
    again = wire.accept(Connection(sent=7, answered=9))
    wire.to_guest(again.to_guest(GET + GET))
    wire.from_guest(again.from_guest(OK + OK))
    assert outcome(wire) == (2, 0, 4, 0)


def test_those_that_wait_have_each_its_age(wire: Wire, waiting: Connection) -> None:
    assert_apart([bucket_value_us(bucket) / 1000 for bucket in sorted(wire.seen.waiting.buckets)])
