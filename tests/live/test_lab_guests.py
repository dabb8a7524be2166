"""The lab's guests on the real libvirt of this machine: each role boots, serves, pauses, and leaves nothing behind."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator

import libvirt
import pytest

from deploy.lab.accelerator import decide
from deploy.lab.commands import LabError
from deploy.lab.guest import DEFAULT_BASE, Guest, build
from deploy.lab.lab_vms import PREFIX, GuestRole, LabHost, LabVm, connect
from tests.live.conftest import until

pytestmark = pytest.mark.live

TEST_PREFIX = f"{PREFIX}test-"
GATEWAY = "192.168.122.1"
CACHE = LabVm(f"{TEST_PREFIX}cache", GuestRole.MEMCACHED, "192.168.122.221", options={"cache_mib": 32})
BUSY = LabVm(f"{TEST_PREFIX}busy", GuestRole.BATCH, "192.168.122.223", vcpus=2)
WAVE = LabVm(f"{TEST_PREFIX}wave", GuestRole.BATCH, "192.168.122.224", vcpus=1, options={"on_ms": 10, "off_ms": 90})


@pytest.fixture(scope="module")
def connection() -> Iterator[libvirt.virConnect]:
    opened = connect()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def guest() -> Guest:
    return build()


@pytest.fixture
def host(connection: libvirt.virConnect, guest: Guest) -> Iterator[LabHost]:
    lab = LabHost(connection, guest, decide(guest).accelerator)
    lab.destroy_all(TEST_PREFIX)
    yield lab
    lab.destroy_all(TEST_PREFIX)
    assert not [each.name() for each in connection.listAllDomains() if each.name().startswith(TEST_PREFIX)]


def cpus_used(connection: libvirt.virConnect, vm: LabVm, interval_s: float) -> float:
    """How many of the host's CPUs a VM uses, on average over an interval."""
    domain = connection.lookupByName(vm.name)
    before_ns, began_s = domain.info()[4], time.monotonic()
    time.sleep(interval_s)
    return float((domain.info()[4] - before_ns) / 1e9 / (time.monotonic() - began_s))


def test_a_second_build_finds_the_first(guest: Guest) -> None:
    lines: list[str] = []
    assert build(say=lines.append) == guest
    assert any("up to date" in line for line in lines)


def test_memcached_stores_and_the_vm_pauses(host: LabHost) -> None:
    host.start(CACHE)
    with pytest.raises(LabError, match="is there already"):
        host.start(CACHE)
    with pytest.raises(LabError, match=f"{CACHE.name} has its address"):
        host.start(LabVm(f"{TEST_PREFIX}twin", GuestRole.BATCH, CACHE.ip))
    host.wait_ready(CACHE)
    with socket.create_connection((CACHE.ip, 11211), timeout=5) as client:
        replies = client.makefile("rb")
        client.sendall(b"set key 0 0 5\r\nvalue\r\nget key\r\nstats\r\n")
        assert [replies.readline() for _ in range(4)] == [b"STORED\r\n", b"VALUE key 0 5\r\n", b"value\r\n", b"END\r\n"]
        stats = dict(line.split()[1:3] for line in iter(replies.readline, b"END\r\n"))
        assert int(stats[b"limit_maxbytes"]) == 32 * 1024 * 1024
        assert int(stats[b"threads"]) == CACHE.vcpus

        host.suspend(CACHE)
        client.settimeout(1)
        client.sendall(b"get key\r\n")
        with pytest.raises(TimeoutError):
            client.recv(100)
        host.resume(CACHE)
        client.settimeout(20)
        assert client.recv(100).startswith(b"VALUE key 0 5\r\n")
    ready = "equipoise-guest ready role=memcached ip=192.168.122.221"
    until(lambda: ready in host.console(CACHE), "what virtlogd writes when it comes to it")
    host.destroy(CACHE)
    host.destroy(CACHE)


def test_nginx_serves_compresses_and_logs_where_asked(host: LabHost) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind((GATEWAY, 0))
        collector.settimeout(10)
        address = f"{GATEWAY}:{collector.getsockname()[1]}"
        web = LabVm(
            f"{TEST_PREFIX}web",
            GuestRole.NGINX,
            "192.168.122.222",
            vcpus=2,
            options={"gzip_kib": 16, "access_log": address},
        )
        host.start(web)
        host.wait_ready(web)
        with urllib.request.urlopen(f"http://{web.ip}/", timeout=10) as answer:
            assert len(answer.read()) == 4096
        with urllib.request.urlopen(f"http://{web.ip}/gzip", timeout=10) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert 512 < len(answer.read()) < 16 * 1024
        logged = collector.recv(1000).decode()
        assert "nginx: / request_time=" in logged
        assert logged.endswith(" status=200")


def test_batch_burns_all_its_vcpus_or_its_share_of_the_time(host: LabHost, connection: libvirt.virConnect) -> None:
    host.start(WAVE)
    host.wait_ready(WAVE)
    time.sleep(1)
    # How much they get depends on what else the host does.
    assert 0.01 < cpus_used(connection, WAVE, 4) < 0.5

    host.start(BUSY)
    host.wait_ready(BUSY)
    time.sleep(1)
    assert cpus_used(connection, BUSY, 4) > 0.2
    host.suspend(BUSY)
    assert cpus_used(connection, BUSY, 1) < 0.05


def test_a_guest_that_fails_is_reported_with_its_console(host: LabHost) -> None:
    wrong = LabVm(f"{TEST_PREFIX}wrong", GuestRole.BATCH, "192.168.122.225", options={"on_ms": 0})
    host.start(wrong)
    with pytest.raises(LabError, match=r"(?s)ended instead.*--on-ms needs.*batch ended with status 2"):
        host.wait_ready(wrong)


def test_addresses_outside_the_network_are_refused(host: LabHost) -> None:
    with pytest.raises(LabError, match="is not in"):
        host.start(LabVm(f"{TEST_PREFIX}lost", GuestRole.BATCH, "10.255.255.1"))


def test_libvirt_can_read_the_guest(guest: Guest) -> None:
    assert guest.directory.parent == DEFAULT_BASE / "guest"
    for path in (guest.kernel, guest.initrd):
        assert path.stat().st_mode & 0o004
