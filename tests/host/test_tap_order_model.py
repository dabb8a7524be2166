"""The order in which requests wait, beside a model of it: each time that the program tells is that of a request.

The model knows which packet had the last byte of a request and which the first of its answer, and between which moments
the kernel looked at either. So it knows the shortest and the longest that each time can be.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.model.histogram import RELATIVE_ERROR, bucket_value_us
from tests.host.packets import RST, Connection
from tests.host.wire import NEEDS_BPF, Wire, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF

PLACES = 16
LOOKS_LIKE_ANSWERS = (
    b"\r\nEND\r\nSTORED\r\nVALUE a 0 1\r\nx\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nget a\r\nGET / HTTP/1.1\r\n\r\n"
)


def content(size: int) -> bytes:
    return (LOOKS_LIKE_ANSWERS * (size // len(LOOKS_LIKE_ANSWERS) + 1))[:size]


def http_turn(kind: int, size: int, answer_size: int) -> tuple[bytes, bytes]:
    body = content(answer_size)
    page = b"HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: %d\r\n\r\n" % answer_size + body
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        answer_size + 1,
        body + b"x",
    )
    post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + content(size)
    get = b"GET /" + b"p" * size + b" HTTP/1.1\r\n\r\n"
    head = page.removesuffix(body) if body else page
    return [(get, page), (post, page), (get, chunked), (b"HEAD / HTTP/1.1\r\n\r\n", head)][kind]


def text_turn(kind: int, size: int, answer_size: int) -> tuple[bytes, bytes]:
    values = b"VALUE k 0 %d\r\n%s\r\n" % (answer_size, content(answer_size))
    return [
        (b"get k\r\n", values + b"END\r\n"),
        (b"get k l\r\n", values + values + b"END\r\n"),
        (b"set k 0 0 %d\r\n%s\r\n" % (size, content(size)), b"STORED\r\n"),
        (b"set k 0 0 1 noreply\r\nx\r\ngets %s\r\n" % (b"k" * (size % 200 + 1)), b"END\r\n"),
    ][kind]


TURN = {80: http_turn, 11211: text_turn}


@dataclass
class Model:
    """A connection as both its ends know it. Moments in nanoseconds, of before and after the packet."""

    wire: Wire
    connection: Connection
    to_send: bytes = b""
    to_answer: bytes = b""
    ends: deque[tuple[int, bytes]] = field(default_factory=deque)
    begins: deque[tuple[int, tuple[int, int]]] = field(default_factory=deque)
    sent: int = 0
    answered: int = 0
    written: int = 0
    replied: int = 0
    seen_ns: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    """The shortest and the longest that the time of each answer can be, in order."""

    def write(self, request: bytes, answer: bytes) -> None:
        self.to_send += request
        self.written += len(request)
        self.ends.append((self.written, answer))

    @property
    def outstanding(self) -> int:
        return len(self.ends) + len(self.begins)

    def send(self, size: int) -> bytes | None:
        """The client's next packet."""
        part, self.to_send = self.to_send[:size], self.to_send[size:]
        return self.connection.to_guest(part) if part else None

    def ask(self, packet: bytes | None, length: int, seen: bool = True) -> None:
        """Where the end of a request is not seen, an answer is timed from when what was seen of it passed."""
        if packet is None:
            return
        before_ns = time.monotonic_ns() if seen else self.seen_ns
        if seen:
            self.wire.to_guest(packet)
            self.seen_ns = before_ns
        after_ns = time.monotonic_ns()
        self.sent += length
        while self.ends and self.ends[0][0] <= self.sent:
            answer = self.ends.popleft()[1]
            self.begins.append((self.replied, (before_ns, after_ns)))
            self.to_answer += answer
            self.replied += len(answer)

    def reply(self, size: int, seen: bool = True) -> None:
        part, self.to_answer = self.to_answer[:size], self.to_answer[size:]
        if not part:
            return
        before_ns = time.monotonic_ns()
        packet = self.connection.from_guest(part)
        if seen:
            self.wire.from_guest(packet)
        after_ns = time.monotonic_ns()
        self.answered += len(part)
        while self.begins and self.begins[0][0] < self.answered:
            asked = self.begins.popleft()[1]
            self.spans.append((before_ns - asked[1], after_ns - asked[0]))


def times_us(wire: Wire) -> list[float]:
    if not wire.all:
        return []
    return sorted(bucket_value_us(bucket) for bucket, count in wire.seen.times.buckets.items() for _ in range(count))


