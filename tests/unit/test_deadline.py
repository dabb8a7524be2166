"""Tests that have no time left are left out before anything is made for them, and counted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deadline import NO_TIME_LEFT

TOP = Path(__file__).parents[2]
SOME = "tests/unit/test_numbers.py"


def run_some(left_s: float, noted: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """What pytest says, which must end well."""
    monkeypatch.setenv("TESTS_UNTIL_S", str(time.time() + left_s))
    monkeypatch.setenv("TESTS_LEFT_OUT", str(noted))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, SOME]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_starts_in_time_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "left-out"
    assert " passed in" in run_some(600.0, noted, monkeypatch)
    assert not noted.exists()


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "several"])
def test_what_would_start_too_late_is_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    noted = tmp_path / "left-out"
    said = run_some(-1.0, noted, monkeypatch, *options)
    left_out = noted.read_text().splitlines()
    assert f"{len(left_out)} skipped in" in said
    assert NO_TIME_LEFT in said
    assert all(nodeid.startswith(f"{SOME}::") for nodeid in left_out)


@pytest.mark.parametrize("minutes", ["0", "-1", "1.5", "soon", ""])
def test_minutes_that_are_none(minutes: str) -> None:
    done = subprocess.run([TOP / "tests/run", "--within", minutes, "unit"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--within '{minutes}'" in done.stderr
