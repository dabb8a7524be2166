"""memcached: response times by an active probe, the request rate from the server's own counters.

Protocol: memcached's doc/protocol.txt (the text protocol).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from manager.model.reach import Reach
from manager.model.source import MemcachedProbe
from manager.telemetry.connect import Names
from manager.telemetry.feed import Abuse, Feed, SourceError, reason_of, until_next_s
from manager.telemetry.probe import OpenLoop, ProbeError, ProbeReport

PROBE_KEY = "equipoise:probe"
_MAX_STATS_EVERY_S = 1.0
_MAX_VALUE = 64 * 1024
_MAX_STATS = 1000
_MAX_LINE = 4096
_PART = 16 * 1024
_MAX_COUNT = 2**64  # its counters have 64 bits
_MAX_DIGITS = 20
# A multi-get counts once a key.
_COUNTERS = frozenset(
    ["cmd_get", "cmd_set", "cmd_touch", "cmd_flush"]
    + [f"{command}_{result}" for command in ("delete", "incr", "decr") for result in ("hits", "misses")]
)
_READ = _COUNTERS | {"pid"}


@dataclass(slots=True)
class OwnGets:
    """Gets of the probe: those sent, and those of them that were answered or timed out."""

    sent: int = 0
    finished: int = 0


class TextConnection:
    """One connection, made with the first request, which serves one request at a time."""

    def __init__(self, names: Names, address: str, port: int, own: OwnGets) -> None:
        self._names = names
        self._address = address
        self._port = port
        self._own = own
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        """Close at once; the next request connects again."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def send(self, command: str) -> asyncio.StreamReader:
        """Send a command line; returns where to read the answer. Raises OSError, Unreachable."""
        if self._streams is not None and _is_closed(*self._streams):  # by the server, while it was idle
            self.close()
        if self._streams is None:
            self._streams = await self._names.connect(
                self._address, lambda address: asyncio.open_connection(address, self._port, limit=_MAX_LINE), _abort
            )
        reader, writer = self._streams
        writer.write(command.encode() + b"\r\n")
        await writer.drain()
        return reader

    async def request(self) -> None:
        """Get the probe's key, which need not exist. Raises SourceError, OSError."""
        reader = await self.send(f"get {PROBE_KEY}")
        self._own.sent += 1
        try:
            await _read_value(reader)
        finally:
            self._own.finished += 1

    async def stats(self) -> dict[str, str]:
        """Of the server's general statistics those that ``RequestCounter`` reads. Raises SourceError, OSError."""
        reader = await self.send("stats")
        values: dict[str, str] = {}
        for _ in range(_MAX_STATS):
            line = await _line(reader)
            if line == "END":
                return values
            words = line.split(" ", 2)
            if len(words) != 3 or words[0] != "STAT":
                raise ProbeError(f"the server answers {_in_words(line)} to stats")
            if words[1] in _READ and len(words[2]) <= _MAX_DIGITS:
                values[words[1]] = words[2]
        raise Abuse("the server answers endless stats")


async def _abort(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    streams[1].transport.abort()


def _is_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    return reader.at_eof() or writer.transport.is_closing()


async def _read_value(reader: asyncio.StreamReader) -> None:
    line = await _line(reader)
    if line == "END":
        return
    words = line.split()
    if len(words) < 4 or words[0] != "VALUE" or not words[3].isdigit():
        raise ProbeError(f"the server answers {_in_words(line)} to a get")
    if len(words[3]) > _MAX_DIGITS or int(words[3]) > _MAX_VALUE:
        raise Abuse(f"the server answers a value of more than {_MAX_VALUE} bytes to a get")
    count = int(words[3]) + len("\r\n")
    while count:
        data = await reader.read(min(count, _PART))
        if not data:
            raise ProbeError("the server closed the connection")
        count -= len(data)
    if await _line(reader) != "END":
        raise Abuse("the server answers more than was asked for to a get")


def _in_words(line: str) -> str:
    """An unexpected answer, without quoting it."""
    kind = line.partition(" ")[0]
    return kind if kind in {"ERROR", "CLIENT_ERROR", "SERVER_ERROR"} else "something else than memcached does"


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        line = await reader.readline()
    except ValueError as error:  # longer than the stream's limit
        raise Abuse("the server answers an endless line") from error
    if not line.endswith(b"\r\n"):
        raise ProbeError("the server closed the connection")
    return line[:-2].decode("ascii", "replace")


class RequestCounter:
    """Requests of others between two readings of the server's counters, without the probe's own. Pure."""

    def __init__(self) -> None:
        self._process = ""
        self._total = 0
        self._others = 0
        self._read_s: float | None = None

    def update(
        self, stats: dict[str, str], finished_before: int, sent: int, now_s: float
    ) -> tuple[float, float, int] | None:
        """Begin, end and number of the requests since the last reading; None where that is unknown.

        It is unknown the first time, and when the server was restarted or its counters were reset. Of the probe's own
        gets, ``finished_before`` were done before the server was asked, ``sent`` are those sent by now. Raises
        ProbeError for statistics without counters.
        """
        try:
            counters = {name: int(value) for name, value in stats.items() if name in _COUNTERS}
            if "cmd_get" not in counters or not all(0 <= count < _MAX_COUNT for count in counters.values()):
                raise ValueError("no counters of 64 bits")
            total, process = sum(counters.values()), stats["pid"]
        except (KeyError, ValueError) as error:
            raise ProbeError("the server's stats are not memcached's") from error
        before_s, self._read_s = self._read_s, now_s
        restarted = process != self._process or total < self._total
        self._process, self._total = process, total
        if before_s is None or restarted:
            self._others = total - finished_before
            return None
        # Own gets under way may be counted there or not yet. Beginning with the most that requests of others can be,
        # and then counting new highs of the least they can be, an idle server never seems used.
        count = max(0, total - sent - self._others)
        self._others += count
        return before_s, now_s, count


async def probe_memcached(spec: MemcachedProbe, feed: Feed, reach: Reach) -> None:
    """Probe a server and count its requests until cancelled."""
    names, own = Names(reach), OwnGets()

    def connect() -> TextConnection:
        return TextConnection(names, spec.address, spec.port, own)

    async with asyncio.TaskGroup() as group:
        group.create_task(OpenLoop(spec.rate_rps, spec.timeout_s, connect, ProbeReport(feed)).run())
        group.create_task(_count_requests(spec, feed, connect(), own))


async def _count_requests(spec: MemcachedProbe, feed: Feed, connection: TextConnection, own: OwnGets) -> None:
    counter = RequestCounter()
    try:
        while True:
            # Aligned to slots, so that one that just ended is complete.
            await asyncio.sleep(until_next_s(feed.clock(), min(feed.store.slot_s / 2, _MAX_STATS_EVERY_S)))
            finished_before = own.finished
            try:
                async with asyncio.timeout(spec.timeout_s):
                    stats = await connection.stats()
                since = counter.update(stats, finished_before, own.sent, time.monotonic())
            except TimeoutError:
                connection.close()
                feed.error(f"no stats within {spec.timeout_s:g} s")
            except (SourceError, OSError) as error:
                connection.close()
                feed.error(f"stats: {reason_of(error)}")
                if isinstance(error, Abuse):
                    raise
            else:
                if since is not None:
                    begin_s, end_s, requests = since
                    now_s = feed.clock()
                    feed.take_requests(now_s - (end_s - begin_s), now_s, requests)
    finally:
        connection.close()
