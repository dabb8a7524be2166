"""The agent's talk with the manager: what to control comes in, what was done goes out, both through REST."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from manager.api.convert import (
    assignment_of,
    domain_body,
    event_body,
    finding_body,
    record_body,
    slot_body,
    status_body,
    tick_body,
    timestamp,
    window_body,
    window_of,
)
from manager.api.schemas import (
    AssignmentOut,
    CapabilitiesBody,
    FindingsBody,
    ReportIn,
    ReportOut,
    TickStatus,
    VmStatus,
)
from manager.api.schemas.assignment import ORDERS_HEADER, AssignedWindow
from manager.client import ManagerClient
from manager.control.windows import slot_number
from manager.errors import ManagerUnavailable
from manager.loop.findings import Findings
from manager.loop.outbox import Kind, Outbox
from manager.model.host import VmInstance
from manager.model.registration import Assignment
from manager.model.source import SourceStatus
from manager.model.window import Window

_BATCH = 500
_BATCH_BYTES = 2_000_000
_REMEMBERED_S = 300.0

Slots = Mapping[str, tuple[Window, ...]]
Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")

_WINDOWS = TypeAdapter(dict[str, list[AssignedWindow]])

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the manager last said. ``assignment`` None: it never said anything, and there is no cache of it.

    ``slots`` are those of response times that came from elsewhere than this host, by application, oldest first.
    ``number`` is that of the registrations at the manager, None where it did not tell.
    """

    assignment: Assignment | None = None
    slots: Slots = field(default_factory=dict)
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be told of the last tick; None means unchanged.

    ``windows`` are the slots of response times that may still grow, as they are now.
    """

    capabilities: CapabilitiesBody | None
    tick: TickStatus | None
    vms: list[VmStatus] | None
    sources: tuple[SourceStatus, ...] | None = None
    windows: tuple[Window, ...] = ()
    domains: tuple[VmInstance, ...] | None = None
    findings: Findings | None = None


class ManagerLink:
    """Exchanges with one manager. Belongs to one thread."""

    def __init__(self, client: ManagerClient, host_name: str, agent_version: str, cache: Path, outbox: Outbox) -> None:
        """``cache`` is the file that keeps the last assignment for a start without the manager."""
        self._client = client
        self._host = host_name
        self._version = agent_version
        self._cache = cache
        self._outbox = outbox
        self._etag = ""
        self._orders = Orders()
        self._saved: Assignment | None = None
        self._registered: object = None

    def cached_orders(self) -> Orders:
        """What the manager said before this start, without windows, which are stale by now."""
        try:
            body = AssignmentOut.model_validate_json(self._cache.read_bytes())
        except FileNotFoundError:
            return Orders()
        except (OSError, ValidationError) as error:
            log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
            return Orders()
        assignment, _ = assignment_of(body)
        if assignment.host.name != self._host:
            return Orders()
        self._saved = assignment
        self._orders = Orders(assignment)
        return self._orders

    def fetch(self) -> Orders:
        """The current orders. Raises ManagerUnavailable."""
        headers = {"If-None-Match": self._etag} if self._etag else {}
        response = self._client.request("GET", f"/hosts/{self._host}/assignment", headers=headers)
        number = response.headers.get(ORDERS_HEADER, "")
        orders_number = int(number) if number.isdecimal() else None
        if response.status == 304:
            if orders_number != self._orders.number:
                self._orders = replace(self._orders, number=orders_number)
            return self._orders
        assignment, slots = self._understood(response.content)
        if assignment != self._saved and self._save(response.content):
            self._saved = assignment
        before = self._orders
        same_slots = before.assignment is not None and before.assignment.slot_s == assignment.slot_s
        known = {one.name: before.slots.get(one.name, ()) if same_slots else () for one in assignment.applications}
        self._orders = Orders(assignment, remember(known, slots, assignment.slot_s), orders_number)
        self._etag = response.headers.get("ETag", "")
        return self._orders

    def _understood(self, content: bytes) -> tuple[Assignment, Slots]:
        """What the manager says. Mostly only response times are new; then registrations are not made of it again."""
        try:
            said = json.loads(content)
            windows = {one["name"]: one.pop("windows", []) for one in said["applications"]}
            if self._orders.assignment is not None and said == self._registered:
                fresh = _WINDOWS.validate_python(windows)
                slots = {name: tuple(window_of(name, one) for one in found) for name, found in fresh.items() if found}
                return self._orders.assignment, slots
            understood = assignment_of(AssignmentOut.model_validate_json(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManagerUnavailable(f"the manager's assignment is not understood: {error}") from error
        self._registered = said
        return understood

    def send(self, report: Report) -> None:
        """Report the last tick and all that waits, oldest first, until nothing does.

        Raises ManagerUnavailable; what was not acknowledged stays in the outbox.
        """
        windows = _valid(report.windows, window_body)
        sources = None if report.sources is None else _valid(report.sources, status_body)
        domains = None if report.domains is None else _valid(report.domains, domain_body)
        findings = None if report.findings is None else _findings_body(report.findings)
        while True:
            waiting = self._outbox.peek(_BATCH, _BATCH_BYTES)
            now, windows = windows[:_BATCH], windows[_BATCH:]
            body = ReportIn(
                agent_version=self._version,
                capabilities=report.capabilities,
                tick=report.tick,
                vms=report.vms,
                sources=sources,
                domains=domains,
                findings=findings,
                windows=_valid(waiting.fields[Kind.WINDOW], slot_body) + now,
                ticks=_valid(waiting.fields[Kind.TICK], tick_body),
                decisions=_valid(waiting.fields[Kind.DECISION], record_body),
                events=_valid(waiting.fields[Kind.EVENT], event_body),
            )
            response = self._client.request(
                "POST", f"/hosts/{self._host}/report", content=body.model_dump_json(by_alias=True)
            )
            try:
                ReportOut.model_validate_json(response.content)
            except ValidationError as error:
                raise ManagerUnavailable(f"the answer to a report is not a manager's: {error}") from error
            self._outbox.drop_through(waiting.last)
            if waiting.complete and not windows:
                return

    def _save(self, content: bytes) -> bool:
        """Replace the cache as a whole; when it cannot be written that is logged, and tried again next time."""
        temporary = self._cache.with_suffix(".new")
        try:
            temporary.write_bytes(content)
            temporary.replace(self._cache)
        except OSError as error:
            log.warning("the assignment cannot be cached in %s: %s", self._cache, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        return True


def remember(known: Slots, fresh: Slots, slot_s: float) -> Slots:
    """The slots of the last minutes: ``known`` ones, and in their place what ``fresh`` says of the same slots.

    Oldest first, as ``known`` is. The manager tells of the newest slots only; policies look further back where response
    times are few.
    """
    merged: dict[str, tuple[Window, ...]] = {}
    for name in known.keys() | fresh.keys():
        before, new = known.get(name, ()), fresh.get(name, ())
        begin_s = min((one.start_s for one in new), default=math.inf)
        same = bisect_right(before, begin_s, key=_end_s)  # what is fresh is of the last few slots
        by_number = {slot_number(one.end_s, slot_s): one for one in (*before[same:], *new)}
        slots = before[:same] + tuple(by_number[number] for number in sorted(by_number))
        if slots:
            merged[name] = slots[bisect_left(slots, slots[-1].end_s - _REMEMBERED_S, key=_end_s) :]
    return merged


def _end_s(slot: Window) -> float:
    return slot.end_s


def _findings_body(found: Findings) -> FindingsBody:
    return FindingsBody(at=timestamp(found.time_s), findings=_valid(found.findings, finding_body))


def _valid(items: Iterable[Item], convert: Callable[[Item], Body]) -> list[Body]:
    """What the interface takes. What it does not take is logged and left out: it must not hold up the rest."""
    bodies: list[Body] = []
    for item in items:
        try:
            bodies.append(convert(item))
        except (ValidationError, OverflowError, ValueError) as error:
            log.error("cannot be reported and is dropped: %s: %s", item, error)
    return bodies
