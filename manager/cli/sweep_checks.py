"""Whether an application can be swept, by what the REST interface tells of it; if not, why, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from manager.cli.options import Failure
from manager.protocol.client import ManagerClient
from manager.protocol.headers import REVISION_HEADER

LOOK_S = 0.5
TICK_WAIT_S = 60.0
"""How long a tick that acted on what is registered is waited for."""
_API = "/api/v1"
_REST_WAYS = 2
"""The least that batch VMs and the default group keep: a way each."""
_MOST_NEEDED = 10_000
_CAT = (
    "Cache allocation (Intel CAT, AMD QoS, Arm MPAM; Linux shows it as resctrl) is what divides a cache into ways, and"
    " there is nothing to sweep without it. `equipoise doctor` on that host says what it lacks (cache-allocation)"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """How time passes: seconds that only go on; a pause of so many, True where a signal cut it short; and one that
    nothing does.
    """

    now_s: Callable[[], float]
    pause: Callable[[float], bool]
    sleep: Callable[[float], object]


@dataclass(frozen=True, slots=True)
class SweepTarget:
    """What is swept. ``ways``: from many to few. ``former``: what the application asked for before, with its ``etag``.

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


def examine(client: ManagerClient, application: str, wanted: Collection[int], timing: Timing) -> SweepTarget:
    """What is to be swept; ``wanted`` empty: all ways that can be had.

    Raises Failure that says what to do where it cannot be, and ManagerUnavailable.
    """
    path = f"/applications/{application}"
    answer = client.request("GET", path)
    found = answer.json()
    sla = found["sla"]
    if sla is None:
        example = _patch(path, "sla", '{"response_time_ms": 10}')
        raise Failure(f"{application} has no SLA, and that says which percentile is judged: {example}")
    vms = _running(client, application)
    names = sorted({vm["status_host"] for vm in vms})
    for name in names:
        _refuse(_unwilling(client.get(f"/hosts/{name}")))
    _refuse(_reluctant(vms, application))
    hosts = [_fresh(client, name, timing) for name in names]
    for host in hosts:
        _refuse(problem_of(host, application))
    _refuse_without_load(found)
    layouts = {(one["resource"], one["ways"], one["shareable"]) for one in (host["tick"]["cache"] for host in hosts)}
    if len(layouts) > 1:
        raise Failure(
            f"{application} runs on hosts whose caches are not alike, so that a number of ways is not the same on each:"
            f" {', '.join(names)}; profile it where it is on one of them"
        )
    most = min(_most(host["tick"]["cache"], application) for host in hosts)
    ways = sorted(set(wanted) or range(1, most + 1), reverse=True)
    if len(ways) < 2 or ways[0] > most or ways[-1] < 1:
        raise Failure(
            f"at least two numbers of ways are compared, and {application} can have 1 to {max(most, 0)}: of"
            f" {layouts.pop()[1]} ways those of other applications and the rest for all else are not to be had"
        )
    return SweepTarget(
        application,
        tuple(names),
        tuple(ways),
        sla["percentile"],
        sla["response_time_ms"],
        client.get(f"/hosts/{names[0]}/assignment")["slot_s"],
        found["cache"],
        answer.headers.get("ETag", ""),
        tuple(f"{one['name']}: {text}" for one in hosts for text in (one["capabilities"] or {}).get("warnings", ())),
    )


def mute(host: dict[str, Any]) -> str:
    """That a host is silent, as the interface says; empty: it is not."""
    name = host["name"]
    return f"the agent of {name} does not report any more: see `equipoise status`" if host["silent"] else ""


def problem_of(host: dict[str, Any], application: str) -> str:
    """Why the cache of a host is, or is no longer, to be had for an application; empty: it is."""
    name, tick = host["name"], host["tick"]
    if problem := _unwilling(host):
        return problem
    if tick["mode"] != "enforce" or tick["assignment_revision"] is None or tick["cache"] is None:
        return f"the agent of {name} did not act on what is registered, or is too old to: see `equipoise status`"
    cache = tick["cache"]
    if not cache["resource"]:
        told = "; ".join(cache["notes"]) or "it does not offer to"
        return f"the cache of {name} cannot be divided: {told}. {_CAT}"
    for group in cache["groups"]:
        if application in group["applications"]:
            if group["external"]:
                return f"{name}: another tool changed the group of {application}: `equipoise adopt --host {name}`"
            others = [one for one in group["applications"] if one != application]
            if others:
                return (
                    f"{name}: {application} shares a group with {', '.join(others)}, as there are not enough groups"
                    " (CLOSIDs) or ways for all: set `cache` of another application to null first"
                )
    return ""


