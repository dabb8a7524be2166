"""Windows of response times of a minute as few bytes, as the database keeps older ones: many in one row.

    byte 0         the format: 1 or 2
    bytes 1 to 4   the length of what follows, big-endian
    then           raw DEFLATE (RFC 1951) of JSON: a list of values for each field, and the lengths of the histograms
    then           the histograms, see ``manager.model.packed_histogram``: in format 1 each as it was given, in format 2
                   all of them plain, in one raw DEFLATE

Times are whole microseconds: slots since the epoch (format 2: since the first one, which is ``base_us``), begin and end
since that of the slot. Formats are never reused; only format 2 is written.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from manager.model.packed_histogram import expanded

_HEAD = struct.Struct(">BI")
_SINGLE, _TOGETHER = 1, 2
_LEVEL = 9
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
    """Windows as bytes; ``unpack_windows`` reads them with plain histograms. Raises ValueError for other histograms."""
    histograms = [expanded(window.histogram) for window in windows]
    base_us = min((window.slot_us for window in windows), default=0)
    columns = {
        "slot_us": [window.slot_us - base_us for window in windows],
        "origin": [window.origin for window in windows],
        "start_us": [window.start_us - window.slot_us for window in windows],
        "end_us": [window.end_us - window.slot_us for window in windows],
        "requests": [window.requests for window in windows],
        "ready": [window.ready for window in windows],
        "length": [len(histogram) for histogram in histograms],
        "base_us": base_us,
    }
    text = _deflated(json.dumps(columns, separators=(",", ":")).encode(), zlib.Z_DEFAULT_STRATEGY)
    # Small counts repeat by chance alone: matches of more than one byte take more room than they save.
    return _HEAD.pack(_TOGETHER, len(text)) + text + _deflated(b"".join(histograms), zlib.Z_RLE)


def unpack_windows(packed: bytes) -> list[PackedWindow]:
    """The windows that were packed, in the same order.

    Raises ValueError for bytes that ``pack_windows`` does not make.
    """
    try:
        form, length = _HEAD.unpack_from(packed)
        if form not in {_SINGLE, _TOGETHER}:
            raise ValueError(f"format {form} of packed windows is unknown")
        rest = packed[_HEAD.size + length :]
        base_us, columns = _columns(zlib.decompress(packed[_HEAD.size : _HEAD.size + length], _RAW))
        *values, lengths = columns
        if form == _TOGETHER:
            rest = _inflated(rest)
        bounds = pairwise(accumulate(lengths, initial=0))
        histograms = [rest[first:last] for first, last in bounds]
        if sum(lengths) != len(rest):
            raise ValueError("not packed windows: they are cut off, or go on")
        slots = zip(*values, histograms, strict=True)
        return [
            PackedWindow(
                at_us := base_us + slot_us, origin, at_us + start_us, at_us + end_us, requests, ready, histogram
            )
            for slot_us, origin, start_us, end_us, requests, ready, histogram in slots
        ]
    except (struct.error, zlib.error, TypeError) as error:
        raise ValueError(f"not packed windows: {error}") from error


def _deflated(plain: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, strategy)
    return compressor.compress(plain) + compressor.flush()


def _inflated(body: bytes) -> bytes:
    decompressor = zlib.decompressobj(_RAW)
    plain = decompressor.decompress(body)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not packed windows: they are cut off, or go on")
    return plain


def _columns(text: bytes) -> tuple[int, list[list[Any]]]:
    """Since when slots are counted, and the values of each field."""
    values = json.loads(text)
    lists = [values[name] for name in _FIELDS if name in values] if isinstance(values, dict) else []
    if len(lists) != len(_FIELDS):
        raise ValueError(f"not packed windows: {text[:40]!r}")
    return values.get("base_us", 0), lists
