"""The sweep of `equipoise profile cache`: whether it is possible, one allocation after another, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from manager.cli.options import Failure
from manager.cli.record_command import fetch_windows
from manager.errors import EquipoiseError
from manager.model.fields import timestamp
from manager.model.numbers import digits
from manager.model.window import Window, merge
from manager.protocol.client import API, Answer, ManagerClient
from manager.protocol.headers import REVISION_HEADER

_LOOK_S = 0.5
_TICK_WAIT_S = 60.0
_REST_WAYS = 2
"""Ways that batch VMs and the default group keep: at least one each."""
_MOST_NEEDED = 10_000
_MORE_TICKS = 2
"""Ticks after the one that acted on a change until a group must have its ways."""
_TRIES = 5
_TRY_S = 1.0
_CAT = (
    "Cache allocation (Intel CAT, AMD QoS, Arm MPAM; in Linux: resctrl) divides a cache into ways; without it there is"
    " nothing to sweep. `equipoise doctor` on that host says what is missing (cache-allocation)"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Monotonic seconds; a pause of some seconds, True if a signal ended it; a sleep that no signal ends."""

    now_s: Callable[[], float]
    pause: Callable[[float], bool]
    sleep: Callable[[float], object]


@dataclass(frozen=True, slots=True)
class SweepTarget:
    """An application to sweep. ``ways``: from many to few. ``former``: its registered cache, with the ``etag`` of that.

    ``warnings`` of its hosts, such as that one is simulated.
    """

    application: str
    hosts: tuple[str, ...]
    ways: tuple[int, ...]
    percentile: float
    sla_ms: float
    slot_s: float
    former: str | None
    etag: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One allocation. ``window``: all its response times, None without any. ``times_ms``: the SLA's percentile of each
    part with enough response times. ``lacks``: why the ways were not available; nothing was measured then.
    """

    ways: int
    window: Window | None = None
    times_ms: tuple[float, ...] = ()
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep. ``ended``: why it ended early, or empty. ``left``: why the former value was not restored, or
    empty. ``kept``: it was not, as another user changed the value meanwhile.
    """

    steps: tuple[SweepStep, ...]
    ended: str
    left: str
    kept: bool


def examine(client: ManagerClient, application: str, wanted: Collection[int], timing: Timing) -> SweepTarget:
    """What to sweep; ``wanted`` empty: all available ways.

    Raises ManagerUnavailable, and Failure saying what to do where the application cannot be swept.
    """
    path = f"/applications/{application}"
    answer = client.request("GET", path)
    registered = answer.json()
    sla = registered["sla"]
    if sla is None:
        example = _patch(path, "sla", '{"response_time_ms": 10}')
        raise Failure(f"{application} has no SLA, which says the percentile to judge: {example}")
    vms = _running(client, application)
    names = sorted({vm["status_host"] for vm in vms})
    for name in names:
        _check_registration(client.get(f"/hosts/{name}"))
    _check_modes(vms, application)
    hosts = [fresh_host(client, name, timing) for name in names]
    for host in hosts:
        _check_host(host, application)
    if registered["window"] is None:
        raise Failure(f"{application} has no response times: it needs a source (docs/how-to/sources.md)")
    if registered["sla_state"] == "no_data":
        raise Failure(f"{application} has too few response times now: put it under load")
    caches = [host["tick"]["cache"] for host in hosts]
    if len({(cache["resource"], cache["ways"], cache["shareable"]) for cache in caches}) > 1:
        raise Failure(
            f"{application} runs on hosts with different caches, so a number of ways differs in size:"
            f" {', '.join(names)}; profile it where it runs on one of them"
        )
    most = min(_most(cache, application) for cache in caches)
    ways = sorted(set(wanted) or range(1, most + 1), reverse=True)
    if len(ways) < 2 or ways[0] > most or ways[-1] < 1:
        raise Failure(
            f"at least two numbers of ways are compared, and {application} can have 1 to {max(most, 0)}: of"
            f" {caches[0]['ways']} ways, those of other applications and of the rest are not available"
        )
    return SweepTarget(
        application,
        tuple(names),
        tuple(ways),
        sla["percentile"],
        sla["response_time_ms"],
        client.get(f"/hosts/{names[0]}/assignment")["slot_s"],
        registered["cache"],
        answer.headers.get("ETag", ""),
        tuple(f"{host['name']}: {text}" for host in hosts for text in (host["capabilities"] or {}).get("warnings", ())),
    )


