"""Windows of response times as few bytes, as the database keeps older ones: many in one row.

    byte 0         the format: 1, 2 or 3
    bytes 1 to 4   the length of what follows, big-endian
    then           raw DEFLATE (RFC 1951) of JSON: a list of values for each field, and the lengths of the histograms
    then           the histograms, see ``manager.model.packed_histogram``: in format 1 each as it was given, in format 2
                   all of them plain, in one raw DEFLATE; in format 3 three raw DEFLATEs, each after its length:
        heads      of each histogram the first bucket and the number of buckets, two bytes each, big-endian
        pairs      a byte for each bucket: its distance from the one before (0: it is the first) times 16, and its count
        rest       numbers of 15 and more, for which 15 stands in the pair: integers of variable length, of each
                   histogram first distances and then counts

Distance and count depend on each other: together they compress to a seventh less than one after the other.

Times are whole microseconds: slots since the epoch (formats 2 and 3: since the first one, which is ``base_us``), begin
and end since that of the slot. Formats are never reused. Format 3, in which no length is needed, is written for what is
kept; format 1 for what the next report replaces, because it takes a quarter of the time.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from manager.model.packed_histogram import from_parts, parts, read_integers, write_integers

_HEAD = struct.Struct(">BI")
_SINGLE, _TOGETHER, _PAIRED = 1, 2, 3
_LENGTH = struct.Struct(">I")
_BUCKETS = struct.Struct(">HH")
_NO_BUCKETS = _BUCKETS.pack(0, 0)
_ESCAPE = 0xF
"""In half a pair: the number follows in the rest."""
_UPPER, _LOWER = bytes(pair >> 4 for pair in range(256)), bytes(pair & _ESCAPE for pair in range(256))
"""The halves of each pair, for ``bytes.translate``."""
_FITTING, _ESCAPED = bytes(range(_ESCAPE)), bytes(min(value, _ESCAPE) for value in range(256))
"""What fits into half a pair, and half a pair for each byte, for ``bytes.translate``."""
_LEVEL = 9
_RAW = -zlib.MAX_WBITS
_NOT_WHOLE = "not packed windows: they are cut off, or go on"
_FIELDS = "slot_us", "origin", "start_us", "end_us", "requests", "ready", "length"


class PackedWindow(NamedTuple):
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
    base_us = min((window.slot_us for window in windows), default=0)
    text = _deflated(_described(windows, base_us, []), zlib.Z_DEFAULT_STRATEGY)
    heads, pairs, rest = _paired(window.histogram for window in windows)
    # Small counts repeat by chance alone: matches take more room than they save.
    streams = (
        _deflated(heads, zlib.Z_DEFAULT_STRATEGY),
        *(_deflated(plain, zlib.Z_HUFFMAN_ONLY) for plain in (pairs, rest)),
    )
    return b"".join((_HEAD.pack(_PAIRED, len(text)), text, *(_LENGTH.pack(len(body)) + body for body in streams)))


def pack_as_given(windows: Sequence[PackedWindow]) -> bytes:
    """The same in format 1: ``unpack_windows`` reads them with the histograms as they are here, of either format."""
    text = _described(windows, 0, [len(window.histogram) for window in windows])
    text = zlib.compress(text, zlib.Z_BEST_SPEED, _RAW)
    return b"".join((_HEAD.pack(_SINGLE, len(text)), text, *(window.histogram for window in windows)))


def unpack_windows(packed: bytes) -> list[PackedWindow]:
    """The windows that were packed, in the same order. Raises ValueError for bytes that are no packed windows."""
    try:
        form, length = _HEAD.unpack_from(packed)
        if form not in {_SINGLE, _TOGETHER, _PAIRED}:
            raise ValueError(f"format {form} of packed windows is unknown")
        rest = packed[_HEAD.size + length :]
        base_us, columns = _columns(zlib.decompress(packed[_HEAD.size : _HEAD.size + length], _RAW))
        *values, lengths = columns
        histograms = (
            _unpaired(rest) if form == _PAIRED else _divided(rest if form == _SINGLE else _inflated(rest), lengths)
        )
        slots = zip(*values, histograms, strict=True)
        return [
            PackedWindow(
                at_us := base_us + slot_us, origin, at_us + start_us, at_us + end_us, requests, ready, histogram
            )
            for slot_us, origin, start_us, end_us, requests, ready, histogram in slots
        ]
    except (struct.error, zlib.error, TypeError) as error:
        raise ValueError(f"not packed windows: {error}") from error


def _described(windows: Sequence[PackedWindow], base_us: int, lengths: Sequence[int]) -> bytes:
    """All of windows but their histograms, which have these lengths, as JSON."""
    columns = {
        "slot_us": [window.slot_us - base_us for window in windows],
        "origin": [window.origin for window in windows],
        "start_us": [window.start_us - window.slot_us for window in windows],
        "end_us": [window.end_us - window.slot_us for window in windows],
        "requests": [window.requests for window in windows],
        "ready": [window.ready for window in windows],
        "length": lengths,
        "base_us": base_us,
    }
    return json.dumps(columns, separators=(",", ":")).encode()


def _divided(plain: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Histograms one after the other, as in formats 1 and 2."""
    if sum(lengths) != len(plain):
        raise ValueError(_NOT_WHOLE)
    return [plain[first:last] for first, last in pairwise(accumulate(lengths, initial=0))]


