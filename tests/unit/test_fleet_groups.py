"""Groups of applications: counted by state, the worst first."""

from __future__ import annotations

from manager.control.fleet_groups import summarise
from manager.model.window import SlaState

MET, VIOLATED, AT_RISK = SlaState.MET, SlaState.VIOLATED, SlaState.AT_RISK


def test_an_application_counts_in_each_of_its_groups_and_without_one_apart() -> None:
    groups = {group.value: group for group in summarise([(MET, ("a", "b")), (VIOLATED, ("b",)), (AT_RISK, ())])}
    assert {value: group.count for value, group in groups.items()} == {"a": 1, "b": 2, "": 1}
    assert groups["b"].states == {MET: 1, AT_RISK: 0, VIOLATED: 1, SlaState.NO_DATA: 0}
    assert {value: group.worst for value, group in groups.items()} == {"a": MET, "b": VIOLATED, "": AT_RISK}


def test_the_worst_group_comes_first_then_by_value() -> None:
    members = [(MET, "d"), (MET, "c"), (AT_RISK, "b"), (VIOLATED, "a2"), (VIOLATED, "z"), (VIOLATED, "z")]
    assert [group.value for group in summarise((state, (value,)) for state, value in members)] == [
        "z", "a2", "b", "c", "d",
    ]  # fmt: skip


def test_without_applications_there_is_no_group() -> None:
    assert summarise([]) == []
