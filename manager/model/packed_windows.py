"""Windows of response times of a minute as few bytes, as the database keeps older ones: many in one row.

    byte 0         the format: 1
    bytes 1 to 4   the length of what follows, big-endian
    then           raw DEFLATE (RFC 1951) of JSON: a list of values for each field, and the lengths of the histograms
    then           the histograms, see ``manager.model.packed_histogram``

Times are whole microseconds: slots since the epoch, begin and end since that of the slot. Formats are never reused.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

_HEAD = struct.Struct(">BI")
_FORMAT = 1
_LEVEL = 6
_RAW = -zlib.MAX_WBITS
_FIELDS = "slot_us", "origin", "start_us", "end_us", "requests", "ready", "length"


@dataclass(frozen=True, slots=True)
class PackedWindow:
    """What an origin knows of a slot. ``ready``: the fields of ``Ready``, or None; ``histogram``: packed."""

    slot_us: int
    origin: str
    start_us: int
    end_us: int
    requests: float | None
    ready: dict[str, float] | None
    histogram: bytes


def pack_windows(windows: Sequence[PackedWindow]) -> bytes:
    """Windows as bytes; ``unpack_windows`` is the inverse."""
    columns = {
        "slot_us": [window.slot_us for window in windows],
        "origin": [window.origin for window in windows],
        "start_us": [window.start_us - window.slot_us for window in windows],
        "end_us": [window.end_us - window.slot_us for window in windows],
        "requests": [window.requests for window in windows],
        "ready": [window.ready for window in windows],
        "length": [len(window.histogram) for window in windows],
    }
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    text = compressor.compress(json.dumps(columns, separators=(",", ":")).encode()) + compressor.flush()
    return b"".join([_HEAD.pack(_FORMAT, len(text)), text, *(window.histogram for window in windows)])


def unpack_windows(packed: bytes) -> list[PackedWindow]:
    """The windows that were packed, in the same order.

    Raises ValueError for bytes that ``pack_windows`` does not make.
    """
    try:
        form, length = _HEAD.unpack_from(packed)
        if form != _FORMAT:
            raise ValueError(f"format {form} of packed windows is unknown")
        rest = packed[_HEAD.size + length :]
        columns = _columns(zlib.decompress(packed[_HEAD.size : _HEAD.size + length], _RAW))
        *values, lengths = columns
        bounds = pairwise(accumulate(lengths, initial=0))
        histograms = [rest[first:last] for first, last in bounds]
        if sum(lengths) != len(rest):
            raise ValueError("not packed windows: they are cut off, or go on")
        return [
            PackedWindow(slot_us, origin, slot_us + start_us, slot_us + end_us, requests, ready, histogram)
            for slot_us, origin, start_us, end_us, requests, ready, histogram in zip(*values, histograms, strict=True)
        ]
    except (struct.error, zlib.error, TypeError) as error:
        raise ValueError(f"not packed windows: {error}") from error


def _columns(text: bytes) -> list[list[Any]]:
    values = json.loads(text)
    lists = [values[name] for name in _FIELDS if name in values] if isinstance(values, dict) else []
    if len(lists) != len(_FIELDS):
        raise ValueError(f"not packed windows: {text[:40]!r}")
    return lists
