"""The newest windows of a host's applications as few bytes, as its row keeps what the last live report said.

bytes 0 to 1   the number of windows, big-endian
then           the row number of each window's application, 8 bytes
then           the windows, see ``manager.model.packed_windows``
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from manager.model.packed_windows import PackedWindow, pack_as_given, unpack_windows

_COUNT = struct.Struct(">H")


def pack_live(windows: Sequence[tuple[int, PackedWindow]]) -> bytes:
    """Windows with the row numbers of their applications, at most 65,535; ``unpack_live`` is the inverse."""
    numbers = struct.pack(f">{len(windows)}Q", *(number for number, _ in windows))
    return _COUNT.pack(len(windows)) + numbers + pack_as_given([window for _, window in windows])


def unpack_live(packed: bytes) -> list[tuple[int, PackedWindow]]:
    """The windows that were packed, in the same order. Raises ValueError for bytes that ``pack_live`` does not make."""
    try:
        (count,) = _COUNT.unpack_from(packed)
        places = struct.Struct(f">{count}Q")
        numbers = places.unpack_from(packed, _COUNT.size)
    except struct.error as error:
        raise ValueError(f"not live windows: {error}") from error
    return list(zip(numbers, unpack_windows(packed[_COUNT.size + places.size :]), strict=True))
