"""Requests of a client in captured packets, and what the benchmark of the tap's accuracy takes for a miss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.model.histogram import Histogram
from manager.model.traffic import ServiceTraffic, TapProtocol
from tests.bench.tap_accuracy import TapComparison, log_misses
from tests.bench.tap_capture import TapPacket, Turn, opened, passed

PORT, SYN, ACK = 40_000, 0x02, 0x10
LAST = 1 << 32


def out(at_ns: int, sequence: int, length: int, port: int = PORT, flags: int = ACK) -> TapPacket:
    return TapPacket(at_ns, True, port, sequence % LAST, length, flags)


def back(at_ns: int, sequence: int, length: int) -> TapPacket:
    return TapPacket(at_ns, False, PORT, sequence % LAST, length, ACK)


def test_a_turn_is_from_the_last_segment_of_the_request_to_the_first_of_the_answer() -> None:
    packets = [out(10, -5, 10), out(20, 5, 10), back(50, 0, 100), out(55, 15, 0), back(60, 100, 100)]
    [turn], missing = passed([Turn(PORT, True, 5, 75)], packets)
    assert missing == 0
    assert (turn.out_ns, turn.tap_ns, turn.rest_ns, turn.back_ns) == (15, 30, 10, 15)
    assert turn.out_ns + turn.tap_ns + turn.rest_ns + turn.back_ns == turn.client_ns


def test_what_is_sent_again_counts_when_it_was_sent_first() -> None:
    packets = [out(10, 0, 10), out(30, 0, 10), back(50, 0, 7), back(60, 0, 7)]
    [turn], _ = passed([Turn(PORT, True, 5, 75)], packets)
    assert (turn.asked_ns, turn.answered_ns, turn.ended_ns) == (10, 50, 50)


def test_each_turn_has_its_own_packets() -> None:
    packets = [out(10, 0, 10), back(20, 0, 7), out(40, 10, 10), back(70, 7, 7)]
    turns, missing = passed([Turn(PORT, True, 5, 25), Turn(PORT, False, 35, 75)], packets)
    assert ([turn.tap_ns for turn in turns], missing) == ([10, 30], 0)


@pytest.mark.parametrize(
    "packets",
    [
        [],
        [out(10, 0, 10)],
        [back(20, 0, 7)],
        [out(10, 0, 10, port=PORT + 1), back(20, 0, 7)],
        [back(10, 0, 7), out(20, 0, 10)],
        [out(1, 0, 10), back(20, 0, 7)],
        [out(10, 0, 10), back(80, 0, 7)],
    ],
)
def test_a_turn_whose_packets_did_not_pass_is_missing(packets: list[TapPacket]) -> None:
    assert passed([Turn(PORT, True, 5, 75)], packets) == ([], 1)


def test_a_port_that_is_used_again_is_another_connection() -> None:
    packets = [out(1, 900, 0, flags=SYN), out(10, 901, 10), back(20, 901, 7)]
    packets += [out(31, 5, 0, flags=SYN), out(31, 5, 0, flags=SYN), out(40, 6, 10), back(70, 908, 7)]
    turns, missing = passed([Turn(PORT, True, 5, 25), Turn(PORT, True, 35, 75)], packets)
    assert ([turn.tap_ns for turn in turns], missing) == ([10, 30], 0)
    assert opened([*packets, out(80, 1, 0, port=7, flags=SYN)]) == [PORT, PORT, 7]


def comparison() -> TapComparison:
    turns, _ = passed([Turn(PORT, True, 0, 3_000_000)], [out(1_000_000, 0, 10), back(2_000_000, 0, 7)])
    requests = dict.fromkeys(TapProtocol, 0) | {TapProtocol.HTTP: 1000}
    seen = ServiceTraffic(1, 80, requests, 1, 1000, 0, 0, 0, Histogram.of([1000.0] * 1000))
    return TapComparison(1000, 1000, turns * 1000, 0, seen)


def test_a_tap_that_is_right_misses_nothing() -> None:
    assert comparison().misses == []
    assert log_misses(comparison(), [2.0] * 1000) == []


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"times": Histogram.of([930.0] * 1000)}, ["p50", "p95"]),
        ({"times": Histogram.of([1000.0] * 900 + [1100.0] * 100)}, ["p95"]),
        ({"requests": {TapProtocol.HTTP: 1006}}, ["rate"]),
        ({"requests": {TapProtocol.HTTP: 994}}, ["rate"]),
        ({"answers": 999}, ["timed 999 of 1000"]),
        ({"unanswered": 1}, ["1 unanswered, 0 errors"]),
    ],
)
def test_a_tap_that_is_wrong_misses_its_bar(changes: dict[str, object], missed: list[str]) -> None:
    right = comparison()
    assert replace(right, seen=replace(right.seen, **changes)).misses == missed  # type: ignore[arg-type]


def test_a_log_that_does_not_fit_the_tap_misses_its_bar() -> None:
    assert log_misses(comparison(), [1.0] * 999) == ["999 lines in the log"]
    assert log_misses(comparison(), [3.0] * 1000) == ["log p95"]
