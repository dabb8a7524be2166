"""``WaitAlarmPort`` by the timer of the program on threads."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from manager.bpf import tap, threads
from manager.errors import HostError
from manager.host.chosen_waits import ChosenWaits
from manager.host.handle import VmHandle
from manager.host.thread_times import ThreadTimes
from manager.host.wait_timer import NO_ANSWERS, WatchedAnswers
from manager.model.host import LastWaits, VmInstance, WaitWatch
from manager.model.traffic import Answered

_NS = 1e9

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Armed:
    """The VMs, how many vCPUs each of them has, and the ``holdings`` of the times then."""

    instances: tuple[VmInstance, ...]
    counts: tuple[int, ...]
    holdings: int

    def by_vm(self, waits: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """What the vCPUs of each VM waited; nothing of a VM of which one is gone."""
        for begin, end in pairwise(accumulate(self.counts, initial=0)):
            of_vm = tuple(waits[begin:end])
            yield () if threads.GONE in of_vm else of_vm


def _judged(answered: Answered, at_s: float) -> WatchedAnswers:
    """What the kernel is to look at; nothing where that would be too much, or others count."""
    if answered.table is None or not 0 < len(answered.services) <= threads.MOST_JUDGED:
        return NO_ANSWERS
    keys = [tap.KEY.pack(*service.place, 0) for service in answered.services]
    return WatchedAnswers(answered.table, keys, answered.counts, round(at_s * _NS))


class WaitAlarm:
    """Belongs to the control loop, but for ``wait`` and ``wake``."""

    def __init__(
        self, times: ThreadTimes, chosen: ChosenWaits, handles: Mapping[VmInstance, tuple[VmHandle, object]]
    ) -> None:
        """``chosen`` and ``handles``: the host's."""
        self._times, self._chosen, self._handles = times, chosen, handles
        self._armed: _Armed | None = None
        self._refused = False
        self.judges = False
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.epoll()
        self._ready.register(self._woken, select.EPOLLIN)
        self._ready.register(times.timer.descriptor, select.EPOLLIN)
        weakref.finalize(self, os.close, self._woken)

    def arm(self, wanted: WaitWatch, now_s: float) -> bool:
        """See ``WaitAlarmPort``."""
        counts = self._chosen.counts(wanted.instances, self._handles)
        known = [len(of_vm) for of_vm in wanted.waits]
        if self._refused or counts != known or 0 in counts or sum(counts) > threads.MOST_WATCHED:
            return False
        judged = _judged(wanted.answered, wanted.answered_s)
        try:
            self._times.choose(self._chosen.places)
            self._times.timer.start(
                round(wanted.at_s * _NS),
                [wait for of_vm in wanted.waits for wait in of_vm],
                [bound for bound, count in zip(wanted.bounds, counts, strict=True) for _ in range(count)],
                round(wanted.interval_s * _NS),
                round(now_s * _NS),
                judged,
            )
        except HostError as error:
            self._refuse(error)
            return False
        self._armed = _Armed(wanted.instances, tuple(counts), self._times.holdings)
        self.judges = bool(judged.keys)
        return True

    def disarm(self) -> LastWaits | None:
        """See ``WaitAlarmPort``."""
        armed, self._armed = self._armed, None
        if armed is None:
            return None
        try:
            sample = self._times.timer.stop()
        except HostError as error:
            self._refuse(error)
            return None
        if sample is None or armed.holdings != self._times.holdings:
            return None
        return LastWaits(
            sample.from_ns / _NS,
            sample.at_ns / _NS,
            armed.instances,
            tuple(armed.by_vm(sample.before_ns)),
            tuple(armed.by_vm(sample.wait_ns)),
            sample.answers_ns / _NS,
            tuple(sample.answers),
        )

    @property
    def is_true(self) -> bool:
        """Whether what is watched are the threads that were meant when it was armed."""
        return self._armed is None or self._armed.holdings == self._times.holdings

    def wait(self, timeout_s: float) -> bool:
        """See ``WaitAlarmPort``."""
        ready = {descriptor for descriptor, _ in self._ready.poll(max(timeout_s, 0.0))}
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._woken)
        return self._times.timer.descriptor in ready

    def wake(self) -> None:
        """See ``WaitAlarmPort``."""
        os.eventfd_write(self._woken, 1)

    def _refuse(self, error: HostError) -> None:
        log.warning("the guard samples by itself from now on: %s", error)
        self._refused = True
