"""deploy/install: into a tree of its own, and as if for real on a copy of this machine that is forgotten afterwards."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest

from manager import __version__
from manager.model.fields import NAME_PATTERN
from tests.deploy.copies import on_a_copy
from tests.deploy.units import TOP

INSTALL = TOP / "deploy/install"
UNITS = "usr/lib/systemd/system"
ROTATION, PROFILE = CONFIGURATION = ("etc/logrotate.d/equipoise", "etc/apparmor.d/equipoise-agent")
# What it depends on is borrowed from the environment of the tests.
ENVIRONMENT = os.environ | {
    "PIP_NO_DEPS": "1",
    "PYTHON": "/usr/bin/python3",
    "PYTHONPATH": sysconfig.get_path("purelib"),
}


def install(*options: str | Path, succeeds: bool = True) -> str:
    done = subprocess.run([INSTALL, *options], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr


def token_name(wanted: str) -> str:
    """The name that the installer gives a token."""
    [function] = re.findall(r"^token_name\(\) \{.*?^\}", INSTALL.read_text(), re.MULTILINE | re.DOTALL)
    command = ["/bin/bash", "-euc", f'{function}; token_name "$1"', "token_name", wanted]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.removesuffix("\n")


def files(tree: Path) -> dict[str, float]:
    """Everything but the virtual environment, with when it was written."""
    found = (path for path in tree.rglob("*") if not path.is_dir() and "opt" not in path.relative_to(tree).parts)
    return {str(path.relative_to(tree)): path.lstat().st_mtime for path in found}


def settings_and_units(written: dict[str, float]) -> dict[str, float]:
    """What is left untouched where it is the same already; man pages and completion are made anew."""
    return {name: time for name, time in written.items() if "/share/" not in name}


def test_into_a_tree_again_and_out_of_it(tmp_path: Path) -> None:
    install("--root", tmp_path, "--prefix", "/opt/other")
    units = tmp_path / UNITS
    assert {one.name for one in units.iterdir()} == {
        "equipoise-manager.service",
        "equipoise-agent.service",
        "sys-fs-resctrl.mount",
    }
    assert "ExecStart=/opt/other/bin/equipoise agent\n" in (units / "equipoise-agent.service").read_text()
    assert (tmp_path / "usr/local/bin/equipoise").readlink() == Path("/opt/other/bin/equipoise")
    assert (tmp_path / "etc/equipoise/manager.toml").stat().st_mode & 0o777 == 0o640
    assert "  /opt/other/** mrix,\n" in (tmp_path / "etc/apparmor.d/equipoise-agent").read_text()
    venv = tmp_path / "opt/other"
    assert (venv / "bin/equipoise").read_text().startswith("#!/opt/other/bin/python")
    [site] = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [venv / "bin/python3", venv / "bin/equipoise", "--version"]
    version = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert version.stdout == f"equipoise {__version__}\n", version.stderr

    shared = tmp_path / "usr/local/share"
    assert (
        "equipoise\\-release \\- "
        in gzip.decompress((shared / "man/man1/equipoise-release.1.gz").read_bytes()).decode()
    )
    completion = ("bash-completion/completions/equipoise", "fish/vendor_completions.d/equipoise.fish")
    for place in (*completion, "zsh/site-functions/_equipoise"):
        assert "_EQUIPOISE_COMPLETE" in (shared / place).read_text()

    (tmp_path / "etc/equipoise/equipoise.toml").write_text("interval_s = 2\n")
    before = files(tmp_path)
    (shared / "man/man1/equipoise-dance.1.gz").touch()  # of a command that an earlier version had
    install("--root", tmp_path, "--prefix", "/opt/other")
    assert settings_and_units(files(tmp_path)) == settings_and_units(before)
    assert files(tmp_path).keys() == before.keys()

    # Of an older version one file as that had it, the other one changed by the operator.
    shipped = {name: (tmp_path / name).read_text() for name in CONFIGURATION}
    for name in CONFIGURATION:
        for path in (tmp_path / name, shared / "equipoise" / name):
            path.write_text("# older\n")
    (tmp_path / PROFILE).write_text("# the operator's\n")
    said = install("--root", tmp_path, "--prefix", "/opt/other")
    assert (tmp_path / ROTATION).read_text() == shipped[ROTATION]
    assert (tmp_path / PROFILE).read_text() == "# the operator's\n"
    assert (shared / "equipoise" / PROFILE).read_text() == shipped[PROFILE]
    assert f"{tmp_path / PROFILE} was changed, and stays as it is" in said
    assert f"{tmp_path / ROTATION} was changed" not in said
    (tmp_path / ROTATION).unlink()
    said = install("--root", tmp_path, "--prefix", "/opt/other", "--dry-run", "--no-packages")
    assert f"{tmp_path / ROTATION} from deploy/logrotate" in said
    assert f"{tmp_path / PROFILE} was changed" in said

    (tmp_path / "var/lib/equipoise").mkdir(parents=True)
    (tmp_path / "var/lib/equipoise/journal.db").touch()
    said = install("--root", tmp_path, "--prefix", "/opt/other", "--uninstall")
    assert f"{tmp_path / PROFILE} was changed, and stays" in said
    kept = {"etc/equipoise/equipoise.toml", "etc/equipoise/manager.toml", "var/lib/equipoise/journal.db", PROFILE}
    assert set(files(tmp_path)) == kept
    assert not venv.exists()
    assert not (tmp_path / "etc/libvirt/hooks/qemu.d").exists()
    assert [folder.name for folder in shared.rglob("*")] == ["man"]
    install("--root", tmp_path, "--prefix", "/opt/other", "--uninstall", "--purge")
    assert not files(tmp_path)


@pytest.mark.parametrize(("role", "other"), [("manager", "agent"), ("agent", "manager")])
def test_one_role_alone_and_nothing_written_by_a_dry_run(role: str, other: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    shutil.copy("/etc/os-release", tmp_path / "etc")
    said = install("--dry-run", "--root", tmp_path, f"--{role}")
    assert f"equipoise-{role}.service" in said
    assert f"equipoise-{other}.service" not in said
    assert set(files(tmp_path)) == {"etc/os-release"}


def test_what_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=plan9\n")
    assert "neither Debian's nor RHEL's family" in install("--dry-run", "--root", tmp_path, succeeds=False)
    assert "needs an absolute path" in install("--prefix", "here", succeeds=False)
    assert "--purge goes with --uninstall" in install("--purge", succeeds=False)
    assert "unknown option --frobnicate" in install("--frobnicate", succeeds=False)


# Again without a newer wheel, which leaves the environment as it is: over it is installed into a tree, above.
STEPS = f"""
cd {TOP}
mark() {{ echo "== $1"; }}
deploy/install --both --no-packages
mkdir /run/wheels; again() {{ deploy/install --both --no-packages --wheels /run/wheels >/dev/null; }}
site=$(echo /opt/equipoise/lib/python*/site-packages)
mark users; getent passwd equipoise
stat -c '%U %a %n' /var/lib/equipoise-manager /var/lib/equipoise /etc/equipoise/token
stat -c '%U:%G %a' /etc/equipoise/manager.toml
mark again; before=$(cat /etc/equipoise/token); again
[ "$before" = "$(cat /etc/equipoise/token)" ] && echo same token
: >/etc/equipoise/token; again; [ -s /etc/equipoise/token ] && echo new token
mark tokens; equipoise token list --config /etc/equipoise/manager.toml
echo 'host_name = "kvm7"' >>/etc/equipoise/equipoise.toml; : >/etc/equipoise/token; again
mark named; equipoise token list --config /etc/equipoise/manager.toml
mark lost; mv /etc/equipoise/token /run
deploy/install --both --no-packages --wheels /run/wheels 2>&1 || echo refused; mv /run/token /etc/equipoise
mark settings; equipoise config | grep -E 'token_file|manager_url'
mark uninstall; deploy/install --uninstall
ls -d /opt/equipoise /usr/local/bin/equipoise /usr/lib/systemd/system/equipoise-* 2>/dev/null || echo gone
ls /etc/equipoise /var/lib/equipoise-manager
mark purge; deploy/install --uninstall --purge
ls -d /etc/equipoise /var/lib/equipoise* 2>/dev/null || echo no data
getent passwd equipoise || echo no user
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a copy of this machine")
def test_on_a_copy_of_this_machine(tmp_path: Path) -> None:
    parts = on_a_copy(tmp_path, STEPS, ENVIRONMENT)
    assert "/var/lib/equipoise-manager" in parts["users"]
    assert "equipoise 700 /var/lib/equipoise-manager" in parts["users"]
    assert "root 700 /var/lib/equipoise\n" in parts["users"]
    assert "root 600 /etc/equipoise/token" in parts["users"]
    assert "root:equipoise 640" in parts["users"]
    assert parts["again"].split("\n")[:2] == ["same token", "new token"]
    assert "agent-" in parts["tokens"]
    assert re.search(r"agent-kvm7 .* kvm7 ", parts["named"])
    assert parts["lost"].endswith("token revoke --config /etc/equipoise/manager.toml agent-kvm7\nrefused\n")
    assert "/etc/equipoise/token" in parts["settings"]
    assert "nothing to restore" in parts["uninstall"]
    assert "gone" in parts["uninstall"].splitlines()
    assert {"manager.toml", "equipoise.toml", "token", "equipoise.db"} <= set(parts["uninstall"].split())
    assert {"no data", "no user"} <= set(parts["purge"].splitlines())


