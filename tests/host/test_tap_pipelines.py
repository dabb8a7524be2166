"""Clients that send requests before the answers to those before came, on the program on taps."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.model.histogram import RELATIVE_ERROR, bucket_value_us
from manager.model.traffic import TapProtocol
from tests.host.packets import ACK, FIN, RST, Connection, answer_to, binary
from tests.host.wire import GET, NEEDS_BPF, OK, PAUSE_S, Wire, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF

RACES = 5_000


GET_QUIETLY, NOOP = 0x09, 0x0A


def outcome(wire: Wire) -> tuple[int, int, int, int]:
    """Requests that were timed, those that were not, those unanswered, and those that wait."""
    seen = wire.seen
    assert seen.times.count == seen.answers
    return seen.answers, seen.untimed, seen.unanswered, seen.waiting.count


def times_ms(wire: Wire) -> list[float]:
    return [
        bucket_value_us(bucket) / 1000
        for bucket, count in sorted(wire.seen.times.buckets.items())
        for _ in range(count)
    ]


def assert_apart(times_ms: list[float]) -> None:
    """As far as the requests of ``pipelining``, the latest first, each since its own beginning."""
    for before_ms, time_ms in zip([0.0, *times_ms], times_ms, strict=False):
        assert time_ms * (1 + RELATIVE_ERROR) - before_ms * (1 - RELATIVE_ERROR) >= 1000 * PAUSE_S


@pytest.fixture
def pipelining(wire: Wire) -> Connection:
    """A client of memcached's binary protocol, with four requests that wait, 1 to 4, 20 ms apart."""
    connection = wire.accept(Connection(port=11211))
    for opaque in (1, 2, 3, 4):
        wire.to_guest(connection.to_guest(binary(opaque)))
        time.sleep(PAUSE_S)
    assert outcome(wire) == (0, 0, 0, 4)
    return connection


def test_pipelined_requests_are_timed_each_by_its_own_answer(wire: Wire, pipelining: Connection) -> None:
    for opaque in (1, 2, 3, 4):
        wire.from_guest(pipelining.from_guest(answer_to(opaque)))
    assert outcome(wire) == (4, 0, 0, 0)
    assert_apart(times_ms(wire))


def test_pipelined_requests_that_wait_have_each_its_age(wire: Wire, pipelining: Connection) -> None:
    wire.from_guest(pipelining.from_guest(answer_to(1)))
    ages = wire.seen.waiting
    assert ages.count == 3
    assert_apart([bucket_value_us(bucket) / 1000 for bucket in sorted(ages.buckets)])


def test_answers_in_one_segment_are_each_seen(wire: Wire, pipelining: Connection) -> None:
    wire.from_guest(pipelining.from_guest(b"".join(answer_to(opaque) for opaque in (1, 2, 3, 4))))
    assert outcome(wire) == (4, 0, 0, 0)


@pytest.mark.parametrize("cut", [3, 23, 24, 28, 29, 30, 53, 100])
def test_answers_that_begin_within_a_segment_are_found(wire: Wire, pipelining: Connection, cut: int) -> None:
    """What is not seen is a header that is cut by the end of a segment; the others are timed."""
    stream = b"".join(answer_to(opaque) for opaque in (1, 2, 3, 4))
    wire.from_guest(pipelining.from_guest(stream[:cut]))
    wire.from_guest(pipelining.from_guest(stream[cut:]))
    answers, untimed, _, waiting = outcome(wire)
    assert answers + untimed + waiting == 4
    whole = cut % len(answer_to(1)) in (0, *range(24, 29))
    assert (answers == 4) is whole
    for opaque in (5, 6):  # what follows is seen again
        wire.to_guest(pipelining.to_guest(binary(opaque)))
    for opaque in (5, 6):
        wire.from_guest(pipelining.from_guest(answer_to(opaque)))
    assert wire.seen.answers == answers + 2
    assert outcome(wire)[2:] == (0, 0)


def test_a_long_value_looks_like_no_answer(wire: Wire, pipelining: Connection) -> None:
    """Though its second segment begins as one."""
    value = bytes(1000) + answer_to(3) + bytes(1000)
    answer = answer_to(1, value)
    wire.from_guest(pipelining.from_guest(answer[:1024]))
    wire.from_guest(pipelining.from_guest(answer[1024:]))
    assert outcome(wire) == (1, 0, 0, 3)
    wire.from_guest(pipelining.from_guest(answer_to(2)))
    assert outcome(wire) == (2, 0, 0, 2)


