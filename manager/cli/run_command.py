"""`equipoise run`."""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext
from pathlib import Path

import click

from manager.cli.admin_commands import ensure_admin_user, ensure_token_file, open_store, upgrade_store
from manager.cli.options import (
    ADMIN_PASSWORD_FILE,
    ADMIN_TOKEN_FILE,
    AGENT_TOKEN_FILE,
    ManPage,
    claim_state_dir,
    client_for,
    environment,
    start_logging,
    stop_signal,
    with_settings,
)
from manager.cli.simulated import own_state_dir, register
from manager.errors import EquipoiseError, ManagerUnavailable, SettingsError
from manager.host.own_group import beside_vms
from manager.host.registry import HostPaths
from manager.notify import Notifier
from manager.protocol.client import ManagerClient
from manager.serving.door import tcp_doors
from manager.settings import ENV_PREFIX, SETTINGS, Settings
from manager.sim.scenario_files import load_scenario
from manager.store.tokens import Role

_MANAGER_START_S = 60
_PR_SET_PDEATHSIG = 1
_OF_SYSTEMD = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})

log = logging.getLogger(__name__)

_RUN_EPILOG = f"""
WHAT IT DOES
  Starts `equipoise manager` and `equipoise agent` as two processes that speak REST, as on two machines. The first start
  creates an admin's token, STATE_DIR/{ADMIN_TOKEN_FILE}, which other commands find; the agent's token; and the
  dashboard's user `admin`, with a random password in STATE_DIR/{ADMIN_PASSWORD_FILE}. SIGTERM stops the agent, which
  restores everything, and then the manager.

  With --simulate SCENARIO (`equipoise sim list`, or a file) the agent controls a simulated host, without root and
  libvirt. It registers the scenario's VMs and applications. Its STATE_DIR is ~/.local/state/equipoise by default; other
  commands need it as --state-dir.

EXAMPLES
  equipoise run
  equipoise run --interval-s 1 --state-dir /tmp/trial
  equipoise run --simulate spike --simulate-speed 10
  curl -H "Authorization: Bearer $(cat /var/lib/equipoise/{ADMIN_TOKEN_FILE})" http://127.0.0.1:8750/api/v1/hosts
"""


@click.command(cls=ManPage, epilog=_RUN_EPILOG)
@with_settings(*(setting.name for setting in SETTINGS))
@click.option(
    "--simulate-policy",
    default="fair",
    show_default=True,
    metavar="POLICY",
    help="Policy of a simulated host that is not registered yet.",
)
def run(settings: Settings, simulate_policy: str) -> None:
    """Start manager and agent on this machine."""
    start_logging(settings)
    scenario = load_scenario(settings.text("simulate")) if settings.text("simulate") else None
    if scenario:
        settings = own_state_dir(settings)
    folder = claim_state_dir(settings)
    _check_port(settings)
    database = open_store(settings)
    upgrade_store(database)
    ensure_token_file(database, folder / ADMIN_TOKEN_FILE, "local-admin", Role.ADMIN, None)
    host = settings.text("host_name")
    ensure_token_file(database, folder / AGENT_TOKEN_FILE, f"agent-{host}", Role.HOST, host)
    has_password = ensure_admin_user(database, folder / ADMIN_PASSWORD_FILE)
    database.close()
    url = url_of_manager(settings)
    child = _environment(settings, url)
    notifier = Notifier()
    beside = nullcontext() if scenario else beside_vms(HostPaths(Path(settings.text("root_dir"))))
    with stop_signal(signal.SIGHUP) as stop, beside:
        manager_process = _spawn("manager", child)
        try:
            _wait_for_manager(client_for(settings, "", url), manager_process, stop)
            if scenario and not stop.is_set():
                token = (folder / ADMIN_TOKEN_FILE).read_text().strip()
                with closing(client_for(settings, token, url)) as client:
                    register(client, scenario, host, simulate_policy)
                log.info("simulated host %s: scenario %s; use --state-dir %s", host, scenario.name, folder)
            # The agent does not need the database, whose URL may hold a password.
            of_agent = {name: value for name, value in child.items() if name != ENV_PREFIX + "DATABASE_URL"}
            agent_process = None if stop.is_set() else _spawn("agent", of_agent)
            log.info("manager at %s, its admin token in %s", url, folder / ADMIN_TOKEN_FILE)
            sign_in = f", for admin with the password in {folder / ADMIN_PASSWORD_FILE}" if has_password else ""
            log.info("dashboard at %s/%s", url, sign_in)
            notifier.ready("controlling" if agent_process else "stopping")
            died = _watch([process for process in (manager_process, agent_process) if process], stop, notifier)
            notifier.stopping("restoring everything")
            agent_status = _end(agent_process) if agent_process else 0
        finally:
            manager_status = _end(manager_process)
    if died:
        raise EquipoiseError(f"{died} ended unexpectedly, so everything was stopped; its log says why")
    if agent_status or manager_status:
        raise EquipoiseError(f"unclean end: agent exit status {agent_status}, manager {manager_status}")


