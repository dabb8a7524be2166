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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, islice, pairwise
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

_FORMAT, _COLUMNS = b"\x01", b"\x02"
_RAW = -zlib.MAX_WBITS
_LEVEL, _QUICK_LEVEL = 6, 1
_NUMBER = struct.Struct(">H")
_ID_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = timedelta(microseconds=1)
MINUTE_US = 60_000_000

Item = TypeVar("Item")


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


@dataclass(frozen=True, slots=True)
class TickColumns:
    """A tick without objects for its VMs: its ``place`` in the row, all of it but its VMs, and columns of these.

    ``vms`` has for each field that any VM of the row has the values of this tick's VMs, None also where one lacks it.
    """

    at_us: int
    place: int
    fields: Mapping[str, Any]
    vms: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Ticks:
    """Format 2, read."""

    at_us: Sequence[int]
    claimed_us: Sequence[int | None]
    ticks: Sequence[Mapping[str, Any]]
    counts: Sequence[int | None]
    vms: Mapping[str, tuple[Sequence[int] | None, Sequence[Any]]]

    @property
    def total(self) -> int:
        """How many VMs all ticks have together."""
        return sum(count or 0 for count in self.counts)


_FIELDS = tuple(field.name for field in fields(PackedDecision))
_ID = _FIELDS.index("record_id")
_TIMES = "at_us", "claimed_us"
_PARTS = *_TIMES, "ticks", "counts", "vms"
_AT, _CLAIMED = '{"at_us":[', ',"claimed_us":['


def microseconds(moment: datetime) -> int:
    """A moment in whole microseconds since the epoch."""
    return (moment - _EPOCH) // _STEP


def moment_of(time_us: int) -> datetime:
    """The inverse of ``microseconds``."""
    return _EPOCH + time_us * _STEP


