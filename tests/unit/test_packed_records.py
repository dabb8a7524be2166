"""Packed ticks and decisions are what was packed, in far fewer bytes, and nothing else is taken for them."""

from __future__ import annotations

import json
import uuid
import zlib
from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manager.model.packed_records import (
    PackedDecision,
    PackedTick,
    joined_ticks,
    microseconds,
    moment_of,
    pack_decisions,
    pack_ticks,
    tick_times,
    ticks_within,
    unpack_decisions,
    unpack_ticks,
)

times = st.integers(0, 2**53)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
vms = st.lists(
    st.dictionaries(st.sampled_from(["vm", "weight", "vcpu"]), st.none() | st.floats(0, 1) | texts), max_size=3
)
plain = st.dictionaries(texts, st.floats(0, 1) | texts, max_size=3)
bodies = (plain | st.tuples(plain, vms).map(lambda parts: parts[0] | {"vms": parts[1]}) | texts).map(json.dumps)
ticks = st.builds(PackedTick, times, st.none() | times, bodies)
values = {field.name: texts for field in fields(PackedDecision) if field.type == "str"}
decisions = st.builds(
    PackedDecision, at_us=times, claimed_us=st.none() | times, vm=st.none() | texts, index=times, **values
)


@given(st.lists(ticks, max_size=5))
def test_packed_ticks_are_read_back(given_ticks: list[PackedTick]) -> None:
    packed = pack_ticks(given_ticks)
    read = unpack_ticks(packed)
    assert [*map(meaning, read)] == [*map(meaning, given_ticks)]
    assert all("\n" not in tick.body for tick in read)
    assert tick_times(packed) == [(tick.at_us, tick.claimed_us) for tick in given_ticks]


def meaning(tick: PackedTick) -> tuple[int, int | None, object]:
    return tick.at_us, tick.claimed_us, json.loads(tick.body)


soon = st.integers(0, 12)
objects = plain | st.tuples(plain, vms).map(lambda parts: parts[0] | {"vms": parts[1]})
rows_of_ticks = st.lists(
    st.lists(st.builds(PackedTick, soon, st.none() | soon, objects.map(json.dumps)), max_size=4).map(
        lambda row: sorted(row, key=lambda tick: tick.at_us)
    ),
    max_size=4,
)


@example([[PackedTick(1, None, '{"late": 0}')], [PackedTick(0, None, "{}"), PackedTick(1, None, "{}")]])
@given(rows_of_ticks | st.lists(st.lists(ticks, max_size=3), max_size=3))
def test_rows_are_joined_as_if_their_ticks_had_been_packed_together(rows: list[list[PackedTick]]) -> None:
    packs = [pack_ticks(row) for row in rows]
    together = sorted((tick for pack in packs for tick in unpack_ticks(pack)), key=lambda tick: tick.at_us)
    times_of_all, joined = joined_ticks(packs)
    assert joined == pack_ticks(together)
    assert times_of_all == [(tick.at_us, tick.claimed_us) for tick in together]


@given(st.lists(st.builds(PackedTick, soon, st.none() | soon, objects.map(json.dumps)), max_size=5), soon, soon)
def test_columns_of_ticks_say_what_the_ticks_do(row: list[PackedTick], since_us: int, until_us: int) -> None:
    packed = pack_ticks(row)
    head = json.dumps({"at_us": [tick.at_us for tick in row], "claimed_us": [tick.claimed_us for tick in row]})
    older = b"\x01" + deflated("\n".join([head, *(tick.body for tick in row)]))
    for body in (packed, older):
        found = ticks_within(body, since_us, until_us)
        assert [tick.place for tick in found] == [
            place for place, tick in enumerate(row) if since_us <= tick.at_us < until_us
        ]
        for tick in found:
            whole = json.loads(row[tick.place].body)
            seen = whole.pop("vms", [])
            assert (tick.at_us, tick.fields) == (row[tick.place].at_us, whole)
            assert {name: [*values] for name, values in tick.vms.items()} == {
                name: [vm.get(name) for vm in seen] for name in tick.vms
            }
            assert {name for vm in seen for name in vm} <= tick.vms.keys()


