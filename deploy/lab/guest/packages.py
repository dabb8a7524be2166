"""Files of Debian packages, fetched with the host's own apt and unpacked aside: nothing is installed or started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.commands import LabError, Runner

KERNEL_METAPACKAGE = "linux-image-cloud-amd64"
DOWNLOAD_TIMEOUT_S = 900.0

# Newer kernels than those of Debian 12 and 13 come as a package for the image and one for the modules.
_KERNEL_PART = re.compile(r"^\s*\|?Depends: (linux-(?:image|base|binary|modules)-\d\S*)$", re.MULTILINE)
_CANDIDATE = re.compile(r"^\s*Candidate: (\S+)$", re.MULTILINE)
_TO_INSTALL = re.compile(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """One version of a binary package."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}={self.version}"


def kernel_packages(run: Runner) -> tuple[Package, ...]:
    """The packages that hold the current cloud kernel and its modules, by what the metapackage depends on.

    Raises LabError when apt knows no such package.
    """
    found: set[str] = set()
    new = {KERNEL_METAPACKAGE}
    while new:
        asked = run(["apt-cache", "depends", "--no-recommends", "--no-suggests", *sorted(new)])
        new = set(_KERNEL_PART.findall(asked)) - found
        found |= new
    if not found:
        raise LabError(f"apt knows no kernel that {KERNEL_METAPACKAGE} depends on; run apt-get update")
    return tuple(Package(name, _candidate(name, run)) for name in sorted(found))


def _candidate(name: str, run: Runner) -> str:
    match = _CANDIDATE.search(run(["apt-cache", "policy", name]))
    if match is None or match[1] == "(none)":
        raise LabError(f"apt has no version of {name} to offer; run apt-get update")
    return match[1]


def missing_packages(names: Sequence[str], run: Runner) -> tuple[Package, ...]:
    """What apt would install or upgrade to have the named packages: they and the libraries they need."""
    would = run(["apt-get", "--simulate", "--no-install-recommends", "install", *names])
    return tuple(sorted(Package(name, version) for name, version in _TO_INSTALL.findall(would)))


def unpack(packages: Iterable[Package], into: Path, run: Runner) -> None:
    """Download packages and unpack them into the directory ``into``, which is made. Runs none of their scripts."""
    debs = into.parent / f"{into.name}.debs"
    debs.mkdir(parents=True)
    run(
        ["apt-get", "download", "-o", "APT::Sandbox::User=root", *map(str, packages)],
        cwd=debs,
        timeout_s=DOWNLOAD_TIMEOUT_S,
    )
    into.mkdir()
    for deb in sorted(debs.iterdir()):
        run(["dpkg", "--extract", str(deb), str(into)])
        deb.unlink()
    debs.rmdir()