def within_minutes(items: Iterable[Item], at_us: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in the order of time in groups, each within a minute from its first item: as few as there can be."""
    group: list[Item] = []
    for item in items:
        if group and at_us(item) - at_us(group[0]) >= MINUTE_US:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def pack_ticks(ticks: Sequence[PackedTick]) -> bytes:
    """Ticks as bytes; ``unpack_ticks`` reads them as JSON that means the same."""
    times = [tick.at_us for tick in ticks], [tick.claimed_us for tick in ticks]
    bodies = [from_json(tick.body) for tick in ticks]
    if all(map(_has_vms, bodies)):
        return _written(_by_column(*times, bodies))
    head = _json(dict(zip(_TIMES, times, strict=True)))
    return _FORMAT + _compressed("\n".join([head, *(tick.body for tick in ticks)]).encode())


def pack_tick_fields(at_us: Sequence[int], ticks: Sequence[Mapping[str, Any]]) -> bytes:
    """Ticks given by the fields that their JSON has, in a quarter of the time that the fewest bytes take.

    Each is an object whose ``vms`` are a list of such. ``at_us`` are their times, also by the host's clock.
    """
    return _written(_by_column(at_us, [None] * len(ticks), ticks), _QUICK_LEVEL)


def tick_text(packed: bytes, most: int) -> tuple[list[int], str]:
    """``at_us`` of ticks that another program packed, in format 2, and their JSON, at most ``most`` bytes of it.

    Raises ValueError for anything else.
    """
    if packed[:1] != _COLUMNS:
        raise ValueError(f"format {packed[:1].hex() or 'none'} of packed ticks is not taken; allowed: {_COLUMNS.hex()}")
    text = _decompressed(packed[1:], max(most, 1))  # 0 would be any length
    return [at_us for at_us, _ in _times(_COLUMNS, text)], text


def unpack_ticks(packed: bytes) -> list[PackedTick]:
    """The ticks that were packed, in the same order. Raises ValueError for bytes that ``pack_ticks`` does not make."""
    form, text = _text(packed)
    if form == _FORMAT:
        first, *bodies = text.split("\n")
        times = _columns(first, _TIMES)
    else:
        read = _read(text)
        times, bodies = [[*read.at_us], [*read.claimed_us]], _whole(read)
    return [PackedTick(*values) for values in zip(*times, bodies, strict=True)]


def joined_ticks(packs: Sequence[bytes]) -> tuple[list[tuple[int, int | None]], bytes]:
    """The ticks of packed rows as one, in the order of time: ``tick_times`` of it, and itself.

    Raises ValueError as ``unpack_ticks``.
    """
    read = [_read(text) for form, text in map(_text, packs) if form == _COLUMNS]
    read.sort(key=lambda ticks: [*ticks.at_us[:1]])
    at_us = [time_us for ticks in read for time_us in ticks.at_us]
    if len(read) == len(packs) and all(earlier < later for earlier, later in pairwise(at_us)):
        joined = _one_after_the_other(read)
        return list(zip(joined.at_us, joined.claimed_us, strict=True)), _written(joined)
    ticks = sorted((tick for pack in packs for tick in unpack_ticks(pack)), key=lambda tick: tick.at_us)
    return [(tick.at_us, tick.claimed_us) for tick in ticks], pack_ticks(ticks)


def ticks_within(packed: bytes, since_us: int, until_us: int) -> list[TickColumns]:
    """The ticks from ``since_us`` until before ``until_us``, in the order in which they were packed.

    Raises ValueError as ``unpack_ticks``, and for ticks that are no JSON objects with VMs.
    """
    form, text = _text(packed)
    wanted = [place for place, (at_us, _) in enumerate(_times(form, text)) if since_us <= at_us < until_us]
    if not wanted:
        return []
    read = _read(text) if form == _COLUMNS else _older_ticks(text)
    total = read.total
    columns = {name: _filled(places, values, total) for name, (places, values) in read.vms.items()}
    ends = list(accumulate((count or 0 for count in read.counts), initial=0))
    return [
        TickColumns(
            read.at_us[place],
            place,
            read.ticks[place],
            {name: values[ends[place] : ends[place + 1]] for name, values in columns.items()},
        )
        for place in wanted
    ]


def tick_times(packed: bytes) -> list[tuple[int, int | None]]:
    """``at_us`` and ``claimed_us`` of the ticks that were packed, in the same order. Raises ValueError as above."""
    return _times(*_text(packed))


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


def _times(form: bytes, text: str) -> list[tuple[int, int | None]]:
    """``tick_times`` of a text. They are written first, so that nothing else of it is read."""
    head = text.partition("\n")[0] if form == _FORMAT else _head(text)
    at_us, claimed_us = _columns(head, _TIMES)
    if len(at_us) != len(claimed_us):
        raise ValueError(f"not packed records: {head[:40]!r}")
    return list(zip(at_us, claimed_us, strict=True))


def _head(text: str) -> str:
    """As much of format 2 as has the times; all of it where they are not written first."""
    first = text.find("]")
    second = text.find("]", first + 1)
    is_first = text.startswith(_AT) and text.startswith(_CLAIMED, first + 1)
    return text[: second + 1] + "}" if is_first else text


def _by_column(at_us: Sequence[int], claimed_us: Sequence[int | None], bodies: Sequence[Mapping[str, Any]]) -> _Ticks:
    """Ticks that are objects with VMs, or without, see ``_has_vms``."""
    vms = [vm for body in bodies for vm in body.get("vms", ())]
    return _Ticks(
        at_us,
        claimed_us,
        [{name: value for name, value in body.items() if name != "vms"} for body in bodies],
        [len(body["vms"]) if "vms" in body else None for body in bodies],
        {name: _column(name, vms) for name in dict.fromkeys(chain.from_iterable(vms))},
    )


def _column(name: str, vms: Sequence[Mapping[str, Any]]) -> tuple[Sequence[int] | None, Sequence[Any]]:
    """Which of all VMs have a field (None: all of them), and its values."""
    values = [vm[name] for vm in vms if name in vm]
    return None if len(values) == len(vms) else [place for place, vm in enumerate(vms) if name in vm], values


def _older_ticks(text: str) -> _Ticks:
    """Format 1 as if it were format 2."""
    first, *lines = text.split("\n")
    bodies = [from_json(line) for line in lines]
    if not all(map(_has_vms, bodies)):
        raise ValueError(f"no ticks with VMs: {text[:40]!r}")
    at_us, claimed_us = _columns(first, _TIMES)
    return _by_column(at_us, claimed_us, bodies)


def _written(ticks: _Ticks, level: int = _LEVEL) -> bytes:
    """Format 2. The times come first, see ``_head``."""
    return _COLUMNS + _compressed(to_json({name: getattr(ticks, name) for name in _PARTS}), level)


def _read(text: str) -> _Ticks:
    """The inverse of ``_written``."""
    values: Any = from_json(text)
    try:
        lists = [values.get(name) for name in _PARTS[:-1]]
        lengths = {len(column) for column in lists}
        at_us, claimed_us, ticks, counts = lists
        vms = {name: (places, column) for name, (places, column) in values["vms"].items()}
        read = _Ticks(at_us, claimed_us, ticks, counts, vms)
        total = read.total
        whole = all(len(column) == (total if places is None else len(places)) for places, column in vms.values())
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not packed records: {error}") from error
    if len(lengths) != 1 or not whole:
        raise ValueError(f"not packed records: {text[:40]!r}")
    return read


def _one_after_the_other(parts: Sequence[_Ticks]) -> _Ticks:
    """Ticks as if they had been packed together: fields of VMs are in the order in which they first come."""
    names = dict.fromkeys(name for part in parts for name in part.vms)
    ends = list(accumulate((part.total for part in parts), initial=0))
    columns: dict[str, tuple[list[int] | None, list[Any]]] = {}
    for name in names:
        places: list[int] = []
        values: list[Any] = []
        for part, (first, end) in zip(parts, pairwise(ends), strict=True):
            some, column = part.vms.get(name, ([], []))
            places += range(first, end) if some is None else (first + place for place in some)
            values += column
        columns[name] = None if len(places) == ends[-1] else places, values
    return _Ticks(
        [time_us for part in parts for time_us in part.at_us],
        [time_us for part in parts for time_us in part.claimed_us],
        [tick for part in parts for tick in part.ticks],
        [count for part in parts for count in part.counts],
        columns,
    )


def _filled(places: Sequence[int] | None, values: Sequence[Any], total: int) -> Sequence[Any]:
    """The values of a field for all VMs, None for those without it. Raises ValueError for a place that is none."""
    if places is None:
        return values
    filled: list[Any] = [None] * total
    try:
        for place, value in zip(places, values, strict=True):
            filled[place] = value
    except (TypeError, IndexError) as error:
        raise ValueError(f"not packed records: {error}") from error
    return filled


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


def _whole(read: _Ticks) -> list[str]:
    """Ticks as JSON texts with their VMs."""
    try:
        vms: list[dict[str, Any]] = [{} for _ in range(read.total)]
        for name, (places, values) in read.vms.items():
            for place, value in zip(range(len(vms)) if places is None else places, values, strict=True):
                vms[place][name] = value
        rest = iter(vms)
        return [
            _json(tick if count is None else {**tick, "vms": [*islice(rest, count)]})
            for tick, count in zip(read.ticks, read.counts, strict=True)
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


def _compressed(text: bytes, level: int = _LEVEL) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
    return compressor.compress(text) + compressor.flush()


def _text(packed: bytes) -> tuple[bytes, str]:
    """The format, and the text of all that follows."""
    form = packed[:1]
    return form, _decompressed(packed[1:] if form == _COLUMNS else _body(packed))


def _body(packed: bytes) -> bytes:
    if packed[:1] != _FORMAT:
        raise ValueError(f"format {packed[:1].hex()} of packed records is unknown")
    return packed[1:]


def _decompressed(body: bytes, most: int = 0) -> str:
    """Text of at most so many bytes; 0: of any length."""
    decompressor = zlib.decompressobj(_RAW)
    try:
        text = decompressor.decompress(body, most)
    except zlib.error as error:
        raise ValueError(f"not packed records: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not packed records: they are cut off, or go on")
    return text.decode()
