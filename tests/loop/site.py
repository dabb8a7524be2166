"""Agents of two hosts and one manager, all of them real but for kernel, sources and network."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.observer import Clock, LoopSettings
from manager.loop.outbox import Outbox
from manager.loop.tick import ControlLoop
from manager.loop.watches import FindingsWatch
from manager.model.decision import Decision, Memory, Snapshot
from manager.model.limits import EVERYTHING
from manager.model.window import Window
from manager.protocol.client import ManagerClient
from manager.store.database import Database
from manager.store.tokens import Role, create_token
from policies.equal import POLICY as EQUAL
from policies.installed import InstalledPolicy
from policies.priority import POLICY as PRIORITY
from tests.fakes.examiner import FakeExaminer
from tests.fakes.host import FakeHost
from tests.fakes.manager import Wire
from tests.fakes.migrator import FakeMigrator
from tests.fakes.telemetry import FakeTelemetry

START_S = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
SLOT_S = 5.0


@dataclass
class Watched:
    """The policy `priority`, keeping what it saw."""

    name: str = "priority"
    summary: str = "watched"
    seen: list[Snapshot] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        self.seen.append(snapshot)
        return PRIORITY.decide(snapshot, memory)


class Machine:
    """A host with its agent, which finds what an earlier one left in ``folder``."""

    def __init__(self, site: Site, name: str, folder: Path, stack: ExitStack) -> None:
        self.name = name
        self.host = FakeHost()
        self.migrator = FakeMigrator(self.host)
        self.telemetry = FakeTelemetry()
        self.policy = Watched()
        self.metrics = AgentMetrics()
        self.examiner = FakeExaminer()
        self.findings = FindingsWatch(self.examiner)
        folder.mkdir(exist_ok=True)
        journal, self.outbox = Journal(folder / "journal.db", "boot-1"), Outbox(folder / "outbox.db", 1000)
        client = ManagerClient("http://manager", site.secret, Wire(site.handle))
        for one in (journal, self.outbox, client):
            stack.callback(one.close)
        policies = {"priority": self.policy, "equal": EQUAL}
        loop = ControlLoop(
            self.host,
            journal,
            policies,
            LoopSettings(name, SLOT_S, 30.0, 1),
            lambda: Clock(site.now_s, site.now_s),
            limits=EVERYTHING,
        )
        self.agent = Agent(
            loop,
            self.outbox,
            ManagerLink(client, name, "0.1.0", folder / "assignment.json", self.outbox),
            self.metrics,
            telemetry=self.telemetry,
            findings=self.findings,
            sync_s=1.0,
            migrator=self.migrator,
        )

    def window(self) -> Window | None:
        """The latest window of ``shop`` that the policy saw at the last tick."""
        [view] = self.policy.seen[-1].applications
        return view.window

    def slots(self) -> list[tuple[float, int]]:
        """End (seconds after the start) and samples of each slot that the policy saw at the last tick."""
        [view] = self.policy.seen[-1].applications
        return [(one.end_s - START_S, one.histogram.count) for one in view.slots]


@dataclass
class Site:
    """Manager and hosts; time passes when told."""

    database: Database
    folder: Path
    stack: ExitStack
    now_s: float = START_S
    up: bool = True
    small_fleet: int = 20
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        policies = {policy.name: InstalledPolicy(policy, "equipoise") for policy in (EQUAL, PRIORITY)}
        context = ManagerContext(
            self.database,
            policies,
            30,
            1,
            slot_s=SLOT_S,
            clock=lambda: self.now_s,
            small_fleet=self.small_fleet,
        )
        self.app = create_app(context)
        with self.database.registering() as session:
            _, self.secret = create_token(session, "admin", Role.ADMIN, None, context.now())
        self.client = ManagerClient("http://manager", self.secret, Wire(self.handle))
        self.stack.callback(self.client.close)
        self.machines = [Machine(self, name, self.folder / name, self.stack) for name in ("a", "b")]

    def handle(self, request: httpx.Request) -> httpx.Response:
        """The network between all of them."""
        self.requests.append(f"{request.method} {request.url.path}")
        self.bodies.append(request.content)
        if not self.up:
            raise httpx.ConnectError("Connection refused", request=request)
        response = self.app.test_client().open(
            str(request.url.raw_path, "ascii"),
            method=request.method,
            data=request.content,
            headers=dict(request.headers),
            buffered=True,
        )
        return httpx.Response(response.status_code, headers=dict(response.headers), content=response.data)

    def pass_slot(self) -> None:
        """A slot ends; each agent makes the exchanges of an interval, one after the other, and its tick."""
        self.now_s += SLOT_S
        for machine in self.machines:
            machine.agent.reporter.sync()
        for machine in self.machines:
            machine.agent.reporter.sync()
        for machine in self.machines:
            machine.agent.tick()

    def windows(self) -> list[tuple[float, int]]:
        """End (seconds after the start) and samples of each window that the manager has, oldest first."""
        items = self.client.get("/applications/shop/windows")["items"]
        return [(datetime.fromisoformat(one["end"]).timestamp() - START_S, one["count"]) for one in items[::-1]]
