"""Whose a VM is that two hosts report, and when that is an alarm."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from manager.control.claim_rules import Foul, HeldVm, RegisteredVm, claim_text, foul, is_alarm

UUID, OTHER_UUID = "uuid-1", "uuid-2"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)


@pytest.mark.parametrize(
    ("registered", "holder", "expected"),
    [
        (RegisteredVm("a", None), None, None),
        (RegisteredVm("a", UUID), "b", None),
        (RegisteredVm("b", UUID), None, Foul.REGISTERED_ELSEWHERE),
        (RegisteredVm("a", OTHER_UUID), None, Foul.OTHER_UUID),
        (RegisteredVm(None, OTHER_UUID), "b", Foul.OTHER_UUID),
        (RegisteredVm(None, UUID), "b", Foul.RUNS_ELSEWHERE),
        (RegisteredVm(None, None), None, None),
    ],
)
def test_who_may_report_a_vm(registered: RegisteredVm, holder: str | None, expected: Foul | None) -> None:
    assert foul(registered, "a", UUID, holder) is expected


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (HeldVm(UUID, migrating=True), True),
        (HeldVm(UUID, migrating=False), False),
        (HeldVm(OTHER_UUID, migrating=True), False),
    ],
)
def test_only_the_host_that_has_a_vm_says_where_it_may_migrate_to(held: HeldVm, expected: bool) -> None:
    assert held.migrates_to({UUID, "uuid-3"}) is expected
    assert not held.migrates_to(())


@pytest.mark.parametrize("ago_s", [0, 59, 60, 61])
def test_a_claim_is_an_alarm_after_a_minute(ago_s: int) -> None:
    then = NOW - timedelta(seconds=ago_s)
    assert is_alarm(Foul.RUNS_ELSEWHERE, LONG_AGO, then, NOW) is (ago_s >= 60)
    assert is_alarm(Foul.RUNS_ELSEWHERE, then, LONG_AGO, NOW) is (ago_s >= 60)
    for why in (Foul.REGISTERED_ELSEWHERE, Foul.OTHER_UUID):
        assert is_alarm(why, then, LONG_AGO, NOW) is (ago_s >= 60), "its agent may not know the registration yet"
        assert is_alarm(why, LONG_AGO, then, NOW), "no migration explains it"


def test_an_alarm_names_the_domain_that_two_hosts_have() -> None:
    def text(held: HeldVm) -> str:
        return claim_text(Foul.RUNS_ELSEWHERE, "web", "b", "a", RegisteredVm(None, None), UUID, held)

    assert f"as the same domain {UUID}, and a reports no migration" in text(HeldVm(UUID, migrating=False))
    assert "where two domains have the same name" in text(HeldVm(OTHER_UUID, migrating=True))
