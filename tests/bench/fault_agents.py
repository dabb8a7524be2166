"""The agents of ``tests.bench.fleet_faults``: the product's own, with its timing of exchanges, and what they saw."""

from __future__ import annotations

import heapq
import json
import logging
import random
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from manager.protocol.client import Answer
from manager.protocol.client import Connection as HttpConnection
from tests.bench.fleet_agents import THREADS, Common, SimulatedAgent

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
    """A connection that notes each exchange, and what the manager acknowledged."""

    def __init__(self, url: str, host: str) -> None:
        self._connection, self._host = HttpConnection(url), host
        self.exchanges: list[Exchange] = []
        self.acknowledged = Keys()
        self.refused = 0

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """See ``Network``."""
        began_s = time.monotonic()
        try:
            answer = self._connection.exchange(method, target, headers, body)
        except (OSError, HTTPException):
            self._note(began_s, None, body, None)
            raise
        report = answer.status == 200 and target.endswith("/report") and body is not None
        self._note(began_s, answer, body, self._acknowledge(json.loads(body or b""), answer) if report else None)
        return answer

    def _note(self, began_s: float, answer: Answer | None, body: bytes | None, newest_s: float | None) -> None:
        now_s = time.monotonic()
        answered = answer is not None and answer.status < 400
        self.exchanges.append(Exchange(self._host, now_s, now_s - began_s, answered, len(body or b""), newest_s))

    def _acknowledge(self, report: Mapping[str, Any], answer: Answer) -> float | None:
        ticks = [datetime.fromisoformat(tick["at"]) for tick in report["ticks"]]
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


def know_managers(addresses: Sequence[str], port: int) -> None:
    """Let this process find the managers by their name."""
    ask = socket.getaddrinfo

    def answer(host: Any, *given: Any, **named: Any) -> Any:
        if host != MANAGERS:
            return ask(host, *given, **named)
        shuffled = random.sample(list(addresses), len(addresses))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port)) for one in shuffled]

    socket.getaddrinfo = answer


def drive(orders: Orders, pipe: Connection) -> None:
    """Run agents until something is received, deliver what is left, and send what was seen."""
    logging.getLogger("manager").setLevel(logging.ERROR)  # that no manager answers is what is wanted
    know_managers(orders.addresses, orders.port)
    url = f"http://{MANAGERS}:{orders.port}"
    networks = {host: WatchedNetwork(url, host) for host in orders.hosts}
    common = Common.drawn(orders.hosts[0])
    agents = {
        host: SimulatedAgent(
            *(url, orders.token, host, orders.vms, orders.interval_s, orders.folder / host),
            common=common,
            network=network,
            sync_s=SYNC_S,
        )
        for host, network in networks.items()
    }
    ticks: list[tuple[str, float]] = []

    def tick(host: str) -> None:
        agents[host].tick()
        ticks.append((host, time.monotonic()))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda one: one.agent.reporter.sync(), agents.values()))
        list(pool.map(tick, agents))
        list(pool.map(lambda one: one.agent.reporter.exchange(), agents.values()))  # the first report is the longest
        pipe.send(None)
        for one in agents.values():
            one.agent.reporter.start()
        begun_s = time.monotonic()
        count = len(orders.hosts)
        due = [(begun_s + orders.interval_s * place / count, host) for place, host in enumerate(orders.hosts)]
        while not pipe.poll(max(due[0][0] - time.monotonic(), 0)):
            at_s, host = due[0]
            heapq.heapreplace(due, (at_s + orders.interval_s, host))
            pool.submit(tick, host)
    for one in agents.values():
        one.agent.reporter.stop()
    waiting = 0
    for one in agents.values():
        waiting += _deliver(one)
        one.close()
    acknowledged = Keys()
    for network in networks.values():
        acknowledged.add(network.acknowledged)
    exchanges = [exchange for network in networks.values() for exchange in network.exchanges]
    pipe.send(Seen(exchanges, ticks, acknowledged, sum(one.refused for one in networks.values()), waiting))


def _deliver(agent: SimulatedAgent) -> int:
    """Report all that waits; 1 where something still does, else 0."""
    for _ in range(_LAST_TRIES):
        agent.agent.reporter.sync()
        if not agent.outbox.peek(1, 1_000_000).last:
            return 0
        time.sleep(0.2)
    return 1
