"""Packed windows are the windows that were packed, and nothing else is taken for them."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows

times = st.integers(0, 2**53)
histograms = st.binary(max_size=9)
ready = st.none() | st.just({"percentile": 95.0, "percentile_ms": 2.5})
windows = st.builds(
    PackedWindow, times, st.text("ab-", max_size=5), times, times, st.none() | st.floats(0, 1e15), ready, histograms
)


@given(st.lists(windows, max_size=5))
def test_packed_windows_are_read_back(given_windows: list[PackedWindow]) -> None:
    assert unpack_windows(pack_windows(given_windows)) == given_windows


@given(st.binary(max_size=40), st.sampled_from([b"", b"\x01", b"\x02", b"\x01\0\0\0\x05"]))
def test_other_bytes_are_refused_by_value_error(content: bytes, begin: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_windows(begin + content)


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"slot_us":1,"origin":1}'])
def test_other_json_is_refused_by_value_error(text: bytes) -> None:
    body = zlib.compress(text, wbits=-zlib.MAX_WBITS)
    with pytest.raises(ValueError, match="not packed windows"):
        unpack_windows(b"\x01" + len(body).to_bytes(4, "big") + body)


def test_bytes_that_are_cut_off_or_go_on_are_refused() -> None:
    packed = pack_windows([PackedWindow(5, "h", 5, 9, 1.0, None, b"abc")])
    for body in (packed[:-1], packed + b"x", packed[:3]):
        with pytest.raises(ValueError, match="not"):
            unpack_windows(body)
