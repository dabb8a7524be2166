"""The seam between the control loop and a host: real, simulated, or a fake in tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from manager.model.host import Capabilities, CpuTimes, KnobKey, KnobValue, VmInstance, VmState


class HostPort(Protocol):
    """A KVM host as the control loop sees it. No method blocks on libvirt."""

    @property
    def capabilities(self) -> Capabilities:
        """What the host offers."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the list of running domains is being kept up to date."""
        ...

    @property
    def boot_id(self) -> str:
        """Changes at each boot; settings of an earlier boot are gone."""
        ...

    def running(self) -> Mapping[str, VmInstance]:
        """The running domains by UUID, as last listed."""
        ...

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """IP addresses of running domains by UUID, as last looked up; of some none may be known."""
        ...

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these runs of domains are over; none of those of which that cannot be known."""
        ...

    def read(self, instance: VmInstance) -> VmState:
        """Settings and counters of a VM now. Raises VmVanished, HostError."""
        ...

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob, of a VM or of the host ``itself``, and return what is then read back.

        Raises VmVanished, HostError.
        """
        ...

    @property
    def itself(self) -> VmInstance:
        """Stands for the host in the journal, under HOST_UUID, as long as it runs."""
        ...

    def own_knobs(self) -> Mapping[KnobKey, KnobValue]:
        """The settings of the host itself: where interrupts of network interfaces go. Raises HostError."""
        ...

    def warps(self, instance: VmInstance) -> Mapping[KnobKey, KnobValue]:
        """What a VM has of each mechanism for warps; of the host ``itself``: whether our sched_ext scheduler is loaded.

        A knob that ended, such as with its scheduler or thread, is not among them. Raises VmVanished, HostError.
        """
        ...

    def scheduling(self, instance: VmInstance) -> Mapping[KnobKey, KnobValue]:
        """How a VM's vCPU threads are scheduled, and the limits of the real-time CPU time of its groups.

        With those of the groups above it, which are the host's own, under HOST_UUID; of the host ``itself`` all such
        groups that have some, and as number 0 the root. What ended is not among them. Raises VmVanished, HostError.
        """
        ...

    def warp_counters(self) -> Mapping[str, int]:
        """What our sched_ext scheduler counted, by the names of docs/operations.md. Raises HostError."""
        ...

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Let go of what is held open for instances other than ``keep``."""
        ...

    def cpu_times(self) -> CpuTimes:
        """CPU time of the whole host. Raises HostError."""
        ...
