"""What a guest tells comes through, and one that crashes, hangs or cannot be made fails its tests with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest import TestReport

from deploy.lab.commands import LabError
from tests.deadline import NO_TIME_LEFT
from tests.kernel.conftest import INSIDE, reports_of, run_chosen
from tests.kernel.machine import BOOTS, Machine, Run, boot, parse, run_tests
from tests.kernel.machines import MACHINES

SAMPLE = "tests/kernel/samples/crashing.py::"


def line(**message: object) -> str:
    return json.dumps(message) + "\n"


def report(nodeid: str, when: str) -> dict[str, Any]:
    return {"nodeid": nodeid, "when": when}


@pytest.fixture(scope="module")
def crashed() -> Run:
    """What is known of a guest whose kernel panicked in a test."""
    names = ("test_passes", "test_fails", "test_is_skipped", "test_panics", "test_comes_after")
    return run_tests(Machine(), [SAMPLE + name for name in names])


def outcomes(run: Run, name: str) -> dict[str, str]:
    return {each["when"]: each["outcome"] for each in run.reports.get(SAMPLE + name, ())}


def test_reports_from_before_a_panic_are_kept(crashed: Run) -> None:
    assert outcomes(crashed, "test_passes") == {"setup": "passed", "call": "passed", "teardown": "passed"}
    assert outcomes(crashed, "test_fails") == {"setup": "passed", "call": "failed", "teardown": "passed"}
    assert outcomes(crashed, "test_is_skipped") == {"setup": "skipped", "teardown": "passed"}
    assert outcomes(crashed, "test_panics") == {"setup": "passed"}
    assert outcomes(crashed, "test_comes_after") == {}


def test_a_failure_comes_with_its_reason(crashed: Run, request: pytest.FixtureRequest) -> None:
    data = crashed.reports[SAMPLE + "test_fails"][1]
    failed = request.config.hook.pytest_report_from_serializable(config=request.config, data=data)
    assert "assert [1, 2] == [1, 3]" in failed.longreprtext
    assert failed.capstdout == "said before\n"


def test_a_panic_is_told_with_the_console(crashed: Run) -> None:
    assert crashed.running == SAMPLE + "test_panics"
    assert crashed.trouble == "the guest ended without saying so: its kernel or first process crashed"
    assert "Kernel panic - not syncing: sysrq triggered crash" in crashed.console_end


def booted(machine: Machine, script: str) -> Run:
    """What comes of a guest whose emulator is a shell script."""
    return boot(machine, Path("vmlinuz"), Path("initrd"), ("sh", "-c", script, "emulator"))


def test_a_guest_that_hangs() -> None:
    run = booted(Machine(timeout_s=0.2), "exec sleep 60")
    assert run.trouble == "the guest did not end within 0.2 s"
    assert not run.reports
    assert run.boots == 1


def test_a_kernel_that_hangs_is_booted_again() -> None:
    run = booted(Machine(boot_s=0.2), "exec sleep 60")
    assert run.trouble == "its kernel hung for 0.2 s before its first process"
    assert run.boots == BOOTS


def test_a_kernel_that_crashes_before_its_first_process_is_booted_again(tmp_path: Path) -> None:
    crashes, tells = "exit", "for file; do echo guest: here >${file#file:}; done"
    crashed = booted(Machine(), crashes)
    assert crashed.trouble == "the guest ended without saying so: its kernel or first process crashed"
    assert crashed.boots == BOOTS
    seen = tmp_path / "seen"
    come_up = booted(Machine(), f"[ -e {seen} ] || {{ touch {seen}; {crashes}; }}; cd {tmp_path}; {tells}")
    assert come_up.console == "guest: here\n"
    assert come_up.boots == 2


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(LabError, match="the package no-such-package is not installed"):
        run_tests(Machine(packages=("pytest", "no-such-package")), [])


def test_a_line_that_was_cut_off_is_left_out() -> None:
    told = line(start="a") + line(report=report("a", "setup")) + '{"report": {"nodeid": "a", "wh'
    run = parse(told, "")
    assert run.reports == {"a": [report("a", "setup")]}
    assert (run.running, run.complete("a")) == ("a", False)


def test_a_first_process_that_failed_says_so() -> None:
    run = parse(line(ended={"trouble": "OSError: mount cgroup2"}), "")
    assert run.trouble == "OSError: mount cgroup2"


def test_files_that_could_not_be_imported_are_named() -> None:
    run = parse(line(collect="inside/test_x.py: no module y") + line(ended={"status": 4}), "")
    assert run.trouble == "inside/test_x.py: no module y"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (Run("", trouble="no guest could be made"), "this test did not run: no guest could be made"),
        (Run(""), "this test did not run: the guest told nothing of it"),
        (Run("", running="{nodeid}", trouble="crashed"), "this test began but did not end: crashed"),
    ],
)
def test_a_test_without_a_result_fails(run: Run, text: str, request: pytest.FixtureRequest) -> None:
    item: pytest.Item = request.node
    run = Run("booted\npanic", run.reports, run.running.format(nodeid=item.nodeid), run.trouble)
    (only,) = reports_of(item, run)
    assert (only.outcome, only.when, only.longrepr) == ("failed", "call", text)
    assert only.sections == [("Guest console", "booted\npanic")]


def test_a_test_that_had_no_time_left_is_skipped(request: pytest.FixtureRequest) -> None:
    item, ended = request.node, TestReport("x", ("x", 0, "x"), {}, "failed", "why", "teardown")
    (only,) = reports_of(item, Run("", trouble=NO_TIME_LEFT))
    assert only.skipped
    assert NO_TIME_LEFT in str(only.longrepr)
    data = request.config.hook.pytest_report_to_serializable(config=request.config, report=ended)
    (kept,) = reports_of(item, Run("", {item.nodeid: [data]}, trouble=NO_TIME_LEFT))
    assert kept.failed, "it ended before"


def test_no_guest_is_booted_with_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_UNTIL_S", "1")
    assert run_chosen("resctrl", ["any"], None) == Run("", trouble=NO_TIME_LEFT)


def test_every_folder_of_tests_has_a_machine() -> None:
    assert {each.name for each in INSIDE.iterdir() if each.is_dir() and each.name != "__pycache__"} == set(MACHINES)
