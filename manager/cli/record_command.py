"""`equipoise record`."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from manager.cli.options import CLIENT_SETTINGS, OnePage, connect, with_settings
from manager.errors import ManagerUnavailable, RecordingError
from manager.model.fields import adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord, TickRecord
from manager.model.window import Window
from manager.protocol.assignment import AssignmentOut
from manager.protocol.client import ManagerClient
from manager.protocol.convert import assignment_of, window_of
from manager.protocol.report import WindowBody
from manager.replay.policy_replay import LOOK_BACK_S
from manager.replay.recording import RecordedVm, Recording, write_lines
from manager.settings import Settings
from manager.terminal import progress, say, say_json_lines

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 3650 * 86_400
_PAUSE_S = 0.2

_EPILOG = """
TIME
  How long ago, such as 90s, 10m, 1h or 2d; or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  JSON lines: registrations, capabilities, what each tick saw, response times as histograms, and decisions; described in
  docs/how-to/replay.md. FILE is replaced as a whole or not at all; `-` is standard output.

EXAMPLES
  equipoise record last-hour.jsonl
  equipoise record spike.jsonl --host kvm7 --since 2026-01-31T14:00:00Z --until 2026-01-31T15:00:00Z
  equipoise record trial.jsonl --for 10m
  equipoise replay trial.jsonl --policy isolation
"""


def _length_s(option: str, text: str) -> float:
    """A length of time in seconds. Raises click.BadParameter."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text, re.ASCII)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is refused: use up to 3650d, such as 90s, 10m or 1h", param_hint=option)
    return seconds


def _time_s(option: str, text: str, now_s: float) -> float:
    """Seconds since the epoch, from a time or from how long ago it is. Raises click.BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return now_s - _length_s(option, text)


@click.command(cls=OnePage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.argument("file", metavar="FILE")
@click.option("--host", default="", metavar="NAME", help="Record this host. [default: this machine]")
@click.option("--since", default="", metavar="TIME", help="Begin here. [default: 1h]")
@click.option("--until", default="", metavar="TIME", help="End before this. [default: now]")
@click.option("--for", "wait", default="", metavar="LENGTH", help="Wait so long, and record that time.")
def record(settings: Settings, file: str, host: str, since: str, until: str, wait: str) -> None:
    """Write a host's history to FILE, for `equipoise replay`."""
    if wait and (since or until):
        raise click.UsageError("--for goes with neither --since nor --until")
    now_s = time.time()
    wait_s = _length_s("--for", wait) if wait else 0.0
    begin_s = now_s if wait else _time_s("--since", since or "1h", now_s)
    end_s = now_s + wait_s if not until else _time_s("--until", until, now_s)
    if begin_s >= end_s:
        raise click.UsageError("--since is not before --until")
    client = connect(settings)
    name = host or settings.text("host_name")
    if wait:
        client.get(f"/hosts/{name}/assignment")  # so that nobody waits in vain
        _wait(wait_s)
    try:
        recording = fetch(client, name, begin_s, end_s)
    except ValidationError as error:
        raise ManagerUnavailable(f"the manager's answer is not understood: {error}") from error
    _write(file, "".join(write_lines(recording)))
    where = "standard output" if file == "-" else file
    counts = f"{len(recording.ticks)} ticks, {len(recording.windows)} windows, {len(recording.decisions)} decisions"
    say(f"{name}: {counts} written to {where}", err=True)


def fetch(client: ManagerClient, host: str, from_s: float, to_s: float) -> Recording:
    """The history of a host as its manager knows it, between two times in seconds since the epoch.

    Raises ManagerUnavailable, RecordingError where there is nothing to record, and pydantic.ValidationError.
    """
    since, until = _text(from_s), _text(to_s)
    found = client.items(f"/hosts/{host}/ticks", since=since, until=until)
    ticks = [adapter_of(TickRecord).validate_python(one) for one in found]
    if not ticks:
        raise RecordingError(f"no ticks of host {host} from {since} until {until}: did its agent run then?")
    assignment, _ = assignment_of(AssignmentOut.model_validate(client.get(f"/hosts/{host}/assignment")))
    windows: list[Window] = []
    for application in assignment.applications:
        found = client.items(
            f"/applications/{application.name}/windows", since=_text(from_s - LOOK_BACK_S), until=until, buckets="true"
        )
        windows += [_window(application.name, one) for one in found]
    decisions = client.items("/decisions", host=host, since=since, until=until)
    managed = {vm.vm for tick in ticks for vm in tick.vms}
    return Recording(
        from_s,
        to_s,
        assignment,
        adapter_of(Capabilities).validate_python(client.get(f"/hosts/{host}/capabilities")),
        tuple(_vm(one) for one in client.items("/vms") if one["name"] in managed and one["status"]),
        tuple(ticks[::-1]),
        tuple(sorted(windows, key=lambda window: window.end_s)),
        tuple(adapter_of(DecisionRecord).validate_python(decision) for decision in decisions[::-1]),
    )


def _window(application: str, item: dict[str, Any]) -> Window:
    fields = {name: item[name] for name in ("start", "end", "buckets", "requests", "ready")}
    return window_of(application, WindowBody.model_validate({"application": application, **fields}))


def _vm(item: dict[str, Any]) -> RecordedVm:
    weights = [knob for knob in item["status"]["knobs"] if knob["knob"] == Knob.WEIGHT]
    original = next((knob["original"] or knob["value"] for knob in weights), None)
    return RecordedVm(item["name"], item["status"]["vcpus"], None if original is None else int(original))


def _text(time_s: float) -> str:
    return timestamp(max(time_s, 0.0)).astimezone(UTC).isoformat()


def _wait(seconds: float) -> None:
    """Sleep, with a bar on standard error where that is a terminal."""
    with progress("recording", seconds, counted=False) as bar:
        begin_s = time.monotonic()
        while (passed_s := time.monotonic() - begin_s) < seconds:
            bar.update(passed_s)
            time.sleep(min(_PAUSE_S, seconds - passed_s))


def _write(file: str, text: str) -> None:
    """Replace a file as a whole. Raises RecordingError."""
    if file == "-":
        say_json_lines(text)
        return
    path = Path(file)
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
            temporary = out.name
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()
        raise RecordingError(f"{file} cannot be written: {error.strerror}") from error