def _check_host(host: dict[str, Any], application: str) -> None:
    """Raises Failure if an application cannot have ways of its own on a host (any longer)."""
    _check_registration(host)
    name, tick = host["name"], host["tick"]
    if tick["mode"] != "enforce" or tick["assignment_revision"] is None or tick["cache"] is None:
        raise Failure(
            f"the agent of {name} did not act on what is registered, or is too old to: see `equipoise status`"
        )
    cache = tick["cache"]
    if not cache["resource"]:
        reason = "; ".join(cache["notes"]) or "unsupported"
        raise Failure(f"the cache of {name} cannot be divided: {reason}. {_CAT}")
    for group in cache["groups"]:
        if application not in group["applications"]:
            continue
        if group["external"]:
            raise Failure(f"{name}: another tool changed the group of {application}: `equipoise adopt --host {name}`")
        if others := [member for member in group["applications"] if member != application]:
            raise Failure(
                f"{name}: {application} shares a group with {', '.join(others)}, as there are not enough groups"
                " (CLOSIDs) or ways for all: set `cache` of another application to null first"
            )


def own_ways(cache: dict[str, Any], application: str) -> set[int]:
    """Numbers of ways that an application has for itself, of the domains where it runs."""
    return {ways for names, _, ways in _exclusive(cache) if application in names}


def needed(percentile: float) -> int:
    """The least response times of which one lies beyond a percentile; with fewer it is but the longest."""
    return min(math.ceil(round(100 / (100 - percentile), 6)), _MOST_NEEDED)


def times_of(windows: Sequence[Window], percentile: float) -> Iterator[float]:
    """The percentile in ms of consecutive parts of windows, each with enough response times for it."""
    part: list[Window] = []
    for window in windows:
        part.append(window)
        merged = merge(part)
        if merged.has_samples(needed(percentile)):
            value_ms = merged.percentile_ms(percentile)
            part = []
            if value_ms is not None:
                yield value_ms


