"""`equipoise doctor`: what of this host works, what does not, and what to do about it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType

import click

from manager.cli.options import (
    AGENT_TOKEN_FILE,
    CLIENT_SETTINGS,
    JOURNAL_FILE,
    LIMIT_SETTINGS,
    OUTBOX_FILE,
    OnePage,
    client_for,
    lock_path,
    read_token,
    with_settings,
)
from manager.cli.report_check import look_at_reports, second_agent
from manager.errors import ManagerUnavailable, SettingsError
from manager.host.doctor.agent_check import AREA
from manager.host.doctor.check import Check, CheckResult, Subject, degraded, run_checks, unknown, warning, works
from manager.host.doctor.checks import CHECKS
from manager.host.hypervisor import EventLoop
from manager.host.registry import HostPaths
from manager.model.cpus import parse_cpus
from manager.model.finding import Finding, FindingStatus
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import Table, say, say_json, show

_CLOCK_OFF_S = 2.0

_EPILOG = """
WHAT IT DOES
  Tries every mechanism that Equipoise can use by writing in a scratch place and reading back: a cgroup
  equipoise-doctor-PID below the root of the cpu controller's hierarchy, a process of its own, a file in STATE_DIR.
  All of that is removed again. Nothing of VMs, of libvirt or of the kernel's settings is changed, nothing is mounted.
  It can be run beside a running agent. It takes about three seconds; for a second of them two processes compete for
  the least busy pCPU at a tenth of the weight of a VM, to see whether weights act. --gentle leaves that out; --quick
  does, and the second in which load outside the VMs is measured. The agent runs it by itself at its start, and with
  --gentle every hour.

OUTPUT
  A table an area: the thing, how it is, what was seen and what to do.
    works      tried, or looked at and in order
    missing    this host does not have it
    ignored    the kernel takes the setting and does nothing with it
    degraded   it works less well than it could
    warning    something that may disturb
    unknown    it could not be found out, or was not tried
  docs/reference/doctor.md explains every finding. With --json, one object: host, ok, and findings, a list of objects
  with id, area, title, status, essential, detail and advice.

EXIT STATUS
  0  nothing essential is broken     1  something essential is missing, ignored or unknown     2  wrong usage

EXAMPLES
  equipoise doctor
  equipoise doctor --quick
  equipoise doctor --json | jq -r '.findings[] | select(.status != "works") | "\\(.id): \\(.advice)"'
"""


@click.command(cls=OnePage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name", "libvirt_uri", "root_dir", "managed_cpus", *LIMIT_SETTINGS)
@click.option("--quick", is_flag=True, help="Leave out what uses CPU time or waits.")
@click.option("--gentle", is_flag=True, help="Leave out what uses CPU time that VMs could have.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def doctor(settings: Settings, quick: bool, gentle: bool, as_json: bool) -> None:
    """Say what works on this host, what is missing or ignored, why, and what to do."""
    EventLoop()  # registered and not started: enough to learn whether libvirt has events
    subject = Subject(
        HostPaths(Path(settings.text("root_dir"))),
        settings.text("libvirt_uri"),
        lock_path(settings),
        settings.state_dir,
        JOURNAL_FILE,
        parse_cpus(settings.text("managed_cpus")),
        quick,
        gentle,
        settings.limits,
        settings.text("log_dirs"),
        settings.text("probe_networks"),
    )
    with _ending_tidily():
        findings = list(run_checks((*CHECKS, *manager_checks(settings)), subject))
    if as_json:
        say_json(report(settings.text("host_name"), findings))
    else:
        print_findings(findings)
    if any(finding.broken for finding in findings):
        sys.exit(1)


@contextmanager
def _ending_tidily() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that scratch groups and processes are removed."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def manager_checks(settings: Settings) -> tuple[Check, ...]:
    """What concerns the manager that the settings name."""
    outbox, host = settings.state_dir / OUTBOX_FILE, settings.text("host_name")
    return (
        Check("manager", AREA, "Manager", lambda _subject: _manager(settings)),
        Check("reports", AREA, "Reports", lambda _subject: look_at_reports(outbox, host)),
        Check("clock", AREA, "Clock", lambda _subject: _clock(settings, time.time)),
    )


def _manager(settings: Settings) -> CheckResult:
    """Whether it answers, and takes a token of this host: the one of the command line, or the agent's."""
    url, name = settings.text("manager_url"), settings.text("host_name")
    try:
        with _client(settings, "") as client:
            version = client.get("/health")["version"]
    except (ManagerUnavailable, KeyError, TypeError) as error:
        return warning(
            f"not reached: {error}", "start `equipoise manager`, or set manager_url; the agent goes on alone"
        )
    refused: list[str] = []
    for read in (read_token, partial(read_token, default_file=AGENT_TOKEN_FILE)):
        try:
            with _client(settings, read(settings)) as client:
                host = client.get(f"/hosts/{name}")
        except (ManagerUnavailable, SettingsError) as error:
            refused.append(str(error))
        else:
            second = second_agent(host, settings.state_dir)
            return second or works(f"{url} answers, version {version}, and takes the token")
    return degraded(
        f"{url} answers, version {version}, but not for host {name}: {refused[0]}",
        f"make a token on the manager's machine: equipoise token create --role host --host {name} --name {name}",
    )


def _clock(settings: Settings, now: Callable[[], float]) -> CheckResult:
    """This clock against the Date of the manager's answer, which is in whole seconds and a moment old."""
    try:
        with _client(settings, "") as client:
            sent_s = now()
            date = client.request("GET", "/health").headers.get("date", "")
            received_s = now()
    except ManagerUnavailable:
        return unknown("no manager to compare with", "see the finding `manager`")
    theirs_s = parsedate_to_datetime(date).timestamp()
    off_s = max(theirs_s - received_s, sent_s - (theirs_s + 1), 0.0)
    if off_s > _CLOCK_OFF_S:
        return degraded(
            f"this clock is {off_s:.0f} s {'behind' if theirs_s > received_s else 'ahead of'} the manager's",
            "run chrony or systemd-timesyncd on both: the manager drops windows from the future",
        )
    return works(f"within {_CLOCK_OFF_S:g} s of the manager's")


@contextmanager
def _client(settings: Settings, token: str) -> Iterator[ManagerClient]:
    client = client_for(settings, token)
    try:
        yield client
    finally:
        client.close()


def report(host: str, findings: list[Finding]) -> dict[str, object]:
    """The object that --json prints."""
    ok = not any(finding.broken for finding in findings)
    return {"host": host, "ok": ok, "findings": [asdict(finding) for finding in findings]}


def print_findings(findings: list[Finding]) -> None:
    """A table an area, then a line that sums up. What is essential and broken is in capitals: colour is no need."""
    for area, group in groupby(findings, key=lambda finding: finding.area):
        table = Table("finding", "status", "seen", "what to do", title=area)
        table.stretch(28, 8, None, None)
        for one in group:
            status = one.status.upper() if one.broken else str(one.status)
            name = one.id if one.title == one.id else f"{one.title} ({one.id})"
            table.add_row(name, status, one.detail, one.advice)
        show(table)
    broken = [finding.id for finding in findings if finding.broken]
    counts = ", ".join(f"{sum(finding.status is kind for finding in findings)} {kind}" for kind in FindingStatus)
    verdict = f"Broken, and needed: {', '.join(broken)}." if broken else "Nothing essential is broken."
    say(f"{verdict} ({counts})")
