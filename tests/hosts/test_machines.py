"""The emulated machines are what real Debian hosts are, as far as the other tests count on it."""

from __future__ import annotations

import time

import pytest

from tests.hosts.emulated import BOOT_ID, TCG, Host, runs
from tests.hosts.images import DEBIAN_12, build


def test_a_host_is_a_whole_debian(host: Host) -> None:
    assert host.run("systemctl is-system-running --wait", check=False).strip() == "running", host.run(
        "systemctl --failed --no-legend; journalctl -p err -b --no-pager | tail -20"
    )
    assert host.run("stat -f -c %T /sys/fs/cgroup").strip() == "cgroup2fs"
    assert host.run("cat /proc/1/comm").strip() == "systemd"
    assert "Y" in host.read("/sys/module/apparmor/parameters/enabled")
    assert "libvirtd" in host.run("aa-status")
    assert "QEMU" in host.run("virsh version")  # which starts libvirtd: idle, it ends after two minutes
    assert host.run("systemctl is-active libvirtd chrony nginx postgresql").split() == ["active"] * 4


@pytest.mark.long
def test_two_hosts_reach_each_other_and_nobody_else(two_bare_hosts: list[Host], debian_13: Host) -> None:
    assert debian_13.name == two_bare_hosts[0].name, "it has the same address in a network of its own"
    for host in two_bare_hosts:
        host.run("systemd-run -q --unit=answers python3 -m http.server --directory /etc 8099")
    for host, other in (two_bare_hosts, two_bare_hosts[::-1]):
        asked = f"curl -sS --retry 30 --retry-all-errors --retry-delay 1 http://{other.name}:8099/hostname"
        assert host.run(asked).strip() == other.name


def test_hardware_is_taken_if_it_runs_a_kernel() -> None:
    """As KVM is where /dev/kvm exists, which says little."""
    image = build(DEBIAN_12)
    assert runs(image, TCG, patience_s=300.0)
    assert not runs(image, ("-accel", "none"))
    assert not runs(image, (*TCG, "-S")), "it starts and stands still"


def test_what_a_test_does_is_gone_before_the_next(alpha: Host) -> None:
    alpha.load("installed")
    alpha.run("touch /kept && sync")
    alpha.load("installed")
    assert alpha.output("test -e /kept").status == 1


def test_a_crash_keeps_what_was_synced(debian_12: Host) -> None:
    debian_12.run("echo kept >/kept && sync")
    booted = debian_12.read(BOOT_ID)
    debian_12.reset()
    assert debian_12.read(BOOT_ID) != booted
    assert debian_12.read("/kept") == "kept\n"


def test_to_a_loaded_machine_no_time_has_passed(debian_12: Host) -> None:
    """Else watchdogs would end the services that ran when it was saved."""
    debian_12.save("before")
    saved_s = uptime_s(debian_12)
    while (later_s := uptime_s(debian_12)) < saved_s + 10.0:
        time.sleep(1.0)
    debian_12.load("before")
    assert uptime_s(debian_12) < later_s


def uptime_s(host: Host) -> float:
    return float(host.read("/proc/uptime").split()[0])
