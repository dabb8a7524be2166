"""Ubuntu and the family of RHEL, which cannot be installed here: what units, installer and package expect there.

docs/how-to/distributions.md says what is different on each, with sources; this compares the product with it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.host.registry import HostPaths
from manager.host.warp_mechanisms import OLDEST_SEEN
from tests.deploy.units import FOLDER, TOP, values

PAGE = (TOP / "docs/how-to/distributions.md").read_text()
INSTALL = TOP / "deploy/install"
HOOK = TOP / "deploy/libvirt/hooks/qemu.d/equipoise"
LIBVIRT_DAEMONS = ("libvirtd.service", "virtqemud.service")
"""The monolithic one, and the one of the modular daemons that runs QEMU's VMs."""
OLDEST_HOOK_PYTHON = 3, 9
"""The hook is run by /usr/bin/python3, which is 3.9 on RHEL 9."""
OF_DEBIAN = {"apt-get", "apt", "dpkg", "dpkg-deb", "debconf", "adduser", "deluser", "update-rc.d", "invoke-rc.d"}
OF_RHEL = {"dnf", "yum", "rpm", "subscription-manager"}
EVERYWHERE = {
    *("install", "mkdir", "ln", "chgrp", "env", "rm", "userdel"),
    *("systemctl", "systemd-sysusers", "systemd-tmpfiles", "restorecon"),
}
"""Commands that both families have in what each of their systems has installed (restorecon: with SELinux)."""


@dataclass(frozen=True, slots=True)
class Family:
    """What /etc/os-release says there, the installer of packages, the packages, and the Python that is used."""

    name: str
    os_release: str
    installer: str
    packages: frozenset[str]
    python: str = "/usr/bin/python3"