def test_times_that_do_not_come_first_are_found() -> None:
    whole = {"ticks": [{}], "counts": [None], "vms": {}, "claimed_us": [4], "at_us": [5]}
    packed = b"\x02" + deflated(json.dumps(whole))
    assert tick_times(packed) == [(5, 4)]
    assert [tick.at_us for tick in ticks_within(packed, 5, 6)] == [5]
    with pytest.raises(ValueError, match="VMs"):
        ticks_within(pack_ticks([PackedTick(5, None, "[1]")]), 0, 9)


def deflated(text: str) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(text.encode()) + compressor.flush()


def test_format_1_is_read_as_it_was_written() -> None:
    ticks_text = '{"at_us":[5,9],"claimed_us":[null,8]}\n{"a":1}\n{"b":2}'
    assert unpack_ticks(b"\x01" + deflated(ticks_text)) == [PackedTick(5, None, '{"a":1}'), PackedTick(9, 8, '{"b":2}')]
    assert tick_times(b"\x01" + deflated(ticks_text)) == [(5, None), (9, 8)]
    columns = {field.name: ["x"] for field in fields(PackedDecision)} | {"at_us": [5], "claimed_us": [None]}
    number = uuid.UUID(int=7)
    rest = deflated(json.dumps({name: column for name, column in columns.items() if name != "record_id"}))
    [decision] = unpack_decisions(b"\x01\0\x01" + number.bytes + rest)
    assert (decision.at_us, decision.record_id, decision.vm) == (5, str(number), "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": [2]},
        {"counts": ["a"]},
        {"ticks": []},
        {"vms": {"vm": [None, ["a", "b"]]}},
        {"vms": {"vm": [[7], ["a"]]}},
        {"vms": {"vm": 1}},
        {"vms": None},
    ],
)
def test_other_columns_of_ticks_are_refused(changes: dict[str, object]) -> None:
    whole = {"at_us": [5], "claimed_us": [None], "ticks": [{}], "counts": [1], "vms": {"vm": [None, ["a"]]}}
    assert unpack_ticks(b"\x02" + deflated(json.dumps(whole))) == [PackedTick(5, None, '{"vms":[{"vm":"a"}]}')]
    with pytest.raises(ValueError, match=r"."):
        unpack_ticks(b"\x02" + deflated(json.dumps(whole | changes)))


@pytest.mark.parametrize("runs", [[5], ["ab"], [["g", 1]], [["1", "a"]], [["1", 1, 1]], [["1", 2]]])
def test_other_runs_of_uuids_are_refused(runs: list[object]) -> None:
    columns = {field.name: ["x"] for field in fields(PackedDecision)} | {"record_id": runs}
    with pytest.raises(ValueError, match=r"."):
        unpack_decisions(b"\x02" + deflated(json.dumps(columns)))


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


def minute_of_decisions(ids_of_tick: int) -> list[PackedDecision]:
    """144 decisions in 12 ticks; so many of each tick have ids that follow each other."""
    at_us = microseconds(datetime(2026, 3, 1, tzinfo=UTC))
    reason = "critical: its weight follows from the share of CPU time that it needs"
    return [
        PackedDecision(
            at_us + place // 12 * 5_000_000,
            None,
            str(
                uuid.UUID(int=place // ids_of_tick * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128 + place % ids_of_tick)
            ),
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


def test_a_minute_of_decisions_needs_few_bytes() -> None:
    assert len(pack_decisions(minute_of_decisions(1))) < 144 * 30, "most of that is what tells one from another"
    assert len(pack_decisions(minute_of_decisions(12))) < 144 * 10


def test_a_minute_of_ticks_needs_few_bytes() -> None:
    def body(place: int) -> str:
        vms = [
            {"vm": f"vm-{vm}", "cpu_share": place * vm * 7919 % 10007 / 1e5, "weight": 100, "mode": "enforce"}
            for vm in range(20)
        ]
        return json.dumps({"policy": "fair", "vms": vms})

    assert len(pack_ticks([PackedTick(place * 5_000_000, None, body(place)) for place in range(12)])) < 12 * 20 * 4


@given(times)
def test_microseconds_are_exact(time_us: int) -> None:
    assert microseconds(moment_of(time_us)) == time_us
