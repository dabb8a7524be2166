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
from tests.deploy.test_install import token_name
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


@with_ansible
@pytest.mark.parametrize("host", ["kvm7", "k" * 63])
def test_it_names_a_token_as_the_installer_does(tmp_path: Path, host: str) -> None:
    [made] = re.findall(r'- "(.*)"\n +vars:\n +agent: "(.*)"', (FOLDER / "roles/equipoise/tasks/main.yml").read_text())
    name, agent = made
    given = {"agent": agent, "ansible_facts": {"nodename": host}}
    done = subprocess.run(
        ["ansible", "localhost", "--module-name=debug", "--args", f"msg={name!r}", "--extra-vars", json.dumps(given)],
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f'"msg": "{token_name(f"agent-{host}")}"' in done.stdout, done.stdout + done.stderr


@with_ansible
def test_an_installation_that_failed_is_tried_again(tmp_path: Path) -> None:
    programs, package, inventory = tmp_path / "bin", tmp_path / "equipoise.deb", tmp_path / "inventory.ini"
    programs.mkdir()
    package.write_text("first")
    inventory.write_text("localhost ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n")
    tasks, _, _ = (FOLDER / "roles/equipoise/tasks/main.yml").read_text().partition("- name: Settings")
    (tmp_path / "tasks.yml").write_text(
        tasks.replace("/var/cache", str(tmp_path)).replace("  notify: Restart equipoise\n", "")
    )
    (tmp_path / "site.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - include_tasks: tasks.yml\n"
    )
    apt, given = programs / "apt-get", f"equipoise_package={package} equipoise_role=agent"

    def installed(status: int) -> list[str]:
        """How a run installs it, where that ends with a status."""
        apt.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\nexit {status}\n')
        apt.chmod(0o755)
        (tmp_path / "said").write_text("")
        done = subprocess.run(
            ["ansible-playbook", "--inventory", inventory, "--extra-vars", given, tmp_path / "site.yml"],
            env=os.environ
            | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp")}
            | {"PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is (status == 0), done.stdout + done.stderr
        return (tmp_path / "said").read_text().splitlines()

    failed, again, then = installed(100), installed(0), installed(0)
    assert (len(failed), len(again), len(then)) == (1, 1, 0)
    assert "--force-confold" in again[0], "dpkg would ask about the settings that the role has written"
