"""Ticks and decisions of a host as few bytes, as the database keeps them: many in one row.

    byte 0                the format: 1 or 2
    format 1:
    then, for decisions   their number, two bytes, big-endian, and the 16 bytes of each one's UUID, which no compression
                          makes shorter; or no bytes of UUIDs and the number 0, where a ``record_id`` is no usual UUID
    then                  raw DEFLATE (RFC 1951) of UTF-8:
        for ticks         a line of JSON with their times, and each tick's JSON as a line
        for decisions     JSON: a list of values for each field
    format 2:
    then                  raw DEFLATE of JSON:
        for ticks         lists of their times, of the ticks without VMs, and of how many VMs each has; and for each
                          field of a VM which of all VMs have it (null: all), and the list of its values
        for decisions     a list of values for each field; of their UUIDs the first one of each run in which the next is
                          greater by one, in hexadecimal, and how many there are

Times are whole microseconds since the epoch. Formats are never reused. Format 2 is written, of ticks where each is a
JSON object whose ``vms``, if any, is a list of objects, of decisions where each ``record_id`` is a usual UUID; else
format 1 is.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from pydantic_core import from_json, to_json

_FORMAT, _COLUMNS = b"\x01", b"\x02"
_RAW = -zlib.MAX_WBITS
_LEVEL = 6
_NUMBER = struct.Struct(">H")
_ID_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PackedTick:
    """A tick as JSON text in one line, and its time; ``claimed_us``: by the host's clock, None: the same."""

    at_us: int
    claimed_us: int | None
    body: str


@dataclass(frozen=True, slots=True)
class PackedDecision:
    """A decision of a host: the fields of ``DecisionRecord`` but the host; times as in ``PackedTick``."""

    at_us: int
    claimed_us: int | None
    record_id: str
    vm: str | None
    knob: str
    index: int
    before: str
    after: str
    reason: str
    policy: str
    mode: str
    outcome: str
    detail: str


_FIELDS = tuple(field.name for field in fields(PackedDecision))
_ID = _FIELDS.index("record_id")
_TIMES = "at_us", "claimed_us"


def microseconds(moment: datetime) -> int:
    """A moment in whole microseconds since the epoch."""
    return (moment - _EPOCH) // _STEP


def moment_of(time_us: int) -> datetime:
    """The inverse of ``microseconds``."""
    return _EPOCH + time_us * _STEP


def pack_ticks(ticks: Sequence[PackedTick]) -> bytes:
    """Ticks as bytes; ``unpack_ticks`` reads them as JSON that means the same."""
    times = {"at_us": [tick.at_us for tick in ticks], "claimed_us": [tick.claimed_us for tick in ticks]}
    bodies = [from_json(tick.body) for tick in ticks]
    if not all(map(_has_vms, bodies)):
        return _FORMAT + _compressed("\n".join([_json(times), *(tick.body for tick in ticks)]).encode())
    vms = [vm for body in bodies for vm in body.get("vms", ())]
    names = dict.fromkeys(name for vm in vms for name in vm)
    columns = {name: [place for place, vm in enumerate(vms) if name in vm] for name in names}
    parts = {
        **times,
        "ticks": [{name: value for name, value in body.items() if name != "vms"} for body in bodies],
        "counts": [len(body["vms"]) if "vms" in body else None for body in bodies],
        "vms": {
            name: [None if len(places) == len(vms) else places, [vms[place][name] for place in places]]
            for name, places in columns.items()
        },
    }
    return _COLUMNS + _compressed(to_json(parts))


def unpack_ticks(packed: bytes) -> list[PackedTick]:
    """The ticks that were packed, in the same order. Raises ValueError for bytes that ``pack_ticks`` does not make."""
    form, text = _text(packed)
    if form == _FORMAT:
        first, *bodies = text.split("\n")
        times = _columns(first, _TIMES)
    else:
        *times, ticks, counts = _columns(text, (*_TIMES, "ticks", "counts"))
        bodies = _whole(ticks, counts, json.loads(text).get("vms"))
    return [PackedTick(*values) for values in zip(*times, bodies, strict=True)]


def tick_times(packed: bytes) -> list[tuple[int, int | None]]:
    """``at_us`` and ``claimed_us`` of the ticks that were packed, in the same order. Raises ValueError as above."""
    form, text = _text(packed)
    at_us, claimed_us = _columns(text.partition("\n")[0] if form == _FORMAT else text, _TIMES)
    return list(zip(at_us, claimed_us, strict=True))


