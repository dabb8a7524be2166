"""Uplinks that are divided among VMs, and limits of VMs' taps, in memory. For unit tests only."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

from manager.errors import HostError, VmVanished
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.network import ANOTHER, NO_RATE, USUAL_TURN, EgressGroup, UplinkPort
from tests.fakes.vm import FakeVm

_WITH_CLASS = {EgressGroup.BATCH, EgressGroup.CRITICAL, EgressGroup.CHANGED}
"""Where a VM has a class of its own on an uplink."""


@dataclass(kw_only=True)
class FakeUplinks:
    """The part of ``FakeHost`` that is about the network. ``interfaces`` are the taps of each VM."""

    vms: dict[str, FakeVm] = field(default_factory=dict)
    interfaces: dict[str, frozenset[int]] = field(default_factory=dict)
    ports: dict[int, UplinkPort] = field(default_factory=dict)
    """What may be an uplink, by index."""
    divided: dict[int, int] = field(default_factory=dict)
    """The rate of each uplink that is divided."""
    batch_ceilings: dict[int, int] = field(default_factory=dict)

    def uplinks(self) -> dict[int, UplinkPort]:
        return dict(self.ports)

    def uplink_knobs(self) -> dict[KnobKey, KnobValue]:
        """One that is not divided has no ceiling, which reads like none."""
        other = {index for index, port in self.ports.items() if port.other_qdisc}
        rates = {index: ANOTHER if index in other else self.divided.get(index, 0) for index in self.ports}
        own: dict[KnobKey, KnobValue] = {
            KnobKey(HOST_UUID, Knob.UPLINK_RATE, index): rate for index, rate in rates.items()
        }
        return own | self._batch_ceilings(self.ports)

    def _batch_ceilings(self, uplinks: Iterable[int]) -> dict[KnobKey, KnobValue]:
        held = self.batch_ceilings
        return {KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index): held.get(index, UNLIMITED) for index in uplinks}

    def egress_of_host(self) -> dict[KnobKey, KnobValue]:
        """What can be set now: a ceiling only on an uplink that is divided."""
        gone = self._batch_ceilings(self.ports.keys() - self.divided.keys())
        return {key: value for key, value in self.uplink_knobs().items() if key not in gone}

    def egress_of_vm(self, uuid: str) -> dict[KnobKey, KnobValue]:
        """What can be set now: a turn only where the VM has a class."""
        held = self.egress_groups(uuid, self.divided)
        gone = {index for index in self.divided if not self.has_class(uuid, index)}
        there = {key: value for key, value in held.items() if key.knob is Knob.EGRESS_GROUP or key.index not in gone}
        return {**there, **self.tap_limits(uuid)}

    def has_class(self, uuid: str, uplink: int) -> bool:
        """Whether a VM has a class of its own there."""
        return uplink in self.divided and uuid in self.vms and self.vms[uuid].egress.get(uplink) in _WITH_CLASS

    def tap_limits(self, uuid: str) -> dict[KnobKey, KnobValue]:
        """Of each tap of the VM."""
        held = self.vms[uuid].tap_limits
        return {KnobKey(uuid, Knob.TAP_LIMIT, tap): held.get(tap, NO_RATE) for tap in self.interfaces.get(uuid, ())}

    def egress_groups(self, uuid: str, uplinks: Iterable[int]) -> dict[KnobKey, KnobValue]:
        """A VM without a class has no turn, which reads like the usual one."""
        vm = self.vms[uuid]
        return {
            key: value
            for index in uplinks
            for key, value in (
                (KnobKey(uuid, Knob.EGRESS_GROUP, index), vm.egress.get(index, EgressGroup.OTHERS)),
                (KnobKey(uuid, Knob.EGRESS_TURN, index), vm.turns.get(index, USUAL_TURN)),
            )
        }

    def set_egress(self, key: KnobKey, value: int) -> None:
        """Classes and filters go with the qdisc."""
        index = key.index
        if key.knob is Knob.TAP_LIMIT:
            self.vms[key.uuid].tap_limits[index] = value
        elif key.knob is Knob.UPLINK_RATE:
            if self.ports[index].other_qdisc:
                raise HostError("another tool's qdisc", errno.EBUSY)
            if value > 0:
                self.divided[index] = value
                return
            self.divided.pop(index, None)
            self.batch_ceilings.pop(index, None)
            for vm in self.vms.values():
                vm.egress.pop(index, None)
                vm.turns.pop(index, None)
        elif index not in self.divided:
            raise VmVanished("not divided", errno.ENOENT)
        elif key.knob is Knob.BATCH_EGRESS:
            self.batch_ceilings[index] = value
        elif key.knob is Knob.EGRESS_GROUP:
            self.vms[key.uuid].egress[index] = value
            if value not in _WITH_CLASS:
                self.vms[key.uuid].turns.pop(index, None)
        elif self.has_class(key.uuid, index):
            self.vms[key.uuid].turns[index] = value
        else:
            raise VmVanished("no class", errno.ENOENT)
