"""libvirt's hook: what it tells the agent, what comes of that, and that it never keeps a VM from starting."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import socketserver
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from manager.cli.agent_command import _welcome
from manager.errors import HostError
from manager.hook import HookSocket
from manager.model.knobs import Knob, KnobKey
from manager.store.database import Database
from tests.deploy.units import TOP
from tests.fakes.vm import domain_uuid
from tests.loop.site import Site

HOOK = TOP / "deploy/libvirt/hooks/qemu.d/equipoise"
UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
HANGS_S = 60


def description(uuid: str) -> str:
    """What libvirt writes to the hook's standard input, as far as it matters."""
    other = "11111111-1111-4111-8111-111111111111"
    return f"<domain type='kvm' id='7'>\n  <name>web</name>\n  <uuid>{uuid}</uuid>\n<genid>{other}</genid></domain>\n"


class Hook:
    """The hook, for an agent with its state in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "hook.sock"
        self.program = folder / "equipoise"
        self.rewrite(HOOK.read_text(), "socket=/var/lib/equipoise/hook.sock", f"socket={self.socket}")
        self.program.chmod(0o755)

    def rewrite(self, text: str, one: str, other: str) -> None:
        assert text.count(one) == 1
        self.program.write_text(text.replace(one, other))

    def wait_for(self, patience_s: float) -> None:
        self.rewrite(self.program.read_text(), "timeout 2 ", f"timeout {patience_s:g} ")

    def call(self, operation: str = "started", name: str = "web", uuid: str = UUID) -> None:
        """As libvirt does: any output of some operations, and any status but 0, would count."""
        done = subprocess.run(
            [self.program, name, operation, "begin", "-"],
            input=description(uuid),
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


@pytest.fixture
def told(hook: Hook) -> Iterator[list[tuple[str, str]]]:
    """What an agent is told that answers as it should."""
    heard: list[tuple[str, str]] = []
    door = HookSocket(hook.socket, lambda uuid, name: heard.append((uuid, name)))
    yield heard
    door.close()


@contextlib.contextmanager
def agent(hook: Hook, answer: Callable[[socket.socket], object]) -> Iterator[None]:
    """One that listens, and does ``answer`` with the first connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(hook.socket))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(HANGS_S)
        assert not thread.is_alive()


def test_a_vm_that_has_started_is_told_of_before_the_hook_ends(hook: Hook, told: list[tuple[str, str]]) -> None:
    hook.call()
    hook.call(name="a name -with spaces, ü and $(signs)")
    assert told == [(UUID, "web"), (UUID, "a name -with spaces, ü and $(signs)")]


@pytest.mark.parametrize("operation", ["prepare", "start", "stopped", "release", "migrate", "restore", "reconnect"])
def test_of_all_else_nothing_is_told(operation: str, hook: Hook, told: list[tuple[str, str]]) -> None:
    hook.call(operation)
    assert told == []


def test_without_an_agent_nothing_happens(hook: Hook) -> None:
    hook.call()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(hook.socket))
    hook.call()


@pytest.mark.parametrize(
    "answer",
    [lambda _: None, lambda connection: connection.recv(10), lambda connection: connection.sendall(b"error\n" * 1000)],
    ids=["hangs up at once", "hangs up in between", "talks"],
)
def test_an_agent_that_answers_otherwise_does_no_harm(answer: Callable[[socket.socket], object], hook: Hook) -> None:
    with agent(hook, answer):
        hook.call()


def test_an_agent_that_hangs_is_not_waited_for(hook: Hook) -> None:
    hook.wait_for(5)  # Python may start slowly here
    heard: list[bytes] = []

    def hang(connection: socket.socket) -> None:
        heard.append(connection.recv(1000))
        connection.recv(1000)  # until the hook has ended

    with agent(hook, hang):
        hook.call()
    assert heard == [f"started {UUID} web\n".encode()]


def test_a_libvirt_that_hangs_is_not_waited_for(hook: Hook, told: list[tuple[str, str]]) -> None:
    hook.wait_for(0.2)
    hanging = subprocess.Popen([hook.program, "web", "started", "begin", "-"], stdin=subprocess.PIPE)
    assert hanging.wait(HANGS_S) == 0
    assert hanging.stdin is not None
    hanging.stdin.close()
    assert told == []


def test_without_python_nothing_happens(hook: Hook, told: list[tuple[str, str]]) -> None:
    hook.rewrite(hook.program.read_text(), "/usr/bin/python3", "/usr/bin/no-python")
    hook.call()
    assert told == []


def test_it_gives_up_after_two_seconds_and_asks_libvirt_nothing() -> None:
    text = HOOK.read_text()
    assert "\ntimeout 2 " in text
    assert text.endswith("\nexit 0\n")
    program = "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "virsh" not in program
    assert "import libvirt" not in program
    assert stat.S_IMODE(HOOK.stat().st_mode) == 0o755