def _paired(histograms: Iterable[bytes]) -> tuple[bytes, bytes, bytes]:
    """Heads, pairs and rest of format 3."""
    heads, pairs = bytearray(), bytearray()
    rest: list[int] = []
    for histogram in histograms:
        if not histogram:
            heads += _NO_BUCKETS
            continue
        first, distances, counts = parts(histogram)
        heads += _BUCKETS.pack(first, len(counts))
        # The first bucket has no distance: its half stays 0.
        upper, lower = _half(distances, rest), _half(counts, rest)
        pairs += (upper << 4 | lower).to_bytes(len(counts), "big")
    return bytes(heads), bytes(pairs), write_integers(rest)


def _half(values: Sequence[int], rest: list[int]) -> int:
    """A half of each pair, in the lower half of each byte; what does not fit goes to ``rest``."""
    if isinstance(values, bytes):  # nearly always, and without a loop
        rest += values.translate(None, _FITTING)
        return int.from_bytes(values.translate(_ESCAPED), "big")
    rest += [value for value in values if value >= _ESCAPE]
    return int.from_bytes(bytes(min(value, _ESCAPE) for value in values), "big")


def _unpaired(body: bytes) -> list[bytes]:
    """The plain histograms of format 3."""
    streams = []
    for _ in range(3):
        (length,) = _LENGTH.unpack_from(body)
        streams.append(_inflated(body[_LENGTH.size : _LENGTH.size + length]))
        body = body[_LENGTH.size + length :]
    heads, pairs, rest = streams[0], streams[1], read_integers(streams[2])
    histograms: list[bytes] = []
    place = 0
    for first, buckets in _BUCKETS.iter_unpack(heads):
        halves = pairs[place : place + buckets]
        place += buckets
        distances, counts = (_whole(halves.translate(table), rest) for table in (_UPPER, _LOWER))
        if len(counts) != buckets or any(distances[:1]):
            raise ValueError(_NOT_WHOLE)
        histograms.append(from_parts(first, distances[1:], counts) if buckets else b"")
    if body or place != len(pairs) or any(True for _ in rest):
        raise ValueError(_NOT_WHOLE)
    return histograms


def _whole(half: bytes, rest: Iterator[int]) -> Sequence[int]:
    """The inverse of ``_half``."""
    if _ESCAPE not in half:
        return half
    return [value if value < _ESCAPE else next(rest, -1) for value in half]


def _deflated(plain: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, strategy)
    return compressor.compress(plain) + compressor.flush()


def _inflated(body: bytes) -> bytes:
    decompressor = zlib.decompressobj(_RAW)
    plain = decompressor.decompress(body)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError(_NOT_WHOLE)
    return plain


def _columns(text: bytes) -> tuple[int, list[list[Any]]]:
    """Since when slots are counted, and the values of each field."""
    values = json.loads(text)
    lists = [values[name] for name in _FIELDS if name in values] if isinstance(values, dict) else []
    if len(lists) != len(_FIELDS):
        raise ValueError(f"not packed windows: {text[:40]!r}")
    return values.get("base_us", 0), lists
