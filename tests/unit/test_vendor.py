"""The dashboard's third-party files are what was taken from their packages, and have their licences with them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from deploy import vendor

FOLDER = Path(__file__).parents[2] / "webui/static/vendor"
ROWS = [line.split() for line in (FOLDER / "VERSIONS").read_text().splitlines()]


def test_every_file_is_unchanged_and_listed() -> None:
    listed = {name: digest for digest, name, *_ in ROWS}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()}
    del found["VERSIONS"]
    assert found == listed


def test_the_list_is_that_of_the_command_with_a_licence_for_each_package() -> None:
    wanted = {(one.name, one.version, one.licence) for one in vendor.PACKAGES}
    assert {tuple(row[2:]) for row in ROWS} == wanted
    for package in vendor.PACKAGES:
        assert (FOLDER / f"LICENSE.{package.name}").stat().st_size > 100
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package.integrity)
