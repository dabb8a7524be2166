"""The command line of the demonstration: what it refuses at once, and what is left behind where it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.lab.commands import LabError
from deploy.lab.demo import equipoise_service
from deploy.lab.demo.__main__ import main
from deploy.lab.demo.equipoise_service import Equipoise
from deploy.lab.demo.scene import BatchShape, phases_scene

ENDED_BY = """
import contextlib, signal, sys, time
from pathlib import Path
from deploy.lab.demo import __main__ as command

left = Path(sys.argv.pop())
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not as under nohup

def play(_console, stack, *_given):
    stack.callback(left.touch)
    print("plays", flush=True)
    time.sleep(60)

command.phases.play = play
command.only_user = lambda *_given, **_named: contextlib.nullcontext()
command.main()
"""
"""A demonstration that leaves a file where it ends in order."""
SERVES = """#!/bin/sh
echo $$ >{pid}
exec sleep 60
"""
"""An Equipoise that never reports."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--duration", "nan"), "'nan' is not in the range 3<=x<=3600"),
        (("--json", "/nonesuch/demo.json"), "cannot be written: there is no folder /nonesuch"),
        (("--scenario", "spike", "--picture", "spike.txt"), "use a name that ends in .png, .svg, .pdf"),
        (("--batch", "2x"), "'2x' is refused: use NxM"),
        (("--batch", "2x+4"), "'2x+4' is refused: use NxM"),
        (("--scenario", "spike", "--batch", "2x4"), "--batch is of `phases`"),
        (("--picture", "/tmp/phases.png"), "--picture is of `spike` and `autopilot`"),
    ],
)
def test_what_could_not_end_well_is_refused_before_it_begins(options: tuple[str, ...], words: str) -> None:
    ended = CliRunner().invoke(main, options)
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_in_order_however_it_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    left = tmp_path / "in-order"
    command = [sys.executable, "-c", ENDED_BY, str(left)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"plays\n"
        process.send_signal(number)
        assert process.wait(120) == 1
    assert left.exists()


def test_an_equipoise_that_does_not_come_up_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, pid = tmp_path / "python", tmp_path / "pid"
    program.write_text(SERVES.format(pid=pid))
    program.chmod(0o755)
    monkeypatch.setattr(equipoise_service, "START_S", 1.0)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(LabError, match="in vain for its agent to report"):
        Equipoise(tmp_path / "state", phases_scene(BatchShape()))
    assert not Path("/proc", pid.read_text().strip()).exists()
