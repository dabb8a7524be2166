"""cpu.idle: what the kernel makes of it and of the weight beside it (Documentation/admin-guide/cgroup-v2.rst).

Written through the agent's host layer, but where that could not write such a value.

The order of writes follows from this: the weight is lost when a group becomes idle, none can be written while it is,
and leaving gives the kernel's default. So to undo: idle first, then the weight.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from manager.errors import HostError, VmVanished
from manager.host.kernel_host import KernelHost
from manager.model.knobs import Knob, KnobKey
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, Place, Vm, open_host, scope_name, try_write

# What cpu.weight shows of an idle group, whose weight is 3/1024 of the default: 0 on 6.1; on 6.12 and
# 7.3 the range's least, where it cannot be told from a weight of 1 without looking at cpu.idle.
SHOWN = 1 if tuple(map(int, platform.release().split(".")[:2])) >= (6, 12) else 0


@contextmanager
def opened(vm: Vm) -> Iterator[KernelHost]:
    host = open_host(vm)
    yield host
    host.forget(frozenset())


def put(vm: Vm, knob: Knob, value: int) -> int:
    """Write a knob as the agent does; 0 or the errno. What is read back is what was written."""
    with opened(vm) as host:
        try:
            assert host.write(vm.instance, KnobKey(vm.process.uuid, knob), value) == value
        except HostError as error:
            assert not isinstance(error, VmVanished)
            return error.errno
    return 0


def idle(vm: Vm, value: int) -> int:
    """Enter (1) or leave (0) the idle class; 0 or the errno."""
    return put(vm, Knob.IDLE, value)


def test_a_new_group_is_not_idle(web: Vm) -> None:
    assert web.idle.read_text() == "0\n"


def test_an_idle_group_shows_the_least_weight_and_takes_none(web: Vm) -> None:
    assert try_write(web.weight, 777) == 0
    assert idle(web, 1) == 0
    assert web.idle.read_text() == "1\n"
    assert web.weight.read_text() == f"{SHOWN}\n"
    for weight in (777, 100, 1, 10_000):
        assert put(web, Knob.WEIGHT, weight) == errno.EINVAL
    assert put(web, Knob.WEIGHT, 0) == errno.ERANGE
    assert try_write(web.scope / "cpu.weight.nice", 0) == errno.EINVAL
    assert (web.idle.read_text(), web.weight.read_text()) == ("1\n", f"{SHOWN}\n")


@pytest.mark.parametrize("weight", [1, 777, 10_000])
def test_leaving_idle_gives_the_default_weight(web: Vm, weight: int) -> None:
    assert try_write(web.weight, weight) == 0
    assert idle(web, 1) == 0
    assert idle(web, 0) == 0
    assert (web.idle.read_text(), web.weight.read_text()) == ("0\n", "100\n")
    assert try_write(web.weight, weight) == 0
    assert web.weight.read_text() == f"{weight}\n"


def test_writing_what_it_is_already_keeps_the_weight(web: Vm) -> None:
    assert try_write(web.weight, 777) == 0
    assert idle(web, 0) == 0
    assert web.weight.read_text() == "777\n"
    assert idle(web, 1) == 0
    assert idle(web, 1) == 0
    assert (web.idle.read_text(), web.weight.read_text()) == ("1\n", f"{SHOWN}\n")


@pytest.mark.parametrize("value", [2, -1])
def test_other_values_are_refused(web: Vm, value: int) -> None:
    assert try_write(web.weight, 777) == 0
    assert idle(web, value) == errno.EINVAL
    assert (web.idle.read_text(), web.weight.read_text()) == ("0\n", "777\n")


def test_only_that_group_becomes_idle(web: Vm, batch: Vm) -> None:
    before = (web.settings(), batch.settings())
    assert idle(web, 1) == 0
    changed = {name.rpartition("/")[2] for name, text in web.settings().items() if before[0][name] != text}
    assert changed == {"cpu.idle", "cpu.weight"}
    assert sum(before[0][name] != text for name, text in web.settings().items()) == 2, "the scope's own alone"
    assert batch.settings() == before[1]
    assert idle(web, 0) == 0
    assert web.settings() == before[0]


def test_idle_and_quota_do_not_touch_each_other(web: Vm) -> None:
    assert try_write(web.quota, "50000 100000") == 0
    assert idle(web, 1) == 0
    assert web.quota.read_text() == "50000 100000\n"
    assert try_write(web.quota, "20000 100000") == 0
    assert (web.idle.read_text(), web.quota.read_text()) == ("1\n", "20000 100000\n")
    assert idle(web, 0) == 0
    assert web.quota.read_text() == "20000 100000\n"


def test_the_agent_reads_an_idle_group(web: Vm) -> None:
    """What cpu.weight shows of it (0 on 6.1, outside the range that may be written) is no weight."""
    with opened(web) as host:
        assert (host.read(web.instance).weight, host.read(web.instance).idle) == (100, False)
        assert host.write(web.instance, KnobKey(web.process.uuid, Knob.IDLE), 1) == 1
        state = host.read(web.instance)
        assert (state.weight, state.idle) == (None, True)
        assert KnobKey(web.process.uuid, Knob.WEIGHT) not in state.knobs()
        assert state.cpu_ns > 0


def test_the_host_offers_the_idle_class(web: Vm) -> None:
    with opened(web) as host:
        assert host.capabilities.idle_class


def test_where_the_controller_is_not_enabled_there_is_neither_idle_class_nor_quota(place: Place) -> None:
    plain = CGROUPS / "idleless.slice"
    plain.mkdir(exist_ok=True)
    bare = place(plain / scope_name(8, "spare"))
    with opened(bare) as host:
        state = host.read(bare.instance)
        assert (state.weight, state.idle, state.quota) == (None, None, None)
        assert {key.knob for key in state.knobs()} == {Knob.VCPU_PIN, Knob.EMULATOR_PIN}
    assert put(bare, Knob.IDLE, 1) == errno.ENOENT
    assert put(bare, Knob.QUOTA, 50_000) == errno.ENOENT
