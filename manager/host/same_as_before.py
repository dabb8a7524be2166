"""The state of a VM of which nothing but its counters changed: mostly so, and there are many in each tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from manager.host.thread_times import VmTimes
from manager.host.write_watch import WriteWatch
from manager.model.cpus import CpuSet
from manager.model.host import VmState

_REST = VmState._fields.index("emulator_cpus")
_state: Callable[[Iterable[object]], VmState] = partial(tuple.__new__, VmState)
"""As VmState._make, at half the cost."""


class SameAsBefore:
    """What a VM's next readings have in common with the last one while nothing but its counters changes."""

    __slots__ = (
        *("_cpu_ns", "_cpus", "_indexes", "_instance", "_left"),
        *("_rest", "_times", "_total", "_watch", "_weight", "readings"),
    )

    def __init__(
        self,
        watch: WriteWatch,
        times: VmTimes,
        vcpus: tuple[tuple[int, ...], tuple[CpuSet, ...]],
        state: VmState,
        cpu_ns: Callable[[], int],
        most: int,
    ) -> None:
        """``vcpus``: their numbers and affinities; ``cpu_ns`` reads that of the VM; ``most``: so many readings."""
        self._watch, self._total, self._times = watch, watch.total, times
        self._indexes, self._cpus = vcpus
        self._instance, self._weight, self._rest = state.instance, state.weight, state[_REST:]
        self._cpu_ns = cpu_ns
        self._left = most
        self.readings = 0

    def read(self) -> VmState | None:
        """One more reading; None: it has to be made. Raises what ``cpu_ns`` raises."""
        if self._watch.total != self._total or self.readings >= self._left:
            return None
        vcpus = self._times.states(self._indexes, self._cpus)
        if vcpus is None:
            return None
        state = _state((self._instance, self._cpu_ns(), self._weight, vcpus, *self._rest))
        self.readings += 1
        return state
