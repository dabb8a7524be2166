"""The wheel, installed away from the checkout, has everything: command, policies, migrations."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.unit.test_load_run import after, serving

TOP = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("manager", "policies", "migrations", "webui"):
        shutil.copytree(TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an environment with the wheel; what it depends on is borrowed from this environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    [site] = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(folder / "bin/pip", "install", "--quiet", "--no-deps", wheel, cwd=folder)
    return folder


def test_the_wheel_holds_migrations_and_typing_marks_but_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("migrations/versions/0001") for name in names)
    assert {"migrations/env.py", "migrations/script.py.mako", "manager/py.typed", "policies/py.typed"} <= set(names)
    assert "manager/sim/scenarios/spike.toml" in names
    pages = {str(path.relative_to(TOP)) for path in (TOP / "webui").rglob("*") if "__pycache__" not in path.parts}
    assert {name for name in pages if (TOP / name).is_file()} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "deploy/"))]


def test_it_runs_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin/equipoise"
    assert "Usage: equipoise" in run(command, "--help", cwd=tmp_path)
    where = run(installed / "bin/python", "-c", "import manager; print(manager.__file__)", cwd=tmp_path)
    assert str(installed) in where
    state = tmp_path / "state"
    assert "base" in run(command, "db", "current", "--state-dir", state, cwd=tmp_path)
    newest = max(file.name[:4] for file in (TOP / "migrations/versions").glob("0*.py"))
    assert f"at revision {newest}" in run(command, "db", "upgrade", "--state-dir", state, cwd=tmp_path)
    script = "from policies.installed import load_policies; print(sorted(load_policies()))"
    assert "['auto', 'equal', 'fair', 'heracles', 'isolation', 'parties', 'priority']" in run(
        installed / "bin/python", "-c", script, cwd=tmp_path
    )


def test_it_generates_load(installed: Path, tmp_path: Path) -> None:
    with serving(after(lambda _: 0.001)) as server:
        options = ("--rate", "100", "--duration", "0.5", "--warmup", "0", "--connections", "4", "--json")
        printed = run(installed / "bin/equipoise", "load", f"http://127.0.0.1:{server.port}/", *options, cwd=tmp_path)
    document = json.loads(printed)
    assert document["answered"] == document["sent"] > 20
