#!/usr/bin/env python3
"""Fetch the dashboard's third-party scripts and styles into webui/static/vendor.

The files are part of the repository, so installing and running need neither Node nor a network; this is for taking a
newer version: change its row below, run `deploy/vendor.py`, commit what changed. It needs `npm`, which says where
packages come from. A package whose content is not the pinned one is refused, and nothing is written then.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

TARGET = Path(__file__).parents[1] / "webui/static/vendor"


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A package of the npm registry, and the files of it that are served. ``integrity`` is that of its archive."""

    name: str
    version: str
    licence: str
    integrity: str
    files: tuple[str, ...]


PACKAGES = (
    NpmPackage(
        "htmx.org",
        "2.0.11",
        "0BSD",
        "sha512-Thx/WtpeOQqSrqBCw/A1cwGJGg4UrVa3+sW0GmrM3p4gJgO89ecH4qtbnyzDDWFvBTqjnIMCgELTNt636dtamA==",
        ("dist/htmx.min.js",),
    ),
    NpmPackage(
        "idiomorph",
        "0.8.0",
        "0BSD",
        "sha512-R47JBL+6jHDQvcnbppIUtXXcxi5h6+wuCEEZXnRhUltsgzPFKzThL5PuHppP9ypJuy+7WawcY1TsSBD/iQbMhw==",
        ("dist/idiomorph-ext.min.js",),
    ),
    NpmPackage(
        "uplot",
        "1.6.32",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        ("dist/uPlot.iife.min.js", "dist/uPlot.min.css"),
    ),
)


def fetch(package: NpmPackage, folder: Path) -> bytes:
    """The package's archive. Raises CalledProcessError, and ValueError where it is not what is pinned."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{package.name}@{package.version}"]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    content = (folder / printed.split()[-1]).read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != package.integrity:
        raise ValueError(f"{package.name} {package.version}: integrity is {found}, pinned is {package.integrity}")
    return content


def unpack(package: NpmPackage, content: bytes) -> dict[str, bytes]:
    """The served files and the licence, by the names they get."""
    names = {one.rpartition("/")[2]: one for one in package.files}
    names[f"LICENSE.{package.name}"] = "LICENSE"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {name: archive.extractfile(f"package/{path}") for name, path in names.items()}
        return {name: member.read() for name, member in members.items() if member is not None}


def main() -> None:
    """Fetch all, then replace the folder's content."""
    argparse.ArgumentParser(prog="deploy/vendor.py", description=__doc__).parse_args()
    files: dict[str, bytes] = {}
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            taken = unpack(package, fetch(package, Path(folder)))
            files |= taken
            rows += [
                f"{hashlib.sha256(content).hexdigest()}  {name}  {package.name} {package.version} {package.licence}"
                for name, content in taken.items()
            ]
    files["VERSIONS"] = "\n".join([*rows, ""]).encode()
    TARGET.mkdir(exist_ok=True)
    for old in TARGET.iterdir():
        old.unlink()
    for name, content in files.items():
        (TARGET / name).write_bytes(content)
    sys.stdout.write(files["VERSIONS"].decode())


if __name__ == "__main__":
    main()
