"""The agent's exchanges with the manager: the assignment comes in, reports go out, both through REST."""

from __future__ import annotations

import contextlib
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from manager.control.judged_windows import by_slot, slot_number
from manager.control.tenure_rules import Who
from manager.errors import ManagerUnavailable
from manager.loop.assigned import Assigned, Slots, read_assignment
from manager.loop.delivery import Piece, Rejected, deliver, pieces_of, report_of
from manager.loop.known_windows import KnownWindows
from manager.loop.observer import system_clock
from manager.loop.outbox import PART_ITEMS, Outbox, Waiting
from manager.loop.pace import Waits
from manager.model.fields import adapter_of, fields_of
from manager.model.finding import Findings
from manager.model.host import Capabilities, VmInstance
from manager.model.migration import MigrationOrder, MigrationReport
from manager.model.registration import Assignment
from manager.model.source import SourceStatus
from manager.model.traffic import HostServices
from manager.model.window import Window
from manager.private import replace_file
from manager.protocol.assignment import Cadence, RefusedItem, ReportOut, read_window
from manager.protocol.client import Answer, ManagerClient
from manager.protocol.headers import (
    AHEAD_HEADER,
    BOOT_HEADER,
    CLOCK_HEADER,
    INSTANCE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    REVISION_HEADER,
    TAPS_HEADER,
)
from manager.protocol.report import DomainBody, TickStatus, VmStatus
from manager.sqlite_files import Damage, set_aside

_FEW = 10
"""After a report that was not taken: to put a whole part together takes a hundred times as long as to be refused."""
_BATCH_BYTES = 2_000_000
_REMEMBERED_S = 300.0
_EXACT_S = 2.0  # an exchange that took longer says too little of clocks
_NOTHING = Waiting(0, True, {})
_UNCOUNTED: dict[str, Any] = {"histogram": {}}
_SCALARS = ("capabilities", "tick", "vms", "sources", "findings", "services")

