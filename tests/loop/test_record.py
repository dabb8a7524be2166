"""From agents through a manager into a file, and from there to what a policy would have decided."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.cli.record_command import fetch
from manager.errors import ManagerUnavailable, RecordingError
from manager.replay.policy_replay import replay
from manager.replay.recording import Recording, read_lines, write_lines
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.loop.test_agent import START_S, Site, site

__all__ = ["site"]
TICKS = 6

Call = Callable[..., Result]


def history(site: Site) -> None:
    """Some slots with response times measured at both hosts, and some posted."""
    a, b = site.machines
    for number in range(TICKS):
        a.telemetry.count("shop", site.now_s + 1, 30, time_ms=5 + number)
        b.telemetry.count("shop", site.now_s + 2, 10)
        body = {"times_ms": [7.0] * 5}
        site.pass_slot()
        site.client.request("POST", "/applications/shop/samples", body=body)
    for machine in site.machines:
        machine.agent.reporter.sync()


def fetched(site: Site) -> Recording:
    return fetch(site.client, "a", START_S, site.now_s + 1)


def test_a_history_is_recorded_written_read_and_replayed(site: Site) -> None:
    history(site)
    recording = fetched(site)
    a = site.machines[0]
    seen = a.policy.seen[1:]  # the first tick knew of no assignment yet
    assert read_lines(list(write_lines(recording))) == recording
    assert [tick.time_s for tick in recording.ticks][-len(seen) :] == [one.now_s for one in seen]
    assert sum(window.histogram.count for window in recording.windows) == TICKS * 45
    assert [(vm.vm, vm.vcpus, vm.original_weight) for vm in recording.vms] == [
        (vm.name, vm.vcpus, 1024) for vm in seen[-1].vms
    ]
    assert recording.assignment.host == seen[-1].host
    assert recording.assignment.applications[0].name == "shop"
    assert recording.capabilities.weights == a.host.capabilities.weights
    assert {record.vm for record in recording.decisions} == {"web-a"}
    found = replay(recording, PRIORITY, recording.assignment.host.law, 30, 1)
    assert {(vm.recorded, vm.replayed) for step in found.steps for vm in step.vms} == {(10_000, 10_000)}
    other = replay(recording, EQUAL, recording.assignment.host.law, 30, 1)
    assert {(vm.recorded, vm.replayed) for step in other.steps for vm in step.vms} == {(10_000, 1024)}


def test_only_the_time_asked_for_is_recorded_with_what_policies_look_back_at(site: Site) -> None:
    history(site)
    recording = fetch(site.client, "a", START_S + 15, START_S + 25)
    assert [tick.time_s - START_S for tick in recording.ticks] == [15, 20]
    assert all(START_S + 15 <= one.time_s < START_S + 25 for one in recording.decisions)
    assert min(window.end_s for window in recording.windows) < START_S + 15
    assert max(window.end_s for window in recording.windows) <= START_S + 25


def test_what_is_missing_is_named(site: Site) -> None:
    history(site)
    with pytest.raises(RecordingError, match=r"no ticks of host a from 2026-02-28T12:00:00.* did its agent run then"):
        fetch(site.client, "a", START_S - 86_400, START_S - 3600)
    with pytest.raises(ManagerUnavailable, match=r"404 .*nowhere"):
        fetch(site.client, "nowhere", START_S, site.now_s)


@pytest.fixture
def call(site: Site, monkeypatch: pytest.MonkeyPatch) -> Call:
    history(site)
    monkeypatch.setattr("manager.cli.record_command.connect", lambda _: site.client)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return run


SINCE = ("--since", "2026-03-01T12:00:00Z", "--until", "2026-03-01T13:00:00+00:00", "--host", "a")


def test_the_commands(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("what was there before")
    result = call("record", str(file), *SINCE)
    assert result.exit_code == 0, result.output
    assert "ticks" in result.stderr
    assert list(tmp_path.glob(".a.jsonl*")) == []
    assert call("record", "-", *SINCE).stdout == file.read_text()
    found: dict[str, Any] = json.loads(call("replay", str(file), "--policy", "equal", "--json").stdout)
    assert (found["estimated"], found["host"], found["policy"]) == (True, "a", "equal")
    assert found["recorded_policies"] == ["priority"]
    [shop] = found["applications"]
    assert (shop["recorded"], shop["replayed"]) == ([10_000, 10_000], [1024, 1024])
    assert [(one["vm"], one["recorded"], one["after"]) for one in found["changes"]] == [("web-a", 10_000, 1024)]
    shown = call("replay", str(file), "--policy", "equal").output
    assert "Estimated, not measured" in shown
    assert "10000 .. 10000" in shown
    printed = json.loads(call("replay", str(file), "--policy", "fair:published", "--law", "gain=2", "--json").stdout)
    assert (printed["law"]["published"], printed["law"]["gain"]) == (True, 2)


class Passing:
    """The module ``time``, of a site whose slots pass while somebody sleeps."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def time(self) -> float:
        return self.site.now_s

    def monotonic(self) -> float:
        return self.site.now_s

    def sleep(self, seconds: float) -> None:
        self.site.pass_slot()


