"""Counts in buckets of services, as the program on taps has them, become histograms."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from manager.bpf import tap
from manager.host.tap_times import Grouping
from manager.model.histogram import Histogram

KEYS = st.tuples(
    st.integers(1, 3), st.sampled_from([80, 443]), st.integers(0, 5), st.booleans()
)  # interface, port, bucket, of a handshake


def packed(keys: list[tuple[int, int, int, bool]]) -> bytes:
    return b"".join(
        tap.KEY.pack(interface, port, bucket | tap.HANDSHAKE * handshake) for interface, port, bucket, handshake in keys
    )


@given(st.dictionaries(KEYS, st.integers(0, 2**64 - 1)), st.integers(0, 1000))
def test_each_count_is_in_the_histogram_of_its_service(
    counts: dict[tuple[int, int, int, bool], int], more: int
) -> None:
    """Also when the same keys are used for other counts."""
    grouping = Grouping(packed(list(counts)))
    for counted in (dict.fromkeys(counts, more), counts):
        found = grouping.histograms(struct.pack(f"={len(counted)}Q", *counted.values()))
        for handshake, histograms in enumerate(found):
            places = {key[:2] for key in counted if key[3] == handshake}
            assert histograms == {
                place: Histogram(
                    {key[2]: count for key, count in counted.items() if (key[:2], key[3]) == (place, handshake)}
                )
                for place in places
            }


def test_without_elements_there_is_no_service() -> None:
    assert Grouping(b"").histograms(b"") == ({}, {})
