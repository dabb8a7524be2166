"""The agent's talk with the manager: what to control comes in, what was done goes out, both through REST."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from manager.control.judged_windows import by_slot, slot_number
from manager.control.tenure_rules import Who
from manager.errors import ManagerUnavailable
from manager.loop.assigned import read_assignment
from manager.loop.delivery import Parcel, Rejected, ReportLoad, deliver, parcels_of
from manager.loop.observer import system_clock
from manager.loop.outbox import ItemKind, Outbox
from manager.model.finding import Findings
from manager.model.host import Capabilities, VmInstance
from manager.model.registration import Assignment
from manager.model.source import SourceStatus
from manager.model.window import Window
from manager.private import replace_file
from manager.protocol.assignment import AssignedWindow, RefusedItem, ReportOut
from manager.protocol.client import Answer, ManagerClient
from manager.protocol.convert import domain_body, window_body, window_of
from manager.protocol.headers import (
    AHEAD_HEADER,
    BOOT_HEADER,
    CLOCK_HEADER,
    INSTANCE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    REVISION_HEADER,
)
from manager.protocol.report import TickStatus, VmStatus
from manager.sqlite_files import Damage, set_aside

_BATCH = 500
_BATCH_BYTES = 2_000_000
_REMEMBERED_S = 300.0
_EXACT_S = 2.0  # an exchange that took longer tells too little of clocks

Slots = Mapping[str, tuple[Window, ...]]
Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")
Found = TypeVar("Found")

_WINDOWS = TypeAdapter(list[AssignedWindow])

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

    capabilities: Capabilities | None
    tick: TickStatus | None
    vms: list[VmStatus] | None
    vms_changed_only: bool = False
    sources: tuple[SourceStatus, ...] | None = None
    windows: tuple[Window, ...] = ()
    domains: tuple[VmInstance, ...] | None = None
    findings: Findings | None = None


class ManagerLink:
    """Exchanges with one manager. Belongs to one thread.

    ``shared``: other hosts may wait for what is reported here. ``vms_missing``: the manager is to be told of all VMs.
    ``clock_ahead_s``: how far this clock is ahead of the manager's, None while that is unknown.
    """

    def __init__(
        self,
        client: ManagerClient,
        host_name: str,
        agent_version: str,
        cache: Path,
        outbox: Outbox,
        who: Who | None = None,
    ) -> None:
        """``cache`` is the file that keeps the last assignment for a start without the manager."""
        self._who = {INSTANCE_HEADER: who.instance, BOOT_HEADER: who.boot} if who else {}
        self._client, self._host, self._version = client, host_name, agent_version
        self._cache, self._outbox = cache, outbox
        self._etag = "", ""
        self._orders = Orders()
        self._saved: Assignment | None = None
        self._digest = ""
        self.shared, self.vms_missing = True, False
        self.clock_ahead_s: float | None = None
        self._told: dict[str, list[tuple[object, Window]]] = {}
        self._damages: list[Damage] = []
        self._rejected: list[Rejected] = []

    def cached_orders(self) -> Orders:
        """What the manager said before this start, without windows, which are stale by now."""
        try:
            assignment = read_assignment(self._cache.read_bytes(), None).assignment
        except FileNotFoundError:
            return Orders()
        except OSError as error:
            log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
            return Orders()
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # torn, of another version, or anything else
            self._set_aside(error)
            return Orders()
        if assignment.host.name != self._host:
            return Orders()
        self._saved = assignment
        self._orders = Orders(assignment)
        return self._orders

    def take_damages(self) -> list[Damage]:
        """What happened to the cache since this was asked last."""
        damages, self._damages = self._damages, []
        return damages

    def _set_aside(self, error: Exception) -> None:
        [why, *_] = f"{error}".splitlines() or [type(error).__name__]
        log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
        with contextlib.suppress(OSError):
            self._damages.append(Damage(self._cache, set_aside(self._cache), why))

    def fetch(self) -> Orders:
        """The current orders. Raises ManagerUnavailable."""
        before = self._orders
        if before.assignment is not None and self._digest:
            answer = self._ask("slots")
            if answer is None:
                return self._orders
            if self._take_slots(answer, _understood(answer, json.loads)):
                return self._orders
        answer = self._ask("assignment")
        if answer is None:
            return self._orders
        read = _understood(answer, lambda content: read_assignment(content, before.assignment))
        assignment, slots = read.assignment, read.slots
        self._rejected += [Rejected("assignment", problem) for problem in read.problems]
        if assignment != self._saved and self._save(answer.content):
            self._saved = assignment
        self._digest, self._told = read.digest, {}
        self._take(answer, assignment, slots)
        self._etag = "assignment", answer.headers.get("ETag", "")
        return self._orders

    def _ask(self, what: str) -> Answer | None:
        """Ask for the assignment or for the slots alone; None: that is as it was at the last question, the same one."""
        asked, etag = self._etag
        headers = {"If-None-Match": etag} if etag and asked == what else {}
        answer = self._exchange("GET", what, headers=headers)
        if answer.status != HTTPStatus.NOT_MODIFIED:
            return answer
        number = _orders_number(answer)
        if number != self._orders.number:
            self._orders = replace(self._orders, number=number)
        return None

    def _exchange(
        self, method: str, what: str, *, content: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask or tell the manager, and see what protocol it speaks and what time it has. Raises ManagerUnavailable."""
        sent = {PROTOCOL_HEADER: str(PROTOCOL), **self._who, **(headers or {})}
        if content is not None and self.clock_ahead_s is not None:
            sent[AHEAD_HEADER] = f"{self.clock_ahead_s:.6f}"
        begin = system_clock()
        answer = self._client.request(method, f"/hosts/{self._host}/{what}", content=content, headers=sent)
        spoken = answer.headers.get(PROTOCOL_HEADER, str(PROTOCOL))
        if spoken != str(PROTOCOL):
            text = f"the manager speaks protocol {spoken}, and this agent {PROTOCOL}"
            raise ManagerUnavailable(f"{text}: install the same version of Equipoise on both")
        took_s = system_clock().monotonic_s - begin.monotonic_s
        with contextlib.suppress(ValueError):  # not said
            manager_s = float(answer.headers.get(CLOCK_HEADER, ""))
            # It had that time about in the middle, so this is off by half of what the exchange took at most.
            self.clock_ahead_s = begin.epoch_s + took_s / 2 - manager_s if took_s < _EXACT_S else self.clock_ahead_s
        return answer

    def _take_slots(self, answer: Answer, said: Any) -> bool:
        """Take the slots alone, which an answer holds. False: the assignment is another now, and is to be asked for."""
        digest, windows, self.shared = _understood(answer, lambda _: self._slots_in(said))
        if self._orders.assignment is None or digest != self._digest:
            self._digest = ""
            return False
        self._take(answer, self._orders.assignment, windows)
        self._etag = "slots", answer.headers.get("ETag", "")
        return True

    def _take(self, answer: Answer, assignment: Assignment, slots: Slots) -> None:
        before = self._orders
        same_slots = before.assignment is not None and before.assignment.slot_s == assignment.slot_s
        known = {
            application.name: before.slots.get(application.name, ()) if same_slots else ()
            for application in assignment.applications
        }
        self._orders = Orders(assignment, remember(known, slots, assignment.slot_s), _orders_number(answer))

    def _slots_in(self, said: Mapping[str, Any]) -> tuple[str, Slots, bool]:
        """The digest of the assignment, the slots that are told of, and whether others wait for what is told here."""
        self._told = {name: self._windows(name, found) for name, found in said["windows"].items() if found}
        slots = {name: tuple(slot for _, slot in told) for name, told in self._told.items()}
        return said["digest"], slots, bool(said["shared"])

    def _windows(self, application: str, said: list[object]) -> list[tuple[object, Window]]:
        """The slots of an application with what was said of each. Most were said in the same words before."""
        before = self._told.get(application, [])
        known = [one for one in before if one[0] in said]
        fresh = [one for one in said if all(one != told for told, _ in known)]
        made = zip(
            fresh, (window_of(application, one) for one in _WINDOWS.validate_python(fresh, extra="ignore")), strict=True
        )
        return sorted([*known, *made], key=lambda one: one[1].end_s)

    def send(self, report: Report, *, ask: bool = False) -> Orders:
        """Report the last tick and all that waits, oldest first, until nothing does.

        With ``ask`` the orders that are returned are the current ones, as those of ``fetch``. Raises
        ManagerUnavailable; what was not acknowledged stays in the outbox.
        """
        windows = _valid(report.windows, window_body)
        domains = None if report.domains is None else _valid(report.domains, domain_body)
        given: dict[str, Any] = {
            "vms_changed_only": report.vms_changed_only or None,
            "capabilities": report.capabilities,
            "tick": report.tick,
            "vms": report.vms,
            "sources": report.sources,
            "domains": domains,
            "findings": report.findings,
        }
        parts = {name: value for name, value in given.items() if value is not None}
        while True:
            waiting = self._outbox.peek(_BATCH, _BATCH_BYTES)
            now, windows = windows[:_BATCH], windows[_BATCH:]
            last = waiting.complete and not windows
            parcels, unsendable = parcels_of(waiting.fields, self._host)
            self._reject(unsendable)
            load = ReportLoad(parts, [*parcels, *(Parcel(ItemKind.WINDOW, one) for one in now)])
            response, slots, stored = deliver(load, lambda one: self._post(one, wants_slots=ask and last), self._reject)  # noqa: B023 - called at once
            self._outbox.drop_through(waiting.last)
            self.vms_missing = stored.vms_missing
            if last:
                done = not ask or (slots is not None and self._take_slots(response, slots))
                return self._orders if done else self.fetch()

    def _post(
        self, load: ReportLoad, *, wants_slots: bool
    ) -> tuple[tuple[Answer, Any, ReportOut], Sequence[RefusedItem]]:
        """One report. Raises ManagerRefused, ManagerUnavailable."""
        body = load.body(self._version, wants_slots=wants_slots)
        response = self._exchange("POST", "report", content=body.model_dump_json(by_alias=True))
        try:
            slots, stored = _slots_apart(response)
        except (ValueError, TypeError, AttributeError) as error:
            raise ManagerUnavailable(f"the answer to a report is not a manager's: {error}") from error
        return (response, slots, stored), stored.refused

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        for one in rejected:
            log.error("cannot be delivered and is set aside: %s: %s", one.what, one.why)
        self._outbox.set_aside([(one.what, one.fields, one.why) for one in rejected if one.fields is not None])
        self._rejected += rejected

    def take_rejected(self) -> list[Rejected]:
        """What the manager did not accept since this was asked last."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def _save(self, content: bytes) -> bool:
        """Replace the cache as a whole; when it cannot be written that is logged, and tried again next time."""
        try:
            replace_file(self._cache, content)
        except OSError as error:
            log.warning("the assignment cannot be cached in %s: %s", self._cache, error)
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
        if new:  # what is later came from a clock that was ahead, and was set
            before = before[: bisect_right(before, max(one.end_s for one in new) + slot_s, key=_end_s)]
        begin_s = min((one.start_s for one in new), default=math.inf)
        same = bisect_right(before, begin_s, key=_end_s)  # what is fresh is of the last few slots
        by_number = {slot_number(one.end_s, slot_s): one for one in (*before[same:], *new)}
        slots = before[:same] + tuple(by_number[number] for number in sorted(by_number))
        if slots:
            merged[name] = slots[bisect_left(slots, slots[-1].end_s - _REMEMBERED_S, key=_end_s) :]
    return merged


def _slots_apart(answer: Answer) -> tuple[Any, ReportOut]:
    """The slots that the answer to a report holds, None: none; and the rest. Raises ValueError for another answer."""
    said = answer.json()
    slots = said.pop("slots", None)
    return slots, ReportOut.model_validate(said, extra="ignore")


def _orders_number(answer: Answer) -> int | None:
    number = answer.headers.get(REVISION_HEADER, "")
    return int(number) if number.isdecimal() else None


def _understood(answer: Answer, read: Callable[[bytes], Found]) -> Found:
    """What ``read`` makes of an answer. Raises ManagerUnavailable for what is not a manager's."""
    try:
        return read(answer.content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManagerUnavailable(f"the manager's assignment is not understood: {error}") from error


def _end_s(slot: Window) -> float:
    return slot.end_s


def _valid(items: Iterable[Item], convert: Callable[[Item], Body]) -> list[Body]:
    """What the interface takes. What it does not take is logged and left out: it must not hold up the rest."""
    bodies: list[Body] = []
    for item in items:
        try:
            bodies.append(convert(item))
        except (ValidationError, OverflowError, ValueError) as error:
            log.error("cannot be reported and is dropped: %s: %s", item, error)
    return bodies


def joined(own: Slots, others: Slots, slot_s: float) -> Slots:
    """The slots of both by application, those of the same time merged."""
    both = {name: by_slot((*own[name], *others[name]), slot_s) for name in own.keys() & others.keys()}
    return {**own, **others, **both}


def dated_here(slots: Slots, now_s: float, ahead_s: float | None, slot_s: float) -> Slots:
    """Slots of others as this clock, which is so far ahead of the manager's, dates them: where only that fits.

    Whoever measured them dated them. Where this clock was set and theirs was not, they lie hours from ``now_s``.
    """
    shift_s = math.trunc((ahead_s or 0.0) / slot_s) * slot_s
    if not shift_s:
        return slots

    def fits(end_s: float) -> bool:
        return now_s - _REMEMBERED_S <= end_s <= now_s + slot_s

    def dated(found: tuple[Window, ...]) -> tuple[Window, ...]:
        if not found or fits(found[-1].end_s) or not fits(found[-1].end_s + shift_s):
            return found
        return tuple(replace(one, start_s=one.start_s + shift_s, end_s=one.end_s + shift_s) for one in found)

    return {name: dated(found) for name, found in slots.items()}
