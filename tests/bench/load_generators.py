"""Benchmark of the load generator beside those that everybody knows: how much each can send, and what it says of it.

    python -m tests.bench.load_generators [--json] [--seconds 5]

Closed loops of the same connections against the same NGINX and memcached with one thread: `wrk`, `ab` and `memcslap`
are written in C, ours in Python. Then ours at half its rate in an open loop, which the others do not have. What is not
installed is named. Server and generator get a CPU each where the machine has two. Nothing else should run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from manager.load import HttpOptions, LoadResult, LoadSpec, MemcachedOptions, Phase, run
from tests.bench.load import CPUS, OPTIONS, memcached_server, show

CONNECTIONS = 16
_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@contextmanager
def nginx_server(program: str) -> Iterator[int]:
    """The port of a real NGINX with one worker that answers from memory, on the first CPU."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nginx.conf")
        file.write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off; keepalive_requests 1000000000;\n"
            f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello"; }} }} }}\n'
        )
        with subprocess.Popen(["taskset", "-c", str(CPUS[0]), program, "-c", str(file), "-p", folder]) as process:
            try:
                _wait_for(port)
                yield port
            finally:
                process.terminate()


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"nobody listens on port {port}")


def output(*command: str) -> str:
    """What a generator prints, run on the last CPU."""
    pinned = ["taskset", "-c", str(CPUS[-1]), *command]
    return subprocess.run(pinned, capture_output=True, text=True, check=True, timeout=300).stdout


def number(pattern: str, text: str) -> float:
    """The number that a pattern finds, times its unit if it has one."""
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"not understood: {text}")
    return float(match[1]) * (_UNITS[match[2]] if match.re.groups > 1 else 1.0)


def row(generator: str, rate_rps: float, p50_us: float | None, p99_us: float | None) -> dict[str, object]:
    """A row of the table."""
    times = {"p50_us": p50_us, "p99_us": p99_us}
    return {"generator": generator, "rate_rps": round(rate_rps), **{k: v and round(v) for k, v in times.items()}}


def ours(generator: str, spec: LoadSpec) -> tuple[dict[str, object], LoadResult]:
    """The row of a run of ours."""
    os.sched_setaffinity(0, {CPUS[-1]})
    result = run(spec)
    times = (result.histogram.percentile_us(50), result.histogram.percentile_us(99))
    return row(generator, result.rate_rps, *times), result


def our_rows(port: int, protocol: HttpOptions | MemcachedOptions, seconds: float) -> Iterator[dict[str, object]]:
    """Closed loops, and an open one at half the rate."""

    def spec(pipeline: int, rate_rps: float) -> LoadSpec:
        return LoadSpec(
            "127.0.0.1",
            port,
            protocol,
            (Phase(seconds, rate_rps),),
            0.5,
            CONNECTIONS,
            pipeline=pipeline,
            closed_loop=not rate_rps,
        )

    single, result = ours("equipoise load --closed", spec(1, 0))
    yield single
    yield ours("equipoise load --closed --pipeline 8", spec(8, 0))[0]
    yield ours("equipoise load --rate, half of that", spec(1, result.rate_rps / 2))[0]


def http_rows(port: int, seconds: float) -> Iterator[dict[str, object]]:
    """All generators against NGINX."""
    url = f"http://127.0.0.1:{port}/"
    yield from our_rows(port, HttpOptions(), seconds)
    if shutil.which("wrk"):
        text = output("wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}s", "--latency", url)
        p50_us, p99_us = (number(rf"{percent}%\s+([\d.]+)(us|ms|s)", text) for percent in (50, 99))
        yield row("wrk", number(r"Requests/sec:\s+([\d.]+)", text), p50_us, p99_us)
    if shutil.which("ab"):
        text = output("ab", "-k", "-q", "-c", str(CONNECTIONS), "-n", str(round(10_000 * seconds)), url)
        yield row("ab (times in whole ms)", number(r"Requests per second:\s+([\d.]+)", text), None, None)


def memcached_rows(port: int, seconds: float) -> Iterator[dict[str, object]]:
    """All generators against memcached."""
    yield from our_rows(port, OPTIONS, seconds)
    if shutil.which("memcslap"):
        count = round(2000 * seconds)
        options = (f"--servers=127.0.0.1:{port}", f"--concurrency={CONNECTIONS}", f"--execute-number={count}")
        text = output("memcslap", *options, "--test=get")
        taken_s = number(r"get\s+\d+ keys by\s+\d+ threads:\s+([\d.]+) seconds", text)
        yield row("memcslap (gets, no percentiles)", CONNECTIONS * count / taken_s, None, None)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=5.0, show_default=True, help="Length of each run.")
def main(as_json: bool, seconds: float) -> None:
    """Measure the load generator beside others."""
    tables: dict[str, list[dict[str, object]]] = {}
    if nginx := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"):
        with nginx_server(nginx) as port:
            tables["NGINX"] = list(http_rows(port, seconds))
    if memcached := shutil.which("memcached"):
        with memcached_server(memcached) as port:
            _wait_for(port)
            tables["memcached"] = list(memcached_rows(port, seconds))
    missing = [name for name in ("nginx", "memcached", "wrk", "ab", "memcslap") if not shutil.which(name)]
    if as_json:
        click.echo(json.dumps({"connections": CONNECTIONS, "missing": missing, **tables}, indent=1))
        return
    for name, rows in tables.items():
        show(f"{name}, closed loops of {CONNECTIONS} connections", rows, Console())
    if missing:
        click.echo(f"not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main()
