"""The policies that come with Equipoise, and finding those of others."""

from __future__ import annotations

import re
import sys
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from manager.control.resolve import validate
from manager.model.decision import Decision
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, WeightScale
from manager.model.registration import VmClass
from policies.equal import POLICY as EQUAL
from policies.installed import GROUP, load_policies
from policies.priority import POLICY as PRIORITY
from tests.unit.build import snapshot, view

VMS = (
    view("batch", VmClass.BATCH),
    view("batch-own", VmClass.BATCH, own_weight=500),
    view("web"),
    view("web-max", own_weight=262_144),
    view("web-no-cgroup", weight=None),
)


@pytest.mark.parametrize(
    ("policy", "scale", "version", "weights"),
    [
        (EQUAL, CPU_SHARES_V1, 1, [1024, 1024, 1024, 1024, 1024]),
        (EQUAL, CPU_WEIGHT_V2, 2, [100, 100, 100, 100, 100]),
        (EQUAL, None, 0, []),
        (PRIORITY, CPU_SHARES_V1, 1, [2, 500, 10_000, 262_144, 10_000]),
        (PRIORITY, CPU_WEIGHT_V2, 2, [1, 500, 10_000, 262_144, 10_000]),
        (PRIORITY, None, 0, []),
    ],
)
def test_weights(policy, scale: WeightScale | None, version: int, weights: list[int]) -> None:
    seen = snapshot(*VMS, scale=scale, version=version)
    decision = policy.decide(seen, None)
    assert [goal.weight for goal in decision.weights] == weights
    assert [goal.vm for goal in decision.weights] == [vm.name for vm in VMS if scale]
    assert validate(decision, seen) is None


@pytest.mark.parametrize("policy", [EQUAL, PRIORITY])
def test_every_weight_has_a_reason_that_names_the_policy(policy) -> None:
    goals = policy.decide(snapshot(*VMS), None).weights
    assert all(goal.reason.startswith(f"{policy.name}: ") for goal in goals)


def test_reasons_of_priority_say_which_rule_it_was() -> None:
    reasons = {goal.vm: goal.reason for goal in PRIORITY.decide(snapshot(*VMS), None).weights}
    assert reasons["batch"] == "priority: batch VM"
    assert reasons["web"] == "priority: critical VM"
    assert reasons["batch-own"] == reasons["web-max"] == "priority: weight registered for this VM"


@pytest.mark.parametrize("policy", [EQUAL, PRIORITY])
def test_policies_are_pure_and_need_no_vms(policy) -> None:
    seen = snapshot(*VMS)
    assert policy.decide(seen, None) == policy.decide(seen, "whatever came before")
    assert policy.decide(snapshot(), None) == Decision()


def entry_point(name: str, value: str, distribution: str = "") -> EntryPoint:
    point = EntryPoint(name, value, GROUP)
    if distribution:
        vars(point)["dist"] = SimpleNamespace(name=distribution)
    return point


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A third party's module; what tests put into it can be an entry point's object. It sorts before ours."""
    module = ModuleType("another_party")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def policy(name: object = "theirs", **other: object) -> SimpleNamespace:
    return SimpleNamespace(**{"name": name, "summary": "Theirs.", "decide": lambda *_: Decision()} | other)


def test_a_another_partys_policy_is_found(foreign) -> None:
    foreign.POLICY = policy()
    told: list[str] = []
    found = load_policies([entry_point("theirs", "another_party:POLICY", "their-package")], told.append)
    assert found["theirs"].policy is foreign.POLICY
    assert found["theirs"].provided_by == "their-package"
    assert told == []


def test_ours_are_found_by_the_entry_points_that_are_declared() -> None:
    declared = ConfigParser()
    declared.read(Path(__file__).parents[2] / "setup.cfg")
    lines = [line for line in declared["options.entry_points"][GROUP].splitlines() if line]
    points = [entry_point(*re.split(r"\s*=\s*", line), "equipoise") for line in lines]
    told: list[str] = []
    found = load_policies(points, told.append)
    assert told == []
    assert found["equal"].policy is EQUAL
    assert found["priority"].policy is PRIORITY
    assert found.keys() == {point.name for point in points}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:POLICY", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "another_party:NOTHING",
            "cannot be loaded: AttributeError: module 'another_party' has no attribute 'NOTHING'",
        ),
        ("another_party:OTHER_NAME", "is not a policy: it needs that name"),
        ("another_party:NO_SUMMARY", "is not a policy: it needs that name"),
        ("another_party:NO_DECIDE", "is not a policy: it needs that name"),
        ("another_party:A_NUMBER", "is not a policy: it needs that name"),
    ],
)
def test_a_broken_one_is_left_out_and_told_and_the_others_stay(foreign, value: str, says: str) -> None:
    foreign.OTHER_NAME = policy("something-else")
    foreign.NO_SUMMARY = policy(summary=None)
    foreign.NO_DECIDE = policy(decide="not a function")
    foreign.A_NUMBER = 5
    ours = entry_point("equal", "policies.equal:POLICY", "equipoise")
    told: list[str] = []
    found = load_policies([entry_point("theirs", value, "their-package"), ours], told.append)
    assert found.keys() == {"equal"}
    [message] = told
    assert message.startswith(f"policy 'theirs' of their-package {says}")


@pytest.mark.parametrize("error", [ImportError("broken"), SystemExit("at import"), ZeroDivisionError("broken")])
def test_whatever_happens_at_import_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error) -> None:
    (tmp_path / "raises_at_import.py").write_text(f"raise {error!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    assert load_policies([entry_point("theirs", "raises_at_import:POLICY")], told.append) == {}
    assert told == [f"policy 'theirs' of an unknown distribution cannot be loaded: {type(error).__name__}: {error}"]


@pytest.mark.parametrize("name", ["", "Upper", "with space", "under_score", "-dash", "x" * 64, "line\n"])
def test_a_name_that_operators_cannot_use_is_refused(foreign, name: str) -> None:
    foreign.POLICY = policy(name)
    told: list[str] = []
    assert load_policies([entry_point(name, "another_party:POLICY")], told.append) == {}
    assert len(told) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_with_one_name_ours_stays_whatever_the_order(foreign, order: int) -> None:
    foreign.POLICY = policy("priority")
    points = [
        entry_point("priority", "policies.priority:POLICY", "equipoise"),
        entry_point("priority", "a_missing_party:POLICY", "their-package"),
        entry_point("priority", "another_party:POLICY", "their-package"),
    ]
    told: list[str] = []
    found = load_policies(points[::order], told.append)
    assert found["priority"].policy is PRIORITY
    assert told == [
        "policy 'priority' of their-package cannot be loaded: ModuleNotFoundError: No module named 'a_missing_party'",
        "policy 'priority' of their-package is left out: equipoise has that name",
    ]


def test_nobody_has_to_listen() -> None:
    assert load_policies([entry_point("theirs", "no_such_module:POLICY")]) == {}
