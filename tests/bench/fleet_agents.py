"""The agents of ``tests.bench.fleet``: the product's own, on hosts in memory, many to a process.

What belongs to the simulation is made cheap, so that a fleet's agents fit beside its managers: response times are
drawn once and used again, hardware that never changes is told once, and one thread ticks all hosts of a process. What
an agent does itself is the product's: tick, report, packing, exchange, and a journal and an outbox for each host.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException
from multiprocessing.connection import Connection
from pathlib import Path

from manager import __version__
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.observer import Clock, LoopSettings, system_clock
from manager.loop.outbox import Outbox
from manager.loop.schedule import postpone_garbage
from manager.loop.tick import ControlLoop
from manager.loop.watches import FindingsWatch
from manager.model.cpus import CpuSet
from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2, Capabilities, CpuCounters, VmInstance, VmState
from manager.model.knob_spec import KnobValue
from manager.model.knobs import KnobKey
from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.traffic import Answered, HostServices
from manager.model.window import Window
from manager.protocol.client import Answer, ManagerClient, Network
from manager.protocol.client import Connection as HttpConnection
from manager.telemetry.store import LATE_S
from policies.base import Policy
from policies.installed import load_policies
from tests.bench.precedence import give_way
from tests.bench.site import usage
from tests.fakes.examiner import FakeExaminer
from tests.fakes.host import FakeHost

THREADS = 8
_SWITCH_S = 0.1
_MEMORY = Path("/dev/shm")
TIERS = 4
"""Applications of a host, with two critical VMs each; all other VMs are batch."""
REQUESTS = 200
KEPT_SLOTS = 60
DRAWS = 4096
"""So many slots of response times are drawn: of 180 of a quarter of an hour, which are compressed together, 4 % have a
twin among them."""
_TOGETHER_S = 0.01
"""What is due so soon is done at one wake-up."""
_GARBAGE_S = 60.0
"""Garbage of all agents of a process is collected so often, and what stays is not looked through again: an agent does
so for itself, see ``manager.loop.schedule``, and hundreds of them would keep each other waiting."""


@dataclass(frozen=True, slots=True)
class Common:
    """What agents of one process share, because it never changes. ``draws``: slots of response times."""

    draws: Sequence[Histogram]
    policies: Mapping[str, Policy]

    @classmethod
    def drawn(cls, seed: str) -> Common:
        """With response times that are log-normal about 10 ms."""
        chance = random.Random(seed)
        middle = math.log(10_000)
        draws = [Histogram.of(chance.lognormvariate(middle, 0.5) for _ in range(REQUESTS)) for _ in range(DRAWS)]
        return cls(draws, {name: found.policy for name, found in load_policies().items()})


@dataclass
class SteadyHost(FakeHost):
    """A host in memory whose hardware never changes: what it can do is found out once. Nothing but us sets its VMs."""

    _written: set[str] = field(default_factory=set)

    @cached_property
    def online(self) -> CpuSet:  # type: ignore[override]
        return frozenset(range(self.cpus))

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return super().capabilities

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:
        self._written.discard(instance.uuid)
        return super().read(instance, afresh)

    def counters(self, instances: Mapping[str, VmInstance]) -> dict[str, tuple[VmState, CpuCounters]]:
        """Without a look at their settings, which the fake compares."""
        found: dict[str, tuple[VmState, CpuCounters]] = {}
        for uuid, instance in instances.items():
            before, vm = self.as_read.get(instance), self.vms[uuid]
            if before is not None and uuid not in self._written:
                vcpus = len(before.vcpus)
                found[uuid] = before, CpuCounters(vm.cpu_ns, (None,) * vcpus, (vm.delay_ns,) * vcpus)
        return found

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        self._written.add(key.uuid)
        return super().write(instance, key, value)


@dataclass
class SyntheticTelemetry:
    """Response times of a host's applications. Slots are as long as the interval.

    They are open for as long as those of the product's own store.
    """

    slot_s: float
    chance: random.Random
    draws: Sequence[Histogram]
    applications: Sequence[Application] = ()
    _slots: dict[str, list[Window]] = field(default_factory=dict)
    _open: list[Window] = field(default_factory=list)
    _closed: list[Window] = field(default_factory=list)

    def pass_slot(self, end_s: float) -> None:
        """A slot ends."""
        for application in self.applications:
            histogram = self.chance.choice(self.draws)
            window = Window(application.name, end_s - self.slot_s, end_s, histogram, REQUESTS)
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
    """A connection that notes how long each exchange took in seconds, and how much was sent.

    ``failed``: how many requests had no answer, or one that says that they failed.
    """

    def __init__(self, url: str) -> None:
        self._connection = HttpConnection(url)
        self.forget()

    def forget(self) -> None:
        """What came before does not count."""
        self.took_s: list[float] = []
        self.sent_bytes = self.failed = 0

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """See ``Network``."""
        began_s = time.perf_counter()
        try:
            answer = self._connection.exchange(method, target, headers, body)
        except (OSError, HTTPException):
            self.failed += 1
            raise
        self.took_s.append(time.perf_counter() - began_s)
        self.sent_bytes += len(body or b"")
        self.failed += answer.status >= HTTPStatus.BAD_REQUEST
        return answer

    def close(self) -> None:
        """See ``Network``."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Of which manager an agent is, and of which host; its files are in ``folder``, which is made."""

    url: str
    token: str
    host: str
    vms: int
    interval_s: float
    folder: Path