Body = TypeVar("Body")
Item = TypeVar("Item")
Content = TypeVar("Content")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What is reported besides the outbox; None means unchanged. See ``ReportIn``.

    ``windows`` are the slots of response times that may still grow, as they are now; ``live``: the newest alone. Of the
    former those are sent that the manager has not stored as they are.
    """

    capabilities: Capabilities | None = None
    tick: TickStatus | None = None
    vms: list[VmStatus] | None = None
    vms_changed_only: bool = False
    live: bool = False
    sources: tuple[SourceStatus, ...] | None = None
    windows: tuple[Window, ...] = ()
    domains: tuple[VmInstance, ...] | None = None
    findings: Findings | None = None
    services: HostServices | None = None
    migrations: tuple[MigrationReport, ...] = ()


class ManagerLink:
    """Exchanges with one manager. Belongs to one thread.

    ``shared``: other hosts may wait for what is reported here. ``vms_missing``: the next report needs all VMs.
    ``clock_ahead_s``: how far this clock is ahead of the manager's, None while that is unknown. ``cadence``: how often
    the manager wants reports, None: in each interval. ``orders``: what is to be migrated, by its last answer.
    ``slow_part_s``: how long it took for the last part of what waits, where the rest was left for later.
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
        self._assigned = Assigned()
        self._saved: Assignment | None = None
        self._digest = ""
        self.shared, self.vms_missing = True, False
        self.clock_ahead_s: float | None = None
        self.cadence: Cadence | None = None
        self.slow_part_s: float | None = None
        self.orders: tuple[MigrationOrder, ...] = ()
        self._known = KnownWindows()
        self._packs = self._packs_ticks = False  # an earlier manager reads no packed windows, or no packed ticks
        self._refuses_packs = False
        self._refused = False
        self._windows_read: dict[str, dict[str, tuple[object, Window]]] = {}  # with their bodies, by begin
        self._damages: list[Damage] = []
        self._rejected: list[Rejected] = []

    def cached(self) -> Assigned:
        """The assignment before this start, without windows, which are stale by now."""
        try:
            assignment = read_assignment(self._cache.read_bytes(), None).assignment
        except FileNotFoundError:
            return Assigned()
        except OSError as error:
            log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
            return Assigned()
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # torn, of another version, or anything else
            self._set_aside(error)
            return Assigned()
        if assignment.host.name == self._host:
            self._saved, self._assigned = assignment, Assigned(assignment)
        return self._assigned

    def take_damages(self) -> list[Damage]:
        """What happened to the cache since this was asked last."""
        damages, self._damages = self._damages, []
        return damages

    def _set_aside(self, error: Exception) -> None:
        [why, *_] = f"{error}".splitlines() or [type(error).__name__]
        log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
        with contextlib.suppress(OSError):
            self._damages.append(Damage(self._cache, set_aside(self._cache), why))

    def fetch(self) -> Assigned:
        """The current assignment. Raises ManagerUnavailable."""
        before = self._assigned.assignment
        if before is not None and self._digest:
            answer = self._ask("slots")
            if answer is None or self._take_slots(answer, _understood(answer, from_json)):
                return self._assigned
        answer = self._ask("assignment")
        if answer is None:
            return self._assigned
        read = _understood(answer, lambda content: read_assignment(content, before))
        self._rejected += [Rejected("assignment", problem) for problem in read.problems]
        if read.assignment != self._saved and self._save(answer.content):
            self._saved = read.assignment
        self._digest, self._windows_read = read.digest, {}
        self._take(answer, "assignment", read.assignment, read.slots)
        return self._assigned

    def _ask(self, what: str) -> Answer | None:
        """Ask for the assignment or for the slots alone; None: as at the last question, which was the same."""
        asked, etag = self._etag
        headers = {"If-None-Match": etag} if etag and asked == what else {}
        answer = self._exchange("GET", what, headers=headers)
        if answer.status != HTTPStatus.NOT_MODIFIED:
            return answer
        if (revision := _revision(answer)) != self._assigned.revision:
            self._assigned = replace(self._assigned, revision=revision)
        return None

    def _exchange(
        self, method: str, what: str, *, content: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request, and see what protocol the manager speaks and what time it has. Raises ManagerUnavailable."""
        sent = {PROTOCOL_HEADER: str(PROTOCOL), TAPS_HEADER: "1", **self._who, **(headers or {})}
        if content is not None and self.clock_ahead_s is not None:
            sent[AHEAD_HEADER] = f"{self.clock_ahead_s:.6f}"
        begin = system_clock()
        answer = self._client.request(method, f"/hosts/{self._host}/{what}", content=content, headers=sent)
        spoken = answer.headers.get(PROTOCOL_HEADER, str(PROTOCOL))
        if spoken != str(PROTOCOL):
            text = f"the manager speaks protocol {spoken}, and this agent {PROTOCOL}"
            raise ManagerUnavailable(f"{text}: install the same version of Equipoise on both")
        took_s = system_clock().monotonic_s - begin.monotonic_s
        with contextlib.suppress(ValueError):  # there is no such header
            manager_s = float(answer.headers.get(CLOCK_HEADER, ""))
            # It had that time about in the middle, so this is off by half of what the exchange took at most.
            self.clock_ahead_s = begin.epoch_s + took_s / 2 - manager_s if took_s < _EXACT_S else self.clock_ahead_s
        return answer

    def _take_slots(self, answer: Answer, slots: Any) -> bool:
        """Take the slots alone, which an answer holds. False: there is another assignment now, to be asked for."""
        digest, windows, self.shared = _understood(answer, lambda _: self._slots_in(slots))
        if self._assigned.assignment is None or digest != self._digest:
            self._digest = ""
            return False
        self._take(answer, "slots", self._assigned.assignment, windows)
        return True

    def _take(self, answer: Answer, what: str, assignment: Assignment, slots: Slots) -> None:
        before = self._assigned
        same_slots = before.assignment is not None and before.assignment.slot_s == assignment.slot_s
        remembered = {
            application.name: before.slots.get(application.name, ()) if same_slots else ()
            for application in assignment.applications
        }
        self._assigned = Assigned(assignment, remember(remembered, slots, assignment.slot_s), _revision(answer))
        self._etag = what, answer.headers.get("ETag", "")

    def _slots_in(self, body: Mapping[str, Any]) -> tuple[str, Slots, bool]:
        """The digest of the assignment, the slots, and whether others wait for what is reported here."""
        slots = {name: self._windows(name, bodies) for name, bodies in body["windows"].items() if bodies}
        self._windows_read = {name: self._windows_read[name] for name in slots}
        return body["digest"], slots, bool(body["shared"])

    def _windows(self, application: str, bodies: list[dict[str, Any]]) -> tuple[Window, ...]:
        """The slots of an application, oldest first. Most bodies were there before."""
        before = self._windows_read.get(application, {})
        read: dict[str, tuple[object, Window]] = {}
        for body in bodies:
            known = before.get(body["start"])
            read[body["start"]] = known if known and known[0] == body else (body, read_window(application, body))
        self._windows_read[application] = read
        return tuple(sorted((window for _, window in read.values()), key=_end_s))

    def send(
        self, report: Report, waits: Waits = Waits.ALL, *, ask: bool = False, easy_s: float = math.inf
    ) -> Assigned:
        """Report the last tick, and of what waits all, or the events, oldest first, until nothing does.

        It comes in parts, the first a small one where the manager took none the last time; after one that it took
        longer than ``easy_s`` for, the rest stays in the outbox.
        With ``ask`` the assignment that is returned is the current one, as that of ``fetch``. Raises
        ManagerUnavailable; what was not acknowledged stays in the outbox.
        """
        # A live report is all that the manager has of the present, and stored as a whole.
        windows = _valid(report.windows if report.live else self._known.news(report.windows), _window)
        scalars = [Piece(name, value) for name in _SCALARS if (value := getattr(report, name)) is not None]
        if report.migrations:
            scalars.append(Piece("migrations", list(report.migrations)))
        if report.domains is not None:
            scalars.append(Piece("domains", _valid(report.domains, _domain)))
        while True:
            most = _FEW if waits is not Waits.NOTHING and self._refused else PART_ITEMS
            waiting = self._peek(waits, most)
            now, windows = windows[:most], windows[most:]
            last = waiting.complete and not windows
            pieces, unsendable = pieces_of(waiting, self._host)
            pieces = [*scalars, *pieces, *(Piece("windows", window) for window in now)]
            post = partial(
                self._post,
                vms_changed_only=report.vms_changed_only,
                live=report.live,
                wants_slots=ask and last,
            )
            begin_s = system_clock().monotonic_s
            self._refused = True
            response, slots, stored = deliver(pieces, post, self._reject)
            self._refused = False
            took_s = system_clock().monotonic_s - begin_s
            enough = took_s > easy_s and not windows
            self._reject(unsendable)  # not before somebody answers, or it would be said with each attempt
            if waits is Waits.ALL and waiting.last:
                self._outbox.drop_through(waiting.last)
            elif waiting.last:
                self._outbox.drop_events_through(waiting.last)
            if stored.vms_missing:
                self._known.forget()
            elif not report.live and stored.stored_windows == sum(piece.field == "windows" for piece in pieces):
                self._known.note(now)
            self.vms_missing, self.cadence = stored.vms_missing, stored.cadence
            self.orders = tuple(stored.migrations)
            if last or enough:
                self.slow_part_s = None if last else took_s
                done = not ask or (slots is not None and self._take_slots(response, slots))
                return self._assigned if done else self.fetch()

    def _peek(self, waits: Waits, most: int) -> Waiting:
        """Raises JournalError."""
        if waits is Waits.NOTHING:
            return _NOTHING
        return self._outbox.peek(most, _BATCH_BYTES, events_only=waits is Waits.EVENTS)

    def _post(
        self, pieces: Sequence[Piece], **flags: bool
    ) -> tuple[tuple[Answer, Any, ReportOut], Sequence[RefusedItem]]:
        """One report. Raises ManagerRefused, ManagerUnavailable."""
        packs, packs_ticks = self._packs, self._packs_ticks and not self._refuses_packs
        body = report_of(pieces, self._version, packed=packs, packed_ticks=packs_ticks, **flags)
        response = self._exchange("POST", "report", content=body.model_dump_json(by_alias=True))
        try:
            answer = response.json()
            slots = answer.pop("slots", None)
            stored = ReportOut.model_validate(answer, extra="ignore")
        except (ValueError, TypeError, AttributeError) as error:
            raise ManagerUnavailable(f"the answer to a report is not a manager's: {error}") from error
        self._packs, self._packs_ticks = stored.packed, stored.packed_ticks
        # A manager of another version may refuse a pack. It gets ticks one by one, and names those that it refuses.
        self._refuses_packs |= any(item.field.startswith("packed_ticks") for item in stored.refused)
        unread = packs_ticks and (self._refuses_packs or not stored.packed_ticks)
        if unread or (packs and not stored.packed):  # an earlier manager took its place: all comes again
            return self._post(pieces, **flags)
        return (response, slots, stored), stored.refused

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        for item in rejected:
            log.error("cannot be delivered and is set aside: %s: %s", item.what, item.why)
        self._outbox.set_aside([(each.what, each.item, each.why) for each in rejected if each.item is not None])
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


def remember(remembered: Slots, fresh: Slots, slot_s: float) -> Slots:
    """The slots of the last minutes: ``remembered`` ones, and in their place those of ``fresh`` of the same time.

    Oldest first, as ``remembered`` is. The manager sends the newest slots only; policies look further back where
    response times are few.
    """
    merged: dict[str, tuple[Window, ...]] = {}
    for name in remembered.keys() | fresh.keys():
        before, new = remembered.get(name, ()), fresh.get(name, ())
        if new:  # what is later came from a clock that was ahead, and was set
            before = before[: bisect_right(before, max(slot.end_s for slot in new) + slot_s, key=_end_s)]
        begin_s = min((slot.start_s for slot in new), default=math.inf)
        same = bisect_right(before, begin_s, key=_end_s)  # what is fresh is of the last few slots
        known = _alike(before[same:], new)  # mostly all but the newest
        same, new = same + known, new[known:]
        by_number = {slot_number(slot.end_s, slot_s): slot for slot in (*before[same:], *new)}
        slots = before[:same] + tuple(by_number[number] for number in sorted(by_number))
        if slots:
            merged[name] = slots[bisect_left(slots, slots[-1].end_s - _REMEMBERED_S, key=_end_s) :]
    return merged


def _alike(before: Sequence[Window], now: Sequence[Window]) -> int:
    """How many slots at the begin of both are the same objects."""
    count = 0
    for then, slot in zip(before, now, strict=False):
        if then is not slot:
            break
        count += 1
    return count


def _revision(answer: Answer) -> int | None:
    number = answer.headers.get(REVISION_HEADER, "")
    return int(number) if number.isdecimal() else None


def _understood(answer: Answer, read: Callable[[bytes], Content]) -> Content:
    """What ``read`` makes of an answer. Raises ManagerUnavailable for what is not a manager's."""
    try:
        return read(answer.content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManagerUnavailable(f"the manager's assignment is not understood: {error}") from error


def _end_s(slot: Window) -> float:
    return slot.end_s


def _window(window: Window) -> Window:
    """Its counts are ours, of the buckets that there are, and many."""
    checked = adapter_of(Window).validate_python(fields_of(Window, window) | _UNCOUNTED)
    return replace(checked, histogram=window.histogram)


def _domain(instance: VmInstance) -> DomainBody:
    return DomainBody(libvirt_name=instance.libvirt_name, libvirt_uuid=instance.uuid)


def _valid(items: Iterable[Item], convert: Callable[[Item], Body]) -> list[Body]:
    """The items that the interface takes. Others are logged and left out: they must not hold up the rest."""
    bodies: list[Body] = []
    for item in items:
        try:
            bodies.append(convert(item))
        except (ValidationError, OverflowError, ValueError) as error:
            log.error("cannot be reported and is dropped: %s: %s", item, error)
    return bodies


def joined(here: Slots, others: Slots, slot_s: float) -> Slots:
    """The slots of both by application, those of the same time merged."""
    both = {name: by_slot((*here[name], *others[name]), slot_s) for name in here.keys() & others.keys()}
    return {**here, **others, **both}


def dated_here(slots: Slots, now_s: float, ahead_s: float | None, slot_s: float) -> Slots:
    """Slots of others as this clock, which is so far ahead of the manager's, dates them: where only that fits.

    Whoever measured them dated them. Where this clock was set and theirs was not, they lie hours from ``now_s``.
    """
    shift_s = math.trunc((ahead_s or 0.0) / slot_s) * slot_s
    if not shift_s:
        return slots

    def fits(end_s: float) -> bool:
        return now_s - _REMEMBERED_S <= end_s <= now_s + slot_s

    def dated(windows: tuple[Window, ...]) -> tuple[Window, ...]:
        if not windows or fits(windows[-1].end_s) or not fits(windows[-1].end_s + shift_s):
            return windows
        return tuple(replace(slot, start_s=slot.start_s + shift_s, end_s=slot.end_s + shift_s) for slot in windows)

    return {name: dated(windows) for name, windows in slots.items()}
