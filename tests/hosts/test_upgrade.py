"""The package of a later version, and of an earlier one again, over one that controls VMs."""

from __future__ import annotations

import pytest

from tests.hosts.conftest import BOOTED
from tests.hosts.emulated import Host
from tests.hosts.images import OLDER_VERSION, PACKAGES_FOLDER, older_package
from tests.hosts.inventory import inventory
from tests.hosts.service import Service, Vm, changed, define, settings, until
from tests.older import older_commit

pytestmark = pytest.mark.long

INSTALL_S = 1200.0
OLDER_FILE = "/root/older.deb"
UNITS = "equipoise-manager equipoise-agent"
WEB, RENDER = Vm("web"), Vm("render")
VERSION = "dpkg-query -W -f '${Version}' equipoise"
RUNS = "systemctl show --property MainPID --value equipoise-agent equipoise-manager"


def install(host: Host, file: str) -> str:
    """Install a package over whatever there is; the version that is installed then, with both services running."""
    before = host.run(RUNS).split()
    host.run(f"apt-get -qy --allow-downgrades install {file}", timeout_s=INSTALL_S)
    assert host.run(f"systemctl is-active {UNITS}").split() == ["active"] * 2
    after = host.run(RUNS).split()
    assert not set(before) & set(after), "they run the version that was there before"
    return host.run(VERSION)


def test_versions_follow_each_other_under_control(alpha: Host) -> None:
    alpha.load(BOOTED)
    before = inventory(alpha)
    alpha.fetch(older_package(older_commit()), OLDER_FILE)
    alpha.run(f"apt-get -qy install {OLDER_FILE}", timeout_s=INSTALL_S)
    define(alpha, WEB, RENDER)
    originals = settings(alpha)
    service = Service(alpha).start()
    service.register(WEB.name, "critical")
    service.register(RENDER.name, "batch", max_pcpus=0.5)
    until(lambda: settings(alpha), lambda now: len(changed(originals, now)) > 4, "settings are in force")
    service.ticks(3)  # until one has nothing left to do
    in_force = settings(alpha)

    def is_in_force() -> None:
        until(
            lambda: changed(in_force, settings(alpha)), lambda differs: not differs, "settings are not in force again"
        )

    assert alpha.run(VERSION) == OLDER_VERSION
    newer = install(alpha, f"/{PACKAGES_FOLDER}/equipoise_*.deb")
    assert newer != OLDER_VERSION
    is_in_force()
    assert install(alpha, OLDER_FILE) == OLDER_VERSION
    is_in_force()
    assert install(alpha, f"/{PACKAGES_FOLDER}/equipoise_*.deb") == newer
    is_in_force()
    vms = {vm["name"]: vm["class"] for vm in service.call("GET", "/vms")["items"]}
    assert vms == {WEB.name: "critical", RENDER.name: "batch"}, "what is registered is kept"
    loud = {"external-change", "file-damaged", "items-refused"}
    assert not [event for event in service.events() if event.partition(":")[0] in loud]

    alpha.run("apt-get -qy purge equipoise", timeout_s=INSTALL_S)
    assert changed(originals, settings(alpha)) == {}
    alpha.run("for vm in $(virsh list --all --name); do virsh -q destroy $vm; virsh -q undefine $vm; done")
    alpha.run("rm -r /etc/systemd/system/equipoise-*.service.d")  # of this test
    assert inventory(alpha) ^ before == set()
