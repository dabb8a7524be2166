"""Histograms as few bytes, as the database keeps them.

    byte 0       the format: 1 plain, 2 compressed (raw DEFLATE, RFC 1951), whichever is shorter
    bytes 1, 2   the first bucket, big-endian
    bytes 3, 4   the number of buckets
    then         the distances from each bucket to the next, and the count of each bucket, as variable-length integers:
                 seven bits a byte, the lowest first, bit 7 set in all but the last byte

A histogram without buckets is no bytes. Distances and counts come one after the other, not in pairs: that compresses
better, and where all fit into one byte each, which is the rule, they are read without a loop. Formats are never reused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Any

from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, Histogram

_PLAIN, _COMPRESSED = 1, 2
_HEAD = struct.Struct(">BHH")
_RAW = -zlib.MAX_WBITS
_MOST_BUCKETS = LAST_BUCKET - FIRST_BUCKET + 1
_LONGEST = 9  # bytes of an integer: sums of counts have at most 63 bits
_MOST_BODY = 2 * _MOST_BUCKETS * _LONGEST
MOST_BYTES = _HEAD.size + _MOST_BODY
"""No packed histogram is longer."""
_LEVEL = 6
_SMALL_BYTES = 16  # what DEFLATE cannot make shorter
_WINDOW, _MEMORY = -9, 4  # of DEFLATE: so short a text needs no more, and clearing that takes most of the time


def pack(histogram: Histogram) -> bytes:
    """A histogram as bytes; ``unpack`` is the inverse. Raises ValueError for counts below 0 or from 2^63 on."""
    return _squeezed(histogram.packed if isinstance(histogram, UnreadHistogram) else pack_plain(histogram))


def as_packed(histogram: Histogram) -> UnreadHistogram:
    """The same histogram with the bytes that ``pack`` makes, which are not read again. Raises ValueError like that."""
    if isinstance(histogram, UnreadHistogram):
        squeezed = pack(histogram)
        return histogram if squeezed == histogram.packed else UnreadHistogram(squeezed)
    if not histogram.buckets:
        return UnreadHistogram(pack(histogram))
    first, distances, counts = _parts_of(histogram.buckets)
    made = UnreadHistogram.__new__(UnreadHistogram)
    _hold(made, _squeezed(from_parts(first, distances, counts)), first, distances, counts)
    return made


def _squeezed(plain: bytes) -> bytes:
    if len(plain) <= _HEAD.size + _SMALL_BYTES or plain[0] == _COMPRESSED:
        return plain
    _, first, length = _HEAD.unpack_from(plain)
    squeezed = _HEAD.pack(_COMPRESSED, first, length) + _compressed(plain[_HEAD.size :])
    return squeezed if len(squeezed) < len(plain) else plain


def pack_plain(histogram: Histogram) -> bytes:
    """A histogram in the plain format, for what is compressed together with others. Raises ValueError like ``pack``."""
    buckets = histogram.buckets
    if not buckets:
        return b""
    return from_parts(*_parts_of(buckets))


def _parts_of(buckets: Mapping[int, int]) -> tuple[int, list[int], list[int]]:
    numbers = sorted(buckets)
    return numbers[0], list(map(sub, numbers[1:], numbers)), list(map(buckets.__getitem__, numbers))


def unpack(packed: bytes) -> Histogram:
    """The histogram that was packed. Raises ValueError for bytes that ``pack`` does not make."""
    return Histogram(UnreadHistogram(packed).buckets)


class UnreadHistogram(Histogram):
    """A histogram as the bytes that ``pack`` makes.

    Its buckets are made when they are asked for; percentile and sum need none. So many of them take little room.
    """

    __slots__ = ("_count", "_counts", "_distances", "_first", "_percentile_us", "packed")

    packed: bytes
    _count: int
    _percentile_us: tuple[float, float | None] | None
    _first: int
    _distances: Sequence[int]
    _counts: Sequence[int]

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError for bytes that ``pack`` does not make."""
        _hold(self, packed, *(_checked(packed) if packed else (0, b"", b"")))

    @property
    def buckets(self) -> Mapping[int, int]:
        """Counts per bucket number."""
        return dict(self.items())

    @property
    def count(self) -> int:
        """Number of samples."""
        return self._count

    @property
    def span(self) -> tuple[int, int]:
        """The lowest and the highest bucket."""
        return self._first, self._first + sum(self._distances)

    def items(self) -> Iterable[tuple[int, int]]:
        """Each bucket number with its count, the lowest first."""
        return zip(accumulate(self._distances, initial=self._first), self._counts, strict=False)

    def falling(self) -> Iterable[tuple[int, int]]:
        """Each bucket number with its count, the highest first."""
        last = self._first + sum(self._distances)
        return zip(accumulate(reversed(self._distances), sub, initial=last), reversed(self._counts), strict=False)

    def __eq__(self, other: object) -> bool:
        return self.buckets == other.buckets if isinstance(other, Histogram) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.packed)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadHistogram, (self.packed,)


