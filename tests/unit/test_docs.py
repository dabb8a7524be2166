"""What exists is documented, and what is documented exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from manager.cli import main
from manager.loop.metrics import AgentMetrics
from manager.settings import SETTINGS, Setting

TOP = Path(__file__).parents[2]
CONFIGURATION = (TOP / "docs/configuration.md").read_text()
OPERATIONS = (TOP / "docs/operations.md").read_text()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_documented_with_its_range(setting: Setting) -> None:
    [row] = [line for line in CONFIGURATION.splitlines() if line.startswith(f"| `{setting.name}` |")]
    default = str(setting.default)
    if isinstance(setting.default, float):
        default = f"{setting.default:g}"
    if setting.name == "host_name":
        default = "this machine's name"
    assert default in row
    assert setting.range_text in row or setting.name == "managed_cpus"


def test_no_documented_setting_is_unknown() -> None:
    names = set(re.findall(r"^\| `([a-z_]+)` \|", CONFIGURATION, re.MULTILINE))
    assert names == {setting.name for setting in SETTINGS}


def test_every_metric_of_the_agent_is_documented() -> None:
    for family in AgentMetrics().registry.collect():
        assert family.name in OPERATIONS, f"{family.name} is missing from docs/operations.md"


COMMANDS = [[], *([name] for name in main.list_commands(click.Context(main)))]
COMMANDS += [["db", name] for name in ("upgrade", "downgrade", "current")]
COMMANDS += [["token", name] for name in ("create", "list", "revoke")]
COMMANDS += [["user", name] for name in ("create", "list", "password", "delete")]
COMMANDS += [["profile", "cache"]]
COMMANDS += [["sim", name] for name in ("list", "run", "compare")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "equipoise")
def test_every_command_has_help_with_a_summary(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output
    if command[-1:] not in (["db"], ["token"], ["user"], ["profile"], ["sim"]):
        assert "EXAMPLES" in result.output or "MODES" in result.output
