"""Debian hosts as fixtures. Each release is booted once; a test gets its machine as it was at a named moment.

``debian_12`` is a machine with Equipoise's package installed and nothing started; ``two_hosts`` are two of them that
share a network, named alpha and beta. What a test does to a machine is gone before the next test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.emulated import TCG, Host, start
from tests.hosts.images import DEBIAN_12, DEBIAN_13, PACKAGES_FOLDER, Release, build

BOOTED, INSTALLED = "booted", "installed"
INSTALL_S = 1200.0
NAMES = ("alpha", "beta")
ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate(NAMES, start=1)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also those that take minutes each: more than an hour")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def boot(
    release: Release, names: Sequence[str], folder: Path, stack: ExitStack, hardware: Sequence[str] = TCG
) -> list[Host]:
    """Machines of one network, with the package installed. Each has the snapshots ``BOOTED`` and ``INSTALLED``."""
    image = build(release, say=print)
    port = 20_000 + os.getpid() % 20_000
    hosts = [
        start(image, folder / name, number=number, fleet_port=port, hardware=hardware)
        for number, name in enumerate(names, start=1)
    ]
    for host in hosts:
        stack.callback(host.close)
    with ThreadPoolExecutor() as pool:
        list(pool.map(prepare, hosts))
    return hosts


def prepare(host: Host) -> None:
    """Wait for it, name it, and install the package."""
    host.ready()
    fleet = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    host.write("/etc/hosts", f"127.0.0.1 localhost\n{fleet}")
    network = f"[Match]\nName=enp0s2\n[Network]\nAddress={ADDRESSES[host.name]}/24\n"
    host.write("/etc/systemd/network/05-fleet.network", network)
    host.run(f"hostnamectl set-hostname {host.name} && networkctl reload && networkctl reconfigure enp0s2")
    host.run("virsh -q net-autostart default && virsh -q net-start default")
    host.save(BOOTED)
    host.run(f"apt-get -qy install /{PACKAGES_FOLDER}/equipoise_*.deb", timeout_s=INSTALL_S)
    host.save(INSTALLED)


@pytest.fixture(scope="session")
def stack() -> Iterator[ExitStack]:
    """What ends with the tests."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def folder(stack: ExitStack) -> Path:
    """For disks and consoles: on a disk, as they are large."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="equipoise-hosts-")))


@pytest.fixture(scope="session")
def debian_12_pair(folder: Path, stack: ExitStack) -> list[Host]:
    """Both Debian 12 machines, in whatever state."""
    return boot(DEBIAN_12, NAMES, folder / "debian-12", stack)


@pytest.fixture(scope="session")
def debian_13_machine(folder: Path, stack: ExitStack) -> Host:
    """The Debian 13 machine, in whatever state."""
    return boot(DEBIAN_13, NAMES[:1], folder / "debian-13", stack)[0]


@pytest.fixture
def two_hosts(debian_12_pair: list[Host]) -> list[Host]:
    """Two Debian 12 hosts, alpha and beta, with the package installed and nothing of it started."""
    for host in debian_12_pair:
        host.load(INSTALLED)
    return debian_12_pair


@pytest.fixture
def debian_12(debian_12_pair: list[Host]) -> Host:
    """A Debian 12 host with the package installed and nothing of it started."""
    debian_12_pair[0].load(INSTALLED)
    return debian_12_pair[0]


@pytest.fixture
def bare_debian_12(debian_12_pair: list[Host]) -> Host:
    """A Debian 12 host without Equipoise."""
    debian_12_pair[0].load(BOOTED)
    return debian_12_pair[0]


@pytest.fixture
def debian_13(debian_13_machine: Host) -> Host:
    """A Debian 13 host with the package installed and nothing of it started."""
    debian_13_machine.load(INSTALLED)
    return debian_13_machine


@pytest.fixture(params=["debian_12", "debian_13"])
def host(request: pytest.FixtureRequest) -> Host:
    """A host of each release with the package installed."""
    machine: Host = request.getfixturevalue(request.param)
    return machine
