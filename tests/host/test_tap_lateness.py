"""Answers that are late, counted by the program itself, so that they can be asked for every few milliseconds."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from manager.host.taps import TapProgram
from tests.host.conftest import REAL
from tests.host.packets import RST, Connection
from tests.host.wire import GET, INTERFACE, NEEDS_BPF, OK, PAUSE_S, Wire, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF

PLACE = (INTERFACE, 80)


def slow_turn(wire: Wire, connection: Connection) -> None:
    wire.to_guest(connection.to_guest(GET))
    time.sleep(PAUSE_S)
    wire.from_guest(connection.from_guest(OK))


@pytest.mark.parametrize(
    ("late_us", "late"), [(PAUSE_S * 1e6 / 2, 1), (PAUSE_S * 1e9, 0), (None, 0)], ids=["late", "in time", "no bound"]
)
def test_an_answer_that_takes_longer_than_the_bound_is_late(wire: Wire, late_us: float | None, late: int) -> None:
    connection = wire.accept(Connection())
    assert wire.program.judge(*PLACE, late_us)
    counts = wire.program.answers([PLACE])
    slow_turn(wire, connection)
    wire.turn(connection)
    assert counts.read() == [(2, 2, 2, late)]


def test_a_bound_may_change_and_what_was_counted_stays(wire: Wire) -> None:
    connection = wire.accept(Connection())
    counts = wire.program.answers([PLACE])
    wire.program.judge(*PLACE, 1.0)
    slow_turn(wire, connection)
    wire.program.judge(*PLACE, None)
    slow_turn(wire, connection)
    assert counts.read() == [(2, 2, 2, 1)]
    assert wire.seen.answers == 2


def test_a_service_that_is_not_there_yet(wire: Wire) -> None:
    assert not wire.program.judge(*PLACE, 1.0)
    counts = wire.program.answers([PLACE, (INTERFACE, 81)])
    assert counts.read() == [(0, 0, 0, 0), (0, 0, 0, 0)]
    wire.turn(wire.accept(Connection()))
    assert counts.read() == [(1, 1, 1, 0), (0, 0, 0, 0)]


def test_counts_can_be_read_when_the_program_is_closed() -> None:
    with closing(TapProgram(REAL)) as program:
        wire = Wire(program)
        wire.turn(wire.accept(Connection()))
        counts = wire.program.answers([PLACE])
    assert counts.read() == [(1, 1, 1, 0)]


@pytest.mark.parametrize(
    ("request_", "waits"),
    [(GET, 1), (b"get a\r\n", 1), (b"delete a noreply\r\n", 0)],
    ids=["http", "memcached", "noreply"],
)
def test_what_is_asked_and_not_answered_shows(wire: Wire, request_: bytes, waits: int) -> None:
    connection = wire.accept(Connection())
    counts = wire.program.answers([PLACE])
    wire.to_guest(connection.to_guest(request_))
    assert counts.read() == [(waits, 0, 0, 0)]
    wire.to_guest(connection.to_guest(flags=RST))
    assert counts.read() == [(waits, waits, 0, 0)]


def test_a_noreply_behind_a_get_that_waits_does_not_make_its_time_shorter(wire: Wire) -> None:
    connection = wire.accept(Connection())
    counts = wire.program.answers([PLACE])
    wire.program.judge(*PLACE, PAUSE_S * 1e6 / 2)
    wire.to_guest(connection.to_guest(b"get a\r\n"))
    time.sleep(PAUSE_S)
    wire.to_guest(connection.to_guest(b"delete b noreply\r\n"))
    wire.from_guest(connection.from_guest(b"END\r\n"))
    [(_, _, answers, late)] = counts.read()
    assert answers == late, "either it is timed by its own begin, or not at all"
