"""A tap and a push source of the same requests, from their feeds to their details."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from manager.model.source import Push, SourceState, Tap
from manager.telemetry.source_thread import Sources
from manager.telemetry.tally import Tally
from tests.telemetry.conftest import NOW_S, Clock, free_port, shop

MINUTE_S = 60.0
BEGIN_S = NOW_S - NOW_S % MINUTE_S


@pytest.fixture
def clock() -> Clock:
    return Clock(BEGIN_S)


@pytest.fixture
def sources(clock: Clock) -> Iterator[Sources]:
    """They are configured, but nothing runs."""
    with closing(Sources("127.0.0.1", free_port(socket.SOCK_DGRAM), clock=clock)) as made:
        made.configure([shop(Tap("wire", 80), Push("app"))], 5.0, {}, {})
        yield made


def serve(sources: Sources, clock: Clock, for_s: float, tap_rps: float, push_rps: float, push_every_s: int) -> None:
    """The tap counts each second, and somebody pushes every few."""
    wire, app = (sources._running["shop", name].feed for name in ("wire", "app"))
    for second in range(1, int(for_s) + 1):
        clock.now_s += 1
        wire.take(clock.now_s, buckets={100: int(tap_rps)}, requests=tap_rps)
        if second % push_every_s == 0:
            app.take(clock.now_s, buckets={100: int(push_rps * push_every_s)}, requests=push_rps * push_every_s)


def details(sources: Sources) -> list[str]:
    return [status.detail for status in sources.statuses()]


@pytest.mark.parametrize("push_every_s", [1, 10, 30])
def test_the_details_of_both_say_so_within_four_and_a_half_minutes(
    sources: Sources, clock: Clock, push_every_s: int
) -> None:
    serve(sources, clock, 4.5 * MINUTE_S, 20, 20, push_every_s)
    app, wire = sources.statuses()
    assert (app.source, wire.source) == ("app", "wire")
    assert "source wire (tap) counted as many requests" in app.detail
    assert "source app (push) counted as many requests" in wire.detail
    assert app.state is not SourceState.FAILING


def test_it_stays_from_one_minute_to_the_next(sources: Sources, clock: Clock) -> None:
    """What is pushed a little after a minute's end still counts in it."""
    app = sources._running["shop", "app"].feed
    for second in range(1, 7 * int(MINUTE_S)):
        serve(sources, clock, 1, 20, 0, 1)
        if second % 20 == 8:
            app.take(clock.now_s - 12, buckets={100: 400}, requests=400)
        if second > 5 * MINUTE_S:
            assert all("keep one of the two" in detail for detail in details(sources)), second


def test_it_goes_with_one_of_them(sources: Sources, clock: Clock) -> None:
    serve(sources, clock, 4.5 * MINUTE_S, 20, 20, 10)
    serve(sources, clock, 2 * MINUTE_S, 20, 0, 10)
    assert details(sources) == ["", ""]


def test_other_requests_are_nothing_to_tell(sources: Sources, clock: Clock) -> None:
    serve(sources, clock, 6 * MINUTE_S, 20, 30, 10)
    assert details(sources) == ["", ""]


def test_a_few_minutes_are_kept_and_those_of_a_clock_that_was_set_back_are_forgotten() -> None:
    tally = Tally()
    for minute in range(1000):
        tally.add(10, minute * MINUTE_S, (minute + 1) * MINUTE_S - 1)
    assert len(tally._minutes) == 5
    for minute in range(6):
        tally.add(3, minute * MINUTE_S, minute * MINUTE_S + 30)
    assert tally.last(5 * MINUTE_S + 20) == (3, 3, 3)
    assert tally.last(100 * MINUTE_S) == (0, 0, 0)


def test_requests_of_a_longer_time_are_spread() -> None:
    tally = Tally()
    tally.add(300, 30, 180)
    assert tally.last(200) == (60, 120, 120)


def test_requests_that_are_late_leave_those_of_the_next_minute() -> None:
    tally = Tally()
    for minute in (0, 1, 2, 3, 5):
        tally.add(10, BEGIN_S + minute * MINUTE_S, BEGIN_S + minute * MINUTE_S)
    tally.add(1, BEGIN_S + 5 * MINUTE_S - 1, BEGIN_S + 5 * MINUTE_S - 1)
    assert tally.last(BEGIN_S + 6 * MINUTE_S + 20) == (10, 1, 10)
