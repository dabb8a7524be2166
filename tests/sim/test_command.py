"""`equipoise sim`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.sim.scenario_files import shipped
from tests.sim.test_files import SMALL

ROOT = Path(__file__).parents[2]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", *arguments])


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text("duration_s = 20\n" + SMALL)
    return str(file)


def test_list() -> None:
    assert [one["name"] for one in json.loads(call("list", "--json").stdout)] == list(shipped())
    assert "flash-crowd" in call("list").output


def test_run(small: str) -> None:
    body = json.loads(call("run", small, "--policy", "priority", "--seed", "3", "--json").stdout)
    assert (body["simulated"], body["policy"], body["seed"]) == (True, "priority", 3)
    assert len(body["applications"]["shop"]["rate_rps"]) == 4
    assert "Simulated: small under priority" in call("run", small, "--policy", "priority").output


def test_compare(small: str) -> None:
    body = json.loads(call("compare", small, "--policy", "equal", "--policy", "priority", "--json").stdout)
    assert [one["policy"] for one in body["scenarios"]] == ["equal", "priority"]
    assert body["judged"] == "equal"
    assert "Simulated: policies side by side" in call("compare", small, "--policy", "equal").output


def test_compare_random() -> None:
    result = call("compare", "--random", "2", "--policy", "equal", "--policy", "priority")
    assert "2 scenarios" in result.output
    assert "equal is worse than another policy in" in result.output


def test_compare_tells_files_of_the_same_name_apart(small: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    busier = tmp_path / "new" / "small.toml"
    busier.write_text(Path(small).read_text().replace("rate_rps = 10", "rate_rps = 50"))
    policies = ("--policy", "equal", "--policy", "priority", "--policy", "equal")
    body = json.loads(call("compare", small, str(busier), small, *policies, "--json").stdout)
    assert [(one["scenario"], one["policy"], one["runs"]) for one in body["scenarios"]] == [
        (name, policy, 1) for name in (small, str(busier)) for policy in ("equal", "priority")
    ]
    assert [one["scenario"] for one in body["overall"]] == ["2 scenarios"] * 2


def test_ctrl_c_leaves_out_the_runs_that_have_not_begun() -> None:
    cores = len(os.sched_getaffinity(0))
    jobs = [1.0] * cores + [200.0] * 8 * cores  # the first ones: until all processes have started
    script = f"""
import signal, time
from manager.sim.parallel import on_all_cores
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore
on_all_cores(time.sleep, {jobs}, lambda: print("done", flush=True))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(cores):
            assert process.stdout.readline() == "done\n"
        os.killpg(process.pid, signal.SIGINT)
        try:
            assert process.wait(150) == -signal.SIGINT, "no further one begins"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("run", "nonexistent", "--policy", "equal"), 1, "neither one of"),
        (("run", "spike", "--policy", "best"), 1, "policy 'best' is not installed: use auto, equal"),
        (("run", "spike"), 2, "--policy"),
        (("compare",), 2, "--random"),
        (("compare", "spike", "--policy", "best"), 1, "not installed"),
        (("compare", "spike", "--seeds", "0"), 2, "--seeds"),
    ],
)
def test_what_is_refused_is_named_without_a_traceback(arguments: tuple[str, ...], status: int, says: str) -> None:
    result = call(*arguments)
    assert result.exit_code == status
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["list", "run", "compare", "matrix"])
def test_every_command_has_help_with_examples(command: str) -> None:
    assert "EXAMPLES" in call(command, "--help").output
