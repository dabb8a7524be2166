"""deploy/package: the Debian package, unpacked and run, installed and removed on a copy of this machine, and linted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from manager import __version__
from tests.deploy.copies import on_a_copy
from tests.deploy.units import TOP

# Packed and compiled as fast as can be: by default that takes longer than all else, and what uses it is the same.
FAST = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1", "CFLAGS": "-O0"}
SCRIPTS = (
    *("install", "package", "debian/postinst", "debian/prerm", "debian/postrm", "libvirt/hooks/qemu.d/equipoise"),
    *("demo", "python.sh", "screenshots", "bpf/build", "lab/setup.sh", "lab/loadgroup.sh"),
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    command = [TOP / "deploy/package", "--output", folder]
    done = subprocess.run(command, env=os.environ | FAST, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


def test_unpacked_it_runs_with_its_own_libraries(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    venv = tmp_path / "opt/equipoise"
    # Its own environment alone: nothing is borrowed from that of the tests.
    bare = {"PATH": "/usr/bin:/bin", "EQUIPOISE_STATE_DIR": str(tmp_path / "state")}
    for arguments, expected in (
        (["--version"], f"equipoise {__version__}\n"),
        (["db", "upgrade"], "at revision "),
        (["manager", "--help"], "Serve the REST interface"),
        (["agent", "--help"], "Control this host"),
    ):
        command = [venv / "bin/python3", venv / "bin/equipoise", *arguments]
        done = subprocess.run(command, env=bare, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert expected in done.stdout, done.stderr
    found = subprocess.run(
        [venv / "bin/python3", "-c", "import libvirt, psycopg; print(libvirt.__file__)"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(venv))
    assert (tmp_path / "usr/bin/equipoise").readlink() == Path("/opt/equipoise/bin/equipoise")
    assert not (tmp_path / "usr/local").exists()
    for place in (
        "man/man1/equipoise.1.gz",
        "bash-completion/completions/equipoise",
        "zsh/vendor-completions/_equipoise",
    ):
        assert (tmp_path / "usr/share" / place).is_file()


STEPS = """
mark() {{ echo "== $1"; }}
dpkg --force-depends --install {package}
mark installed; equipoise --version; getent passwd equipoise
stat -c '%U:%G %a %n' /etc/equipoise/manager.toml /var/lib/equipoise-manager
echo 'interval_s = 2' > /etc/equipoise/equipoise.toml; touch /var/lib/equipoise/kept
mark again; dpkg --force-depends --install {package}; cat /etc/equipoise/equipoise.toml
mark removed; dpkg --remove equipoise; ls -d /opt/equipoise 2>&1 || true; ls /var/lib/equipoise /etc/equipoise
mark purged; dpkg --purge equipoise; ls -d /etc/equipoise /var/lib/equipoise* 2>/dev/null || echo no data
getent passwd equipoise || echo no user
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a copy of this machine")
def test_installed_again_removed_and_purged(package: Path, tmp_path: Path) -> None:
    parts = on_a_copy(tmp_path, STEPS.format(package=package), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert f"equipoise {__version__}" in parts["installed"]
    assert {
        "root:equipoise 640 /etc/equipoise/manager.toml",
        "equipoise:equipoise 700 /var/lib/equipoise-manager",
    } <= set(parts["installed"].splitlines())
    assert "interval_s = 2" in parts["again"].splitlines()
    assert "nothing to restore" in parts["removed"]
    assert "cannot access '/opt/equipoise'" in parts["removed"]
    assert {"kept", "equipoise.toml"} <= set(parts["removed"].split())
    assert {"no data", "no user"} <= set(parts["purged"].splitlines())


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_finds_nothing_that_is_not_explained(package: Path) -> None:
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script: str) -> None:
    done = subprocess.run(["shellcheck", TOP / "deploy" / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_its_settings_of_the_manager_may_have_been_removed(tmp_path: Path) -> None:
    """As on a host of agents: dpkg does not bring them back, and the next version is installed all the same."""
    assert "/etc/equipoise/manager.toml" in (TOP / "deploy/debian/postinst").read_text()
    done, _ = run_script(tmp_path, "postinst", "configure", "0.1.0")
    assert done.returncode == 0, done.stderr


def run_script(
    folder: Path, name: str, *arguments: str, **programs: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a script of the package below ``folder``; what it made ``systemctl`` do. ``programs``: shell, by name."""
    (folder / "run/systemd/system").mkdir(parents=True, exist_ok=True)
    tools, own = folder / "bin", folder / "opt/equipoise/bin"
    for place in (tools, own):
        place.mkdir(parents=True, exist_ok=True)
    asked = folder / "asked"
    asked.write_text("")
    stubs = dict.fromkeys(("systemd-sysusers", "systemd-tmpfiles", "aa-enabled", "apparmor_parser"), "exit 1")
    stubs |= {"systemd-sysusers": "", "systemd-tmpfiles": ""} | programs
    stubs["systemctl"] = f'echo "$*" >> {asked}\n{programs.get("systemctl", "")}'
    for program, text in stubs.items():
        path = (own if program == "equipoise" else tools) / program
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    script = (TOP / "deploy/debian" / name).read_text()
    for place in ("/etc/", "/run/", "/opt/"):
        script = script.replace(place, f"{folder}{place}")
    command = ["/bin/sh", "-c", script, name, *arguments]
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done, asked.read_text()


def test_a_service_that_does_not_start_leaves_the_package_installed(tmp_path: Path) -> None:
    refusing = 'case "$*" in "try-restart equipoise-manager"*) exit 1 ;; esac'
    done, asked = run_script(tmp_path, "postinst", "configure", "0.1.0", systemctl=refusing)
    assert done.returncode == 0, done.stderr
    assert "equipoise-manager.service does not start: see journalctl" in done.stderr
    assert "try-restart equipoise-agent.service\n" in asked, "the other one is the new version"


def test_a_removal_that_fails_leaves_services_as_they_were(tmp_path: Path) -> None:
    agent_runs = 'case "$*" in "is-active equipoise-agent"*) echo active ;; is-active*) echo inactive; exit 3 ;; esac'
    failing = "echo no way; exit 1"
    done, asked = run_script(tmp_path, "prerm", "remove", systemctl=agent_runs, equipoise=failing)
    assert done.returncode == 1
    assert "equipoise stays installed" in done.stderr
    assert "disable" not in asked
    assert asked.splitlines()[-1] == "start equipoise-agent.service"
    done, asked = run_script(tmp_path, "prerm", "remove", systemctl=agent_runs, equipoise="")
    assert done.returncode == 0, done.stderr
    assert "disable equipoise-agent.service equipoise-manager.service" in asked
    assert "\nstart" not in asked


def test_an_upgrade_keeps_services_running(tmp_path: Path) -> None:
    done, asked = run_script(tmp_path, "prerm", "upgrade", "0.2.0", equipoise="exit 1")
    assert (done.returncode, asked) == (0, "")
