"""Runs against servers that fail in every way there is, and memcached with its own ways."""

import errno
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from manager.load import HttpOptions, IntervalResult, LoadError, LoadSpec, MemcachedOptions, Phase, run
from manager.model.histogram import RELATIVE_ERROR, Histogram

from .test_load_run import LONG_S, OK, Handler, Server, after, answering, load, once, percentile, serving


def never(handler: Handler, _number: int) -> bool:
    while handler.rfile.read(1):  # until the client gives up
        pass
    return False


@pytest.mark.parametrize("connections", [1, 64])
def test_no_answer_counts_at_the_timeout(connections: int) -> None:
    with serving(answering(never)) as server:
        result = load(server.port, 100, 0.4, timeout_s=0.2, connections=connections)
    assert result.answered == 0
    assert result.errors.keys() <= {"timeout", "queue_timeout"}
    assert (result.errors.get("queue_timeout", 0) > 0) == (connections == 1)
    assert result.histogram == Histogram.of([200_000] * result.sent)
    assert result.mean_us == pytest.approx(200_000)


def good(handler: Handler, _number: int) -> None:
    handler.write(OK)


def close_now(_handler: Handler, _number: int) -> bool:
    return False


def reset_now(handler: Handler, _number: int) -> bool:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()  # with linger 0: a reset
    return False


def nonsense(handler: Handler, _number: int) -> None:
    handler.write(b"220 mail.example.org ESMTP\r\n\r\n")


def unavailable(handler: Handler, _number: int) -> None:
    handler.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(close_now, "closed"), (reset_now, "reset"), (nonsense, "bad_answer"), (unavailable, "http_503")],
)
def test_errors_are_counted_by_kind(answer: Callable[[Handler, int], object], kind: str) -> None:
    def every_other(handler: Handler, number: int) -> object:
        return (answer if number % 2 else good)(handler, number)

    with serving(answering(every_other)) as server:
        # Few connections: some are used again, even if on a busy machine all requests are late and go out at once.
        result = load(server.port, 100, 0.4, connections=4)
    assert result.errors.keys() == {kind}
    assert abs(result.errors[kind] - result.answered) <= 1
    assert result.histogram.count == result.answered
    assert (result.events.get("reconnects", 0) > 0) == (kind != "http_503")


def test_polite_close_is_no_error() -> None:
    def close_every_fifth(handler: Handler, number: int) -> bool:
        closing = number % 5 == 0
        handler.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if closing else OK)
        return not closing

    with serving(answering(close_every_fifth)) as server:
        result = load(server.port, 200, 0.3, connections=4)
    assert not result.errors
    assert result.events["reconnects"] >= result.sent // 5 - 4