def _hold(made: UnreadHistogram, packed: bytes, first: int, distances: Sequence[int], counts: Sequence[int]) -> None:
    write = object.__setattr__
    write(made, "packed", packed)
    write(made, "_count", sum(counts))
    write(made, "_percentile_us", None)
    write(made, "_first", first)
    write(made, "_distances", distances)
    write(made, "_counts", counts)


def _checked(packed: bytes) -> tuple[int, Sequence[int], Sequence[int]]:
    """``parts`` of a histogram, whose buckets' numbers are looked at, too."""
    first, distances, counts = parts(packed)
    last = first + sum(distances)
    if not FIRST_BUCKET <= first <= last <= LAST_BUCKET or 0 in distances:
        raise ValueError(f"not a packed histogram: buckets {first} to {last}")
    return first, distances, counts


def parts(packed: bytes) -> tuple[int, Sequence[int], Sequence[int]]:
    """The first bucket of a histogram that has any, the distance from each to the next, and the count of each.

    Raises ValueError for bytes that ``pack`` does not make, but for the buckets' numbers, which are not looked at.
    """
    try:
        form, first, length = _HEAD.unpack_from(packed)
        body = packed[_HEAD.size :]
        if form == _COMPRESSED:
            body = _decompressed(body)
        elif form != _PLAIN:
            raise ValueError(f"format {form} of a histogram is unknown")
    except (struct.error, zlib.error) as error:
        raise ValueError(f"not a packed histogram: {error}") from error
    values = _read(body, 2 * length - 1)
    return first, values[: length - 1], values[length - 1 :]


def from_parts(first: int, distances: Sequence[int], counts: Sequence[int]) -> bytes:
    """The inverse of ``parts``, in the plain format. Raises ValueError like ``pack``."""
    return _HEAD.pack(_PLAIN, first, len(counts)) + write_integers(distances) + write_integers(counts)


def _compressed(plain: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    return compressor.compress(plain) + compressor.flush()


def _decompressed(body: bytes) -> bytes:
    decompressor = zlib.decompressobj(_RAW)
    plain = decompressor.decompress(body, _MOST_BODY)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not a packed histogram: it is cut off, or goes on")
    return plain


def write_integers(values: Sequence[int]) -> bytes:
    """Integers of variable length. Raises ValueError for one below 0 or from 2^63 on."""
    least, most = min(values, default=0), max(values, default=0)
    if least < 0 or most >= 1 << 7 * _LONGEST:
        raise ValueError(f"counts from {least} to {most} cannot be packed")
    if most < 0x80:
        return bytes(values)
    written = bytearray()
    for value in values:
        rest = value
        while rest >= 0x80:
            written.append(rest & 0x7F | 0x80)
            rest >>= 7
        written.append(rest)
    return bytes(written)


def _read(body: bytes, length: int) -> Sequence[int]:
    """So many integers, which must be all that there is: the bytes themselves where each has one."""
    values: Sequence[int] = body if len(body) == length else list(read_integers(body))
    if length < 1 or len(values) != length or (len(body) == length and max(body) >= 0x80):
        raise ValueError(f"not a packed histogram: {len(values)} numbers in place of {length}")
    return values


def read_integers(body: bytes) -> Iterator[int]:
    """The inverse of ``write_integers``. Raises ValueError for bytes that it does not make."""
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            yield value
            value = shift = 0
            continue
        shift += 7
        if shift >= 7 * _LONGEST:
            raise ValueError("not a packed histogram: a number is too long")
    if shift:
        raise ValueError("not a packed histogram: it is cut off")
