"""NGINX access log lines, as written to a file or sent by syslog.

A line is understood by its ``name=value`` pairs, in any order and among other text (docs/how-to/sources.md has the
log_format): ``request_time``, ``upstream_response_time``, and, if present, ``status`` and ``msec``. Of a name that
occurs twice the first counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from manager.model.source import TimeField
from manager.telemetry.feed import Feed

BELOW_RESOLUTION_US = 500.0
"""NGINX counts whole milliseconds: 0.000 means less than one, and counts as half of one."""
MAX_TIME_S = 1e6

_NUMBER = r"\d{1,10}(?:\.\d{1,9})?"
_UPSTREAM = rf"(?:{_NUMBER}|-)"
_VALUES = {
    "request_time": re.compile(rf"(?<!\S)request_time=({_NUMBER})(?!\S)", re.ASCII),
    # One time an upstream server that was tried; a colon comes after an internal redirect.
    "upstream_response_time": re.compile(
        rf"(?<!\S)upstream_response_time=({_UPSTREAM}(?:(?:, | : ){_UPSTREAM})*)(?!\S)", re.ASCII
    ),
    "msec": re.compile(rf"(?<!\S)msec=({_NUMBER})(?!\S)", re.ASCII),
    "status": re.compile(r"(?<!\S)status=(\d{3})(?!\S)", re.ASCII),
}
_SEPARATOR = re.compile(r", | : ")

# What ngx_syslog_add_header writes: priority, time, host name (unless `nohostname`), and the tag.
_SYSLOG = re.compile(
    r"<\d{1,3}>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:\S{1,255} )?(?P<tag>[A-Za-z0-9_]{1,32}): (?P<message>.*)",
    re.DOTALL | re.ASCII,
)


class MalformedLine(ValueError):
    """A line that is not as documented. Its text says what is wrong without quoting the line."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One request. ``time_us`` None: it has no such time, as where no upstream server was asked.

    ``end_s`` (seconds since the epoch) None where the line does not tell; ``failed``: answered with status 500 or more.
    """

    time_us: float | None
    end_s: float | None
    failed: bool


def parse_line(text: str, time: TimeField) -> LogLine:
    """Read a line for one of its times. Raises MalformedLine."""
    match = _VALUES[time.value].search(text)
    if match is None:
        raise MalformedLine(f"a line without a usable {time.value}=")
    parts = [float(part) for part in _SEPARATOR.split(match[1]) if part != "-"]
    if sum(parts) > MAX_TIME_S:
        raise MalformedLine(f"a line with a {time.value} above {MAX_TIME_S:g} s")
    end = _VALUES["msec"].search(text)
    status = _VALUES["status"].search(text)
    return LogLine(
        max(sum(parts) * 1e6, BELOW_RESOLUTION_US) if parts else None,
        float(end[1]) if end else None,
        status is not None and int(status[1]) >= 500,
    )


def parse_syslog(packet: bytes) -> tuple[str, str]:
    """Tag and message of a packet as NGINX sends it (RFC 3164). Raises MalformedLine."""
    match = _SYSLOG.match(packet.decode("utf-8", "replace"))
    if match is None:
        raise MalformedLine("a packet that is not syslog as NGINX sends it")
    return match["tag"], match["message"].rstrip("\n")


def take_line(feed: Feed, text: str, time: TimeField) -> None:
    """Count the request of a line, which arrived now."""
    try:
        line = parse_line(text, time)
    except MalformedLine as error:
        feed.malformed(str(error))
        return
    if line.failed:
        feed.error("a request was answered with a status of 500 or more")
    times_us = () if line.time_us is None else (line.time_us,)
    feed.take(feed.clock() if line.end_s is None else feed.store.local_s(line.end_s), times_us, requests=1)
