"""``"warp": "on"`` where the kernel has only slices, which were measured to make response times longer."""

from __future__ import annotations

from dataclasses import replace

from manager.model.registration import Application, Sla, Tier
from manager.model.warp import Mechanism, WarpUse
from tests.loop.conftest import Rig


def test_on_sets_no_slice(rig: Rig) -> None:
    rig.host.mechanisms = (Mechanism.SLICE,)
    rig.host.boot("web", 2)
    rig.host.boot("hog")
    rig.register("web")
    rig.register("hog", "batch")
    rig.assignment = replace(rig.assignment, applications=(Application("shop", (Tier("web", ("web",)),), Sla(10.0)),))
    rig.control(pinning=False, warp=WarpUse.ON)
    before = {uuid: dict(vm.slices) for uuid, vm in rig.host.vms.items()}
    rig.tick()
    rig.tick()
    assert {uuid: dict(vm.slices) for uuid, vm in rig.host.vms.items()} == before
