"""`equipoise doctor`: what of this host works, what does not, and what to do about it."""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
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
    ManPage,
    client_for,
    json_option,
    lock_path,
    read_token,
    with_settings,
)
from manager.errors import ManagerRefused, ManagerUnavailable, SettingsError
from manager.host.doctor.agent_check import AREA
from manager.host.doctor.check import Check, CheckResult, Subject, degraded, unknown, warning, works
from manager.host.doctor.checks import CHECKS
from manager.host.hypervisor import EventLoop
from manager.host.registry import HostPaths
from manager.loop.lock import INSTANCE_FILE
from manager.model.cpus import parse_cpus
from manager.model.finding import Finding, FindingStatus
from manager.settings import Settings
from manager.terminal import Table, say, say_json, show

_CLOCK_OFF_S = 2.0
_MOST_REASONS = 3
_REASONS = "SELECT why, count(*) FROM set_aside GROUP BY why ORDER BY max(seq) DESC"
_FORGET = "DELETE FROM set_aside"

_EPILOG = """
WHAT IT DOES
  Tries every mechanism that Equipoise can use by writing in a scratch place and reading back: a cgroup
  equipoise-doctor-PID below the root of the cpu controller's hierarchy, a process, a file in STATE_DIR. It removes all
  of that again, changes nothing of VMs, libvirt or kernel settings, and mounts nothing but a BPF file system where
  there is none (bpftool does), so it can run beside an agent. It takes about five seconds; for one of them two
  processes compete for the least busy pCPU at a tenth of a VM's weight, to see whether weights act, and for 1.5 to 4
  three do at the weight of a VM, to see whether batch VMs need a group above them. --gentle omits both; --quick also
  omits the second in which load outside the VMs is measured, and the loading of BPF programs. The agent runs it at its
  start, and with --gentle every hour; without, up to 24 times, while it cannot tell whether batch VMs need a group.

OUTPUT
  A table per area: finding, status, what was seen, what to do.
    works      tried, or checked and in order
    missing    this host does not have it
    ignored    the kernel accepts the setting without effect
    degraded   it works less well than it could
    warning    something that may interfere
    unknown    it could not be determined, or was not tried
  docs/reference/doctor.md explains every finding. With --json, an object with host, ok, and findings, a list of objects
  with id, area, title, status, essential, detail and advice.

EXIT STATUS
  0  nothing essential is broken     1  something essential is missing, ignored or unknown     2  wrong usage

EXAMPLES
  equipoise doctor
  equipoise doctor --quick
  equipoise doctor --json | jq -r '.findings[] | select(.status != "works") | "\\(.id): \\(.advice)"'
"""


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name", "libvirt_uri", "root_dir", "managed_cpus", *LIMIT_SETTINGS)
@click.option("--quick", is_flag=True, help="Omit what uses CPU time or waits.")
@click.option("--gentle", is_flag=True, help="Omit what uses CPU time that VMs could have.")
@json_option
def doctor(settings: Settings, quick: bool, gentle: bool, as_json: bool) -> None:
    """Check what works on this host, what is missing or ignored, why, and what to do."""
    EventLoop()  # registered: enough to see whether libvirt has events
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
        findings = [check.run(subject) for check in (*CHECKS, *manager_checks(settings))]
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
    """Checks of the manager and of what it accepts."""
    outbox, host = settings.state_dir / OUTBOX_FILE, settings.text("host_name")
    return (
        Check("manager", AREA, "Manager", lambda _subject: _manager(settings)),
        Check("reports", AREA, "Reports", lambda _subject: _reports(outbox, host)),
        Check("clock", AREA, "Clock", lambda _subject: _clock(settings, time.time)),
    )


