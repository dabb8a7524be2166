"""Packed windows are the windows that were packed, and nothing else is taken for them."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, Histogram
from manager.model.packed_histogram import pack, pack_plain, unpack
from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows

times = st.integers(0, 2**53)
histograms = st.dictionaries(st.integers(FIRST_BUCKET, LAST_BUCKET), st.integers(1, 2**40), max_size=30).map(Histogram)
ready = st.none() | st.just({"percentile": 95.0, "percentile_ms": 2.5})
windows = st.builds(
    PackedWindow,
    times,
    st.text("ab-", max_size=5),
    times,
    times,
    st.none() | st.floats(0, 1e15),
    ready,
    histograms.map(pack),
)


@given(st.lists(windows, max_size=5))
def test_packed_windows_are_read_back(given_windows: list[PackedWindow]) -> None:
    assert read_back(unpack_windows(pack_windows(given_windows))) == read_back(given_windows)


def read_back(packed: list[PackedWindow]) -> list[tuple[PackedWindow, Histogram]]:
    """Windows without their histograms' bytes, which may be in another format, and the histograms."""
    return [(window._replace(histogram=b""), unpack(window.histogram)) for window in packed]


def test_format_1_is_read_as_it_was_written() -> None:
    histogram = pack(Histogram({500: 3}))
    columns = {"slot_us": [7], "origin": ["h"], "start_us": [1], "end_us": [5], "requests": [None], "ready": [None]}
    text = json.dumps(columns | {"length": [len(histogram)]}).encode()
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = compressor.compress(text) + compressor.flush()
    packed = b"\x01" + len(body).to_bytes(4, "big") + body + histogram
    assert unpack_windows(packed) == [PackedWindow(7, "h", 8, 12, None, None, histogram)]


def test_format_2_is_read_as_it_was_written() -> None:
    plain = pack_plain(Histogram({500: 3, 502: 200})), b"", pack_plain(Histogram({7: 1}))
    columns = {"slot_us": [0, 5, 5], "origin": ["h", "h", "k"], "start_us": [1, 1, 1], "end_us": [5, 5, 5]}
    columns |= {"requests": [None] * 3, "ready": [None] * 3, "length": [len(body) for body in plain]}
    parts = []
    for text in (json.dumps(columns | {"base_us": 7}).encode(), b"".join(plain)):
        compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        parts.append(compressor.compress(text) + compressor.flush())
    packed = b"\x02" + len(parts[0]).to_bytes(4, "big") + b"".join(parts)
    assert unpack_windows(packed) == [
        PackedWindow(7, "h", 8, 12, None, None, plain[0]),
        PackedWindow(12, "h", 13, 17, None, None, plain[1]),
        PackedWindow(12, "k", 13, 17, None, None, plain[2]),
    ]


def test_histograms_take_less_together() -> None:
    chance = random.Random(1)
    times_us = [[chance.lognormvariate(9, 0.5) for _ in range(200)] for _ in range(12)]
    packs = [pack(Histogram.of(slot)) for slot in times_us]
    minute = [PackedWindow(n * 5, "kvm1", n * 5, n * 5 + 5, 200, None, body) for n, body in enumerate(packs)]
    assert len(pack_windows(minute)) < 0.8 * sum(map(len, packs))


@pytest.mark.parametrize("histogram", [b"\x03\0\0\0\0", b"\x02\0", b"\x02\0\0\0\x01\xff"])
def test_other_histograms_are_refused(histogram: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        pack_windows([PackedWindow(5, "h", 5, 9, 1.0, None, histogram)])


@given(
    st.binary(max_size=40),
    st.sampled_from([*(bytes([form]) for form in range(5)), *(bytes([form, 0, 0, 0, 5]) for form in range(1, 4))]),
)
def test_other_bytes_are_refused_by_value_error(content: bytes, begin: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_windows(begin + content)


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"slot_us":1,"origin":1}'])
def test_other_json_is_refused_by_value_error(text: bytes) -> None:
    body = zlib.compress(text, wbits=-zlib.MAX_WBITS)
    with pytest.raises(ValueError, match="not packed windows"):
        unpack_windows(b"\x01" + len(body).to_bytes(4, "big") + body)


def test_bytes_that_are_cut_off_or_go_on_are_refused() -> None:
    packed = pack_windows([PackedWindow(5, "h", 5, 9, 1.0, None, pack(Histogram({500: 3})))])
    for body in (packed[:-1], packed + b"x", packed[:3]):
        with pytest.raises(ValueError, match="not"):
            unpack_windows(body)
