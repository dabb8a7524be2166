"""The sweep of `equipoise profile cache`: one allocation after the other through the REST interface, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from pydantic import ValidationError

from manager.cli.options import Failure
from manager.cli.sweep_checks import LOOK_S, SweepTarget, Timing, mute, needed, own_ways, problem_of
from manager.errors import EquipoiseError, ManagerUnavailable
from manager.model.fields import timestamp
from manager.model.window import Window, merge
from manager.protocol.client import Answer, ManagerClient
from manager.protocol.convert import window_of
from manager.protocol.headers import REVISION_HEADER
from manager.protocol.report import WindowBody

_PATIENCE = 2
"""So many ticks more after one that acted on a change may pass until the group has its ways."""
_TRIES = 5
_TRY_S = 1.0


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One allocation. ``window``: all response times of it, None where there are none. ``times_ms``: the percentile of
    the SLA of each part with enough of them. ``lacks``: why it could not be had; nothing was measured then.
    """

    ways: int
    window: Window | None = None
    times_ms: tuple[float, ...] = ()
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of it. ``ended``: why before all was measured, empty: it was. ``left``: why the former value could not
    be put back, empty: it was. ``kept``: it was not, as somebody else changed it meanwhile.
    """

    steps: tuple[SweepStep, ...]
    ended: str
    left: str
    kept: bool


class Sweep:
    """One sweep. Not to be used twice."""

    def __init__(
        self, client: ManagerClient, target: SweepTarget, timing: Timing, tell: Callable[[str, int], None]
    ) -> None:
        """``tell`` is called with a line now and then, and the number of allocations that were measured."""
        self._client = client
        self._target = target
        self._timing = timing
        self._tell = tell
        self._path = f"/applications/{target.application}"
        self._etag = target.etag
        self._asked: list[str] = []
        self._left = ""
        self._kept = False

    def run(self, settle_s: float, seconds: float) -> Swept:
        """From many ways to few, and back to what was before, whatever happens.

        After a change response times do not count for ``settle_s``; then those of ``seconds`` do.
        """
        steps: list[SweepStep] = []
        ended = ""
        try:
            for place, ways in enumerate(self._target.ways, 1):
                self._tell(f"{_ways(ways)} ({place} of {len(self._target.ways)})", len(steps))
                step = self._step(ways, settle_s, seconds)
                steps.append(step)
                self._tell(f"{_ways(ways)}: {step.lacks or _told(step, self._target.percentile)}", len(steps))
        except (EquipoiseError, Failure) as error:
            ended = str(error) if isinstance(error, EquipoiseError) else error.message
        finally:
            self._restore()
        return Swept(tuple(steps), ended, self._left, self._kept)

    def _step(self, ways: int, settle_s: float, seconds: float) -> SweepStep:
        """Raises EquipoiseError and Failure for what ends the sweep."""
        self._asked.append(f"{ways} ways")
        self._etag = self._write(self._asked[-1], self._etag).headers.get("ETag", "")
        since_s, lacks = self._in_force(ways)
        if lacks:
            return SweepStep(ways, lacks=lacks)
        slot_s = self._target.slot_s
        begin_s = math.ceil((since_s + settle_s) / slot_s) * slot_s
        end_s = begin_s + max(math.ceil(seconds / slot_s), 1) * slot_s
        # One slot more, so that what is reported late is there.
        for hosts in self._looks():
            for host in hosts:
                if problem := problem_of(host, self._target.application):
                    raise Failure(problem)
                if own_ways(host["tick"]["cache"], self._target.application) != {ways}:
                    raise Failure(f"{host['name']}: {self._target.application} has not {ways} ways any more")
            if all(_at_s(host) >= end_s + slot_s for host in hosts):
                break
        windows = self._windows(begin_s, end_s)
        if not windows:
            raise Failure(f"no response times came with {ways} ways: is {self._target.application} still under load?")
        return SweepStep(ways, merge(windows), tuple(times_of(windows, self._target.percentile)))

    def _in_force(self, ways: int) -> tuple[float, str]:
        """Since when every host has these ways, in seconds since the epoch by their clocks; or why one does not."""
        application = self._target.application
        wanted = {
            host: int(self._client.request("GET", f"/hosts/{host}/assignment").headers[REVISION_HEADER])
            for host in self._target.hosts
        }
        acted: dict[str, int] = {}
        for hosts in self._looks():
            since_s: list[float] = []
            for host in hosts:
                if problem := problem_of(host, application):
                    raise Failure(problem)
                tick = host["tick"]
                if (tick["assignment_revision"] or 0) < wanted[host["name"]]:
                    continue
                found = own_ways(tick["cache"], application)
                if found == {ways}:
                    since_s.append(_at_s(host) + tick["duration_ms"] / 1000)
                elif tick["number"] >= acted.setdefault(host["name"], tick["number"]) + _PATIENCE:
                    has = " and ".join(map(str, sorted(found))) or "none"
                    told = "; ".join(tick["cache"]["notes"])
                    return 0.0, f"not to be had on {host['name']}, it gets {has}" + (f": {told}" if told else "")
            if len(since_s) == len(hosts):
                return max(since_s), ""
        raise AssertionError("looks never end by themselves")

    def _looks(self) -> Iterator[Sequence[dict[str, Any]]]:
        """The hosts, again and again. Raises Failure when one falls silent, the application changed, or on a signal."""
        while True:
            if self._client.request("GET", self._path).headers.get("ETag", "") != self._etag:
                raise Failure(f"somebody changed {self._target.application} meanwhile")
            hosts = [self._client.get(f"/hosts/{host}") for host in self._target.hosts]
            if silent := next(filter(None, map(mute, hosts)), ""):
                raise Failure(silent)
            yield hosts
            if self._timing.pause(LOOK_S):
                raise Failure("interrupted")

    def _windows(self, begin_s: float, end_s: float) -> list[Window]:
        """The slots that begin between two times in seconds since the epoch, oldest first."""
        since, until = (timestamp(time_s).isoformat() for time_s in (begin_s, end_s))
        found = self._client.items(f"{self._path}/windows", since=since, until=until, buckets="true")
        fields = ("start", "end", "buckets", "requests", "ready")
        bodies = ({"application": self._target.application, **{key: one[key] for key in fields}} for one in found)
        try:
            windows = [window_of(self._target.application, WindowBody.model_validate(body)) for body in bodies]
        except ValidationError as error:
            raise ManagerUnavailable(f"the manager's windows are not understood: {error}") from error
        return sorted((one for one in windows if one.has_samples(1)), key=lambda window: window.end_s)

    def _write(self, cache: str | None, etag: str) -> Answer:
        return self._client.request("PATCH", self._path, body={"cache": cache}, headers={"If-Match": etag})

    def _restore(self) -> None:
        """Put the former value back, unless somebody else gave it another than ours."""
        if not self._asked:
            return
        for attempt in range(_TRIES):
            try:
                answer = self._client.request("GET", self._path)
                cache = answer.json()["cache"]
                if cache not in self._asked[-2:]:  # the last may not have been taken
                    self._kept = cache != self._target.former
                elif cache != self._target.former:
                    self._write(self._target.former, answer.headers.get("ETag", ""))
                self._left = ""
                return
            except (EquipoiseError, ValueError, KeyError) as error:
                self._left = str(error)
                if attempt + 1 < _TRIES:
                    self._timing.sleep(_TRY_S)
        self._tell(f"the former value could not be put back: {self._left}", 0)


def times_of(windows: Sequence[Window], percentile: float) -> Iterator[float]:
    """The percentile of each part of windows in order, in milliseconds; a part has enough response times for it."""
    part: list[Window] = []
    for window in windows:
        part.append(window)
        merged = merge(part)
        if merged.has_samples(needed(percentile)):
            time_ms = merged.percentile_ms(percentile)
            part = []
            if time_ms is not None:
                yield time_ms


def _ways(number: int) -> str:
    return "1 way" if number == 1 else f"{number} ways"


def _told(step: SweepStep, percentile: float) -> str:
    time_ms = f"{median(step.times_ms):.3g} ms" if step.times_ms else "unknown"
    return f"p{percentile:g} {time_ms}, the median of {len(step.times_ms)} windows with enough response times"


def _at_s(host: dict[str, Any]) -> float:
    return datetime.fromisoformat(host["tick"]["at"]).timestamp()