def test_chunks_and_fragments() -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5\r\npedia\r\n0\r\n\r\n"

    def fragmented(handler: Handler, _number: int) -> None:
        for begin in range(0, len(body), 9):
            handler.write(body[begin : begin + 9])
            time.sleep(0.001)

    with serving(answering(fragmented)) as server:
        result = load(server.port, 100, 0.4, protocol=HttpOptions("/x", (("Accept-Encoding", "gzip"),)))
    assert not result.errors
    assert percentile(result.histogram, 1) >= 1000 * (len(body) // 9) * (1 - RELATIVE_ERROR)
    assert all(b"Accept-Encoding: gzip" in request and b"GET /x " in request for request in server.requests)


def test_server_that_dies_looks_slow() -> None:
    """Refused connections take no time, but the requests that fall due meanwhile wait for one, and time out."""

    def check() -> bool:
        dead = threading.Event()
        ports: queue.Queue[int] = queue.Queue()

        def live() -> None:
            def answer(handler: Handler, _number: int) -> bool:
                handler.write(b"" if dead.is_set() else OK)
                return not dead.is_set()

            with serving(answering(answer)) as server:
                ports.put(server.port)
                dead.wait()

        def on_interval(interval: IntervalResult) -> None:
            if interval.end_s >= 0.2:
                dead.set()

        thread = threading.Thread(target=live)
        thread.start()
        spec = LoadSpec(
            "127.0.0.1",
            ports.get(),
            HttpOptions(),
            (Phase(0.7, 100),),
            connections=4,
            timeout_s=0.3,
            connect_timeout_s=LONG_S,
            interval_s=0.1,
        )
        result = run(spec, on_interval)
        thread.join()
        assert result.sent == result.answered + sum(result.errors.values())
        timed_out = result.errors.get("timeout", 0) + result.errors.get("queue_timeout", 0)
        assert result.histogram.count == result.answered + timed_out
        died = result.answered > 0 and result.events.get("connect_failures", 0) > 0
        slow = percentile(result.histogram, 95) == percentile(Histogram.of([300_000]), 50)
        return died and slow and result.errors.get("queue_timeout", 0) >= 20

    once(check)


def memcached(handler: Handler, server: Server) -> bool:
    """A small memcached; a value cut into pieces exercises the parser."""
    words = handler.rfile.readline().split()
    if not words:
        return False
    if words[0] == b"set":
        server.stored[words[1]] = handler.rfile.read(int(words[4]) + 2)[:-2]
        handler.write(b"STORED\r\n")
        return True
    value = server.stored.get(words[1])
    if value is None:
        handler.write(b"END\r\n")
    else:
        handler.write(b"VALUE %b 0 %d\r\n%b" % (words[1], len(value), value[:7]))
        handler.write(value[7:] + b"\r\nEND\r\n")
    return True


def test_memcached_keys_are_stored_first() -> None:
    options = MemcachedOptions(keys=1200, value_bytes=50, set_share=0.2)
    with serving(memcached) as server:
        result = load(server.port, 300, 0.3, protocol=options)
    assert not result.errors
    assert "misses" not in result.events
    assert len(server.stored) == 1200
    assert {len(value) for value in server.stored.values()} == {50}


def test_large_values_are_sent_in_parts() -> None:
    options = MemcachedOptions(keys=2, value_bytes=500_000, set_share=1)
    with serving(memcached, narrow=True) as server:
        result = load(server.port, 20, 0.3, protocol=options, connections=2)
    assert not result.errors
    assert len(set(server.stored.values())) == 1


def test_answer_before_the_whole_request_ends_the_connection() -> None:
    next_came = [threading.Event()]

    def hasty(handler: Handler, server: Server) -> bool:
        if not server.stored:
            return memcached(handler, server)
        if handler.rfile.readline():
            next_came[-1].set()
            next_came.append(threading.Event())
            handler.write(b"SERVER_ERROR busy\r\n")
            # Reads no more, so that the client has no room to send the rest: a second request on this connection would
            # never be answered.
            next_came[-1].wait(LONG_S)
        return False

    options = MemcachedOptions(keys=1, value_bytes=500_000, set_share=1)
    with serving(hasty, narrow=True) as server:
        result = load(server.port, 40, 0.15, protocol=options, connections=1, timeout_s=LONG_S / 2)
    next_came[-1].set()
    assert result.errors == {"server_error": result.sent}
    assert result.sent > 1


def test_refused_keys_stop_the_run() -> None:
    def full(handler: Handler, _server: Server) -> bool:
        handler.rfile.readline()
        handler.rfile.readline()
        handler.write(b"SERVER_ERROR object too large for cache\r\n")
        return False

    with serving(full) as server, pytest.raises(LoadError, match="object too large for cache"):
        load(server.port, 10, 0.1, protocol=MemcachedOptions(keys=1))


def test_memcached_errors_and_misses() -> None:
    def forgetful(handler: Handler, server: Server) -> bool:
        words = handler.rfile.readline().split()
        if words[:1] == [b"set"]:
            handler.rfile.read(int(words[4]) + 2)
            handler.write(b"STORED\r\n")
        elif words:
            handler.write(b"END\r\n" if next(server.numbers) % 2 else b"SERVER_ERROR busy\r\n")
        return bool(words)

    with serving(forgetful) as server:
        result = load(server.port, 100, 0.3, protocol=MemcachedOptions(keys=10, set_share=0))
    assert result.errors.keys() == {"server_error"}
    assert result.events["misses"] == result.answered > 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_nobody_there_says_where_and_what_to_do() -> None:
    port = free_port()
    with pytest.raises(LoadError, match=rf"cannot connect to 127\.0\.0\.1:{port} within 0\.2 s .*--connect-timeout"):
        load(port, 10, 0.1, connect_timeout_s=0.2)
    with pytest.raises(LoadError, match=r"no-such-host\.invalid has no address"):
        run(LoadSpec("no-such-host.invalid", 80, HttpOptions(), (Phase(1, 1),)))


def test_a_host_without_ipv6_uses_the_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ipv4Only(socket.socket):
        def __init__(self, family: int = -1, *more: int, **named: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more, **named)

    with serving(answering(good)) as server:
        both = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", server.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
        ]
        monkeypatch.setattr(socket, "socket", Ipv4Only)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        spec = LoadSpec("localhost", server.port, HttpOptions(), (Phase(0.2, 100),), timeout_s=LONG_S)
        result = run(replace(spec, connect_timeout_s=LONG_S))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
        with pytest.raises(LoadError, match=r"cannot connect to localhost:.* \(Address family not supported"):
            run(replace(spec, connect_timeout_s=0.1))
    assert result.answered == result.sent > 0


