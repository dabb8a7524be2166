"""A guard beside a loop on a fake host."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from manager.control.guard_law import LEARNT_SAMPLES
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.guard import Guard, GuardSettings, GuardUse
from manager.loop.tick import TickResult
from manager.model.knobs import Knob
from manager.model.records import Severity
from manager.model.traffic import AnswerCount, Answered, JudgedService
from tests.fakes.vm import domain_uuid
from tests.fakes.wait_alarm import FakeWaitAlarm

if TYPE_CHECKING:
    from tests.loop.conftest import Rig

STEP_S = 0.05
SHOP = JudgedService("shop", (1, 80), 0.05, 0.25)
NOTHING = AnswerCount(0, 0, 0, 0)
PERIOD_US = 100_000
HELD_US = round(0.01 * 1.5 * 4 / 2 * PERIOD_US)
"""What two batch VMs have of four pCPUs by a quota: their floor of 1 %, and half as much again."""


@dataclass
class Guarded:
    """A guard beside a rig's loop, whose samples are taken when told."""

    rig: Rig
    use: GuardUse = GuardUse.ON
    events: list[tuple[Severity, str, str]] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)
    answered: AnswerCount = field(default=NOTHING)

    def __post_init__(self) -> None:
        self.metrics = AgentMetrics()
        self.start()

    def start(self) -> None:
        self.guard = Guard(
            self.rig.loop,
            GuardSettings(self.use, STEP_S),
            threading.RLock(),
            say=lambda *event: self.events.append(event),
            crashed=lambda _what, error: self.crashes.append(error),
            metrics=self.metrics,
            answered=self.answers,
        )

    def answers(self) -> Answered:
        return Answered((SHOP,), [self.answered])

    def tick(self) -> TickResult:
        """A tick, a second after the last, and a sample: none was taken meanwhile."""
        result = self.rig.tick()
        self.guard.ticked()
        self.sample()
        return result

    def sample(self) -> None:
        """The guard takes one, or the kernel does and it looks at that."""
        alarm = self.rig.host.wait_alarm
        rings = False
        if isinstance(alarm, FakeWaitAlarm):
            alarm.sample(self.rig.now_s)
            rings = alarm.rings
        self.guard.look(rings)

    def look(self, *waits: float, vm: str = "web") -> None:
        """Samples in which a VM's vCPUs wait so much of the time."""
        for wait in waits:
            self.rig.now_s += STEP_S
            if domain_uuid(vm) in self.rig.host.vms:
                self.rig.host.vms[domain_uuid(vm)].delay_ns += round(wait * STEP_S * 1e9)
            self.sample()

    def answer(self, answers: int, late: int) -> None:
        """The application answers so many, and so many of them late; two samples later that is known."""
        asked, ended, before, late_before = self.answered
        self.answered = AnswerCount(asked + answers, ended + answers, before + answers, late_before + late)
        self.look(0.0, 0.0)

    def learn(self) -> None:
        self.tick()
        self.look(*[0.0] * (LEARNT_SAMPLES + 1))

    def samples(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"equipoise_agent_guard_{name}", labels)

    def values(self, knob: Knob) -> set[object]:
        return {self.rig.value(name, knob) for name in ("b1", "b2")}


def booted(rig: Rig) -> Rig:
    for name in ("web", "b1", "b2", "stranger"):
        rig.host.boot(name)
    rig.register("web")
    rig.register("b1", "batch")
    rig.register("b2", "batch")
    return rig
