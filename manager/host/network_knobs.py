"""All knobs of networks, as one family."""

from __future__ import annotations

from collections.abc import Iterable

from manager.host.knob_files import KnobFiles, VmTarget
from manager.host.network_shares import NetworkShares
from manager.host.tap_limits import TapLimits
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey


class NetworkKnobs(KnobFiles):
    """Shares of uplinks, and limits of taps."""

    def __init__(self, shares: NetworkShares, limits: TapLimits) -> None:
        """Both belong to it from then on."""
        self._shares, self._limits = shares, limits

    def look(self) -> None:
        """Before a round of readings: what was read before is read anew."""
        self._shares.look()
        self._limits.look()

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        return (*self._shares.keys(vm), *self._limits.keys(vm))

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        return {**self._shares.read(vm), **self._limits.read(vm)}

    def held(self, key: KnobKey, vm: VmTarget | None) -> KnobValue | None:
        return self._of(key).held(key, vm)

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        self._of(key).put(key, value, vm)

    def _of(self, key: KnobKey) -> KnobFiles:
        return self._limits if key.knob is Knob.TAP_LIMIT else self._shares
