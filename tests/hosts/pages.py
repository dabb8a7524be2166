"""The commands that pages of the documentation tell their readers to run."""

from __future__ import annotations

import re

from tests.hosts.images import TOP


def blocks(page: str) -> list[str]:
    """The indented code blocks of a page of ``docs``, in order."""
    found = re.findall(r"(?<=\n\n)(?:    .*\n)+", (TOP / "docs" / page).read_text())
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]
