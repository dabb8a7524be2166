"""Debian hosts as fixtures. Each release is booted once; a test gets its machine as it was at a named moment.

``debian_12`` is a machine with Equipoise's package installed and nothing started; ``two_hosts`` are two of them that
share a network, named alpha and beta, and ``two_bare_hosts`` two without it. What a test does to a machine is gone
before the next test.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.emulated import TCG, Host, best_hardware, start
from tests.hosts.images import DEBIAN_12, DEBIAN_13, PACKAGES_FOLDER, Image, Release, build

BOOTED, INSTALLED = "booted", "installed"
INSTALL_S = 1200.0
NAMES = ("alpha", "beta")
ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate(NAMES, start=1)}


Images = Callable[[Release], Image]
"""Gives a release's image."""


def boot(image: Image, name: str, folder: Path, stack: ExitStack, port: int, emulated: Sequence[str] = TCG) -> Host:
    """A machine without Equipoise, on the network of that port; it has ``BOOTED``."""
    hardware = best_hardware(image, emulated)
    host = start(image, folder / name, number=NAMES.index(name) + 1, fleet_port=port, hardware=hardware)
    stack.callback(host.close)
    prepare(host)
    return host


def unused_port() -> int:
    """A port for a network of its own: machines of another one have the same names and addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("", 0))
        return int(unused.getsockname()[1])


def prepare(host: Host) -> None:
    """Wait for it, and name it."""
    host.ready()
    fleet = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    host.write("/etc/hosts", f"127.0.0.1 localhost\n{fleet}")
    network = f"[Match]\nName=enp0s2\n[Network]\nAddress={ADDRESSES[host.name]}/24\n"
    host.write("/etc/systemd/network/05-fleet.network", network)
    host.run(f"hostnamectl set-hostname {host.name} && networkctl reload && networkctl reconfigure enp0s2")
    host.run("virsh -q net-autostart default && virsh -q net-start default")
    # VMs of tests do not answer the power button: by default each would hold up a shutdown for five minutes.
    host.run("printf 'SHUTDOWN_TIMEOUT=5\\nPARALLEL_SHUTDOWN=4\\n' >>/etc/default/libvirt-guests")
    host.save(BOOTED)


def install(host: Host) -> Host:
    """Install the package; from then on it has ``INSTALLED``."""
    host.run(f"apt-get -qy install /{PACKAGES_FOLDER}/equipoise_*.deb", timeout_s=INSTALL_S)
    host.save(INSTALLED)
    return host


@pytest.fixture(scope="session")
def stack() -> Iterator[ExitStack]:
    """What ends with the tests."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest) -> Iterator[Images]:
    """Those of the releases that tests want, which are built side by side: each keeps a CPU busy for minutes."""
    wanted = " ".join(f"{item.nodeid} {getattr(item, 'fixturenames', ())}" for item in request.session.items)
    with ThreadPoolExecutor() as pool:
        releases = [DEBIAN_12, *([DEBIAN_13] if "debian_13" in wanted else [])]
        built = {release: pool.submit(build, release, say=print) for release in releases}
        yield lambda release: built[release].result()


@pytest.fixture(scope="session")
def folder(stack: ExitStack) -> Path:
    """For disks and consoles: on a disk, as they are large."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="equipoise-hosts-")))


@pytest.fixture(scope="session")
def fleet_port() -> int:
    """Of the network of both Debian 12 machines."""
    return unused_port()


@pytest.fixture(scope="session")
def alpha(images: Images, folder: Path, stack: ExitStack, fleet_port: int) -> Host:
    """The first Debian 12 machine, in whatever state."""
    return install(boot(images(DEBIAN_12), "alpha", folder / "debian-12", stack, fleet_port))


@pytest.fixture(scope="session")
def beta_machine(images: Images, folder: Path, stack: ExitStack, fleet_port: int) -> Host:
    """The second one, in whatever state, perhaps without the package."""
    return boot(images(DEBIAN_12), "beta", folder / "debian-12", stack, fleet_port)


@pytest.fixture(scope="session")
def beta(beta_machine: Host) -> Host:
    """The second one, in whatever state."""
    beta_machine.load(BOOTED)
    return install(beta_machine)


@pytest.fixture(scope="session")
def debian_13_machine(images: Images, folder: Path, stack: ExitStack) -> Host:
    """The Debian 13 machine, in whatever state."""
    return install(boot(images(DEBIAN_13), "alpha", folder / "debian-13", stack, unused_port()))


@pytest.fixture
def two_hosts(alpha: Host, beta: Host) -> list[Host]:
    """Two Debian 12 hosts, alpha and beta, with the package installed and nothing of it started."""
    for host in (alpha, beta):
        host.load(INSTALLED)
    return [alpha, beta]


@pytest.fixture
def two_bare_hosts(alpha: Host, beta_machine: Host) -> list[Host]:
    """Two Debian 12 hosts, alpha and beta, without Equipoise."""
    for host in (alpha, beta_machine):
        host.load(BOOTED)
    return [alpha, beta_machine]


@pytest.fixture
def debian_12(alpha: Host) -> Host:
    """A Debian 12 host with the package installed and nothing of it started."""
    alpha.load(INSTALLED)
    return alpha


@pytest.fixture
def bare_debian_12(alpha: Host) -> Host:
    """A Debian 12 host without Equipoise."""
    alpha.load(BOOTED)
    return alpha


@pytest.fixture
def debian_13(debian_13_machine: Host) -> Host:
    """A Debian 13 host with the package installed and nothing of it started."""
    debian_13_machine.load(INSTALLED)
    return debian_13_machine


@pytest.fixture(params=["debian_12", pytest.param("debian_13", marks=pytest.mark.long)])
def host(request: pytest.FixtureRequest) -> Host:
    """A host of each release with the package installed."""
    machine: Host = request.getfixturevalue(request.param)
    return machine
