"""The doctor as the agent asks it, in a process of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from manager.cli import this_machine
from manager.cli.this_machine import Doctor
from manager.errors import HostError
from manager.host.doctor.checks import CHECKS
from manager.model.finding import Finding, FindingStatus
from manager.settings import load_settings

LONG_S = 60.0


def doctor(folder: Path, host: Any = None) -> Doctor:
    given = {
        "state_dir": str(folder),
        "host_name": "h1",
        "manager_url": "http://127.0.0.1:9",
        "libvirt_uri": "test:///default",
    }
    return Doctor(load_settings(None, {}, given), host)


def test_it_finds_what_the_command_finds_and_tries_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    for name in [one for one in os.environ if one.startswith("EQUIPOISE_")]:
        monkeypatch.delenv(name)
    one = doctor(tmp_path)
    first = {found.id: found for found in one.look()}
    assert list(first) == [*(check.id for check in CHECKS), "manager", "reports", "clock"]
    assert first["libvirt"].status is FindingStatus.WORKS
    assert "not tried, because of" not in first["cpu-weight-acts"].detail + first["load-outside"].detail
    second = {found.id: found for found in one.look()}
    for identity in ("cpu-weight-acts", "batch-group"):
        assert second[identity] == first[identity]
    assert "not tried, because of" not in second["load-outside"].detail


def runs(monkeypatch: pytest.MonkeyPatch, script: str) -> list[list[str]]:
    """Have another program in place of the doctor; the options that it gets."""
    options: list[list[str]] = []
    real = this_machine.subprocess.Popen

    def start(command: list[str], **more: object) -> object:
        options.append(command[command.index("--json") + 1 :])
        return real([sys.executable, "-c", script], **more)

    monkeypatch.setattr(this_machine.subprocess, "Popen", start)
    return options


ACTS = '{"id":"cpu-weight-acts","area":"a","title":"t","status":"%s","essential":false,"detail":"d","advice":""}'


def test_what_weights_did_at_first_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = doctor(tmp_path)
    first = runs(monkeypatch, f"""print('{{"findings":[{ACTS % "ignored"}]}}'); raise SystemExit(1)""")
    expected = (Finding("cpu-weight-acts", "a", "t", FindingStatus.IGNORED, False, "d"),)
    assert (one.look(), first) == (expected, [[]])
    monkeypatch.undo()
    later = runs(monkeypatch, f"""print('{{"findings":[{ACTS % "unknown"}]}}')""")
    assert (one.look(), later) == (expected, [["--gentle"]])


def test_what_batch_vms_need_is_tried_again_until_it_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Mock(needs_batch_group=None)
    one = doctor(tmp_path, host)

    def look(acts: str, group: str) -> tuple[list[str], list[str], bool | None]:
        """The options that the doctor gets, what the agent reports of both, and what it knows."""
        found = ",".join((ACTS % acts, ACTS.replace("cpu-weight-acts", "batch-group") % group))
        options = runs(monkeypatch, f"""print('{{"findings":[{found}]}}')""")
        statuses = [finding.status.value for finding in one.look()]
        monkeypatch.undo()
        return options[0], statuses, host.needs_batch_group

    assert look("works", "unknown") == ([], ["works", "unknown"], None)
    assert look("unknown", "unknown") == ([], ["works", "unknown"], None)
    assert look("unknown", "degraded") == ([], ["works", "degraded"], True)
    assert look("unknown", "unknown") == (["--gentle"], ["works", "degraded"], True)


def test_it_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "_MOST_TRIES", 3)
    group = ACTS.replace("cpu-weight-acts", "batch-group") % "unknown"
    options = runs(monkeypatch, f"""print('{{"findings":[{group}]}}')""")
    one = doctor(tmp_path)
    for _ in range(5):
        one.look()
    assert options == [[], [], [], ["--gentle"], ["--gentle"]]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit('equipoise: no such setting')", "equipoise: no such setting"),
        ("print('{}')", "findings"),
        ("""print('{"findings": [{"id": 1}]}')""", "area"),
        ("print('[]')", "did not answer"),
        (r"import os; os.write(2, b'no folder named \xff\n')", "no folder named \ufffd"),
    ],
)
def test_what_is_no_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str) -> None:
    runs(monkeypatch, script)
    with pytest.raises(HostError, match=says):
        doctor(tmp_path).look()


def test_a_doctor_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "_LONGEST_S", 0.2)
    runs(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(HostError, match="longer than"):
        doctor(tmp_path).look()


def test_closing_ends_a_look_and_lets_none_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = doctor(tmp_path)
    begun, errors = tmp_path / "begun", []
    runs(monkeypatch, f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)")

    def look() -> None:
        try:
            one.look()
        except HostError as error:
            errors.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    deadline = time.monotonic() + LONG_S
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    one.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert len(errors) == 1
    with pytest.raises(HostError, match="stopped"):
        one.look()
