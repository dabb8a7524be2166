"""Samples of settings and of log rotation, read by who will read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from manager.settings import load_settings
from tests.deploy.units import TOP

SAMPLES = sorted((TOP / "deploy/samples").rglob("*.toml"))
LOGROTATE = TOP / "deploy/logrotate/equipoise"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.relative_to(TOP / "deploy/samples")))
def test_a_sample_of_settings_is_taken_also_with_all_that_it_proposes(sample: Path, tmp_path: Path) -> None:
    text = sample.read_text()
    assert load_settings(sample, {}, {}).sources["interval_s"] == str(sample)
    proposed = tmp_path / sample.name
    proposed.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    assert len(load_settings(proposed, {}, {}).values) == len(load_settings(None, {}, {}).values)
    assert proposed.read_text() != text


def test_manager_and_agents_of_the_samples_fit_together() -> None:
    manager, agent = (load_settings(TOP / f"deploy/samples/fleet/{name}.toml", {}, {}) for name in ("manager", "agent"))
    assert manager.number("interval_s") == agent.number("interval_s")
    assert agent.text("manager_url") == f"http://{manager.text('listen_host')}:{manager.whole('listen_port')}"
    assert manager.state_dir != agent.state_dir, "the manager's is another user's"


def logrotate(folder: Path, *options: str) -> str:
    sample = folder / "logrotate"
    sample.write_text(LOGROTATE.read_text().replace("/var/log/equipoise", str(folder / "logs")))
    sample.chmod(0o644)
    command = ["logrotate", "--state", folder / "state", *options, sample]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    return done.stderr


def test_logs_are_rotated_under_the_process_that_holds_them(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir(mode=0o755)
    with (folder / "agent.log").open("a") as log:
        log.write("one\n")
        log.flush()
        assert "considering log" in logrotate(tmp_path, "--debug")
        assert [one.name for one in folder.iterdir()] == ["agent.log"]
        logrotate(tmp_path, "--force")
        log.write("two\n")
    assert (folder / "agent.log.1").read_text() == "one\n"
    assert (folder / "agent.log").read_text() == "two\n"
    assert len(list(folder.iterdir())) == 2
