"""`equipoise manager` as several processes: starts them, and again when they end or hang.

The parent binds the sockets and serves nothing itself. A connection that waits at a socket is taken by another worker
where one ends. Workers are managers of their own otherwise: what they share is in the database, and rate limits and
metrics in a folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client.multiprocess import mark_process_dead

from manager.cli.manager_worker import HANGS, READY
from manager.errors import EquipoiseError, SettingsError
from manager.notify import Notifier
from manager.serving.door import Door, tcp_doors
from manager.settings import Settings

MOST_WORKERS = 8
"""Workers without a setting; more gain little on a machine that is not the manager's alone."""
_LOOK_S = 0.2
_SILENT_S = 30.0
_STOP_S = 60.0
_LONG_S = 60.0
_LONGEST_PAUSE_S = 30.0

log = logging.getLogger(__name__)


def workers_of(settings: Settings, cpus: int) -> int:
    """How many processes serve. Raises SettingsError where SQLite cannot have as many."""
    wanted, url = settings.whole("workers"), settings.database_url
    if url.startswith("sqlite"):
        if wanted > 1:
            raise SettingsError(
                f"setting workers = {wanted} (from {settings.sources['workers']}) is refused: several processes that"
                " write to SQLite would wait for each other; allowed: 0 or 1, or a database_url of PostgreSQL"
            )
        return 1
    return wanted or min(cpus, MOST_WORKERS)


class Process(Protocol):
    """A process that was started."""

    pid: int

    def poll(self) -> int | None:
        """Its status, None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


@dataclass(slots=True)
class Worker:
    """A worker's process, what it wrote last, and when (steady seconds)."""

    number: int
    process: Process
    words: int
    started_s: float
    heard_s: float
    ready: bool = False
    _rest: bytes = field(default=b"", repr=False)

    def hear(self, now_s: float) -> str:
        """Read what it wrote; what hangs, empty for nothing."""
        hangs = ""
        with suppress(BlockingIOError):
            while text := os.read(self.words, 4096):
                *lines, self._rest = (self._rest + text).split(b"\n")
                for line in lines:
                    word = line.decode(errors="replace")
                    self.ready = self.ready or word == READY
                    hangs = word.removeprefix(HANGS) if word.startswith(HANGS) else ""
                    self.heard_s = now_s
        return hangs


Spawn = Callable[[int], tuple[Process, int]]
"""Starts the worker of a number; also the file descriptor, which does not block, of what it writes."""


