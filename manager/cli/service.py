"""Commands that serve: run, manager, agent."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from prometheus_client import start_http_server

from manager import __version__
from manager.api.server import make_server
from manager.cli.admin import ensure_token_file, make_state_dir, open_store
from manager.cli.offline import JOURNAL_FILE, lock_path
from manager.cli.options import ADMIN_TOKEN_FILE, AGENT_TOKEN_FILE, OnePage, read_token, start_logging, with_settings
from manager.client import ManagerClient
from manager.errors import EquipoiseError, ManagerUnavailable, SettingsError
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.loop.agent import Agent
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.lock import HostLock
from manager.loop.metrics import AgentMetrics
from manager.loop.outbox import Outbox
from manager.loop.tick import ControlLoop, LoopSettings
from manager.model.cpus import parse_cpus
from manager.model.records import Severity
from manager.settings import ENV_PREFIX, SETTINGS, Settings
from manager.store.tokens import Role
from policies.registry import load_policies

_FIRST_LISTING_S = 10
_MANAGER_START_S = 60
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_MANAGER_SETTINGS = (
    "state_dir",
    "database_url",
    "listen_host",
    "listen_port",
    "api_threads",
    "stale_s",
    "min_samples",
    "retention_days",
    "log_level",
)
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
    "stale_s",
    "min_samples",
    "outbox_rows",
    "log_level",
)

log = logging.getLogger(__name__)


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set while the block runs."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda _number, _frame: stop.set()) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(stop: threading.Event) -> None:
    """Wait for the event, with Python able to run signal handlers meanwhile."""
    while not stop.wait(3600):
        pass


_MANAGER_EPILOG = """
WHAT IT DOES
  Upgrades the database's tables, then serves /api/v1 (documentation at /api/v1/docs) and /metrics until SIGTERM.
  It needs no privileges and keeps nothing outside the database, so several may run behind a proxy. Put a proxy with
  TLS in front of it before listening on anything but the loopback address.

EXAMPLES
  equipoise manager --listen-host 127.0.0.1 --database-url postgresql://equipoise@db/equipoise
  equipoise token create --role admin --name me
"""


@click.command(cls=OnePage, epilog=_MANAGER_EPILOG)
@with_settings(*_MANAGER_SETTINGS)
def manager(settings: Settings) -> None:
    """Serve the REST interface and keep the database."""
    start_logging(settings)
    database = open_store(settings, settings.whole("api_threads"))
    database.upgrade()
    with stop_signal() as stop:
        server = make_server(settings, database, load_policies(on_error=log.error))
        server.start()
        wait(stop)
        server.close()
    database.close()
    log.info("manager stopped")


_AGENT_EPILOG = """
WHAT IT DOES
  Follows the running domains through libvirt and, once an interval, sets the CPU weights and pins of the registered
  VMs as the host's policy wants them. The original of each value is in the journal before it is changed. On SIGTERM,
  and when told to with `equipoise release`, everything is put back; after a crash the next start goes on from the
  journal. It needs root. It keeps controlling while the manager is away, and while libvirtd restarts.

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
    lock = HostLock(lock_path(settings))
    stack.callback(lock.close)
    folder = make_state_dir(settings)
    paths = HostPaths(Path(settings.text("root_dir")))
    outbox = Outbox(folder / "outbox.db", settings.whole("outbox_rows"))
    stack.callback(outbox.close)
    metrics = AgentMetrics()
    client = ManagerClient(settings.text("manager_url"), read_token(settings, AGENT_TOKEN_FILE))
    stack.callback(client.close)
    link = ManagerLink(client, settings.text("host_name"), __version__, folder / "assignment.json", outbox)

    events = EventLoop()
    events.start()
    watch = HypervisorWatch(settings.text("libvirt_uri"), paths, settings.number("reconcile_s"))
    host = KernelHost(paths, watch, parse_cpus(settings.text("managed_cpus")))
    journal = Journal(folder / JOURNAL_FILE, host.boot_id)
    stack.callback(journal.close)
    watch.start()
    stack.callback(watch.stop)
    if not watch.wait_first_listing(_FIRST_LISTING_S):
        log.warning("libvirt at %s does not answer; going on with the VMs in the journal", settings.text("libvirt_uri"))

    loop_settings = LoopSettings(
        settings.text("host_name"),
        settings.number("interval_s"),
        settings.number("stale_s"),
        settings.whole("min_samples"),
    )
    broken: list[str] = []
    policies = {name: found.policy for name, found in load_policies(on_error=broken.append).items()}
    running = Agent(
        host,
        ControlLoop(host, journal, policies, loop_settings),
        journal,
        outbox,
        link,
        metrics,
        host_name=settings.text("host_name"),
        interval_s=settings.number("interval_s"),
        sync_s=settings.number("sync_s"),
    )
    for problem in broken:
        running.say(Severity.ERROR, "policy", problem)
    if settings.whole("agent_listen_port"):
        _serve_metrics(settings, metrics, stack)
    running.start()
    return running


