"""What exists is documented, and what is documented exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grimp
import pytest
from click.testing import CliRunner

from deploy import reference
from manager.cli import main
from manager.settings import SETTINGS, Setting

TOP = Path(__file__).parents[2]
CONFIGURATION = (TOP / "docs/reference/configuration.md").read_text()
ARCHITECTURE = (TOP / "docs/internals/architecture.md").read_text()
DOCS = sorted((TOP / "docs").rglob("*.md"))
PAGES = [*sorted(TOP.glob("*.md")), *DOCS]


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


COMMANDS = list(reference.commands(click.Context(main, info_name="equipoise")))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.command_path)
def test_every_command_has_help_with_a_summary(command: click.Context) -> None:
    result = CliRunner().invoke(main, [*command.command_path.split()[1:], "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output
    group = isinstance(command.command, click.Group) and not command.command.invoke_without_command
    if not group or command.parent is None:
        assert "EXAMPLES" in result.output or "MODES" in result.output


def anchors(page: Path) -> set[str]:
    """What links can name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sections_that_are_named_exist(page: Path) -> None:
    """As in: see [operations.md](operations.md), "Security"; also several of them."""
    named = re.findall(r'\]\(([\w/.-]+\.md)\),\s+("[^"]+"(?:\s+and\s+"[^"]+")*)', page.read_text())
    for name, titles in named:
        text = (page.parent / name).read_text()
        known = [*re.findall(r"^#+ (.*)$", text, re.M), *re.findall(r"^\*\*(.*?)\.\*\*", text, re.M)]
        for title in re.findall(r'"([^"]+)"', titles):
            wanted = " ".join(title.split())
            assert any(one.startswith(wanted) for one in known), f"{name}: {wanted}"


def pages_of(navigation: list[dict[str, Any]]) -> Iterator[str]:
    """The pages that a site's navigation names, at any depth."""
    for entry in navigation:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages_of(target)


def test_the_readme_stays_short() -> None:
    assert len((TOP / "README.md").read_text().splitlines()) <= 150


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    site = tomllib.loads((TOP / "zensical.toml").read_text())
    assert sorted(pages_of(site["project"]["nav"])) == sorted(str(page.relative_to(TOP / "docs")) for page in DOCS)


def room(module: str) -> str:
    """The layer that a module belongs to."""
    parts = module.split(".")
    return parts[1] if parts[0] == "manager" and len(parts) > 1 else parts[0]


def test_the_diagram_of_layers_shows_the_imports_that_there_are() -> None:
    [diagram] = re.findall(r"^## Layers\n.*?^```mermaid\n(.*?)^```", ARCHITECTURE, re.M | re.S)
    shown = set(re.findall(r"(\w+) -(?:->|\.->) (\w+)", diagram))
    layers = {name for edge in shown for name in edge}
    graph = grimp.build_graph("manager", "policies", "webui", "migrations", cache_dir=None)
    imports = {
        (room(module), room(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    assert shown == {edge for edge in imports if layers.issuperset(edge) and edge[0] != edge[1]}
    others = {room(module) for module in graph.modules} - layers - {"cli", "manager"}
    [left_out] = re.findall(r"no layer of their own:\s(.*?)\. ", ARCHITECTURE, re.S)
    assert set(re.findall(r"`(\w+)`", left_out)) == others


@pytest.mark.parametrize(
    "page", [TOP / "CONTRIBUTING.md", TOP / "docs/internals/architecture.md"], ids=lambda page: page.name
)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:manager|policies|webui|migrations|tests|deploy)/[\w/.]+)", page.read_text())
    assert len(named) > 10
    for name in named:
        assert (TOP / name).exists(), name


def test_each_part_of_the_tests_is_told() -> None:
    script = (TOP / "tests/run").read_text()
    [parts] = re.findall(r"^readonly ALL=\((.*)\)$", script, re.M)
    told = (TOP / "CONTRIBUTING.md").read_text()
    for part in parts.split():
        assert re.search(rf"^  {part} ", script, re.M), part
        assert f"| `{part}` |" in told, part
