"""What lists show of an application's latest window: a few numbers, without its histogram.

Several are packed as a host's row keeps those of its applications. Of each, big-endian: the number of the application's
row, the window's slot (microseconds since the epoch), begin and end (seconds since the epoch), samples, requests, the
percentile, and its value in milliseconds. NaN stands for what is unknown.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from manager.model.histogram import joint_percentile_us
from manager.model.window import Window, rate_rps

_PACKED = struct.Struct(">QqddQddd")


class GlancedWindow(NamedTuple):
    """An application's latest window, see ``manager.store.windows``, with one ``percentile``.

    ``value_ms`` None: the percentile is not known; ``samples`` 0: a source measured it itself, or there are none.
    """

    start_s: float
    end_s: float
    samples: int
    requests: float | None
    percentile: float
    value_ms: float | None

    @property
    def rate_rps(self) -> float | None:
        """Requests per second, as of ``Window``."""
        return rate_rps(self.requests, self.end_s - self.start_s)

    def percentile_ms(self, percentile: float) -> float | None:
        """A percentile in milliseconds, as of ``Window``; None for any other than the one that it has."""
        return self.value_ms if percentile == self.percentile else None

    def has_samples(self, at_least: int) -> bool:
        """Whether the percentile is to be believed, as of ``Window``."""
        return self.value_ms is not None and (self.samples == 0 or self.samples >= at_least)

    def age_s(self, now_s: float) -> float:
        """Seconds since it ended, never negative."""
        return max(0.0, now_s - self.end_s)


class PlacedGlance(NamedTuple):
    """A window, the row number of its application, and the start of its latest slot in microseconds since the epoch."""

    number: int
    slot_us: int
    window: GlancedWindow

    def covers_slot_before(self, length_us: int) -> bool:
        """Whether the slot before is part of it. Windows begin with their slots, but for what rounding makes of it."""
        return self.window.start_s * 1e6 < self.slot_us - length_us / 2


def glance_at(windows: Collection[Window], percentile: float) -> GlancedWindow:
    """What there is to see of at least one window of an application, as if they were merged.

    Raises ValueError without windows, and for a percentile outside (0, 100].
    """
    in_order = sorted(windows, key=lambda window: (window.end_s, window.start_s))
    requests = [window.requests for window in windows if window.requests is not None]
    ready = [window for window in in_order if window.ready is not None]
    if ready:
        samples = 0
        value_ms = ready[-1].percentile_ms(percentile)
    else:
        samples = sum(window.histogram.count for window in windows)
        value_us = joint_percentile_us([window.histogram for window in windows], percentile)
        value_ms = None if value_us is None else value_us / 1000
    begin_s = min(window.start_s for window in windows)
    total = sum(requests) if requests else None
    return GlancedWindow(begin_s, in_order[-1].end_s, samples, total, percentile, value_ms)


def pack_glances(glances: Iterable[PlacedGlance]) -> bytes:
    """Glances as bytes; ``unpack_glances`` is the inverse."""
    return b"".join(
        _PACKED.pack(
            number,
            slot_us,
            window.start_s,
            window.end_s,
            window.samples,
            _or_nan(window.requests),
            window.percentile,
            _or_nan(window.value_ms),
        )
        for number, slot_us, window in glances
    )


def unpack_glances(packed: bytes) -> list[PlacedGlance]:
    """The glances that were packed, in the same order. Raises ValueError for bytes of another length."""
    if len(packed) % _PACKED.size:
        raise ValueError(f"not packed glances: {len(packed)} bytes")
    return [
        PlacedGlance(
            number,
            slot_us,
            GlancedWindow(start_s, end_s, samples, _or_none(requests), percentile, _or_none(value_ms)),
        )
        for number, slot_us, start_s, end_s, samples, requests, percentile, value_ms in _PACKED.iter_unpack(packed)
    ]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
