"""deploy/python.sh on a copy of it, with a Python whose pip only notes what it is asked for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.units import TOP

PIP = """#!{python} -IS
import os, runpy, sys, time
venv = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
if sys.argv[1:3] == ["-m", "pip"]:
    if "install" in sys.argv:
        with open({log!r}, "a") as log:
            log.write(f"begin {{' '.join(sys.argv[4:])}}\\n")
        time.sleep({pause})
        with open({log!r}, "a") as log:
            log.write("end\\n")
        sys.exit({status})
elif sys.argv[1:2] == ["-c"]:
    exec(sys.argv[2])
"""
SETTINGS = """[options.extras_require]
demo =
    drawing>=1
test =
    checking>=2
    drawing>=1
"""


class Checkout:
    """A checkout with the script and an environment in it, whose Python is a script that notes calls of pip."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "deploy").mkdir(parents=True)
        shutil.copy(TOP / "deploy/python.sh", folder / "deploy")
        (folder / "setup.cfg").write_text(SETTINGS)
        (folder / "pyproject.toml").write_text("")
        self.interpreter = folder / "interpreter"
        self.pip()

    def pip(self, pause: float = 0.0, status: int = 0) -> None:
        """An interpreter whose environments get the Python that notes; it is run by the one of the tests."""
        fake = PIP.format(python=sys.executable, log=str(self.log), pause=pause, status=status)
        self.interpreter.write_text(
            "#!/bin/sh\n"
            'if [ "$1 $2" = "-m venv" ]; then\n'
            f"    echo venv $3 $4 >>{self.log}\n"
            '    for folder; do :; done; mkdir -p "$folder/bin"\n'
            f"    cat >\"$folder/bin/python\" <<'FAKE'\n{fake}FAKE\n"
            '    chmod +x "$folder/bin/python"; exit\n'
            "fi\n"
            f'exec {sys.executable} "$@"\n'
        )
        self.interpreter.chmod(0o755)

    def command(self, *extras: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHON": str(self.interpreter)}
        script = self.folder / "deploy/python.sh"
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [script, *extras], env=environ, text=True, stdout=pipe, stderr=pipe, start_new_session=True
        )

    def ask(self, *extras: str, status: int = 0) -> str:
        process = self.command(*extras)
        out, told = process.communicate(timeout=60)
        assert process.returncode == status, told
        return out.strip()

    @property
    def calls(self) -> list[str]:
        """What was asked of venv and pip."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_an_environment_serves_the_demonstration_and_the_tests_in_turn(checkout: Checkout) -> None:
    first = checkout.ask("demo")
    assert first == str(checkout.folder / ".venv/bin/python")
    mark = checkout.folder / ".venv/somebody-uses-this"
    mark.touch()
    assert checkout.ask("test") == first
    assert checkout.calls[-2:] == ["begin --quiet --disable-pip-version-check checking>=2 drawing>=1", "end"]
    before = len(checkout.calls)
    for extras in (("demo",), ("test",), ("test", "demo"), ()):
        assert checkout.ask(*extras) == first
    assert len(checkout.calls) == before, "nothing was installed anew"
    assert mark.exists(), "nothing was removed"
    assert sum(call.startswith("venv") for call in checkout.calls) == 1
    assert not any("--clear" in call for call in checkout.calls)


def test_what_is_installed_follows_setup_cfg_in_place(checkout: Checkout) -> None:
    checkout.ask("demo")
    checkout.ask("test")
    mark = checkout.folder / ".venv/somebody-uses-this"
    mark.touch()
    (checkout.folder / "setup.cfg").write_text(SETTINGS + "    more>=1\n")
    checkout.ask()
    assert checkout.calls[-2] == (
        f"begin --quiet --disable-pip-version-check --editable {checkout.folder}[demo,test]"
    ), "with all that anybody asked for"
    assert mark.exists()
    assert sum(call.startswith("venv") for call in checkout.calls) == 1


def test_two_at_once_take_turns_and_the_second_finds_it_done(checkout: Checkout) -> None:
    checkout.pip(pause=0.3)
    processes = [checkout.command(extra) for extra in ("demo", "test", "test")]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [
        str(checkout.folder / ".venv/bin/python")
    ] * 3
    assert [process.returncode for process in processes] == [0, 0, 0]
    turns = [call.split()[0] for call in checkout.calls if not call.startswith("venv")]
    assert turns in (["begin", "end"] * 2, ["begin", "end"]), "one after the other, each extra once"


def test_what_was_interrupted_is_done_again_and_counts_only_when_it_is_whole(checkout: Checkout) -> None:
    checkout.pip(status=1)
    assert checkout.ask("demo", status=1) == ""
    assert checkout.ask("demo", status=1) == ""
    shutil.rmtree(checkout.folder / ".venv/bin")  # for another pip
    checkout.pip(pause=30)
    process = checkout.command("demo")
    deadline_s = time.monotonic() + 30
    while not checkout.calls[-1].startswith("begin") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    shutil.rmtree(checkout.folder / ".venv/bin")
    checkout.pip()
    assert checkout.ask("demo")
    assert checkout.calls[-1] == "end"


def test_another_interpreter_has_an_environment_of_its_own(checkout: Checkout) -> None:
    first = checkout.ask("demo")
    python = Path(first)
    python.write_text("#!/bin/sh\necho /opt/another/bin/python3.99 3.99\n")
    second = checkout.ask("demo")
    assert second != first
    assert second.startswith(f"{checkout.folder}/.venv-")
    assert python.exists()
    assert checkout.ask("demo") == second


def test_an_extra_that_there_is_not_changes_nothing(checkout: Checkout) -> None:
    process = checkout.command("tests")
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "setup.cfg has no extra tests; there are: demo, test" in told
    assert not (checkout.folder / ".venv").exists()
