"""Packed ticks and decisions are what was packed, in far fewer bytes, and nothing else is taken for them."""

from __future__ import annotations

import json
import uuid
import zlib
from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.packed_records import (
    PackedDecision,
    PackedTick,
    microseconds,
    moment_of,
    pack_decisions,
    pack_ticks,
    unpack_decisions,
    unpack_ticks,
)

times = st.integers(0, 2**53)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
bodies = st.dictionaries(texts, st.floats(0, 1) | texts, max_size=3).map(json.dumps)
ticks = st.builds(PackedTick, times, st.none() | times, bodies)
values = {field.name: texts for field in fields(PackedDecision) if field.type == "str"}
decisions = st.builds(
    PackedDecision, at_us=times, claimed_us=st.none() | times, vm=st.none() | texts, index=times, **values
)


@given(st.lists(ticks, max_size=5))
def test_packed_ticks_are_read_back(given_ticks: list[PackedTick]) -> None:
    assert unpack_ticks(pack_ticks(given_ticks)) == given_ticks


usual = decisions.flatmap(lambda decision: st.uuids().map(lambda number: replace(decision, record_id=str(number))))


@given(st.lists(decisions, max_size=5) | st.lists(usual, max_size=5) | st.lists(usual | decisions, max_size=3))
def test_packed_decisions_are_read_back(given_decisions: list[PackedDecision]) -> None:
    assert unpack_decisions(pack_decisions(given_decisions)) == given_decisions


@pytest.mark.parametrize("unpack", [unpack_ticks, unpack_decisions])
@given(content=st.binary(max_size=60), form=st.sampled_from([b"", b"\x01", b"\x02"]))
def test_other_bytes_are_refused_by_value_error(unpack: object, content: bytes, form: bytes) -> None:
    assert callable(unpack)
    for body in (content, zlib.compress(content, wbits=-zlib.MAX_WBITS), zlib.compress(b"[1]", wbits=-zlib.MAX_WBITS)):
        with pytest.raises(ValueError, match=r"."):
            unpack(form + body)


@pytest.mark.parametrize("packed", [pack_ticks([PackedTick(1, None, "{}")]), pack_decisions([])])
def test_bytes_that_are_cut_off_or_go_on_are_refused(packed: bytes) -> None:
    for body in (packed[:-1], packed + b"x"):
        with pytest.raises(ValueError, match="not packed records"):
            unpack_ticks(body)


def test_a_minute_of_decisions_needs_few_bytes() -> None:
    at_us = microseconds(datetime(2026, 3, 1, tzinfo=UTC))
    reason = "critical: its weight follows from the share of CPU time that it needs"
    many = [
        PackedDecision(
            at_us + place // 12 * 5_000_000,
            None,
            str(uuid.UUID(int=place * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)),
            f"vm-{place % 20}",
            "weight",
            0,
            str(100 + place),
            str(101 + place),
            reason,
            "fair",
            "enforce",
            "applied",
            "",
        )
        for place in range(144)
    ]
    assert len(pack_decisions(many)) < 144 * 30, "most of that is what tells one from another"


@given(times)
def test_microseconds_are_exact(time_us: int) -> None:
    assert microseconds(moment_of(time_us)) == time_us