@pytest.mark.parametrize("host", ["kvm7", "k" * 57, "k" * 58, "k" * 63])
def test_the_token_of_a_host_has_a_name_that_tokens_may_have(host: str) -> None:
    name = token_name(f"agent-{host}")
    assert re.fullmatch(NAME_PATTERN, name)
    assert name == f"agent-{host}" or len(host) > 57
    assert token_name(f"agent-{host}") == name != token_name(f"agent-{host[:-1]}x")


@pytest.mark.skipif(os.geteuid() != 0, reason="the installer wants root")
def test_services_stay_enabled_where_nothing_was_removed(tmp_path: Path) -> None:
    booted, units, tools, own = (tmp_path / name for name in ("booted", "units", "tools", "prefix/bin"))
    for folder in (booted, units, tools, own):
        folder.mkdir(parents=True)
    (units / "equipoise-agent.service").touch()
    asked = tmp_path / "asked"
    for path, text in ((tools / "systemctl", f'echo "$*" >> {asked}'), (own / "equipoise", "exit 1")):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    script = INSTALL.read_text().replace("/run/systemd/system", str(booted)).replace(f"/{UNITS}", str(units))
    command = ["/bin/bash", "-c", script, INSTALL, "--uninstall", "--prefix", own.parent]
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "nothing was removed" in done.stderr) == (1, True), done.stderr
    assert asked.read_text() == "stop equipoise-agent.service equipoise-manager.service\n"


def test_a_newer_wheel_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = tmp_path / "libraries"  # without what says that Equipoise is installed
    libraries.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if "equipoise" not in one.name:
            (libraries / one.name).symlink_to(one)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(libraries))
    installed = []
    for version in ("0.0.1", "0.0.2"):
        wheels = tmp_path / version
        wheels.mkdir()
        facts = f"equipoise-{version}.dist-info"
        with zipfile.ZipFile(wheels / f"equipoise-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: equipoise\nVersion: {version}\n")
            wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(
                f"{facts}/RECORD", "".join(f"{facts}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD"))
            )
        install("--root", tmp_path / "tree", "--wheels", wheels)
        installed += [one.name for one in tmp_path.glob("tree/opt/equipoise/lib/*/site-packages/equipoise-*")]
    assert installed == ["equipoise-0.0.1.dist-info", "equipoise-0.0.2.dist-info"]
