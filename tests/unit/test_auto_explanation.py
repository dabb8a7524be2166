"""What `auto` says it does for an application, sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.fields import MAX_TEXT
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2
from manager.model.registration import Mode, Sharing
from manager.model.window import SlaState
from policies.auto import POLICY as AUTO
from policies.auto_crowd import Crowd
from policies.auto_explanation import Decided, explain
from policies.auto_memory import AutoMemory, Cooling, TakenBack, Trial
from policies.auto_model import AppModel, Fits, VmUse
from policies.auto_room import Room
from tests.unit.test_auto import app_model, application, batch, moment, overloaded, times, vm

NOW_S = 1000.0
WHY = "as that is predicted to violate fewer SLAs"


def seen(*vms: VmView, **fields: object) -> Snapshot:
    """`shop` and `flooded` beside a batch VM; both have a VM here."""
    views = tuple(application(name, [50], 100.0, NOW_S) for name in ("flooded", "shop"))
    return moment(NOW_S, *views, vms=vms or (batch(), vm("flooded", 0.5, 0.4), vm("shop", 0.4, 0.1)), **fields)


def observed(snapshot: Snapshot, mode: Mode = Mode.OBSERVE) -> Snapshot:
    return replace(snapshot, vms=tuple(replace(vm, mode=mode) for vm in snapshot.vms))


def models(shop_ms: float = 50.0, flooded_ms: float = 50.0) -> dict[str, AppModel]:
    return {"flooded": app_model("flooded", 0, flooded_ms), "shop": app_model("shop", 1, shop_ms)}


def courses(**ratios: float) -> dict[str, float]:
    return {name: math.log(ratio) for name, ratio in ratios.items()}


CALM = AutoMemory(courses=courses(shop=0.5, flooded=0.5))
LOWERED = AutoMemory(
    levels={"flooded": 2},
    changed_s=NOW_S - 15,
    courses=courses(shop=0.85, flooded=15.2),
    trial=Trial(NOW_S - 15, courses(shop=1.4)),
    before_levels=courses(shop=1.4, flooded=12.9),
)
ROOM = replace(CALM, room=Room(3, 3.4, 0.042), courses=courses(shop=0.7), before_room=courses(shop=1.2))
BACK = replace(
    CALM,
    cooling={"flooded": Cooling(NOW_S + 85, 1)},
    taken_back=TakenBack({"flooded": 2}, NOW_S - 35, courses(shop=1.4), courses(shop=1.38)),
)


def told(snapshot: Snapshot, now: AutoMemory, applications: Mapping[str, AppModel], **fields: object) -> dict[str, str]:
    left_by = {"batch"} if now.room.pcpus else frozenset[str]()
    decided = Decided(now, CPU_WEIGHT_V2, applications, left_by, shared=True, weighed=True)
    return {each.application: each.text for each in explain(snapshot, replace(decided, **fields))}


def test_nothing_is_needed() -> None:
    considered = "Above 80 %, other weights are considered, and pCPUs without batch VMs."
    nothing = "Nothing is needed: p95 is 62 % of its target, at static weights."
    assert told(seen(), CALM, models(62.0))["shop"] == f"{nothing} {considered}"
    alone = told(seen(), CALM, models(62.0), shared=False, weighed=False)["shop"]
    assert alone == nothing, "VMs with pCPUs of their own get neither"
    packed = told(seen(), CALM, models(62.0), shared=False)["shop"]
    assert packed == f"{nothing} Above 80 %, other weights are considered.", "packed ones get no room"


@pytest.mark.parametrize(
    ("now", "fields", "text"),
    [
        (
            CALM,
            {},
            "Its p95 is 92 % of its target; no weights that may be tried are predicted to violate clearly fewer SLAs.",
        ),
        (
            replace(CALM, changed_s=NOW_S - 5),
            {},
            "Its p95 is 92 % of its target; other weights are considered again in 5 s.",
        ),
        (
            CALM,
            {"shared": False, "weighed": False},
            "Its p95 is 92 % of its target; weights stay static, as no two critical VMs share a pCPU.",
        ),
    ],
)
def test_why_no_weight_is_changed(now: AutoMemory, fields: dict[str, object], text: str) -> None:
    assert told(seen(), now, models(92.0), **fields)["shop"] == text


@pytest.mark.parametrize(
    ("now", "shop", "flooded"),
    [
        (
            LOWERED,
            f"Application flooded has weight 625 in place of 10,000, {WHY} (p95: 140 % of its target before, 85 %"
            " now; p95 of flooded: 12.9 times its target before, 15.2 times now); it is on trial, and taken back in"
            " 25 s unless shop does better by more than chance.",
            f"It has weight 625 in place of 10,000, {WHY} (p95: 12.9 times its target before, 15.2 times now); it is"
            " on trial, and taken back in 25 s unless shop does better by more than chance.",
        ),
        (
            replace(LOWERED, trial=Trial(NOW_S - 15, {}), before_levels=LOWERED.courses),
            f"Application flooded has weight 625 in place of 10,000, {WHY} (p95: 85 % of its target; p95 of flooded:"
            " 15.2 times its target); it is on trial, and kept in 25 s, as there is no other SLA at risk to compare.",
            f"It has weight 625 in place of 10,000, {WHY} (p95: 15.2 times its target); it is on trial, and kept in"
            " 25 s, as there is no other SLA at risk to compare.",
        ),
        (
            replace(LOWERED, trial=None),
            f"Application flooded has weight 625 in place of 10,000, {WHY} (p95: 140 % of its target before, 85 %"
            " now; p95 of flooded: 12.9 times its target before, 15.2 times now); its trial is passed, and it ends once"
            " as few violations are predicted without it.",
            f"It has weight 625 in place of 10,000, {WHY} (p95: 12.9 times its target before, 15.2 times now); its"
            " trial is passed, and it ends once as few violations are predicted without it.",
        ),
    ],
    ids=["trial", "nobody to save", "kept"],
)
def test_who_is_lowered_what_that_brought_and_cost_and_what_comes_next(
    now: AutoMemory, shop: str, flooded: str
) -> None:
    assert told(seen(), now, models(85.0, 1520.0)) == {"shop": shop, "flooded": flooded}


def test_who_lends_with_response_times_to_spare_and_until_when() -> None:
    lends = replace(LOWERED, levels={"flooded": 1}, lenders=frozenset({"flooded"}))
    text = told(seen(), lends, models(85.0, 30.0))["shop"]
    assert text.startswith(
        f"Application flooded has weight 2,500 in place of 10,000 (flooded with response times to spare), {WHY}"
    )
    assert text.endswith("it is on trial, and taken back in 25 s unless shop does better.")
    kept = told(seen(), replace(lends, trial=None), models(85.0, 30.0))["shop"]
    assert kept.endswith(
        "as few violations are predicted without it, or flooded violates its SLA on average, or at all once"
        " that has cost a violation more than it saved."
    )
    kept = told(seen(), replace(lends, trial=None, saved=-2.0), models(85.0, 30.0))["shop"]
    assert kept.endswith(
        "as few violations are predicted without it, or flooded violates its SLA, or"
        " is above 65 % of target on average."
    )


def test_one_of_two_lowered_ones_that_is_observed() -> None:
    flooded, shop = vm("flooded", 0.5, 0.4), vm("shop", 0.4, 0.1)
    snapshot = seen(batch(), flooded, replace(shop, mode=Mode.OBSERVE))
    text = told(snapshot, replace(LOWERED, levels={"flooded": 2, "shop": 1}), models())["flooded"]
    assert text.startswith("It has weight 625 and shop would, in mode enforce, have weight 2,500 in place of 10,000,")


def test_weights_are_those_that_the_host_can_give() -> None:
    text = told(seen(), LOWERED, models(), scale=CPU_SHARES_V1)["flooded"]
    assert text.startswith("It has weight 1,024 in place of 10,000,")


def test_several_that_are_lowered_and_several_that_are_saved() -> None:
    saved = courses(a=1.0, b=1.0, c=1.0, d=1.0, shop=1.0)
    now = replace(LOWERED, levels={"flooded": 2, "shop": 1}, courses=saved, trial=Trial(NOW_S, saved))
    text = told(seen(), now, models())["shop"]
    assert text.startswith("It has weight 2,500 and flooded has weight 625 in place of 10,000,")
    assert text.endswith("unless a, b, c and 2 more do better by more than chance.")


def test_room_with_its_cost_and_its_end() -> None:
    assert told(seen(), ROOM, models(shop_ms=92.0))["shop"] == (
        "Batch VMs leave 3 pCPUs to critical VMs, as shop is at risk (p95: 120 % of its target before, 70 % now); it"
        " costs them 4 % of their CPU time over 5 min, and ends 10 s after the last risk or above 15 %."
    )
    one = replace(ROOM, room=replace(ROOM.room, pcpus=1))
    assert "1 pCPU to critical VMs, as flooded and shop are at risk" in told(seen(), one, models(92.0, 92.0))["shop"]


@pytest.mark.parametrize(("waited_pcpus", "said"), [(0.05, True), (0.2, False)])
def test_why_batch_vms_leave_no_pcpus_to_one_at_risk(waited_pcpus: float, said: bool) -> None:
    now = replace(CALM, fits=Fits({"shop-web": VmUse(0.45, waited_pcpus)}))
    text = "Batch VMs leave no pCPUs, as VMs at risk wait for pCPUs for 10 % of their runnable time, less than 20 %."
    assert (text in told(seen(), now, models(92.0))["shop"]) is said
    assert "leave no pCPUs" not in told(seen(), now, models(92.0), shared=False)["shop"], "nor would they otherwise"
    assert "leave no pCPUs" not in told(seen(), now, models(62.0))["shop"], "it is not at risk"


def test_room_that_has_cost_too_much() -> None:
    spent = replace(CALM, room=Room(0, 3.4, 0.113, spent=True))
    lost = "that cost them 11 % of their CPU time over 5 min, and is to be less than 7.5 % first."
    text = f"Batch VMs leave no pCPUs: {lost}"
    assert told(seen(), spent, models(shop_ms=92.0))["shop"].startswith(text)
    assert "leave no pCPUs" not in told(seen(), spent, models())["shop"], "nor would they otherwise"


@pytest.mark.parametrize(
    ("mode", "begin"), [(Mode.ENFORCE, "Its VMs"), (Mode.OBSERVE, "In mode enforce, its VMs would")]
)
def test_floating(mode: Mode, begin: str) -> None:
    snapshot = observed(seen(), mode)
    floating = replace(CALM, crowd=Crowd(4, 3, 0.2, floats=True))
    text = told(snapshot, floating, models())["shop"]
    assert text.startswith(
        f"{begin} float, as 4 critical vCPUs outnumber the 3 pCPUs they may be pinned to. Nothing else"
    )
    pinned = tuple(replace(each, spec=replace(each.spec, pin=True)) for each in snapshot.vms)
    assert "float" not in told(replace(snapshot, vms=pinned), floating, models())["shop"]


def test_those_that_stay_packed_until_floating_is_needed() -> None:
    packed = replace(CALM, crowd=Crowd(6, 4, 0.3, floats=False))
    assert told(seen(), packed, models(), shared=False)["shop"].startswith(
        "Its VMs stay packed until an SLA is at risk on average, although 6 critical vCPUs outnumber the 4 pCPUs"
        " they may be pinned to. Nothing else"
    )


def test_those_that_stay_packed() -> None:
    packed = replace(CALM, crowd=Crowd(6, 4, 0.6, floats=False))
    assert told(seen(), packed, models(), shared=False)["shop"].startswith(
        "Its VMs stay packed although 6 critical vCPUs outnumber the 4 pCPUs they may be pinned to, as VMs with a vCPU"
        " on most of these use much of them. Nothing else"
    )


def test_what_was_taken_back_until_it_may_be_tried_again() -> None:
    begin = "Taken back 35 s ago, and not tried again for 85 s: weight 625 for flooded"
    text = told(seen(), BACK, models())
    assert text["shop"].startswith(f"{begin} (p95: 140 % of its target before, 138 % under it). Nothing is needed")
    assert text["flooded"].startswith(f"{begin} (p95 of shop: 140 % of its target before, 138 % under it). Nothing")
    cooled = replace(BACK, cooling={"flooded": Cooling(NOW_S, 1)})
    assert "Taken back" not in told(seen(), cooled, models())["shop"]
    uninvolved = replace(BACK, taken_back=replace(BACK.taken_back, before={}))
    assert "Taken back" not in told(seen(), uninvolved, models())["shop"]


def test_what_is_observed_would_be_done_and_has_no_effect() -> None:
    snapshot = observed(seen())
    text = told(snapshot, LOWERED, models())
    assert text["shop"] == (
        f"In mode enforce, flooded would have weight 625 in place of 10,000, {WHY} (p95: 85 % of its target)."
    )
    assert text["flooded"].startswith("In mode enforce, it would have weight 625 in place of 10,000,")
    assert told(snapshot, ROOM, models(shop_ms=92.0))["shop"] == (
        "In mode enforce, batch VMs would leave 3 pCPUs to critical VMs, as shop is at risk (p95: 70 % of its target)."
    )


def test_applications_of_which_nothing_is_known() -> None:
    bare = "so no step is taken for it."
    assert told(seen(), CALM, {})["shop"] == f"It has too few recent response times, {bare}"
    [view] = [view for view in seen().applications if view.application.name == "shop"]
    without = ApplicationView(replace(view.application, sla=None), None, SlaState.NO_DATA)
    assert told(replace(seen(), applications=(without,)), CALM, {}) == {"shop": f"It has no SLA, {bare}"}
    assert told(observed(seen(), Mode.RELEASED), CALM, models())["shop"] == (
        "Its VMs are released: nothing is done for them."
    )
    over = {"shop": replace(models(150.0)["shop"], over=True)}
    assert told(seen(), CALM, over)["shop"].startswith(
        "It is above its agreed rate, so its violations count for nothing."
    )
    assert "shop" not in told(seen(batch(), vm("flooded", 0.5, 0.4)), CALM, models()), "none of its VMs is here"


def test_the_policy_explains_each_of_its_decisions() -> None:
    decision = AUTO.decide(overloaded(NOW_S), None)
    text = {each.application: each.text for each in decision.explanations}
    assert text["flooded"].startswith("It has weight ")
    assert text["other"].startswith("Application flooded has weight ")
    assert "taken back in 40 s unless other does better" in text["other"]
    text = {each.application: each.text for each in AUTO.decide(observed(overloaded(NOW_S)), None).explanations}
    assert text["flooded"].startswith("In mode enforce, it would have weight ")


@given(
    st.lists(st.tuples(times, times), min_size=1, max_size=12),
    st.sampled_from([Sharing.ISOLATION, None]),
    st.sampled_from(Mode),
)
def test_whatever_is_measured_each_application_has_a_short_text(
    ticks: list[tuple[list[float], list[float]]], sharing: Sharing | None, mode: Mode
) -> None:
    memory: object = None
    for number, (first_ms, second_ms) in enumerate(ticks):
        at_s = NOW_S + 10 * number
        snapshot = moment(
            at_s,
            application("first", first_ms, 200.0, at_s, sharing=sharing),
            application("second", second_ms, 120.0, at_s),
            vms=[batch(), vm("first", 0.9, 0.1), vm("second", 0.2, 0.7)],
        )
        decision = AUTO.decide(observed(snapshot, mode), memory)
        memory = decision.memory
        assert [each.application for each in decision.explanations] == ["first", "second"]
        for each in decision.explanations:
            assert each.text.endswith(".")
            assert len(each.text) < MAX_TEXT / 2
            assert each.text.isprintable()
