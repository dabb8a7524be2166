"""One run from the specification to the result."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from manager.load.engine import Address, Engine
from manager.load.http1 import Http
from manager.load.load_errors import LoadError
from manager.load.memcached_text import Memcached
from manager.load.protocol import WireProtocol
from manager.load.recorder import Recorder
from manager.load.request_times import arrivals
from manager.load.result import IntervalResult, LoadResult
from manager.load.spec import HttpOptions, LoadSpec

_ATTEMPT_S = 1.0
_PAUSE_S = 0.05


def run(
    spec: LoadSpec,
    on_interval: Callable[[IntervalResult], None] | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:
    """Produce the load in this thread and return what was measured.

    ``on_interval`` gets each interval as it ends, between requests: it must return within a fraction of a
    millisecond. Setting ``stop`` ends the run within milliseconds, with what was measured so far. Raises LoadError
    when the server cannot be reached, refuses the keys, or ``stop`` came before the first request.
    """
    stopped = (stop or threading.Event()).is_set
    protocol = _protocol(spec)
    address = _reach(spec, protocol, stopped)
    recorder = Recorder(spec, on_interval)
    with _no_collections(), _engine(spec, address, protocol, recorder) as engine:
        give_up_s = time.monotonic() + spec.connect_timeout_s
        while engine.connected < spec.connections and time.monotonic() < give_up_s and not stopped():
            engine.turn()
        if not engine.connected and not stopped():
            raise _unreachable(spec, "every connection was refused or lost")
        _check_stopped(stopped)
        begin_s = time.monotonic()
        begin_cpu_s = time.thread_time()
        recorder.begin(begin_s + spec.warmup_s)
        if spec.closed_loop:
            engine.begin_closed_loop()
        else:
            engine.begin(begin_s, arrivals(spec.phases, spec.seed))
        end_s = begin_s + spec.warmup_s + spec.schedule_s
        while time.monotonic() < end_s and not stopped():
            engine.turn()
        cpu_s = time.thread_time() - begin_cpu_s
        cpu_share = cpu_s / (time.monotonic() - begin_s)
        engine.end_closed_loop()
        while not (engine.drained or stopped()):
            engine.turn()
        engine.interrupt()
        return recorder.finish(time.monotonic(), cpu_s, cpu_share, engine.events + protocol.events)


def _protocol(spec: LoadSpec) -> WireProtocol:
    if isinstance(spec.protocol, HttpOptions):
        return Http(spec.protocol, spec.address_text, spec.seed)
    return Memcached(spec.protocol, spec.seed)


def _reach(spec: LoadSpec, protocol: WireProtocol, stopped: Callable[[], bool]) -> Address:
    """The first address of the host that accepts a connection, after the protocol made its preparations on it."""
    try:
        found = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise LoadError(f"{spec.host} has no address ({error}): check the name, or give a numeric address") from error
    addresses = [Address(family, sockaddr) for family, _, _, _, sockaddr in found]
    give_up_s = time.monotonic() + spec.connect_timeout_s
    while True:
        for address in addresses:
            _check_stopped(stopped)
            try:
                probe = socket.socket(address.family, socket.SOCK_STREAM)  # fails without IPv6, which localhost has
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            with probe:
                # Short attempts: a signal is noticed between them, and a lost SYN costs no more than one.
                probe.settimeout(min(_ATTEMPT_S, spec.connect_timeout_s))
                try:
                    probe.connect(address.sockaddr)
                except OSError as error:
                    reason = error.strerror or str(error)
                    continue
                _prepare(spec, protocol, probe, stopped)
                return address
        if time.monotonic() >= give_up_s:
            raise _unreachable(spec, reason)
        time.sleep(_PAUSE_S)


def _prepare(spec: LoadSpec, protocol: WireProtocol, connection: socket.socket, stopped: Callable[[], bool]) -> None:
    connection.settimeout(spec.timeout_s)
    try:
        protocol.prepare(connection, stopped)
    except OSError as error:
        raise LoadError(f"{spec.target_text} failed while the keys were being stored: {error}") from error


def _unreachable(spec: LoadSpec, reason: str) -> LoadError:
    return LoadError(
        f"cannot connect to {spec.address_text} within {spec.connect_timeout_s:g} s ({reason}): check that the server "
        "runs and listens on that address and port and that no firewall is between, or wait longer for it with "
        "--connect-timeout"
    )


def _check_stopped(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise LoadError("stopped before the first request")


@contextmanager
def _engine(spec: LoadSpec, address: Address, protocol: WireProtocol, recorder: Recorder) -> Iterator[Engine]:
    engine = Engine(spec, address, protocol, recorder)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without garbage collections, which would stop the loop for milliseconds; the loop leaves no cycles behind."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
