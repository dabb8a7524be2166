"""The agents of ``tests.bench.fleet_faults``: the product's own, with its timing of exchanges, and what they saw."""

from __future__ import annotations

import heapq
import json
import logging
import random
import socket
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.client import HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from manager.loop.observer import Clock
from manager.protocol.client import Answer
from manager.protocol.client import Connection as HttpConnection
from tests.bench.fleet_agents import THREADS, AgentSpec, Common, SimulatedAgent, begin_process
from tests.reported import ticks_in

MANAGERS = "managers.example"
"""The name of all managers, which agents find by a name server that says the addresses in another order each time."""
SYNC_S = 1.0
"""As by default."""
_LAST_TRIES = 30


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process with agents is to do. ``addresses`` are those of the managers."""

    addresses: Sequence[str]
    port: int
    token: str
    hosts: Sequence[str]
    vms: int
    interval_s: float
    folder: Path


@dataclass(frozen=True, slots=True)
class History:
    """Asks for the history of so many minutes, made by the agents' own code as if it were that time."""

    minutes: float


@dataclass(frozen=True, slots=True)
class HowMuchWaits:
    """Asks for how many items all agents have not delivered, as far as these are written."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of an agent. ``at_s``: when it ended, of the machine's monotonic clock, as all times here."""

    host: str
    at_s: float
    took_s: float
    answered: bool
    sent_bytes: int
    newest_tick_s: float | None = None
    """When the newest tick in it was, since the epoch; None: there was none in it."""


@dataclass(slots=True)
class Keys:
    """What was acknowledged, or is stored, by what tells one from the other."""

    records: set[str] = field(default_factory=set)
    ticks: set[tuple[str, datetime]] = field(default_factory=set)
    windows: set[tuple[str, datetime]] = field(default_factory=set)

    def add(self, other: Keys) -> None:
        """Those of another, too."""
        self.records |= other.records
        self.ticks |= other.ticks
        self.windows |= other.windows

    def without(self, other: Keys) -> list[str]:
        """What the other has not."""
        pairs = ((self.records, other.records), (self.ticks, other.ticks), (self.windows, other.windows))
        return [f"{key}" for mine, others in pairs for key in mine - others]  # type: ignore[operator]

    def __len__(self) -> int:
        return len(self.records) + len(self.ticks) + len(self.windows)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process with agents saw: exchanges, ticks as host and time, and how many agents could not deliver all."""

    exchanges: list[Exchange]
    ticks: list[tuple[str, float]]
    acknowledged: Keys
    refused: int
    waiting: int


class WatchedNetwork:
    """A connection that notes each exchange, and what the manager acknowledged, which ``read`` reads in the end.

    To read reports as they are sent would be a fifth of what their agents take.
    """

    def __init__(self, url: str, host: str) -> None:
        self._connection, self._host = HttpConnection(url), host
        self._taken: list[tuple[int, bytes, Answer]] = []
        self.exchanges: list[Exchange] = []
        self.acknowledged = Keys()
        self.refused = 0

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """See ``Network``."""
        began_s = time.monotonic()
        try:
            answer = self._connection.exchange(method, target, headers, body)
        except (OSError, HTTPException):
            self._note(began_s, None, body)
            raise
        if answer.status == 200 and target.endswith("/report") and body is not None:
            self._taken.append((len(self.exchanges), body, answer))
        self._note(began_s, answer, body)
        return answer

    def _note(self, began_s: float, answer: Answer | None, body: bytes | None) -> None:
        now_s = time.monotonic()
        answered = answer is not None and answer.status < 400
        self.exchanges.append(Exchange(self._host, now_s, now_s - began_s, answered, len(body or b"")))

    def read(self) -> None:
        """Read what was taken since the last time."""
        for place, body, answer in self._taken:
            newest_s = self._acknowledge(json.loads(body), answer)
            self.exchanges[place] = replace(self.exchanges[place], newest_tick_s=newest_s)
        self._taken = []

    def _acknowledge(self, report: Mapping[str, Any], answer: Answer) -> float | None:
        ticks = [datetime.fromisoformat(tick["at"]) for tick in ticks_in(report)]
        self.acknowledged.records |= {one["id"] for one in (*report["decisions"], *report["events"])}
        self.acknowledged.ticks |= {(self._host, at) for at in ticks}
        if ticks:  # other reports have slots that are open, which come again
            self.acknowledged.windows |= {
                (window["application"], datetime.fromisoformat(window["end"])) for window in report["windows"]
            }
        self.refused += len(answer.json().get("refused", ()))
        return max(at.timestamp() for at in ticks) if ticks else None

    def close(self) -> None:
        """See ``Network``."""
        self._connection.close()


class PastClock:
    """The time as it is set."""

    def __init__(self, epoch_s: float) -> None:
        self._now = Clock(epoch_s, epoch_s)

    def __call__(self) -> Clock:
        return self._now

    def pass_s(self, seconds: float) -> None:
        """So much passes."""
        self._now = Clock(self._now.epoch_s + seconds, self._now.monotonic_s + seconds)


def give_history(agent: SimulatedAgent, spec: AgentSpec, common: Common, of: History, until_epoch_s: float) -> int:
    """An earlier life of an agent of ``spec``, which ended a minute before then; how much waits with the agent then."""
    clock = PastClock(until_epoch_s - 60 - 60 * of.minutes)
    past = SimulatedAgent(replace(spec, folder=spec.folder / "past"), common, outbox=agent.outbox, clock=clock)
    with closing(past):
        return live_through(agent, past, clock, round(60 * of.minutes / spec.interval_s), spec.interval_s)


def live_through(agent: SimulatedAgent, past: SimulatedAgent, clock: PastClock, ticks: int, interval_s: float) -> int:
    """Let ``past``, which has the agent's outbox and assignment and ``clock``, tick so often; how much waits then."""
    past.agent.reporter.assigned = agent.agent.reporter.assigned
    for _ in range(ticks):
        past.tick()
        clock.pass_s(interval_s)
    waiting = agent.outbox.peek(1_000_000, 1_000_000_000_000)
    return sum(map(len, waiting.fields.values())) + len(waiting.fresh)


