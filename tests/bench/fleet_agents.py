"""The agents of ``tests.bench.fleet``: the product's own, on hosts in memory, in processes of their own."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from manager import __version__
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.observer import LoopSettings
from manager.loop.outbox import Outbox
from manager.loop.tick import ControlLoop
from manager.loop.watches import FindingsWatch
from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2
from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.traffic import Answered, HostServices
from manager.model.window import Window
from manager.protocol.client import Answer, ManagerClient, Network
from manager.protocol.client import Connection as HttpConnection
from manager.telemetry.store import LATE_S
from policies.installed import load_policies
from tests.fakes.examiner import FakeExaminer
from tests.fakes.host import FakeHost

THREADS = 8
TIERS = 4
"""Applications of a host, with two critical VMs each; all other VMs are batch."""
REQUESTS = 200
KEPT_SLOTS = 60


@dataclass
class SyntheticTelemetry:
    """Response times of a host's applications, log-normal about 10 ms. Slots are as long as the interval.

    They are open for as long as those of the product's own store.
    """

    slot_s: float
    chance: random.Random
    applications: Sequence[Application] = ()
    _slots: dict[str, list[Window]] = field(default_factory=dict)
    _open: list[Window] = field(default_factory=list)
    _closed: list[Window] = field(default_factory=list)

    def pass_slot(self, end_s: float) -> None:
        """A slot ends."""
        for application in self.applications:
            times_us = (self.chance.lognormvariate(math.log(10_000), 0.5) for _ in range(REQUESTS))
            window = Window(application.name, end_s - self.slot_s, end_s, Histogram.of(times_us), REQUESTS)
            self._slots.setdefault(application.name, []).append(window)
            del self._slots[application.name][:-KEPT_SLOTS]
            self._open.append(window)
        late = [window for window in self._open if window.end_s <= end_s - LATE_S]
        self._closed += late
        self._open = self._open[len(late) :]

    def configure(
        self,
        applications: Sequence[Application],
        slot_s: float,
        addresses: Mapping[str, frozenset[str]],
        taps: Mapping[str, frozenset[int]],
    ) -> None:
        del addresses, taps
        self.applications, self.slot_s = applications, slot_s

    def find_services(self, taps: Mapping[str, frozenset[int]]) -> None:
        """There are none."""

    def services(self) -> HostServices:
        return HostServices()

    def answered(self) -> Answered:
        return Answered()

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        return {name: tuple(windows) for name, windows in self._slots.items()}

    def recent(self) -> tuple[Window, ...]:
        return tuple(sorted(self._open, key=lambda window: (window.application, window.end_s)))

    def closed(self) -> tuple[Window, ...]:
        found, self._closed = tuple(self._closed), []
        return found

    def statuses(self) -> tuple[SourceStatus, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class TimedConnection:
    """A connection that notes how long each exchange took in seconds, and how much was sent."""

    def __init__(self, url: str) -> None:
        self._connection = HttpConnection(url)
        self.took_s: list[float] = []
        self.sent_bytes = 0

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """See ``Network``."""
        began_s = time.perf_counter()
        answer = self._connection.exchange(method, target, headers, body)
        self.took_s.append(time.perf_counter() - began_s)
        self.sent_bytes += len(body or b"")
        return answer

    def close(self) -> None:
        """See ``Network``."""
        self._connection.close()


class SimulatedAgent:
    """An agent on a host in memory."""

    def __init__(
        self,
        url: str,
        token: str,
        name: str,
        vms: int,
        interval_s: float,
        folder: Path,
        *,
        network: Network | None = None,
        sync_s: float | None = None,
    ) -> None:
        """``network`` carries its requests in place of ``connection``. ``sync_s`` None: one in each interval."""
        self._interval_s = interval_s
        self._chance = random.Random(name)
        self.host = FakeHost(cpus=64, scale=CPU_WEIGHT_V2)
        for vm in vm_names(name, vms):
            self.host.boot(vm, vcpus=2)
        self.telemetry = SyntheticTelemetry(interval_s, self._chance)
        self.connection = TimedConnection(url)
        folder.mkdir()
        self._journal, self.outbox = Journal(folder / "journal.db", "boot"), Outbox(folder / "outbox.db", 100_000)
        self._client = ManagerClient(url, token, network or self.connection)
        self.metrics = AgentMetrics()
        policies = {policy: found.policy for policy, found in load_policies().items()}
        self.agent = Agent(
            ControlLoop(self.host, self._journal, policies, LoopSettings(name, interval_s, 30.0, 1)),
            self.outbox,
            ManagerLink(self._client, name, __version__, folder / "assignment.json", self.outbox),
            self.metrics,
            telemetry=self.telemetry,
            findings=FindingsWatch(FakeExaminer()),
            sync_s=sync_s or interval_s,
        )

    def tick(self) -> None:
        """An interval ends."""
        for vm in self.host.vms.values():
            vm.cpu_ns += int(self._chance.uniform(0.1, 1.5) * self._interval_s * 1e9)
            vm.delay_ns += int(self._chance.uniform(0, 0.1) * self._interval_s * 1e9)
        self.telemetry.pass_slot(math.floor(time.time() / self._interval_s) * self._interval_s)
        self.agent.tick()

    def close(self) -> None:
        """Close files and the connection; nothing real is to be undone."""
        for one in (self._client, self.outbox, self._journal):
            one.close()


def vm_names(host: str, vms: int) -> list[str]:
    """Of the VMs of a host."""
    return [f"{host}-{number:02d}" for number in range(vms)]


@dataclass(frozen=True)
class Driven:
    """What a process with agents saw in the time that counts; times in seconds."""

    exchanges: int
    took_s: list[float]
    late_s: list[float]
    sent_bytes: int
    failed: int


def drive(
    url: str, token: str, names: Sequence[str], vms: int, interval_s: float, folder: Path, pipe: Connection
) -> None:
    """Run agents until told to stop: a tick each interval, and an exchange half an interval later."""
    agents = [SimulatedAgent(url, token, name, vms, interval_s, folder / name) for name in names]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda one: one.agent.reporter.sync(), agents))
        list(pool.map(lambda one: one.tick(), agents))
        list(pool.map(lambda one: one.agent.reporter.exchange(), agents))  # the first report is the longest by far
        pipe.send(None)
        begun_s = time.monotonic()
        due: list[tuple[float, int, bool]] = []
        for place in range(len(agents)):
            at_s = begun_s + interval_s * place / len(agents)
            heapq.heappush(due, (at_s, place, True))
            heapq.heappush(due, (at_s + interval_s / 2, place, False))
        late_s: list[float] = []

        def act(at_s: float, place: int, ticks: bool) -> None:
            late_s.append(time.monotonic() - at_s)
            agents[place].tick() if ticks else agents[place].agent.reporter.turn()

        while True:
            at_s, place, ticks = due[0]
            if pipe.poll(max(at_s - time.monotonic(), 0)):
                if pipe.recv() == "count":  # what came before does not count
                    for one in agents:
                        one.connection.took_s, one.connection.sent_bytes = [], 0
                    late_s.clear()
                    continue
                break
            heapq.heapreplace(due, (at_s + interval_s, place, ticks))
            pool.submit(act, at_s, place, ticks)
    took_s = [one for agent in agents for one in agent.connection.took_s]
    failed = sum(agent.metrics.registry.get_sample_value("equipoise_agent_manager_up") != 1 for agent in agents)
    pipe.send(Driven(len(took_s), took_s, late_s, sum(agent.connection.sent_bytes for agent in agents), failed))
    for one in agents:
        one.close()
