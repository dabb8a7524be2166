"""`equipoise agent`."""

from __future__ import annotations

import faulthandler
import logging
import resource
import signal
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import click
from prometheus_client import make_wsgi_app

from manager import __version__
from manager.cli.machine import MakeMachine, VmArrivals, guard_settings, loop_settings
from manager.cli.options import (
    AGENT_TOKEN_FILE,
    ASSIGNMENT_FILE,
    JOURNAL_FILE,
    OUTBOX_FILE,
    ManPageGroup,
    claim_state_dir,
    client_for,
    lock_path,
    make_state_dir,
    read_token,
    start_logging,
    stop_signal,
    wait,
    with_settings,
)
from manager.control.tenure_rules import Who
from manager.errors import EquipoiseError, HostError
from manager.hook import HookSocket
from manager.host.own_group import beside_vms
from manager.host.registry import HostPaths
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.lock import HostLock, instance_id
from manager.loop.outbox import Outbox
from manager.loop.replicated import RESERVE_FILE, Reserve
from manager.loop.tick import ControlLoop
from manager.loop.watches import FindingsWatch
from manager.model.records import Severity
from manager.notify import Notifier, Watchdog
from manager.private import reserved_file
from manager.serving.edge import EdgeLimits
from manager.serving.exchange import WsgiApp
from manager.serving.server import HttpServer, Lanes, ServerLimits
from manager.settings import AGENT_SETTINGS, SHARED_SETTINGS, Settings
from manager.telemetry.push import MetricsPage
from manager.terminal import say
from policies.installed import load_policies

_REAL, _SIMULATED = "manager.cli.this_machine", "manager.cli.simulated"
_HTTP_THREADS = 4
_PUSH_SOCKET = "run/push.sock"
_HELD_BYTES = 16 * 1024 * 1024
"""Memory for the bodies of posts, at each listener."""
_MOST_TOKEN_BYTES = 1024
"""Several times the length of a token."""
_HOOK_SOCKET = "hook.sock"
_HOOK_WAIT_S = 1.5
"""The hook itself times out half a second later."""

log = logging.getLogger(__name__)

_AGENT_EPILOG = """
WHAT IT DOES
  Follows the running domains through libvirt and, once per interval, sets the CPU weights and pins of registered VMs as
  the host's policy decides. It writes the original of each value to the journal before it changes it. On SIGTERM,
  SIGHUP (but under nohup) and after `equipoise release` it restores every setting; after a crash the next start resumes
  from the journal. It runs the response-time sources of its host, see docs/how-to/sources.md, and keeps controlling
  while the manager is away or libvirtd restarts. It needs root.

FILES
  STATE_DIR/journal.db        original values
  STATE_DIR/outbox.db         records waiting for the manager
  STATE_DIR/assignment.json   last assignment from the manager
  STATE_DIR/run/push.sock     socket for posting response times, see docs/how-to/sources.md
  STATE_DIR/hook.sock         socket for libvirt's hook, which announces starting VMs

EXAMPLES
  equipoise agent --manager-url https://equipoise.example.org --token-file /etc/equipoise/token
  equipoise agent --interval-s 1 --managed-cpus 2-15
  equipoise agent join https://equipoise.example.org TOKEN
"""


@click.group(cls=ManPageGroup, epilog=_AGENT_EPILOG, invoke_without_command=True)
@with_settings(*(setting.name for setting in (*SHARED_SETTINGS, *AGENT_SETTINGS)))
@click.pass_context
def agent(context: click.Context, settings: Settings) -> None:
    """Control this host, or have it join a manager."""
    if context.invoked_subcommand is not None:
        return
    start_logging(settings)
    notifier = Notifier()
    if notifier.watchdog_s is not None:
        faulthandler.enable()  # systemd ends a hanging process with SIGABRT: this logs where it hung
    with stop_signal(signal.SIGHUP) as stop, ExitStack() as stack:
        if not settings.text("simulate"):
            stack.enter_context(beside_vms(HostPaths(Path(settings.text("root_dir")))))
        running = _start_agent(settings, stack)
        watchdog = Watchdog(notifier, running.hanging)
        watchdog.start()
        notifier.ready("controlling")
        wait(stop)
        log.info("stopping: restoring everything")
        notifier.stopping("restoring everything")
        watchdog.close()
        left = running.stop()
    if left:
        raise EquipoiseError(f"{left} settings could not be restored; `equipoise release` tries again")
    log.info("agent stopped, everything is restored")


_JOIN_EPILOG = """
WHAT IT DOES
  Exchanges TOKEN, printed by `equipoise token create --join` on the manager's machine, for a token of this host, and
  writes that to the file that `equipoise agent` reads: the setting token_file, or STATE_DIR/agent.token. Only its owner
  can read it. TOKEN works once; `-` reads it from standard input, where other users do not see it.

EXAMPLES
  equipoise agent join https://equipoise.example.org TOKEN
  equipoise agent join --host-name kvm7 --token-file /etc/equipoise/token https://equipoise.example.org - < join.token
"""