def new_times_us(before: list[float], after: list[float]) -> list[float]:
    left = list(after)
    for each in before:
        left.remove(each)
    return left


def fits(time_us: float, span: tuple[int, int]) -> bool:
    # The buckets' error, and their least time of a microsecond.
    shortest_us, longest_us = (each / 1000 for each in span)
    return shortest_us * (1 - 2 * RELATIVE_ERROR) - 1.5 <= time_us <= longest_us * (1 + 2 * RELATIVE_ERROR) + 1.5


STEP = st.tuples(
    st.sampled_from(["write", "write", "send", "send", "reply"]),
    st.integers(0, 3),
    st.integers(0, 120),
    st.integers(0, 120),
)
PATIENT = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=150
)


@pytest.mark.parametrize("port", TURN)
@PATIENT
@given(steps=st.lists(STEP, max_size=60))
def test_all_that_have_a_place_are_timed_and_each_by_its_own_answer(
    wire: Wire, port: int, steps: list[tuple[str, int, int, int]]
) -> None:
    """Cut into packets anywhere, with content that looks like requests and answers."""
    connection = wire.accept(Connection(port=port, client_port=random.randrange(32_768, 65_536)))
    model = Model(wire, connection)
    before, times_before = wire.seen, times_us(wire)
    model.write(*TURN[port](0, 0, 0))
    model.ask(model.send(4), 4)  # shows the protocol
    for do, kind, size, answer_size in steps:
        if do == "write" and model.outstanding < PLACES:
            model.write(*TURN[port](kind, size, answer_size))
        elif do == "send":
            length = min(size + 1, len(model.to_send))
            model.ask(model.send(length), length)
        elif do == "reply":
            model.reply(size + 1)
    length = len(model.to_send)
    model.ask(model.send(length), length)
    model.reply(len(model.to_answer))
    after = wire.seen
    wire.from_guest(connection.from_guest(flags=RST))
    new = new_times_us(times_before, times_us(wire))
    assert (len(new), after.untimed - before.untimed) == (len(model.spans), 0)
    for time_us, shortest, longest in zip(
        new, sorted(low for low, _ in model.spans), sorted(high for _, high in model.spans), strict=True
    ):
        assert fits(time_us, (shortest, longest))


@pytest.mark.parametrize("port", TURN)
@PATIENT
@given(
    steps=st.lists(STEP, max_size=40),
    unseen=st.sets(st.integers(0, 30), max_size=3),
    again=st.sets(st.integers(0, 30), max_size=3),
    swapped=st.sets(st.integers(0, 30), max_size=2),
)
def test_no_time_is_wrong_whatever_is_not_seen(
    wire: Wire,
    port: int,
    steps: list[tuple[str, int, int, int]],
    unseen: set[int],
    again: set[int],
    swapped: set[int],
) -> None:
    """Packets that pass elsewhere, are sent again, or overtake others, from when the client has pipelined."""
    connection = wire.accept(Connection(port=port, client_port=random.randrange(32_768, 65_536)))
    model = Model(wire, connection)
    times_before = times_us(wire)
    first = TURN[port](0, 0, 0)
    model.write(*first)
    model.write(*first)
    model.ask(model.send(len(model.to_send)), 2 * len(first[0]))
    model.reply(len(model.to_answer))
    kept: tuple[bytes, int] | None = None
    for number, (do, kind, size, answer_size) in enumerate(steps):
        if do == "write" and model.outstanding < 2 * PLACES:
            model.write(*TURN[port](kind, size, answer_size))
        elif do == "send":
            length = min(size + 1, len(model.to_send))
            packet = model.send(length)
            if packet is None:
                continue
            if number in unseen:
                model.ask(packet, length, seen=False)
            elif number in swapped and kept is None:
                kept = packet, length
            else:
                model.ask(packet, length)
                if kept is not None:
                    model.ask(*kept)
                    kept = None
                if number in again:
                    wire.to_guest(packet)
        elif do == "reply" and kept is None:
            model.reply(size + 1, number not in unseen)
    wire.from_guest(connection.from_guest(flags=RST))
    left = list(model.spans)
    for time_us in reversed(new_times_us(times_before, times_us(wire))):
        span = next((each for each in sorted(left, reverse=True) if fits(time_us, each)), None)
        assert span is not None, (time_us, model.spans)
        left.remove(span)
