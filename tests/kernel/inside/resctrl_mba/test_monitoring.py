"""Monitoring groups. The emulated counters stand at 0: what is seen is the kernel's book-keeping."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.resctrl.groups import Moved, move
from manager.host.resctrl.resctrl_cache import Monitor
from manager.model.cache import DEFAULT, CacheUse, monitoring_group
from tests.kernel.inside.resctrl.host import POINT, THREADS, Host

OURS, OTHER = "equipoise-shop", "equipoise-mail"
WATCH = monitoring_group(OURS, "shop")
COUNT = len(THREADS) + 1
RMIDS = 24
ZERO = (CacheUse(0, 0, 0, 0), CacheUse(1, 0, 0, 0))


@pytest.fixture
def watched(host: Host) -> Iterator[Host]:
    """A VM in a group of its own, with a monitoring group; those of the default group are removed after."""
    host.groups.create(OURS)
    host.groups.create(WATCH)
    move(host.groups, OURS, lambda: host.threads("shop"))
    yield host
    for path in (POINT / "mon_groups").iterdir():
        path.rmdir()


def told(host: Host, vm: str) -> set[str]:
    """The groups that the kernel tells of a VM's threads."""
    return {Path(f"/proc/{tid}/cpu_resctrl_groups").read_text() for tid in host.threads(vm)}


def refused(action: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(HostError) as caught:
        action()
    return caught.value.errno, str(caught.value)


@pytest.mark.parametrize("group", [DEFAULT, OURS, WATCH])
def test_counters_are_there_by_domain(watched: Host, group: str) -> None:
    monitor = Monitor(watched.tree, group)
    assert monitor.read() == ZERO
    monitor.close()


def test_a_vm_in_its_monitoring_group_stays_in_its_control_group(watched: Host) -> None:
    shop = set(watched.threads("shop"))
    assert move(watched.groups, WATCH, lambda: watched.threads("shop")) == Moved(COUNT, 0, 2)
    assert told(watched, "shop") == {f"res:{OURS}\nmon:equipoise-shop\n"}
    assert watched.groups.tasks(WATCH) == watched.groups.tasks(OURS) == shop
    assert move(watched.groups, OURS, lambda: watched.threads("shop")).threads == 0, "it is there already"
    assert told(watched, "shop") == {f"res:{OURS}\nmon:equipoise-shop\n"}
    watched.groups.remove(WATCH)
    assert told(watched, "shop") == {f"res:{OURS}\nmon:\n"}


def test_threads_that_start_are_watched_too(watched: Host) -> None:
    move(watched.groups, WATCH, lambda: watched.threads("shop"))
    tid = watched.vms["shop"].tell("start CPU 2/KVM")
    assert tid in watched.groups.tasks(WATCH)
    watched.vms["shop"].tell("end CPU 2/KVM")


def test_who_moves_to_another_group_is_not_watched_any_more(watched: Host) -> None:
    move(watched.groups, WATCH, lambda: watched.threads("shop"))
    watched.groups.create(OTHER)
    move(watched.groups, OTHER, lambda: watched.threads("shop"))
    assert told(watched, "shop") == {f"res:{OTHER}\nmon:\n"}
    assert watched.groups.tasks(WATCH) == set()
    move(watched.groups, OURS, lambda: watched.threads("shop"))
    assert told(watched, "shop") == {f"res:{OURS}\nmon:\n"}


def test_only_who_is_in_the_group_above_can_be_watched(watched: Host) -> None:
    number, said = refused(lambda: move(watched.groups, WATCH, lambda: watched.threads("mail")))
    assert number == errno.EINVAL
    assert "Invalid argument: Can't move task to different control group; Error while processing task" in said
    assert told(watched, "mail") == {"res:/\nmon:\n"}


def test_the_default_group_can_be_watched_too(watched: Host) -> None:
    group = monitoring_group(DEFAULT, "mail")
    watched.groups.create(group)
    move(watched.groups, group, lambda: watched.threads("mail"))
    assert told(watched, "mail") == {"res:/\nmon:equipoise-mail\n"}
    assert watched.groups.tasks(DEFAULT) >= set(watched.threads("mail"))
    watched.groups.remove(group)
    assert told(watched, "mail") == {"res:/\nmon:\n"}


def test_a_group_that_is_removed_takes_its_monitoring_groups_along(watched: Host) -> None:
    move(watched.groups, WATCH, lambda: watched.threads("shop"))
    monitor = Monitor(watched.tree, WATCH)
    watched.groups.remove(OURS)
    assert told(watched, "shop") == {"res:/\nmon:\n"}
    assert refused(monitor.read)[0] == errno.ENODEV
    monitor.close()
    assert refused(lambda: Monitor(watched.tree, WATCH))[0] == errno.ENODEV
    watched.groups.remove(WATCH)


def test_names_that_are_taken_or_of_no_group(watched: Host) -> None:
    assert refused(lambda: watched.groups.create(WATCH))[0] == errno.EEXIST
    assert refused(lambda: watched.groups.create(monitoring_group(OTHER, "shop")))[0] == errno.ENOENT
    for path, number in (
        (f"{WATCH}/equipoise-x", errno.EPERM),
        (f"{OURS}/mon_data/equipoise-x", errno.EPERM),
        ("mon_groups/a\nb", errno.EINVAL),
    ):
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            watched.tree.make(path)
        assert caught.value.errno == number


def test_the_last_rmid(watched: Host) -> None:
    """Control groups take one each, too. Those given back may be looked at for a while before they are free again."""
    names = [monitoring_group(DEFAULT, str(number)) for number in range(RMIDS - 3)]
    for name in names:
        eventually(watched, name)
    for name in (monitoring_group(OURS, "mail"), OTHER):
        number, said = refused(lambda name=name: watched.groups.create(name))  # type: ignore[misc]
        assert (number, said) == (errno.ENOSPC, f"make resctrl group {name}: No space left on device: Out of RMIDs")
    for name in names:
        watched.groups.remove(name)
    eventually(watched, names[0])


def eventually(host: Host, name: str) -> None:
    """Made, though the RMIDs that others gave back are not free yet, which is EBUSY."""
    for _ in range(1000):
        try:
            host.groups.create(name)
        except HostError as error:
            assert error.errno == errno.EBUSY, error
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{name} cannot be made for ever")
