"""The quick form of deploy/reproduce, as anybody runs it: simulated and by arithmetic, within a minute of CPU time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.reproduction.__main__ import main

OTHER_KINDS = ("this machine", "booted kernel", "real VMs")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reproduction")
    without = [option for kind in OTHER_KINDS for option in ("--without", kind)]
    done = CliRunner().invoke(main, ["--quick", "--json", "--out", str(folder), *without])
    assert done.exit_code == 0, done.output
    body: dict[str, Any] = json.loads(done.stdout)
    assert body == json.loads((folder / "report.json").read_text())
    assert (folder / "report.html").stat().st_size < 300_000
    return body


def claim(report: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    body = next(each for each in report["experiments"] if each["name"] == name)
    found: dict[str, Any] = body["claims"][number]
    return found


def test_every_figure_has_a_result_and_every_deviation_an_explanation(report: dict[str, Any]) -> None:
    ran = [body for body in report["experiments"] if body["kind"] not in OTHER_KINDS]
    assert len(ran) >= 14
    for body in ran:
        assert body["state"] == "ran", body["name"]
        assert any(each["points"] for each in body["ours"])
        for each in body["claims"]:
            assert each["ours"] is not None, each["text"]
            assert each["agrees"] or len(each["explanation"]) > 30, (body["name"], each["text"])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("w-fig1a", 0),  # equal weights against priority on a full host
        ("w-fig2", 0),  # which matters more for the larger application
        ("w-fig7", 1),  # isolation protects the calm one
        ("w-fig7", 2),  # at the cost of the one above its rate
        ("r-fig4", 0),  # the first of all is as if alone
        ("r-fig6", 0),  # two services share a core badly
        ("r-table2-formula", 0),
    ],
)
def test_what_the_studies_found_first_is_found_here(report: dict[str, Any], name: str, number: int) -> None:
    found = claim(report, name, number)
    assert found["agrees"], found


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path, report: dict[str, Any]) -> None:
    done = CliRunner().invoke(main, ["--quick", "--json", "--out", str(tmp_path), "--only", "w-fig3"])
    assert claim(json.loads(done.stdout), "w-fig3", 0) == claim(report, "w-fig3", 0)
