"""What VMs use and how they fare, as the last reports of their hosts have it: in the hosts' rows, new all the time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.control.power_shares import vm_watts
from manager.model.costs import HostCosts
from manager.model.energy import HostPower
from manager.model.fields import adapter_of
from manager.model.job import BatchVm
from manager.model.resource_use import VmResources
from manager.store.last_ticks import json_text
from manager.store.models import HostRow
from manager.store.row_writes import is_one_of
from manager.store.vm_shares import StoredShares, VmShares, read_shares


@dataclass(frozen=True, slots=True)
class ReportedUse:
    """The use of a host by its VMs, by their names; ``batch``: how batch VMs fare; ``power`` None: not measured."""

    host: str
    shares: VmShares
    resources: Mapping[str, VmResources]
    batch: Mapping[str, BatchVm]
    power: ReportedPower | None

    def of(self, vm: str, stored: StoredShares) -> VmReport:
        """The use by a VM; ``stored`` is what the row of its status has."""
        shares = self.shares.newest(vm, stored)
        watts = None if self.power is None else self.power.of(shares.used)
        return VmReport(self.host, shares, self.resources.get(vm), self.batch.get(vm), watts)


class VmReport(NamedTuple):
    """The use of a host by a VM. None: little or not known, see ``VmOut``."""

    host: str
    shares: StoredShares
    resources: VmResources | None
    batch: BatchVm | None
    power_watts: float | None


@dataclass(frozen=True, slots=True)
class ReportedPower:
    """The power of a host, and by what it is divided: see ``vm_watts``."""

    watts: float
    idle_part: float
    busy_share: float

    def of(self, cpu_share: float) -> float:
        """The part of a VM."""
        return round(vm_watts(self.watts, self.idle_part, self.busy_share, cpu_share), 2)


@dataclass(frozen=True, slots=True)
class _Resources:
    vms: tuple[VmResources, ...] = ()
    __pydantic_config__: ClassVar = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class _Tick:
    """What a tick has of VMs: the rest is not even made into objects."""

    host_cpu_share: float
    resources: _Resources | None = None
    batch_vms: tuple[BatchVm, ...] = ()
    power: HostPower | None = None
    __pydantic_config__: ClassVar = ConfigDict(extra="ignore")


_NO_TICK = _Tick(0.0)


def read_use(session: Session, hosts: Collection[str]) -> dict[str, ReportedUse]:
    """The use of these hosts, by name."""
    if not hosts:
        return {}
    columns = HostRow.name, HostRow.shares, HostRow.costs, json_text(HostRow.tick)
    rows = session.execute(select(*columns).where(is_one_of(session, HostRow.name, hosts)))
    return {row[0]: _use_of(*row) for row in rows}


def _use_of(host: str, shares: str | None, costs: HostCosts, reported: str | None) -> ReportedUse:
    tick = _NO_TICK if reported is None else adapter_of(_Tick).validate_json(reported)
    watts = tick.power.watts if tick.power else None
    power = None if watts is None else ReportedPower(watts, costs.idle_part, tick.host_cpu_share)
    resources = {use.vm: use for use in (tick.resources.vms if tick.resources else ())}
    return ReportedUse(host, read_shares(shares), resources, {vm.vm: vm for vm in tick.batch_vms}, power)
