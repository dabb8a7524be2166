"""Which items of a report are accepted: invalid ones are named and left out, the others are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from manager.api.validation import FieldError, field_error, refusal, shown
from manager.model.fields import json_of, timestamp
from manager.model.packed_ticks import MOST_TEXT, TickPack, read_pack
from manager.model.window import MAX_COUNT
from manager.protocol.assignment import RefusedItem
from manager.protocol.report import NO_BUCKETS, ReportedWindow, ReportIn
from manager.protocol.sparing import Sparing, read_sparing

LISTS = ("vms", "sources", "domains", "windows", "ticks", "packed_ticks", "decisions", "events", "migrations")
PARTS = ("capabilities", "tick", "findings", "services")
_MOST_TEXT = 300
_MOST_ID = 100


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted part of a report, the refused items with reasons, and how many windows end in the ``future``.

    ``packs`` are the packed ticks of the report.
    """

    body: ReportIn
    refused: list[RefusedItem]
    future: int = 0
    packs: Sequence[TickPack] = ()


def read_report(host: str, content: bytes, latest: Callable[[datetime], datetime]) -> Accepted:
    """A report of an agent of ``host``. ``latest`` returns the latest end allowed for a window that claims an end.

    Items of another host, duplicates, and impossible or out-of-range items are left out, and so are invalid
    capabilities, ticks, findings and services. Raises BadRequest for malformed JSON, InvalidFields for other invalid
    fields.
    """
    try:
        read = read_sparing(ReportIn, content, LISTS, PARTS, strict=True)
    except ValidationError as error:
        raise refusal(ReportIn, error) from None
    refused: list[RefusedItem] = []
    for spoilt in read.spoilt:
        name, index = spoilt.place
        invalid = field_error(ReportIn, spoilt.error)
        refused.append(_refused(invalid, _id_of(spoilt.value) if index is not None else name))
    ends = [timestamp(window.end_s) for window in read.model.windows]
    future = sum(end > latest(end) for end in ends)
    accepted: dict[str, list[Any]] = {}
    for name, items, judge in _judges(host, read.model, latest):
        bad = {index: reason for index, item in enumerate(items) if (reason := judge(item))}
        for index, (field, message) in bad.items():
            place = f"{name}[{read.number(name, index)}].{field}"
            refused.append(_refused(FieldError(place, message), _id_of(from_json(json_of(items[index])))))
        if bad:
            accepted[name] = [item for index, item in enumerate(items) if index not in bad]
    packs = _packs(read, refused)
    return Accepted(read.model.model_copy(update=accepted) if accepted else read.model, refused, future, packs)


def _packs(read: Sparing[ReportIn], refused: list[RefusedItem]) -> list[TickPack]:
    """The packed ticks. A pack may be much shorter than what it holds: together they hold no more than a report may."""
    packs: list[TickPack] = []
    left = MOST_TEXT
    for index, text in enumerate(read.model.packed_ticks):
        try:
            packs.append(pack := read_pack(text, left))
            left -= pack.text_bytes
        except ValueError as error:
            left //= 2  # however much of it was made to find that out
            place = f"packed_ticks[{read.number('packed_ticks', index)}]"
            refused.append(_refused(FieldError(place, f"is not taken: {error}"), ""))
    return packs


Judge = Callable[[Any], tuple[str, str] | None]
"""The refused field of an item and why; None: it is accepted. Called in the order of the list."""


def _judges(
    host: str, body: ReportIn, latest: Callable[[datetime], datetime]
) -> Iterator[tuple[str, Sequence[Any], Judge]]:
    def of_this_host(item: Any) -> tuple[str, str] | None:
        refused = f"{shown(item.host)} is refused; allowed: {host}, which is reporting"
        return None if item.host == host else ("host", refused)

    yield "decisions", body.decisions, of_this_host
    yield "events", body.events, of_this_host
    yield "vms", body.vms or (), _once("vm", lambda vm: str(vm.vm))
    yield "domains", body.domains or (), _once("libvirt_uuid", lambda domain: str(domain.libvirt_uuid))
    yield "sources", body.sources or (), _once("source", lambda source: f"{source.application} {source.source}")
    yield "windows", body.windows, lambda window: _possible(window, latest(timestamp(window.end_s)))


def _once(field: str, name_of: Callable[[Any], str]) -> Judge:
    seen: set[str] = set()

    def judge(item: Any) -> tuple[str, str] | None:
        name = name_of(item)
        if name in seen:
            return field, f"{shown(name)} is refused: it is listed twice"
        seen.add(name)
        return None

    return judge


def _possible(window: ReportedWindow, latest: datetime) -> tuple[str, str] | None:
    if window.histogram is NO_BUCKETS:
        return "buckets", "is required, or `packed` in its place"
    start, end = timestamp(window.start_s), timestamp(window.end_s)
    if end > latest:
        return "end", f"{shown(end)} is refused; allowed: at most {latest}, by the clocks of host and manager"
    if start > end:
        return "start", f"{shown(start)} is refused; allowed: at most the end, {end}"
    count = window.histogram.count
    if count > MAX_COUNT:
        return "buckets", f"{count} response times are refused; allowed: {MAX_COUNT} in all"
    return None


def _refused(error: FieldError, item: str) -> RefusedItem:
    return RefusedItem(field=_short(error.field), message=_short(error.message), id=item)


def _short(text: str) -> str:
    return text.replace("\0", " ")[:_MOST_TEXT]


def _id_of(item: Any) -> str:
    """A value by which an agent can identify an item; empty if it has none."""
    if not isinstance(item, dict):
        return ""
    values = (item[name] for name in ("id", "vm", "libvirt_uuid", "source", "application", "at") if name in item)
    return str(next(values, "")).replace("\0", " ")[:_MOST_ID]
