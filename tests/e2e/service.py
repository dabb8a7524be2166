"""The manager and the agent of a simulated host as processes of their own, in a folder and on ports of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from manager.cli.admin_commands import ensure_token_file
from manager.cli.options import ADMIN_TOKEN_FILE, AGENT_TOKEN_FILE, SIMULATED_FILE
from manager.cli.simulated import register
from manager.errors import ManagerUnavailable
from manager.protocol.client import ManagerClient
from manager.sim.scenario_files import load_scenario
from manager.store.database import open_database
from manager.store.tokens import Role
from tests.ports import reserved_ports

DEADLINE_S = 120.0
HOST = "sim1"
PASSWORD = "correct horse battery"
USERS = {"viewer": "vera", "operator": "otto", "admin": "ada"}
"""Somebody of each role."""


class Service:
    """Processes of one folder: ``run`` starts both as one command, ``manager`` and ``agent`` start each by itself."""

    def __init__(
        self,
        folder: Path,
        scenario: str = "",
        *,
        host: str = HOST,
        interval_s: float = 1,
        speed: float = 1,
        stale_s: float = 30,
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Nothing runs yet. ``scenario`` names one, or its file; empty: there is no agent. ``more``: other settings."""
        self.folder, self.scenario, self.host, self.interval_s, self.speed = folder, scenario, host, interval_s, speed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._reserved = contextlib.ExitStack()
        self.port, agent_port = self._reserved.enter_context(reserved_ports(2))
        self.url = f"http://127.0.0.1:{self.port}"
        given = {
            "state_dir": folder / "state",
            "listen_port": self.port,
            "manager_url": self.url,
            "agent_listen_port": agent_port,
            "host_name": host,
            "interval_s": interval_s,
            "sync_s": 0.2,
            "stale_s": stale_s,
            "simulate_speed": speed,
            "database_url": f"sqlite:///{folder}/state/equipoise.db",
            **(more or {}),
        }
        self.database_url = str(given["database_url"])
        self._environ = {name: text for name, text in os.environ.items() if not name.startswith("EQUIPOISE_")}
        self._environ |= {f"EQUIPOISE_{name.upper()}": str(value) for name, value in given.items()}

    @property
    def log(self) -> str:
        """What all processes said so far."""
        return (self.folder / "log").read_text()

    def start(self, command: str) -> None:
        """Start ``run``, ``manager`` or ``agent``, and wait until the manager answers."""
        simulate = [] if command == "manager" else ["--simulate", self.scenario]
        with (self.folder / "log").open("ab") as log:
            self._processes[command] = subprocess.Popen(
                [sys.executable, "-m", "manager.cli", command, *simulate],
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.until(lambda client: client.get("/policies"))

    def stop(self, command: str) -> int:
        """End it as systemd does, and return its exit status."""
        process = self._processes.pop(command)
        process.send_signal(signal.SIGTERM)
        return process.wait(DEADLINE_S)

    def kill(self, command: str) -> None:
        """End it as the kernel does that has no memory left."""
        process = self._processes.pop(command)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End what still runs."""
        for command in reversed(list(self._processes)):
            self.stop(command)
        self._reserved.close()

    def prepare(self, *, registered: bool = True) -> None:
        """What `equipoise run` does before it starts the agent: tables, tokens, registrations; starts the manager."""
        state = self.folder / "state"
        state.mkdir()
        database = open_database(self.database_url)
        database.upgrade()
        ensure_token_file(database, state / ADMIN_TOKEN_FILE, "local-admin", Role.ADMIN, None)
        ensure_token_file(database, state / AGENT_TOKEN_FILE, "agent", Role.HOST, self.host)
        database.close()
        self.start("manager")
        if self.scenario:
            (state / SIMULATED_FILE).touch()
        if self.scenario and registered:
            with contextlib.closing(self.client()) as client:
                register(client, load_scenario(self.scenario), self.host, "fair")

    def token(self, file: str = ADMIN_TOKEN_FILE) -> str:
        """An admin's token, or the agent's. Raises FileNotFoundError before there is one."""
        return (self.folder / "state" / file).read_text().strip()

    def client(self, token: str | None = None) -> ManagerClient:
        """Speaks REST as an admin, or as whose token it is. Raises FileNotFoundError before there is one."""
        return ManagerClient(self.url, token or self.token())

    def ask(self, method: str, path: str, body: object = None, token: str | None = None) -> Any:
        """What a request of an admin, or of whose token it is, is answered. Raises ManagerUnavailable when refused."""
        with contextlib.closing(self.client(token)) as client:
            where, _, query = path.partition("?")
            response = client.request(method, where, body=body, params=dict(parse_qsl(query)))
            return response.json() if response.content else None

    def until(self, what: Callable[[ManagerClient], Any]) -> Any:
        """The first answer that is not empty, while all processes run."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            assert all(one.poll() is None for one in self._processes.values()), self.log
            with (
                contextlib.suppress(ManagerUnavailable, FileNotFoundError),
                contextlib.closing(self.client()) as client,
            ):
                if found := what(client):
                    return found
            time.sleep(0.1)
        raise AssertionError(self.log)

    def add_users(self) -> None:
        """A user of each role."""
        for role, name in USERS.items():
            self.ask("POST", "/users", {"name": name, "role": role, "password": PASSWORD})
