"""The definition of the manager's image, by the rules that hadolint and the OCI's conventions have; it is not built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from manager.settings import load_settings
from tests.deploy.test_proxy import process, until_it_listens
from tests.deploy.units import TOP
from tests.ports import reserved_ports

TEXT = (TOP / "deploy/container/Containerfile").read_text()


def instructions() -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\\\n", " ", TEXT).splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


FOUND = list(instructions())
LAST = FOUND[max(at for at, (name, _) in enumerate(FOUND) if name == "FROM") :]


def only(name: str) -> str:
    [value] = [rest for found, rest in LAST if found == name]
    return value


def health_check() -> list[str]:
    command: list[str] = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
    return command


def test_it_runs_as_an_ordinary_user_and_is_ended_as_the_manager_expects() -> None:
    assert int(only("USER").partition(":")[0]) > 0
    assert only("STOPSIGNAL") == "SIGTERM"
    assert json.loads(only("ENTRYPOINT")) == ["equipoise"]
    assert json.loads(only("CMD")) == ["manager"]


def test_images_are_named_with_a_version_and_packages_leave_no_lists() -> None:
    for name, rest in FOUND:
        if name == "FROM":
            assert re.fullmatch(r"[\w./-]+:\d[\w.-]+( AS \w+)?", rest), rest
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        assert name != "ADD"
        assert "sudo" not in rest
        if "pip install" in rest:
            assert "--no-cache-dir" in rest


def test_its_settings_are_taken_and_what_it_copies_exists() -> None:
    variables = dict(re.findall(r"(EQUIPOISE_\w+)=(\S+)", only("ENV")))
    settings = load_settings(None, variables, {})
    assert settings.text("listen_host") == "0.0.0.0"
    assert str(settings.whole("listen_port")) == only("EXPOSE")
    assert only("VOLUME") == str(settings.state_dir)
    for name, rest in FOUND:
        if name == "COPY" and not rest.startswith("--from"):
            assert all((TOP / source).exists() for source in rest.split()[:-1]), rest


def test_the_health_check_tells_a_manager_that_answers_from_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    python, *arguments = health_check()
    assert python == "python"
    with ExitStack() as stack:
        [port] = stack.enter_context(reserved_ports(1))
        command = [sys.executable, *(one.replace(":8750/", f":{port}/") for one in arguments)]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
        stack.enter_context(
            process(
                [sys.executable, "-m", "manager.cli", "manager"],
                EQUIPOISE_STATE_DIR=str(tmp_path_factory.mktemp("state")),
                EQUIPOISE_LISTEN_PORT=str(port),
            )
        )
        until_it_listens(port)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