def own_ways(cache: dict[str, Any], application: str) -> set[int]:
    """How many ways an application has for itself, in each domain where it runs.

    In other domains its group has ways of the rest, which the default group has, too.
    """
    rest = {part["domain"]: _bits(part) for group in cache["groups"] if not group["name"] for part in group["parts"]}
    return {
        part["ways"]
        for group in cache["groups"]
        if application in group["applications"]
        for part in group["parts"]
        if not _bits(part) & rest.get(part["domain"], 0)
    }


def needed(percentile: float) -> int:
    """How many response times make one beyond a percentile; with fewer it is but the longest."""
    return min(math.ceil(round(100 / (100 - percentile), 6)), _MOST_NEEDED)


def _refuse(problem: str) -> None:
    if problem:
        raise Failure(problem)


def _unwilling(host: dict[str, Any]) -> str:
    """What keeps a host from dividing its cache by its registration."""
    name = host["name"]
    if host["mode"] != "enforce":
        return f"{name} is in mode {host['mode']}, in which nothing is written: `equipoise enforce --host {name}`"
    if host["cache"] != "on":
        how = _patch(f"/hosts/{name}", "cache", '"on"')
        return f"the cache of {name} is not divided: {how}; what that does is in docs/concepts/cache.md"
    return ""


def _reluctant(vms: Sequence[dict[str, Any]], application: str) -> str:
    """Which of an application's VMs get no ways, as they are in another mode than enforce."""
    idle = [vm for vm in vms if vm["status"]["mode"] != "enforce"]
    if not idle:
        return ""
    mode, how = idle[0]["status"]["mode"], _patch(f"/applications/{application}", "mode", "null")
    return f"{_names(idle)} gets no ways in mode {mode}: `equipoise enforce --vm {idle[0]['name']}`, or {how}"


def _fresh(client: ManagerClient, name: str, timing: Timing) -> dict[str, Any]:
    """A host after a new tick that acted on what is registered now. Raises Failure where none comes."""
    number = int(client.request("GET", f"/hosts/{name}/assignment").headers[REVISION_HEADER])
    host: dict[str, Any] = client.get(f"/hosts/{name}")
    first, begin_s = host["tick"], timing.now_s()
    if first is None:
        raise Failure(f"the agent of {name} has never reported: is it running?")
    while host["tick"]["number"] == first["number"] or (host["tick"]["assignment_revision"] or math.inf) < number:
        _refuse(mute(host))
        if timing.now_s() > begin_s + TICK_WAIT_S:
            raise Failure(f"the agent of {name} reported no new tick within {TICK_WAIT_S:g} s: is it running?")
        if timing.pause(LOOK_S):
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
        raise Failure(f"no agent sees a critical VM of {application} run: start one of {_names(critical)}")
    return running


def _refuse_without_load(found: dict[str, Any]) -> None:
    """Raises Failure."""
    if found["window"] is None:
        raise Failure(f"{found['name']} has no response times: it needs a source (docs/how-to/sources.md)")
    if found["sla_state"] == "no_data":
        raise Failure(f"{found['name']} has too few response times now: it is swept under the load that it has")


def _most(cache: dict[str, Any], application: str) -> int:
    """The most ways it can have beside other applications, in the domain where that is the fewest."""
    kept = max(int(cache["shareable"], 16).bit_count(), _REST_WAYS)
    rest = {part["domain"]: _bits(part) for group in cache["groups"] if not group["name"] for part in group["parts"]}
    others = dict.fromkeys(rest, 0)
    for group in cache["groups"]:
        if group["applications"] and application not in group["applications"]:
            for part in group["parts"]:
                others[part["domain"]] += part["ways"] * (not _bits(part) & rest.get(part["domain"], 0))
    return int(cache["ways"]) - kept - max(others.values(), default=0)


def _bits(part: dict[str, Any]) -> int:
    return int(part["mask"], 16)


def _names(vms: Sequence[dict[str, Any]]) -> str:
    return ", ".join(vm["name"] for vm in vms)


def _patch(path: str, field: str, value: str) -> str:
    return f'PATCH {_API}{path} {{"{field}": {value}}}'
