"""`equipoise record`, and how commands fetch what agents reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from manager.cli.options import CLIENT_SETTINGS, ManPage, ObjectName, WrittenFile, connect, with_settings
from manager.cli.times import length_s, time_s
from manager.errors import ManagerUnavailable, RecordingError
from manager.model.fields import adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord, TickRecord
from manager.model.registration import Assignment
from manager.model.window import Window
from manager.private import replace_file
from manager.protocol.assignment import AssignmentOut, read_window
from manager.protocol.client import ManagerClient
from manager.replay.policy_replay import LOOK_BACK_S
from manager.replay.recording import RecordedVm, Recording, write_lines
from manager.settings import Settings
from manager.terminal import progress, say, say_json_lines

_PAUSE_S = 0.2
_LOOK_S = 20.0
"""A host counts as looked at for a minute."""

_EPILOG = """
TIME
  How long ago, such as 90s, 10m, 1h or 2d, or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  JSON lines: registrations, capabilities, ticks, response times as histograms, and decisions; docs/how-to/replay.md
  describes them. FILE is replaced atomically; `-` is standard output.

EXAMPLES
  equipoise record last-hour.jsonl
  equipoise record spike.jsonl --host kvm7 --since 2026-01-31T14:00:00Z --until 2026-01-31T15:00:00Z
  equipoise record trial.jsonl --for 10m
  equipoise replay trial.jsonl --policy isolation
"""


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ManagerUnavailable(f"the manager's answer is not understood: {error}") from error


def fetch_assignment(client: ManagerClient, host: str) -> Assignment:
    """What is registered for a host. Raises ManagerUnavailable."""
    with _understood():
        return adapter_of(AssignmentOut).validate_python(client.get(f"/hosts/{host}/assignment")).assignment


def fetch_windows(client: ManagerClient, application: str, limit: int | None = None, **query: str) -> list[Window]:
    """Slots of response times, oldest first; ``limit``: the newest. Raises ManagerUnavailable."""
    bodies = client.items(f"/applications/{application}/windows", limit, buckets="true", **query)
    with _understood():
        windows = [read_window(application, body) for body in bodies]
    return sorted(windows, key=lambda window: window.end_s)


def fetch(client: ManagerClient, host: str, from_s: float, to_s: float) -> Recording:
    """A host's history between two times in seconds since the epoch.

    Raises ManagerUnavailable, and RecordingError where there is nothing to record.
    """
    since, until, look_back = (
        timestamp(max(time_s, 0.0)).isoformat() for time_s in (from_s, to_s, from_s - LOOK_BACK_S)
    )
    ticks = client.items(f"/hosts/{host}/ticks", since=since, until=until)
    if not ticks:
        raise RecordingError(f"no ticks of host {host} from {since} until {until}: did its agent run then?")
    assignment = fetch_assignment(client, host)
    windows = [
        window
        for application in assignment.applications
        for window in fetch_windows(client, application.name, since=look_back, until=until)
    ]
    decisions = client.items("/decisions", host=host, since=since, until=until)
    managed = {vm["vm"] for tick in ticks for vm in tick["vms"]}
    with _understood():
        return Recording(
            from_s,
            to_s,
            assignment,
            adapter_of(Capabilities).validate_python(client.get(f"/hosts/{host}/capabilities")),
            tuple(_vm(row) for row in client.items("/vms") if row["name"] in managed and row["status"]),
            tuple(map(adapter_of(TickRecord).validate_python, ticks[::-1])),
            tuple(sorted(windows, key=lambda window: window.end_s)),
            tuple(map(adapter_of(DecisionRecord).validate_python, decisions[::-1])),
        )


def _wait(client: ManagerClient, host: str, wait_s: float) -> None:
    """Wait, and look at the host all the while: its agent keeps nothing back then."""
    start_s = time.monotonic()
    look_s = 0.0
    with progress("recording", wait_s, counted=False) as bar:
        while (passed_s := time.monotonic() - start_s) < wait_s:
            bar.update(passed_s)
            if passed_s >= look_s:
                look_s = passed_s + _LOOK_S
                with suppress(ManagerUnavailable):  # it may be back before the end
                    client.get(f"/hosts/{host}/ticks", limit="1")
            time.sleep(min(_PAUSE_S, wait_s - passed_s))


def _vm(item: dict[str, Any]) -> RecordedVm:
    weights = [knob for knob in item["status"]["knobs"] if knob["knob"] == Knob.WEIGHT]
    original = next((knob["original"] or knob["value"] for knob in weights), None)
    return RecordedVm(item["name"], item["status"]["vcpus"], None if original is None else int(original))


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.argument("file", metavar="FILE", type=WrittenFile(allow_dash=True))
@click.option("--host", type=ObjectName(), default="", metavar="NAME", help="Record this host. [default: this machine]")
@click.option("--since", default="", metavar="TIME", help="Begin here. [default: 1h]")
@click.option("--until", default="", metavar="TIME", help="End before this. [default: now]")
@click.option("--for", "wait", default="", metavar="LENGTH", help="Record from now on for this long.")
def record(settings: Settings, file: Path, host: str, since: str, until: str, wait: str) -> None:
    """Write a host's history to FILE, for `equipoise replay`."""
    if wait and (since or until):
        raise click.UsageError("--for goes with neither --since nor --until")
    now_s = time.time()
    wait_s = length_s("--for", wait) if wait else 0.0
    begin_s = now_s if wait else time_s("--since", since or "1h", now_s)
    end_s = now_s + wait_s if not until else time_s("--until", until, now_s)
    if begin_s >= end_s:
        raise click.UsageError("--since is not before --until")
    client = connect(settings)
    name = host or settings.text("host_name")
    if wait:
        fetch_assignment(client, name)  # fails now, not after the wait
        _wait(client, name, wait_s)
    recording = fetch(client, name, begin_s, end_s)
    text = "".join(write_lines(recording))
    try:
        if str(file) == "-":
            say_json_lines(text)
        else:
            replace_file(file, text.encode())
    except OSError as error:
        raise RecordingError(f"{file} cannot be written: {error.strerror}") from error
    where = "standard output" if str(file) == "-" else file
    counts = f"{len(recording.ticks)} ticks, {len(recording.windows)} windows, {len(recording.decisions)} decisions"
    say(f"{name}: {counts} written to {where}", err=True)