def test_a_request_that_an_answer_passes_over_is_not_timed(wire: Wire, pipelining: Connection) -> None:
    wire.from_guest(pipelining.from_guest(answer_to(3)))
    assert outcome(wire) == (1, 2, 0, 1)


def test_of_more_than_four_requests_that_wait_the_further_ones_are_not_timed(
    wire: Wire, pipelining: Connection
) -> None:
    wire.to_guest(pipelining.to_guest(binary(5, body=bytes(1000))[:500]))
    wire.to_guest(pipelining.to_guest(bytes(524)))
    assert outcome(wire) == (0, 1, 0, 4)
    for opaque in (1, 2, 3, 4, 5):
        wire.from_guest(pipelining.from_guest(answer_to(opaque)))
    assert outcome(wire) == (4, 1, 0, 0)
    assert min(times_ms(wire)) >= 20 * 0.98  # the rest of the fifth one is not of the fourth


def test_requests_that_have_the_same_number_are_not_timed(wire: Wire, pipelining: Connection) -> None:
    wire.to_guest(pipelining.to_guest(binary(2)))
    for opaque in (1, 2, 3, 4, 2):
        wire.from_guest(pipelining.from_guest(answer_to(opaque)))
    assert outcome(wire) == (0, 5, 0, 0)
    time.sleep(1.01)
    wire.turn(pipelining, binary(2), answer_to(2))
    assert outcome(wire) == (1, 5, 0, 0)


def test_a_request_in_several_segments_ends_with_the_last_one_also_when_pipelined(wire: Wire) -> None:
    connection = wire.accept(Connection(port=11211))
    wire.to_guest(connection.to_guest(binary(1)))
    wire.to_guest(connection.to_guest(binary(2, code=1, body=bytes(1000))[:500]))
    time.sleep(PAUSE_S)
    asked_s = time.monotonic()
    wire.to_guest(connection.to_guest(bytes(524)))
    wire.from_guest(connection.from_guest(answer_to(1)))
    wire.from_guest(connection.from_guest(answer_to(2)))
    answered_s = time.monotonic()  # on a busy machine later than a pause
    assert outcome(wire) == (2, 0, 0, 0)
    short_ms, long_ms = times_ms(wire)
    assert short_ms * 0.98 < 1000 * (answered_s - asked_s)
    assert long_ms * 1.02 >= 1000 * PAUSE_S


def test_quiet_requests_need_no_answer_when_pipelined(wire: Wire, pipelining: Connection) -> None:
    """A get that says nothing where it finds nothing, and a noop behind it, which is answered."""
    wire.from_guest(pipelining.from_guest(b"".join(answer_to(opaque) for opaque in (1, 2, 3, 4))))
    wire.to_guest(pipelining.to_guest(binary(5, code=GET_QUIETLY)))
    wire.to_guest(pipelining.to_guest(binary(6, code=NOOP)))
    wire.from_guest(pipelining.from_guest(answer_to(6)))
    assert outcome(wire) == (5, 1, 0, 0)


def test_requests_in_one_packet_are_each_counted_and_timed(wire: Wire) -> None:
    """Quiet ones have no answer where nothing is found."""
    connection = wire.accept(Connection(port=11211))
    wire.to_guest(connection.to_guest(b"".join(binary(opaque, body=bytes(opaque)) for opaque in (1, 2, 3))))
    assert outcome(wire) == (0, 0, 0, 3)
    assert wire.seen.requests[TapProtocol.MEMCACHED_BINARY] == 3
    wire.from_guest(connection.from_guest(answer_to(1) + answer_to(2) + answer_to(3)))
    assert outcome(wire) == (3, 0, 0, 0)
    wire.to_guest(connection.to_guest(binary(4, code=GET_QUIETLY) + binary(5, code=GET_QUIETLY) + binary(6, code=NOOP)))
    wire.from_guest(connection.from_guest(answer_to(6)))
    assert outcome(wire) == (4, 2, 0, 0)


def test_of_many_requests_in_one_packet_sixteen_are_counted_and_four_timed(wire: Wire) -> None:
    connection = wire.accept(Connection(port=11211))
    wire.to_guest(connection.to_guest(b"".join(binary(opaque) for opaque in range(20))))
    assert outcome(wire) == (0, 12, 0, 4)
    assert wire.seen.requests[TapProtocol.MEMCACHED_BINARY] == 16


