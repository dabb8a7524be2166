"""Hides what looks like a secret in texts: rather too much than too little."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from manager.model.url import SECRET_NAME

HIDDEN = "(hidden)"

_NAMED = SECRET_NAME.pattern.removeprefix("(?i)").replace("(?:^|[^a-z])", r"\b").replace("(?:$|[^a-z])", r"\b")
_KEY = rf"[\w.-]*(?:{_NAMED}|authorization|cookie|private)[\w.-]*"
_VALUE = (
    r"\\+\"(?:[^\"\\]|\\\\)*\\+\"|\"\"\".*?\"\"\"|\"(?:\\.|[^\"\\])*\"|'''.*?'''|'(?:\\.|[^'\\])*'|[^\s\"',;&}\])]+"
)
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # Keys, to their end, or to that of the text where they are cut off.
        r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----).*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)",
        # Our own, by their prefix, and the standard forms of others.
        r"\b()eq[a-z]_[\w-]+",
        r"\b()eyJ[\w-]+\.[\w-]+\.[\w-]*",
        r"\b((?:bearer|basic|digest|negotiate)[ \t]+)[\w.~+/=:-]+(?:[ \t]*,[ \t]*\w+=\S+)*",
        r"\b((?:authorization|cookie|set-cookie)[\"']?[ \t]*[=:][ \t]*[\"']?)[^\r\n\"']+",
        # Of a URL: all between its scheme and the last @ before a blank, as passwords hold slashes and more of these.
        r"(//)(?=[^\s\"<>]{0,4000}@)[^\s\"<>]{0,4000}(?=@)",
        rf"([?&;]{_KEY}=)[^&\s\"'<>]+",
        rf"((?<![\w.-]){_KEY}[\\\"']*[ \t]*[=:][ \t]*)(?:{re.escape(HIDDEN)}|{_VALUE})",
    )
)


def masked(text: str) -> str:
    """The text without recognised secrets."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: match[1] + HIDDEN, text)
    return text


def masker(known: Iterable[str], least: int = 6) -> Callable[[str], str]:
    """``masked``, which also hides ``known`` secrets of at least ``least`` characters."""
    secrets = sorted({known_secret for known_secret in known if len(known_secret) >= least}, key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        return masked(text)

    return hide


def masked_json(value: Any, hide: Callable[[str], str] = masked) -> Any:
    """JSON values without secrets: texts with a secret's name, and recognised secrets in other texts."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(member, str) and member and _is_secret(name) else masked_json(member, hide)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [masked_json(member, hide) for member in value]
    return hide(value) if isinstance(value, str) else value


def _is_secret(name: object) -> bool:
    return SECRET_NAME.search(str(name)) is not None and not str(name).endswith(("_file", "_dir", "credential"))
