"""Texts use the words of tests/unit/vocabulary.toml and British spelling."""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import codespell_lib
import pytest

TOP = Path(__file__).parents[2]
VOCABULARY = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text())
FILES = sorted({path for pattern in VOCABULARY["files"] for path in TOP.glob(pattern)})

BLANK = re.compile(r"[^\n]")
NO_PROSE = {
    ".md": re.compile(r"^```.*?^```|^(?: {4,}|\t)(?![-*\d|]).*?$|``.+?``|`[^`]*`|\]\([^)]*\)|<[^>]+>", re.M | re.S),
    ".html": re.compile(r"\{[{%#].*?[}%#]\}|<(script|style)\b.*?</\1>|<[^>]+>", re.S),
}
"""What of a file is code, by its suffix."""


@dataclass(frozen=True, slots=True)
class Rule:
    wrong: re.Pattern[str]
    right: str
    allowed: re.Pattern[str]

    def objections(self, text: str) -> Iterator[tuple[int, str]]:
        """Where in a text it is broken, and how."""
        fine = [match.span() for match in self.allowed.finditer(text)]
        for match in self.wrong.finditer(text):
            if not any(start <= match.start() and match.end() <= end for start, end in fine):
                yield match.start(), f"{' '.join(match[0].split())!r}: {self.right}"


def phrase(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE)


RULES = [Rule(phrase(rule["not"]), rule["use"], phrase(rule.get("except", "(?!)"))) for rule in VOCABULARY["rule"]]


@cache
def british() -> dict[str, str]:
    """British words by their American spelling, from codespell's dictionary for the other way."""
    dictionary = Path(codespell_lib.__file__).parent / "data/dictionary_en-GB_to_en-US.txt"
    pairs = [line.split("->") for line in dictionary.read_text().splitlines() if "->" in line]
    words = {american.strip(" ,"): word for word, american in pairs} | VOCABULARY["british"]
    return {american: word for american, word in words.items() if american not in VOCABULARY["either"]["words"]}


def strings(source: str) -> str:
    """Strings and comments of a module, with blanks in place of the rest, and of what f-strings hold in braces."""
    lines = [BLANK.sub(" ", line) for line in source.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] in {"STRING", "COMMENT", "FSTRING_MIDDLE"}:
            text = re.sub(
                r"``.*?``|`[^`]*`|\{[^{}]*\}", lambda match: BLANK.sub(" ", match[0]), token.string, flags=re.S
            )
            row, column = token.start
            for offset, part in enumerate(text.split("\n")):
                line, begin = row - 1 + offset, column if offset == 0 else 0
                lines[line] = lines[line][:begin] + part + lines[line][begin + len(part) :]
    return "\n".join(lines)


def prose(path: Path, text: str) -> str:
    """The text with blanks in place of all that is code; lines stay where they are."""
    if path.suffix == ".py":
        return strings(text)
    return NO_PROSE[path.suffix].sub(lambda match: BLANK.sub(" ", match[0]), text)


def objections(path: Path, text: str) -> list[str]:
    """What is to be said otherwise, with the place."""
    written = prose(path, text)
    found = [objection for rule in RULES for objection in rule.objections(written)]
    words = re.finditer(r"(?<![\w-])[a-z]+(?![\w-])", written, re.IGNORECASE)
    american = (match for match in words if match[0].lower() in british())
    found += [(match.start(), f"{match[0]!r}: {british()[match[0].lower()]}") for match in american]
    return [f"{path.name}:{written.count(chr(10), 0, place) + 1}: {why}" for place, why in sorted(found)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_texts_use_the_vocabulary(path: Path) -> None:
    assert not objections(path, path.read_text())


def test_every_pattern_of_files_names_some() -> None:
    assert not [pattern for pattern in VOCABULARY["files"] if not list(TOP.glob(pattern))]


@pytest.mark.parametrize(
    ("name", "text", "objection"),
    [
        ("a.md", "What was\npromised.", "a.md:2: 'promised': SLA; target"),
        ("a.md", "The VM is put\nback.", "a.md:1: 'put back': restore (a value), release (a VM or host)"),
        ("a.md", "Its color.", "a.md:1: 'color': colour"),
        ("a.md", "We organize.", "a.md:1: 'organize': organise"),
        ("a.html", "<p>A rung</p>", "a.html:1: 'rung': mechanism (of warps), step (of a ladder)"),
        ("a.py", "x = 1\n# A rung\n", "a.py:2: 'rung': mechanism (of warps), step (of a ladder)"),
        ("a.py", 'f"""\nno {rung}\ntrouble"""\n', "a.py:3: 'trouble': problem"),
    ],
)
def test_words_to_avoid_are_found(name: str, text: str, objection: str) -> None:
    assert objections(Path(name), text) == [objection]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "`foreign`, in this order, [x](rung.md)\n\n    curl rung\n\n```\nrung\n```\n"),
        ("a.html", "{{ rung }}<span class='rung'>{% if color %}</span>"),
        ("a.py", "rung = color(1)  # `foreign`\nf'{rung} 1'\n"),
    ],
)
def test_code_is_no_prose(name: str, text: str) -> None:
    assert not objections(Path(name), text)
