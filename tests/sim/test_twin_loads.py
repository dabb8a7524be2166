"""How much load an application would stand beside batch VMs: the twin's interference table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from manager.cli import main, twin_commands
from manager.errors import SettingsError
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS, BatchClass
from manager.sim import twin_loads
from manager.sim.parallel import one_by_one
from manager.sim.twin import Twin
from manager.sim.twin_loads import LOAD_PARTS, SimulatedPoint, SimulatedTable, loaded, runs_of, simulated_table
from manager.sim.twin_play import Played, TwinJob
from manager.sim.twin_prediction import PercentileSpan
from tests.sim.test_twin import truth, twin_of, write


def host() -> Twin:
    """One pCPU, 30 requests a second that take 10 ms each, SLA 150 ms, under `priority`."""
    return twin_of(truth())


@cache
def table() -> SimulatedTable:
    short = pytest.MonkeyPatch()
    with short.context() as patch:
        patch.setattr(twin_loads, "RUN_S", 20.0)
        patch.setattr(twin_loads, "LOAD_PARTS", (1.0, 4.0))
        twin = host()
        return simulated_table(replace(twin, scenario=replace(twin.scenario, settle_s=5.0)), "shop", one_by_one)


def test_the_twin_stands_its_own_load_and_not_more_than_it_has_cpu_for() -> None:
    rows = {(row.batch, row.max_loss): row for row in table().rows}
    assert len(rows) == len(BatchClass) * len(LOSS_BOUNDS)
    for batch in BatchClass:
        row = rows[batch, ANY_LOSS]
        assert row.load_rps == pytest.approx(30, rel=0.1), "beside any batch load, as its priority is higher"
        assert row.violated_rps == pytest.approx(120, rel=0.1), "1.2 pCPUs of one"
    assert rows[BatchClass.FULL, 0.25].load_rps is None, "batch VMs lose the 30 % that requests take"
    assert rows[BatchClass.FULL, 0.5].load_rps == pytest.approx(30, rel=0.1)
    assert rows[BatchClass.NONE, 0.05].load_rps == pytest.approx(30, rel=0.1)


def test_batch_vms_of_a_class_stand_in_place_of_those_of_the_recording() -> None:
    twin = host()
    for batch, duty in (("light", 0.25), ("full", 1.0)):
        scenario = loaded(twin, "shop", BatchClass(batch), 50.0)
        [group] = [group for group in scenario.batch if not group.critical]
        assert (group.vcpus, group.duty) == (twin.scenario.pcpus, pytest.approx(duty))
        assert [segment.peak_rps for spec in scenario.applications for segment in spec.load] == [50.0]
    assert loaded(twin, "shop", BatchClass.NONE, 50.0).batch == ()


def point(rate_rps: float, ms: float | None, lost: float = 0.0) -> SimulatedPoint:
    span = None if ms is None else PercentileSpan(ms, 0.9 * ms, 1.1 * ms)
    return SimulatedPoint(BatchClass.HEAVY, rate_rps, span, lost)


@pytest.mark.parametrize(
    ("points", "bound", "load_rps", "violated_rps"),
    [
        ([point(10, 50), point(20, 90), point(30, 120)], ANY_LOSS, 20, 30),
        ([point(30, 120), point(20, 90), point(10, 50)], ANY_LOSS, 20, 30),
        ([point(10, 50), point(20, 95), point(30, 99)], ANY_LOSS, 10, None),
        ([point(10, 120), point(20, 50)], ANY_LOSS, None, 10),
        ([point(10, 50), point(20, None)], ANY_LOSS, 10, 20),
        ([point(10, 50, 0.04), point(20, 50, 0.2)], 0.1, 10, 20),
        ([point(10, 50, 0.04), point(20, 50, 0.2)], 0.25, 20, None),
    ],
)
def test_the_rows(
    points: list[SimulatedPoint], bound: float, load_rps: float | None, violated_rps: float | None
) -> None:
    made = replace(table(), target_ms=100.0, points=tuple(points))
    [row] = [row for row in made.rows if (row.batch, row.max_loss) == (BatchClass.HEAVY, bound)]
    assert (row.load_rps, row.violated_rps) == (load_rps, violated_rps)


def test_an_application_that_is_not_predicted_is_refused() -> None:
    with pytest.raises(SettingsError, match="'blog' is refused: use shop"):
        simulated_table(host(), "blog", one_by_one)
    [app] = host().apps
    without = replace(host(), apps=(replace(app, application=replace(app.application, sla=None)),))
    with pytest.raises(SettingsError, match="it has no SLA"):
        simulated_table(without, "shop", one_by_one)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def make(twin: Twin, application: str, on_step: Callable[[], None]) -> SimulatedTable:
        assert application == "shop"
        done.append(runs_of(twin))
        on_step()
        return table()

    monkeypatch.setattr(twin_commands, "make_twin", lambda *_: host())
    monkeypatch.setattr(twin_commands, "simulated_table", make)
    file = write(truth(), tmp_path / "host.jsonl")
    result = CliRunner().invoke(main, ["sim", "loads", file, "shop"])
    assert result.exit_code == 0, result.output
    assert "Simulated: largest load of shop" in result.output
    assert done == [len(BatchClass) * len(LOAD_PARTS) * len(host().runs)]
    answer = json.loads(CliRunner().invoke(main, ["sim", "loads", file, "shop", "--json"]).stdout)
    assert (answer["simulated"], len(answer["rows"]), len(answer["points"])) == (True, 25, 10)


def test_each_load_is_run_with_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[TwinJob] = []

    def run_all(_: object, given: Sequence[TwinJob], on_done: Callable[[], None]) -> list[Played]:
        jobs.extend(given)
        return [host().runs[0]] * len(given)

    simulated_table(host(), "shop", run_all)
    assert len(jobs) == runs_of(host())
    assert len({(job.seed, job.scenario.applications[0].load, job.scenario.batch) for job in jobs}) == len(jobs)
    assert {job.scenario.duration_s for job in jobs} == {host().scenario.settle_s + twin_loads.RUN_S}
