"""Ticks and decisions of a host as few bytes, as the database keeps them: many in one row.

    byte 0                the format: 1
    then, for decisions   their number, two bytes, big-endian, and the 16 bytes of each one's UUID, which no compression
                          makes shorter; or no bytes of UUIDs and the number 0, where a ``record_id`` is no usual UUID
    then                  raw DEFLATE (RFC 1951) of UTF-8:
        for ticks         a line of JSON with their times, and each tick's JSON as a line
        for decisions     JSON: a list of values for each field

Times are whole microseconds since the epoch. Formats are never reused.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

_FORMAT = b"\x01"
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


def microseconds(moment: datetime) -> int:
    """A moment in whole microseconds since the epoch."""
    return (moment - _EPOCH) // _STEP


def moment_of(time_us: int) -> datetime:
    """The inverse of ``microseconds``."""
    return _EPOCH + time_us * _STEP


def pack_ticks(ticks: Sequence[PackedTick]) -> bytes:
    """Ticks as bytes; ``unpack_ticks`` is the inverse."""
    times = {"at_us": [tick.at_us for tick in ticks], "claimed_us": [tick.claimed_us for tick in ticks]}
    return _FORMAT + _compressed("\n".join([_json(times), *(tick.body for tick in ticks)]))


def unpack_ticks(packed: bytes) -> list[PackedTick]:
    """The ticks that were packed, in the same order. Raises ValueError for bytes that ``pack_ticks`` does not make."""
    times, *bodies = _decompressed(_body(packed)).split("\n")
    columns = _columns(times, ("at_us", "claimed_us"))
    return [PackedTick(*values) for values in zip(*columns, bodies, strict=True)]


def pack_decisions(decisions: Sequence[PackedDecision]) -> bytes:
    """Decisions, at most 65,535, as bytes; ``unpack_decisions`` is the inverse."""
    columns = {name: [getattr(decision, name) for decision in decisions] for name in _FIELDS}
    ids = b""
    if decisions and all(map(_is_usual, columns["record_id"])):
        ids = bytes.fromhex("".join(columns.pop("record_id")).replace("-", ""))
    return _FORMAT + _NUMBER.pack(len(ids) // _ID_BYTES) + ids + _compressed(_json(columns))


def unpack_decisions(packed: bytes) -> list[PackedDecision]:
    """The decisions that were packed, in the same order.

    Raises ValueError for bytes that ``pack_decisions`` does not make.
    """
    body = _body(packed)
    if len(body) < _NUMBER.size:
        raise ValueError("not packed records: they are cut off")
    rest = _NUMBER.size + _ID_BYTES * _NUMBER.unpack_from(body)[0]
    text = _decompressed(body[rest:])
    if rest == _NUMBER.size:
        columns = _columns(text, _FIELDS)
    else:
        columns = _columns(text, [name for name in _FIELDS if name != "record_id"])
        ids = (body[place : place + _ID_BYTES] for place in range(_NUMBER.size, rest, _ID_BYTES))
        columns.insert(_FIELDS.index("record_id"), [str(uuid.UUID(bytes=number)) for number in ids])
    return [PackedDecision(*values) for values in zip(*columns, strict=True)]


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


def _compressed(text: str) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return compressor.compress(text.encode()) + compressor.flush()


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
