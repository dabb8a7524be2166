"""The simulated host's groups answer as the kernel's do."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from manager.errors import HostError, VmVanished
from manager.host.port import CachePort
from manager.model.cache import DEFAULT, BandwidthUnit, Slot
from manager.model.host import VmInstance
from manager.sim.live import LiveSimulation
from manager.sim.memory_bus import MONITORS
from manager.sim.scenario import BatchSpec, CacheSpec, Fault, FaultKind, MemoryUse
from manager.sim.sim_host import SimHost
from manager.sim.world import World
from tests.sim.build import app, scenario
from tests.sim.test_host import instance

MIB = float(1 << 20)
SPEC = CacheSpec(12, MIB, 40.0, domains=2, minimum_ways=2, shareable_ways=2, closids=3, rmids=5)
HOGS = BatchSpec("hog", vms=2, memory=MemoryUse(1e9, 0.5, 4.0))
FAULTS = (Fault(FaultKind.VM_RESTART, 10, 5, "hog-1"), Fault(FaultKind.WRITE_ERROR, 30, 5, "hog-2"))
MINE, OTHER = "equipoise-shop", "equipoise-+batch"
L3, MB = Slot("L3", 0), Slot("MB", 0)


def made(spec: CacheSpec = SPEC) -> tuple[World, SimHost, CachePort]:
    world = World(scenario(app(vcpus=2), pcpus=4, batch=(HOGS,), cache=spec, faults=FAULTS))
    host = SimHost(world)
    assert host.cache is not None
    return world, host, host.cache


def refused(number: int) -> pytest.RaisesExc[HostError]:
    return pytest.RaisesExc(HostError, check=lambda error: error.errno == number)


def test_what_is_offered_is_the_scenarios() -> None:
    _, host, cache = made()
    offered = cache.offered(host.capabilities.online_cpus)
    assert offered is not None
    [l3], [mb] = offered.caches, offered.bandwidths
    assert (l3.ways.ways, l3.minimum, str(l3.shareable), l3.way_bytes) == (12, 2, "c00", ((0, 1 << 20), (1, 1 << 20)))
    assert (mb.least, mb.step, mb.most, offered.closids) == (10, 10, 100, 3)
    assert offered.monitoring is not None
    assert cache.domains() == {0: {0, 1}, 1: {2, 3}}
    assert SimHost(World(scenario())).cache is None
    bare = made(replace(SPEC, mba=None, rmids=0))[2].offered(frozenset())
    assert bare is not None
    assert (bare.bandwidths, bare.monitoring) == ((), None)
    amd = made(replace(SPEC, mba=BandwidthUnit.EIGHTH_GBPS))[2].offered(frozenset())
    assert amd is not None
    assert amd.bandwidths[0].most == 2048


def test_groups_are_made_written_and_removed_with_the_kernels_errors() -> None:
    _, host, cache = made()
    cache.create(MINE)
    assert cache.groups()[MINE].values == cache.groups()[DEFAULT].values, "all there is"
    assert cache.write(MINE, {L3: 0x3, MB: 41}) == {L3: 0x3, MB: 50}
    assert cache.groups()[MINE].values[L3] == 0x3
    for number, values in ((errno.EINVAL, {L3: 0x5}), (errno.EINVAL, {L3: 0x1}), (errno.EINVAL, {Slot("L3", 7): 0x3})):
        with refused(number):
            cache.write(MINE, {MB: 10, **values})
    assert cache.groups()[MINE].values[MB] == 50, "all or nothing"
    cache.create(OTHER)
    for number, name in ((errno.EEXIST, MINE), (errno.ENOSPC, "equipoise-x"), (errno.EPERM, "pqos")):
        with refused(number):
            cache.create(name)
    cache.move(MINE, instance(host))
    cache.remove(MINE)
    cache.remove(MINE)
    assert cache.groups().keys() == {DEFAULT, OTHER}
    assert cache.threads(instance(host)) <= cache.tasks(DEFAULT)
    with refused(errno.ENODEV):
        cache.write(MINE, {L3: 0x3})


def test_a_vm_is_in_one_group_with_all_its_threads_until_it_ends() -> None:
    world, host, cache = made()
    cache.create(OTHER)
    hog = instance(host, "hog-1")
    assert cache.move(OTHER, hog) == 2
    assert cache.tasks(OTHER) == cache.threads(hog, afresh=True)
    assert cache.tasks(OTHER).isdisjoint(cache.tasks(DEFAULT))
    world.run_until(20.0)
    with pytest.raises(VmVanished):
        cache.threads(hog)
    with pytest.raises(VmVanished):
        cache.move(OTHER, hog)
    assert cache.tasks(OTHER) == frozenset(), "the new process is in the default group"
    assert cache.threads(instance(host, "hog-1")) <= cache.tasks(DEFAULT)
    world.run_until(31.0)
    with refused(errno.EIO):
        cache.move(OTHER, instance(host, "hog-2"))


def moved(cache: CachePort, path: str) -> int:
    return sum(one.total_bytes or 0 for one in cache.uses([path])[path])


def test_counters_are_of_monitoring_groups_and_of_all_that_is_inside() -> None:
    world, host, cache = made(replace(SPEC, rmids=4))
    path = f"{OTHER}/{MONITORS}/equipoise-hog-2"
    with refused(errno.ENOENT):
        cache.create(path)
    cache.create(OTHER)
    cache.create(path)
    cache.create(f"{MONITORS}/equipoise-shop")
    with refused(errno.ENOSPC):
        cache.create(f"{MONITORS}/equipoise-hog-1")
    assert cache.monitored(["", OTHER]) == {"": {"equipoise-shop"}, OTHER: {"equipoise-hog-2"}}
    hog = instance(host, "hog-2")
    cache.move(path, hog)
    assert cache.tasks(OTHER) == cache.threads(hog)
    world.run_until(9.0)
    assert moved(cache, path) > 1e9
    assert moved(cache, OTHER) == moved(cache, path)
    assert moved(cache, DEFAULT) > 1e9, "the other one"
    assert sum(one.occupancy_bytes or 0 for one in cache.uses([path])[path]) > MIB
    cache.remove(path)
    assert cache.uses([path]) == {}
    assert moved(cache, OTHER) == 0, "what it counted went with it"
    assert cache.tasks(OTHER) == cache.threads(hog)


def test_nothing_is_measured_where_nothing_is_offered() -> None:
    _, _, cache = made(replace(SPEC, rmids=0))
    assert (cache.monitored([""]), cache.uses([""])) == ({}, {})
    with refused(errno.ENOENT):
        cache.create(f"{MONITORS}/equipoise-shop")


def test_it_is_always_mounted() -> None:
    cache = made()[2]
    assert not cache.mount()
    with refused(errno.EBUSY):
        cache.unmount()


def test_a_live_one_goes_with_the_clock() -> None:
    now = [1000.0]
    world = scenario(app(), pcpus=4, batch=(HOGS,), cache=SPEC)
    live = LiveSimulation(world, 4.0, lambda: now[0])
    cache = live.host.cache
    assert cache is not None
    now[0] += 5
    first = moved(cache, DEFAULT)
    now[0] += 5
    assert moved(cache, DEFAULT) == pytest.approx(2 * first, rel=0.2)
    cache.create(OTHER)
    hog: VmInstance = next(one for one in live.host.running().values() if one.libvirt_name == "hog-1")
    cache.move(OTHER, hog)
    assert cache.tasks(OTHER) == cache.threads(hog)
    cache.write(OTHER, {L3: 0x3})
    assert cache.groups()[OTHER].values[L3] == 0x3
    assert cache.monitored([OTHER]) == {OTHER: frozenset()}
    cache.remove(OTHER)
    cache.close()
    assert cache.domains() == {0: {0, 1}, 1: {2, 3}}
    assert cache.offered(frozenset()) is not None
    assert not cache.mount()
    with refused(errno.EBUSY):
        cache.unmount()
