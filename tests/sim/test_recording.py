"""Files of a host's history: what is written is read again, and what is not such a file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.errors import RecordingError
from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, Histogram
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, Capabilities
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.records import DecisionRecord, OutcomeKind, TickRecord, VmTick
from manager.model.registration import Mode, Sharing
from manager.model.source import Push
from manager.model.window import Ready, Window
from manager.replay.recording import RecordedVm, Recording, read_lines, write_lines
from manager.sim.scenario import BatchSpec
from tests.sim.build import app, scenario
from tests.sim.recorded import recorded

# Files hold times with microseconds, as floats of today's size do.
times = st.integers(10**9 * 10**3, 2 * 10**9 * 10**3).map(lambda milliseconds: milliseconds / 1000)
shares = st.floats(0, 1)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
counts = st.dictionaries(st.integers(FIRST_BUCKET, LAST_BUCKET), st.integers(0, 2**53), max_size=5)
readies = st.none() | st.builds(Ready, st.floats(1, 99), st.floats(0, 1e9))
weights = st.none() | st.integers(1, 262_144)
vm_ticks = st.builds(VmTick, names, shares, st.floats(0, 100), weights, st.sampled_from(Mode))
ticks = st.builds(TickRecord, times, names, st.sampled_from(Mode), shares, st.lists(vm_ticks, max_size=3).map(tuple))
windows = st.builds(Window, names, times, times, st.builds(Histogram, counts), st.none() | st.floats(0, 1e15), readies)
decisions = st.builds(
    DecisionRecord,
    st.uuids().map(str),
    times,
    names,
    names,
    st.sampled_from(Knob),
    st.integers(0, 8191),
    texts,
    texts,
    texts,
    names,
    st.sampled_from([Mode.ENFORCE, Mode.OBSERVE]),
    st.sampled_from(OutcomeKind),
    texts,
)


@cache
def small() -> Recording:
    shop = replace(app("shop"), sharing=Sharing.ISOLATION)
    return recorded(scenario(shop, batch=(BatchSpec("batch"),), duration_s=20, law=Law(gain=0.3)), "fair")


def lines() -> list[str]:
    return list(write_lines(small()))


def changed(place: int, **fields: Any) -> list[str]:
    """The lines of a file, with some fields of one changed; None takes a field away."""
    found = lines()
    body = {name: value for name, value in (json.loads(found[place]) | fields).items() if value is not None}
    return [*found[:place], json.dumps(body) + "\n", *found[place + 1 :]]


def refused(content: list[str]) -> str:
    with pytest.raises(RecordingError) as caught:
        read_lines(content)
    return str(caught.value)


def test_what_is_written_is_read_again() -> None:
    assert read_lines(lines()) == small()
    kinds = [json.loads(line)["kind"] for line in lines()]
    assert kinds[:3] == ["header", "assignment", "capabilities"]
    assert set(kinds[3:-1]) == {"vm", "tick", "window", "decision"}
    assert kinds[-1] == "end"


@given(
    st.lists(ticks, min_size=1, max_size=4),
    st.lists(windows, max_size=4),
    st.lists(decisions, max_size=4),
    st.lists(st.builds(RecordedVm, names, st.integers(0, 8192), weights), max_size=3),
)
def test_any_history_is_read_as_it_was_written(
    some_ticks: list[TickRecord],
    some_windows: list[Window],
    some_decisions: list[DecisionRecord],
    vms: list[RecordedVm],
) -> None:
    recording = replace(
        small(),
        ticks=tuple(sorted(some_ticks, key=lambda one: one.time_s)),
        windows=tuple(sorted(some_windows, key=lambda one: one.end_s)),
        decisions=tuple(sorted(some_decisions, key=lambda one: one.time_s)),
        vms=tuple(vms),
    )
    assert read_lines(list(write_lines(recording))) == recording


@pytest.mark.parametrize("scale", [CPU_SHARES_V1, CPU_WEIGHT_V2, None])
def test_capabilities_and_sources_are_kept(scale: Any) -> None:
    version = {CPU_SHARES_V1: 1, CPU_WEIGHT_V2: 2, None: 0}[scale]
    offers = Capabilities("6.1", "9.0", version, scale, frozenset({0, 1, 5}), frozenset({5}), False, ("no resctrl",))
    [shop] = small().assignment.applications
    sources = (Push("lb", ("10.0.0.0/8",)),)
    assignment = replace(small().assignment, applications=(replace(shop, sources=sources),))
    recording = replace(small(), capabilities=offers, assignment=assignment)
    assert read_lines(write_lines(recording)) == recording


@given(st.data())
def test_a_file_that_was_cut_off_is_refused(data: st.DataObject) -> None:
    text = "".join(lines()).rstrip("\n")
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(RecordingError, match=r"line|empty"):
        read_lines(cut.splitlines(keepends=True))


@given(st.lists(st.text(max_size=30) | st.sampled_from(["null", "[]", '{"kind": "tick"}', "{}", '{"kind": []}'])))
def test_anything_else_is_refused(content: list[str]) -> None:
    with pytest.raises(RecordingError):
        read_lines(content)


@given(st.data())
def test_a_field_of_any_value_is_read_or_refused_with_its_line(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lines()) - 1))
    name = data.draw(st.sampled_from(sorted(json.loads(lines()[place]))))
    value = data.draw(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=3))
    try:
        read_lines(changed(place, **{name: value}))
    except RecordingError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "the file is empty"),
        (["hello\n"], "line 1: not a recording of version 1: not JSON"),
        (['{"a": 1}\n'], "line 1: not a recording of version 1"),
        (lines()[1:], "line 1: not a recording of version 1: the first line is no header"),
        (changed(0, version=2), "line 1: not a recording of version 1: version = 2 is refused"),
        (changed(0, format="csv"), "format = 'csv' is refused"),
        (changed(0, host=None), "line 1: not a recording of version 1: host"),
        (changed(0, host="other"), "the header is of host other, the assignment of simulated"),
        (changed(0, slot_s=2), "slot_s is 2 in the header and 5 in the assignment"),
        (changed(2, cgroup_version=3), "line 3: cgroup_version = 3 is refused"),
        (changed(2, online_cpus="3-1"), "online_cpus = '3-1' is refused"),
        (changed(3, vcpus=-1), "line 4: vcpus = -1 is refused"),
        (changed(3, kind="pm"), "line 4: "),
        (changed(3, more=1), "line 4: more = 1 is refused"),
        ([*lines()[:5], lines()[0], *lines()[5:]], "line 6: a second header"),
        ([*lines()[:4], lines()[1], *lines()[4:]], "19 come before"),
        ([*lines()[:2], *lines()[3:]], "some are missing"),
        ([*lines(), lines()[4]], "something follows the end"),
        (lines()[:-1], "but not the end: the file was cut off"),
        ([line for line in lines() if '"kind":"tick"' not in line], "some are missing"),
    ],
)
def test_what_is_wrong_is_said(content: list[str], says: str) -> None:
    assert says.replace("19", str(len(lines()))) in refused(content)


def test_a_file_without_ticks_or_with_two_assignments_is_refused() -> None:
    header, assignment, capabilities = lines()[:3]

    def ended(*content: str) -> list[str]:
        return [*content, json.dumps({"kind": "end", "lines": len(content)})]

    assert "no tick of host simulated" in refused(ended(header, assignment, capabilities))
    assert "2 lines of kind assignment" in refused(ended(header, assignment, assignment, capabilities))
    [tick, *_] = [line for line in lines() if json.loads(line)["kind"] == "tick"]
    assert "0 lines of kind capabilities" in refused(ended(header, assignment, tick))
    *body, _ = ended(header, "\n", assignment, capabilities, tick)
    assert len(read_lines([*body, json.dumps({"kind": "end", "lines": 4})]).ticks) == 1