def _check_port(settings: Settings) -> None:
    """Raises SettingsError where another process listens: it would be taken for the manager while that starts."""
    host, port = settings.text("listen_host"), settings.whole("listen_port")
    try:
        doors = tcp_doors(host, port, listening=False)
    except (OSError, ValueError, OverflowError) as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error}; choose another --listen-port") from error
    for door in doors:
        door.close()


def url_of_manager(settings: Settings) -> str:
    """Where the manager that `equipoise run` starts is found."""
    address, port = settings.text("listen_host"), settings.whole("listen_port")
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if not settings.text("tls_certificate"):
        return f"http://{place}"
    # The certificate may have another name than the address.
    return f"https://{place}" if settings.sources["manager_url"] == "default" else settings.text("manager_url")


def _environment(settings: Settings, url: str) -> dict[str, str]:
    """Of the two processes, which systemd does not watch."""
    variables = environment(settings) | {ENV_PREFIX + "MANAGER_URL": url}
    return {name: value for name, value in variables.items() if name not in _OF_SYSTEMD}


def _spawn(command: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a subcommand that gets SIGTERM when this process dies."""
    libc = ctypes.CDLL(None)

    def ask_for_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    # A group of its own: the terminal's Ctrl-C reaches this process only, which then stops them in order.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "manager.cli", command],
        env=variables,
        preexec_fn=ask_for_signal,  # noqa: PLW1509 - nothing else runs in this process yet
        process_group=0,
    )


def _wait_for_manager(client: ManagerClient, process: subprocess.Popen[bytes], stop: threading.Event) -> None:
    deadline = time.monotonic() + _MANAGER_START_S
    with closing(client):
        while not stop.wait(0.1):
            if process.poll() is not None:
                raise EquipoiseError("the manager did not start; its log above says why")
            try:
                client.get("/health")
                return
            except ManagerUnavailable as error:
                if time.monotonic() > deadline:
                    raise EquipoiseError(f"the manager was not ready within {_MANAGER_START_S} s: {error}") from error


def _watch(processes: list[subprocess.Popen[bytes]], stop: threading.Event, notifier: Notifier) -> str:
    """Wait for the stop or the end of a process; returns the name of one that ended by itself, or nothing."""
    while not stop.wait(0.5):
        if notifier.watchdog_s is not None:
            notifier.alive()
        for process in processes:
            if process.poll() is not None:
                return str(process.args[-1]) if isinstance(process.args, list) else "a process"
    return ""


def _end(process: subprocess.Popen[bytes]) -> int:
    """Stop a process and return its exit status; 0 of one that was still starting, and had done nothing."""
    if process.poll() is None:
        process.terminate()
    status = process.wait()
    return 0 if status == -signal.SIGTERM else status
