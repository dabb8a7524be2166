"""Manager on PostgreSQL and agent as processes, and all that can happen to them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from manager.cli.admin_commands import ensure_token_file
from manager.cli.options import ADMIN_TOKEN_FILE, AGENT_TOKEN_FILE, SIMULATED_FILE
from manager.cli.simulated import register
from manager.errors import ManagerUnavailable
from manager.model.packed_records import moment_of, unpack_decisions, unpack_ticks
from manager.protocol.client import ManagerClient
from manager.sim.scenario_files import load_scenario
from manager.store.database import open_database
from manager.store.tokens import Role
from tests.chaos.relay import Relay
from tests.ports import reserved_ports
from tests.postgres import PostgresServer, postgres_server

DEADLINE_S = 180.0
HOST, SCENARIO, NAME = "chaos1", "spike", "manager.chaos"
INTERVAL_S = 0.5
_AWAY = "cannot be migrated: connection "


@dataclass(frozen=True, slots=True)
class Machine:
    """The agent's host: settings of its own, what is registered, and where the agent keeps its state (None: beside the
    manager's).
    """

    settings: Mapping[str, object]
    register: Callable[[ManagerClient], object]
    state: Path | None = None


SIMULATED = Machine({"SIMULATE": SCENARIO}, lambda client: register(client, load_scenario(SCENARIO), HOST, "fair"))


class Network:
    """A network namespace for the agent, whose only way out is one link to the relay, and whose only name is its."""

    def __init__(self) -> None:
        """Raises CalledProcessError, OSError where that is not allowed."""
        tag = secrets.token_hex(3)
        self.name, self._link, peer = f"eqp-{tag}", f"eqh{tag}", f"eqn{tag}"
        net = int(tag[:2], 16)
        self.address, inside = f"198.18.{net}.1", f"198.18.{net}.2/30"
        self._hosts = Path("/etc/netns") / self.name / "hosts"
        self._hosts.parent.mkdir(parents=True)
        self._hosts.write_text("")
        (self._hosts.parent / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", peer, "netns", self.name)
        _ip("address", "add", f"{self.address}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        for words in (f"address add {inside} dev {peer}", f"link set {peer} up", "link set lo up"):
            _ip("-n", self.name, *words.split())
        self.names(known=True)

    def names(self, *, known: bool) -> None:
        """Let the agent's resolver find the manager, or not."""
        self._hosts.write_text(f"127.0.0.1 localhost\n{f'{self.address} {NAME}' if known else ''}\n")

    def link(self, *, up: bool) -> None:
        _ip("link", "set", self._link, "up" if up else "down")

    def close(self) -> None:
        for words in (("link", "delete", self._link), ("netns", "delete", self.name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)
        for file in self._hosts.parent.glob("*"):
            file.unlink()
        self._hosts.parent.rmdir()
        with contextlib.suppress(OSError):
            self._hosts.parent.parent.rmdir()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Site:
    """All processes of a test; each can be killed and started again."""

    def __init__(
        self, folder: Path, server: PostgresServer, network: Network | None, stack: ExitStack, machine: Machine
    ) -> None:
        self.folder, self.network, self._server = folder, network, server
        self.url = server.create(f"chaos-{secrets.token_hex(4)}")
        self.port, agent_port = stack.enter_context(reserved_ports(2))
        self.relay = Relay(network.address if network else "127.0.0.1", self.port)
        stack.callback(self.relay.close)
        stack.callback(self._kill_all)
        self.state = folder / "state"
        self.state.mkdir()
        self.agent_state = machine.state or self.state
        if "SIMULATE" in machine.settings:
            (self.agent_state / SIMULATED_FILE).touch()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started: dict[str, datetime] = {}
        self._manager_log_at = 0
        clean = {name: text for name, text in os.environ.items() if not name.startswith("EQUIPOISE_")}
        given = {"STATE_DIR": self.state, "HOST_NAME": HOST, "INTERVAL_S": INTERVAL_S, "SYNC_S": 0.2, "STALE_S": 30}
        shared = clean | _variables(given)
        self.manager_environment = shared | {
            "EQUIPOISE_DATABASE_URL": self.url,
            "EQUIPOISE_LISTEN_PORT": str(self.port),
        }
        where = NAME if network else "127.0.0.1"
        url = f"http://{where}:{self.relay.port}"
        own = {"STATE_DIR": self.agent_state, "TOKEN_FILE": self.state / AGENT_TOKEN_FILE, "MANAGER_URL": url}
        self.agent_environment = shared | _variables({**own, "AGENT_LISTEN_PORT": agent_port, **machine.settings})
        self.agent_command = [*(("ip", "netns", "exec", network.name) if network else ()), *_equipoise("agent")]
        self._prepare(machine)

    def _prepare(self, machine: Machine) -> None:
        database = open_database(self.url)
        database.upgrade()
        ensure_token_file(database, self.state / ADMIN_TOKEN_FILE, "local-admin", Role.ADMIN, None)
        ensure_token_file(database, self.state / AGENT_TOKEN_FILE, "agent", Role.HOST, HOST)
        database.close()
        self.start("manager")
        self.until(lambda client: client.get("/policies"))
        with closing(self.client()) as client:
            machine.register(client)

    def client(self) -> ManagerClient:
        return ManagerClient(f"http://127.0.0.1:{self.port}", (self.state / ADMIN_TOKEN_FILE).read_text().strip())

    def until(self, what: Callable[[ManagerClient], Any]) -> Any:
        """The first answer that is not empty."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            self._restart_manager()
            with contextlib.suppress(ManagerUnavailable), closing(self.client()) as client:
                if found := what(client):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not within {DEADLINE_S:g} s; the log ends with\n{self.log[-3000:]}")

    @property
    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def start(self, name: str) -> None:
        """Start ``manager`` or ``agent``."""
        before = self._processes.get(name)
        assert before is None or before.poll() is not None, f"{name} runs already: nothing would end that one"
        command, variables = (
            (_equipoise("manager"), self.manager_environment)
            if name == "manager"
            else (self.agent_command, self.agent_environment)
        )
        self.started[name] = datetime.now(UTC)
        if name == "manager":
            self._manager_log_at = len(self.log)
        with (self.folder / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def _restart_manager(self) -> None:
        """Start the manager again as systemd does, where its database was away when it started."""
        process = self._processes.get("manager")
        if process is not None and process.poll() and _AWAY in self.log[self._manager_log_at :]:
            self.start("manager")

    def kill(self, name: str) -> None:
        """End it as the kernel does that has no memory left."""
        if name == "manager":
            self._restart_manager()
        process = self._processes.pop(name)
        assert process.poll() is None, f"{name} ended by itself\n{self.log[-3000:]}"
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """End it as systemd does, and return its exit status."""
        self._processes[name].send_signal(signal.SIGTERM)
        return self.ended(name)

    def ended(self, name: str) -> int:
        """Wait for its end, and return its exit status."""
        status = self._processes[name].wait(DEADLINE_S)
        del self._processes[name]
        return status

    def lives(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def crash_database(self) -> None:
        """kill -9 of the whole server, and its next start, which recovers by its log."""
        self._server.crash()
        self._server.start()

    def resident_mib(self, name: str) -> float:
        [line] = [
            one
            for one in Path(f"/proc/{self._processes[name].pid}/status").read_text().splitlines()
            if one.startswith("VmRSS")
        ]
        return int(line.split()[1]) / 1024

    def waiting(self) -> int:
        """How many items the agent's outbox holds on disk."""
        return self._count("outbox.db", "waiting")

    def journalled(self) -> int:
        return self._count("journal.db", "owned")

    def _count(self, file: str, table: str) -> int:
        [[number]] = self.agent_rows(file, f"SELECT count(*) FROM {table}")
        return int(number)

    def agent_rows(self, file: str, query: str) -> list[tuple[Any, ...]]:
        """Straight from a file of the agent's."""
        uri = f"{(self.agent_state / file).as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
            return database.execute(query).fetchall()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Straight from the database."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]

    def ticks(self) -> list[datetime]:
        """When the host ticked, as far as that is stored."""
        rows = self.rows(f"SELECT body FROM tick_packs WHERE host = '{HOST}'")
        return [moment_of(tick.at_us) for [body] in rows for tick in unpack_ticks(body)]

    def decisions(self) -> list[str]:
        """The ids of all decisions that are stored."""
        rows = self.rows("SELECT body FROM decision_packs")
        return [decision.record_id for [body] in rows for decision in unpack_decisions(body)]

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def _variables(given: Mapping[str, object]) -> dict[str, str]:
    return {f"EQUIPOISE_{name}": str(value) for name, value in given.items()}


def _equipoise(command: str) -> list[str]:
    return [sys.executable, "-m", "manager.cli", command]


@contextmanager
def crash_safe_server() -> Iterator[PostgresServer]:
    """One that keeps what it acknowledged when it is killed."""
    with postgres_server() as server:
        server.crash()
        server.start()
        yield server


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    """Everything but the agent, started; with a network of the agent's own where this is root and may make one."""
    with ExitStack() as stack:
        server = stack.enter_context(crash_safe_server())
        network = None
        if os.geteuid() == 0:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                network = Network()
                stack.callback(network.close)
        yield Site(folder, server, network, stack, SIMULATED)