def written_of(folder: Path) -> int:
    """How many items wait in an agent's folder."""
    with closing(sqlite3.connect(folder / "outbox.db")) as database:
        [count] = database.execute("SELECT count(*) FROM waiting").fetchone()
    return int(count)


def know_managers(addresses: Sequence[str], port: int) -> None:
    """Let this process find the managers by their name."""
    ask = socket.getaddrinfo

    def answer(host: Any, *given: Any, **named: Any) -> Any:
        if host != MANAGERS:
            return ask(host, *given, **named)
        shuffled = random.sample(list(addresses), len(addresses))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port)) for one in shuffled]

    socket.getaddrinfo = answer


class FaultDriver:
    """The agents of one process, with the product's own timing of exchanges."""

    def __init__(self, orders: Orders, pool: ThreadPoolExecutor) -> None:
        self._orders, self._pool = orders, pool
        self._url = f"http://{MANAGERS}:{orders.port}"
        self._common = Common.drawn(orders.hosts[0])
        self._networks = {host: WatchedNetwork(self._url, host) for host in orders.hosts}
        self._agents = {host: self._agent(host, network) for host, network in self._networks.items()}
        self._ticks: list[tuple[str, float]] = []
        self._ticking: set[str] = set()
        self._begun_epoch_s = time.time()

    def _agent(self, host: str, network: WatchedNetwork) -> SimulatedAgent:
        return SimulatedAgent(
            self._spec(host, self._orders.folder / host), self._common, network=network, sync_s=SYNC_S
        )

    def _spec(self, host: str, folder: Path) -> AgentSpec:
        return AgentSpec(self._url, self._orders.token, host, self._orders.vms, self._orders.interval_s, folder)

    def begin(self) -> None:
        """All report for the first time, and then by themselves."""
        agents = self._agents.values()
        list(self._pool.map(lambda one: one.agent.reporter.sync(), agents))
        list(self._pool.map(self._tick, self._agents))
        list(self._pool.map(lambda one: one.agent.reporter.exchange(), agents))  # the first report is the longest
        for one in agents:
            one.agent.reporter.start()

    def _tick(self, host: str) -> None:
        try:
            self._agents[host].tick()
            self._ticks.append((host, time.monotonic()))
        finally:
            self._ticking.discard(host)

    def run(self, pipe: Connection) -> None:
        """Tick until told something else; say how much waits when asked, or when a history is made."""
        begun_s, interval_s, hosts = time.monotonic(), self._orders.interval_s, self._orders.hosts
        due = [(begun_s + interval_s * place / len(hosts), host) for place, host in enumerate(hosts)]
        making: Future[int] | None = None
        with ThreadPoolExecutor(1) as maker:  # one of its own, so that ticks do not wait for it
            while True:
                if pipe.poll(max(due[0][0] - time.monotonic(), 0)):
                    order = pipe.recv()
                    if isinstance(order, History):
                        making = maker.submit(self._make, order)
                    elif isinstance(order, HowMuchWaits):
                        making = maker.submit(self._waits)
                    else:
                        return
                if making is not None and making.done():
                    pipe.send(making.result())
                    making = None
                if due[0][0] <= time.monotonic():
                    at_s, host = due[0]
                    heapq.heapreplace(due, (at_s + interval_s, host))
                    if host not in self._ticking:  # an agent leaves out a tick that is due while one runs
                        self._ticking.add(host)
                        self._pool.submit(self._tick, host)

    def _make(self, order: History) -> int:
        """An earlier life of each agent; how much waits then, of all."""
        return sum(
            give_history(agent, self._spec(host, self._orders.folder / host), self._common, order, self._begun_epoch_s)
            for host, agent in self._agents.items()
        )

    def _waits(self) -> int:
        return sum(written_of(self._orders.folder / host) for host in self._agents)

    def end(self) -> Seen:
        """Deliver what is left, and say what was seen."""
        for one in self._agents.values():
            one.agent.reporter.stop()
        waiting = 0
        for one in self._agents.values():
            waiting += _deliver(one)
            one.close()
        acknowledged = Keys()
        for network in self._networks.values():
            network.read()
            acknowledged.add(network.acknowledged)
        exchanges = [exchange for network in self._networks.values() for exchange in network.exchanges]
        refused = sum(one.refused for one in self._networks.values())
        return Seen(exchanges, self._ticks, acknowledged, refused, waiting)


def drive(orders: Orders, pipe: Connection) -> None:
    """Run agents until told to stop, deliver what is left, and send what was seen."""
    logging.getLogger("manager").setLevel(logging.ERROR)  # that no manager answers is what is wanted
    begin_process()
    know_managers(orders.addresses, orders.port)
    with ThreadPoolExecutor(THREADS) as pool:
        driver = FaultDriver(orders, pool)
        driver.begin()
        pipe.send(None)
        driver.run(pipe)
    pipe.send(driver.end())


def _deliver(agent: SimulatedAgent) -> int:
    """Report all that waits; 1 where something still does, else 0."""
    for _ in range(_LAST_TRIES):
        agent.agent.reporter.sync()
        if not agent.outbox.peek(1, 1_000_000).last:
            return 0
        time.sleep(0.2)
    return 1
