"""`equipoise profile load --drive`: one load after another, while no other application suffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any, Protocol

from manager.cli.batch_hold import HELD_PCPUS
from manager.cli.drive_record import DrivenLoad, DriveRecord, driven_load
from manager.cli.options import Failure
from manager.control.load_search import NextLoad, SearchResult, others_at_risk
from manager.control.sla import USUAL_PERCENTILE
from manager.errors import EquipoiseError, ManagerRefused
from manager.load import IntervalResult, LoadResult, LoadSpec, Phase
from manager.load.load_errors import LoadError
from manager.model.fields import timestamp
from manager.model.units import per_second
from manager.model.window import SlaState
from manager.protocol.client import ManagerClient

AS_IS, HELD = "as_is", "held"
"""Passes: batch VMs run as they do; batch VMs are held."""

WATCH_S = 2.0
"""How often it is looked whether another application suffers."""

_MOST_POINTS = "2000"


class RunLoad(Protocol):
    """``manager.load.run``."""

    def __call__(
        self,
        spec: LoadSpec,
        on_interval: Callable[[IntervalResult], None] | None = None,
        stop: threading.Event | None = None,
    ) -> LoadResult:
        """One run."""


@dataclass(frozen=True, slots=True)
class DriveTarget:
    """What is driven, and how. ``load`` has everything but the rate. ``hosts``: where the application runs."""

    application: str
    hosts: tuple[str, ...]
    percentile: float
    sla_ms: float | None
    load: LoadSpec
    worst: SlaState

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same for results to be compared."""
        load = self.load
        return {
            "application": self.application,
            "percentile": self.percentile,
            "sla_ms": self.sla_ms,
            "target": load.target_text,
            "seconds": load.schedule_s,
            "settle": load.warmup_s,
            "connections": load.connections,
            "pipeline": load.pipeline,
            "timeout": load.timeout_s,
            "seed": load.seed,
            **asdict(load.protocol),
        }

    def at(self, step: NextLoad | None) -> LoadSpec:
        """The load of a step; None: a closed loop, for the peak."""
        if step is None:
            return replace(self.load, closed_loop=True)
        return replace(self.load, schedule=(Phase(self.load.schedule_s, step.rate_rps),))


def examine_drive(client: ManagerClient, application: str, load: LoadSpec, worst: SlaState) -> DriveTarget:
    """What to drive. Raises ManagerUnavailable, and Failure where the application does not run."""
    sla = client.get(f"/applications/{application}")["sla"]
    hosts = {vm["status_host"] for vm in client.items("/vms", application=application)} - {None}
    if not hosts:
        raise Failure(f"no agent sees a VM of {application} running: start one, and see `equipoise status`")
    return DriveTarget(
        application,
        tuple(sorted(hosts)),
        sla["percentile"] if sla else USUAL_PERCENTILE,
        sla["response_time_ms"] if sla else None,
        load,
        worst,
    )


def batch_vms(client: ManagerClient, hosts: tuple[str, ...]) -> dict[str, float | None]:
    """Running batch VMs of these hosts with their ``max_pcpus``. Raises Failure if one cannot be held."""
    found = [vm for vm in client.items("/vms") if vm["class"] == "batch" and vm["status_host"] in hosts]
    if not found:
        raise Failure(f"no batch VM runs on {', '.join(hosts)}: leave --hold-batch out")
    for vm in found:
        if vm["status"]["mode"] != "enforce":
            raise Failure(
                f"{vm['name']} cannot be held in mode {vm['status']['mode']}: `equipoise enforce --vm {vm['name']}`, or"
                " leave --hold-batch out"
            )
        if vm["max_pcpus"] == HELD_PCPUS:
            raise Failure(f"{vm['name']} is held already, by its max_pcpus of {HELD_PCPUS}: register what it may use")
    return {vm["name"]: vm["max_pcpus"] for vm in found}


def objection(client: ManagerClient, hosts: Collection[str], own: Collection[str], worst: SlaState) -> str:
    """Why no load may be made now: a host is silent, or an application there that is not among ``own`` suffers.

    Empty where it may. ``worst`` as of ``others_at_risk``.
    """
    for name in hosts:
        if client.get(f"/hosts/{name}")["silent"]:
            return f"the agent of {name} does not report: see `equipoise status`"
    beside = {vm["application"] for vm in client.items("/vms") if vm["status_host"] in hosts}
    states = {one["name"]: SlaState(one["sla_state"]) for one in client.items("/applications") if one["name"] in beside}
    harmed = others_at_risk(states, own, worst)
    return f"other applications on {', '.join(hosts)} suffer: {harmed}" if harmed else ""


