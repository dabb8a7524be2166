"""memcached: counters, a server that misbehaves, and the real one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.source import MemcachedProbe, SourceState
from manager.telemetry.memcached import RequestCounter
from manager.telemetry.probe import ProbeError
from tests.telemetry.conftest import Running, free_port, shop, until

THOUSANDS, COUNTED_S = 5, 6.0
GOOD_STATS = b"STAT pid 7\r\nSTAT cmd_get 1\r\nEND\r\n"


def stats(gets: int, pid: str = "7", **others: int) -> dict[str, str]:
    return {"pid": pid, "version": "1.6.18", "cmd_get": str(gets)} | {name: str(one) for name, one in others.items()}


def test_requests_are_those_of_others() -> None:
    counter = RequestCounter()
    assert counter.update(stats(1000, cmd_set=5), 0, 0, 10.0) is None
    assert counter.update(stats(1110, cmd_set=25), 10, 10, 11.0) == (10.0, 11.0, 120)
    assert counter.update(stats(1120, cmd_set=25), 20, 20, 12.0) == (11.0, 12.0, 0)
    assert counter.update(stats(1120, cmd_set=25, delete_misses=3, incr_hits=2, curr_items=99), 20, 20, 13.0)[2] == 5


@pytest.mark.parametrize(
    "anew", [stats(3), stats(5000, pid="8"), stats(0)], ids=["counters reset", "another process", "nothing yet"]
)
def test_a_server_that_was_started_anew_is_counted_from_there(anew: dict[str, str]) -> None:
    counter = RequestCounter()
    counter.update(stats(1000), 50, 50, 10.0)
    assert counter.update(anew, 60, 60, 11.0) is None
    after = dict(anew, cmd_get=str(int(anew["cmd_get"]) + 30))
    assert counter.update(after, 70, 70, 12.0) == (11.0, 12.0, 20)


@pytest.mark.parametrize("bad", [{}, {"pid": "7"}, {"pid": "7", "cmd_get": "many"}])
def test_statistics_of_something_else_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ProbeError, match="not memcached's"):
        RequestCounter().update(bad, 0, 0, 10.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=50
    )
)
def test_requests_under_way_make_no_requests_up_and_lose_few(steps: list[tuple[int, int, int, int]]) -> None:
    """``ahead`` of our own the server has counted though they are not finished here, ``behind`` it has not counted."""
    counter = RequestCounter()
    others = reached = counted = 0
    first_ahead = 0
    for number, (more, probes, ahead, behind) in enumerate(steps):
        reached += probes
        finished = max(0, reached - ahead)
        found = counter.update(stats(others + reached), finished, reached + behind, float(number))
        if found is None:
            assert number == 0
            first_ahead = reached - finished
        else:
            counted += found[2]
        assert counted <= others
        others += more
    found = counter.update(stats(others + reached), reached, reached, 1e6)
    assert found is not None
    assert counted + found[2] == max(0, others - first_ahead)


class Misbehaving:
    """Answers each line of a client with what ``answer`` says; None closes the connection."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), client, client.makefile("rb") as lines:  # a prober may hang up first
            for line in lines:
                answer = self._answer(line)
                if answer is None:
                    return
                client.sendall(answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def misbehaving() -> Iterator[Callable[..., Misbehaving]]:
    started: list[Misbehaving] = []

    def start(answer: Callable[[bytes], bytes | None]) -> Misbehaving:
        started.append(Misbehaving(answer))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (lambda line: b"ERROR\r\n", "the server answers ERROR to a get"),
        (
            lambda line: b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "something else than memcached does to a get",
        ),
        (lambda line: None, "the server closed the connection"),
        (lambda line: b"", "no answer within 0.2 s"),
    ],
    ids=["error", "another protocol", "hangs up", "silent"],
)
def test_a_server_that_misbehaves_is_failing_without_its_words(running: Running, misbehaving, answer, detail) -> None:
    server = misbehaving(lambda line: answer(line) if line.startswith(b"get") else GOOD_STATS)
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", server.port, 100, 0.2)))
    until(lambda: running.status("probe").state is SourceState.FAILING, "it is failing")
    status = running.status("probe")
    assert detail in status.detail
    assert status.errors >= 3
    assert status.accepted == running.count() >= 3, "each failure is a response time"
    [slot, *_] = running.sources.slots()["shop"]
    assert slot.percentile_ms(50) == pytest.approx(200, rel=0.01)


def test_a_value_of_the_probes_key_is_read_over(running: Running, misbehaving) -> None:
    value = b"VALUE equipoise:probe 0 7\r\nEND\r\nxx\r\nEND\r\n"
    server = misbehaving(lambda line: value if line.startswith(b"get") else GOOD_STATS)
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", server.port, 100)))
    until(lambda: running.status("probe").accepted >= 5, "five answers are read")
    assert (running.status("probe").errors, running.status("probe").state) == (0, SourceState.OK)


def test_bad_statistics_do_not_stop_the_probe(running: Running, misbehaving) -> None:
    server = misbehaving(lambda line: b"END\r\n" if line.startswith(b"get") else b"ERROR\r\n")
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", server.port, 100)))
    until(lambda: running.status("probe").errors, "statistics were asked for")
    assert "to stats" in running.status("probe").detail
    before = running.status("probe").accepted
    until(lambda: running.status("probe").accepted > before, "the probe goes on")
    assert running.status("probe").state is SourceState.OK


def test_a_real_memcached_is_probed_and_its_requests_are_counted(running: Running, memcached) -> None:
    port = free_port()
    server = memcached(port)
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", port, 200)))
    until(lambda: running.status("probe").accepted >= 20, "the probe is answered")
    until(lambda: known(running) == 0, "idle is known")
    counted = counted_after_thousand(running, port)
    accepted = running.status("probe").accepted
    until(lambda: running.status("probe").accepted > accepted + 300, "the probe goes on for more than a second")
    assert known(running) == pytest.approx(counted, abs=10), "the probe's own gets are not counted"
    assert running.status("probe").state is SourceState.OK
    assert running.status("probe").errors == 0

    server.kill()
    server.wait()
    until(
        lambda: (seen := running.status("probe")).state is SourceState.FAILING and "Connection refused" in seen.detail,
        "its end is noticed",
    )
    memcached(port)
    until(lambda: running.status("probe").state is SourceState.OK, "its next start is noticed")
    assert known(running) == pytest.approx(counted, abs=10), "counters that began anew make no requests"


def counted_after_thousand(running: Running, port: int) -> float:
    """The requests that are known, once a thousand sets and gets at a time were counted.

    On a machine so busy that the counters are read after the slot closed, these are not, and a thousand more are sent.
    """
    for _ in range(THOUSANDS):
        before, deadline_s = known(running) or 0.0, time.monotonic() + COUNTED_S
        with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rb") as answers:
            for number in range(500):
                client.sendall(b"set k%d 0 0 1\r\nx\r\nget k%d\r\n" % (number, number))
                assert next(answers) == b"STORED\r\n"
                assert [next(answers) for _ in range(3)][-1] == b"END\r\n"
        while time.monotonic() < deadline_s:
            if (known(running) or 0.0) - before == pytest.approx(1000, abs=10):
                return known(running) or 0.0
            time.sleep(0.005)
    pytest.fail(f"none of {THOUSANDS} times a thousand requests was counted")


def known(running: Running) -> float | None:
    """Requests of all slots, None while none is known."""
    requests = [slot.requests for slot in running.sources.slots().get("shop", ()) if slot.requests is not None]
    return sum(requests) if requests else None
