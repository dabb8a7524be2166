"""A manager and an agent as processes of their own, over the VMs of ``tests.bench.vms``."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from manager.cli.admin_commands import ensure_token_file
from manager.model.registration import Assignment
from manager.store.database import open_database
from manager.store.tokens import Role
from tests.bench.vms import HOST, BenchError, Vm

DEADLINE_S = 30.0
_PR_SET_PDEATHSIG = 1
_SCHEDULED = 2
"""CPUCLOCK_SCHED of the kernel: the time that a whole process used."""


@dataclass(frozen=True)
class Usage:
    """What a process used so far: CPU seconds of all its threads, resident memory now and at most, in MiB."""

    cpu_s: float
    rss_mib: float
    most_mib: float


def usage(pid: int) -> Usage:
    """Read it: clock_getcpuclockid(3), as proc_pid_stat(5) counts in steps of 10 ms, and proc_pid_status(5)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss, most = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Usage(time.clock_gettime((~pid << 3) | _SCHEDULED), rss, most)


class AgentProcess:
    """A running ``tests.bench.agent_process``."""

    def __init__(self, arguments: Sequence[str], domains: Sequence[Vm], call_ms: float, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.agent_process", f"{call_ms:g}", "agent", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._say(json.dumps([(vm.name, vm.uuid) for vm in domains]))

    def start(self, vm: Vm) -> None:
        """Let libvirt tell of a domain that runs now."""
        self._say(f"start {vm.name} {vm.uuid}")

    def figures(self) -> dict[str, Any]:
        """See ``tests.bench.agent_process.Figures``."""
        self._say("figures")
        assert self._process.stdout is not None
        figures: dict[str, Any] = json.loads(self._process.stdout.readline() or "null")
        if figures is None:
            raise BenchError("the agent ended")
        return figures

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def stop(self) -> int:
        """End it, which puts everything back; returns its exit status."""
        return _stop(self._process)


class ManagerProcess:
    """A manager with a database of its own. ``token`` is an admin's, as which ``client`` speaks."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        interval_s: float,
        workers: int = 1,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        more: Sequence[str] = (),
    ) -> None:
        """Start it. Raises BenchError when it does not answer.

        ``pid`` is the process that serves only where there is one. ``listen``: address and port, 0 for any. ``more``:
        arguments.
        """
        self.log = folder / "log"
        database = open_database(database_url)
        database.upgrade()
        for role, host in ((Role.ADMIN, None), (Role.HOST, HOST)):
            ensure_token_file(database, folder / f"{role}.token", role, role, host)
        database.close()
        with socket.create_server(listen) as free:
            address, port = free.getsockname()[:2]
        self.url = f"http://{address}:{port}"
        files = ["--database-url", database_url, "--state-dir", f"{folder / 'manager'}"]
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "manager.cli", "manager", "--listen-host", address, *files, *more),
                    *("--listen-port", f"{port}"),
                    *("--interval-s", f"{interval_s:g}", "--requests-per-s", "0", "--samples-per-s", "0"),
                    *("--workers", f"{workers}"),
                ],
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - there are no threads yet
            )
        self.pid = self._process.pid
        self.token = (folder / f"{Role.ADMIN}.token").read_text().strip()
        headers = {"Authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60)
        self._wait()

    def _wait(self) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.TransportError):
                self.client.get("/vms").raise_for_status()
                return
            time.sleep(0.05)
        raise BenchError(f"the manager does not answer: {self.log.read_text()}")

    def workers(self) -> list[int]:
        """Pids of the processes that serve, where there are several."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill_worker(self, pid: int) -> None:
        """kill -9 of one of these."""
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """kill -9 of all its processes, as if the machine had stopped."""
        for pid in (self.pid, *self.workers()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self.client.close()

    def close(self) -> None:
        """End it."""
        self.client.close()
        _stop(self._process)


@contextmanager
def running_manager(
    folder: Path, database_url: str, interval_s: float, workers: int = 1, more: Sequence[str] = ()
) -> Iterator[ManagerProcess]:
    """A manager that knows of nothing yet. ``more``: arguments."""
    manager = ManagerProcess(folder, database_url, interval_s, workers, more=more)
    try:
        yield manager
    finally:
        manager.close()


class Site:
    """A manager on SQLite, with everything registered, and what its agent needs to be started."""

    def __init__(self, folder: Path, root: Path, interval_s: float) -> None:
        """Start the manager. Raises BenchError when it does not answer."""
        self._folder, self._root, self._interval_s = folder, root, interval_s
        self._manager = ManagerProcess(folder, f"sqlite:///{folder / 'bench.db'}", interval_s)
        self.client = self._manager.client

    def register(self, wanted: Assignment) -> None:
        """Register the host, VMs and applications."""
        for vm in wanted.vms:
            self.client.put(f"/vms/{vm.name}", json={"class": vm.vm_class}).raise_for_status()
        for app in wanted.applications:
            tiers = [{"name": tier.name, "vms": list(tier.vms)} for tier in app.tiers if tier.vms]
            sla = {"response_time_ms": app.sla.response_time_ms} if app.sla else None
            self.client.put(f"/applications/{app.name}", json={"tiers": tiers, "sla": sla}).raise_for_status()
        self.client.put(f"/hosts/{HOST}", json={"policy": wanted.host.policy}).raise_for_status()

    def start_agent(self, domains: Sequence[Vm], call_ms: float) -> AgentProcess:
        """An agent on the root folder of the VMs."""
        state = self._folder / "agent"
        arguments = {
            "--state-dir": f"{state}",
            "--manager-url": self._manager.url,
            "--token-file": f"{self._folder / f'{Role.HOST}.token'}",
            "--host-name": HOST,
            "--root-dir": f"{self._root}",
            "--interval-s": f"{self._interval_s:g}",
            "--agent-listen-port": "0",
            "--syslog-listen-port": "0",
            "--log-level": "warning",
        }
        return AgentProcess([word for pair in arguments.items() for word in pair], domains, call_ms, self._manager.log)

    def close(self) -> None:
        """End the manager."""
        self._manager.close()


def _end_with_us() -> None:
    """Let the kernel end this process when the one that started it ends, however it does: prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _stop(process: subprocess.Popen[Any]) -> int:
    process.terminate()
    try:
        return process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def running_site(folder: Path, root: Path, interval_s: float, wanted: Assignment) -> Iterator[Site]:
    """A manager that knows of everything."""
    site = Site(folder, root, interval_s)
    try:
        site.register(wanted)
        yield site
    finally:
        site.close()


@contextmanager
def running_agent(site: Site, domains: Sequence[Vm], call_ms: float) -> Iterator[AgentProcess]:
    """An agent; it puts everything back at the end."""
    agent = site.start_agent(domains, call_ms)
    try:
        yield agent
    finally:
        agent.stop()
