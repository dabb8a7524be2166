"""What a simulated host answers the doctor's questions with."""

from __future__ import annotations

from manager.host.doctor.checks import CHECKS
from manager.model.finding import FindingStatus
from manager.sim.findings import SimExaminer
from tests.sim.build import app, scenario


def test_each_says_that_it_is_simulated_and_is_one_of_the_doctors() -> None:
    known = {check.id: check for check in CHECKS}
    found = SimExaminer(scenario(app(), cgroup=1, pcpus=3)).look()
    for one in found:
        check = known[one.id]
        assert (one.area, one.title, one.essential) == (check.area, check.title, check.essential)
        assert one.detail.startswith("simulated: ")
        assert bool(one.advice) is (one.status is not FindingStatus.WORKS)
        assert not one.broken
    assert "cgroup v1, 3 pCPUs" in next(one.detail for one in found if one.id == "cgroup")
