"""docs/reference/errors.md tells of everything that can go wrong, by what the code answers, raises and records."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import werkzeug.exceptions

from manager import errors
from manager.cli.options import Failure
from manager.model.problem import ProblemKind

TOP = Path(__file__).parents[2]
ERRORS = (TOP / "docs/reference/errors.md").read_text()
TREES = {path: ast.parse(path.read_text()) for path in sorted((TOP / "manager").rglob("*.py"))}

OF_THE_FRAMEWORK = {404, 405, 413}
"""No such route, not with this method, and a body above MAX_CONTENT_LENGTH."""
KIND_AT = {"say": 1, "_say": 1, "News": 1, "new_event": 3, "host_event": 3}
"""Which argument of these is an event's kind."""
KEBAB = re.compile(r"[a-z]+(-[a-z]+)+")


def section(title: str, text: str = ERRORS) -> dict[str, list[str]]:
    """The rows of a section's first table, as cells, by each name in their first column."""
    [body] = re.findall(rf"^##+ {title}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", body, re.MULTILINE)]
    return {name.strip("`"): row for row in rows[2:] for name in row[0].split(", ")}


def statuses(tree: ast.AST) -> Iterator[int]:
    """Those of errors that a module names, or raises by an exception of Werkzeug's."""
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "werkzeug.exceptions":
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "HTTPStatus":
            yield HTTPStatus[node.attr].value
    for name in imported:
        yield getattr(werkzeug.exceptions, name).code or 0


def test_every_status_of_an_error_is_told_and_no_other() -> None:
    answering = [path for path in TREES if "api" in path.parts or path.name == "push.py"]
    feed = ast.parse((TOP / "webui/live_feed.py").read_text())
    found = {one for tree in (*map(TREES.__getitem__, answering), feed) for one in statuses(tree)}
    table = section("Answers of the REST interface")
    assert {int(one) for one in table} == {one for one in found if one >= 400} | OF_THE_FRAMEWORK
    for status, row in table.items():
        assert HTTPStatus(int(status)).phrase in row[1]
        assert all(row), row


ENDS = {"sys.exit", "exit", "SystemExit", "context.exit"}


def exits() -> Iterator[str]:
    """What commands are ended with, but by click itself."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "sys.exit",
                "exit",
                "SystemExit",
                "context.exit",
            }:
                yield f"{path.name}: {ast.unparse(node)}"


def test_every_exit_status_is_told() -> None:
    assert set(exits()) == {
        "doctor_command.py: sys.exit(1)",
        "doctor_command.py: sys.exit(128 + number)",
        "manager_worker.py: sys.exit(main())",  # 0 or 1, for its parent
    }
    assert Failure("").exit_code == 1
    assert list(section("Exit statuses of commands")) == ["0", "1", "2", "128 + N"]


def raised() -> set[str]:
    """The errors of ours that are made anywhere."""
    ours = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    made: set[str] = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made.add(node.func.id)
            if isinstance(node, ast.ClassDef):  # also by those that come of them
                made |= {base.id for base in node.bases if isinstance(base, ast.Name) and node.name.startswith("_")}
    return (ours & made) - {"EquipoiseError"}


def test_every_error_is_told_and_no_other() -> None:
    assert set(section("Why something failed")) == raised()


def constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a module gives names, also several at once."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            pairs = ast.unparse(node.targets[0]).strip("()").split(", ")
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            found |= {
                name: one.value
                for name, one in zip(pairs, values, strict=False)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found


def kinds(tree: ast.Module) -> Iterator[str]:
    """The kinds of events that a module makes. Those of names that are not told here must look like kinds."""
    named = constants(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        texts = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}
        for node in ast.walk(function):
            given: ast.expr | None = None
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                if name in KIND_AT and len(node.args) > KIND_AT[name]:
                    given = node.args[KIND_AT[name]]
            if isinstance(given, ast.Constant):
                yield str(given.value)
            elif isinstance(given, ast.Name) and given.id in named:
                yield named[given.id]
            elif isinstance(given, ast.Name):
                yield from (one for one in texts if isinstance(one, str) and KEBAB.fullmatch(one))


def test_every_kind_of_event_is_told_and_no_other() -> None:
    found = {kind for tree in TREES.values() for kind in kinds(tree)} | set(ProblemKind)
    table = section("Events")
    assert set(table) == found
    for kind, row in table.items():
        assert set(row[1].split(", ")) <= {"info", "warning", "error"}
        assert row[3] or "info" in row[1], f"{kind}: what is to be done?"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ('def f():\n    self.say(Severity.INFO, "moon-full", "x")', "moon-full"),
        ('def f():\n    return [News(Severity.WARNING, "sun", text) for text in notes]', "sun"),
        ('STAR, SKY = "a-star", "a-sky"\ndef f():\n    host_event(h, now, Severity.INFO, SKY, "x")', "a-sky"),
        ('def f():\n    for kind in ("new-one",):\n        new_event(h, now, Severity.INFO, kind, "x")', "new-one"),
    ],
)
def test_a_new_kind_of_event_is_found(source: str, kind: str) -> None:
    assert list(kinds(ast.parse(source))) == [kind]


def test_kinds_of_the_agent_s_errors_are_those_of_the_metric() -> None:
    """`equipoise_agent_errors_total` counts problems of ticks, and what is counted besides."""
    found: set[str] = set(ProblemKind)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            if ast.unparse(node.func) in {"self._metrics.errors.labels", "self.metrics.errors.labels"}:
                found.add(str(node.args[0].value))
    metrics = (TOP / "docs/reference/metrics.md").read_text()
    [told] = re.findall(r"`equipoise_agent_errors_total` \|.*?`kind`: ([a-z, ]+)", metrics)
    assert set(told.strip().split(", ")) == found


def test_every_action_of_the_audit_is_told_and_no_other() -> None:
    text = "\n".join(path.read_text() for path in TREES)
    found = set(
        re.findall(r'"((?:host|vm|application|token|join-token|user|session|database|proposal)\.[a-z]+)"', text)
    )
    table = section("The audit", (TOP / "docs/reference/api.md").read_text())
    assert {name for name in table if "." in name} == found
