"""The command of the spike demonstration where static weights stand the spike: nothing is shown, and that is a failure.

Everything that needs VMs is replaced: what runs is what a user sees, from the command to its exit status.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from deploy.lab.demo import __main__ as command
from deploy.lab.demo import picture, spike
from deploy.lab.demo.scene import spike_scene
from deploy.lab.demo.stage import Stage
from tests.unit.test_lab_spike import GOOD, run

STOOD = [run("priority", (50, 60), (50, 62)), *GOOD[1:]]
"""What static weights stand: 62 ms in the spike, for an SLA of 100 ms."""


def stage_of(stack: Any) -> Stage:
    """A stage without VMs, and nothing to restore."""
    service = MagicMock()
    service.decisions.return_value = 0
    chosen = SimpleNamespace(accelerator="kvm", reason="none is needed")
    return Stage(MagicMock(), spike_scene(88.0), chosen, MagicMock(), service, MagicMock(), {}, stack)  # type: ignore[arg-type]


@pytest.mark.parametrize(("runs", "status"), [(GOOD, 0), (STOOD, 1)], ids=["violated", "stood"])
def test_a_comparison_in_which_static_weights_stood_the_spike_is_no_success(
    runs: list[dict[str, Any]], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {one["policy"]: one for one in runs}
    for one in runs:
        for application in one["applications"].values():
            application["p95_ms"] = [part["p95_ms"] for part in application["parts"].values()]

    def set_up(_console: object, stack: object, _scene: object, tune: Any) -> Stage:
        stage = stage_of(stack)
        tune(stage.scene, stage.lab, stage.meter)
        return stage

    monkeypatch.setattr(spike, "set_up", set_up)
    monkeypatch.setattr(spike, "paused", lambda *_given: nullcontext())
    monkeypatch.setattr(spike, "_capacity_rps", lambda *_given: 88.0)
    monkeypatch.setattr(spike, "_run", lambda _stage, policy, *_given: seen[policy])
    monkeypatch.setattr(spike, "time", MagicMock())
    monkeypatch.setattr("deploy.lab.demo.stage.all_settings", lambda _vms: {})
    monkeypatch.setattr(command, "only_user", lambda *_given, **_named: nullcontext(), raising=False)
    for module in (command, picture):
        monkeypatch.setattr(module, "draw", lambda _result, _file: None, raising=False)
    ended = CliRunner().invoke(command.main, ["--scenario", "spike", "--picture", str(tmp_path / "spike.png")])
    assert ended.exit_code == status, ended.output