def test_only_root_gets_in_and_the_socket_goes_with_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    path.touch()  # what an agent that was killed leaves
    door = HookSocket(path, lambda _uuid, _name: None)
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    door.close()
    assert not path.exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each time that a connection was asked for."""
    times: list[int] = []
    ask = socketserver.UnixStreamServer.get_request

    def noted(server: socketserver.UnixStreamServer) -> tuple[socket.socket, object]:
        times.append(len(times))
        return ask(server)

    monkeypatch.setattr(socketserver.UnixStreamServer, "get_request", noted)
    return times


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """This process cannot open any."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(opened[0]))
        yield
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_free_file_it_waits_and_then_goes_on(
    hook: Hook, told: list[tuple[str, str]], asked: list[int]
) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(HANGS_S)
        with no_more_files():
            caller.connect(str(hook.socket))
            caller.sendall(f"started {UUID} web\n".encode())
            time.sleep(0.5)
            assert 0 < len(asked) < 10
            assert told == []
        assert caller.recv(1) == b""
    assert told == [(UUID, "web")]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "started",
        f"started {UUID}",
        "started  web",
        "started x web",
        f"started {UUID.upper()} web",
        f"started {UUID} ../../etc/web",
        f"stopped {UUID} web",
        f"started {UUID} {'x' * 5000}",
        "\udcff\udcfe",
    ],
)
def test_what_is_no_start_of_a_vm_is_not_passed_on(line: str, hook: Hook, told: list[tuple[str, str]]) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(HANGS_S)
        caller.connect(str(hook.socket))
        caller.sendall(line.encode(errors="surrogateescape") + b"\n")
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b"", "the answer is the end, in any case"
    assert told == []
    hook.call()
    assert told == [(UUID, "web")], "it goes on"


class Arrivals:
    """A host on which libvirt starts VMs, which are listed once it tells."""

    def __init__(self, site: Site) -> None:
        self.host = site.machines[0].host
        self.on_arrival: Callable[[], object] = lambda: None
        self.told: list[tuple[str, str]] = []
        self.error: HostError | None = None

    def started(self, uuid: str, libvirt_name: str) -> bool:
        self.told.append((uuid, libvirt_name))
        if self.error is not None:
            raise self.error
        if libvirt_name == "nobody":
            return False
        self.host.boot(libvirt_name)
        return True


@pytest.fixture
def site(migrated: Callable[[str], Database], tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(migrated("sqlite"), tmp_path, stack)
        made.client.request("PUT", "/hosts/a", body={})
        made.client.request("PUT", "/vms/web", body={"class": "critical", "host": "a"})
        yield made


@pytest.fixture
def arrivals(site: Site, hook: Hook) -> Iterator[Arrivals]:
    """Of an agent that runs."""
    machine = site.machines[0]
    machine.agent.start()
    made = Arrivals(site)
    with ExitStack() as stack:
        _welcome(made, machine.agent, hook.socket, stack)
        yield made
    machine.agent.stop()


def weight(site: Site) -> object:
    return site.machines[0].host.settings()[KnobKey(domain_uuid("web"), Knob.WEIGHT)]


def test_a_vm_is_set_when_libvirt_says_that_it_is_started(site: Site, arrivals: Arrivals, hook: Hook) -> None:
    hook.call(uuid=domain_uuid("web"))
    assert weight(site) == 10_000
    assert arrivals.told == [(domain_uuid("web"), "web")]


def test_a_vm_that_libvirt_lists_is_set_without_the_hook(site: Site, arrivals: Arrivals) -> None:
    arrivals.host.boot("web")
    ended = arrivals.on_arrival()
    assert isinstance(ended, threading.Event)
    assert ended.wait(HANGS_S)
    assert weight(site) == 10_000


def test_for_what_does_not_run_there_is_no_tick(
    site: Site, arrivals: Arrivals, hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[str] = []
    monkeypatch.setattr(site.machines[0].agent, "tick_now", lambda: ticks.append("made") or threading.Event())
    hook.call(name="nobody")
    arrivals.error = HostError("process of domain web: Permission denied", 13)
    hook.call()
    assert len(arrivals.told) == 2
    assert ticks == []
    assert "libvirt's hook: process of domain web: Permission denied" in caplog.text


def test_without_a_place_for_its_socket_the_agent_works_on(
    site: Site, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    made = Arrivals(site)
    with ExitStack() as stack:
        _welcome(made, site.machines[0].agent, hook.folder / "no folder/hook.sock", stack)
    assert "no socket for libvirt's hook" in caplog.text
    assert made.on_arrival == site.machines[0].agent.tick_now


def install(*options: str | Path) -> str:
    done = subprocess.run([TOP / "deploy/install", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_installed_with_the_agent_and_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=debian\n")
    installed = tmp_path / "etc/libvirt/hooks/qemu.d/equipoise"
    said = f"+ {installed} from deploy/libvirt/hooks/qemu.d/equipoise"
    assert said in install("--dry-run", "--agent", "--root", tmp_path).splitlines()
    assert said not in install("--dry-run", "--manager", "--root", tmp_path).splitlines()
    installed.parent.mkdir(parents=True)
    installed.write_text(HOOK.read_text())
    (installed.parent / "another").touch()
    install("--uninstall", "--root", tmp_path)
    assert [one.name for one in installed.parent.iterdir()] == ["another"]
