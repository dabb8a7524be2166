"""Benchmark of the load generator: does it sustain 5,000 requests/s over 64 connections on one core?

    python -m tests.bench.load [--json] [--seconds 5]

Two tables. The first: rate, lateness and CPU use against memcached (when installed) and against a small server of the
same protocol. The second: response times against a server that takes a fixed time for each request, one after the
other, beside what queueing theory gives for that very sequence of arrivals. Theory knows no way there and back and no
work besides the service time, so what is measured should lie a little above it, the more the busier the server.

Server and load generator get a CPU each where the machine has two. Nothing else should run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.table import Table

from manager.load import LoadResult, LoadSpec, MemcachedOptions, Phase, run
from manager.load.request_times import arrivals
from manager.model.histogram import Histogram

RATE_RPS = 5000
CONNECTIONS = 64
SERVICE_S = 0.002
UTILISATIONS = (0.3, 0.6, 0.8)
CPUS = sorted(os.sched_getaffinity(0))
OPTIONS = MemcachedOptions(keys=1000, value_bytes=100, set_share=0.1)


class Store:
    """memcached's ``get`` and ``set`` for one connection; assumes well-formed commands."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self._values = values
        self._buffer = b""

    def feed(self, data: bytes, service_s: float) -> bytes:
        """The answers to all commands now complete, each after ``service_s`` seconds of work."""
        self._buffer += data
        answers = []
        while (line_end := self._buffer.find(b"\r\n")) >= 0:
            words = self._buffer[:line_end].split()
            end = line_end + 2
            if words[0] == b"set":
                size = int(words[4])
                if len(self._buffer) < end + size + 2:
                    break
                self._values[words[1]] = self._buffer[end : end + size]
                end += size + 2
                answers.append(b"STORED\r\n")
            else:
                value = self._values[words[1]]
                answers.append(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (words[1], len(value), value))
            self._buffer = self._buffer[end:]
            busy_until_s = time.perf_counter() + service_s
            while time.perf_counter() < busy_until_s:
                pass
        return b"".join(answers)


def serve(listener: socket.socket, service_s: float) -> None:
    """Answer for ever, on one thread and CPU."""
    os.sched_setaffinity(0, {CPUS[0]})
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    values: dict[bytes, bytes] = {}
    connections: dict[int, tuple[socket.socket, Store]] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                epoll.register(connection.fileno(), select.EPOLLIN)
                connections[connection.fileno()] = (connection, Store(values))
                continue
            connection, store = connections[fd]
            data = connection.recv(65536)
            if data:
                connection.sendall(store.feed(data, service_s))
            else:
                del connections[fd]
                connection.close()


@contextmanager
def small_server(service_s: float) -> Iterator[int]:
    """The port of a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, service_s), daemon=True)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            process.join()


@contextmanager
def memcached_server(program: str) -> Iterator[int]:
    """The port of a real memcached with one thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-t", "1", *(["-u", "root"] if os.geteuid() == 0 else [])]
    with subprocess.Popen(command) as process:
        os.sched_setaffinity(process.pid, {CPUS[0]})
        try:
            yield port
        finally:
            process.terminate()


def load(port: int, rate_rps: float, seconds: float, connections: int = CONNECTIONS) -> LoadResult:
    """One run from the last CPU."""
    os.sched_setaffinity(0, {CPUS[-1]})
    return run(LoadSpec("127.0.0.1", port, OPTIONS, (Phase(seconds, rate_rps),), 1.0, connections))


def predicted(spec: LoadSpec, service_s: float) -> Histogram:
    """Response times of a queue with a fixed service time, for the very arrivals of ``spec`` (Lindley's equation)."""
    times_us = []
    free_s = 0.0
    for at_s in arrivals(spec.phases, spec.seed):
        free_s = max(free_s, at_s) + service_s
        if at_s >= spec.warmup_s:
            times_us.append((free_s - at_s) * 1e6)
    return Histogram.of(times_us)


def sustained_row(server: str, result: LoadResult) -> dict[str, object]:
    """One row of the first table."""
    return {
        "server": server,
        "offered_rps": RATE_RPS,
        "rate_rps": round(result.rate_rps, 1),
        "errors": sum(result.errors.values()),
        "p95_us": round(result.histogram.percentile_us(95) or 0),
        "lateness_p50_us": round(result.lateness.percentile_us(50) or 0),
        "lateness_p95_us": round(result.lateness.percentile_us(95) or 0),
        "lateness_p99_us": round(result.lateness.percentile_us(99) or 0),
        "cpu_share": round(result.cpu_share, 3),
        "cpu_us_per_request": round(result.cpu_share * 1e6 / RATE_RPS, 1),
        "client_limited": bool(result.client_limits),
    }


def queueing_rows(seconds: float) -> Iterator[dict[str, object]]:
    """The rows of the second table, one for each utilisation of the server."""
    with small_server(SERVICE_S) as port:
        for utilisation in UTILISATIONS:
            result = load(port, utilisation / SERVICE_S, seconds)
            theory = predicted(result.spec, SERVICE_S)
            row: dict[str, object] = {"utilisation": utilisation, "service_ms": SERVICE_S * 1e3}
            for percent in (50, 95, 99):
                row[f"p{percent}_theory_ms"] = round((theory.percentile_us(percent) or 0) / 1e3, 2)
                row[f"p{percent}_measured_ms"] = round((result.histogram.percentile_us(percent) or 0) / 1e3, 2)
            yield row


def show(title: str, rows: list[dict[str, object]], console: Console) -> None:
    """Print one figure a line and one column a run: the names are long, the runs few."""
    table = Table("", *("" for _ in rows), title=title, show_header=False)
    for name in rows[0]:
        table.add_row(name, *(str(row[name]) for row in rows))
    console.print(table)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=5.0, show_default=True, help="Length of each run.")
def main(as_json: bool, seconds: float) -> None:
    """Measure what the load generator sustains, and whether it measures what it should."""
    sustained = []
    program = shutil.which("memcached")
    if program is not None:
        with memcached_server(program) as port:
            sustained.append(sustained_row("memcached", load(port, RATE_RPS, seconds)))
    with small_server(0) as port:
        sustained.append(sustained_row("small server", load(port, RATE_RPS, seconds)))
    queueing = list(queueing_rows(seconds))
    if as_json:
        click.echo(json.dumps({"sustained": sustained, "queueing": queueing}, indent=1))
        return
    console = Console()
    show(f"{RATE_RPS:,} requests/s, {CONNECTIONS} connections", sustained, console)
    show("Fixed service time", queueing, console)


if __name__ == "__main__":
    main()
