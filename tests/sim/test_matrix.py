"""The matrix of scenarios and policies, and the verdicts on it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, sim_command
from manager.errors import SettingsError
from manager.sim.matrix import (
    Comparison,
    Harm,
    MatrixFile,
    MatrixRun,
    Pareto,
    batch_ratio,
    closed_share,
    complete,
    harms,
    matrix_policies,
    missing,
    paretos,
    scenario_id,
    standing,
    totals,
    verdicts,
)
from tests.sim.build import app, scenario
from tests.sim.test_files import SMALL


def ran(policy: str, violated: float, batch: float | None = 0.5, name: str = "s", changes: float = 0.0) -> MatrixRun:
    return MatrixRun(name, name, policy, violated, batch, changes)


def table(**scenarios: dict[str, tuple[float, float | None]]) -> dict[str, dict[str, MatrixRun]]:
    """Violated share and batch progress by scenario and policy."""
    return {
        name: {policy: ran(policy, *values, name=name) for policy, values in row.items()}
        for name, row in scenarios.items()
    }


TWO = table(
    calm={"priority": (0.10, 0.5), "auto": (0.06, 0.5), "parties": (0.30, 0.6), "oracle": (0.02, 0.5)},
    busy={"priority": (0.10, 0.3), "auto": (0.12, 0.28), "parties": (0.12, 0.2), "oracle": (0.06, 0.3)},
)


def test_harm_is_more_than_half_a_point_above_priority() -> None:
    assert harms(TWO) == (Harm("busy", 0.12, 0.10),)
    assert harms(table(a={"priority": (0.1, 0.5), "auto": (0.105, 0.5)})) == ()
    several = table(
        a={"priority": (0.1, 0.5), "auto": (0.2, 0.5)},
        b={"priority": (0.1, 0.5), "auto": (0.5, 0.5)},
        c={"priority": (0.1, 0.5), "auto": (0.0, 0.5)},
    )
    assert [harm.scenario for harm in harms(several)] == ["b", "a"]


@pytest.mark.parametrize(
    ("priority", "auto", "oracle", "expected"),
    [(0.2, 0.1, 0.0, 0.5), (0.2, 0.2, 0.1, 0.0), (0.2, 0.3, 0.1, -1.0), (0.2, 0.05, 0.1, 1.5), (0.1, 0.1, 0.1, None)],
)
def test_how_much_of_the_distance_is_closed(
    priority: float, auto: float, oracle: float, expected: float | None
) -> None:
    made = table(a={"priority": (priority, 0.5), "auto": (auto, 0.5), "oracle": (oracle, 0.5)})
    assert closed_share(made) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ((0.10, 0.5), (0.10, 0.5), Comparison.AHEAD),
        ((0.105, 0.5), (0.10, 0.5), Comparison.AHEAD),
        ((0.10, 0.4951), (0.10, 0.5), Comparison.AHEAD),
        ((0.05, 0.6), (0.10, 0.5), Comparison.AHEAD),
        ((0.11, 0.5), (0.10, 0.5), Comparison.BEHIND),
        ((0.10, 0.49), (0.10, 0.5), Comparison.BEHIND),
        ((0.02, 0.4), (0.10, 0.5), Comparison.FEWER_VIOLATIONS),
        ((0.20, 0.6), (0.10, 0.5), Comparison.MORE_BATCH),
        ((0.10, None), (0.10, None), Comparison.AHEAD),
        ((0.20, None), (0.10, None), Comparison.BEHIND),
    ],
)
def test_standing(own: tuple[float, float | None], other: tuple[float, float | None], expected: Comparison) -> None:
    assert standing(ran("auto", *own), ran("parties", *other)) is expected


def test_batch_is_relative_to_priority() -> None:
    assert batch_ratio(TWO, "auto") == pytest.approx(0.78 / 0.8)
    assert batch_ratio(TWO, "priority") == 1.0
    assert batch_ratio(table(a={"priority": (0.1, None), "auto": (0.1, None)}), "auto") is None


def test_totals() -> None:
    found = {total.policy: total for total in totals(TWO)}
    assert list(found) == ["priority", "auto", "parties", "oracle"]
    assert found["auto"].violated_share == pytest.approx(0.09)
    assert found["auto"].regret == pytest.approx(0.05)
    assert found["oracle"].regret == 0
    assert totals(table(a={"auto": (0.1, 0.5)}))[0].regret is None


def test_verdicts_with_their_numbers() -> None:
    found = verdicts(TWO)
    assert [verdict.met for verdict in found] == [False, False, False, True]
    harm, closed, ahead, batch = found
    assert "1 of 2" in harm.numbers
    assert harm.listed == ("busy: 12.00 %, priority 10.00 %",)
    assert closed.numbers == "it closes 17 %: violated priority 10.00 %, auto 9.00 %, oracle 4.00 %"
    assert ahead.numbers == (
        "of 2: 1 ahead or equal; 1 fewer violations, less batch; 0 more batch, more violations; 0 behind"
    )
    assert ahead.listed[0].startswith("calm: fewer violations, less batch; auto violated")
    assert batch.numbers == "under auto it keeps 97.5 %"


def test_in_how_many_scenarios_auto_stands_how_against_each_other_policy() -> None:
    assert paretos(TWO) == (Pareto("priority", 2, 1, 0, 0, 1), Pareto("parties", 2, 1, 1, 0, 0))
    assert paretos({}) == ()
    assert paretos(table(a={"priority": (0.1, 0.5), "oracle": (0.1, 0.5)})) == ()


def test_verdicts_on_policies_that_were_not_run_are_left_out() -> None:
    assert verdicts({}) == ()
    assert verdicts(table(a={"priority": (0.1, 0.5), "oracle": (0.1, 0.5)})) == ()
    only = verdicts(table(a={"auto": (0.1, 0.5), "heracles": (0.1, 0.5)}))
    assert ["heracles" in verdict.bar for verdict in only] == [True]


def test_a_scenario_counts_when_all_policies_had_it() -> None:
    first, second = scenario(app("a")), scenario(app("b"))
    done = [MatrixRun("test", scenario_id(first), policy, 0.1, 0.5, 0.0) for policy in ("priority", "equal")]
    done.append(MatrixRun("test", scenario_id(second), "equal", 0.1, 0.5, 0.0))
    assert missing([first, second], ["equal", "priority", "oracle"], done) == [
        (first, "oracle"),
        (second, "oracle"),
        (second, "priority"),
    ]
    assert [list(row) for row in complete([first], ["equal", "priority"], done).values()] == [["equal", "priority"]]
    assert complete([second], ["equal", "priority"], done) == {}
    assert list(complete([first, second], ["equal"], done)) == ["test", f"test {scenario_id(second)}"]


def test_the_file_keeps_runs_and_loses_only_the_line_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with MatrixFile(path).appending() as keep:
        keep(ran("equal", 0.25))
        keep(ran("auto", 0.5, None))
    path.write_text(path.read_text()[:-10])
    file = MatrixFile(path)
    assert file.runs == (ran("equal", 0.25),)
    with file.appending() as keep:
        keep(ran("fair", 0.75))
    assert MatrixFile(path).runs == (ran("equal", 0.25), ran("fair", 0.75))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"a": 1}\n')
    with pytest.raises(SettingsError, match="line 1"):
        MatrixFile(tmp_path / "other")
    with pytest.raises(SettingsError, match="cannot be read"):
        MatrixFile(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"violated_share": "much"}, {"violated_share": math.nan}, {"batch_progress": []}, {"policy": None}, {"more": 1}],
)
def test_a_run_with_a_value_that_it_cannot_have_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(asdict(ran("equal", 0.25)) | changes) + "\n")
    with pytest.raises(SettingsError, match=r"line 1 of .* is not a run of"):
        MatrixFile(path)


@pytest.mark.parametrize("content", ["notes of a week", '{"scenario": 1}', '{"results": [', "\n".join("ab")])
def test_a_file_of_something_else_is_not_cut_off(content: str, tmp_path: Path) -> None:
    """As it may be without the end of its last line, too."""
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"line 1 of .* is not a run of"):
        MatrixFile(path)
    assert path.read_text() == content


@pytest.mark.parametrize("length", range(0, 30, 3))
def test_a_run_may_have_been_cut_off_anywhere(length: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(asdict(ran("equal", 0.25)))[:length])
    file = MatrixFile(path)
    with file.appending() as keep:
        keep(ran("fair", 0.75))
    assert MatrixFile(path).runs == (ran("fair", 0.75),)


def test_the_oracle_is_the_last_of_the_usual_policies() -> None:
    names = matrix_policies()
    assert names[:2] == ("equal", "priority")
    assert names[-1] == "oracle"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", "matrix", *arguments])


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text("duration_s = 20\n" + SMALL)
    return str(file)


def test_the_command(small: str, tmp_path: Path) -> None:
    picture, file = tmp_path / "matrix.png", tmp_path / "runs.jsonl"
    options = ("--random", "1", "--policy", "equal", "--policy", "priority", "--policy", "oracle")
    body = json.loads(call(small, *options, "--resume", str(file), "--picture", str(picture), "--json").stdout)
    assert (body["simulated"], body["complete"], body["scenarios"]) == (True, True, 2)
    assert [total["policy"] for total in body["policies"]] == ["equal", "priority", "oracle"]
    assert len(body["runs"]) == len(file.read_text().splitlines()) == 6
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = call(small, *options, "--resume", str(file))
    assert "Simulated: policies over 2 scenarios" in shown.output
    assert "regret" in shown.output


def test_a_run_that_is_there_is_not_run_again(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (small, "--random", "0", "--resume", str(tmp_path / "runs.jsonl"))
    call(*options, "--policy", "priority")
    asked: list[str] = []
    usual = sim_command.run_jobs
    monkeypatch.setattr(sim_command, "run_jobs", lambda jobs: asked.extend(job[1] for job in jobs) or usual(jobs))
    assert call(*options, "--policy", "priority", "--policy", "equal").exit_code == 0
    assert asked == ["equal"]


def test_an_interrupt_keeps_what_is_done(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(jobs):  # type: ignore[no-untyped-def]
        yield ran("priority", 0.25, name="small")
        raise KeyboardInterrupt

    monkeypatch.setattr(sim_command, "run_jobs", interrupted)
    file = tmp_path / "runs.jsonl"
    result = call(small, "--random", "0", "--policy", "priority", "--policy", "equal", "--resume", str(file))
    assert result.exit_code == 130
    assert "0 of 1 scenarios are complete" in result.output
    assert MatrixFile(file).runs == (ran("priority", 0.25, name="small"),)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--policy", "best"), 1, "not installed"),
        (("nonexistent",), 1, "neither one of"),
        (("--random", "-1"), 2, "--random"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], status: int, says: str) -> None:
    result = call(*arguments)
    assert (result.exit_code, says in result.output, "Traceback" in result.output) == (status, True, False)