class SimulatedAgent:
    """An agent on a host in memory."""

    def __init__(
        self,
        spec: AgentSpec,
        common: Common,
        *,
        network: Network | None = None,
        sync_s: float | None = None,
        outbox: Outbox | None = None,
        clock: Callable[[], Clock] = system_clock,
    ) -> None:
        """``network`` carries its requests in place of ``connection``. ``sync_s`` None: one in each interval.

        ``outbox``: of another one, which closes it. ``clock`` dates ticks and slots.
        """
        name, interval_s, folder = spec.host, spec.interval_s, spec.folder
        self._interval_s, self._clock = interval_s, clock
        self._chance = random.Random(name)
        self.host = SteadyHost(cpus=64, scale=CPU_WEIGHT_V2)
        for vm in vm_names(name, spec.vms):
            self.host.boot(vm, vcpus=2)
        self.telemetry = SyntheticTelemetry(interval_s, self._chance, common.draws)
        self.connection = TimedConnection(spec.url)
        folder.mkdir()
        self._journal, self.outbox = (
            Journal(folder / "journal.db", "boot"),
            outbox or Outbox(folder / "outbox.db", 100_000),
        )
        self._opened = (self._journal, *(() if outbox else (self.outbox,)))
        self._client = ManagerClient(spec.url, spec.token, network or self.connection)
        self.metrics = AgentMetrics()
        self.agent = Agent(
            ControlLoop(self.host, self._journal, common.policies, LoopSettings(name, interval_s, 30.0, 1), clock),
            self.outbox,
            ManagerLink(self._client, name, __version__, folder / "assignment.json", self.outbox),
            self.metrics,
            telemetry=self.telemetry,
            findings=FindingsWatch(FakeExaminer()),
            sync_s=sync_s or interval_s,
        )

    def begin(self) -> None:
        """Fetch the assignment, tick, and report for the first time, which is by far the longest report."""
        self.agent.reporter.sync()
        self.tick()
        self.agent.reporter.report(ask=True)  # in one request: an exchange pauses until it knows of no other host

    def tick(self) -> None:
        """An interval ends."""
        for vm in self.host.vms.values():
            vm.cpu_ns += int(self._chance.uniform(0.1, 1.5) * self._interval_s * 1e9)
            vm.delay_ns += int(self._chance.uniform(0, 0.1) * self._interval_s * 1e9)
        self.telemetry.pass_slot(math.floor(self._clock().epoch_s / self._interval_s) * self._interval_s)
        self.agent.tick()

    def close(self) -> None:
        """Close files and the connection; nothing real is to be undone."""
        for one in (self._client, *self._opened):
            one.close()


