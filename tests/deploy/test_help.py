"""``--help`` of every script says how it is used, as anybody, and changes nothing: on a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.lab.demo.__main__ import main
from deploy.lab.demo.phases import DEFAULT_PHASE_S
from deploy.lab.demo.spike import DEFAULT_RUN_S
from tests.deploy.units import TOP

NOBODY = 65_534
FOLDERS = ("deploy", "tests", ".ci", "manager", "policies", "webui", "migrations")
SCRIPTS = sorted(
    str(path.relative_to(TOP))
    for folder in FOLDERS
    for path in (TOP / folder).rglob("*")
    if path.is_file() and os.access(path, os.X_OK) and "__pycache__" not in path.parts
)
MODULES = (
    "deploy.bpf",
    "deploy.lab.accelerator",
    "deploy.lab.demo",
    "deploy.lab.guest",
    "deploy.reference",
    "deploy.reproduction",
    "tests.kernel.experiments",
)
FORBIDDEN = (
    *("apt", "apt-get", "dpkg", "dpkg-query", "dnf", "pip", "pip3", "npm", "git", "curl", "wget"),
    *("systemctl", "virsh", "libvirtd", "virtlogd", "mount", "umount", "modprobe", "sysctl", "useradd", "userdel"),
    *("cgcreate", "cgset", "cgdelete", "cgclassify", "install", "mkdir", "rm", "chmod", "chown", "mktemp"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkout without its environment, and forbidden programs, which anybody may read."""
    folder = tmp_path_factory.mktemp("help")
    left_out = shutil.ignore_patterns("__pycache__", "vendor", "*.png")
    for name in FOLDERS:
        if (TOP / name).exists():
            shutil.copytree(TOP / name, folder / "checkout" / name, ignore=left_out, symlinks=True)
    for file in ("setup.cfg", "pyproject.toml"):
        shutil.copy(TOP / file, folder / "checkout")
    (folder / "bin").mkdir()
    for name in FORBIDDEN:
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\necho {name} >>{folder}/called\nexit 97\n")
        program.chmod(0o755)
    (folder / "called").touch(mode=0o666)
    (folder / "called").chmod(0o666)
    closed = [parent for parent in (folder, *folder.parents) if not parent.stat().st_mode & stat.S_IXOTH]
    before = {parent: parent.stat().st_mode for parent in closed}
    for parent, mode in before.items():
        parent.chmod(mode | stat.S_IXOTH | stat.S_IROTH)
    for path in (folder / "checkout").rglob("*"):  # where a script that wants to write could
        if path.is_dir():
            path.chmod(0o777)
    (folder / "checkout").chmod(0o777)
    yield folder
    for parent, mode in before.items():
        parent.chmod(mode)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and directory with its size and time."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {name: (one.st_size, one.st_mtime_ns) for name, one in found.items()}


def helped(copy: Path, command: list[str], **environ: str) -> str:
    """What ``--help`` says, as nobody where this is root."""
    (copy / "called").write_text("")
    before = state(copy)
    plain = {"PATH": f"{copy}/bin:{os.environ['PATH']}", "HOME": f"{copy}/checkout", "LC_ALL": "C.UTF-8"}
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [*command, "--help"],
        cwd=copy / "checkout",
        env={**plain, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **nobody,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy / "called").read_text() == ""
    assert state(copy) == before
    return str(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script(script: str, copy: Path) -> None:
    path = copy / "checkout" / script
    interpreter = path.read_text().splitlines()[0].removeprefix("#!").split()
    command = [str(path)] if shutil.which(interpreter[0]) else ["/bin/sh", str(path)]
    assert "usage: " in helped(copy, command, PYTHONDONTWRITEBYTECODE="1").lower()


@pytest.mark.parametrize("module", MODULES)
def test_a_module(module: str, copy: Path) -> None:
    paths = ":".join(one for one in sys.path if "site-packages" in one)
    command = [sys.executable, "-B", "-m", module]
    if os.geteuid() == 0 and not os.access(sys.executable, os.X_OK):
        pytest.skip("the environment of the tests is root's alone")
    assert "usage: " in helped(copy, command, PYTHONPATH=paths).lower()


def test_what_is_said_of_the_demonstration_is_what_it_takes() -> None:
    text = (TOP / "deploy/demo").read_text()
    assert {option.opts[0] for option in main.params} == {
        word
        for word in ("--scenario", "--batch", "--duration", "--json", "--picture", "--keep", "--no-wait")
        if f"  {word} " in text
    }
    assert f"each phase ({DEFAULT_PHASE_S:g}) or of each run ({DEFAULT_RUN_S:g})" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scenary", "spike"), "unknown option --scenary"),
        (("--scenario", "spikes"), "--scenario spikes is refused: use phases,"),
        (("--scenario=spikes",), "--scenario spikes is refused: use phases,"),
        (("--json", "phases.json", "--batch", "2x5"), "--batch 2x5 is refused: use NxM"),
        (("--batch",), "--batch needs a value"),
        (("spike",), "unexpected argument spike"),
    ],
)
def test_what_the_demonstration_refuses_installs_nothing(options: tuple[str, ...], words: str, copy: Path) -> None:
    before = state(copy)
    path = f"{copy}/bin:{os.environ['PATH']}"
    command = [copy / "checkout/deploy/demo", *options]
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, state(copy)) == (2, before)
    assert words in done.stderr
