"""`equipoise load`."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from manager.cli.load_options import GroupedCommand, load_options, number, protocol_of, usage_error
from manager.cli.load_report import progress_line, result_lines, result_table
from manager.cli.options import Failure, json_option, stop_signal
from manager.load import IntervalResult, LoadResult, LoadSpec, Phase, SpecError, parse_schedule, run
from manager.terminal import output, rewrite, say

_DEFAULT_DURATION_S = 20.0

_EPILOG = """
TARGET
  http://HOST[:PORT]/PATH or memcached://HOST[:PORT], ports 80 and 11211 by default. Of HTTP it is a GET of PATH, in
  which {key} becomes the number of a key; of memcached a get or a set, in its text protocol. All keys are stored
  before the load begins.

OPEN LOOP
  By default. Requests fall due as a Poisson process at --rate, whether or not earlier ones were answered, as those of
  many independent users do. A response time runs from the moment the request was due to the last byte of its answer:
  it includes waiting for a connection that can take it, and any delay of this program. That delay is its lateness.

CLOSED LOOP
  With --closed, each connection sends the next request when one was answered, so that --connections times --pipeline
  are always outstanding: the most that the server can do. A stalled server gets no requests meanwhile, so percentiles
  hide what users would see; compare them with those of other closed loops only.

KEYS AND VALUES
  With --zipf X the key of rank r is requested in proportion to 1/r^X; 0.99 is common for caches. --value-bytes takes
  one size (100), a range in which all sizes are alike (10-1000), sizes with weights (100x9,4096x1), or etc: a
  generalised Pareto distribution, that of a general-purpose memcached at Facebook (Atikoglu et al., SIGMETRICS 2012).
  A key always has the same size.

OUTPUT
  Percentiles, rates, and errors by kind. A request without an answer in time is an error and counts at the time-out in
  the response times; other errors (an HTTP status of 400 or more, a lost connection, a memcached error) have none. A
  request behind others on a connection that is lost is lost with them.

  A warning says when the numbers are about this program and not the server: a lateness p99 above 1 ms and a tenth of
  the p95, or more than 80 % of a core used. It also says when the rate was not reached, the rate that was, and what to
  do. With --json an object; times are in microseconds, and `intervals` has each second (--interval).

  SIGINT, SIGTERM and SIGHUP (but under nohup) end the run. What was measured so far is printed, and outstanding
  requests count as errors (interrupted) at their age.

EXIT STATUS
  0  requests were answered, at the rate that was asked for
  1  no answer, a server that cannot be reached, or a rate that was not reached (what was measured is printed)
  2  wrong usage

EXAMPLES
  equipoise load http://192.0.2.10/index.html --rate 500 --duration 60
  equipoise load http://192.0.2.10/ --schedule 500x60,1000x300 --header 'Accept-Encoding: gzip'
  equipoise load 'http://192.0.2.10/item/{key}.html' --rate 200 --keys 1000 --zipf 0.9
  equipoise load memcached://192.0.2.11 --rate 5000 --keys 100000 --zipf 0.99 --value-bytes etc
  equipoise load memcached://192.0.2.11 --closed --connections 16 --pipeline 8 --duration 10
  equipoise load memcached://192.0.2.11 --rate 5000 --json | jq .p95_us
"""


@click.command("load", cls=GroupedCommand, epilog=_EPILOG)
@click.argument("target")
@click.option("--rate", type=number("rate_rps", above=True), metavar="RPS", help="Requests per second.")
@click.option(
    "--duration",
    type=number("duration_s", above=True),
    metavar="S",
    help=f"Seconds measured. [default: {_DEFAULT_DURATION_S:g}]",
)
@click.option("--schedule", metavar="LIST", help="Rates over time, instead of --rate: 500x60,1000x300 (RPSxSECONDS).")
@click.option("--closed", is_flag=True, help="A closed loop, instead of --rate.")
@click.option(
    "--warmup", type=number("warmup_s"), default=2.0, show_default=True, metavar="S", help="Seconds not counted, first."
)
@load_options
@click.option(
    "--interval", type=number("interval_s"), default=1.0, show_default=True, metavar="S", help="Length of an interval."
)
@json_option
@click.pass_context
def load(
    context: click.Context,
    /,
    target: str,
    rate: float | None,
    duration: float | None,
    schedule: str | None,
    closed: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send requests to TARGET, and measure their response times."""
    try:
        host, port, protocol = protocol_of(context, target, options)
        spec = LoadSpec(
            host=host,
            port=port,
            protocol=protocol,
            schedule=_schedule(rate, duration, schedule, closed),
            warmup_s=options["warmup"],
            connections=options["connections"],
            seed=options["seed"],
            timeout_s=options["timeout"],
            connect_timeout_s=options["connect_timeout"],
            interval_s=options["interval"],
            pipeline=options["pipeline"],
            closed_loop=closed,
        )
    except SpecError as error:
        raise usage_error(error) from error
    result = _watched(spec)
    output(as_json, result.to_json(), result_table(result), *result_lines(result))
    if not result.answered:
        errors = ", ".join(f"{kind} {count:,}" for kind, count in sorted(result.errors.items()))
        raise Failure(f"{spec.target_text} answered none of {result.sent:,} requests ({errors or 'none fell due'})")
    if result.shortfall:
        raise Failure(f"{result.shortfall}: {result.remedy}")


def _watched(spec: LoadSpec) -> LoadResult:
    """The run, with its progress where somebody sees it."""

    # A bar that draws itself would do so from a thread of its own, and keep requests waiting.
    def show(interval: IntervalResult) -> None:
        rewrite(progress_line(interval, spec.schedule_s))

    shown = sys.stderr.isatty()
    with stop_signal(signal.SIGHUP) as stop:
        try:
            return run(spec, show if shown else None, stop)
        finally:
            if shown:
                say(err=True)


def _schedule(
    rate_rps: float | None, duration_s: float | None, schedule: str | None, closed: bool
) -> tuple[Phase, ...]:
    if (rate_rps is not None) + (schedule is not None) + closed != 1:
        raise click.UsageError("give one of --rate RPS, --schedule RATExSECONDS,... and --closed")
    if schedule is None:
        return (Phase(_DEFAULT_DURATION_S if duration_s is None else duration_s, rate_rps or 0.0),)
    if duration_s is not None:
        raise click.UsageError("--duration goes with --rate or --closed; a --schedule holds its own durations")
    return parse_schedule(schedule)
