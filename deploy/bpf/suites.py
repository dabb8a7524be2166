"""Packages of Debian suites other than this machine's, by its own apt, with lists and a cache beside the machine's.

The mirror is the one that this machine's apt uses, the keyring Debian's.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.kernel import Kernel, fetch_kernel

KERNEL_SUITE = "trixie-backports"
"""Whose cloud kernel has sched_ext. Debian 13's own, 6.12, has not."""

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LISTS_LAST_S = 86_400
_TARGETS = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(CODENAME)|$(REPO_URI)"
_SOME_OF_BACKPORTS = """Package: {names}
Pin: release n=*-backports
Pin-Priority: 600
"""


def fetch_sched_ext_kernel(cache: Path, run: Runner, say: Callable[[str], None]) -> Kernel:
    """A kernel with sched_ext, downloaded unless the directory ``cache`` has it. Raises LabError."""
    return fetch_kernel(cache, apt_of((KERNEL_SUITE,), (), cache / "apt-kernel", run), say)


def own_suite(run: Runner) -> tuple[str, str]:
    """This machine's release, such as bookworm, and the address of its mirror. Raises LabError when it has none."""
    for line in run(["apt-get", "indextargets", "--format", _TARGETS]).splitlines():
        created_by, origin, label, codename, uri = line.split("|")
        if (created_by, origin, label) == ("Packages", "Debian", "Debian") and "-" not in codename:
            return codename, uri
    raise LabError("this machine's apt has no Debian suite, or no lists; run apt-get update")


def apt_of(suites: Sequence[str], from_backports: Sequence[str], folder: Path, run: Runner) -> Runner:
    """A runner whose apt knows these suites only, and prefers packages of these names from a suite of backports.

    Its lists are fetched into ``folder``, which is made anew when it is a day old. Raises LabError.
    """
    configuration = folder / "apt.conf"
    fetched = configuration.is_file() and time.time() - configuration.stat().st_mtime < _LISTS_LAST_S
    if not fetched:
        _configure(suites, from_backports, folder, run)

    def apt(
        argv: Sequence[str],
        *,
        timeout_s: float = 600.0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        return run(argv, timeout_s=timeout_s, cwd=cwd, env={"APT_CONFIG": str(configuration), **(env or {})})

    if not fetched:
        apt(["apt-get", "-q", "update"])
    return apt


def _configure(suites: Sequence[str], from_backports: Sequence[str], folder: Path, run: Runner) -> None:
    _, uri = own_suite(run)
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    sources = "".join(f"deb [signed-by={_KEYRING}] {uri} {suite} main\n" for suite in suites)
    (folder / "sources.list").write_text(sources)
    pins = _SOME_OF_BACKPORTS.format(names=" ".join(from_backports)) if from_backports else ""
    (folder / "preferences").write_text(pins)
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": folder / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
