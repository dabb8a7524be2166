"""VMs are moved with all their threads, while threads appear and die."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.resctrl.groups import Moved, group_of_others, move
from manager.model.cache import DEFAULT
from tests.kernel.inside.resctrl.host import THREADS, Host, Vm

OURS, OTHER = "equipoise-shop", "equipoise-mail"
COUNT = len(THREADS) + 1  # and the process's first


def test_all_threads_and_no_others(host: Host) -> None:
    host.groups.create(OURS)
    assert move(host.groups, OURS, lambda: host.threads("shop")) == Moved(COUNT, 0, 2)
    assert host.groups.tasks(OURS) == set(host.threads("shop"))
    assert move(host.groups, OURS, lambda: host.threads("shop")) == Moved(0, 0, 1)
    for thread in host.threads("shop"):
        assert Path(f"/proc/{thread}/cpu_resctrl_groups").read_text() == f"res:{OURS}\nmon:\n"
    assert move(host.groups, DEFAULT, lambda: host.threads("shop")).threads == COUNT
    assert set(host.placed().values()) == {DEFAULT}


def test_hot_plugged_ones_come_into_the_group(host: Host, vms: Mapping[str, Vm]) -> None:
    """The process's first thread starts them, and they inherit."""
    host.groups.create(OURS)
    move(host.groups, OURS, lambda: host.threads("shop"))
    tid = vms["shop"].tell("start CPU 2/KVM")
    assert tid in host.threads("shop")
    assert host.groups.tasks(OURS) == set(host.threads("shop"))
    vms["shop"].tell("end CPU 2/KVM")


def test_threads_that_start_while_others_are_moved(host: Host, vms: Mapping[str, Vm]) -> None:
    """After each of the first three looks there is one more, of a thread that is not in the group yet."""
    host.groups.create(OURS)
    names = iter(("CPU 2/KVM", "CPU 3/KVM", "IO iothread2"))
    first = vms["shop"].pid

    def threads() -> list[int]:
        found = host.threads("shop")
        name = next(names, "")
        if name:
            vms["shop"].tell(f"start {name}")
        # The first thread, which starts them, is kept back for a while: else they would inherit the group.
        return [tid for tid in found if tid != first or not name]

    moved = move(host.groups, OURS, threads)
    assert moved.threads == COUNT + 3
    assert moved.rounds > 3
    assert host.groups.tasks(OURS) == set(host.threads("shop"))
    for name in ("CPU 2/KVM", "CPU 3/KVM", "IO iothread2"):
        vms["shop"].tell(f"end {name}")


def test_threads_that_die_before_they_are_moved(host: Host, vms: Mapping[str, Vm]) -> None:
    host.groups.create(OURS)
    dying = vms["shop"].tell("start worker2")
    ends = iter(("worker2",))

    def threads() -> list[int]:
        found = host.threads("shop")
        for name in ends:
            vms["shop"].tell(f"end {name}")
        return found

    # Listed once, for whether one is in a group of others, before it is listed to be moved.
    listed = iter((host.threads("shop"),))
    moved = move(host.groups, OURS, lambda: next(listed, None) or threads())
    assert moved == Moved(COUNT, 1, 2)
    assert dying not in host.threads("shop")
    assert host.groups.tasks(OURS) == set(host.threads("shop"))


def test_a_vm_whose_threads_come_and_go_all_the_time(host: Host, vms: Mapping[str, Vm]) -> None:
    """Moved back and forth while another thread makes QEMU start and end workers."""
    host.groups.create(OURS)
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            vms["shop"].tell("start worker3")
            vms["shop"].tell("end worker3")

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        moved = [move(host.groups, group, lambda: host.threads("shop")) for group in (OURS, DEFAULT) * 10]
    finally:
        done.set()
        churning.join()
    assert all(one.threads + one.dead >= COUNT for one in moved)
    assert host.placed()["shop"] == DEFAULT


def test_a_vm_that_ends_while_it_is_moved(host: Host) -> None:
    host.groups.create(OURS)
    dying = Vm()
    inside = Host({"dying": dying}, host.tree)

    def threads() -> list[int]:
        found = inside.threads("dying")
        dying.kill()
        return found

    listed = iter((inside.threads("dying"),))
    with pytest.raises(VmVanished):
        move(host.groups, OURS, lambda: next(listed, None) or threads())
    assert host.groups.tasks(OURS) == set()


def test_a_vm_in_a_group_of_others_stays_there(host: Host, foreign: Path) -> None:
    host.groups.create(OURS)
    vcpu = host.vms["shop"].tids["CPU 1/KVM"]
    (foreign / "tasks").write_text(f"{vcpu}\n")
    assert group_of_others(host.groups, host.threads("shop")) == "pqos1"
    assert group_of_others(host.groups, host.threads("mail")) is None
    with pytest.raises(HostError, match="in resctrl group pqos1, which another tool made") as caught:
        move(host.groups, OURS, lambda: host.threads("shop"))
    assert caught.value.errno == errno.EBUSY
    assert host.scattered()["shop"] == {DEFAULT, "pqos1"}


def test_tasks_of_a_removed_group_are_the_default_ones(host: Host) -> None:
    for name in (OURS, OTHER):
        host.groups.create(name)
    move(host.groups, OURS, lambda: host.threads("shop"))
    move(host.groups, OTHER, lambda: host.threads("mail"))
    host.groups.remove(OURS)
    assert (host.placed()["shop"], host.placed()["mail"]) == (DEFAULT, OTHER)
