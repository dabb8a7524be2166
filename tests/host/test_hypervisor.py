"""Following domains through a libvirtd of our own and its test driver: lifecycle, restarts, refusals, and the end."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import libvirt
import pytest

from manager.host import hypervisor
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.libvirt_calls import version_text
from tests.host.conftest import QemuLike, Root, descriptors, until

DOMAIN = "test"  # the one domain that libvirt's test driver begins with, running
MAC = "52:54:00:00:00:99"  # of nobody
UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
SECOND = """
<domain type='test'>
  <name>second</name><uuid>11111111-1111-4111-8111-111111111111</uuid><memory>1024</memory><os><type>hvm</type></os>
</domain>
"""


class Libvirtd:
    """A libvirtd for nobody's session. Its test driver holds one running domain, anew at each start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "libvirt/libvirt-sock"
        self.uri = f"test+unix:///default?socket={self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        places = ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
        environment = {"PATH": os.environ["PATH"]} | dict.fromkeys(places, str(self.folder))
        nobody = pwd.getpwnam("nobody")
        drop = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        self.socket.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["libvirtd"], env=environment, stdout=log, stderr=log, **drop)  # type: ignore[call-overload]
        until(self._answers, "libvirtd answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            self.connect().close()
        except libvirt.libvirtError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def connect(self) -> libvirt.virConnect:
        return libvirt.open(self.uri)

    def descriptors(self) -> int:
        assert self._process is not None
        return descriptors(self._process.pid)


def settled(count: Callable[[], int]) -> int:
    """A number once it keeps still: connections are closed a moment after they are let go."""
    seen = [count()]

    def still() -> bool:
        seen.append(count())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    until(still, "a number of descriptors keeps still")
    return seen[-1]


@pytest.fixture(scope="session", autouse=True)
def events() -> None:
    EventLoop().start()


@pytest.fixture
def libvirtd() -> Iterator[Libvirtd]:
    if shutil.which("libvirtd") is None:
        pytest.skip("NOT TESTED: libvirtd is not installed")
    folder = Path(tempfile.mkdtemp(prefix="equipoise-test-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    daemon = Libvirtd(folder)
    yield daemon
    daemon.kill()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, "_BACKOFF_S", (0.02,))


class Followed:
    """A watch and what it told."""

    def __init__(self, uri: str, root: Root, reconcile_s: float = 3600) -> None:
        self.neighbours: dict[str, frozenset[str]] | None = {}
        self.told: list[tuple[bool, str]] = []
        self.watch = HypervisorWatch(
            uri, root.paths, reconcile_s, lambda *told: self.told.append(told), self.read_neighbours
        )
        self.watch.start()

    def read_neighbours(self) -> dict[str, frozenset[str]]:
        if self.neighbours is None:
            raise PermissionError(1, "Operation not permitted")
        return self.neighbours

    @property
    def connections(self) -> list[bool]:
        return [connected for connected, _ in self.told]

    def wait_told(self, *connections: bool) -> None:
        """Wait until exactly this was told since the start."""
        until(lambda: self.connections == list(connections), f"{connections} was told")

    def listed(self) -> set[str]:
        return {instance.libvirt_name for instance in self.watch.domains.instances.values()}


@pytest.fixture
def follow(root: Root) -> Iterator[Callable[..., Followed]]:
    started: list[Followed] = []

    def follow_one(uri: str, **options: float) -> Followed:
        started.append(Followed(uri, root, **options))
        return started[-1]

    yield follow_one
    for one in started:
        one.watch.stop()


@pytest.fixture
def vm(start: Callable[..., QemuLike], root: Root) -> QemuLike:
    """A process that runs the test driver's domain, as far as anybody can see."""
    started = start("CPU 0/KVM", uuid=UUID)
    root.note(DOMAIN, started.pid)
    return started


def test_a_running_domain_is_found_with_its_process(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    domains = followed.watch.domains
    assert domains.instances == {UUID: vm.instance}
    assert (domains.generation, domains.connected) == (1, True)
    assert domains.libvirt_version.count(".") == 2
    until(lambda: followed.told, "the connection is told")
    assert followed.told == [(True, "1 running domains")]


def test_a_domain_that_libvirt_still_sets_up_is_not_listed(libvirtd, follow, vm: QemuLike, monkeypatch) -> None:
    states = [(libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)]

    def stats(_connection: object, domains: list[libvirt.virDomain], *_flags: int) -> list[object]:
        return [(domain, dict(zip(("state.state", "state.reason"), states[-1], strict=True))) for domain in domains]

    monkeypatch.setattr(libvirt.virConnect, "domainListGetStats", stats)
    libvirtd.start()
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    assert followed.listed() == set()
    states.append((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER))
    followed.watch.look_again()
    until(lambda: followed.listed() == {DOMAIN}, "it is listed once it is set up, paused or not")
    states.append(states[0])
    followed.watch.look_again()
    generation = followed.watch.domains.generation
    until(lambda: followed.watch.domains.generation > generation, "it was listed again")
    assert followed.listed() == {DOMAIN}, "what is known is not asked again"


def test_a_domain_without_a_process_of_its_own_is_no_concern_of_ours(libvirtd, follow) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    assert followed.watch.domains.instances == {}
    assert followed.watch.domains.connected


def test_lifecycle_events_are_followed(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    operator = libvirtd.connect()
    operator.lookupByName(DOMAIN).destroy()
    until(lambda: followed.listed() == set(), "the stopped domain is not listed any more")
    generation = followed.watch.domains.generation
    operator.lookupByName(DOMAIN).create()
    until(lambda: followed.listed() == {DOMAIN}, "the started domain is listed")
    assert followed.watch.domains.generation > generation
    operator.close()


def test_listings_without_events_see_what_changed(
    libvirtd, follow, vm: QemuLike, start: Callable[..., QemuLike], root: Root
) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri, reconcile_s=0.02)
    assert followed.watch.wait_first_listing(20)
    first = vm.instance
    root.paths.pid_file(DOMAIN).unlink()
    seen = followed.watch.domains.generation
    until(lambda: followed.watch.domains.generation > seen + 1, "it was listed again")
    assert followed.watch.domains.instances == {UUID: first}, "what is known and alive is not looked up again"
    vm.kill()
    until(lambda: followed.listed() == set(), "the process that ended is noticed")
    again = start("CPU 0/KVM", uuid=UUID)
    root.note(DOMAIN, again.pid)
    until(lambda: followed.watch.domains.instances == {UUID: again.instance}, "its next run is found")


def test_one_domain_that_cannot_be_looked_up_does_not_hide_the_others(libvirtd, follow, vm: QemuLike, root) -> None:
    libvirtd.start()
    root.paths.pid_file("second").mkdir()  # reading it fails with EISDIR
    operator = libvirtd.connect()
    operator.createXML(SECOND, 0)
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    assert followed.listed() == {DOMAIN}
    operator.close()


def test_each_restart_of_libvirtd_is_told_once_and_survived(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    followed.wait_told(True)
    generation = followed.watch.domains.generation
    libvirtd.kill()
    followed.wait_told(True, False)
    assert not followed.watch.domains.connected
    assert followed.watch.domains.instances == {UUID: vm.instance}, "what runs goes on running meanwhile"
    assert followed.watch.domains.generation == generation
    libvirtd.start()
    followed.wait_told(True, False, True)
    assert followed.watch.domains.generation > generation
    libvirtd.kill()
    followed.wait_told(True, False, True, False)
    libvirtd.start()
    followed.wait_told(True, False, True, False, True)
    assert followed.listed() == {DOMAIN}
    operator = libvirtd.connect()
    operator.lookupByName(DOMAIN).destroy()
    until(lambda: followed.listed() == set(), "events arrive over the new connection")
    operator.close()


def test_addresses_are_looked_up_and_kept_while_libvirtd_is_away(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    until(lambda: followed.watch.domains.addresses, "addresses are known")
    assert followed.watch.domains.addresses == {UUID: frozenset({"192.168.122.3"})}, "the test driver's own answer"
    libvirtd.kill()
    until(lambda: not followed.watch.domains.connected, "the loss is noticed")
    assert followed.watch.domains.addresses == {UUID: frozenset({"192.168.122.3"})}


def test_a_domain_that_ends_has_no_addresses(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    until(lambda: followed.watch.domains.addresses, "addresses are known")
    operator = libvirtd.connect()
    operator.lookupByName(DOMAIN).destroy()
    until(lambda: followed.watch.domains.addresses == {}, "they are forgotten")
    operator.close()


def test_asked_to_look_again_it_finds_new_neighbours_and_keeps_old_ones(libvirtd, follow, vm: QemuLike) -> None:
    libvirtd.start()
    followed = follow(libvirtd.uri)
    until(lambda: followed.watch.domains.addresses, "it was looked up")
    followed.neighbours = {"aa:bb:cc:dd:ee:ff": frozenset({"192.168.122.44", "fd00::44"}), MAC: frozenset({"10.0.0.1"})}
    followed.watch.look_again()
    known = frozenset({"192.168.122.3", "192.168.122.44", "fd00::44"})
    until(lambda: followed.watch.domains.addresses == {UUID: known}, "the new addresses are known")
    followed.neighbours = None  # reading them fails
    generation = followed.watch.domains.generation
    followed.watch.look_again()
    until(lambda: followed.watch.domains.generation > generation, "it was listed again")
    assert followed.watch.domains.addresses == {UUID: known}
    assert followed.connections == [True]


def test_a_refused_look_up_disturbs_nothing(libvirtd, follow, vm: QemuLike, monkeypatch) -> None:
    asked: list[str] = []

    def refuse(_domain: libvirt.virDomain, *_: int) -> None:
        asked.append("refused")
        raise libvirt.libvirtError("no network with matching name")

    monkeypatch.setattr(libvirt.virDomain, "interfaceAddresses", refuse)
    monkeypatch.setattr(libvirt.virDomain, "XMLDesc", refuse)
    libvirtd.start()
    followed = follow(libvirtd.uri)
    until(lambda: UUID in followed.watch.domains.addresses, "it was looked up")
    assert followed.watch.domains.addresses == {UUID: frozenset()}
    assert len(asked) == 2, "leases, and then interfaces"
    assert followed.listed() == {DOMAIN}
    assert followed.connections == [True]


def counted_opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    real = libvirt.open

    def count(uri: str) -> libvirt.virConnect:
        opened.append(uri)
        return real(uri)

    monkeypatch.setattr(hypervisor.libvirt, "open", count)
    return opened


def test_a_libvirtd_that_is_away_is_told_once_and_waited_for(
    libvirtd, follow, vm: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = counted_opens(monkeypatch)
    followed = follow(libvirtd.uri)
    until(lambda: len(opened) > 3, "it was tried several times")
    assert not followed.watch.wait_first_listing(0)
    assert followed.connections == [False]
    assert "No such file or directory" in followed.told[0][1]
    assert (followed.watch.domains.generation, followed.watch.domains.connected) == (0, False)
    libvirtd.start()
    assert followed.watch.wait_first_listing(20)
    assert followed.listed() == {DOMAIN}


def test_a_connection_that_opens_but_is_of_no_use_is_told_once_and_left_closed(
    follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The in-process test driver refuses keepalives, as an overloaded libvirtd may refuse anything."""
    opened = counted_opens(monkeypatch)
    followed = follow("test:///default")
    until(lambda: len(opened) > 3, "it was tried several times")
    followed.watch.stop()
    assert followed.connections == [False]
    assert "not supported" in followed.told[0][1]


def test_a_refused_listing_leaves_no_connection_behind(libvirtd, follow, monkeypatch: pytest.MonkeyPatch) -> None:
    libvirtd.start()
    held = settled(libvirtd.descriptors)
    opened = counted_opens(monkeypatch)

    def refuse(*_: object) -> None:
        raise libvirt.libvirtError("access denied")

    monkeypatch.setattr(HypervisorWatch, "_list", refuse)
    followed = follow(libvirtd.uri)
    until(lambda: len(opened) > 5, "it was tried several times")
    followed.watch.stop()
    until(lambda: libvirtd.descriptors() == held, "libvirtd has nobody connected any more")
    assert followed.told == [(False, "access denied")]


@pytest.mark.parametrize("away", [False, True], ids=["libvirtd runs", "libvirtd is gone"])
def test_stopping_ends_thread_and_connection(libvirtd, follow, vm: QemuLike, away: bool) -> None:
    libvirtd.start()
    held, ours = settled(libvirtd.descriptors), settled(descriptors)
    followed = follow(libvirtd.uri)
    assert followed.watch.wait_first_listing(20)
    if away:
        libvirtd.kill()
        until(lambda: not followed.watch.domains.connected, "the loss is noticed")
    followed.watch.stop()
    assert "libvirt-watch" not in {thread.name for thread in threading.enumerate()}
    until(lambda: descriptors() == ours, "our end of the connection is closed")
    if not away:
        until(lambda: libvirtd.descriptors() == held, "its end is closed")
    assert followed.connections == ([True, False] if away else [True]), "stopping is no loss of the connection"


def test_stopping_does_not_wait_for_a_libvirtd_that_is_away(libvirtd, follow, monkeypatch) -> None:
    monkeypatch.setattr(hypervisor, "_BACKOFF_S", (3600.0,))
    followed = follow(libvirtd.uri)
    until(lambda: followed.told, "it was tried once")
    followed.watch.stop()
    assert "libvirt-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("number", "text"), [(9_000_000, "9.0.0"), (10_012_003, "10.12.3"), (0, "0.0.0")])
def test_versions_as_people_write_them(number: int, text: str) -> None:
    assert version_text(number) == text
