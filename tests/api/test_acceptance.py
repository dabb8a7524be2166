"""One item that cannot be accepted never keeps the others from being stored."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.api.acceptance import LISTS, read_report
from manager.model import packed_records
from manager.model.fields import adapter_of
from manager.model.packed_ticks import MOST_TEXT, packs_of
from manager.model.records import TickRecord
from tests.api.conftest import (
    HOST,
    Api,
    event,
    record,
    report,
    source_status,
    status,
    tick_of,
    window,
)

GOOD: dict[str, Callable[[int], Any]] = {
    "vms": lambda n: status(f"vm-{n}"),
    "sources": lambda n: source_status(f"source-{n}"),
    "domains": lambda n: {"libvirt_name": f"d{n}", "libvirt_uuid": f"6f1f5b0e-6f0e-4b62-9d2b-{n:012d}"},
    "windows": lambda n: window(end=5 * n),
    "ticks": tick_of,
    "packed_ticks": lambda n: next(packs_of([adapter_of(TickRecord).validate_python(tick_of(n))])),
    "decisions": record,
    "events": event,
    "migrations": lambda n: {"number": n, "state": "running", "copied": 0.5, "detail": ""},
}
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just("x" * 3000), st.just([{}])
)


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[dict[str, list[Any]], str, int]:
    """A report with one item that may be anything, the list that it is in, and its place."""
    lists = {name: [make(n) for n in range(1, draw(st.integers(1, 4)))] for name, make in GOOD.items()}
    name = draw(st.sampled_from(sorted(GOOD)))
    bad: Any = GOOD[name](9)
    if isinstance(bad, dict) and draw(st.booleans()):
        bad[draw(st.sampled_from(sorted(bad)))] = draw(JUNK)
    else:
        bad = draw(JUNK)
    place = draw(st.integers(0, len(lists[name])))
    lists[name].insert(place, bad)
    return lists, name, place


@settings(max_examples=300, deadline=None, derandomize=True)
@given(spoilt())
def test_any_bad_item_is_left_out_and_nothing_else(case: tuple[dict[str, list[Any]], str, int]) -> None:
    lists, name, place = case
    accepted = read_report(HOST, json.dumps(report(**lists)).encode(), lambda end: end)
    for other in LISTS:
        wanted = len(lists[other]) - (other == name and bool(accepted.refused))
        assert len(accepted.packs if other == "packed_ticks" else getattr(accepted.body, other)) == wanted
    fields = [one.field for one in accepted.refused]
    assert len(fields) <= 1
    assert all(field.startswith(f"{name}[{place}]") for field in fields)
    accepted.body.model_dump_json()


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spoilt())
def test_and_the_others_are_stored(postgresql_api: Api, case: tuple[dict[str, list[Any]], str, int]) -> None:
    lists, _, _ = case
    content = json.dumps(report(**lists))
    answer = postgresql_api.app.test_client().post(
        f"/api/v1/hosts/{HOST}/report",
        data=content,
        headers={
            "Authorization": f"Bearer {postgresql_api.secrets['host']}",
            "Content-Type": "application/json",
            "Equipoise-Protocol": "1",
        },
    )
    assert answer.status_code == 200, answer.text
    known = {one["id"] for one in postgresql_api.ok("GET", "/decisions?limit=1000")["items"]}
    wanted = [one for one in lists["decisions"] if isinstance(one, dict) and one.get("host") == HOST]
    assert {record(n)["id"] for n in range(1, 4) if record(n) in wanted} <= known


@pytest.fixture
def postgresql_api(get_api: Callable[[str], Api]) -> Api:
    return get_api("postgresql")


def test_several_are_named_by_their_places_in_what_was_sent(sqlite_api: Api) -> None:
    decisions = [record(1), record(2, knob="volume"), record(3, host="kvm9"), record(4), record(5, detail="x" * 9999)]
    events = [event(1, host="kvm9"), event(2)]
    windows = [window(end=5, start="2026-03-01T13:00:00Z"), window(end=10, count=1, requests=float("nan")), window()]
    body = json.dumps(report(decisions=decisions, events=events, windows=windows))
    accepted = read_report(HOST, body.encode(), lambda end: end)
    assert sorted((one.field, one.id) for one in accepted.refused) == [
        ("decisions[1].knob", record(2)["id"]),
        ("decisions[2].host", record(3)["id"]),
        ("decisions[4].detail", record(5)["id"]),
        ("events[0].host", event(1)["id"]),
        ("windows[0].start", "shop"),
        ("windows[1].requests", "shop"),
    ]
    assert [one.record_id for one in accepted.body.decisions] == [record(1)["id"], record(4)["id"]]
    assert len(accepted.body.windows) == 1


def test_what_is_listed_twice_counts_once(sqlite_api: Api) -> None:
    accepted = read_report(
        HOST, json.dumps(report(vms=[status("a"), status("a"), status("b")])).encode(), lambda end: end
    )
    assert [one.vm for one in accepted.body.vms or ()] == ["a", "b"]
    assert [one.field for one in accepted.refused] == ["vms[1].vm"]


def test_packs_hold_together_no_more_than_a_report_may() -> None:
    [pack] = packs_of([adapter_of(TickRecord).validate_python(tick_of(1))])
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = b64encode(b"\x02" + compressor.compress(b" " * 10 * MOST_TEXT) + compressor.flush()).decode()
    inflated: list[int] = []
    real = packed_records.zlib.decompressobj

    class Counted:
        """Counts what is made."""

        def __init__(self, *how: int) -> None:
            self.real = real(*how)

        def decompress(self, body: bytes, most: int) -> bytes:
            made = self.real.decompress(body, most)
            inflated.append(len(made))
            return made

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_records.zlib, "decompressobj", Counted)
        sent = json.dumps(report(packed_ticks=[pack, *[bomb] * 40, pack]))
        accepted = read_report(HOST, sent.encode(), lambda end: end)
    assert MOST_TEXT / 2 < sum(inflated) < 2 * MOST_TEXT
    assert len(accepted.refused) == 40 + (len(accepted.packs) < 2)
