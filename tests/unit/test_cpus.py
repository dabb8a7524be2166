"""CPU sets and the kernel's list format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.cpus import MAX_CPU, format_cpus, parse_cpus

cpu_sets = st.frozensets(st.integers(0, MAX_CPU), max_size=40) | st.frozensets(st.integers(0, 20))


@given(cpu_sets)
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


@given(cpu_sets)
def test_the_written_form_is_the_shortest(cpus: frozenset[int]) -> None:
    """Ascending, and no two parts that could be one: the form the kernel itself prints."""
    ends = [int(number) for part in format_cpus(cpus).split(",") if part for number in (part.split("-") * 2)[:2]]
    lows, highs = ends[::2], ends[1::2]
    assert all(high + 1 < low for high, low in zip(highs, lows[1:], strict=False))
    assert all(low <= high for low, high in zip(lows, highs, strict=True))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        (" 1 , 3-4 ", {1, 3, 4}),
        ("3-4,1,4", {1, 3, 4}),
        ("7-7", {7}),
        ("1,", {1}),
        ("8191", {8191}),
    ],
)
def test_reads(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    ("cpus", "text"), [((), ""), ((5,), "5"), ((3, 1, 2), "1-3"), ((0, 1, 3, 5, 6), "0-1,3,5-6"), ((10, 9), "9-10")]
)
def test_writes(cpus: tuple[int, ...], text: str) -> None:
    assert format_cpus(cpus) == text


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("a", "'a'"),
        ("1;2", "'1;2'"),
        ("-1", "'-1'"),
        ("1-", "'1-'"),
        ("-", "'-'"),
        ("1--2", "'1--2'"),
        ("1-2-3", "'1-2-3'"),
        ("1 2", "'1 2'"),
        ("1 - 2", "'1 - 2'"),
        ("0x3", "'0x3'"),
        ("1.0", "'1.0'"),
        ("+1", "'+1'"),
        ("0-3:1/2", "'0-3:1/2'"),
        ("²", "'²'"),
        ("٣", "'٣'"),
        ("0,3-1,5", "'3-1'"),
        ("8192", "'8192'"),
        ("0-99999999999", "'0-99999999999'"),
        ("0,all", "'all'"),
    ],
)
def test_refuses_and_names_the_offending_part(text: str, offending: str) -> None:
    with pytest.raises(ValueError, match="is not a") as refused:
        parse_cpus(text)
    assert offending in str(refused.value)
