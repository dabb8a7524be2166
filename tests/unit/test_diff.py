"""What is to be done about each knob: a table of every case, and what holds for any plan."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.diff import HostValues, _Diff
from manager.control.diff import diff as diff_found
from manager.model.decision import Action, Change, Goal, Owned, Plan
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Mode

KEY = KnobKey("u", Knob.WEIGHT)
UNMANAGED = "no longer managed here: back to the original"
NOT_ENFORCED = "not enforced any more: back to the original"
ONLINE = frozenset(range(8))
ENFORCE, OBSERVE, RELEASED = Mode.ENFORCE, Mode.OBSERVE, Mode.RELEASED


def goal(value: KnobValue, mode: Mode = ENFORCE, key: KnobKey = KEY) -> Goal:
    return Goal(key, value, "why", mode)


def diff(plan: Plan, actual: dict[KnobKey, KnobValue], ledger: dict[KnobKey, Owned]) -> tuple[Change, ...]:
    """On a host with the pCPUs 0 to 7."""
    return diff_found(plan, HostValues(actual, ONLINE, default_weight=1024), ledger)


def owned(original: int, intended: int, previous: int | None = None, **flags: bool) -> Owned:
    """A knob that is known to hold what was intended, unless ``previous`` says what may be there still."""
    return Owned(original, original if previous is None else previous, intended, settled=previous is None, **flags)


def write(before: int, after: int) -> tuple[Action, int, int, str]:
    return Action.WRITE, before, after, "why"


def forget(value: int) -> tuple[Action, int, int, object]:
    return Action.FORGET, value, value, ANY  # nobody is told of it


def foreign(left: int, found: int) -> tuple[Action, int, int, str]:
    return Action.LEAVE, left, found, f"external change: we left {left}, found {found}"


# fmt: off
CASES = [
    # never ours
    ("as wanted", 10, goal(10), None, []),
    ("other than wanted", 1024, goal(10), None, [write(1024, 10)]),
    ("observed, as wanted", 10, goal(10, OBSERVE), None, []),
    ("observed, other than wanted", 1024, goal(10, OBSERVE), None, [(Action.OBSERVE, 1024, 10, "why")]),
    ("released", 1024, goal(10, RELEASED), None, []),
    # ours, written for certain
    ("still wanted", 10, goal(10), owned(1024, 10), []),
    ("another value wanted", 10, goal(20), owned(1024, 10), [write(10, 20)]),
    ("the original wanted", 10, goal(1024), owned(1024, 10), [write(10, 1024)]),
    ("the original wanted and there", 1024, goal(1024), owned(1024, 1024), [forget(1024)]),
    ("not wanted any more", 10, None, owned(1024, 10), [(Action.RESTORE, 10, 1024, UNMANAGED)]),
    ("not wanted, holds its original", 1024, None, owned(1024, 1024), [forget(1024)]),
    ("released while ours", 10, goal(10, RELEASED), owned(1024, 10), [(Action.RESTORE, 10, 1024, UNMANAGED)]),
    ("only observed now, same wish", 10, goal(10, OBSERVE), owned(1024, 10),
     [(Action.RESTORE, 10, 1024, NOT_ENFORCED), (Action.OBSERVE, 1024, 10, "why")]),
    ("only observed now, wish is the original", 10, goal(1024, OBSERVE), owned(1024, 10),
     [(Action.RESTORE, 10, 1024, NOT_ENFORCED)]),
    ("only observed now, holds its original", 1024, goal(10, OBSERVE), owned(1024, 1024),
     [forget(1024), (Action.OBSERVE, 1024, 10, "why")]),
    # changed by somebody else
    ("meddled with, wanted", 777, goal(10), owned(1024, 10), [foreign(10, 777)]),
    ("meddled with, to another wish of ours", 20, goal(20), owned(1024, 10), [foreign(10, 20)]),
    ("meddled with, observed", 777, goal(10, OBSERVE), owned(1024, 10), [foreign(10, 777)]),
    ("meddled with, not wanted", 777, None, owned(1024, 10),
     [foreign(10, 777), forget(777)]),
    ("meddled with, released", 777, goal(10, RELEASED), owned(1024, 10),
     [foreign(10, 777), forget(777)]),
    ("put back by somebody else", 1024, goal(10), owned(1024, 10), [foreign(10, 1024)]),
    ("given up, wanted", 777, goal(10), owned(1024, 10, external=True), []),
    ("given up, wanted, as wanted by chance", 10, goal(10), owned(1024, 10, external=True), []),
    ("given up, observed", 777, goal(10, OBSERVE), owned(1024, 10, external=True), []),
    ("given up, not wanted", 777, None, owned(1024, 10, external=True), [forget(777)]),
    ("given up, released", 777, goal(10, RELEASED), owned(1024, 10, external=True),
     [forget(777)]),
    # the agent died between intention and write, or the write failed: either value may be there
    ("unsettled, written, wanted", 10, goal(10), owned(1024, 10, previous=1024), []),
    ("unsettled, not written, wanted", 1024, goal(10), owned(1024, 10, previous=1024), [write(1024, 10)]),
    ("unsettled, not written, old wish", 5, goal(5), owned(1024, 10, previous=5), [write(5, 5)]),
    ("unsettled, not written, the original wanted", 1024, goal(1024), owned(1024, 10, previous=1024),
     [write(1024, 1024)]),
    ("unsettled, not written, not wanted", 1024, None, owned(1024, 10, previous=1024),
     [forget(1024)]),
    ("unsettled, not written, not wanted, changed before", 5, None, owned(1024, 10, previous=5),
     [(Action.RESTORE, 5, 1024, UNMANAGED)]),
    ("unsettled, written, not wanted", 10, None, owned(1024, 10, previous=5), [(Action.RESTORE, 10, 1024, UNMANAGED)]),
    ("unsettled, neither", 777, goal(10), owned(1024, 10, previous=1024), [foreign(10, 777)]),
    ("unsettled, only observed now", 1024, goal(10, OBSERVE), owned(1024, 10, previous=1024),
     [forget(1024), (Action.OBSERVE, 1024, 10, "why")]),
    ("settled, holds what was before", 5, goal(10), Owned(1024, 5, 10, settled=True), [foreign(10, 5)]),
    # unread: left alone
    ("unread, wanted", None, goal(10), None, []),
    ("unread, ours", None, None, owned(1024, 10), []),
    ("unread, given up", None, None, owned(1024, 10, external=True), []),
    ("nothing at all", 1024, None, None, []),
]
# fmt: on


@pytest.mark.parametrize(
    ("value", "wish", "known", "changes"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_every_case(value: int | None, wish: Goal | None, known: Owned | None, changes: list) -> None:
    plan = Plan((wish,) if wish else ())
    actual: dict[KnobKey, KnobValue] = {} if value is None else {KEY: value}
    found = diff(plan, actual, {KEY: known} if known else {})
    expected = tuple(Change(action, KEY, before, after, reason, ANY) for action, before, after, reason in changes)
    assert found == expected


def test_a_limit_that_systemd_takes_from_a_scope_is_set_again() -> None:
    key, plan = KnobKey("u", Knob.QUOTA), Plan((goal(50_000, key=KnobKey("u", Knob.QUOTA)),))
    ledger = {key: owned(-1, 50_000)}
    for scopes, action in (({"u"}, Action.WRITE), ({"v"}, Action.LEAVE)):
        [change] = diff_found(plan, HostValues({key: -1}, ONLINE, scopes=scopes), ledger)
        assert change.action is action


def test_the_table_has_every_action() -> None:
    assert {change[0] for row in CASES for change in row[4]} == set(Action) - {Action.KEEP}, "it is about two knobs"


def test_undoing_says_why() -> None:
    plan = Plan((goal(10, OBSERVE, pin(0)),), undo_reason="agent stopped")
    ledger = {KEY: owned(1024, 10), pin(0): owned(1024, 10)}
    restored = [change for change in diff(plan, {KEY: 10, pin(0): 10}, ledger) if change.action is Action.RESTORE]
    assert {change.key: change.reason for change in restored} == {
        KEY: "agent stopped: back to the original",
        pin(0): NOT_ENFORCED,
    }


def pin(index: int) -> KnobKey:
    return KnobKey("u", Knob.VCPU_PIN, index)


def test_widening_goes_first_then_the_order_of_knobs() -> None:
    def cpus(*numbers: int) -> frozenset[int]:
        return frozenset(numbers)

    wishes = {KEY: 10, pin(0): cpus(0), pin(1): cpus(0, 1, 2), pin(2): cpus(2, 3), pin(3): cpus(0, 1)}
    actual = {KEY: 2, pin(0): cpus(0, 1), pin(1): cpus(1), pin(2): cpus(0, 1), pin(3): cpus(1)}
    found = diff(Plan(tuple(goal(value, key=key) for key, value in wishes.items())), actual, {})
    assert [change.key for change in found] == [pin(1), pin(3), pin(0), pin(2), KEY]


knob_keys = st.sampled_from(
    [KnobKey(uuid, knob, index) for uuid in "ab" for knob, index in ((Knob.WEIGHT, 0), (Knob.EMULATOR_PIN, 0))]
    + [KnobKey(uuid, Knob.VCPU_PIN, index) for uuid in "ab" for index in range(2)]
)


def values(key: KnobKey) -> st.SearchStrategy[KnobValue]:
    if key.knob is Knob.WEIGHT:
        return st.integers(2, 6)
    return st.frozensets(st.integers(0, 3), min_size=1)


@st.composite
def settings_of_a_host(draw: st.DrawFn) -> dict[KnobKey, KnobValue]:
    return {key: draw(values(key)) for key in draw(st.frozensets(knob_keys, min_size=1))}


@st.composite
def plans(draw: st.DrawFn, modes: tuple[Mode, ...] = tuple(Mode)) -> Plan:
    keys = sorted(draw(st.frozensets(knob_keys)))
    return Plan(tuple(goal(draw(values(key)), draw(st.sampled_from(modes)), key) for key in keys))


class Host:
    """Knobs and a ledger, changed as the loop does it when every write succeeds."""

    def __init__(self, actual: dict[KnobKey, KnobValue]) -> None:
        self.actual = dict(actual)
        self.ledger: dict[KnobKey, Owned] = {}

    def reach(self, plan: Plan) -> tuple[Change, ...]:
        changes = diff(plan, self.actual, self.ledger)
        for change in changes:
            known = self.ledger.get(change.key)
            if change.action in {Action.WRITE, Action.KEEP}:
                assert change.original is not None
                original = known.original if known else change.original
                self.actual[change.key] = change.after
                self.ledger[change.key] = Owned(original, change.before, change.after, settled=True)
            elif change.action is Action.RESTORE:
                self.actual[change.key] = change.after
                self.ledger.pop(change.key, None)
            elif change.action is Action.FORGET:
                del self.ledger[change.key]
            elif change.action is Action.LEAVE:
                self.ledger[change.key] = replace(self.ledger[change.key], external=True)
        return changes


@given(plans())
def test_nothing_is_done_on_a_host_that_is_as_planned(plan: Plan) -> None:
    assert diff(plan, {wish.key: wish.value for wish in plan.goals}, {}) == ()


@given(settings_of_a_host(), st.lists(plans(), min_size=1, max_size=4))
def test_applying_the_changes_reaches_the_plan(actual, history: list[Plan]) -> None:
    host = Host(actual)
    for plan in history:
        host.reach(plan)
        wishes = {wish.key: wish for wish in plan.goals}
        for key, original in actual.items():
            wish = wishes.get(key)
            enforced = wish is not None and wish.mode is ENFORCE
            assert host.actual[key] == (wish.value if enforced else original)
        again = host.reach(plan)
        assert {change.action for change in again} <= {Action.OBSERVE, Action.FORGET}, "at once, and then at rest"


@given(settings_of_a_host(), st.lists(plans(), min_size=1, max_size=3))
def test_the_short_cut_for_what_is_as_planned_leaves_no_change_out(actual, history: list[Plan]) -> None:
    host = Host(actual)
    for plan in (*history, history[-1]):
        changes = diff(plan, host.actual, host.ledger)
        with mock.patch.object(_Diff, "is_as_planned", return_value=False):
            assert diff(plan, host.actual, host.ledger) == changes
        host.reach(plan)


@given(settings_of_a_host(), st.lists(plans(), max_size=4))
def test_an_empty_plan_restores_the_originals_and_forgets(actual, history: list[Plan]) -> None:
    host = Host(actual)
    for plan in history:
        host.reach(plan)
    host.reach(Plan())
    assert host.actual == actual
    assert not host.ledger
    assert host.reach(Plan()) == ()


@given(settings_of_a_host(), plans(modes=(OBSERVE, RELEASED)), st.lists(plans(), max_size=2))
def test_nothing_is_written_for_what_is_not_enforced(actual, plan: Plan, history: list[Plan]) -> None:
    assert {change.action for change in diff(plan, actual, {})} <= {Action.OBSERVE}
    host = Host(actual)
    for earlier in history:
        host.reach(earlier)
    assert Action.WRITE not in {change.action for change in host.reach(plan)}


@given(settings_of_a_host(), plans(), plans(), st.data())
def test_what_somebody_else_changed_is_never_written_again(actual, first: Plan, second: Plan, data) -> None:
    host = Host(actual)
    host.reach(first)
    if not host.ledger:
        return
    key = data.draw(st.sampled_from(sorted(host.ledger)))
    found = data.draw(values(key).filter(lambda value: value != host.actual[key]))
    host.actual[key] = found
    kept = Plan((*(wish for wish in second.goals if wish.key != key), goal(actual[key], OBSERVE, key)))
    for plan in (kept, kept, Plan()):
        host.reach(plan)
        assert host.actual[key] == found
    assert host.actual == actual | {key: found}
    assert not host.ledger


@given(settings_of_a_host(), plans(), plans())
def test_widening_changes_come_first(actual, first: Plan, second: Plan) -> None:
    host = Host(actual)
    for plan in (first, second, Plan()):
        changes = host.reach(plan)
        widens = [isinstance(one.before, frozenset) and one.before < one.after for one in changes]
        assert widens == sorted(widens, reverse=True)
        for part in (True, False):
            keys = [one.key for one, widening in zip(changes, widens, strict=True) if widening is part]
            assert keys == sorted(keys)


@given(settings_of_a_host(), plans(), plans())
def test_the_order_of_goals_does_not_matter(actual, first: Plan, second: Plan) -> None:
    host = Host(actual)
    host.reach(first)
    backwards = Plan(second.goals[::-1])
    ledger = dict(reversed(host.ledger.items()))
    assert diff(backwards, host.actual, ledger) == diff(second, host.actual, host.ledger)