@agent.command("join", epilog=_JOIN_EPILOG)
@with_settings("state_dir", "token_file", "host_name", "manager_ca_file")
@click.argument("url")
@click.argument("token")
@click.option("--force", is_flag=True, help="Replace the token that this host has.")
def join_command(settings: Settings, url: str, token: str, force: bool) -> None:
    """Get a token for this host from the manager at URL, with a one-time TOKEN."""
    path = Path(settings.text("token_file") or make_state_dir(settings) / AGENT_TOKEN_FILE)
    if path.exists() and not force:
        raise EquipoiseError(f"{path} exists: this host has joined; --force replaces it")
    host = settings.text("host_name")
    secret = sys.stdin.readline() if token == "-" else token  # noqa: S105 - a word
    try:
        with reserved_file(path, _MOST_TOKEN_BYTES) as write:  # fails before the token is used up
            received = _joined(settings, url, host, secret.strip())
            try:
                write(f"{received}\n".encode())
            except OSError as error:
                raise EquipoiseError(
                    f"{host} joined, but its token cannot be written to {path}: {error.strerror}, and TOKEN works no"
                    f" more: make another with `equipoise token create --join --host {host} --replace`"
                ) from error
    except OSError as error:
        raise EquipoiseError(f"the token file {path} cannot be written: {error.strerror}") from error
    say(f"joined as {host}; the token is in {path}. Now start: equipoise agent --manager-url {url}")


def _joined(settings: Settings, url: str, host: str, secret: str) -> str:
    """The host's own token, for which the manager takes the secret of a join token. Raises EquipoiseError."""
    client = client_for(settings, "", url)
    try:
        received = client.request("POST", f"/hosts/{host}/join", body={"token": secret}).json()["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise EquipoiseError(f"{url} answers, but not as a manager does: {error}") from error
    finally:
        client.close()
    return str(received)


def _start_agent(settings: Settings, stack: ExitStack) -> Agent:
    """Wire up and start an agent; ``stack`` takes what must be closed after it has stopped."""
    _raise_file_limit()
    folder = claim_state_dir(settings)
    lock = HostLock(lock_path(settings))
    stack.callback(lock.close)
    outbox = Outbox(folder / OUTBOX_FILE, settings.whole("outbox_rows"))
    stack.callback(outbox.close)
    metrics = AgentMetrics()
    client = client_for(settings, read_token(settings, AGENT_TOKEN_FILE))
    stack.callback(client.close)

    # Loaded when needed: a simulated host needs no libvirt.
    make_machine: MakeMachine = import_module(_SIMULATED if settings.text("simulate") else _REAL).make_machine
    machine = make_machine(settings, stack)
    who = Who(instance_id(folder), machine.host.boot_id)
    link = ManagerLink(client, settings.text("host_name"), __version__, folder / ASSIGNMENT_FILE, outbox, who)
    journal = Journal(folder / JOURNAL_FILE, machine.host.boot_id, Reserve(folder / RESERVE_FILE))
    stack.callback(journal.close)
    broken: list[str] = []
    policies = {name: installed.policy for name, installed in load_policies(on_error=broken.append).items()}
    running = Agent(
        ControlLoop(machine.host, journal, policies, loop_settings(settings), limits=machine.limits),
        outbox,
        link,
        metrics,
        telemetry=machine.telemetry,
        findings=FindingsWatch(machine.examiner),
        sync_s=settings.number("sync_s"),
        migrator=machine.migrator,
        guard=guard_settings(settings),
    )
    metrics.aside.set_function(lambda: outbox.aside)
    metrics.waiting.set_function(lambda: outbox.waiting)
    _report_renamed(running, outbox, settings.text("host_name"))
    for problem in broken:
        running.say(Severity.ERROR, "policy", problem)
    _listen(settings, folder, MetricsPage(make_wsgi_app(metrics.registry)), machine.posts, stack)
    running.start()
    if machine.arrivals is not None:
        _welcome(machine.arrivals, running, folder / _HOOK_SOCKET, stack)
    return running


def _report_renamed(running: Agent, outbox: Outbox, host: str) -> None:
    """Report it where records that wait for the manager have another name of this host."""
    before, items = outbox.claim(host)
    if items:
        text = (
            f"this host was {before} and is {host} now: {items} items for the manager belong to that host and were set"
            f" aside. So does its token: `equipoise agent join --force` as {host}, or restore host_name"
        )
        log.warning("%s", text)
        running.say(Severity.WARNING, "host-renamed", text)


def _listen(settings: Settings, folder: Path, metrics: WsgiApp, posts: WsgiApp, stack: ExitStack) -> None:
    """Serve metrics and accept posts, at separate listeners. Raises SettingsError."""
    unix = Path(settings.text("push_socket") or folder / _PUSH_SOCKET)
    push_host, push_port = settings.text("push_listen_host"), settings.whole("push_listen_port") or None
    few = ServerLimits(edge=EdgeLimits(held_bytes=_HELD_BYTES))
    servers = [HttpServer(posts, push_host, push_port, Lanes(_HTTP_THREADS), unix=unix, limits=few)]
    stack.callback(servers[0].close)
    if settings.whole("agent_listen_port"):
        host, port = settings.text("agent_listen_host"), settings.whole("agent_listen_port")
        servers.append(HttpServer(metrics, host, port, Lanes(_HTTP_THREADS), limits=few))
        stack.callback(servers[1].close)
    for server in servers:
        server.start()


def _welcome(arrivals: VmArrivals, running: Agent, path: Path, stack: ExitStack) -> None:
    """Control new VMs at once, and those that libvirt's hook announces at ``path`` before libvirt continues."""
    arrivals.on_arrival = running.tick_now

    def started(uuid: str, libvirt_name: str) -> None:
        try:
            if arrivals.started(uuid, libvirt_name):
                running.tick_now().wait(_HOOK_WAIT_S)
        except HostError as error:
            log.warning("libvirt's hook: %s", error)

    try:
        socket = HookSocket(path, started)
    except OSError as error:
        log.warning("no socket for libvirt's hook at %s: %s", path, error.strerror or error)
        return
    stack.callback(socket.close)


def _raise_file_limit() -> None:
    """Raise the limit of open files, of which each VM and vCPU needs a few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
