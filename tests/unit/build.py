"""Short ways to make snapshots and their parts."""

from __future__ import annotations

from manager.model.decision import Snapshot, VmView
from manager.model.host import CPU_SHARES_V1, Capabilities, WeightScale
from manager.model.registration import HostSpec, Mode, VmClass, VmSpec

ONLINE = frozenset(range(4))


def capabilities(scale: WeightScale | None = CPU_SHARES_V1, version: int = 1) -> Capabilities:
    """A host of four pCPUs."""
    return Capabilities("6.1", "9.0.0", 0 if scale is None else version, scale, ONLINE, ONLINE, True)


def view(
    name: str,
    vm_class: VmClass = VmClass.CRITICAL,
    *,
    vcpus: int = 1,
    mode: Mode = Mode.ENFORCE,
    weight: int | None = 1024,
    own_weight: int | None = None,
) -> VmView:
    """A running VM that holds ``weight`` and is registered with ``own_weight``."""
    return VmView(VmSpec(name, vm_class, weight=own_weight), vcpus, 0.0, 0.0, mode, weight)


def snapshot(*vms: VmView, scale: WeightScale | None = CPU_SHARES_V1, version: int = 1) -> Snapshot:
    """A moment of that host."""
    return Snapshot(1000.0, 5.0, HostSpec("h1"), capabilities(scale, version), vms)
