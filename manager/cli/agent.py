"""`equipoise agent`."""

from __future__ import annotations

import logging
import resource
from contextlib import ExitStack
from importlib import import_module

import click
from prometheus_client import make_wsgi_app

from manager import __version__
from manager.cli.machine import MakeMachine
from manager.cli.options import (
    AGENT_TOKEN_FILE,
    JOURNAL_FILE,
    OnePage,
    claim_state_dir,
    lock_path,
    read_token,
    start_logging,
    with_settings,
)
from manager.cli.signals import stop_signal, wait
from manager.client import ManagerClient
from manager.errors import EquipoiseError
from manager.loop.agent import Agent
from manager.loop.findings import FindingsWatch
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.lock import HostLock
from manager.loop.metrics import AgentMetrics
from manager.loop.outbox import Outbox
from manager.loop.tick import ControlLoop, LoopSettings
from manager.model.records import Severity
from manager.serving import HttpServer
from manager.settings import Settings
from policies.registry import load_policies

_REAL, _SIMULATED = "manager.cli.this_machine", "manager.cli.simulated"
_HTTP_THREADS = 4

_AGENT_SETTINGS = (
    "state_dir",
    "manager_url",
    "token_file",
    "host_name",
    "libvirt_uri",
    "root_dir",
    "interval_s",
    "reconcile_s",
    "sync_s",
    "managed_cpus",
    "agent_listen_host",
    "agent_listen_port",
    "syslog_listen_host",
    "syslog_listen_port",
    "stale_s",
    "min_samples",
    "outbox_rows",
    "simulate",
    "simulate_speed",
    "log_level",
)

log = logging.getLogger(__name__)

_AGENT_EPILOG = """
WHAT IT DOES
  Follows the running domains through libvirt and, once an interval, sets the CPU weights and pins of the registered
  VMs as the host's policy wants them. The original of each value is in the journal before it is changed. On SIGTERM,
  and when told to with `equipoise release`, everything is put back; after a crash the next start goes on from the
  journal. It runs the response-time sources of its host, see docs/sources.md. It needs root. It keeps controlling
  while the manager is away, and while libvirtd restarts.

FILES
  STATE_DIR/journal.db        original values
  STATE_DIR/outbox.db         records waiting for the manager
  STATE_DIR/assignment.json   what the manager last said

EXAMPLES
  equipoise agent --manager-url https://equipoise.example.org --token-file /etc/equipoise/token
  equipoise agent --interval-s 1 --managed-cpus 2-15
"""


@click.command(cls=OnePage, epilog=_AGENT_EPILOG)
@with_settings(*_AGENT_SETTINGS)
def agent(settings: Settings) -> None:
    """Control this host."""
    start_logging(settings)
    with stop_signal() as stop, ExitStack() as stack:
        running = _start_agent(settings, stack)
        wait(stop)
        log.info("stopping: putting everything back")
        left = running.stop()
    if left:
        raise EquipoiseError(f"{left} settings could not be put back; `equipoise release` tries again")
    log.info("agent stopped, everything is as it was")


def _start_agent(settings: Settings, stack: ExitStack) -> Agent:
    """Wire up and start an agent; ``stack`` takes what must be closed after it has stopped."""
    _raise_file_limit()
    folder = claim_state_dir(settings)
    lock = HostLock(lock_path(settings))
    stack.callback(lock.close)
    outbox = Outbox(folder / "outbox.db", settings.whole("outbox_rows"))
    stack.callback(outbox.close)
    metrics = AgentMetrics()
    client = ManagerClient(settings.text("manager_url"), read_token(settings, AGENT_TOKEN_FILE))
    stack.callback(client.close)
    link = ManagerLink(client, settings.text("host_name"), __version__, folder / "assignment.json", outbox)

    # Loaded when needed: a simulated host needs no libvirt, not even its library.
    make_machine: MakeMachine = import_module(_SIMULATED if settings.text("simulate") else _REAL).make_machine
    machine = make_machine(settings, make_wsgi_app(metrics.registry), stack)
    journal = Journal(folder / JOURNAL_FILE, machine.host.boot_id)
    stack.callback(journal.close)
    loop_settings = LoopSettings(
        settings.text("host_name"),
        settings.number("interval_s"),
        settings.number("stale_s"),
        settings.whole("min_samples"),
    )
    broken: list[str] = []
    policies = {name: found.policy for name, found in load_policies(on_error=broken.append).items()}
    running = Agent(
        machine.host,
        ControlLoop(machine.host, journal, policies, loop_settings),
        journal,
        outbox,
        link,
        metrics,
        telemetry=machine.telemetry,
        findings=FindingsWatch(machine.examiner),
        host_name=settings.text("host_name"),
        interval_s=settings.number("interval_s"),
        sync_s=settings.number("sync_s"),
    )
    for problem in broken:
        running.say(Severity.ERROR, "policy", problem)
    if settings.whole("agent_listen_port"):
        http = HttpServer(
            machine.pages, settings.text("agent_listen_host"), settings.whole("agent_listen_port"), _HTTP_THREADS
        )
        stack.callback(http.close)
        http.start()
    running.start()
    return running


def _raise_file_limit() -> None:
    """A few descriptors are held for each VM and vCPU: allow as many as root may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
