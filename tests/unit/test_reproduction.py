"""deploy/reproduce: the table of experiments, how they are judged, kept, interrupted and shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.reproduction import __main__ as command
from deploy.reproduction.agreement import UNEXPLAINED, Agreement, bar_text, judge_claims, summarise_claims
from deploy.reproduction.benchmark_process import BenchmarkError, json_of_module, lacks_programs
from deploy.reproduction.catalogue import CATALOGUE, NOT_HERE, select
from deploy.reproduction.cost_tables import PUBLISHED, from_their_throughput
from deploy.reproduction.experiment import (
    Experiment,
    ExperimentKind,
    FigureNumbers,
    PaperClaim,
    PlotAxes,
    RunSetting,
    Study,
    line,
)
from deploy.reproduction.reproduction_report import number_text, report_html, report_json
from deploy.reproduction.reproduction_run import ExperimentRun, ReproductionRun, RunState, duration_text
from deploy.reproduction.result_folder import ResultFolder, StoredResult, code_digest
from deploy.reproduction.svg_chart import axis_scale, line_chart, nice_step
from manager.errors import SettingsError

CLAIM = PaperClaim(
    "p95 & more", "ratio", 2.0, "Table <1>", least=1.0, most=4.0, unit="x", below="too small", above="too large"
)
NUMBERS = FigureNumbers((line("ours", (1, 10), (2, 20)),), {"ratio": 1.5})


def an_experiment(
    name: str,
    run: Callable[[RunSetting], FigureNumbers] = lambda _setting: NUMBERS,
    quick_s: float = 1.0,
    lacks: str = "",
) -> Experiment:
    return Experiment(
        name,
        Study.WEIGHTS,
        "Figure 1",
        "Weights <help>.",
        ExperimentKind.SIMULATED,
        "as theirs",
        run,
        PlotAxes("load, %", "p95, ms"),
        (line("theirs", (1, 11), (2, 25)),),
        (CLAIM,),
        quick_s=quick_s,
        full_s=2.0,
        lacks=lambda: lacks,
    )


def a_run(folder: Path, setting: RunSetting = RunSetting(), code: str = "one", again: bool = False) -> ReproductionRun:  # noqa: B008
    return ReproductionRun(ResultFolder(folder), setting, code, lambda _line: None, again)


def states(run: ReproductionRun) -> dict[str, RunState]:
    return {name: one.state for name, one in run.runs.items()}


DIFFERENCES = {"gained"}
"""Values that are below 0 where the claim fails."""


# The table.


def test_the_table_is_complete() -> None:
    assert len({experiment.name for experiment in CATALOGUE}) == len(CATALOGUE)
    assert len([experiment for experiment in CATALOGUE if experiment.quick_s]) >= 14
    assert {experiment.kind for experiment in CATALOGUE} == set(ExperimentKind)
    assert {experiment.study for experiment in CATALOGUE} == set(Study)
    for experiment in CATALOGUE:
        assert re.fullmatch("[wrdsc]-[a-z0-9-]+", experiment.name)
        assert experiment.claims
        assert experiment.full_s >= experiment.quick_s
    assert len({(one.study, one.figure) for one in NOT_HERE}) == len(NOT_HERE)
    assert all(one.reason for one in NOT_HERE)


@pytest.mark.parametrize("experiment", CATALOGUE, ids=lambda experiment: experiment.name)
def test_every_bar_can_be_missed_and_explains_that(experiment: Experiment) -> None:
    for claim in experiment.claims:
        assert claim.least > 0 or math.isfinite(claim.most) or claim.value in DIFFERENCES, claim.text
        assert claim.least <= claim.most
        assert claim.below or not 0 < claim.least < math.inf, claim.text
        assert claim.above or math.isinf(claim.most), claim.text
        assert claim.theirs is None or claim.least <= claim.theirs <= claim.most, f"theirs misses it: {claim.text}"


def test_experiments_are_chosen_by_name() -> None:
    assert [one.name for one in select(["w-fig7", "w-fig1a"])] == ["w-fig1a", "w-fig7"]
    assert select([]) == CATALOGUE
    with pytest.raises(SettingsError, match=r"--only w-fig99: there is no such experiment; use one of .*w-fig1a"):
        select(["w-fig99"])


# Judgement.


@pytest.mark.parametrize(
    ("values", "agrees", "explanation"),
    [
        ({"ratio": 1.0}, True, ""),
        ({"ratio": 4.0}, True, ""),
        ({"ratio": 0.99}, False, "too small"),
        ({"ratio": 4.01}, False, "too large"),
        ({}, False, "The run gave no such value; its remarks say why, or there were too few response times."),
        (
            {"ratio": math.nan},
            False,
            "The run gave no such value; its remarks say why, or there were too few response times.",
        ),
    ],
)
def test_a_claim_is_judged_by_its_bar(values: dict[str, float], agrees: bool, explanation: str) -> None:
    (outcome,) = judge_claims([CLAIM], values)
    assert (outcome.agrees, outcome.explanation) == (agrees, explanation)


def test_a_deviation_that_nobody_explained_says_so() -> None:
    (outcome,) = judge_claims([replace(CLAIM, above="")], {"ratio": 9})
    assert outcome.explanation == UNEXPLAINED


@pytest.mark.parametrize(
    ("ratios", "agreement"),
    [((2.0, 2.0), Agreement.AGREES), ((2.0, 9.0), Agreement.IN_PART), ((0.1, 9.0), Agreement.DEVIATES)],
)
def test_a_figure_is_judged_by_all_its_claims(ratios: Sequence[float], agreement: Agreement) -> None:
    outcomes = [judge_claims([CLAIM], {"ratio": ratio})[0] for ratio in ratios]
    assert summarise_claims(outcomes) is agreement


def test_a_bar_in_words() -> None:
    assert bar_text(CLAIM) == "1 to 4"
    assert bar_text(replace(CLAIM, least=-math.inf)) == "at most 4"
    assert bar_text(replace(CLAIM, most=math.inf)) == "at least 1"


def test_the_cost_model_gives_the_published_gains() -> None:
    values = from_their_throughput(RunSetting()).values
    assert {load: values[f"gain_{load}"] for load in PUBLISHED} == pytest.approx(PUBLISHED, abs=1.5)


# Results that are kept.


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    result = StoredResult("one", True, 7, "abc", "2026-01-31T12:00:00+00:00", 1.5, replace(NUMBERS, notes=("busy",)))
    folder.save(result)
    assert folder.load("one") == result
    assert folder.load("two") is None


def test_what_is_not_a_number_is_not_written(tmp_path: Path) -> None:
    numbers = FigureNumbers((line("ours", (1, math.nan), (2, 3)),), {"ratio": math.nan, "share": 1})
    folder = ResultFolder(tmp_path)
    folder.save(StoredResult("one", True, 1, "abc", "now", 1.0, numbers))
    loaded = folder.load("one")
    assert loaded
    assert loaded.numbers == FigureNumbers((line("ours", (2, 3)),), {"share": 1})


@pytest.mark.parametrize("text", ["", "[]", '{"name": "one"}', '{"name": 1, "lines": 5}'])
def test_a_damaged_result_is_named(tmp_path: Path, text: str) -> None:
    folder = ResultFolder(tmp_path)
    (tmp_path / "results/one.json").write_text(text)
    with pytest.raises(SettingsError, match=r"results/one.json is not a result of deploy/reproduce .*: remove it"):
        folder.load("one")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--out .*file cannot be used as a folder"):
        ResultFolder(tmp_path / "file")


@pytest.mark.parametrize(
    ("quick", "wanted", "seed", "code", "answers"),
    [
        (False, False, 1, "one", True),
        (False, True, 1, "one", True),
        (True, True, 1, "one", True),
        (True, False, 1, "one", False),
        (False, False, 2, "one", False),
        (False, False, 1, "two", False),
    ],
)
def test_what_need_not_be_repeated(quick: bool, wanted: bool, seed: int, code: str, answers: bool) -> None:
    result = StoredResult("one", quick, 1, "one", "now", 1.0, NUMBERS)
    assert result.answers(RunSetting(wanted, seed), code) is answers


def test_the_digest_follows_the_sources(tmp_path: Path) -> None:
    source = tmp_path / "manager/sim/world.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1\n")
    before = code_digest(tmp_path)
    assert code_digest(tmp_path) == before
    source.write_text("a = 2\n")
    assert code_digest(tmp_path) != before


# Runs.


def test_a_second_run_keeps_what_is_there(tmp_path: Path) -> None:
    calls: list[RunSetting] = []

    def count(setting: RunSetting) -> FigureNumbers:
        calls.append(setting)
        return NUMBERS

    experiment = an_experiment("one", count)
    for expected, options in (
        (RunState.RAN, {}),
        (RunState.KEPT, {}),
        (RunState.RAN, {"code": "two"}),
        (RunState.RAN, {"code": "two", "again": True}),
    ):
        run = a_run(tmp_path, **options)  # type: ignore[arg-type]
        run.play([experiment])
        assert states(run) == {"one": expected}
    assert len(calls) == 3


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    interrupting = True
    calls: list[str] = []

    def second(_setting: RunSetting) -> FigureNumbers:
        calls.append("second")
        if interrupting:
            raise KeyboardInterrupt
        return NUMBERS

    def first(_setting: RunSetting) -> FigureNumbers:
        calls.append("first")
        return NUMBERS

    experiments = [an_experiment("first", first), an_experiment("second", second), an_experiment("third")]
    run = a_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.play(experiments)
    assert states(run) == {"first": RunState.RAN, "second": RunState.PENDING, "third": RunState.PENDING}
    interrupting = False
    run = a_run(tmp_path)
    run.play(experiments)
    assert states(run) == {"first": RunState.KEPT, "second": RunState.RAN, "third": RunState.RAN}
    assert calls == ["first", "second", "second"]


def test_a_failure_stops_no_other(tmp_path: Path) -> None:
    def fail(_setting: RunSetting) -> FigureNumbers:
        raise SettingsError("no such thing")

    run = a_run(tmp_path)
    run.play([an_experiment("bad", fail), an_experiment("good")])
    assert states(run) == {"bad": RunState.FAILED, "good": RunState.RAN}
    assert run.failed == {"bad": "SettingsError: no such thing"}


def test_what_cannot_be_run_shows_its_newest_result(tmp_path: Path) -> None:
    long, lacking = an_experiment("long", quick_s=0), an_experiment("lacking", lacks="needs root")
    run = a_run(tmp_path, RunSetting(quick=True))
    run.play([long, lacking])
    assert states(run) == {"long": RunState.NOT_QUICK, "lacking": RunState.LACKING}
    assert run.runs["lacking"].reason == "needs root"
    a_run(tmp_path).play([long])
    run = a_run(tmp_path, RunSetting(quick=True), code="two")
    run.play([long])
    assert states(run) == {"long": RunState.OLDER}
    assert run.runs["long"].result


def test_the_time_left_follows_the_pace(tmp_path: Path) -> None:
    lines: list[str] = []
    clock = iter(range(0, 10_000, 10)).__next__
    run = ReproductionRun(ResultFolder(tmp_path), RunSetting(), "one", lines.append, clock=clock)
    run.play([an_experiment(name) for name in ("one", "two", "three")])
    assert lines[0] == "[1/3] one: Figure 1, simulated; about 6 s left in all"
    assert lines[2] == "[3/3] three: Figure 1, simulated; about 30 s left in all"
    assert [duration_text(seconds) for seconds in (0.2, 89, 91, 3600)] == [
        *("about 1 s", "about 89 s", "about 2 min", "about 60 min")
    ]


def test_what_is_left_out_shows_what_is_stored(tmp_path: Path) -> None:
    a_run(tmp_path).play([an_experiment("one")])
    run = a_run(tmp_path)
    run.play([], [an_experiment("one"), an_experiment("two")])
    assert states(run) == {"one": RunState.KEPT, "two": RunState.LEFT_OUT}
    run = a_run(tmp_path, code="two")
    run.play([], [an_experiment("one")])
    assert states(run) == {"one": RunState.OLDER}


def test_an_experiment_that_is_named_is_in_the_quick_form_too(tmp_path: Path) -> None:
    run = a_run(tmp_path, RunSetting(quick=True))
    run.chosen = True
    run.play([an_experiment("long", quick_s=0)])
    assert states(run) == {"long": RunState.RAN}


# The report.


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def a_page(*runs: ExperimentRun) -> Page:
    page = Page()
    page.feed(report_html(json.loads(json.dumps(report_json(runs, RunSetting(), "abc")))))
    return page


def a_result(ratio: float = 1.5) -> StoredResult:
    numbers = replace(NUMBERS, values={"ratio": ratio}, notes=("a <remark>",))
    return StoredResult("one", False, 3, "abc", "2026-01-31T12:00:00+00:00", 1.5, numbers)


def test_the_report_is_one_page_that_shows_both_sides() -> None:
    page = a_page(ExperimentRun(an_experiment("one"), RunState.RAN, a_result()))
    assert all(link.startswith("#") for link in page.links)
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    for text in ("Weights <help>.", "p95 & more", "Table <1>", "1 to 4", "a <remark>", "agrees"):
        assert text in page.text
    assert "deploy/reproduce --only one --seed 3" in page.text
    assert all(one.figure in page.text for one in NOT_HERE)


def test_the_report_explains_deviations_and_what_has_no_result() -> None:
    page = a_page(
        ExperimentRun(an_experiment("one"), RunState.RAN, a_result(9.0)),
        ExperimentRun(an_experiment("two"), RunState.LACKING, None, "needs root"),
    )
    assert "too large" in page.text
    assert "1 deviates, 1 no result" in page.text
    assert "needs root" in page.text
    assert page.tags.count("svg") == 3


def test_numbers_of_the_report() -> None:
    assert [number_text(value) for value in (None, 0.0, 1.23456, 999.9, 35_000)] == [
        "–",
        "0",
        "1.23",
        "1,000",
        "35,000",
    ]


def test_axes_hold_all_values() -> None:
    for values, logarithmic in (((0.3, 40.0), True), ((1.0,), True), ((3.0, 17.0), False), ((0.0,), False)):
        scale = axis_scale(values, logarithmic, 0, 100)
        assert scale.low <= min(values) <= max(values) <= scale.high
        assert scale.place(scale.low) == pytest.approx(0)
        assert scale.place(scale.high) == pytest.approx(100)
    assert [nice_step(about) for about in (0.9, 1.1, 3, 6, 0.04)] == pytest.approx([1, 2, 5, 10, 0.05])


def test_a_chart_escapes_names() -> None:
    chart = line_chart("<b>", PlotAxes("x", "y"), [line("<i>", (1, 2))])
    assert "<b>" not in chart
    assert "<i>" not in chart


# Benchmarks in processes of their own.


def test_a_benchmark_that_fails_is_quoted() -> None:
    with pytest.raises(BenchmarkError, match=r"python -m tests.bench.sim gave no result \(status 2\): .*--nonsense"):
        json_of_module("tests.bench.sim", ["--nonsense"])


def test_programs_that_are_missing_are_named() -> None:
    assert lacks_programs("sh") == ""
    assert lacks_programs("sh", "no-such-program").startswith("needs no-such-program: ")


# The command.


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command.main, arguments)


def test_the_list_runs_nothing(tmp_path: Path) -> None:
    listed = invoke("--list", "--json", "--out", str(tmp_path / "out"))
    assert listed.exit_code == 0
    assert [body["name"] for body in json.loads(listed.stdout)] == [experiment.name for experiment in CATALOGUE]
    assert not (tmp_path / "out").exists()
    table = invoke("--list").stdout
    assert "w-fig1a" in table
    assert NOT_HERE[0].reason in table


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--only", "w-fig99"], 1, "deploy/reproduce: --only w-fig99: there is no such experiment; use one of"),
        (["--without", "guesses"], 2, "'guesses' is not one of"),
        (["--seed", "-1"], 2, "-1 is not in the range"),
        (["--only", "w-fig1a", "--without", "simulated"], 2, "--only and --without leave no experiment"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], status: int, text: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == status
    assert text in result.output


def test_an_interruption_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_setting: RunSetting) -> FigureNumbers:
        raise KeyboardInterrupt

    experiments = (an_experiment("done"), an_experiment("rest", interrupt))
    monkeypatch.setattr(command, "select", lambda _names: experiments)
    result = invoke("--out", str(tmp_path))
    assert result.exit_code == command.INTERRUPTED
    assert "the same command goes on from there" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    seen = {body["name"]: body["state"] for body in report["experiments"]}
    assert (seen["done"], seen["rest"], seen["w-fig1a"]) == ("ran", "not run: interrupted", "left out of this run")
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_failure_is_a_status_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_setting: RunSetting) -> FigureNumbers:
        raise SettingsError("no such thing")

    monkeypatch.setattr(command, "select", lambda _names: (an_experiment("bad", fail),))
    result = invoke("--out", str(tmp_path))
    assert result.exit_code == 1
    assert "failed: bad; the report says why" in result.output