def pack_decisions(decisions: Sequence[PackedDecision]) -> bytes:
    """Decisions, at most 65,535, as bytes; ``unpack_decisions`` is the inverse."""
    columns: dict[str, list[Any]] = {name: [getattr(decision, name) for decision in decisions] for name in _FIELDS}
    if not all(map(_is_usual, columns["record_id"])):
        return _FORMAT + _NUMBER.pack(0) + _compressed(to_json(columns))
    runs: list[list[Any]] = []
    following = -1
    for number in (uuid.UUID(record_id).int for record_id in columns["record_id"]):
        if number != following:
            runs.append([f"{number:x}", 0])
        runs[-1][1] += 1
        following = number + 1
    return _COLUMNS + _compressed(to_json(columns | {"record_id": runs}))


def unpack_decisions(packed: bytes) -> list[PackedDecision]:
    """The decisions that were packed, in the same order.

    Raises ValueError for bytes that ``pack_decisions`` does not make.
    """
    if packed[:1] == _COLUMNS:
        columns = _columns(_text(packed)[1], _FIELDS)
        columns[_ID] = list(_counted(columns[_ID]))
    else:
        columns = _older_columns(packed)
    return [PackedDecision(*values) for values in zip(*columns, strict=True)]


def _older_columns(packed: bytes) -> list[list[Any]]:
    """Those of decisions in format 1."""
    body = _body(packed)
    if len(body) < _NUMBER.size:
        raise ValueError("not packed records: they are cut off")
    rest = _NUMBER.size + _ID_BYTES * _NUMBER.unpack_from(body)[0]
    text = _decompressed(body[rest:])
    if rest == _NUMBER.size:
        return _columns(text, _FIELDS)
    columns = _columns(text, [name for name in _FIELDS if name != "record_id"])
    ids = (body[place : place + _ID_BYTES] for place in range(_NUMBER.size, rest, _ID_BYTES))
    columns.insert(_ID, [str(uuid.UUID(bytes=number)) for number in ids])
    return columns


def _counted(runs: Sequence[Any]) -> Iterator[str]:
    """The UUIDs of runs, see format 2."""
    try:
        for first, count in runs:
            number = int(first, 16)
            yield from (str(uuid.UUID(int=number + place)) for place in range(count))
    except TypeError as error:
        raise ValueError(f"not packed records: {error}") from error


def _has_vms(body: object) -> bool:
    """Whether a tick is an object, and its VMs, if it has any, a list of such."""
    vms = body.get("vms", []) if isinstance(body, dict) else None
    return isinstance(vms, list) and all(isinstance(vm, dict) for vm in vms)


def _whole(ticks: Sequence[Any], counts: Sequence[Any], columns: object) -> list[str]:
    """Ticks as JSON texts with their VMs, see format 2."""
    try:
        vms: list[dict[str, Any]] = [{} for _ in range(sum(count or 0 for count in counts))]
        for name, (places, values) in dict(columns).items():  # type: ignore[call-overload]
            for place, value in zip(range(len(vms)) if places is None else places, values, strict=True):
                vms[place][name] = value
        rest = iter(vms)
        return [
            _json(tick if count is None else {**tick, "vms": [*islice(rest, count)]})
            for tick, count in zip(ticks, counts, strict=True)
        ]
    except (TypeError, IndexError) as error:
        raise ValueError(f"not packed records: {error}") from error


def _is_usual(record_id: str) -> bool:
    try:
        return str(uuid.UUID(record_id)) == record_id
    except ValueError:
        return False


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _columns(text: str, names: Sequence[str]) -> list[list[Any]]:
    values = json.loads(text)
    columns = [values.get(name) for name in names] if isinstance(values, dict) else []
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) != len(names):
        raise ValueError(f"not packed records: {text[:40]!r}")
    return lists


def _compressed(text: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return compressor.compress(text) + compressor.flush()


def _text(packed: bytes) -> tuple[bytes, str]:
    """The format, and the text of all that follows."""
    form = packed[:1]
    return form, _decompressed(packed[1:] if form == _COLUMNS else _body(packed))


def _body(packed: bytes) -> bytes:
    if packed[:1] != _FORMAT:
        raise ValueError(f"format {packed[:1].hex()} of packed records is unknown")
    return packed[1:]


def _decompressed(body: bytes) -> str:
    decompressor = zlib.decompressobj(_RAW)
    try:
        text = decompressor.decompress(body)
    except zlib.error as error:
        raise ValueError(f"not packed records: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not packed records: they are cut off, or go on")
    return text.decode()
