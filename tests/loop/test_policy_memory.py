"""What a policy keeps: there before anything is written, and found when the agent starts again on the same kernel."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.errors import JournalError
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.decision import Decision, Memory, Snapshot, WeightGoal
from manager.model.limits import EVERYTHING
from manager.model.problem import ProblemKind
from policies.base import Policy
from policies.priority import POLICY as PRIORITY
from tests.loop.conftest import Rig


@dataclass(frozen=True)
class Counting:
    """A third party's, which gives all VMs as much weight as it has decided times."""

    name: str = "counting"
    summary: str = "It counts."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        times = 1 + (memory if isinstance(memory, int) else 0)
        return Decision(tuple(WeightGoal(vm.name, 100 + times, "counted") for vm in snapshot.vms), times)

    def keep(self, memory: Memory) -> str:
        return str(memory)

    def recall(self, text: str, now_s: float) -> Memory:
        assert now_s > 0
        return int(text)


class CountingRig(Rig):
    """With that policy, on a kernel that may become another one."""

    def start(self) -> None:
        super().start()
        policies: dict[str, Policy] = {"counting": Counting(), "priority": PRIORITY}
        settings = LoopSettings("h1", 1.0, 30.0, 20)
        self.loop = ControlLoop(self.host, self.journal, policies, settings, self.clock, limits=EVERYTHING)


@pytest.fixture
def counting(tmp_path: Path) -> CountingRig:
    made = CountingRig(tmp_path)
    made.host.boot("web")
    made.register("web")
    made.control(policy="counting")
    return made


def test_it_goes_on_from_there_after_a_crash_and_after_another_policy(counting: CountingRig) -> None:
    counting.tick()
    counting.tick()
    assert counting.value("web") == 102
    counting.crash()
    counting.tick()
    assert counting.value("web") == 103
    counting.control(policy="priority")
    counting.tick()
    counting.control(policy="counting")
    counting.tick()
    assert counting.value("web") == 104


def test_on_another_kernel_it_begins_anew(counting: CountingRig) -> None:
    counting.journal.note_policy_memory("counting", "5.10", "7")
    counting.tick()
    assert counting.value("web") == 101
    kernel = counting.host.capabilities.kernel
    assert counting.journal.policy_memories == {"counting": (kernel, "1")}


def test_what_is_not_understood_is_told_and_it_begins_anew(
    counting: CountingRig, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = counting.host.capabilities.kernel
    counting.journal.note_policy_memory("counting", kernel, "many")
    with caplog.at_level(logging.WARNING):
        assert not counting.tick().problems
    assert counting.value("web") == 101
    assert "'counting' begins anew" in caplog.text


def test_it_is_kept_before_anything_is_written(counting: CountingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    counting.tick()
    monkeypatch.setattr(counting.host, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        counting.tick()
    monkeypatch.undo()
    assert counting.value("web") == 101
    counting.crash()
    counting.tick()
    assert counting.value("web") == 103, "the second decision is known of"


def test_a_journal_that_refuses_is_told_and_control_goes_on(
    counting: CountingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise JournalError("disk full")

    monkeypatch.setattr(counting.journal, "note_policy_memory", full)
    result = counting.tick()
    assert [(problem.kind, problem.text) for problem in result.problems] == [
        (ProblemKind.JOURNAL, "policy 'counting' forgets when the agent ends: disk full")
    ]
    assert counting.value("web") == 101
