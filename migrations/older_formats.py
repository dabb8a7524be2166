"""Packed rows in formats that programs before read, for downgrades."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence

from manager.model.packed_windows import PackedWindow


def windows_together(windows: Sequence[PackedWindow]) -> bytes:
    """Windows with plain histograms in format 2 of ``manager.model.packed_windows``."""
    base_us = min((window.slot_us for window in windows), default=0)
    columns = {
        "slot_us": [window.slot_us - base_us for window in windows],
        "origin": [window.origin for window in windows],
        "start_us": [window.start_us - window.slot_us for window in windows],
        "end_us": [window.end_us - window.slot_us for window in windows],
        "requests": [window.requests for window in windows],
        "ready": [window.ready for window in windows],
        "length": [len(window.histogram) for window in windows],
        "base_us": base_us,
    }
    text = deflated(json.dumps(columns, separators=(",", ":")).encode())
    return struct.pack(">BI", 2, len(text)) + text + deflated(b"".join(window.histogram for window in windows))


def deflated(plain: bytes) -> bytes:
    """Raw DEFLATE (RFC 1951)."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(plain) + compressor.flush()