@contextmanager
def watched(look: Callable[[], str], stop: threading.Event, every_s: float = WATCH_S) -> Iterator[list[str]]:
    """Look again and again in the block, from a thread; the first reason against more load sets ``stop``."""
    reasons: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            try:
                reason = look()
            except EquipoiseError as error:
                reason = str(error)
            if reason:
                reasons.append(reason)
                stop.set()
                return

    thread = threading.Thread(target=watch, name="watch other applications")
    thread.start()
    try:
        yield reasons
    finally:
        over.set()
        thread.join()


def batch_share(client: ManagerClient, hosts: tuple[str, ...], since_s: float, until_s: float) -> float | None:
    """What batch VMs used of the hosts' CPU time: of several hosts, the most. None where it is not known."""
    query = {"since": timestamp(since_s).isoformat(), "until": timestamp(until_s).isoformat(), "points": _MOST_POINTS}
    of_hosts = [[share for _, share in batch_steps(client, host, query)] for host in hosts]
    return max((sum(shares) / len(shares) for shares in of_hosts if shares), default=None)


def batch_steps(client: ManagerClient, host: str, query: Mapping[str, str]) -> list[tuple[str, float]]:
    """What batch VMs used of a host's CPU time, with the begin of each step.

    Nothing of a host that is gone, and of a time that is still to come by the manager's clock.
    """
    try:
        steps = client.get(f"/hosts/{host}/history", **query)["steps"]
    except ManagerRefused as refused:
        if refused.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise
        return []
    return [(step["start"], step["batch_share"]) for step in steps if step["batch_share"] is not None]


class Drive:
    """The passes of a profile. ``record`` has what was measured, ``ended`` why it ended early, or nothing."""

    def __init__(
        self,
        client: ManagerClient,
        target: DriveTarget,
        record: DriveRecord,
        stop: threading.Event,
        run_load: RunLoad,
        save: Callable[[DriveRecord], None],
    ) -> None:
        """``save`` gets each new record."""
        self._client = client
        self._target = target
        self._stop = stop
        self._run_load = run_load
        self._save = save
        self.record = record
        self.ended = ""

    def run(
        self,
        holding: Callable[[], AbstractContextManager[None]],
        show: Callable[[str], Callable[[IntervalResult], None] | None],
        said: Callable[[str, DrivenLoad], None],
    ) -> None:
        """Measure what is missing in each pass. ``holding`` holds the batch VMs.

        ``show`` makes what is called with each interval of a load, and ``said`` gets the pass and each result.
        """
        try:
            for one in self.record.passes:
                if isinstance(self.record.next_step(one.batch), SearchResult):
                    continue
                with holding() if one.batch == HELD else nullcontext():
                    while not isinstance(step := self.record.next_step(one.batch), SearchResult):
                        load = self._measured(step, show)
                        self.record = self.record.having(one.batch, load)
                        self._save(self.record)
                        said(one.batch, load)
        except (EquipoiseError, Failure) as error:
            self.ended = error.message if isinstance(error, Failure) else str(error)

    def _measured(
        self, step: NextLoad | None, show: Callable[[str], Callable[[IntervalResult], None] | None]
    ) -> DrivenLoad:
        """Raises EquipoiseError and Failure for what ends the drive; nothing of the load counts then."""
        label = "peak" if step is None else f"{step.purpose}, {per_second(step.rate_rps)}"
        if reason := "interrupted" if self._stop.is_set() else self._objection():
            raise Failure(reason)
        with watched(self._objection, self._stop) as reasons:
            try:
                result = self._run_load(self._target.at(step), show(label), self._stop)
            except LoadError:
                if not self._stop.is_set():
                    raise
        if self._stop.is_set():
            raise Failure(f"{reasons[0] if reasons else 'interrupted'}; stopped at {label}")
        load = driven_load(result, step, self._target.percentile, self._target.sla_ms)
        if not result.answered:
            errors = ", ".join(f"{kind} {count:,}" for kind, count in sorted(result.errors.items()))
            raise Failure(f"{self._target.load.target_text} answered no request ({errors})")
        return replace(load, batch_share=batch_share(self._client, self._target.hosts, load.since_s, load.until_s))

    def _objection(self) -> str:
        target = self._target
        return objection(self._client, target.hosts, {target.application}, target.worst)


def drive_json(record: DriveRecord, ended: str) -> dict[str, Any]:
    """The part of --json on what was driven."""
    return {
        "settings": dict(record.settings),
        "passes": [
            {
                "batch": one.batch,
                "peak_rps": one.peak.rate_rps if one.peak else None,
                "peak_why": one.peak.why if one.peak else "not measured",
                **_search_json(record, one.batch),
                "loads": [asdict(load) for load in one.loads],
            }
            for one in record.passes
        ],
        "ended": ended,
    }


def _search_json(record: DriveRecord, batch: str) -> Mapping[str, Any]:
    step = record.next_step(batch)
    if isinstance(step, SearchResult):
        return {"complete": True, "qos_rps": step.qos_rps, "why": step.why}
    return {"complete": False, "qos_rps": None, "why": "it ended before that was known"}
