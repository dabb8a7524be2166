"""The lab has one user at a time, who is named to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.lab.commands import LabError
from deploy.lab.lab_lock import LOCK, only_user
from tests.deploy.units import TOP

HOLD = """
import sys
from pathlib import Path
from deploy.lab.lab_lock import only_user
with only_user("the demonstration", Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_user_is_told_who_the_first_is_and_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        message = rf"^the demonstration is using the lab \(process {other.pid}\): wait or stop it$"
        with pytest.raises(LabError, match=message), only_user("tests", tmp_path):
            pytest.fail("two have it")
        other.kill()
        other.wait()
    with only_user("tests", tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()} tests\n", "who was killed has it no more"


def test_within_a_process_it_may_be_asked_for_again(tmp_path: Path) -> None:
    with only_user("tests", tmp_path / "new"):
        with only_user("the demonstration", tmp_path / "new"):
            pass
        assert (tmp_path / "new" / LOCK).read_text() == f"{os.getpid()} tests\n"
    assert (tmp_path / "new" / LOCK).read_text() == ""
