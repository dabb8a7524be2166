"""What a simulated host answers the doctor's questions with."""

from __future__ import annotations

from dataclasses import replace

from manager.host.doctor.checks import CHECKS
from manager.model.finding import FindingStatus
from manager.sim.scenario import CacheSpec
from manager.sim.sim_host import SimExaminer
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


def test_a_cache_is_one_of_them_where_the_scenario_has_one() -> None:
    works, missing = FindingStatus.WORKS, FindingStatus.MISSING
    spec = CacheSpec(12, 1e6, 20.0, domains=2)
    known = {check.id: check for check in CHECKS}
    for cache, expected in (
        (None, {"cache-allocation": missing}),
        (spec, {"cache-allocation": works, "memory-bandwidth": works, "cache-monitoring": works}),
        (
            replace(spec, mba=None, rmids=0),
            {"cache-allocation": works, "memory-bandwidth": missing, "cache-monitoring": missing},
        ),
    ):
        found = [one for one in SimExaminer(scenario(app(), cache=cache)).look() if one.area == "Cache"]
        assert {one.id: one.status for one in found} == expected
        for one in found:
            assert (one.title, one.essential) == (known[one.id].title, known[one.id].essential)
            assert bool(one.advice) is (one.status is missing)
