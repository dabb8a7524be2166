"""Untrusted text as one line that acts on nothing.

Unprintable characters (control characters, line separators, direction and zero-width marks, surrogates, unassigned
ones) and unusual spaces are written as in JSON and Python (``\\x1b``, ``\\u202e``).
"""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` as one printable line; printable characters, backslashes included, stay."""
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    )


def plain_lines(text: str) -> str:
    """The same, keeping lines."""
    return "\n".join(map(plain, text.replace("\r\n", "\n").split("\n")))