def test_a_request_whose_header_is_cut_is_not_counted(wire: Wire) -> None:
    connection = wire.accept(Connection(port=11211))
    requests = binary(1) + binary(2) + binary(3)
    wire.to_guest(connection.to_guest(requests[:-2]))
    wire.to_guest(connection.to_guest(requests[-2:]))
    for opaque in (1, 2, 3):
        wire.from_guest(connection.from_guest(answer_to(opaque)))
    assert wire.seen.requests[TapProtocol.MEMCACHED_BINARY] == 2
    assert outcome(wire) == (2, 0, 0, 0)


def test_pipelined_answers_tell_errors(wire: Wire, pipelining: Connection) -> None:
    wire.from_guest(pipelining.from_guest(answer_to(1) + answer_to(2, status=0x82) + answer_to(3)))
    assert (wire.seen.errors, wire.seen.answers) == (1, 3)


def test_pipelined_requests_whose_connection_ends_are_unanswered(wire: Wire, pipelining: Connection) -> None:
    wire.from_guest(pipelining.from_guest(answer_to(1), flags=FIN | ACK))
    assert (wire.seen.answers, wire.seen.unanswered) == (1, 3)


SENT = st.tuples(
    st.sampled_from([1, 2, 3, 4, 5, 6]), st.sampled_from([0, 1, GET_QUIETLY]), st.integers(0, 200), st.booleans()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sent=st.lists(SENT, max_size=12), cuts=st.lists(st.integers(1, 200), max_size=6))
def test_pipelined_requests_are_counted_once_however_answers_come(
    wire: Wire, sent: list[tuple[int, int, int, bool]], cuts: list[int]
) -> None:
    """Of any numbers, some of them the same, in segments of any size, and answers between them: no time is wrong."""
    connection = wire.accept(Connection(port=11211, client_port=random.randrange(32_768, 65_536)))
    before, begun_s = wire.seen, time.monotonic()
    answers = b""
    for opaque, code, size, answered in sent:
        wire.to_guest(connection.to_guest(binary(opaque, code=code, body=bytes(size))))
        answers += answer_to(opaque, bytes(size))
        for cut in cuts if answered else ():
            if answers[:cut]:
                wire.from_guest(connection.from_guest(answers[:cut]))
            answers = answers[cut:]
    wire.from_guest(connection.from_guest(answers or b"x"))
    wire.from_guest(connection.from_guest(flags=RST))
    after, passed_us = wire.seen, (time.monotonic() - begun_s) * 1e6
    counted = [each.answers + each.untimed + each.unanswered for each in (before, after)]
    assert counted[1] - counted[0] == len(sent)
    assert after.waiting.count == 0
    new = {bucket: n - before.times.buckets.get(bucket, 0) for bucket, n in after.times.buckets.items()}
    assert all(bucket_value_us(bucket) <= max(passed_us, 10) * 1.03 for bucket, n in new.items() if n)


def binary_turn(number: int) -> tuple[bytes, bytes]:
    """A request that has a number, and its answer."""
    return binary(number), answer_to(number)


@pytest.mark.parametrize(
    ("port", "turn", "protocol"),
    [
        (11211, binary_turn, TapProtocol.MEMCACHED_BINARY),
        (11211, lambda _number: (b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n"), TapProtocol.MEMCACHED),
        (80, lambda _number: (GET, OK), TapProtocol.HTTP),
    ],
    ids=["binary", "text", "HTTP"],
)
def test_two_cpus_at_once_cost_counts_and_no_wrong_time(
    wire: Wire, port: int, turn: Callable[[int], tuple[bytes, bytes]], protocol: TapProtocol
) -> None:
    """One hands over requests of a connection while the other hands over its answers, as fast as they can."""
    connection = wire.accept(Connection(port=port))
    turns = [turn(number) for number in range(RACES)]
    requests = [connection.to_guest(request) for request, _ in turns]
    answers = [connection.from_guest(answer) for _, answer in turns]
    asked = answered = 0
    begun_s = time.monotonic()

    def ask() -> None:
        nonlocal asked
        for request in requests:
            while asked - answered > 3:
                time.sleep(0)
            wire.to_guest(request)
            asked += 1

    asking = threading.Thread(target=ask)
    asking.start()
    for answer in answers:
        while asked <= answered:
            time.sleep(0)
        wire.from_guest(answer)
        answered += 1
    asking.join()
    passed_us = (time.monotonic() - begun_s) * 1e6
    seen = wire.seen
    assert seen.requests[protocol] == RACES
    assert seen.answers + seen.untimed + seen.unanswered + seen.waiting.count <= RACES
    assert seen.answers >= 0.9 * RACES
    assert all(bucket_value_us(bucket) <= passed_us * 1.03 for bucket in seen.times.buckets)
