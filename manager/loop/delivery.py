"""Reports in which the manager accepts one item and not another: what it refuses is found, and all else delivered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import ValidationError

from manager.errors import ManagerRefused
from manager.loop.outbox import Fields, Item, ItemKind, Waiting, kept_histogram
from manager.model.fields import adapter_of, as_text
from manager.model.packed_histogram import UnreadHistogram
from manager.model.packed_ticks import packs_of
from manager.model.records import DecisionRecord, Event, TickRecord
from manager.model.window import Window
from manager.protocol.assignment import RefusedItem
from manager.protocol.report import ReportIn, reported_window

Answer = TypeVar("Answer")

_KINDS = {f"{kind}s": kind for kind in ItemKind}
"""Of items, by the field of a report that lists them."""


def _window(row: Fields) -> Window:
    histogram = kept_histogram(row["histogram"])
    if isinstance(histogram, UnreadHistogram):  # it was looked at as it was read
        return replace(adapter_of(Window).validate_python({**row, "histogram": {}}), histogram=histogram)
    return adapter_of(Window).validate_python({**row, "histogram": row["histogram"]["buckets"]})


_CONVERT: Mapping[ItemKind, Callable[[Fields], Any]] = {
    ItemKind.WINDOW: _window,
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
    """What cannot be delivered, and why. ``item`` None: it does not wait in the outbox, and is reported anew."""

    what: str
    why: str
    item: Item | Fields | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a report that may be refused alone: the value of a field, or of an item that the field lists.

    ``item`` is what waits in the outbox, None: it does not.
    """

    field: str
    value: Any
    item: Item | Fields | None = None

    def rejected(self, why: str) -> Rejected:
        """The same, not accepted."""
        return Rejected(_KINDS.get(self.field, self.field), why, self.item)


def report_of(
    pieces: Iterable[Piece], agent_version: str, *, packed: bool = False, packed_ticks: bool = False, **flags: bool
) -> ReportIn:
    """The report that holds the pieces; ``packed``: with histograms as bytes, ``packed_ticks``: with ticks as such."""
    fields: dict[str, Any] = {**flags, **{name: [] for name in _KINDS}}
    for piece in pieces:
        if piece.field in _KINDS:
            fields[piece.field].append(piece.value)
        else:
            fields[piece.field] = piece.value
    fields["windows"] = [reported_window(window, packed=packed) for window in fields["windows"]]
    if packed_ticks:
        fields |= {"packed_ticks": [*packs_of(fields["ticks"])], "ticks": []}
    return ReportIn(agent_version=agent_version, **fields)


def pieces_of(waiting: Waiting, host: str) -> tuple[list[Piece], list[Rejected]]:
    """What waits as it is sent, and what cannot be: the interface does not take it, or it is of another host.

    What is fresh was made by this agent a moment ago, and goes as it is.
    """
    pieces: list[Piece] = []
    rejected: list[Rejected] = []
    for kind, items in waiting.fields.items():
        for fields in items:
            if fields.get("host", host) != host:
                rejected.append(Rejected(kind, f"it is of host {fields['host']}, and this one is {host}", fields))
                continue
            # Texts of the kernel or of a third party's policy are made acceptable.
            clean = fields | {name: as_text(fields[name]) for name in _TEXTS if name in fields}
            try:
                pieces.append(Piece(f"{kind}s", _CONVERT[kind](clean), fields))
            except (ValidationError, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
                rejected.append(Rejected(kind, " ".join(str(error).split()), fields))
    pieces += (Piece(f"{kind}s", item, item) for kind, item in waiting.fresh)
    return pieces, rejected


def deliver(
    pieces: Sequence[Piece],
    post: Callable[[Sequence[Piece]], tuple[Answer, Sequence[RefusedItem]]],
    reject: Callable[[Sequence[Rejected]], None],
) -> Answer:
    """Deliver all that is accepted, and ``reject`` the rest; the last answer.

    A manager that knows how names what it leaves out. One that refuses the report as a whole, for a reason that lies in
    what it holds, is sent the rest without the items that it names, or, if it names none, both halves. Raises what
    ``post`` raises for other reasons, and for a report that holds nothing any more.
    """
    try:
        answer, refused = post(pieces)
    except ManagerRefused as error:
        if error.status not in _UNACCEPTABLE or not pieces:
            raise
        bad = {place: why for field, why in error.fields if (place := _place(pieces, field)) is not None}
        if len(pieces) == 1:
            bad = bad or {0: str(error)}
        if bad:
            reject([pieces[place].rejected(why) for place, why in bad.items()])
            return deliver([piece for place, piece in enumerate(pieces) if place not in bad], post, reject)
        middle = len(pieces) // 2
        deliver(pieces[:middle], post, reject)
        return deliver(pieces[middle:], post, reject)
    places = [(_place(pieces, item.field), item) for item in refused]
    reject(
        [
            Rejected(item.field, item.message) if place is None else pieces[place].rejected(item.message)
            for place, item in places
        ]
    )
    return answer


def _place(pieces: Sequence[Piece], field: str) -> int | None:
    """Which piece an item such as ``decisions[3].host`` is; None: it is none."""
    match = re.match(r"(\w+)\[(\d+)\]", field)
    if match is None or match[1] not in _KINDS:
        return None
    places = [place for place, piece in enumerate(pieces) if piece.field == match[1]]
    return places[int(match[2])] if int(match[2]) < len(places) else None
