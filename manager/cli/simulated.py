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
from manager.sim.sim_findings import SimExaminer
from manager.telemetry.push import PushPages

_LISTS = ("/vms", "/applications", "/hosts")


def make_machine(settings: Settings, stack: ExitStack) -> Machine:
    """A ``MakeMachine``: the scenario of the setting ``simulate``. Raises SettingsError."""
    del stack  # nothing runs by itself
    scenario = load_scenario(settings.text("simulate"))
    live = LiveSimulation(scenario, settings.number("simulate_speed"))
    return Machine(live.host, live.telemetry, PushPages(), SimExaminer(scenario), limits=EVERYTHING)


def own_state_dir(settings: Settings) -> Settings:
    """The settings with a ``state_dir`` of the user's own where none was given: it must not be that of a real host.

    Raises SettingsError where there is no home for it.
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
    """Register what is not registered yet; what is stays as it is, whatever an operator made of it.

    Raises ManagerUnavailable.
    """
    known = {f"{path}/{one['name']}" for path in _LISTS for one in client.items(path)}
    for path, body in registrations(scenario, host, policy):
        if path not in known:
            client.request("PUT", path, body=body)
