"""The rules of who imports whom (design, section 3), and a few more that can be read off the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
OURS = ("manager", "policies", "webui", "migrations")

# What of ours a package or module may import besides itself; the longest name that fits decides. The version in the
# package `manager` itself is free for all. Packages without a row are bound by the other rules only.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "manager.model": (),
    "manager.control": ("manager.model",),
    "policies": ("manager.model", "manager.control"),
    "manager.errors": (),
    "manager.logs": ("manager.plain",),
    "manager.masking": ("manager.model",),
    "manager.plain": (),
    "manager.terminal": ("manager.plain",),
    "manager.settings": ("manager.errors", "manager.model"),
    "manager.protocol": ("manager.model", "manager.control", "manager.errors"),
    "manager.rate_limit": ("manager.errors",),
    "manager.tls": ("manager.errors",),
    "manager.bpf": (),
    "manager.private": ("manager.errors",),
    "manager.salvage": ("manager.private",),
    "manager.notify": (),
    "manager.hook": (),
    "manager.steady": (),
    "manager.clocks": (),
    "manager.host": ("manager.model", "manager.errors", "manager.bpf"),
    "manager.store": (
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.rate_limit",
        "manager.private",
        "manager.salvage",
        "manager.steady",
        "manager.clocks",
    ),
    "manager.api": (
        "manager.masking",
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.logs",
        "manager.rate_limit",
        "manager.protocol",
        "manager.serving",
        "manager.settings",
        "manager.store",
        "manager.tls",
        "policies",
    ),
    "manager.api.schemas": ("manager.model", "manager.protocol"),
    "manager.api.preview_routes": (
        "manager.api",
        "manager.control",
        "manager.errors",
        "manager.model",
        "manager.protocol",
        "manager.replay",
        "manager.store",
    ),
    "manager.api.what_if_routes": (
        "manager.api",
        "manager.model",
        "manager.errors",
        "manager.protocol",
        "manager.replay",
        "manager.store",
    ),
    "manager.serving": ("manager.errors",),
    "manager.telemetry": (
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.host.log_file",
        "manager.rate_limit",
        "manager.protocol",
        "manager.serving",
    ),
    "manager.host.log_file": (),
    "manager.telemetry.telemetry_port": ("manager.model",),
    "manager.loop": (
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.logs",
        "manager.private",
        "manager.salvage",
        "manager.steady",
        "manager.clocks",
        "manager.host.port",
        "manager.protocol",
        "manager.telemetry.telemetry_port",
        "policies.base",
    ),
    "manager.sim": (
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.host.port",
        "manager.loop.journal",
        "manager.loop.tick",
        "manager.telemetry.telemetry_port",
        "manager.terminal",
        "policies.base",
        "policies.installed",
    ),
    "manager.replay": (
        "manager.model",
        "manager.control",
        "manager.errors",
        "manager.protocol",
        "policies.base",
    ),
    "webui": (
        "manager.api",
        "manager.errors",
        "manager.model",
        "manager.plain",
        "manager.protocol",
        "manager.store.changes",
        "manager.store.sessions",
    ),
    "migrations": ("manager.store",),
}

# Who may import what of others.
ONLY_FOR: dict[str, tuple[str, ...]] = {
    "libvirt": ("manager.host",),
    "flask": ("manager.api", "webui"),
    "flask_openapi3": ("manager.api", "webui"),
    "werkzeug": ("manager.api", "manager.store.users", "webui"),
    "uvicorn": ("manager.serving",),
    "apscheduler": ("manager.steady",),
    "sqlalchemy": ("manager.store", "manager.api", "migrations"),
    "alembic": ("manager.store", "migrations"),
    "manager.cli": ("manager.cli",),
    # The agent's command is none of these.
    "manager.api": ("manager.api", "webui", "manager.cli.manager_command", "manager.cli.replay_command"),
    "manager.store": (
        "manager.store",
        "manager.api",
        "webui",
        "migrations",
        "manager.cli.admin_commands",
        "manager.cli.backup_commands",
        "manager.cli.run_command",
        "manager.cli.user_command",
    ),
}

# The agent uses these, which must not load a web framework or a database for it.
LIGHT = ("manager.protocol",)
HEAVY = ("flask", "flask_openapi3", "werkzeug", "uvicorn", "sqlalchemy", "alembic")

KERNEL_PATHS = ("/sys/", "/proc/")
KERNEL_PATHS_IN = "manager.host"


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for package in OURS for path in sorted((TOP / package).rglob("*.py"))}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports(module: str, tree: ast.AST, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that is imported, at the top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if module in known and is_package(module) else module.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield node.lineno, full if full in known else source


def is_package(module: str) -> bool:
    return FILES[module].name == "__init__.py"


def docstrings(tree: ast.AST) -> set[int]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[int] = set()
    for node in ast.walk(tree):
        body = node.body if isinstance(node, holders) else []
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            found.add(id(body[0].value))
    return found


def import_problems(module: str, tree: ast.AST, known: frozenset[str]) -> Iterator[str]:
    rows = [row for row in MAY_IMPORT if within(module, row)]
    own = max(rows, key=len) if rows else ""
    for line, imported in imports(module, tree, known):
        ours = imported.split(".")[0] in OURS and imported != "manager"
        if ours and own and not any(within(imported, one) for one in (own, *MAY_IMPORT[own])):
            yield f"{module}:{line}: {own} may not import {imported}"
        for name, users in ONLY_FOR.items():
            if within(imported, name) and not any(within(module, user) for user in users):
                yield f"{module}:{line}: only {' and '.join(users)} may import {name}"
        if any(within(module, name) for name in LIGHT) and any(within(imported, name) for name in HEAVY):
            yield f"{module}:{line}: the agent uses this module, so it may not import {imported}"


def problems(module: str, source: str, known: frozenset[str] = frozenset(FILES)) -> list[str]:
    """Everything in ``source``, as the source of ``module``, that breaks a rule."""
    tree = ast.parse(source)
    found = list(import_problems(module, tree, known))
    described = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{module}:{node.lineno}: a bare except")
        if isinstance(node, ast.Constant) and id(node) not in described and not within(module, KERNEL_PATHS_IN):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and any(path in text for path in KERNEL_PATHS):
                found.append(f"{module}:{node.lineno}: a kernel path outside {KERNEL_PATHS_IN}")
    return found


@pytest.mark.parametrize("module", FILES)
def test_rules_are_kept(module: str) -> None:
    assert problems(module, FILES[module].read_text()) == []


def test_there_is_something_to_check_and_every_row_means_something() -> None:
    assert {"manager.model.host", "manager.loop.tick", "policies.priority", "manager.cli"} <= FILES.keys()
    named = {*MAY_IMPORT, *LIGHT, *(one for row in MAY_IMPORT.values() for one in row)}
    assert named <= FILES.keys(), "a rule names a module that is not there any more"


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("manager.model.host", "import manager.errors", "manager.model may not import manager.errors"),
        ("manager.model.host", "from manager.control.diff import diff", "may not import manager.control.diff"),
        ("manager.model.host", "def f():\n    from manager import errors", "may not import manager.errors"),
        ("manager.model.host", "from .. import settings", "may not import manager.settings"),
        ("manager.model", "from ..control import diff", "may not import manager.control.diff"),
        ("manager.control.diff", "from manager.settings import Settings", "may not import manager.settings"),
        ("manager.control.diff", "from manager.errors import HostError", "may not import manager.errors"),
        ("policies.fair", "from manager.host.port import HostPort", "policies may not import manager.host.port"),
        ("policies.fair", "import manager.loop.tick as t", "policies may not import manager.loop.tick"),
        ("manager.host.handle", "from manager.loop.journal import Journal", "may not import manager.loop.journal"),
        ("manager.host.handle", "from manager.control import sla", "may not import manager.control.sla"),
        ("manager.store.vms", "from manager.api.schemas import VmIn", "may not import manager.api.schemas"),
        ("manager.store.vms", "from manager.host.port import HostPort", "may not import manager.host.port"),
        ("manager.api.vm_routes", "from manager.loop.tick import Clock", "may not import manager.loop.tick"),
        ("manager.api.vm_routes", "from manager.host import registry", "may not import manager.host.registry"),
        ("manager.protocol.convert", "from manager.api import app", "may not import manager.api.app"),
        ("manager.protocol.report", "import flask", "the agent uses this module, so it may not import flask"),
        ("manager.loop.tick", "from manager.host.handle import VmHandle", "may not import manager.host.handle"),
        ("manager.loop.tick", "from manager.store.models import Host", "may not import manager.store.models"),
        ("manager.loop.tick", "from manager.api import auth", "may not import manager.api.auth"),
        ("manager.loop.link", "from manager.api.schemas import history", "may not import manager.api.schemas"),
        ("manager.telemetry.push", "from manager.api.schemas import history", "may not import manager.api.schemas"),
        ("manager.cli.agent_command", "from manager.api import app", "may import manager.api"),
        ("manager.cli.agent_command", "from manager.store import tokens", "may import manager.store"),
        ("manager.loop.tick", "from policies.priority import POLICY", "may not import policies.priority"),
        ("manager.loop.tick", "from manager.sim.sim_host import SimHost", "may not import manager.sim.sim_host"),
        (
            "manager.sim.sim_host",
            "from manager.host.kernel_host import KernelHost",
            "may not import manager.host.kernel",
        ),
        ("manager.loop.tick", "import flask.views", "only manager.api and webui may import flask"),
        ("manager.loop.tick", "from sqlalchemy.orm import Session", "may import sqlalchemy"),
        ("manager.loop.tick", "import libvirt", "only manager.host may import libvirt"),
        ("manager.loop.tick", "from manager.cli.main import main", "only manager.cli may import manager.cli"),
        ("manager.api.vm_routes", "from manager import cli", "only manager.cli may import manager.cli"),
        ("webui.pages", "import manager.cli", "only manager.cli may import manager.cli"),
        ("manager.telemetry.tap", "from libvirt import open", "only manager.host may import libvirt"),
        (
            "manager.store.jobs",
            "from apscheduler.triggers import interval",
            "only manager.steady may import apscheduler",
        ),
        ("manager.loop.lock", 'PATH = "/proc/self/stat"', "a kernel path outside manager.host"),
        ("manager.loop.lock", 'def f(pid):\n    return f"/proc/{pid}/stat"', "a kernel path outside manager.host"),
        ("manager.cli.offline", 'open(b"/sys/kernel/x")', "a kernel path outside manager.host"),
        ("manager.loop.lock", "try:\n    pass\nexcept:\n    pass", "a bare except"),
    ],
)
def test_a_rule_that_is_broken_is_found(module: str, source: str, problem: str) -> None:
    assert any(problem in found for found in problems(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("manager.model.host", "import os\nfrom manager.model.cpus import CpuSet\nfrom . import cpus"),
        ("manager.control.diff", "from manager.model import host"),
        ("policies.fair", "from policies.base import Policy\nfrom manager.control.sla import sla_state"),
        ("manager.host.hypervisor", 'import libvirt\nPATH = "/sys/devices"'),
        ("manager.loop.tick", "from manager.host import port\nfrom manager import __version__"),
        (
            "manager.cli.service",
            "import manager.loop.agent\nimport manager.host.hypervisor\nfrom manager.cli import main",
        ),
        ("manager.loop.lock", '"""Reads /proc/self."""\n\ndef f():\n    """Not /sys/x."""\n'),
        ("manager.loop.lock", "try:\n    pass\nexcept BaseException:\n    raise"),
        ("manager.loop.lock", "x = 1\n" * 400),
    ],
)
def test_what_the_rules_allow_is_not_found(module: str, source: str) -> None:
    assert problems(module, source) == []


def test_the_agent_loads_neither_web_framework_nor_database_nor_libvirt() -> None:
    """The rules look at one file; this looks at what they come to."""
    loop = sorted(module for module in FILES if within(module, "manager.loop"))
    code = f"import sys, {', '.join(loop)}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in ended.stdout.split()}
    assert not loaded & {*HEAVY, "libvirt"}