class Sweep:
    """One sweep. Not to be used twice."""

    def __init__(
        self, client: ManagerClient, target: SweepTarget, timing: Timing, report: Callable[[str, int], None]
    ) -> None:
        """``report`` is called with a line of progress and the number of measured allocations."""
        self._client = client
        self._target = target
        self._timing = timing
        self._report = report
        self._path = f"/applications/{target.application}"
        self._etag = target.etag
        self._written: list[str] = []
        self._left = ""
        self._kept = False

    def run(self, settle_s: float, seconds: float) -> Swept:
        """Measure from many ways to few, and restore the former value whatever happens.

        After a change, response times do not count for ``settle_s``; then those of ``seconds`` do.
        """
        steps: list[SweepStep] = []
        ended = ""
        try:
            for number, ways in enumerate(self._target.ways, 1):
                label = "1 way" if ways == 1 else f"{ways} ways"
                self._report(f"{label} ({number} of {len(self._target.ways)})", len(steps))
                step = self._step(ways, settle_s, seconds)
                steps.append(step)
                value = f"{digits(median(step.times_ms))} ms" if step.times_ms else "unknown"
                measured = f"p{self._target.percentile:g} {value}, the median of {len(step.times_ms)} windows"
                self._report(f"{label}: {step.lacks or measured}", len(steps))
        except (EquipoiseError, Failure) as error:
            ended = error.message if isinstance(error, Failure) else str(error)
        finally:
            self._restore()
        return Swept(tuple(steps), ended, self._left, self._kept)

    def _step(self, ways: int, settle_s: float, seconds: float) -> SweepStep:
        """Raises EquipoiseError and Failure for what ends the sweep."""
        self._written.append(f"{ways} ways")
        self._etag = self._write(self._written[-1], self._etag).headers.get("ETag", "")
        since_s, lacks = self._in_force(ways)
        if lacks:
            return SweepStep(ways, lacks=lacks)
        slot_s, application = self._target.slot_s, self._target.application
        begin_s = math.ceil((since_s + settle_s) / slot_s) * slot_s
        end_s = begin_s + max(math.ceil(seconds / slot_s), 1) * slot_s
        for hosts in self._looks():
            for host in hosts:
                if own_ways(host["tick"]["cache"], application) != {ways}:
                    raise Failure(f"{host['name']}: {application} no longer has {ways} ways")
            if all(_at_s(host) >= end_s + slot_s for host in hosts):  # one slot more, for late reports
                break
        since, until = (timestamp(time_s).isoformat() for time_s in (begin_s, end_s))
        windows = fetch_windows(self._client, application, since=since, until=until)
        windows = [window for window in windows if window.has_samples(1)]
        if not windows:
            raise Failure(f"no response times came with {ways} ways: is {application} still under load?")
        return SweepStep(ways, merge(windows), tuple(times_of(windows, self._target.percentile)))

    def _in_force(self, ways: int) -> tuple[float, str]:
        """Since when every host has these ways, in seconds since the epoch by their clocks; or why one does not."""
        wanted = {host: _revision(self._client, host) for host in self._target.hosts}
        acted: dict[str, int] = {}
        for hosts in self._looks():
            since_s: list[float] = []
            for host in hosts:
                tick = host["tick"]
                if (tick["assignment_revision"] or 0) < wanted[host["name"]]:
                    continue
                present = own_ways(tick["cache"], self._target.application)
                if present == {ways}:
                    since_s.append(_at_s(host) + tick["duration_ms"] / 1000)
                elif tick["number"] >= acted.setdefault(host["name"], tick["number"]) + _MORE_TICKS:
                    instead = " and ".join(map(str, sorted(present))) or "none"
                    lacks = f"not available on {host['name']}, it gets {instead}"
                    return 0.0, ": ".join(filter(None, (lacks, "; ".join(tick["cache"]["notes"]))))
            if len(since_s) == len(hosts):
                return max(since_s), ""
        raise AssertionError("looks never end by themselves")

    def _looks(self) -> Iterator[Sequence[dict[str, Any]]]:
        """The hosts, again and again.

        Raises Failure when one falls silent or cannot divide its cache, the application changed, or on a signal.
        """
        while True:
            if self._client.request("GET", self._path).headers.get("ETag", "") != self._etag:
                raise Failure(f"another user changed {self._target.application} meanwhile")
            hosts = [self._client.get(f"/hosts/{host}") for host in self._target.hosts]
            for host in hosts:
                _check_reports(host)
                _check_host(host, self._target.application)
            yield hosts
            if self._timing.pause(_LOOK_S):
                raise Failure("interrupted")

    def _write(self, cache: str | None, etag: str) -> Answer:
        return self._client.request("PATCH", self._path, body={"cache": cache}, headers={"If-Match": etag})

    def _restore(self) -> None:
        """Restore the former value, unless another user changed it."""
        if not self._written:
            return
        for attempt in range(_TRIES):
            try:
                answer = self._client.request("GET", self._path)
                cache = answer.json()["cache"]
                if cache not in self._written[-2:]:  # the last write may have failed
                    self._kept = cache != self._target.former
                elif cache != self._target.former:
                    self._write(self._target.former, answer.headers.get("ETag", ""))
                self._left = ""
                return
            except (EquipoiseError, ValueError, KeyError) as error:
                self._left = str(error)
                if attempt + 1 < _TRIES:
                    self._timing.sleep(_TRY_S)
        self._report(f"the former value could not be restored: {self._left}", 0)


def _check_reports(host: Mapping[str, Any]) -> None:
    if host["silent"]:
        raise Failure(f"the agent of {host['name']} does not report any more: see `equipoise status`")