def test_waiting_for_what_is_recorded(site: Site, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manager.cli.record_command.time", Passing(site))
    begin_s = site.now_s
    result = call("record", str(tmp_path / "a.jsonl"), "--host", "a", "--for", "12s")
    assert result.exit_code == 0, result.output
    recording = read_lines((tmp_path / "a.jsonl").read_text().split("\n"))
    assert [tick.time_s - begin_s for tick in recording.ticks] == [0, 5, 10]
    assert (recording.from_s, recording.to_s) == (begin_s, begin_s + 12)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--since", "soon"), 2, "'soon' is refused"),
        (("--since", "2026-03-01T12:00:00"), 2, "is refused"),
        (("--since", "0s"), 2, "'0s' is refused"),
        (("--since", "1h", "--until", "2h"), 2, "--since is not before --until"),
        (("--for", "10m", "--since", "1h"), 2, "--for goes with neither"),
        (("--for", "-1s"), 2, "'-1s' is refused"),
        (("--host", "nowhere"), 1, "404"),
        (("--host", "nowhere", "--for", "3000d"), 1, "404"),
        (
            ("--host", "a", "--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02T00:00:00Z"),
            1,
            "no ticks of host a",
        ),
    ],
)
def test_a_recording_that_cannot_be_made_leaves_the_file_alone(
    call: Call, tmp_path: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("what was there before")
    result = call("record", str(file), *arguments)
    assert result.exit_code == status
    assert says in result.output
    assert "Traceback" not in result.output
    assert file.read_text() == "what was there before"


def test_a_file_that_cannot_be_written_is_named(call: Call, tmp_path: Path) -> None:
    result = call("record", str(tmp_path / "nowhere/a.jsonl"), *SINCE)
    assert (result.exit_code, "cannot be written: there is no folder" in " ".join(result.output.split())) == (2, True)
    (tmp_path / "folder").mkdir()
    result = call("record", str(tmp_path / "folder"), *SINCE)
    assert (result.exit_code, "is a directory" in " ".join(result.output.split())) == (2, True)
    result = call("record", "/proc/a.jsonl", *SINCE)
    assert (result.exit_code, "/proc/a.jsonl cannot be written: No such file" in result.output) == (1, True)
    assert list(tmp_path.glob(".folder*")) == []


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(call: Call, tmp_path: Path) -> None:
    """As /dev/null would be, for root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = call("record", str(pipe), *SINCE)
    assert pipe.is_fifo()
    assert result.exit_code == 2
    assert "it is no regular file; - is standard output" in " ".join(result.output.split())


def test_a_link_stays_and_leads_to_the_new_file(call: Call, tmp_path: Path) -> None:
    link = tmp_path / "latest.jsonl"
    link.symlink_to("monday.jsonl")
    for _ in range(2):
        assert call("record", str(link), *SINCE).exit_code == 0
    assert link.readlink() == Path("monday.jsonl")
    assert read_lines((tmp_path / "monday.jsonl").read_text().splitlines()).ticks


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "best"), "policy 'best' is not installed: use auto, equal"),
        (("--policy", "fair", "--law", "gain"), "use NAME=VALUE"),
        (("--policy", "fair", "--law", "gain=9"), "gain"),
        (("--policy", "fair", "--law", "gains=1"), "gains"),
        (("--policy", "fair", "--law", "published=perhaps"), "published"),
    ],
)
def test_a_replay_that_is_refused(call: Call, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    file = tmp_path / "a.jsonl"
    call("record", str(file), *SINCE)
    result = call("replay", str(file), *arguments)
    assert result.exit_code == 1
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "text in UTF-8"),
        (b"{", "a.jsonl: line 1: not a recording"),
    ],
)
def test_a_file_that_is_no_recording(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "a.jsonl"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(main, ["replay", str(file), "--policy", "fair"])
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert says in result.output
