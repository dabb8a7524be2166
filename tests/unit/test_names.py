"""No two modules and no two classes have the same name: it says which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TOP = Path(__file__).parents[2]
FILES = [path for room in ("manager", "webui", "policies", "deploy") for path in sorted((TOP / room).rglob("*.py"))]


def twice(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(TOP)))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_two_modules_have_the_same_name() -> None:
    assert twice((path.name, path) for path in FILES if not path.name.startswith("__")) == {}


def test_no_two_classes_have_the_same_name() -> None:
    parsed = ((path, ast.walk(ast.parse(path.read_text()))) for path in FILES)  # one at a time: trees are large
    assert twice((node.name, path) for path, nodes in parsed for node in nodes if isinstance(node, ast.ClassDef)) == {}


def test_a_name_that_is_used_twice_is_found() -> None:
    assert twice([("Step", FILES[0]), ("Step", FILES[1]), ("Plan", FILES[0])]).keys() == {"Step"}
