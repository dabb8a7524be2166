"""``WaitAlarmPort`` in memory: what the kernel's timer does, in the time of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from manager.model.host import LastWaits, VmInstance, WaitWatch
from manager.model.traffic import Answered
from tests.fakes.host import FakeHost


@dataclass
class FakeWaitAlarm:
    """Samples when ``sample`` is called; ``rings`` once one is above its bound. ``stands_still``: it never does."""

    host: FakeHost
    instances: tuple[VmInstance, ...] = ()
    bounds: tuple[float, ...] = ()
    interval_s: float = 0.0
    at_s: float = 0.0
    waits: tuple[tuple[int, ...], ...] = ()
    last: LastWaits | None = None
    rings: bool = False
    is_true: bool = True
    stands_still: bool = False
    arms: int = 0
    wakes: int = 0
    armed: bool = False
    answering: Callable[[], Answered] | None = None
    """What services have answered now; None: it does not look at that."""
    judges: bool = False
    taken: int = 0
    answered: Answered = field(default_factory=Answered)
    answered_s: float = 0.0

    def arm(self, wanted: WaitWatch, now_s: float) -> bool:
        assert wanted.at_s <= now_s
        self.instances, self.bounds, self.interval_s = wanted.instances, wanted.bounds, wanted.interval_s
        self.at_s, self.waits, self.last = wanted.at_s, wanted.waits, None
        self.rings, self.armed, self.is_true = False, True, True
        self.judges = self.answering is not None and bool(wanted.answered.services)
        self.answered, self.answered_s = wanted.answered, wanted.answered_s
        self.arms += 1
        return True

    def disarm(self) -> LastWaits | None:
        self.armed = self.rings = False
        if self.last is None or not self.is_true:
            return None
        return replace(self.last, answers_s=self.answered_s, answers=tuple(self.answered.counts) if self.judges else ())

    def sample(self, now_s: float) -> None:
        """The next sample, where it is time."""
        if not self.armed or self.rings or self.stands_still or now_s < self.at_s + 0.99 * self.interval_s:
            return
        now, elapsed_ns = tuple(self.host.waits(self.instances)), (now_s - self.at_s) * 1e9
        self.last = LastWaits(self.at_s, now_s, self.instances, self.waits, now)
        for before, later, bound in zip(self.waits, now, self.bounds, strict=True):
            if not later or max(map(int.__sub__, later, before)) > bound * elapsed_ns:
                self.rings = True
        self.at_s, self.waits = now_s, now
        self.taken += 1
        if self.judges and self.answering is not None and self.taken % 2 == 0:
            answered = self.answering()
            pairs = zip(answered.counts, self.answered.counts, strict=True)
            if any(
                now.late != then.late or (now.ended == then.ended and now.asked != then.asked) for now, then in pairs
            ):
                self.rings = True
            else:
                self.answered, self.answered_s = answered, now_s

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        return self.rings

    def wake(self) -> None:
        self.wakes += 1
