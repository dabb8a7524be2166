"""Commands that the documentation names exist with these options; docs/reference/cli.md is their reference."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from deploy import reference
from manager.cli import main

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md", *sorted((TOP / "docs").rglob("*.md"))]

CODE_BLOCK = re.compile(r"^```\w*\n.*?^```|(?:^    .*\n?)+", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
BEGIN = re.compile(r"(?:^|[|&;(] *| -- |=\S+ )equipoise [a-z]")
PLACEHOLDER = re.compile(r"\[[A-Z]+\](?:\.\.\.)?|\.\.\.|…|COMMAND")
SYNOPSIS = re.compile(r"\[(?:OPTIONS|--)")
SUBSTITUTED = re.compile(r"\$\(([^)]*)\)")
END = re.compile(r"[|&;<>]+")


@dataclass(frozen=True, slots=True)
class Line:
    """A command as it is written. ``whole``: it can be typed so, while a mention in a sentence may leave things out."""

    page: str
    text: str
    whole: bool


def lines(page: str, text: str) -> Iterator[Line]:
    """All commands `equipoise` of a page."""
    for block in CODE_BLOCK.findall(text):
        joined = block.replace("\\\n", " ")
        # What a help page says of a command stands to the right of it.
        written = (re.split(r" {3,}", one.strip())[0] for one in joined.splitlines())
        yield from (Line(page, one, not SYNOPSIS.search(one)) for one in written if BEGIN.search(one))
    for one in INLINE.findall(CODE_BLOCK.sub("", text)):
        code = " ".join(one.split())
        if BEGIN.search(code):
            yield Line(page, code, False)


def arguments(text: str) -> Iterator[list[str]]:
    """What each `equipoise` of a line is called with."""
    for inner in SUBSTITUTED.findall(text):
        yield from arguments(inner)
    split = shlex.shlex(SUBSTITUTED.sub("VALUE", text), posix=True, punctuation_chars=True)
    split.whitespace_split = True
    words: list[str] = []
    for word in [*split, ";"]:
        if not END.fullmatch(word):
            words.append(word)
            continue
        # Those before are variables, or run it as another user: runuser -u equipoise -- equipoise COMMAND
        calls = [place for place, one in enumerate(words) if one == "equipoise"]
        if calls and (calls[-1] == 0 or words[calls[-1] - 1] == "--" or "=" in words[calls[-1] - 1]):
            yield [one.strip("[]") for one in words[calls[-1] + 1 :] if not PLACEHOLDER.fullmatch(one)]
        words = []


def objection(words: list[str], *, whole: bool) -> str:
    """Why there is no such command or option, empty where there is."""
    context = click.Context(main, info_name="equipoise")
    while isinstance(context.command, click.Group) and words and not words[0].startswith("-"):
        below = context.command.get_command(context, words[0])
        if below is None:
            return f"{context.command_path} has no command {words[0]!r}"
        context, words = click.Context(below, context, words[0]), words[1:]
    if isinstance(context.command, click.Group) and not words:
        return "" if context.command.invoke_without_command or not whole else f"{context.command_path} needs a command"
    try:
        context.command.make_context(str(context.info_name), list(words), context.parent)
    except click.MissingParameter as error:
        return error.format_message() if whole else ""
    except click.BadOptionUsage as error:  # an option without its value
        return error.format_message() if whole else ""
    except click.UsageError as error:
        return error.format_message()
    except click.exceptions.Exit:
        pass  # --help
    return ""


WRITTEN = [line for page in PAGES for line in lines(page.name, page.read_text())]


@pytest.mark.parametrize("page", sorted({line.page for line in WRITTEN}))
def test_every_command_exists_with_these_options(page: str) -> None:
    for line in (one for one in WRITTEN if one.page == page):
        for words in arguments(line.text):
            assert not objection(words, whole=line.whole), f"{page}: {line.text}"


def test_commands_are_found() -> None:
    found = {line.text for line in WRITTEN}
    assert len(found) > 120
    assert {"equipoise doctor", "equipoise release --vm shop-cache", "equipoise sim list"} <= found
    text = "runuser -u equipoise -- equipoise user list --config /etc/x.toml && equipoise status --json | jq ."
    assert list(arguments(text)) == [["user", "list", "--config", "/etc/x.toml"], ["status", "--json"]]
    assert list(arguments("X=$(runuser -u equipoise -- equipoise db current) make")) == [["db", "current"]]
    assert list(arguments("deploy/install --agent; systemctl stop equipoise-agent")) == []


@pytest.mark.parametrize(
    ("words", "whole", "why"),
    [
        (["dance"], False, "no command 'dance'"),
        (["token", "steal"], False, "no command 'steal'"),
        (["status", "--colour"], False, "--colour"),
        (["release", "everything"], False, "everything"),
        (["token", "create", "--role", "king", "--name", "me"], True, "king"),
        (["token", "create", "--days", "0"], False, "0.001"),
        (["token"], True, "needs a command"),
        (["restore"], True, "FILE"),
        (["release", "--vm"], True, "--vm"),
    ],
)
def test_a_command_that_does_not_exist_is_found(words: list[str], whole: bool, why: str) -> None:
    assert why in objection(words, whole=whole)


@pytest.mark.parametrize("words", [["token"], ["restore"], ["release", "--vm"], ["agent"], ["doctor", "--help"]])
def test_a_sentence_may_leave_things_out(words: list[str]) -> None:
    assert objection(words, whole=False) == ""


@pytest.mark.parametrize(("name", "page"), reference.PAGES.items())
def test_generated_references_are_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (TOP / "docs/reference" / name).read_text() == page(), "renew it: python3 -m deploy.reference"


def test_the_reference_has_every_command_and_option() -> None:
    """Not by what made it: every option is there by its name."""
    sections = dict(re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", reference.commands_page(), re.MULTILINE))
    for context in reference.commands(click.Context(main, info_name="equipoise")):
        section = sections.pop(context.command_path)
        shown = "all there are" if "and all there are" in section else section
        for option in (one for one in context.command.params if isinstance(one, click.Option)):
            assert f"`{option.opts[0]}" in section or shown == "all there are", option.opts
        assert f"    {context.command_path} " in section
    assert not sections
