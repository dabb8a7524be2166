"""Agents that divide the cache of hosts as is registered, and an application whose response times depend on its ways.

The cache has eleven ways in each of two domains, of which the upper two are shared with other hardware; the application
runs in domain 0. Its data fit into six ways: then its response times reach up to 4 ms, with each way less up to 2 ms
more; and up to 50 ms for 8 s after each change, as the cache fills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from manager.cli.sweep import Timing
from manager.model.histogram import Histogram
from manager.protocol.client import Answer, ManagerClient
from manager.protocol.headers import REVISION_HEADER
from tests.api.conftest import CAPABILITIES, HOST, START, Api, moment, notice_silence, report, status, tick

WAYS = 11
FITS = 6
FILLING_S = 8
SLOT_S = 5
WOBBLE = (1.0, 1.02, 0.98, 1.01, 0.99)
ROLES = {HOST: "host", "kvm2": "other host"}


def slow_ms(ways: int) -> float:
    """The longest response time."""
    return 4.0 + 2.0 * max(FITS - ways, 0)


def buckets(longest_ms: float, count: int = 100) -> dict[str, int]:
    """Response times from half of that to all of it, evenly."""
    times_us = [longest_ms * 1000 * (0.5 + 0.5 * place / count) for place in range(1, count + 1)]
    return {str(bucket): number for bucket, number in Histogram.of(times_us).buckets.items()}


class InProcess:
    """Carries requests to the application."""

    def __init__(self, api: Api, role: str = "operator") -> None:
        self._api = api
        self._role = role

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        given = {**headers, "Authorization": f"Bearer {self._api.secrets[self._role]}"}
        found = self._api.app.test_client().open(target, method=method, data=body, headers=given, buffered=True)
        return Answer(found.status_code, found.headers, found.get_data())

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Agents:
    """Ticks as the clock of the interface passes. ``also``: what happens once the application has so many ways.

    ``shape``: what becomes of the status `cache` of a host. ``count``: response times a slot.
    """

    api: Api
    hosts: tuple[str, ...] = (HOST,)
    also: dict[int, Callable[[], object]] = field(default_factory=dict)
    shape: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda _host, cache: cache
    most: int = 9
    count: int = 100
    mute: bool = False
    filling_s: float = FILLING_S
    capabilities: dict[str, Any] = field(default_factory=lambda: CAPABILITIES | {"warnings": []})
    slow_ms: Callable[[int], float] = slow_ms
    had: list[int | None] = field(default_factory=list)
    number: int = 7
    changed_s: float = 0

    def timing(self) -> Timing:
        return Timing(self.api.clock, self.pause, self.pause)

    def client(self) -> ManagerClient:
        return ManagerClient("http://manager", "", InProcess(self.api))

    def pause(self, seconds: float) -> bool:
        """So long, and on until the next tick: nothing happens before that."""
        end_s = self.api.clock.now_s + seconds
        while self.api.clock.now_s < end_s:
            self.api.clock.now_s = (self.api.clock.now_s // SLOT_S + 1) * SLOT_S
            self.tick()
        return False

    def tick(self) -> None:
        """One of all hosts."""
        if self.mute:
            notice_silence(self.api)
            return
        self.number += 1
        now_s = int(self.api.clock.now_s - START.timestamp())
        for host in self.hosts:
            answer = self.api.call("GET", f"/hosts/{host}/assignment", role=ROLES[host])
            body = answer.get_json()
            [shop] = [one for one in body["applications"] if one["name"] == "shop"] or [{"cache": None}]
            own = ways_of(shop["cache"], self.most)
            told = self.shape(host, cache_of(own)) if body["host"]["cache"] == "on" else None
            seen = tick(
                number=self.number,
                at=moment(now_s),
                assignment_revision=int(answer.headers[REVISION_HEADER]),
                cache=told,
            )
            seen |= {"mode": body["host"]["mode"], "duration_ms": 100}
            vm = {HOST: "web-1", "kvm2": "web-2"}[host]
            windows = [self.window(now_s)] if host == HOST and self.count else []
            said = report(tick=seen, vms=[status(vm)], windows=windows, capabilities=self.capabilities)
            self.api.ok("POST", f"/hosts/{host}/report", said, role=ROLES[host])
        if not self.had or self.had[-1] != own:
            self.had.append(own)
            self.changed_s = now_s
        elif own in self.also and now_s > self.changed_s + SLOT_S:
            self.also.pop(own)()

    def window(self, now_s: int) -> dict[str, Any]:
        """The slot that ends now, under the ways that the tick before gave."""
        longest_ms = self.slow_ms(self.had[-1] if self.had and self.had[-1] else 0)
        longest_ms *= WOBBLE[now_s // SLOT_S % len(WOBBLE)]
        if now_s - SLOT_S < self.changed_s + self.filling_s:
            longest_ms = 50.0
        ends = {"start": moment(now_s - SLOT_S), "end": moment(now_s)}
        return {"application": "shop", **ends, "buckets": buckets(longest_ms, self.count), "requests": self.count}


def ways_of(cache: str | None, most: int) -> int | None:
    """Those that a host gives: those that are asked for, 4 where something else is."""
    if cache is None:
        return None
    return min(int(cache.split()[0]), most) if "ways" in cache else 4


def cache_of(own: int | None, app: str = "shop") -> dict[str, Any]:
    """The status of a cache of which an application has so many ways in domain 0."""
    full = (1 << WAYS) - 1
    mine = (1 << (own or 0)) - 1
    groups = [group("", [], full & ~mine, full)]
    if own:
        groups += [
            group("equipoise-+batch", [], full >> 1 & ~mine, full >> 1),
            group(f"equipoise-{app}", [app], mine, full),
        ]
    return {"resource": "L3", "ways": WAYS, "shareable": "600", "groups": groups, "groups_of_others": 0, "notes": []}


def group(name: str, applications: list[str], *masks: int) -> dict[str, Any]:
    """A group with such a mask in each domain."""
    parts = [{"domain": one, "ways": mask.bit_count(), "mask": f"{mask:x}"} for one, mask in enumerate(masks)]
    return {"name": name, "applications": applications, "vms": [], "parts": parts, "external": False}