DEBIAN_PACKAGES = frozenset({"python3", "python3-venv", "python3-dev", "gcc", "pkg-config", "libvirt-dev"})
RHEL_TOOLS = frozenset({"gcc", "pkgconf-pkg-config", "libvirt-devel", "diffutils", "findutils", "gzip"})
RHEL_9_PACKAGES = RHEL_TOOLS | {"python3.12", "python3.12-devel"}
RHEL_10_PACKAGES = RHEL_TOOLS | {"python3", "python3-devel"}
FAMILIES = (
    Family("debian-12", 'ID=debian\nVERSION_ID="12"\n', "apt-get", DEBIAN_PACKAGES),
    Family("debian-13", 'ID=debian\nVERSION_ID="13"\n', "apt-get", DEBIAN_PACKAGES),
    Family("ubuntu-24.04", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "apt-get", DEBIAN_PACKAGES),
    Family("ubuntu-26.04", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="26.04"\n', "apt-get", DEBIAN_PACKAGES),
    Family("rhel-9", 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\n', "dnf", RHEL_9_PACKAGES, "/usr/bin/python3.12"),
    Family(
        "rocky-9",
        'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n',
        "dnf",
        RHEL_9_PACKAGES,
        "/usr/bin/python3.12",
    ),
    Family(
        "centos-9",
        'ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="9"\n',
        "dnf",
        RHEL_9_PACKAGES,
        "/usr/bin/python3.12",
    ),
    Family("rhel-10", 'ID="rhel"\nID_LIKE="centos fedora"\nVERSION_ID="10.0"\n', "dnf", RHEL_10_PACKAGES),
    Family("alma-10", 'ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.1"\n', "dnf", RHEL_10_PACKAGES),
    Family("fedora", "ID=fedora\nVERSION_ID=42\n", "dnf", RHEL_10_PACKAGES),
)


def dry_run(*options: str | Path, programs: Path | None = None) -> list[list[str]]:
    """The commands that the installer would run, and the lines it says beside them, as words."""
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"} | {"PATH": path}
    done = subprocess.run(
        [INSTALL, "--dry-run", *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(params=FAMILIES, ids=[family.name for family in FAMILIES])
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def commands(family: Family, tmp_path: Path) -> list[list[str]]:
    """What the installer would run there."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(family.os_release)
    return [words[1:] for words in dry_run("--root", tmp_path) if words[0] == "+"]


def test_the_packages_and_the_python_of_each_family(family: Family, commands: list[list[str]]) -> None:
    [installed] = [words for words in commands if family.installer in words and "install" in words]
    start = installed.index("install") + 1
    assert {word for word in installed[start:] if not word.startswith("-")} == family.packages
    [venv] = [words for words in commands if "venv" in words]
    assert venv[0] == family.python, "the one whose headers are installed"


def test_a_family_runs_no_command_of_another(family: Family, commands: list[list[str]]) -> None:
    others = OF_DEBIAN if family.installer == "dnf" else OF_RHEL
    programs = {words[0].rpartition("/")[2] for words in commands if not words[0].endswith("python3")}
    assert not programs & others
    written = {words[0] for words in commands if "from" in words}  # "+ FILE from deploy/…" and the like
    assert programs - {file.rpartition("/")[2] for file in written} - EVERYWHERE - {family.installer} <= {"python3.12"}


def test_the_page_names_each_package_that_is_installed() -> None:
    special = (DEBIAN_PACKAGES | RHEL_9_PACKAGES | RHEL_10_PACKAGES) - RHEL_TOOLS - {"gcc", "pkg-config"}
    assert not {name for name in {*special, "libvirt-devel"} if not re.search(rf"\b{re.escape(name)}\b", PAGE)}


def test_units_know_both_kinds_of_libvirt() -> None:
    [after] = values("equipoise-agent.service", "After")
    assert set(LIBVIRT_DAEMONS) <= set(after.split()), "so that the agent also ends before libvirt"
    [wanted] = values("equipoise-agent.service", "Wants")
    required = [word for name in ("Requires", "BindsTo") for word in values("equipoise-agent.service", name)]
    assert not set(LIBVIRT_DAEMONS) & {*wanted.split(), *required}, "a host has one of them only"
    for script in (INSTALL, TOP / "deploy/debian/postinst"):
        [daemons] = re.findall(r"for daemon in (.*); do", script.read_text())
        assert {f"{name}.service" for name in daemons.split()} == set(LIBVIRT_DAEMONS)
    for daemon in LIBVIRT_DAEMONS:
        assert daemon.removesuffix(".service") in PAGE
    [after] = values("equipoise-manager.service", "After")
    assert "postgresql.service" in after.split(), "its name in both families"


def test_units_name_programs_and_folders_that_each_family_has() -> None:
    for unit in FOLDER.glob("*.service"):
        for setting in ("ExecStart", "ExecStopPost"):
            assert all(value.startswith("/opt/equipoise/bin/equipoise ") for value in values(unit.name, setting))
    [hidden] = values("equipoise-manager.service", "InaccessiblePaths")
    assert all(path.startswith("-/") for path in hidden.split()), "a manager's machine may have no libvirt"


def test_paths_of_libvirt_are_those_of_the_page() -> None:
    paths = HostPaths(Path("/"))
    assert paths.pid_files == Path("/run/libvirt/qemu")
    assert f"`{paths.pid_files}`" in PAGE
    [hook] = re.findall(r"^readonly hook=(\S+)/equipoise$", INSTALL.read_text(), re.MULTILINE)
    assert f"`{hook}`" in PAGE
    assert ".".join(map(str, OLDEST_SEEN)) in PAGE


def test_the_hook_runs_on_the_oldest_python_of_a_system() -> None:
    script = HOOK.read_text()
    assert script.startswith("#!/bin/sh\n")
    [program] = re.findall(r"/usr/bin/python3 -I -S -c '\n(.*?)\n'", script, re.DOTALL)
    ast.parse(program, feature_version=OLDEST_HOOK_PYTHON)
    assert str(OLDEST_HOOK_PYTHON[1]) in PAGE


def fakes(folder: Path, **programs: str) -> Path:
    """A folder of shell programs."""
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("enabled", "boolean", "installed"),
    [
        ("exit 0", "echo 'virt_hooks_unconfined --> off'", False),
        ("exit 0", "echo 'virt_hooks_unconfined --> on'", True),
        ("exit 0", "echo 'Error getting active value' >&2; exit 255", True),  # RHEL 9 has no such boolean
        ("exit 1", "echo 'virt_hooks_unconfined --> off'", True),
    ],
    ids=["off", "on", "no-boolean", "no-selinux"],
)
def test_no_hook_where_selinux_lets_libvirt_run_none(
    enabled: str, boolean: str, installed: bool, tmp_path: Path
) -> None:
    """libvirt would take it for a failed hook, and start no VM any more."""
    programs = fakes(tmp_path / "bin", selinuxenabled=enabled, getsebool=boolean)
    lines = [" ".join(words) for words in dry_run("--agent", "--no-packages", "--no-start", programs=programs)]
    written = [line for line in lines if line.endswith("from deploy/libvirt/hooks/qemu.d/equipoise")]
    told = [line for line in lines if "setsebool -P virt_hooks_unconfined on" in line]
    assert (bool(written) or Path("/etc/libvirt/hooks/qemu.d/equipoise").exists(), bool(told)) == (
        installed or Path("/etc/libvirt/hooks/qemu.d/equipoise").exists(),
        not installed,
    )


def test_labels_of_selinux_are_set_on_all_that_is_installed(tmp_path: Path) -> None:
    programs = fakes(tmp_path / "bin", restorecon="exit 0")
    [labelled] = [
        words[2:] for words in dry_run("--no-packages", "--no-start", programs=programs) if "restorecon" in words
    ]
    assert labelled[0] == "-R"
    units = [f"/usr/lib/systemd/system/{name}" for name in ("equipoise-agent.service", "equipoise-manager.service")]
    assert {"/opt/equipoise", "/usr/local/bin/equipoise", "/etc/libvirt/hooks/qemu.d", *units} <= set(labelled)


def test_nothing_is_installed_from_a_pipe() -> None:
    """The `install` of uutils, which Ubuntu 26.04 has, cannot read from one."""
    assert not re.findall(r"\binstall\b[^\n]*(<\(|/dev/stdin)", INSTALL.read_text())


@pytest.mark.parametrize("script", ["install", "package", "debian/postinst", "debian/prerm", "debian/postrm"])
def test_scripts_parse(script: str) -> None:
    shell = "bash" if "bash" in (TOP / "deploy" / script).read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", TOP / "deploy" / script], check=True)


def test_the_package_depends_on_what_each_debian_and_ubuntu_has() -> None:
    [depends] = re.findall(r"^Depends: (.*)$", (TOP / "deploy/package").read_text(), re.MULTILINE)
    names = {part.split()[0] for part in depends.split(",")}
    assert names == {"python3", "libc6", "libvirt0", "systemd", "passwd"}


def test_each_number_on_the_page_has_its_source() -> None:
    table, _, sources = PAGE.partition("## Sources")
    cited = {int(number) for number in re.findall(r"\[(\d+)\](?!\()", table)}
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", sources, re.MULTILINE)}
    assert cited == listed