def _check_registration(host: dict[str, Any]) -> None:
    """Raises Failure if a host does not divide its cache by its registration."""
    name = host["name"]
    if host["mode"] != "enforce":
        raise Failure(
            f"{name} is in mode {host['mode']}, in which nothing is written: `equipoise enforce --host {name}`"
        )
    if host["cache"] != "on":
        how = _patch(f"/hosts/{name}", "cache", '"on"')
        raise Failure(f"the cache of {name} is not divided: {how}; see docs/concepts/cache.md")


def _check_modes(vms: Sequence[dict[str, Any]], application: str) -> None:
    """Raises Failure if any of an application's VMs gets no ways as its mode is not enforce."""
    idle = [vm for vm in vms if vm["status"]["mode"] != "enforce"]
    if idle:
        mode, how = idle[0]["status"]["mode"], _patch(f"/applications/{application}", "mode", "null")
        raise Failure(
            f"{_names(idle)} gets no ways in mode {mode}: `equipoise enforce --vm {idle[0]['name']}`, or {how}"
        )


def _revision(client: ManagerClient, host: str) -> int:
    return int(client.request("GET", f"/hosts/{host}/assignment").headers[REVISION_HEADER])


def fresh_host(client: ManagerClient, name: str, timing: Timing) -> dict[str, Any]:
    """A host after a new tick that acted on what is registered now. Raises Failure where none comes."""
    revision = _revision(client, name)
    host: dict[str, Any] = client.get(f"/hosts/{name}")
    first, begin_s = host["tick"], timing.now_s()
    if first is None:
        raise Failure(f"the agent of {name} has never reported: is it running?")
    while host["tick"]["number"] == first["number"] or (host["tick"]["assignment_revision"] or math.inf) < revision:
        _check_reports(host)
        if timing.now_s() > begin_s + _TICK_WAIT_S:
            raise Failure(f"the agent of {name} reported no new tick within {_TICK_WAIT_S:g} s: is it running?")
        if timing.pause(_LOOK_S):
            raise Failure("interrupted")
        host = client.get(f"/hosts/{name}")
    return host


def _running(client: ManagerClient, application: str) -> list[dict[str, Any]]:
    """The critical VMs of an application that run. Raises Failure where there are none."""
    critical = [vm for vm in client.items("/vms", application=application) if vm["class"] == "critical"]
    if not critical:
        raise Failure(f"{application} has no critical VM, and only these get ways: register one in a tier of it")
    running = [vm for vm in critical if vm["status"] is not None]
    if not running:
        raise Failure(f"no agent sees a critical VM of {application} running: start one of {_names(critical)}")
    return running


def _exclusive(cache: dict[str, Any]) -> Iterator[tuple[list[str], int, int]]:
    """Applications, domain and ways of each part of a cache that no other group has.

    Where its VMs do not run, a group has ways that the default group has, too.
    """
    rest = {part["domain"]: _bits(part) for group in cache["groups"] if not group["name"] for part in group["parts"]}
    for group in cache["groups"]:
        for part in group["parts"] if group["applications"] else ():
            if not _bits(part) & rest.get(part["domain"], 0):
                yield group["applications"], part["domain"], part["ways"]


def _most(cache: dict[str, Any], application: str) -> int:
    """The most ways an application can have beside others, in the domain where that is the fewest."""
    reserved = max(int(cache["shareable"], 16).bit_count(), _REST_WAYS)
    others: dict[int, int] = {}
    for names, domain, ways in _exclusive(cache):
        if application not in names:
            others[domain] = others.get(domain, 0) + ways
    return int(cache["ways"]) - reserved - max(others.values(), default=0)


def _bits(part: dict[str, Any]) -> int:
    return int(part["mask"], 16)


def _names(vms: Sequence[dict[str, Any]]) -> str:
    return ", ".join(vm["name"] for vm in vms)


def _patch(path: str, field: str, value: str) -> str:
    return f'PATCH {API}{path} {{"{field}": {value}}}'


def _at_s(host: dict[str, Any]) -> float:
    return datetime.fromisoformat(host["tick"]["at"]).timestamp()
