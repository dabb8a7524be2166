"""An hour that a simulated host has already had: its agent's control loop runs through it at once, and reports it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

from manager import __version__
from manager.cli.options import AGENT_TOKEN_FILE
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink, Report
from manager.loop.observer import Clock, LoopSettings
from manager.loop.outbox import Outbox
from manager.loop.status import tick_record
from manager.loop.tick import ControlLoop
from manager.model.limits import EVERYTHING
from manager.sim.live import LiveSimulation
from manager.sim.scenario_files import load_scenario
from manager.sim.simulation import MIN_SAMPLES, STALE_S
from policies.installed import load_policies
from tests.e2e.service import Service

_AT_ONCE = 100


@dataclass(slots=True)
class _Time:
    now_s: float

    def clock(self) -> Clock:
        return Clock(self.now_s, self.now_s)


def live_through(service: Service, begin_s: float, end_s: float) -> None:
    """Report what the scenario's host, with its policy as registered, does from ``begin_s`` to ``end_s`` (epoch).

    Its ticks come when slots end, as those of the real agent do.
    """
    interval_s, folder = service.interval_s, service.folder / "past"
    folder.mkdir()
    time = _Time(math.ceil(begin_s / interval_s) * interval_s)
    live = LiveSimulation(load_scenario(service.scenario), service.speed, now=lambda: time.now_s)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(service.client(service.token(AGENT_TOKEN_FILE))))
        outbox = stack.enter_context(contextlib.closing(Outbox(folder / "outbox.db", 1_000_000)))
        journal = stack.enter_context(contextlib.closing(Journal(Path(":memory:"), live.host.boot_id)))
        link = ManagerLink(client, service.host, __version__, folder / "assignment.json", outbox)
        orders = link.fetch().assignment
        assert orders is not None
        live.telemetry.configure(orders.applications, interval_s, {}, {})
        policies = {name: found.policy for name, found in load_policies().items()}
        settings = LoopSettings(service.host, interval_s, STALE_S, MIN_SAMPLES)
        loop = ControlLoop(live.host, journal, policies, settings, time.clock, limits=EVERYTHING)
        for number in range(int((end_s - time.now_s) / interval_s)):
            time.now_s += interval_s
            result = loop.tick(orders, live.telemetry.slots())
            outbox.put([*result.records, *result.events, tick_record(result), *live.telemetry.closed()])
            if number % _AT_ONCE == 0:
                link.send(Report(None, None, None))
        link.send(Report(None, None, None))