def test_stop_before_the_first_request() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(LoadError, match="stopped before the first request"):
        run(LoadSpec("127.0.0.1", free_port(), HttpOptions(), (Phase(1, 1),)), stop=stop)


def test_stop_counts_what_is_outstanding_at_its_age() -> None:
    stop = threading.Event()

    def on_interval(interval: IntervalResult) -> None:
        if interval.end_s >= 0.3:
            stop.set()

    with serving(answering(never)) as server:
        spec = LoadSpec(
            "127.0.0.1",
            server.port,
            HttpOptions(),
            (Phase(3 * LONG_S, 100),),
            connections=2,
            timeout_s=LONG_S,
            connect_timeout_s=LONG_S,
            interval_s=0.1,
        )
        result = run(spec, on_interval, stop)
    assert result.duration_s < LONG_S
    assert result.errors == {"interrupted": result.sent}
    assert result.histogram.count == result.sent > 0
    assert result.max_us is not None
    assert 200_000 <= result.max_us <= result.duration_s * 1e6
    assert result.requested_rps == pytest.approx(2 / result.sending_s), "no connection took the others"
    # On a busy machine it says that of itself.
    why = "this load generator is too slow" if result.client_limits else "the server did not answer soon enough"
    assert f"could be sent, as {why}" in result.shortfall


def test_answers_that_nobody_asked_for_end_the_connection() -> None:
    def twice(handler: Handler, number: int) -> None:
        handler.write(OK * (1 + number % 2))

    with serving(answering(twice)) as server:
        result = load(server.port, 100, 0.4)
    assert result.errors.keys() == {"bad_answer"}
    assert result.answered > 0


@pytest.mark.parametrize("pipeline", [1, 4])
def test_closed_loop_has_so_many_requests_outstanding(pipeline: int) -> None:
    """Each connection is served one request after the other: the response time is that of all in its queue."""

    def check() -> bool:
        with serving(after(lambda _: 0.01)) as server:
            result = load(server.port, 0, 0.5, connections=2, pipeline=pipeline, closed_loop=True)
        assert not result.errors
        assert result.lateness_max_us == 0
        assert percentile(result.histogram, 50) >= 10_000 * pipeline * (1 - 2 * RELATIVE_ERROR) or pipeline > 1
        assert result.answered <= 2 * result.duration_s / 0.01
        as_many = 0.6 * 2 * 50 <= result.answered <= 2 * 50 + 2 * pipeline
        return as_many and percentile(result.histogram, 50) >= 0.8 * pipeline * 10_000

    once(check)


def test_pipelined_requests_share_a_connection() -> None:
    """With two connections, eight requests are on the way at once, and none waits in the load generator."""
    options = MemcachedOptions(keys=20, value_bytes="1-3000", set_share=0.3)
    with serving(memcached, narrow=True) as server:
        result = load(server.port, 400, 0.4, protocol=options, connections=2, pipeline=8)
    assert not result.errors
    assert result.answered == result.sent > 100
    assert result.events.get("misses", 0) == 0


def test_pipelined_requests_behind_one_that_times_out_count_as_well() -> None:
    def check() -> bool:
        with serving(answering(never)) as server:
            result = load(server.port, 100, 0.4, timeout_s=0.2, connections=1, pipeline=50)
        assert result.answered == 0
        assert result.errors.keys() <= {"timeout", "queue_timeout"}
        assert result.histogram.count == result.sent
        assert result.max_us is not None
        assert result.max_us <= 200_001
        return result.errors["timeout"] > 20

    once(check)


def test_closed_loop_survives_lost_connections() -> None:
    stop = threading.Event()

    def close_every_fifth(handler: Handler, number: int) -> bool:
        if number >= 40:
            stop.set()
        handler.write(OK)
        return number % 5 != 0

    with serving(answering(close_every_fifth)) as server:
        spec = LoadSpec(
            "127.0.0.1",
            server.port,
            HttpOptions(),
            (Phase(LONG_S, 0),),
            connections=2,
            timeout_s=LONG_S,
            connect_timeout_s=LONG_S,
            closed_loop=True,
        )
        result = run(spec, stop=stop)
    assert result.events["reconnects"] > 0
    assert result.answered > 10
    assert result.errors.keys() <= {"closed", "reset", "interrupted"}
