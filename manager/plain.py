"""Text of others, such as of agents, guests, libvirt and servers, as one line that does nothing.

What a terminal, a log or a page acts on is written as JSON and Python write it (``\\x1b``, ``\\u202e``): control
characters, line and paragraph separators, what turns the direction of writing, what has no width, halves of surrogate
pairs, and characters that Unicode has not assigned. Spaces other than the plain one, too: they pass for it.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` as one line of printable characters. Whatever is printable stays as it is, backslashes too."""
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    )


def plain_lines(text: str) -> str:
    """The same where lines are kept: for what is no line of a log or a table, such as a page of HTML."""
    return "\n".join(map(plain, text.replace("\r\n", "\n").split("\n")))
