"""`equipoise run --simulate`: the whole service on a simulated host, without root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from manager.cli import main
from manager.errors import ManagerUnavailable
from manager.protocol.client import ManagerClient
from tests.ports import reserved_ports

NOBODY = 65534
TOP = Path(__file__).parents[2]
START_S = 200.0
DROP = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    # The interpreter may lie in a folder of root's: it may be read, but nothing of root's may be written.
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search"),
)


@pytest.fixture
def unprivileged() -> tuple[str, ...]:
    """What a command begins with to have no privileges."""
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv") or subprocess.run([*DROP, "true"], check=False, capture_output=True).returncode:
        pytest.skip("privileges cannot be given up here")
    return DROP


class Service:
    """`equipoise run --simulate spike` in a folder."""

    def __init__(self, sources: Path, folder: Path, unprivileged: tuple[str, ...], ports: Sequence[int]) -> None:
        self.folder = folder
        self.port, self.agent_port = ports
        settings = {
            "STATE_DIR": folder / "state",
            "LISTEN_PORT": self.port,
            "MANAGER_URL": self.url,
            "AGENT_LISTEN_PORT": self.agent_port,
            "HOST_NAME": "sim1",
            "INTERVAL_S": 0.5,
            "SYNC_S": 0.1,
        }
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(sources),
            **{f"EQUIPOISE_{name}": str(one) for name, one in settings.items()},
        }
        # SIGHUP is ignored where the tests run under `nohup`, and then by what they start, too.
        served = [*unprivileged, sys.executable, "-m", "manager.cli", "run", "--simulate", "spike"]
        command = ["env", "--default-signal=HUP", *served]
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--simulate-speed", "20"],
                cwd=sources,
                env=environ,
                stdout=log,
                stderr=log,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def client(self) -> ManagerClient:
        return ManagerClient(self.url, (self.folder / "state/admin.token").read_text().strip())

    def until(self, what: Callable[[ManagerClient], Any]) -> Any:
        """The first answer that is not empty."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            try:
                client = self.client()
                try:
                    if found := what(client):
                        return found
                finally:
                    client.close()
            except (ManagerUnavailable, FileNotFoundError):
                pass  # not up yet
            time.sleep(0.1)
        raise AssertionError(self.log)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """The packages in a folder that everybody may read: access(2) knows nothing of the capability to read others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for package in ("manager", "policies", "migrations", "webui"):
            shutil.copytree(TOP / package, folder / package)
        yield folder


@pytest.fixture
def start(sources: Path, unprivileged: tuple[str, ...], tmp_path: Path) -> Iterator[Callable[[], Service]]:
    if unprivileged:
        os.chown(tmp_path, NOBODY, NOBODY)
    started: list[Service] = []
    with reserved_ports(2) as ports:

        def begin() -> Service:
            started.append(Service(sources, tmp_path, unprivileged, ports))
            return started[-1]

        yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_the_whole_service_runs_without_root_or_libvirt(start: Callable[[], Service]) -> None:
    service = start()
    ticks = service.until(lambda client: (found := client.items("/hosts/sim1/ticks"))[4:] and found)
    assert {one["policy"] for one in ticks} == {"fair"}
    assert {vm["vm"] for vm in ticks[0]["vms"]} == {"calm-web", "spiking-web", *(f"batch-{n}" for n in range(1, 5))}
    windows = service.until(lambda client: client.items("/applications/calm/windows", buckets="true")[2:])
    assert all(sum(one["buckets"].values()) == one["count"] for one in windows)
    service.until(lambda client: client.get("/applications/calm")["window"]["count"])
    weights = service.until(
        lambda client: [one for one in client.items("/decisions", knob="weight") if one["outcome"] == "applied"]
    )
    assert {"batch-1", "calm-web"} <= {one["vm"] for one in weights}
    offers = service.until(lambda client: client.get("/hosts/sim1/capabilities"))
    assert (offers["kernel"], offers["warnings"]) == ("simulated", ["simulated host: scenario spike"])
    found = service.until(lambda client: client.get("/hosts/sim1/findings"))["findings"]
    assert all(one["detail"].startswith("simulated: ") for one in found)
    [domain] = service.until(lambda client: client.items("/hosts/sim1/domains", registered="true")[:1])
    assert domain["libvirt_name"] == domain["registered_as"]
    places = ["--manager-url", service.url, "--state-dir", str(service.folder / "state")]
    shown = subprocess.run(
        [sys.executable, "-m", "manager.cli", "status", *places], check=True, capture_output=True, text=True
    )
    assert "sim1: simulated host: scenario spike" in shown.stdout
    maps = [Path(f"/proc/{one}/maps").read_text() for one in children(service.process.pid)]
    assert len(maps) == 2
    assert not any("libvirt" in one for one in maps)
    password = service.folder / "state/admin-password"
    assert f"dashboard at {service.url}/, for admin with the password in {password}\n" in service.log
    assert password.stat().st_mode & 0o777 == 0o600

    # What an operator sets is still so after the next start.
    service.until(lambda client: client.request("PUT", "/hosts/sim1", body={"policy": "equal"}))
    sla = {"response_time_ms": 5}
    service.until(lambda client: client.request("PUT", "/applications/calm", body={"sla": sla}))
    assert service.stop() == 0, service.log
    assert "everything is restored" in service.log
    again = start()
    newest = again.until(lambda client: [one for one in client.items("/hosts/sim1/ticks") if one["policy"] == "equal"])
    assert newest
    assert again.until(lambda client: client.get("/applications/calm"))["sla"]["response_time_ms"] == 5
    release = ["release", "--host-name", "sim1", *places[2:], "--manager-url", again.url]
    released = subprocess.run(
        [sys.executable, "-m", "manager.cli", *release], check=True, capture_output=True, text=True
    )
    assert released.stdout == "sim1: released, every setting is restored\n"
    for command, *options in (("enforce", "--vm", "calm-web"), ("release", "--vm", "calm-web"), ("enforce",)):
        subprocess.run([sys.executable, "-m", "manager.cli", command, *options, *release[1:]], check=True)
    vm = again.until(lambda client: client.get("/vms/calm-web"))
    assert vm["status"]["mode"] == "released"
    assert not any(knob["owned"] for knob in vm["status"]["knobs"])
    assert again.stop() == 0, again.log


def test_a_stop_while_the_manager_starts_is_a_clean_end(start: Callable[[], Service]) -> None:
    service = start()
    deadline = time.monotonic() + START_S
    while not children(service.process.pid):
        assert time.monotonic() < deadline, service.log
        time.sleep(0.01)
    assert service.stop() == 0, service.log


@pytest.mark.parametrize("whose", ["run", "agent"])
def test_everything_is_restored_at_sighup(start: Callable[[], Service], whose: str) -> None:
    """As of a terminal that is closed."""
    service = start()
    service.until(lambda client: [one for one in client.items("/decisions", knob="weight") if one["after"] != "100"])
    agent = next(pid for pid in children(service.process.pid) if b"agent" in command_of(pid))
    os.kill(service.process.pid if whose == "run" else agent, signal.SIGHUP)
    assert service.process.wait(START_S) == (0 if whose == "run" else 1), service.log
    assert "agent stopped, everything is restored" in service.log, service.log


def command_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def children(pid: int) -> list[int]:
    """Manager and agent; setpriv becomes the command itself."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--simulate", "nonexistent"), "scenario 'nonexistent' is neither one of"),
        (("--simulate", "spike", "--simulate-speed", "0"), "simulate_speed = '0' (from flag --simulate-speed)"),
        (("--simulate", "spike"), "is that of a real host; choose another folder"),
    ],
)
def test_what_is_refused_is_named_before_anything_starts(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "journal.db").touch()
    result = CliRunner().invoke(main, ["run", "--state-dir", str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert says in result.output
    assert "Traceback" not in result.output
    assert [one.name for one in tmp_path.iterdir()] == ["journal.db"]


def test_a_port_at_which_another_manager_listens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        arguments = ["run", "--simulate", "spike", "--state-dir", str(tmp_path), "--listen-port", port]
        result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, f"cannot listen on 127.0.0.1 port {port}: " in result.output) == (1, True), result.output
    assert not (tmp_path / "equipoise.db").exists()


def test_a_simulated_hosts_folder_is_not_used_for_a_real_one(tmp_path: Path) -> None:
    for name in ("journal.db", "simulated"):
        (tmp_path / name).touch()
    for command in ("run", "agent"):
        result = CliRunner().invoke(main, [command, "--state-dir", str(tmp_path), "--root-dir", str(tmp_path)])
        assert (result.exit_code, "is that of a simulated host" in result.output) == (1, True), result.output


def test_the_usual_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from manager.cli.simulated import own_state_dir
    from manager.settings import load_settings

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    usual = own_state_dir(load_settings(None, {}, {"simulate": "spike"}))
    assert (usual.state_dir, usual.sources["state_dir"]) == (tmp_path / "equipoise", "default of --simulate")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert own_state_dir(load_settings(None, {}, {})).text("state_dir") == "/home/me/.local/state/equipoise"
    given = load_settings(None, {}, {"state_dir": "/x"})
    assert own_state_dir(given) is given
