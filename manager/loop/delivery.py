"""Reports in which the manager accepts one item and not another: what it refuses is found, and all else delivered."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import ValidationError

from manager.errors import ManagerRefused
from manager.loop.outbox import Fields, ItemKind
from manager.model.fields import adapter_of, as_text
from manager.model.records import DecisionRecord, Event, TickRecord
from manager.protocol.assignment import RefusedItem
from manager.protocol.convert import slot_body
from manager.protocol.report import ReportIn, WindowBody

Answer = TypeVar("Answer")
Item = WindowBody | TickRecord | DecisionRecord | Event

_LISTS: Mapping[ItemKind, str] = {
    ItemKind.WINDOW: "windows",
    ItemKind.TICK: "ticks",
    ItemKind.DECISION: "decisions",
    ItemKind.EVENT: "events",
}
_KINDS = {name: kind for kind, name in _LISTS.items()}
_CONVERT: Mapping[ItemKind, Callable[[Fields], Item]] = {
    ItemKind.WINDOW: slot_body,
    ItemKind.TICK: adapter_of(TickRecord).validate_python,
    ItemKind.DECISION: adapter_of(DecisionRecord).validate_python,
    ItemKind.EVENT: adapter_of(Event).validate_python,
}
_TEXTS = ("reason", "detail", "message")
_UNACCEPTABLE = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """What cannot be delivered, and why. ``fields`` None: it does not wait in the outbox, and is told anew as it is."""

    what: str
    why: str
    fields: Fields | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """An item as it is sent; ``fields`` as it waits, None: it does not."""

    kind: ItemKind
    body: Item
    fields: Fields | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReportLoad:
    """What goes into one report: items, and ``parts``, which are its other fields."""

    parts: Mapping[str, Any]
    parcels: Sequence[Parcel]

    def body(self, agent_version: str, *, wants_slots: bool) -> ReportIn:
        """The report."""
        lists: dict[str, Any] = {
            _LISTS[kind]: [parcel.body for parcel in self.parcels if parcel.kind is kind] for kind in ItemKind
        }
        return ReportIn(agent_version=agent_version, wants_slots=wants_slots, **self.parts, **lists)

    def place(self, field: str) -> int | None:
        """Which of the parcels a field such as ``decisions[3].host`` is of, None: none of them."""
        found = re.match(r"(\w+)\[(\d+)\]", field)
        if found is None or found[1] not in _KINDS:
            return None
        places = [place for place, one in enumerate(self.parcels) if one.kind is _KINDS[found[1]]]
        return places[int(found[2])] if int(found[2]) < len(places) else None

    def without(self, places: Collection[int]) -> ReportLoad:
        """The same, but for some parcels."""
        return ReportLoad(self.parts, [one for place, one in enumerate(self.parcels) if place not in places])

    def halves(self) -> tuple[ReportLoad, ReportLoad]:
        """Two loads that are smaller."""
        if len(self.parcels) > 1 or (self.parcels and self.parts):
            middle = len(self.parcels) // 2
            return ReportLoad(self.parts, self.parcels[:middle]), ReportLoad({}, self.parcels[middle:])
        names = sorted(self.parts)
        first = {name: self.parts[name] for name in names[: len(names) // 2]}
        return ReportLoad(first, self.parcels), ReportLoad(
            {name: self.parts[name] for name in names if name not in first}, ()
        )

    def only(self, why: str) -> Rejected | None:
        """What it holds, as rejected, where that is one thing alone."""
        if len(self.parcels) == 1 and not self.parts:
            return _rejected(self.parcels[0], why)
        if not self.parcels and len(self.parts) == 1:
            return Rejected(next(iter(self.parts)), why)
        return None


def parcels_of(waiting: Mapping[ItemKind, Iterable[Fields]], host: str) -> tuple[list[Parcel], list[Rejected]]:
    """What waits as it is sent, and what cannot be: it is not as the interface wants it, or of another host."""
    parcels: list[Parcel] = []
    rejected: list[Rejected] = []
    for kind, items in waiting.items():
        for fields in items:
            if fields.get("host", host) != host:
                rejected.append(Rejected(kind, f"it is of host {fields['host']}, and this one is {host}", fields))
                continue
            try:
                parcels.append(Parcel(kind, _CONVERT[kind](_clean(fields)), fields))
            except (ValidationError, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
                rejected.append(Rejected(kind, " ".join(str(error).split()), fields))
    return parcels, rejected


def deliver(
    load: ReportLoad,
    post: Callable[[ReportLoad], tuple[Answer, Sequence[RefusedItem]]],
    reject: Callable[[Sequence[Rejected]], None],
) -> Answer:
    """Deliver all that is accepted, and ``reject`` the rest; the last answer.

    A manager that knows how names what it leaves out. One that refuses the report as a whole, for a reason that lies in
    what it holds, is sent the rest without the items that it names, or, if it names none, both halves. Raises what
    ``post`` raises for other reasons, and for a report that holds nothing any more.
    """
    try:
        answer, refused = post(load)
    except ManagerRefused as error:
        if error.status not in _UNACCEPTABLE or not (load.parts or load.parcels):
            raise
        bad = {place: why for field, why in error.fields if (place := load.place(field)) is not None}
        alone = load.only(str(error))
        if bad:
            reject([_rejected(load.parcels[place], why) for place, why in bad.items()])
            return deliver(load.without(bad), post, reject)
        if alone is not None:
            reject([alone])
            return deliver(ReportLoad({}, ()), post, reject)
        first, second = load.halves()
        deliver(first, post, reject)
        return deliver(second, post, reject)
    found = [(load.place(one.field), one) for one in refused]
    reject(
        [
            Rejected(one.field, one.message) if place is None else _rejected(load.parcels[place], one.message)
            for place, one in found
        ]
    )
    return answer


def _rejected(parcel: Parcel, why: str) -> Rejected:
    return Rejected(parcel.kind, why, parcel.fields)


def _clean(fields: Fields) -> Fields:
    """What the kernel or somebody else's policy said, as it is exchanged."""
    return fields | {name: as_text(fields[name]) for name in _TEXTS if name in fields}