def _manager(settings: Settings) -> CheckResult:
    """Whether it answers, and accepts a token of this host: the command line's, or the agent's."""
    url, name = settings.text("manager_url"), settings.text("host_name")
    try:
        with closing(client_for(settings, "")) as client:
            version = client.get("/health")["version"]
    except (ManagerUnavailable, KeyError, TypeError) as error:
        return warning(
            f"not reached: {error}", "start `equipoise manager`, or set manager_url; the agent goes on alone"
        )
    refused: list[str] = []
    for read in (read_token, partial(read_token, default_file=AGENT_TOKEN_FILE)):
        try:
            with closing(client_for(settings, read(settings))) as client:
                host = client.get(f"/hosts/{name}")
        except (ManagerUnavailable, SettingsError) as error:
            if isinstance(error, ManagerRefused) and error.status == HTTPStatus.NOT_FOUND:
                return degraded(
                    f"{url} answers, version {version}, and accepts the token, but knows no host {name}",
                    "start the agent, which reports it, or set host_name to the name that this host has there",
                )
            refused.append(str(error))
        else:
            second = second_agent(host, settings.state_dir)
            return second or works(f"{url} answers, version {version}, and accepts the token")
    return degraded(
        f"{url} answers, version {version}, but not for host {name}: {refused[0]}",
        f"make a token on the manager's machine: equipoise token create --role host --host {name} --name {name}",
    )


def _clock(settings: Settings, now: Callable[[], float]) -> CheckResult:
    """This clock against the Date of the manager's answer, in whole seconds."""
    try:
        with closing(client_for(settings, "")) as client:
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


def _reports(outbox: Path, host: str) -> CheckResult:
    """What managers refused of the agent's outbox, which is opened read-only."""
    if not outbox.exists():
        return works(f"there is no {outbox}: nothing was reported yet")
    try:
        with closing(sqlite3.connect(f"{outbox.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            reasons = database.execute(_REASONS).fetchall()
            former = [name for [name] in database.execute("SELECT host FROM about") if name != host]
    except sqlite3.Error as error:
        return degraded(
            f"{outbox} cannot be read: {error}",
            "restart the agent: it sets the file aside and keeps what is readable",
        )
    if former:
        return warning(
            f"host_name was {former[0]} when the agent started last, and is {host} now",
            f"set host_name back, or join as {host} with `equipoise agent join --force`, and restart the agent",
        )
    if reasons:
        named = "; ".join(f"{count}: {why}" for why, count in reasons[:_MOST_REASONS])
        more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
        return warning(
            f"{sum(count for _, count in reasons)} items were not accepted and are set aside: {named}{more}",
            f"follow the reasons; then forget the items with `sqlite3 {outbox} '{_FORGET}'`",
        )
    return works("every item of a report was accepted")


def second_agent(host: dict[str, object], state_dir: Path) -> CheckResult | None:
    """A finding if another agent reports under this host's name."""
    serving, refused = host.get("agent_instance"), host.get("rival_instance")
    if not refused:
        return None
    try:
        own = (state_dir / INSTANCE_FILE).read_text(errors="replace").strip()
    except OSError:
        own = ""
    here = {serving: "; this machine's is the first", refused: "; this machine's is the refused one"}.get(own, "")
    return degraded(
        f"two agents report as host {host['name']}: {serving} serves it, {refused} is refused{here}",
        "give one of the two machines another host_name, or stop its agent; `equipoise host replace"
        f" {host['name']}` lets the refused one serve the host",
    )


def report(host: str, findings: list[Finding]) -> dict[str, object]:
    """The object that --json prints."""
    ok = not any(finding.broken for finding in findings)
    return {"host": host, "ok": ok, "findings": [asdict(finding) for finding in findings]}


def print_findings(findings: list[Finding]) -> None:
    """A table per area, and a summary. What is essential and broken is in capitals."""
    for area, group in groupby(findings, key=lambda finding: finding.area):
        table = Table("finding", "status", "seen", "what to do", title=area, widths=(28, 8, None, None))
        for finding in group:
            status = finding.status.upper() if finding.broken else str(finding.status)
            name = finding.id if finding.title == finding.id else f"{finding.title} ({finding.id})"
            table.add_row(name, status, finding.detail, finding.advice)
        show(table)
    broken = [finding.id for finding in findings if finding.broken]
    counts = ", ".join(f"{sum(finding.status is kind for finding in findings)} {kind}" for kind in FindingStatus)
    verdict = f"Broken and essential: {', '.join(broken)}." if broken else "Nothing essential is broken."
    say(f"{verdict} ({counts})")
