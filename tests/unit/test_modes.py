"""`equipoise release`, `observe` and `enforce`: they answer when the agent has acted on them, and not before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from manager.cli import main, mode_commands
from manager.protocol.client import ManagerClient
from tests.fakes.manager import Wire

NUMBER = 7
VM = {"status_host": "h1", "status": {"knobs": []}}


def tick(orders: int | None, owned_knobs: int = 0, number: int = 1) -> dict[str, Any]:
    return {"assignment_revision": orders, "owned_knobs": owned_knobs, "mode": "enforce", "number": number}


def changed(owned: bool) -> dict[str, Any]:
    return VM | {"status": {"knobs": [{"owned": False}, {"owned": owned}]}}


@dataclass
class Manager:
    """Answers each tick and each VM in turn, the last one again and again."""

    ticks: list[Any]
    vms: list[dict[str, Any]] = field(default_factory=lambda: [VM])
    patches: list[tuple[str, Any]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        if request.method == "PATCH":
            self.patches.append((path, json.loads(request.content)))
            return httpx.Response(200, json={})
        self.reads.append(path)
        if path.endswith("/assignment"):
            return httpx.Response(200, json={}, headers={"Equipoise-Revision": str(NUMBER)})
        answers = self.vms if path.startswith("/vms/") else self.ticks
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return httpx.Response(200, json=answer if path.startswith("/vms/") else {"tick": answer})


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a command against such a manager, on a machine without an agent's lock or journal."""
    monkeypatch.setattr(mode_commands, "release_offline", lambda *_arguments: None)
    monkeypatch.setattr(mode_commands.time, "sleep", lambda _seconds: None)

    def run(manager: Manager, *arguments: str) -> Result:
        client = ManagerClient("http://manager", "", Wire(manager.handle))
        monkeypatch.setattr(mode_commands, "connect", lambda _settings: client)
        result = CliRunner().invoke(main, [*arguments, "--state-dir", str(tmp_path)])
        client.close()
        return result

    return run


@pytest.mark.parametrize("command", ["release", "observe"])
def test_a_host_is_released_when_a_tick_acted_on_it_and_nothing_is_changed_any_more(call: Any, command: str) -> None:
    manager = Manager([None, tick(None), tick(NUMBER - 1), tick(NUMBER, 2), tick(NUMBER + 1)])
    result = call(manager, command, "--host", "h1")
    assert result.exit_code == 0, result.output
    assert manager.patches == [("/hosts/h1", {"mode": {"release": "released"}.get(command, command)})]
    assert manager.reads.count("/hosts/h1") == 5


def test_enforcing_does_not_wait_for_settings_to_go(call: Any) -> None:
    manager = Manager([tick(NUMBER - 1), tick(NUMBER, 2)])
    result = call(manager, "enforce", "--host", "h1")
    assert (result.exit_code, result.output) == (0, "h1: enforce\n")
    assert manager.reads.count("/hosts/h1") == 2


def test_a_vm_that_was_released_before_the_agent_acted_is_waited_for(call: Any) -> None:
    """After `enforce --vm` nothing is changed yet: that nothing is changed says nothing before the tick does."""
    manager = Manager(
        [tick(NUMBER - 1), tick(NUMBER - 1), tick(NUMBER), tick(NUMBER)], [VM, changed(True), changed(False)]
    )
    result = call(manager, "release", "--vm", "web", "--host", "h1")
    assert (result.exit_code, result.output) == (0, "web: released, every setting is restored\n")
    assert manager.patches == [("/vms/web", {"mode": "released"})]
    assert manager.reads == [
        "/vms/web",
        "/hosts/h1/assignment",
        *("/hosts/h1", "/hosts/h1"),
        *("/hosts/h1", "/vms/web") * 2,
    ]


def test_a_vm_that_is_enforced_follows_its_host(call: Any) -> None:
    manager = Manager([tick(NUMBER)], [changed(True)])
    result = call(manager, "enforce", "--vm", "web")
    assert (result.exit_code, result.output) == (0, "web: enforce\n")
    assert manager.patches == [("/vms/web", {"mode": None})]


def test_a_vm_that_no_agent_sees_is_not_waited_for(call: Any) -> None:
    manager = Manager([None], [{"status_host": None, "status": None}])
    assert call(manager, "observe", "--vm", "web").exit_code == 0
    assert manager.reads == ["/vms/web"]


def test_an_agent_that_does_not_act_is_told_of(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_commands, "_WAIT_S", 0.05)
    result = call(Manager([tick(NUMBER - 1)]), "release", "--host", "h1")
    assert result.exit_code == 1
    assert "did not report within" in result.output


def test_an_agent_that_began_with_what_it_remembered_is_waited_for(call: Any) -> None:
    manager = Manager([tick(None, number=4), tick(NUMBER, number=5)])
    assert call(manager, "enforce", "--host", "h1").output == "h1: enforce\n"


def test_a_local_release_asks_no_manager_and_leaves_the_mode(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager([None])
    held = call(manager, "release", "--local")
    assert held.exit_code == 1
    assert "an agent runs here" in held.output
    monkeypatch.setattr(mode_commands, "release_offline", lambda *_arguments: "3 settings restored")
    done = call(manager, "release", "--local")
    assert (done.exit_code, done.output) == (0, "3 settings restored\n")
    assert (manager.patches, manager.reads) == ([], [])
    elsewhere = call(manager, "release", "--local", "--host", "h1")
    assert (elsewhere.exit_code, "--local is about this machine" in elsewhere.output) == (2, True)
