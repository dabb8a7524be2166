"""The state of a VM of which nothing but its counters changed: mostly so, and there are many in each tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from manager.host.thread_times import VmTimes
from manager.host.write_watch import WriteWatch
from manager.model.cpus import CpuSet
from manager.model.host import VcpuState, VmInstance, VmState

_REST = VmState._fields.index("emulator_cpus")
_state: Callable[[Iterable[object]], VmState] = partial(tuple.__new__, VmState)
"""As VmState._make, at half the cost."""


class SameAsBefore:
    """What a VM's next readings have in common with the last one while nothing but its counters changes."""

    __slots__ = ("_cpus", "_indexes", "_left", "_rest", "_times", "_total", "_watch", "_weight", "readings")

    def __init__(
        self,
        watch: WriteWatch,
        times: VmTimes,
        vcpus: tuple[tuple[int, ...], tuple[CpuSet, ...]],
        state: VmState,
        most: int,
    ) -> None:
        """``vcpus``: their numbers and affinities; ``most``: for so many readings at most."""
        self._watch, self._total, self._times = watch, watch.total, times
        self._indexes, self._cpus = vcpus
        self._weight, self._rest = state.weight, state[_REST:]
        self._left = most
        self.readings = 0

    def vcpus(self) -> tuple[VcpuState, ...] | None:
        """Of one more reading; None: it has to be made."""
        if self._watch.total != self._total or self.readings >= self._left:
            return None
        vcpus = self._times.states(self._indexes, self._cpus)
        self.readings += vcpus is not None
        return vcpus

    def state(self, instance: VmInstance, cpu_ns: int, vcpus: tuple[VcpuState, ...]) -> VmState:
        """With these counters."""
        return _state((instance, cpu_ns, self._weight, vcpus, *self._rest))
