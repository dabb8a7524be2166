"""The lab has one user at a time; the next waits for its turn, and is told for whom."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.lab.commands import LabError
from deploy.lab.demo import __main__ as demo
from deploy.lab.demo import phases
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
WAITING = """
from pathlib import Path
from tests.lab_turn import lab_turn
def test_that_needs_the_lab(pytestconfig):
    with lab_turn("tests/run live", pytestconfig, Path({base!r})):
        print("not shown")
"""
REMIND_S = 0.01


@contextmanager
def other_user(base: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lab; an end of its input ends it."""
    command = [sys.executable, "-c", HOLD, str(base)]
    with subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


def words_of(other: subprocess.Popen[str]) -> str:
    return rf"the demonstration \(process {other.pid}\) has used the lab since \d\d:\d\d:\d\d"


def test_a_second_user_waits_and_is_told_again_and_again_for_whom(tmp_path: Path) -> None:
    said: list[str] = []
    with other_user(tmp_path) as other:

        def say(line: str) -> None:
            said.append(line)
            if len(said) == 3:
                other.kill()  # who was killed has it no more

        with only_user("tests", tmp_path, say=say, remind_s=REMIND_S):
            assert re.fullmatch(rf"{os.getpid()} \d\d:\d\d:\d\d tests\n", (tmp_path / LOCK).read_text())
        *waited, went_on = said
        assert len(waited) >= 3
        assert all(re.fullmatch(rf"{words_of(other)}: waiting for its end", line) for line in waited), said
        assert went_on == "the lab is free: going on"
    assert (tmp_path / LOCK).read_text() == ""


def test_who_finds_it_free_is_told_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with only_user("tests", tmp_path / "new"):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_second_user_may_give_up_at_once(tmp_path: Path) -> None:
    with other_user(tmp_path) as other:
        message = rf"^{words_of(other)}: wait for its end, or stop it$"
        with pytest.raises(LabError, match=message), only_user("tests", tmp_path, wait=False):
            pytest.fail("two have it")
    with only_user("tests", tmp_path, wait=False):
        pass


def test_within_a_process_it_may_be_asked_for_again(tmp_path: Path) -> None:
    with only_user("tests", tmp_path / "new"):
        with only_user("the demonstration", tmp_path / "new"):
            pass
        assert (tmp_path / "new" / LOCK).read_text().endswith(" tests\n")
    assert (tmp_path / "new" / LOCK).read_text() == ""


def test_the_demonstration_gives_up_at_once_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "only_user", partial(only_user, base=tmp_path))
    monkeypatch.setattr(phases, "play", lambda *_given: pytest.fail("it plays"))
    with other_user(tmp_path) as other:
        ended = CliRunner().invoke(demo.main, ["--no-wait"])
    assert ended.exit_code == 1
    assert re.fullmatch(rf"deploy/demo: {words_of(other)}: wait for its end, or stop it\n", ended.output)


def test_setup_waits_for_who_has_the_lab_and_what_it_starts_does_not_keep_it(tmp_path: Path) -> None:
    script = (TOP / "deploy/lab/setup.sh").read_text()
    [await_turn] = re.findall(r"^await_turn\(\) \{.*?^\}$", script, re.MULTILINE | re.DOTALL)
    lock = tmp_path / LOCK
    commands = f"""
        WAIT_S=0.05
        {await_turn}
        exec 8>>{lock}
        await_turn 8 {lock} "who has it: "
        start() {{ setsid -f sh -c 'echo $$; exec sleep 60 >/dev/null 2>&1'; }}
        start 8>&-
    """
    with other_user(tmp_path) as other:
        command = ["bash", "-euc", commands]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as setup:
            assert setup.stdout is not None and setup.stderr is not None
            line = rf" *waiting for who has it: {other.pid} \d\d:\d\d:\d\d the demonstration\n"
            assert all(re.fullmatch(line, setup.stderr.readline()) for _ in range(3))
            other.kill()
            daemon = int(setup.stdout.readline())
            assert setup.wait() == 0
    with only_user("tests", tmp_path, wait=False):  # its end gave it back, whatever it started
        os.kill(daemon, signal.SIGKILL)


def until_printed(file: Path, pattern: str, process: subprocess.Popen[bytes]) -> None:
    while not re.search(pattern, file.read_text()):
        assert process.poll() is None, file.read_text()
        time.sleep(0.02)


def test_the_line_reaches_a_person_past_what_pytest_captures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WAITING.format(base=str(tmp_path)))
    printed = tmp_path / "printed"
    with other_user(tmp_path) as other, printed.open("wb") as file:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
        own = {name: text for name, text in os.environ.items() if not name.startswith("SLIPCOVER")}
        environment = own | {"PYTHONPATH": str(TOP)}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file) as tests:
            until_printed(printed, rf"tests/run live: {words_of(other)}: waiting for its end\n", tests)
            other.kill()
            assert tests.wait() == 0, printed.read_text()
    assert "not shown" not in printed.read_text()
