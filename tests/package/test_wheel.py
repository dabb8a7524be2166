"""The wheel, installed away from the checkout, has everything: command, policies, migrations."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.package.conftest import TOP, run
from tests.unit.test_load_run import after, serving


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
