"""An upgrade and the way back, with real VMs: the manager first, then the agent, over what an older version left."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from manager.protocol.client import ManagerClient
from tests.deploy.units import TOP
from tests.live.conftest import BATCH, CACHE, STRANGER, Service, held, is_untouched, terminate, until, weight
from tests.live.test_control import CRITICAL, smallest
from tests.older import REVISION, older_commit

pytestmark = pytest.mark.live


@pytest.fixture
def older(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The same service by the older program."""
    tree = tmp_path_factory.mktemp("older")
    commit = older_commit()
    if not commit:
        pytest.skip("this checkout has no history: the older program is not in it")
    packed = subprocess.run(["git", "-C", TOP, "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", tree], input=packed.stdout, check=True)
    note_entry_points(tree)
    made = replace(service, tree=tree)
    yield made
    made.client.close()


def note_entry_points(tree: Path) -> None:
    """Without metadata of its own a tree would find the policies of the installed, newer program."""
    setup = ConfigParser()
    setup.read(tree / "setup.cfg")
    points = setup["options.entry_points"]
    folder = tree / "equipoise.egg-info"
    folder.mkdir()
    version = setup["metadata"]["version"]
    (folder / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: equipoise\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text("".join(f"[{group}]{points[group]}\n" for group in points))


def start(service: Service, program: str) -> subprocess.Popen[bytes]:
    return service.spawn("-m", "manager.cli", program)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


def decisions(client: ManagerClient) -> set[str]:
    return {one["id"] for one in client.items("/decisions")}


def complaints(service: Service) -> list[str]:
    """What an operator was told that is not mere news, but for a silence: an agent was away while it was exchanged."""
    events = service.client.items("/events")
    return [one["message"] for one in events if one["severity"] != "info" and one["kind"] != "host-silent"]


def controls(service: Service) -> None:
    """Wait until the agent that runs has ticked some times, and both VMs have their weights."""
    service.ticks()
    until(lambda: (weight(CACHE), weight(BATCH)) == (CRITICAL, smallest()), "the weights to be in force")


def test_upgrade_and_rollback(vms: dict[str, str], service: Service, older: Service) -> None:
    stranger = held(STRANGER)
    both = older.run()  # makes the tokens
    assert older.cli("db", "current").split()[0] == REVISION
    older.register()
    controls(older)
    assert terminate(both) == 0
    assert is_untouched(CACHE)

    manager, agent = start(older, "manager"), start(older, "agent")
    until(older.reports, "the older agent to report")
    controls(older)
    before = decisions(older.client)

    assert terminate(manager) == 0
    manager = service.manager()
    controls(service)  # the older agent and the newer manager
    assert service.cli("db", "current").split()[0] >= REVISION
    assert before <= decisions(service.client), "all of the older tables is there"

    in_force = held(CACHE, BATCH)
    kill(agent)
    assert held(CACHE, BATCH) == in_force
    agent = start(service, "agent")
    number = service.tick_number()
    until(lambda: service.tick_number() != number, "the newer agent to report")
    controls(service)
    assert held(CACHE, BATCH) == in_force, "taken over by the older journal"
    assert complaints(service) == []
    known = decisions(service.client)

    kill(agent)
    assert terminate(manager) == 0
    service.cli("db", "downgrade", "--yes", REVISION)
    manager, agent = start(older, "manager"), start(older, "agent")
    number = until(older.reports, "the older agent to report")["number"]
    controls(older)
    assert held(CACHE, BATCH) == in_force, "taken over by the newer journal"
    assert known <= decisions(older.client)
    assert complaints(older) == []
    assert terminate(agent) == 0
    assert is_untouched(CACHE)
    assert is_untouched(BATCH)
    assert held(STRANGER) == stranger
    assert terminate(manager) == 0
