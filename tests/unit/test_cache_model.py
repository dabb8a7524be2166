"""Masks, schemata and sizes of cache parts."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manager.model.cache import (
    EMPTY,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    CacheSize,
    Mask,
    Resctrl,
    SizeUnit,
    Slot,
    format_schemata,
    parse_schemata,
    parse_sizes,
    parse_wish,
    union,
)

masks = st.integers(0, (1 << 24) - 1).map(Mask)


def cache(ways: int = 20, minimum: int = 2, *, sparse: bool = False, name: str = "L3") -> CacheResource:
    return CacheResource(name, Mask.span(0, ways), minimum, EMPTY, 4, sparse, (0, 1), ((0, 1 << 20), (1, 1 << 20)))


caches = st.builds(
    cache, st.integers(4, 24), st.integers(1, 4), sparse=st.booleans(), name=st.sampled_from(["L3", "L2", "L3CODE"])
)
sizes = st.one_of(
    st.builds(CacheSize, st.integers(1, 100).map(Fraction), st.just(SizeUnit.PERCENT)),
    st.builds(CacheSize, st.integers(1, 40).map(Fraction), st.just(SizeUnit.WAYS)),
    st.builds(CacheSize, st.integers(1, 1 << 26).map(Fraction), st.just(SizeUnit.BYTES)),
)


def ways(mask: Mask) -> set[int]:
    return {way for way in range(64) if mask.bits >> way & 1}


@given(masks, masks)
def test_masks_are_sets_of_ways(one: Mask, other: Mask) -> None:
    assert ways(one | other) == ways(one) | ways(other)
    assert ways(one & other) == ways(one) & ways(other)
    assert ways(one - other) == ways(one) - ways(other)
    assert (one <= other) == (ways(one) <= ways(other))
    assert one.disjoint(other) == ways(one).isdisjoint(ways(other))
    assert one.ways == len(ways(one))
    assert one.lowest == min(ways(one), default=-1)
    assert Mask.parse(str(one)) == one


@given(masks)
def test_runs_are_the_maximal_pieces(mask: Mask) -> None:
    runs = list(mask.runs())
    assert union(runs) == mask
    assert all(run.contiguous and run for run in runs)
    assert all(low.lowest + low.ways < high.lowest for low, high in itertools.pairwise(runs))
    assert mask.contiguous == (len(runs) < 2)


@given(caches, sizes)
def test_what_is_asked_for_becomes_a_legal_mask_of_at_least_that_size(cache: CacheResource, size: CacheSize) -> None:
    assume(cache.minimum <= cache.ways.ways)
    for domain, mask in size.resolve(cache).items():
        assert cache.problem(mask) == ""
        assert mask.contiguous
        units = {SizeUnit.PERCENT: Fraction(100, cache.ways.ways), SizeUnit.BYTES: Fraction(1 << 20)}
        held = units.get(size.unit, Fraction(1))
        wanted = min(size.amount, cache.ways.ways * held)
        assert mask.ways * held >= wanted
        assert mask.ways == cache.minimum or (mask.ways - 1) * held < wanted, "no way more than it takes"
        assert domain in cache.domains


@given(caches, st.integers(1, 24), masks)
def test_a_fit_is_legal_and_among_the_free_ways(cache: CacheResource, wanted: int, free: Mask) -> None:
    found = cache.fit(wanted, free)
    if found is None:
        runs = [run.ways for run in (free & cache.ways).runs() if run.ways >= cache.minimum]
        available = sum(runs) if cache.sparse else max(runs, default=0)
        # With gaps, the last run may be cut below the minimum, but the first never is.
        assert available < max(wanted, cache.minimum)
    else:
        assert cache.problem(found) == ""
        assert found <= free
        assert found.ways == max(wanted, cache.minimum)


@pytest.mark.parametrize(
    ("mask", "sparse", "problem"),
    [
        ("3", False, ""),
        ("c0000", False, ""),
        ("0", False, "not within"),
        ("100000", False, "not within"),
        ("5", False, "has gaps"),
        ("1", False, "fewer than 2"),
        ("33", True, ""),
        ("31", True, "fewer than 2"),  # the kernel counts the lowest run
        ("13", True, ""),
    ],
)
def test_what_is_legal(mask: str, sparse: bool, problem: str) -> None:
    found = cache(sparse=sparse).problem(Mask.parse(mask))
    assert problem in found
    assert bool(found) == bool(problem)


slots = st.builds(Slot, st.sampled_from(["L3", "L2CODE", "MB"]), st.integers(0, 300))


@given(st.dictionaries(slots, st.integers(0, 1 << 30)))
def test_schemata_are_read_as_they_are_written(values: dict[Slot, int]) -> None:
    text = format_schemata(values)
    assert parse_schemata(text) == values
    assert text == "" or text.endswith("\n")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "    MB:0=100;1=100\n    L3:0=fffff;1=ff\n",
            {("MB", 0): 100, ("MB", 1): 100, ("L3", 0): 0xFFFFF, ("L3", 1): 255},
        ),
        ("L3DATA:0=f0\nL3CODE:0=f\n", {("L3DATA", 0): 0xF0, ("L3CODE", 0): 15}),
        ("L3:0=00ff;2=0010\n", {("L3", 0): 255, ("L3", 2): 16}),
        ("MB:0=2048;1= 512\n", {("MB", 0): 2048, ("MB", 1): 512}),
        ("L3:uninitialized\nL2:3=f\n", {("L2", 3): 15}),
        ("", {}),
    ],
)
def test_schemata_of_kernels(text: str, values: dict[Slot, int]) -> None:
    assert parse_schemata(text) == values


@pytest.mark.parametrize(
    "text", ["L3\n", "L3:0\n", "L3:0=zz\n", "L3:x=f\n", ":0=f\n", "MB:0=abc\n", "L3:0=-f\n", "L3:0=f;\n"]
)
def test_what_is_no_schemata_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not RESOURCE"):
        parse_schemata(text)


def test_sizes_are_decimal() -> None:
    assert parse_sizes("    MB:0=100\n    L3:0=838860;1=1677720\n")[Slot("L3", 0)] == 838860
    with pytest.raises(ValueError, match="is not RESOURCE"):
        parse_sizes("L3:0=zz\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", "auto"),
        ("40%", CacheSize(Fraction(40), SizeUnit.PERCENT)),
        ("12.5 %", CacheSize(Fraction(25, 2), SizeUnit.PERCENT)),
        ("6 ways", CacheSize(Fraction(6), SizeUnit.WAYS)),
        ("1way", CacheSize(Fraction(1), SizeUnit.WAYS)),
        ("5MiB", CacheSize(Fraction(5 << 20), SizeUnit.BYTES)),
        ("16.5 MiB", CacheSize(Fraction(33 << 19), SizeUnit.BYTES)),
    ],
)
def test_wishes(text: str, expected: object) -> None:
    assert parse_wish(text) == expected


@pytest.mark.parametrize("text", ["", "6", "0%", "101%", "1.5 ways", "-3 ways", "5MB", "0 ways", "many", "1e3%"])
def test_what_is_no_wish_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|no part|no whole"):
        parse_wish(text)


def test_bytes_where_the_size_of_a_way_is_not_known_are_refused() -> None:
    unknown = CacheResource("L3", Mask(0xFF), 1, EMPTY, 4, False, (0,))
    with pytest.raises(ValueError, match="ask in ways"):
        CacheSize(Fraction(1), SizeUnit.BYTES).resolve(unknown)


@pytest.mark.parametrize(
    ("value", "legal"), [(50, 50), (55, 60), (51, 60), (9, 10), (0, 10), (95, 100), (101, 100), (100, 100)]
)
def test_bandwidth_becomes_what_the_kernel_makes_of_it(value: int, legal: int) -> None:
    resource = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 8, (0,))
    assert resource.legal(value) == legal


def test_the_fewest_closids_and_the_outermost_cache_count() -> None:
    bandwidth = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 3, (0,))
    offered = Resctrl((cache(name="L2"), cache(name="L3CODE"), cache(name="L3DATA")), (bandwidth,))
    assert offered.closids == 3
    assert [one.name for one in offered.divided] == ["L3CODE", "L3DATA"]
    assert Resctrl((), ()).closids == 0


@pytest.mark.parametrize(
    ("shareable", "below", "unshared"),
    [(0, False, 0xFFF), (0xC00, False, 0x3FF), (3, True, 0xFFC), (0x180, False, 0x7F), (0x18, True, 0xFE0)],
)
def test_ways_of_other_hardware_are_on_one_side(shareable: int, below: bool, unshared: int) -> None:
    one = CacheResource("L3", Mask(0xFFF), 1, Mask(shareable), 4, False, (0,))
    assert one.shared_below == below
    assert one.unshared == Mask(unshared)
