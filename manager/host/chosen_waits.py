"""Run-queue waits of the vCPUs of some VMs by one call, for the guard, which asks for the same ones again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from manager.bpf import threads
from manager.host.handle import VmHandle
from manager.host.thread_times import ThreadTimes
from manager.model.host import VmInstance


class ChosenWaits:
    """Remembers where the vCPUs of the VMs are that were asked for last."""

    def __init__(self, times: ThreadTimes) -> None:
        self._times = times
        self._of: tuple[tuple[VmInstance, ...], int] = (), -1  # VMs, and holdings
        self.places: list[int] = []
        self._spans: list[tuple[VmInstance, int, int]] = []

    def read(
        self, instances: Sequence[VmInstance], handles: Mapping[VmInstance, tuple[VmHandle, object]]
    ) -> list[tuple[int, ...]]:
        """As ``HostPort.waits``: by files where a VM has no places; empty where the kernel refuses."""
        self._find(instances, handles)
        waits = self._times.waits(self.places)
        if not waits:
            return []
        found: list[tuple[int, ...]] = []
        for instance, begin, end in self._spans:
            if begin == end:
                found.append(handles[instance][0].waits() if instance in handles else ())
            else:
                of_vm = waits[begin:end]
                found.append(() if threads.GONE in of_vm else tuple(of_vm))
        return found

    def counts(
        self, instances: Sequence[VmInstance], handles: Mapping[VmInstance, tuple[VmHandle, object]]
    ) -> list[int]:
        """How many vCPUs of each VM have ``places``, which are those of these VMs from now on."""
        self._find(instances, handles)
        return [end - begin for _, begin, end in self._spans]

    def _find(self, instances: Sequence[VmInstance], handles: Mapping[VmInstance, tuple[VmHandle, object]]) -> None:
        of = tuple(instances), self._times.holdings
        if of != self._of:
            held = [handles[instance][0].vcpu_places if instance in handles else range(0) for instance in instances]
            ends = pairwise(accumulate(map(len, held), initial=0))
            self.places = [place for places in held for place in places]
            self._spans = [(instance, *span) for instance, span in zip(instances, ends, strict=True)]
            self._of = of
