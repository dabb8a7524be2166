"""Packed live windows are the windows that were packed, and nothing else is taken for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import Histogram
from manager.model.packed_histogram import pack
from manager.model.packed_live import pack_live, unpack_live
from manager.model.packed_windows import PackedWindow
from tests.unit.test_packed_windows import read_back, windows


@given(st.lists(st.tuples(st.integers(0, 2**63), windows), max_size=5))
def test_live_windows_are_read_back(live: list[tuple[int, PackedWindow]]) -> None:
    read = unpack_live(pack_live(live))
    assert [number for number, _ in read] == [number for number, _ in live]
    assert read_back([window for _, window in read]) == read_back([window for _, window in live])


@pytest.mark.parametrize("cut", [-1, 1, 5, 12])
def test_bytes_that_are_cut_off_are_refused(cut: int) -> None:
    packed = pack_live([(7, PackedWindow(5, "", 5, 9, 1.0, None, pack(Histogram({500: 3}))))])
    with pytest.raises(ValueError, match="not"):
        unpack_live(packed[:cut])