class Supervisor:
    """Keeps workers running. Used by one thread."""

    def __init__(
        self,
        count: int,
        spawn: Spawn,
        notifier: Notifier,
        forget: Callable[[int], None] = lambda _pid: None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``forget`` is called with the pid of each worker that ended."""
        self._spawn, self._notifier, self._forget, self._steady = spawn, notifier, forget, steady
        self._count = count
        self.workers: dict[int, Worker] = {}
        self._leaving: list[Worker] = []
        self._successor: Worker | None = None
        self._to_renew: list[int] = []
        self._start_at_s = dict.fromkeys(range(count), float("-inf"))
        self._pause_s = dict.fromkeys(range(count), 0.0)
        self._all_served = False
        self._pinged_s = float("-inf")

    def renew(self) -> None:
        """Replace all workers, one after the other, each once its successor serves."""
        self._to_renew = list(range(self._count))

    def look(self) -> None:
        """Look once at all workers. Raises EquipoiseError where one ends at the first start before it served."""
        now_s = self._steady()
        self._bury(now_s)
        for number in range(self._count):
            if number not in self.workers and now_s >= self._start_at_s[number]:
                self.workers[number] = self._start(number, now_s)
        for worker in self.workers.values():
            hangs = worker.hear(now_s)
            if not hangs and worker.ready and now_s - worker.heard_s > _SILENT_S:
                hangs = f"nothing was heard of it for {now_s - worker.heard_s:.0f} s"
            if hangs:
                log.critical("worker %d (pid %d) is ended: %s", worker.number, worker.process.pid, hangs)
                worker.process.kill()
                worker.heard_s = now_s
        self._go_on_renewing(now_s)
        self._tell(now_s)

    def stop(self) -> None:
        """Have all workers end, after they answered what was asked."""
        running = [*self.workers.values(), *self._leaving, *([self._successor] if self._successor else [])]
        for worker in running:
            worker.process.terminate()
        deadline_s = self._steady() + _STOP_S
        for worker in running:
            while worker.process.poll() is None:
                if self._steady() > deadline_s:
                    log.error("worker %d (pid %d) did not end and is killed", worker.number, worker.process.pid)
                    worker.process.kill()
                time.sleep(0.02)
            self._close(worker)

    def _start(self, number: int, now_s: float) -> Worker:
        process, words = self._spawn(number)
        log.debug("worker %d started with pid %d", number, process.pid)
        return Worker(number, process, words, now_s, now_s)

    def _bury(self, now_s: float) -> None:
        for worker in [worker for worker in self._leaving if worker.process.poll() is not None]:
            self._leaving.remove(worker)
            self._close(worker)
        for number, worker in list(self.workers.items()):
            status = worker.process.poll()
            if status is None:
                continue
            if status > 0 and not self._all_served and not worker.ready:  # it refuses; others would, too
                raise EquipoiseError(f"worker {number} ended with status {status} before it served; its log says why")
            lived_long = now_s - worker.started_s > _LONG_S
            pause_s = 0.0 if lived_long else min(self._pause_s[number], _LONGEST_PAUSE_S)
            self._pause_s[number] = 1.0 if lived_long else max(1.0, 2 * pause_s)
            self._start_at_s[number] = now_s + pause_s
            log.error("worker %d (pid %d) ended with status %d: another one starts", number, worker.process.pid, status)
            del self.workers[number]
            self._close(worker)

    def _go_on_renewing(self, now_s: float) -> None:
        if self._successor is None:
            if self._to_renew and self._all_served:
                self._successor = self._start(self._to_renew.pop(0), now_s)
            return
        successor = self._successor
        successor.hear(now_s)
        if successor.ready:
            former = self.workers.get(successor.number)
            if former is not None:
                former.process.terminate()
                self._leaving.append(former)
            self.workers[successor.number] = successor
            self._successor = None
        elif (status := successor.process.poll()) is not None:
            log.error("the workers stay as they are: a new one ended with status %d, its log says why", status)
            self._close(successor)
            self._successor, self._to_renew = None, []

    def _tell(self, now_s: float) -> None:
        serving = sum(worker.ready for worker in self.workers.values())
        if serving == self._count and not self._all_served:
            self._all_served = True
            self._notifier.ready(f"serving with {serving} workers")
        every_s = (self._notifier.watchdog_s or _LONG_S) / 4
        if serving and now_s - self._pinged_s >= every_s:
            self._pinged_s = now_s
            self._notifier.alive(f"{serving} of {self._count} workers serve")

    def _close(self, worker: Worker) -> None:
        os.close(worker.words)
        self._forget(worker.process.pid)


def run_workers(settings: Settings, count: int, notifier: Notifier, stop: threading.Event) -> None:
    """Serve with so many workers until ``stop`` is set; SIGHUP replaces them. Raises EquipoiseError."""
    doors = _listen(settings)
    with tempfile.TemporaryDirectory(prefix="equipoise-") as name:
        folder = Path(name)
        supervisor = Supervisor(
            count,
            lambda number: _spawn(settings, number, count, folder, doors),
            notifier,
            lambda pid: mark_process_dead(pid, name),  # type: ignore[no-untyped-call]
        )
        for door in doors:
            log.info("%d workers for %s port %d", count, *door.getsockname()[:2])
        try:
            with on_hangup(supervisor.renew):
                while not stop.wait(_LOOK_S):
                    supervisor.look()
            notifier.stopping("answering open requests")
        finally:
            for door in doors:
                door.close()
            supervisor.stop()


def _listen(settings: Settings) -> list[Door]:
    host, port = settings.text("listen_host"), settings.whole("listen_port")
    try:
        return tcp_doors(host, port, listening=False)  # nobody waits at them before a worker serves
    except (OSError, ValueError, OverflowError) as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error}") from error


def _spawn(settings: Settings, number: int, count: int, folder: Path, doors: Sequence[Door]) -> tuple[Process, int]:
    sockets = [door.fileno() for door in doors]
    words, write = os.pipe()
    os.set_blocking(words, False)
    given = json.dumps({"values": dict(settings.values), "sources": dict(settings.sources)})
    watched = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
    variables = {name: value for name, value in os.environ.items() if name not in watched}
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",  # nothing of the folder that it was started in
            "-m",
            "manager.cli.manager_worker",
            f"{number}",
            f"{count}",
            folder,
            f"{write}",
            *map(str, sockets),
        ],
        stdin=subprocess.PIPE,
        env=variables | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        pass_fds=(write, *sockets),
        process_group=0,  # the terminal's Ctrl-C is for the parent, which ends them in order
    )
    os.close(write)
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it ended at once, which is noticed elsewhere
            process.stdin.write(given.encode() + b"\n")
            process.stdin.flush()
    return process, words


@contextmanager
def on_hangup(act: Callable[[], None]) -> Iterator[None]:
    """Do that at each SIGHUP while the block runs, which else would end the process."""
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