def vm_names(host: str, vms: int) -> list[str]:
    """Of the VMs of a host."""
    return [f"{host}-{number:02d}" for number in range(vms)]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process with agents is to do. ``ramp_s``: within which they begin, one after the other."""

    url: str
    token: str
    hosts: Sequence[str]
    vms: int
    interval_s: float
    ramp_s: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Driven:
    """What a process with agents saw in the time that counts; times in seconds.

    ``late_s``: of what was due. ``told_s``: from when a tick was due until the manager had acknowledged the report
    that follows it. ``gap_s``: the longest time of each host without an acknowledged report. ``cpu_s`` and ``most_mib``
    are of the process, simulation included.
    """

    exchanges: int
    took_s: list[float]
    late_s: list[float]
    told_s: list[float]
    gap_s: list[float]
    sent_bytes: int
    failed: int
    failed_requests: int
    cpu_s: float
    most_mib: float


class Step(IntEnum):
    """What is due of a host."""

    BEGIN = 0
    TICK = 1
    TURN = 2


class Reports:
    """When the reports of one host were acknowledged. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self.forget(time.monotonic())

    def forget(self, now_s: float) -> None:
        """What came before does not count."""
        self.told_s: list[float] = []
        self._last_s, self._gap_s = now_s, 0.0

    def acknowledged(self, tick_s: float, now_s: float) -> None:
        """One was, of the tick that was due at that time."""
        self.told_s.append(now_s - tick_s)
        self._gap_s, self._last_s = self.gap_s(now_s), now_s

    def gap_s(self, now_s: float) -> float:
        """The longest time without one."""
        return max(self._gap_s, now_s - self._last_s)


