"""The program on taps counts in buckets of services: from a map's elements to a histogram for each service."""

from __future__ import annotations

from collections import defaultdict

from manager.bpf import tap
from manager.model.histogram import Histogram
from manager.model.traffic import ServicePlace


class Grouping:
    """To which service and bucket each element of a map belongs, as its keys say. Counts change, keys seldom do."""

    def __init__(self, keys: bytes) -> None:
        """``keys``: those of all elements, packed as ``tap.KEY``."""
        self.keys = keys
        self._times: defaultdict[ServicePlace, dict[int, int]] = defaultdict(dict)
        self._handshakes: defaultdict[ServicePlace, dict[int, int]] = defaultdict(dict)
        for index, (interface, port, bucket) in enumerate(tap.KEY.iter_unpack(keys)):
            if bucket & tap.HANDSHAKE:
                self._handshakes[interface, port][bucket ^ tap.HANDSHAKE] = index
            else:
                self._times[interface, port][bucket] = index

    def histograms(self, values: bytes) -> tuple[dict[ServicePlace, Histogram], dict[ServicePlace, Histogram]]:
        """Those of response times and of handshakes. ``values``: a count of 64 bits for each of the keys."""
        count_of = memoryview(values).cast("Q").tolist().__getitem__
        times, handshakes = (
            {
                place: Histogram(dict(zip(indexes, map(count_of, indexes.values()), strict=True)))
                for place, indexes in grouped.items()
            }
            for grouped in (self._times, self._handshakes)
        )
        return times, handshakes
