"""A copy of this machine whose changes are kept in memory, and are gone with its namespace of mounts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

# Neither the host's /run, with its sockets, nor its data and settings of Equipoise are in the copy.
_COPY = """
set -eu
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" none "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs none "$1/root/run"
rm -rf "$1/root/etc/equipoise" "$1/root/opt/equipoise" "$1"/root/var/lib/equipoise*
exec chroot "$1/root" /bin/bash -eu -c "$2"
"""


def on_a_copy(folder: Path, steps: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Run ``steps`` in bash, as root; what they print, by the headings ``== HEADING`` in it.

    The copy is mounted below ``folder``. Skips the test where the kernel has no overlay file system.
    """
    mount = folder / "copy"
    mount.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "/bin/bash", "-c", _COPY, "copy", mount, steps],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unknown filesystem type 'overlay'" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(part.split("\n", 1) for part in f"{done.stdout}\n{done.stderr}".split("== ")[1:])
