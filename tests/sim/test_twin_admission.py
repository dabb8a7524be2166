"""May this VM come? Against what a simulated host then did with one more."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.errors import SettingsError, TwinRefused
from manager.model.registration import VmClass
from manager.model.verdict import FitVerdict
from manager.sim.parallel import one_by_one
from manager.sim.scenario import BatchSpec, Constant
from manager.sim.twin import Twin
from manager.sim.twin_admission import Admission, AppWithout, NewVm, may_come, with_vm
from manager.sim.twin_play import TwinJob, play
from manager.sim.twin_prediction import PercentileSpan
from tests.sim.test_twin import shop, truth, twin_of, write

BATCH, CRITICAL = VmClass.BATCH, VmClass.CRITICAL
GOLDEN = Path(__file__).parent / "golden" / "fits.txt"


def host() -> Twin:
    return twin_of(truth())


@cache
def asked(vm: NewVm, policy: str = "priority") -> Admission:
    return may_come(host(), vm, policy, one_by_one)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", "fits", *arguments])


@pytest.mark.parametrize(
    ("vm", "policy", "verdict"),
    [
        (NewVm(BATCH, 2), "priority", FitVerdict.YES),
        (NewVm(BATCH, 1, 0.2), "priority", FitVerdict.YES),
        (NewVm(CRITICAL, 1, like="shop", rate_rps=5), "priority", FitVerdict.YES),
        (NewVm(CRITICAL, 1, like="shop/web", rate_rps=90), "priority", FitVerdict.NO),
        (NewVm(CRITICAL, 2), "priority", FitVerdict.NO),
        (NewVm(BATCH, 4), "equal", FitVerdict.NO),
    ],
)
def test_the_verdict(vm: NewVm, policy: str, verdict: FitVerdict) -> None:
    found = asked(vm, policy)
    assert found.verdict is verdict, found.reasons
    assert found.reasons
    assert (len(found.apps), found.apps[0].name) == (2 if vm.like else 1, "shop")


def test_what_is_predicted_is_what_then_happens() -> None:
    """The newcomer as another application of the true host: each p95 is within its interval, or hardly beside."""
    found = asked(NewVm(CRITICAL, 1, like="shop", rate_rps=25))
    other = replace(shop(), name="newcomer", load=(Constant(25),))
    scenario = truth(shop(), other)
    then = play(TwinJob(scenario, "priority", scenario.interval_s, scenario.seed))
    for app in found.apps:
        true_ms = (then.between(app.name, 60, 600).percentile_us(95) or 0) / 1000
        assert app.then is not None
        assert app.then.low_ms / 1.15 < true_ms < app.then.high_ms * 1.15
    assert found.wants_pcpus == pytest.approx(0.25, rel=0.05)
    assert found.gets_pcpus == pytest.approx(0.25, rel=0.1)


def test_a_batch_vm_gets_its_part_of_what_is_left() -> None:
    found = asked(NewVm(BATCH, 2))
    left = 1 - 30 * 0.010
    # The kernel, and the simulation, give a VM the weight that another VM has, however many vCPUs there are.
    assert found.gets_pcpus == pytest.approx(left / 2, rel=0.1)
    assert found.wants_pcpus == 2


@pytest.mark.parametrize(
    ("vm", "says"),
    [
        (NewVm(BATCH, 2, 3.0), "--demand 3 is refused: use more than 0, and at most --vcpus, 2"),
        (NewVm(BATCH, 2, like="shop"), "--like is refused with --class batch"),
        (NewVm(CRITICAL, 2, 1.0, like="shop"), "--demand is refused with --like"),
        (NewVm(CRITICAL, 2, like="blog"), "--like 'blog' is refused: use shop, which the twin predicts"),
        (NewVm(CRITICAL, 2, like="shop/db"), "--like 'shop/db' is refused: use shop/web"),
    ],
)
def test_a_vm_that_cannot_be_is_refused(vm: NewVm, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        with_vm(host(), vm)


def test_its_name_is_one_that_is_free() -> None:
    twin = twin_of(truth(batch=(BatchSpec("newcomer"),)))
    assert with_vm(twin, NewVm(BATCH, 1))[1] == "newcomer-vm"


def test_nothing_is_said_where_nothing_is_predicted() -> None:
    refused = replace(host(), apps=tuple(replace(app, refused="too large") for app in host().apps))
    with pytest.raises(TwinRefused):
        may_come(refused, NewVm(BATCH, 1), "priority", one_by_one)


def test_an_application_that_is_not_predicted_leaves_it_open() -> None:
    rare = replace(host().apps[0], application=replace(host().apps[0].application, name="rare"), refused="too few")
    twin = replace(host(), apps=(*host().apps, rare))
    found = may_come(twin, NewVm(BATCH, 1, 0.2), "priority", one_by_one)
    assert found.verdict is FitVerdict.UNSURE
    assert found.reasons == ("nothing is predicted of rare: too few",)


def span(ms: float) -> PercentileSpan:
    return PercentileSpan(ms, ms * 0.9, ms * 1.1)


@pytest.mark.parametrize(
    ("app", "verdict", "says"),
    [
        (AppWithout("shop", 95, 100, span(50), span(60), 0, 0), FitVerdict.YES, "is met with it"),
        (
            AppWithout("shop", 95, 100, span(50), span(120), 0, 0),
            FitVerdict.NO,
            "would be 120 ms, 108 to 132, above 100 ms",
        ),
        (AppWithout("shop", 95, 100, span(50), span(95), 0, 0), FitVerdict.UNSURE, "100 ms is within that interval"),
        (
            AppWithout("shop", 95, 100, span(50), span(60), 0.1, 0.3),
            FitVerdict.NO,
            "30 % of the intervals, 10 % without it",
        ),
        (AppWithout("shop", 95, 100, span(120), span(121), 0, 0), FitVerdict.YES, "is met with it"),
        (
            AppWithout("shop", 95, 100, span(120), span(150), 0, 0),
            FitVerdict.NO,
            "120 ms, 108 to 132 without it, above",
        ),
        (AppWithout("shop", 95, 100, span(50), None, 0, 0), FitVerdict.NO, "shop would answer nothing"),
    ],
)
def test_what_speaks_against_it(
    monkeypatch: pytest.MonkeyPatch, app: AppWithout, verdict: FitVerdict, says: str
) -> None:
    monkeypatch.setattr("manager.sim.twin_admission._compared", lambda *_: app)
    found = may_come(host(), NewVm(BATCH, 1, 0.2), "priority", one_by_one)
    assert found.verdict is verdict
    assert says in found.reasons[0]


def test_the_command(tmp_path: Path) -> None:
    file = write(truth(), tmp_path / "shop.jsonl")
    arguments = ("--class", "critical", "--vcpus", "1", "--like", "shop", "--rate", "10", "--seeds", "2")
    body = json.loads(call(file, *arguments, "--json").stdout)
    assert (body["simulated"], body["policy"], body["vm"]["like"]) == (True, "priority", "shop")
    assert [one["application"] for one in body["applications"]] == ["shop", "newcomer"]
    assert body["applications"][1]["without"] is None
    assert body["applications"][0]["with"]["ms"] > body["applications"][0]["without"]["ms"]
    assert call(file, *arguments).stdout == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--class", "batch", "--vcpus", "0"), 2, "--vcpus"),
        (("--class", "idle", "--vcpus", "1"), 2, "'idle' is not one of 'critical', 'batch'"),
        (("--class", "batch", "--vcpus", "1", "--rate", "5"), 2, "--rate goes with --like only"),
        (("--class", "batch", "--vcpus", "2", "--demand", "3"), 2, "--demand 3 is refused: use 0.01 to 2"),
        (("--class", "batch", "--vcpus", "2", "--like", "shop"), 2, "--like shop is refused with --class batch"),
        (("--class", "batch", "--vcpus", "1", "--policy", "best"), 1, "policy 'best' is not installed"),
        (("--class", "batch", "--vcpus", "1", "--policy", "oracle"), 1, "policy 'oracle' is refused"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, arguments: tuple[str, ...], status: int, says: str) -> None:
    result = call(write(truth(), tmp_path / "shop.jsonl"), *arguments)
    assert result.exit_code == status
    assert says in result.output
