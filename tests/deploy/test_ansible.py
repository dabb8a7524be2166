"""The role of Ansible: its syntax, what it would do here, and the settings that it writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jinja2 import Environment

from manager.settings import load_settings
from tests.deploy.units import TOP

FOLDER = TOP / "deploy/ansible"
TEMPLATE = FOLDER / "roles/equipoise/templates/settings.toml.j2"

with_ansible = pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="ansible-core is not installed")


def playbook(folder: Path, *options: str | Path) -> str:
    done = subprocess.run(
        ["ansible-playbook", *options, FOLDER / "site.yml"],
        env=os.environ
        | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder), "ANSIBLE_LOCAL_TEMP": str(folder / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@with_ansible
def test_its_syntax_with_the_inventory_of_a_hundred(tmp_path: Path) -> None:
    inventory = FOLDER / "inventory.ini"
    playbook(tmp_path, "--syntax-check", "--inventory", inventory)
    listed = playbook(tmp_path, "--list-hosts", "--inventory", inventory)
    assert set(re.findall(r"hosts \((\d+)\)", listed)) == {"1", "99"}


@with_ansible
def test_what_it_would_do_here(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    host = "localhost ansible_connection=local ansible_python_interpreter=/usr/bin/python3 ansible_become=false"
    inventory.write_text(f"[equipoise_managers]\n{host}\n[equipoise_agents]\nlocalhost\n")
    package = tmp_path / "equipoise.deb"
    package.touch()
    given = ["--inventory", inventory, "--extra-vars", f"equipoise_package={package}"]
    said = playbook(tmp_path, "--check", *given)
    assert re.search(r"localhost +: ok=\d+ .*failed=0", said), said
    assert said.count("TASK [equipoise : Copy the package]") == 2


def test_the_settings_that_it_writes_are_taken(tmp_path: Path) -> None:
    environment = Environment(trim_blocks=True)
    environment.filters["to_json"] = json.dumps
    given = {"manager_url": "https://equipoise.example.org", "interval_s": 2, "log_format": "json", "min_samples": 30}
    file = tmp_path / "equipoise.toml"
    file.write_text(environment.from_string(TEMPLATE.read_text()).render(settings=given))
    settings = load_settings(file, {}, {})
    assert {name: settings.values[name] for name in given} == given