class Driver:
    """The agents of one process. This thread ticks; other threads begin agents, and wait for the manager."""

    def __init__(self, orders: Orders, pool: ThreadPoolExecutor) -> None:
        self._orders, self._pool = orders, pool
        self._common = Common.drawn(orders.hosts[0])
        self._agents: dict[int, SimulatedAgent] = {}
        self._begun: collections.deque[int] = collections.deque()
        self._working: collections.deque[Future[None]] = collections.deque()
        self._turning = [threading.Lock() for _ in orders.hosts]
        self._reports = [Reports() for _ in orders.hosts]
        self._late_s: list[float] = []
        self._start_s = time.monotonic()
        self._cpu_s = time.process_time()
        apart_s = orders.ramp_s / len(orders.hosts)
        self._due = [(self._start_s + apart_s * place, place, Step.BEGIN) for place in range(len(orders.hosts))]

    def run(self, pipe: Connection) -> None:
        """Until told to stop. Says once when all agents have begun, and counts from when it is told to."""
        told, collected_s = False, time.monotonic()
        while True:
            self._take_begun()
            if not told and len(self._agents) == len(self._orders.hosts):
                told = True
                postpone_garbage()
                pipe.send(None)
            if pipe.poll(self._wait_s()):
                if pipe.recv() != "count":
                    return
                self._forget()
            self._act_on_all_due()
            if told and time.monotonic() - collected_s > _GARBAGE_S:
                collected_s = time.monotonic()
                postpone_garbage()
            while self._working and self._working[0].done():
                self._working.popleft().result()  # raises mistakes of ours

    def _wait_s(self) -> float:
        """Until the next is due. While agents begin it is looked often: they come to what is due by themselves."""
        next_s = self._due[0][0] if self._due else math.inf
        beginning = len(self._agents) < len(self._orders.hosts)
        return max(min(next_s - time.monotonic(), 0.05 if beginning else math.inf), 0.0)

    def _take_begun(self) -> None:
        """A tick each interval from now on, at each host's own time, and an exchange half an interval later."""
        interval_s, count = self._orders.interval_s, len(self._orders.hosts)
        while self._begun:
            place = self._begun.popleft()
            first_s = self._start_s + interval_s * place / count
            first_s += math.ceil((time.monotonic() - first_s) / interval_s) * interval_s
            heapq.heappush(self._due, (first_s, place, Step.TICK))
            heapq.heappush(self._due, (first_s + interval_s / 2, place, Step.TURN))

    def _act_on_all_due(self) -> None:
        """What is due as of now: on a machine that cannot keep up more is due by the end, and it still ends."""
        until_s = time.monotonic() + _TOGETHER_S
        while self._due and self._due[0][0] <= until_s:
            at_s, place, step = heapq.heappop(self._due)
            if step is Step.BEGIN:
                self._working.append(self._pool.submit(self._begin, place))
                continue
            heapq.heappush(self._due, (at_s + self._orders.interval_s, place, step))
            if step is Step.TICK:
                self._late_s.append(time.monotonic() - at_s)
                self._agents[place].tick()
            else:
                self._working.append(self._pool.submit(self._turn, place, at_s))

    def _begin(self, place: int) -> None:
        orders, name = self._orders, self._orders.hosts[place]
        given = (orders.url, orders.token, name, orders.vms, orders.interval_s, orders.folder / name)
        agent = SimulatedAgent(AgentSpec(*given), self._common)
        agent.begin()
        self._agents[place] = agent
        self._begun.append(place)

    def _turn(self, place: int, at_s: float) -> None:
        """One exchange, if the agent says that one is due, and none of it is under way."""
        if not self._turning[place].acquire(blocking=False):
            return
        try:
            self._late_s.append(time.monotonic() - at_s)
            connection = self._agents[place].connection
            asked, failed = len(connection.took_s), connection.failed
            self._agents[place].agent.reporter.turn()
            if len(connection.took_s) > asked and connection.failed == failed:
                self._reports[place].acknowledged(at_s - self._orders.interval_s / 2, time.monotonic())
        finally:
            self._turning[place].release()

    def _forget(self) -> None:
        """What came before does not count."""
        now_s = time.monotonic()
        for place, agent in self._agents.items():
            agent.connection.forget()
            self._reports[place].forget(now_s)
        self._late_s.clear()
        self._cpu_s = time.process_time()

    def seen(self) -> Driven:
        """What there was to see since it counts."""
        now_s, agents = time.monotonic(), self._agents.values()
        cpu_s = time.process_time() - self._cpu_s
        took_s = [took for agent in agents for took in agent.connection.took_s]
        up = [agent.metrics.registry.get_sample_value("equipoise_agent_manager_up") == 1 for agent in agents]
        return Driven(
            len(took_s),
            took_s,
            self._late_s,
            list(itertools.chain.from_iterable(one.told_s for one in self._reports)),
            [one.gap_s(now_s) for one in self._reports],
            sum(agent.connection.sent_bytes for agent in agents),
            len(up) - sum(up),
            sum(agent.connection.failed for agent in agents),
            cpu_s,
            usage(os.getpid()).most_mib,
        )

    def close(self) -> None:
        """Close all."""
        for agent in self._agents.values():
            agent.close()


def begin_process() -> None:
    """Let this process have the files of many agents, about seven each, and give way to managers and database.

    At once, as agents have machines of their own: else one that runs keeps a list waiting for up to a slice at each of
    its statements. Nor do agents ask each other for the interpreter every 5 ms: where hundreds of threads wait for it,
    that takes more than all they do.
    """
    sys.setswitchinterval(_SWITCH_S)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    give_way()


def memory_folder() -> Path | None:
    """Where files of agents are in memory, as those of a real fleet are on as many disks; None: there is none."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def drive(orders: Orders, pipe: Connection) -> None:
    """Run agents until told to stop, and send what was seen."""
    begin_process()
    with ThreadPoolExecutor(THREADS) as pool:
        driver = Driver(orders, pool)
        driver.run(pipe)
    pipe.send(driver.seen())
    driver.close()
