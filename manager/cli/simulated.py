"""A simulated machine: `equipoise run --simulate`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from manager.cli.machine import Machine
from manager.errors import SettingsError
from manager.model.limits import EVERYTHING
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.sim.live import LiveSimulation, registrations
from manager.sim.scenario import Scenario
from manager.sim.scenario_files import load_scenario
from manager.sim.sim_host import SimExaminer
from manager.telemetry.push import PushPages

_LISTS = ("/vms", "/applications", "/hosts")


def make_machine(settings: Settings, stack: ExitStack) -> Machine:
    """A ``MakeMachine``: the scenario of the setting ``simulate``. Raises SettingsError."""
    del stack  # nothing runs by itself
    scenario = load_scenario(settings.text("simulate"))
    live = LiveSimulation(scenario, settings.number("simulate_speed"))
    return Machine(live.host, live.telemetry, PushPages(), SimExaminer(scenario), limits=EVERYTHING)


def own_state_dir(settings: Settings) -> Settings:
    """The settings, by default with a ``state_dir`` of the user's own, as a real host's must not be used.

    Raises SettingsError without a home directory.
    """
    if settings.sources["state_dir"] != "default":
        return settings
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "equipoise"
    except RuntimeError as error:
        raise SettingsError(f"setting state_dir: {error}; choose a folder with --state-dir") from error
    return Settings(
        {**settings.values, "state_dir": str(folder)}, {**settings.sources, "state_dir": "default of --simulate"}
    )


def register(client: ManagerClient, scenario: Scenario, host: str, policy: str) -> None:
    """Register what is not registered yet. Raises ManagerUnavailable."""
    registered = {f"{path}/{row['name']}" for path in _LISTS for row in client.items(path)}
    for path, body in registrations(scenario, host, policy):
        if path not in registered:
            client.request("PUT", path, body=body)
