"""All knobs of the disks of VMs, as one family."""

from __future__ import annotations

from collections.abc import Iterable

from manager.host.disk_ceilings import DiskCeilings
from manager.host.disk_weights import DiskWeights
from manager.host.knob_files import KnobFiles, VmTarget
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey


class DiskKnobs(KnobFiles):
    """Weights and ceilings."""

    def __init__(self, weights: DiskWeights, ceilings: DiskCeilings) -> None:
        """Both belong to it from then on."""
        self._weights, self._ceilings = weights, ceilings

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        return (*self._weights.keys(vm), *self._ceilings.keys(vm))

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        return {**self._weights.read(vm), **self._ceilings.read(vm)}

    def held(self, key: KnobKey, vm: VmTarget | None) -> KnobValue | None:
        return self._of(key).held(key, vm)

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        self._of(key).put(key, value, vm)

    def forget(self, uuid: str) -> None:
        """Close the files of a VM that ended."""
        self._weights.forget(uuid)
        self._ceilings.forget(uuid)

    def _of(self, key: KnobKey) -> KnobFiles:
        return self._ceilings if key.knob is Knob.DISK_CEILING else self._weights
