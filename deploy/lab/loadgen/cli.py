"""The command line."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

import click
from click.core import ParameterSource
from rich.console import Console

from deploy.lab.loadgen.load_errors import LoadError, SpecError
from deploy.lab.loadgen.load_report import print_result, progress_line
from deploy.lab.loadgen.result import IntervalResult
from deploy.lab.loadgen.runner import run
from deploy.lab.loadgen.spec import (
    RANGES,
    HttpOptions,
    LoadSpec,
    MemcachedOptions,
    Phase,
    parse_schedule,
    parse_target,
)

_OPTION_OF = {
    "target": "TARGET",
    "host": "TARGET",
    "path": "TARGET",
    "port": "TARGET",
    "rate_rps": "--rate",
    "duration_s": "--duration",
    "schedule": "--schedule",
    "warmup_s": "--warmup",
    "connections": "--connections",
    "seed": "--seed",
    "timeout_s": "--timeout",
    "connect_timeout_s": "--connect-timeout",
    "interval_s": "--interval",
    "headers": "--header",
    "keys": "--keys",
    "value_bytes": "--value-bytes",
    "set_share": "--set-share",
}
_ONLY_FOR = {"headers": "http", "keys": "memcached", "value_bytes": "memcached", "set_share": "memcached"}
_DEFAULT_DURATION_S = 20.0
_MEMCACHED = MemcachedOptions()


def _number(field: str) -> click.FloatRange:
    return click.FloatRange(*RANGES[field])


def _whole(field: str) -> click.IntRange:
    low, high = RANGES[field]
    return click.IntRange(int(low), int(high))


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.argument("target")
@click.option("--rate", type=_number("rate_rps"), metavar="RPS", help="Requests per second, constant.")
@click.option(
    "--duration", type=_number("duration_s"), metavar="S", help=f"Seconds measured.  [default: {_DEFAULT_DURATION_S:g}]"
)
@click.option("--schedule", metavar="LIST", help="Rates over time, instead of --rate and --duration: 500x60,1000x300.")
@click.option("--warmup", type=_number("warmup_s"), default=2.0, metavar="S", help="Seconds before, not counted.")
@click.option("--connections", type=_whole("connections"), default=64, metavar="N", help="Connections, kept open.")
@click.option("--seed", type=_whole("seed"), default=1, metavar="N", help="Seed of arrivals, keys and values.")
@click.option("--timeout", type=_number("timeout_s"), default=10.0, metavar="S", help="Time-out of a request.")
@click.option(
    "--connect-timeout", type=_number("connect_timeout_s"), default=5.0, metavar="S", help="How long to try at first."
)
@click.option("--interval", type=_number("interval_s"), default=1.0, metavar="S", help="Length of an interval.")
@click.option("--json", "json_file", type=click.File("w", lazy=False), metavar="FILE", help="Write JSON; - is stdout.")
@click.option("--header", "headers", multiple=True, metavar="TEXT", help="HTTP: another header; may be repeated.")
@click.option("--keys", type=_whole("keys"), default=_MEMCACHED.keys, metavar="N", help="memcached: number of keys.")
@click.option(
    "--value-bytes",
    type=_whole("value_bytes"),
    default=_MEMCACHED.value_bytes,
    metavar="N",
    help="memcached: value size.",
)
@click.option(
    "--set-share", type=_number("set_share"), default=_MEMCACHED.set_share, metavar="X", help="memcached: part of sets."
)
@click.pass_context
def main(  # noqa: PLR0913 - one for each option
    context: click.Context,
    target: str,
    rate: float | None,
    duration: float | None,
    schedule: str | None,
    warmup: float,
    connections: int,
    seed: int,
    timeout: float,
    connect_timeout: float,
    interval: float,
    json_file: IO[str] | None,
    headers: tuple[str, ...],
    keys: int,
    value_bytes: int,
    set_share: float,
) -> None:
    """Send requests to TARGET at a set rate and measure response times.

    TARGET is http://HOST[:PORT]/PATH or memcached://HOST[:PORT].

    The loop is open: requests fall due as a Poisson process, whether or not earlier ones were answered. A response
    time runs from the moment the request was due to the last byte of its answer, and so includes waiting for a free
    connection (each has one request outstanding) and any delay of this program. That delay is shown as lateness; a
    warning, and client_limited in the JSON, says when the numbers are about this program: lateness p99 above 1 ms
    and a tenth of the measured p95, or more than 80 % of a core used. For clean numbers give it a CPU of its own
    (taskset).

    The warm-up runs at the first rate, before the schedule, and is not counted; intervals begin after it. A request
    without an answer in time is an error and counts at the time-out in the response times; other errors (an HTTP
    status of 400 or more, a lost connection, a memcached error) are counted by kind. memcached's keys are stored
    before the load.

    \b
    EXAMPLES (loadgen stands for: python -m deploy.lab.loadgen)
      loadgen http://192.0.2.10/index.html --rate 500 --duration 60
      loadgen http://192.0.2.10/ --schedule 500x60,1000x300 --header 'Accept-Encoding: gzip'
      loadgen memcached://192.0.2.11 --rate 5000 --value-bytes 1024 --json - | jq .p95_us

    \b
    EXIT STATUS
      0  requests were answered
      1  none was answered, or the server could not be reached
      2  the command line is wrong

    SIGINT and SIGTERM end the run; what was measured so far is printed, and requests outstanding count as errors
    (interrupted) at their age.
    """
    try:
        scheme, host, port, path = parse_target(target)
        _refuse_foreign_options(context, scheme)
        protocol = (
            HttpOptions(path, tuple(_header(header) for header in headers))
            if scheme == "http"
            else MemcachedOptions(keys, value_bytes, set_share)
        )
        spec = LoadSpec(
            host=host,
            port=port,
            protocol=protocol,
            schedule=_schedule(rate, duration, schedule),
            warmup_s=warmup,
            connections=connections,
            seed=seed,
            timeout_s=timeout,
            connect_timeout_s=connect_timeout,
            interval_s=interval,
        )
    except SpecError as error:
        raise click.UsageError(f"{_OPTION_OF[error.field]} {error.value} is refused: use {error.allowed}") from error
    try:
        with _stop_on_signals() as stop:
            result = run(spec, _show if sys.stderr.isatty() else None, stop)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if sys.stderr.isatty():
        click.echo(err=True)
    if json_file is not None:
        json.dump(result.to_json(), json_file, indent=1)
        json_file.write("\n")
    print_result(
        result, Console(stderr=json_file is not None and json_file.name == "<stdout>", highlight=False, soft_wrap=True)
    )
    if not result.answered:
        sys.exit(1)


def _schedule(rate_rps: float | None, duration_s: float | None, schedule: str | None) -> tuple[Phase, ...]:
    if (rate_rps is None) == (schedule is None):
        raise click.UsageError("give either --rate RPS or --schedule RATExSECONDS,...")
    if schedule is None:
        return (Phase(_DEFAULT_DURATION_S if duration_s is None else duration_s, rate_rps or 0.0),)
    if duration_s is not None:
        raise click.UsageError("--duration goes with --rate; a --schedule holds its own durations")
    return parse_schedule(schedule)


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value.strip()


def _refuse_foreign_options(context: click.Context, scheme: str) -> None:
    for name, owner in _ONLY_FOR.items():
        if owner != scheme and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_OPTION_OF[name]} is for {owner}:// targets only")


def _show(interval: IntervalResult) -> None:
    click.echo(f"\r{progress_line(interval)}", err=True, nl=False)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