def _serve_metrics(settings: Settings, metrics: AgentMetrics, stack: ExitStack) -> None:
    address, port = settings.text("agent_listen_host"), settings.whole("agent_listen_port")
    try:
        server, thread = start_http_server(port, address, metrics.registry)
    except OSError as error:
        raise SettingsError(
            f"settings agent_listen_host and agent_listen_port: cannot listen on {address}:{port}: {error.strerror}"
        ) from error
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


def _raise_file_limit() -> None:
    """A few descriptors are held for each VM and vCPU: allow as many as root may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_RUN_EPILOG = f"""
WHAT IT DOES
  Starts `equipoise manager` and `equipoise agent` as two processes that speak REST with each other, as they would on
  two machines. On the first start it makes an admin's token, STATE_DIR/{ADMIN_TOKEN_FILE}, which the other commands
  find by themselves, and the agent's. SIGTERM stops the agent, which puts everything back, and then the manager.

EXAMPLES
  equipoise run
  equipoise run --interval-s 1 --state-dir /tmp/trial
  curl -H "Authorization: Bearer $(cat /var/lib/equipoise/{ADMIN_TOKEN_FILE})" http://127.0.0.1:8750/api/v1/hosts
"""


@click.command(cls=OnePage, epilog=_RUN_EPILOG)
@with_settings(*(setting.name for setting in SETTINGS))
def run(settings: Settings) -> None:
    """Start manager and agent on this machine."""
    start_logging(settings)
    folder = make_state_dir(settings)
    database = open_store(settings)
    database.upgrade()
    ensure_token_file(database, folder / ADMIN_TOKEN_FILE, "local-admin", Role.ADMIN, None)
    host = settings.text("host_name")
    ensure_token_file(database, folder / AGENT_TOKEN_FILE, f"agent-{host}"[:63], Role.HOST, host)
    database.close()
    url = f"http://{settings.text('listen_host')}:{settings.whole('listen_port')}"
    environment = _environment(settings) | {ENV_PREFIX + "MANAGER_URL": url}
    with stop_signal() as stop:
        manager_process = _spawn("manager", environment)
        try:
            _wait_for_manager(url, manager_process, stop)
            agent_process = None if stop.is_set() else _spawn("agent", environment)
            log.info("manager at %s, its admin token in %s", url, folder / ADMIN_TOKEN_FILE)
            died = _watch([one for one in (manager_process, agent_process) if one], stop)
            agent_status = _end(agent_process) if agent_process else 0
        finally:
            manager_status = _end(manager_process)
    if died:
        raise EquipoiseError(f"{died} ended by itself, so everything was stopped; its log says why")
    if agent_status or manager_status:
        raise EquipoiseError(f"not a clean end: agent exit status {agent_status}, manager {manager_status}")


def _environment(settings: Settings) -> dict[str, str]:
    """The environment that gives a child process the same settings, whatever they came from here."""
    given = {name: str(value) for name, value in settings.values.items() if settings.sources[name] != "default"}
    return dict(os.environ) | {ENV_PREFIX + name.upper(): value for name, value in given.items()}


def _spawn(command: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a subcommand that gets SIGTERM when this process dies, however it dies."""
    libc = ctypes.CDLL(None)

    def ask_for_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    # A group of its own: the terminal's Ctrl-C reaches this process only, which then stops them in order.
    return subprocess.Popen(
        [sys.executable, "-m", "manager.cli", command],
        env=environment,
        preexec_fn=ask_for_signal,  # noqa: PLW1509 - nothing else runs in this process yet
        process_group=0,
    )


def _wait_for_manager(url: str, process: subprocess.Popen[bytes], stop: threading.Event) -> None:
    client = ManagerClient(url, "")
    deadline = time.monotonic() + _MANAGER_START_S
    while not stop.wait(0.1):
        if process.poll() is not None:
            raise EquipoiseError("the manager did not start; its log above says why")
        try:
            client.get("/health")
        except ManagerUnavailable as error:
            if time.monotonic() > deadline:
                raise EquipoiseError(f"the manager did not get ready in {_MANAGER_START_S} s: {error}") from error
        else:
            break
    client.close()


def _watch(processes: list[subprocess.Popen[bytes]], stop: threading.Event) -> str:
    """Wait for the stop, or the end of any process; the name of the one that ended by itself, or nothing."""
    while not stop.wait(0.5):
        for process in processes:
            if process.poll() is not None:
                return str(process.args[-1]) if isinstance(process.args, list) else "a process"
    return ""


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ask a process to end and wait until it has."""
    if process.poll() is None:
        process.terminate()
    return process.wait()
