"""What the agent sees of its own clock and loop: jumps, suspend, and ticks that do not come any more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from manager.clocks import Times
from manager.loop.watches import Oversight
from manager.model.records import Severity


@dataclass
class Watched:
    """A loop that ticks once in 5 s, and the clocks of its machine."""

    now: Times = field(default_factory=lambda: Times(1.8e9, 1000.0, 1500.0))
    said: list[tuple[Severity, str, str]] = field(default_factory=list)
    jumps: int = 0

    def __post_init__(self) -> None:
        self.oversight = Oversight(5.0, lambda *event: self.said.append(event), self._jumped, lambda: self.now)

    def _jumped(self) -> None:
        self.jumps += 1

    def seconds(self, count: int, *, ticks: bool = True) -> None:
        for second in range(count):
            now = self.now
            self.now = Times(now.wall_s + 1, now.monotonic_s + 1, now.boot_s + 1)
            if ticks and second % 5 == 0:
                self.oversight.ticked()
            self.oversight.look()

    def kinds(self) -> list[str]:
        return [kind for _, kind, _ in self.said]


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0, -31_536_000.0, 31_536_000.0])
def test_a_clock_that_is_set_is_told_of_once_and_stalls_nothing(jump_s: float) -> None:
    watched = Watched()
    watched.seconds(20)
    watched.now = replace(watched.now, wall_s=watched.now.wall_s + jump_s)
    watched.seconds(20)
    [(severity, kind, message)] = watched.said
    assert (severity, kind, watched.jumps) == (Severity.WARNING, "clock-jumped", 1)
    assert message.startswith(f"the wall clock was set {abs(jump_s):.0f} s (")
    assert ("ahead" if jump_s > 0 else "back") in message


def test_suspend_is_told_of_as_such() -> None:
    """As the kernel shows it: CLOCK_MONOTONIC stood still, CLOCK_BOOTTIME and the wall clock went on."""
    watched = Watched()
    watched.seconds(10)
    watched.now = replace(watched.now, wall_s=watched.now.wall_s + 5000, boot_s=watched.now.boot_s + 5000)
    watched.seconds(10)
    assert [(kind, message) for _, kind, message in watched.said] == [
        ("clock-jumped", "resumed after 5000 s (83.3 min) of suspend; control goes on")
    ]


def test_a_loop_that_stands_still_is_told_of_when_it_begins_and_when_it_ends() -> None:
    watched = Watched()
    watched.seconds(20)
    assert watched.oversight.stalled_s is None
    watched.seconds(11, ticks=False)
    assert (watched.oversight.stalled_s, watched.said) == (None, []), "15 s are not over"
    watched.seconds(30, ticks=False)
    assert watched.oversight.stalled_s == watched.oversight.age_s == 45
    assert [(severity, kind) for severity, kind, _ in watched.said] == [(Severity.ERROR, "loop-stalled")]
    watched.seconds(10)
    assert watched.kinds() == ["loop-stalled", "loop-resumed"]
    assert watched.said[1][2] == "ticks go on; there was none for 46.0 s"
    watched.seconds(40, ticks=False)
    assert watched.kinds() == ["loop-stalled", "loop-resumed", "loop-stalled"], "again"


def test_a_process_that_was_stopped_tells_that_it_did_not_tick() -> None:
    """SIGSTOP, or a virtual machine that was paused: all clocks went on, and nothing ran."""
    watched = Watched()
    watched.seconds(10)
    now = watched.now
    watched.now = Times(now.wall_s + 60, now.monotonic_s + 60, now.boot_s + 60)
    watched.seconds(10)
    assert watched.kinds() == ["loop-stalled", "loop-resumed"]


def test_short_intervals_do_not_stall_within_a_second() -> None:
    now = [Times(1.8e9, 1000.0, 1500.0)]
    oversight = Oversight(0.2, lambda *_: None, read=lambda: now[0])
    now[0] = Times(1.8e9 + 0.9, 1000.9, 1500.9)
    assert oversight.stalled_s is None
    now[0] = Times(1.8e9 + 1.1, 1001.1, 1501.1)
    assert oversight.stalled_s == pytest.approx(1.1)
