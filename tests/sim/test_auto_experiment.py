"""`auto` finds out by experiment which of several batch VMs slows an application, in closed loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from manager.control.hold_experiment import NOBODY, HoldFinding, begun
from manager.model.registration import Mode, Sla
from manager.sim.scenario import (
    AppSpec,
    BatchSpec,
    Constant,
    Scenario,
    ServiceTime,
    Shape,
    TierSpec,
    VmSettings,
)
from policies.auto_experiment import Experiments
from policies.auto_experiment_told import told_experiments
from policies.auto_kept import kept_text, recalled
from policies.auto_memory import AutoMemory
from policies.auto_steps import StepCooling
from tests.sim.recorded import Watched, run_watched


def suspects() -> Scenario:
    """Two batch VMs use as much, each on two pCPUs of its own; one of them shares these with the application."""
    shop = AppSpec(
        "shop",
        Sla(30),
        (TierSpec("web", ServiceTime(12, Shape.LOGNORMAL, 0.5), vcpus=2),),
        (Constant(30),),
    )
    settings = (
        VmSettings("shop-web", cpus=frozenset({0, 1})),
        VmSettings("quiet", cpus=frozenset({2, 3}), weight=5000),
        VmSettings("noisy", cpus=frozenset({0, 1}), weight=5000),
    )
    batch = (BatchSpec("noisy", vcpus=6), BatchSpec("quiet", vcpus=6))
    return Scenario("suspects", 4, (shop,), batch, duration_s=1500.0, settings=settings)


@cache
def run(mode: Mode = Mode.ENFORCE) -> Watched:
    return run_watched(replace(suspects(), mode=mode), "auto")


def told(simulation: Watched) -> list[str]:
    return [text.text for result in simulation.results for text in result.explanations]


def test_the_one_that_uses_most_is_quiet_and_the_other_is_shown_to_be_noisy() -> None:
    texts = told(run())
    assert any("batch VM quiet has a quota of 1 pCPUs" in text and "not shown to help" in text for text in texts)
    assert any(
        "An experiment shows who slows it: batch VMs quiet and noisy are held back by turns" in text for text in texts
    )
    [first, *_] = [text for text in texts if "Shown by experiment" in text]
    assert "batch VM noisy slows it; p95 fell by" in first
    assert "(confidence 99.2 %)" in first
    assert any("On trial batch VM noisy has a quota" in text for text in texts)
    assert not any("batch VM quiet slows it" in text for text in texts)


def test_never_are_two_held_back_at_once_and_all_that_was_held_is_let_go() -> None:
    held = [
        {record.vm for record in result.records if "an experiment for the SLA of shop" in record.reason}
        for result in run().results
    ]
    assert {vm for vms in held for vm in vms} == {"quiet", "noisy"}
    assert all(len(vms) <= 1 for vms in held)


def test_in_observe_nobody_is_held_back() -> None:
    simulation = run(Mode.OBSERVE)
    assert not any("An experiment shows" in text or "Shown by experiment" in text for text in told(simulation))
    assert any("In mode enforce, it would be tried" in text for text in told(simulation))


def test_what_was_shown_outlasts_the_agent_and_what_was_under_way_does_not() -> None:
    finding = HoldFinding("shop", "noisy", 0.4, 0.99, 100.0)
    experiments = Experiments(
        begun("shop", ["quiet", "noisy"], 90.0),
        {"quiet": 0.2, "noisy": 0.2},
        {"shop": finding},
        {"shop": StepCooling(1900.0, 1)},
    )
    again = recalled(kept_text(AutoMemory(experiments=experiments)), 50.0)
    assert again.experiments == Experiments(
        findings={"shop": replace(finding, at_s=50.0)}, cooling={"shop": StepCooling(1900.0, 1)}
    )


_BY_TURNS = "batch VMs a and b are held back by turns, one at a time, in random order, which shows who slows shop."


@pytest.mark.parametrize(
    ("experiments", "acts", "text"),
    [
        (
            Experiments(findings={"shop": HoldFinding("shop", NOBODY, 0.0, 0.0, 40.0)}),
            True,
            "An experiment 60 s ago did not show that any batch VM slows it.",
        ),
        (
            Experiments(upcoming={"shop": ("a", "b")}),
            True,
            f"If that stays so, an experiment comes next: {_BY_TURNS}",
        ),
        (
            Experiments(upcoming={"shop": ("a", "b")}),
            False,
            f"In mode enforce, an experiment would follow: {_BY_TURNS}",
        ),
    ],
)
def test_what_is_said(experiments: Experiments, acts: bool, text: str) -> None:
    assert list(told_experiments(experiments, "shop", "p95", 100.0, acts=acts)) == [text]
    assert not list(told_experiments(experiments, "blog", "p95", 100.0, acts=acts))
