"""What of a report is accepted: one item that cannot be is named and left out, all others are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from manager.api.validation import FieldError, field_error, refusal, shown
from manager.model.fields import json_of
from manager.protocol.assignment import RefusedItem
from manager.protocol.report import ReportIn, WindowBody
from manager.protocol.sparing import read_sparing
from manager.store.windows import MAX_COUNT

LISTS = ("vms", "sources", "domains", "windows", "ticks", "decisions", "events")
PARTS = ("capabilities", "tick", "findings")
_MOST_TEXT = 300
_MOST_ID = 100


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is to be stored of a report, and what is not, with the reasons; ``future`` windows ended too late."""

    body: ReportIn
    refused: list[RefusedItem]
    future: int = 0


def read_report(host: str, content: bytes, latest: Callable[[datetime], datetime]) -> Accepted:
    """A report of an agent of ``host``. ``latest`` answers until when a window may end that is said to end then.

    Items of another host, listed twice, impossible, or out of range are left out, as are capabilities, a tick or
    findings that cannot be accepted. Raises BadRequest for what is no JSON, InvalidFields for what is no report.
    """
    try:
        read = read_sparing(ReportIn, content, LISTS, PARTS, strict=True)
    except ValidationError as error:
        raise refusal(ReportIn, error) from None
    refused: list[RefusedItem] = []
    for spoilt in read.spoilt:
        name, index = spoilt.place
        found = field_error(ReportIn, spoilt.error)
        refused.append(_refused(found, _id_of(spoilt.value) if index is not None else name))
    future = sum(window.end > latest(window.end) for window in read.model.windows)
    kept: dict[str, list[Any]] = {}
    for name, items, judge in _judges(host, read.model, latest):
        bad = {index: text for index, one in enumerate(items) if (text := judge(one))}
        for index, (field, message) in bad.items():
            place = f"{name}[{read.number(name, index)}].{field}"
            refused.append(_refused(FieldError(place, message), _id_of(from_json(json_of(items[index])))))
        if bad:
            kept[name] = [one for index, one in enumerate(items) if index not in bad]
    return Accepted(read.model.model_copy(update=kept) if kept else read.model, refused, future)


Judge = Callable[[Any], tuple[str, str] | None]
"""Tells of an item which field is refused and why, None: it is accepted. Asked in the order of the list."""


def _judges(
    host: str, body: ReportIn, latest: Callable[[datetime], datetime]
) -> Iterator[tuple[str, Sequence[Any], Judge]]:
    def of_this_host(one: Any) -> tuple[str, str] | None:
        refused = f"{shown(one.host)} is refused; allowed: {host}, which is reporting"
        return None if one.host == host else ("host", refused)

    yield "decisions", body.decisions, of_this_host
    yield "events", body.events, of_this_host
    yield "vms", body.vms or (), _once("vm", lambda one: str(one.vm))
    yield "domains", body.domains or (), _once("libvirt_uuid", lambda one: str(one.libvirt_uuid))
    yield "sources", body.sources or (), _once("source", lambda one: f"{one.application} {one.source}")
    yield "windows", body.windows, lambda one: _possible(one, latest(one.end))


def _once(field: str, name_of: Callable[[Any], str]) -> Judge:
    seen: set[str] = set()

    def judge(one: Any) -> tuple[str, str] | None:
        name = name_of(one)
        if name in seen:
            return field, f"{shown(name)} is refused: it is listed twice"
        seen.add(name)
        return None

    return judge


def _possible(window: WindowBody, latest: datetime) -> tuple[str, str] | None:
    if window.end > latest:
        return "end", f"{shown(window.end)} is refused; allowed: at most {latest}, by the clocks of host and manager"
    if window.start > window.end:
        return "start", f"{shown(window.start)} is refused; allowed: at most the end, {window.end}"
    count = sum(window.buckets.values())
    if count > MAX_COUNT:
        return "buckets", f"{count} response times are refused; allowed: {MAX_COUNT} in all"
    return None


def _refused(error: FieldError, item: str) -> RefusedItem:
    return RefusedItem(field=_short(error.field), message=_short(error.message), id=item)


def _short(text: str) -> str:
    return text.replace("\0", " ")[:_MOST_TEXT]


def _id_of(item: Any) -> str:
    """What an agent may find an item by, as far as it has anything like it."""
    if not isinstance(item, dict):
        return ""
    found = (item[name] for name in ("id", "vm", "libvirt_uuid", "source", "application", "at") if name in item)
    return str(next(found, "")).replace("\0", " ")[:_MOST_ID]
