"""Rules that are read off the source: who imports whom (.importlinter), and where kernel paths may stand."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
OURS = ("manager", "policies", "webui", "migrations")
HEAVY = {"flask", "flask_openapi3", "werkzeug", "uvicorn", "sqlalchemy", "alembic", "libvirt"}
KERNEL_PATHS = ("/sys/", "/proc/")
KERNEL_PATHS_IN = "manager/host/"
FILES = [path.relative_to(TOP) for package in OURS for path in sorted((TOP / package).rglob("*.py"))]

PLANTED = {
    "manager/model/histogram.py": ("import manager.control.diff", "Imports lead down"),
    "manager/control/diff.py": ("def f() -> None:\n    import time", "Decisions are pure"),
    "manager/loop/tick.py": ("from manager.host.handle import VmHandle", "know the host by its port"),
    "manager/loop/observer.py": ("import manager.telemetry.push", "know response times by their port"),
    "manager/replay/policy_replay.py": ("from policies.fair import POLICY", "Policies are found by their registry"),
    "manager/cli/agent_command.py": ("from manager.store import tokens", "The agent loads no web framework"),
    "manager/telemetry/push.py": ("from libvirt import open", "libvirt is spoken to in manager.host"),
    "manager/settings.py": ("import flask.views", "Flask serves the interface"),
    "manager/serving/wsgi.py": ("from sqlalchemy.orm import Session", "The database is the store's"),
    "manager/api/app.py": ("import uvicorn", "uvicorn is served by"),
    "manager/store/jobs.py": ("from apscheduler.triggers import interval", "APScheduler runs on monotonic time"),
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_who_imports_whom() -> None:
    linted = lint_imports(TOP)
    assert linted.returncode == 0, linted.stdout


def test_every_contract_finds_what_breaks_it(tmp_path: Path) -> None:
    shutil.copy(TOP / ".importlinter", tmp_path)
    for package in OURS:
        shutil.copytree(
            TOP / package,
            tmp_path / package,
            ignore=lambda _, names: {n for n in names if "." in n} - {n for n in names if n.endswith(".py")},
        )
    for file, (planted, _) in PLANTED.items():
        path = tmp_path / file
        path.write_text(f"{path.read_text()}\n{planted}\n")
    broken = [line for line in lint_imports(tmp_path).stdout.splitlines() if " BROKEN" in line]
    assert len(broken) == len(PLANTED) == (TOP / ".importlinter").read_text().count("name =")
    for _, contract in PLANTED.values():
        assert any(contract in line for line in broken), contract


def docstrings(tree: ast.AST) -> set[int]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    return {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}


def kernel_paths(source: str) -> list[str]:
    """Strings in ``source`` that hold a path of the kernel; docstrings may tell of them."""
    if not any(path in source for path in KERNEL_PATHS):
        return []
    tree = ast.parse(source)
    described = docstrings(tree)
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in described]
    texts = [node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value) for node in constants]
    return [text for text in texts if any(path in text for path in KERNEL_PATHS)]


def test_kernel_paths_stand_in_one_room() -> None:
    outside = {str(file): kernel_paths((TOP / file).read_text()) for file in FILES}
    found = {file: texts for file, texts in outside.items() if texts}
    assert found, "the rule looks at something"
    assert [file for file in found if not file.startswith(KERNEL_PATHS_IN)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('PATH = "/proc/self/stat"', 1),
        ('def f(pid):\n    return f"/proc/{pid}/stat"', 1),
        ('open(b"/sys/kernel/x")', 1),
        ('"""Reads /proc/self."""\n\ndef f():\n    """Not /sys/x."""\n', 0),
    ],
)
def test_kernel_paths_are_found_where_they_are(source: str, count: int) -> None:
    assert len(kernel_paths(source)) == count


def test_the_agent_loads_neither_web_framework_nor_database_nor_libvirt() -> None:
    """The rules look at one file; this looks at what they come to."""
    loop = [".".join(file.with_suffix("").parts) for file in FILES if file.parts[:2] == ("manager", "loop")]
    code = f"import sys, {', '.join(name.removesuffix('.__init__') for name in loop)}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in ended.stdout.split()} & HEAVY


def test_garbage_is_looked_for_again_once_a_command_is_loaded() -> None:
    """What its modules made is not, by then."""
    code = (
        "import gc, click\n"
        "from manager.cli.main import main\n"
        "main.get_command(click.Context(main), 'status')\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "True"]
