"""Disk images of Debian machines with this checkout's package, built from Debian's packages and kept by content.

A release's own packages make a tree, kept as an archive by what the release's index says and by this file. To it come
the checkout, and the package that ``deploy/package`` builds of it inside; the whole becomes an ext4 image.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.bpf.suites import apt_of, own_suite
from deploy.lab.commands import run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder
from deploy.lab.guest.builder import build as build_guest

TOP = Path(__file__).parents[2]
CHECKOUT = "srv/equipoise"
"""Where in a machine this checkout is."""
PACKAGES_FOLDER = "srv/packages"
"""Where in a machine the package is that was built of it."""
WHEELS = "srv/wheels"
"""Where in a machine its wheel is, and those of all that it needs."""
GUEST = "srv/guest"
"""Where in a machine the lab's guest is, for VMs that serve something."""
IMAGE_SIZE = "6G"
UNUSED_S = 86_400.0
SHELL = Path(__file__).parent / "guest/shell.py"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "iproute2", "netbase", "procps", "util-linux-extra", "e2fsprogs"),
    *("libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "qemu-utils", "systemd-container"),
    *("dnsmasq-base", "iptables", "openssh-server", "openssh-client"),
    *("apparmor", "apparmor-utils", "chrony", "nginx-light", "postgresql", "memcached", "curl", "openssl"),
    "bpftool",
    *("ca-certificates", "logrotate", "cgroup-tools", "sudo"),
    # what deploy/install and deploy/package install
    *("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "pkg-config", "libvirt-dev"),
)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Debian by its suite, with a kernel of its own or of ``kernel_suite``."""

    suite: str
    kernel_suite: str = ""

    @property
    def suites(self) -> tuple[str, ...]:
        return (self.suite, self.kernel_suite) if self.kernel_suite else (self.suite,)


DEBIAN_12 = Release("bookworm")
DEBIAN_13 = Release("trixie")
DEBIAN_13_BACKPORTS = Release("trixie", "trixie-backports")
RELEASES = {"bookworm": DEBIAN_12, "trixie": DEBIAN_13, "trixie-backports": DEBIAN_13_BACKPORTS}


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: ``disk`` (raw), and the kernel with its initramfs that boot it."""

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"


def build(release: Release, base: Path = DEFAULT_BASE, say: Callable[[str], None] = lambda _line: None) -> Image:
    """The image of a release with this checkout, built unless it is there. Raises LabError."""
    cache, images = base / "cache", base / "hosts"
    for directory in (cache, images):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _only_builder_of(release, base):
        tree, guest = _tree(release, cache, say), build_guest(base)
        files = checkout()
        contents = (f"{path}\0{_digest_of(file)}" for path, file in sorted(files.items()))
        stamp = _digest(tree.name, guest.stamp, *contents)
        image = Image(images / f"{'-'.join(release.suites)}-{stamp}")
        if image.directory.is_dir():
            os.utime(image.directory)
            return image
        say(f"{release.suite}: package and image of this checkout")
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            root, new = Path(scratch) / "root", Image(Path(scratch) / "image")
            _unpack(tree, root)
            for path, file in files.items():
                target = root / CHECKOUT / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
            shutil.copytree(guest.directory, root / GUEST)
            _make_package(root, cache / f"wheels-{tree.stem}")
            new.directory.mkdir()
            _write(root, new)
            new.directory.rename(image.directory)
        _remove_unused(images, UNUSED_S)
        return image


OLDER_VERSION = "0.0.1"


def older_package(commit: str, base: Path = DEFAULT_BASE) -> Path:
    """Debian 12's package of an earlier commit, as ``OLDER_VERSION``: built unless it is there. Raises LabError."""
    cache = base / "cache"
    with _only_builder_of(DEBIAN_12, base):
        tree = _tree(DEBIAN_12, cache, print)
        package = cache / f"older-{commit}-{tree.stem}.deb"
        if package.is_file():
            return package
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            root, archive = Path(scratch) / "root", Path(scratch) / "older.tar"
            _unpack(tree, root)
            (root / CHECKOUT).mkdir(parents=True)
            run(["git", "-C", str(TOP), "archive", "--output", str(archive), commit])
            run(["tar", "--extract", "--file", str(archive), "--directory", str(root / CHECKOUT)])
            settings = root / CHECKOUT / "setup.cfg"
            settings.write_text(re.sub("^version = .*", f"version = {OLDER_VERSION}", settings.read_text(), flags=re.M))
            _make_package(root, cache / f"wheels-{tree.stem}")
            [built] = (root / PACKAGES_FOLDER).glob("*.deb")
            for other in cache.glob("older-*.deb"):
                other.unlink()
            built.rename(package)
    return package


@contextmanager
def _only_builder_of(release: Release, base: Path) -> Iterator[None]:
    """Hold the lock of a release's builders: those of different releases may build side by side."""
    locked = base / "locks" / "-".join(release.suites)
    locked.mkdir(mode=0o755, parents=True, exist_ok=True)
    with only_builder(locked):
        yield


def _make_package(root: Path, wheels: Path) -> None:
    """Build the package of the checkout in a tree. ``wheels`` is where those are kept that it needs.

    Not packed, which takes longer than all else, and an emulated machine longer still to unpack.
    """
    with pip_of_this_machine(root) as environment:
        _add_wheels(root, wheels, environment)
        unpacked = {**environment, "DPKG_DEB_COMPRESSOR_TYPE": "none"}
        in_chroot(root, f"{PACKAGE} --output /{PACKAGES_FOLDER} --wheels /{WHEELS}", unpacked)


def _remove_unused(images: Path, unused_s: float) -> None:
    """Remove images that nothing was booted from for so long; several checkouts may use theirs in turn."""
    for directory in images.iterdir():
        if directory.is_dir() and time.time() - directory.stat().st_mtime > unused_s:
            shutil.rmtree(directory)


PACKAGE = f"mkdir -p /{PACKAGES_FOLDER} && deploy/package"
WHEEL = f"python3 -m venv /tmp/venv && /tmp/venv/bin/pip wheel -q --wheel-dir /{WHEELS}"


def _add_wheels(root: Path, kept: Path, environment: Mapping[str, str]) -> None:
    """Make the checkout's wheel and those that it needs; the latter are kept by what setup.cfg says."""
    kept = kept.with_name(f"{kept.name}-{_digest_of(TOP / 'setup.cfg')[:16]}")
    wheels = root / WHEELS
    if kept.is_dir():
        shutil.copytree(kept, wheels)
    else:
        in_chroot(root, f"{WHEEL} --no-binary libvirt-python '.[postgresql]'", environment)
        for other in kept.parent.glob(f"{kept.name.rpartition('-')[0]}-*"):
            shutil.rmtree(other)
        shutil.copytree(wheels, kept, ignore=shutil.ignore_patterns("equipoise-*"))
    in_chroot(root, f"{WHEEL} --no-deps . && rm -r /tmp/venv build *.egg-info", environment)


def checkout() -> dict[str, Path]:
    """The files of this checkout that git knows, and new ones that it does not ignore, by their paths in it."""
    listed = run(["git", "-C", str(TOP), "ls-files", "--cached", "--others", "--exclude-standard", "-z"])
    paths = [path for path in listed.split("\0") if path and not path.startswith(("tests/", "docs/screenshots/"))]
    return {path: TOP / path for path in paths if (TOP / path).is_file()}


def _tree(release: Release, cache: Path, say: Callable[[str], None]) -> Path:
    """The archive with a release's packages, kept in ``cache``."""
    folder = cache / f"apt-{'-'.join(release.suites)}"
    from_backports = ("linux-*",) if release.kernel_suite else ()
    apt_of(release.suites, from_backports, folder, run)
    indexes = sorted((folder / "lists").glob("*Release"))
    stamp = _digest(SETUP, SHELL.read_text(), *PACKAGES, *map(_digest_of, indexes))
    kept = cache / f"debian-{'-'.join(release.suites)}-{stamp}.tar"
    if not kept.is_file():
        say(f"{release.suite}: packages")
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            new = Path(scratch) / "tree.tar"
            _bootstrap(release, folder, new)
            new.rename(kept)
        for other in cache.glob(f"debian-{'-'.join(release.suites)}-{'?' * 16}.tar"):
            if other != kept:
                other.unlink()
    return kept


def _bootstrap(release: Release, folder: Path, target: Path) -> None:
    _, uri = own_suite(run)
    sources = target.with_name("sources.list")
    sources.write_text("".join(f"deb [signed-by={KEYRING}] {uri} {suite} main\n" for suite in release.suites))
    setup = target.with_name("setup")
    setup.write_text(SETUP)
    setup.chmod(0o755)
    preferences = folder / "preferences"
    hooks = [f'--customize-hook={setup} "$1" {SHELL}']
    if release.kernel_suite:
        hooks.insert(0, f'--setup-hook=mkdir -p "$1/etc/apt" && cp {preferences} "$1/etc/apt/preferences"')
    included = f"--include={','.join((*PACKAGES, 'linux-image-cloud-amd64'))}"
    command = ["mmdebstrap", "--variant=apt", included, *hooks, release.suite, str(target), str(sources)]
    run(command, timeout_s=1200.0)


SETUP = r"""#!/bin/sh
# setup TREE SHELL: what makes a tree of packages a machine for tests.
set -e
root=$1
install -D -m 755 "$2" "$root/usr/local/lib/test-shell.py"
cat >"$root/etc/systemd/system/test-shell.service" <<'UNIT'
[Unit]
Description=Root shell of the tests over a virtio serial port
After=dev-virtio\x2dports-equipoise.shell.device
Wants=dev-virtio\x2dports-equipoise.shell.device
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/test-shell.py
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
UNIT
cat >"$root/etc/systemd/network/10-outside.network" <<'NETWORK'
[Match]
Name=enp0s1
[Network]
DHCP=ipv4
NETWORK
printf 'nameserver 10.0.2.3\n' >"$root/etc/resolv.conf"
printf '/dev/vda / ext4 defaults 0 1\n' >"$root/etc/fstab"
printf 'debian\n' >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
rm -f "$root/etc/machine-id" "$root/var/lib/dbus/machine-id"
: >"$root/etc/machine-id"
# its keys were made with its packages: the same for all machines of an image
systemctl --root="$root" -q enable test-shell.service systemd-networkd.service
# nothing at random times beside what is tested
systemctl --root="$root" -q mask apt-daily.timer apt-daily-upgrade.timer man-db.timer e2scrub_all.timer \
    systemd-networkd-wait-online.service
# on the console and its file
sed -i 's/^#\?Storage=.*/Storage=persistent/' "$root/etc/systemd/journald.conf"
"""


def _unpack(archive: Path, root: Path) -> None:
    root.mkdir()
    run(["tar", "--extract", "--numeric-owner", "--file", str(archive), "--directory", str(root)])


def in_chroot(root: Path, script: str, environment: Mapping[str, str]) -> None:
    """Run a script in a tree as root, from the checkout there, in namespaces of its own. Raises CommandFailed."""
    words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc=" + str(root / "proc"), "--propagation", "private"]
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **environment}
    assignments = [f"{name}={value}" for name, value in clean.items()]
    inside = f"cd /{CHECKOUT} && {script}"
    run([*words, "chroot", str(root), "env", "-i", *assignments, "bash", "-ec", inside], timeout_s=1800.0)


@contextmanager
def pip_of_this_machine(root: Path) -> Iterator[Mapping[str, str]]:
    """This machine's way to its package index, for pip in a tree: name service, certificates, settings."""
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    settings = {name: value for name, value in os.environ.items() if name.lower().endswith(("_proxy", "_index_url"))}
    resolver = root / "etc/resolv.conf"
    before = resolver.read_bytes()
    shutil.copyfile("/etc/resolv.conf", resolver)
    if certificates.is_file():
        shutil.copyfile(certificates, root / "root/certificates.crt")
        settings["PIP_CERT"] = "/root/certificates.crt"
    try:
        yield settings
    finally:
        resolver.write_bytes(before)


def _write(root: Path, image: Image) -> None:
    """Make the ext4 image, and take the newest kernel with its initramfs out."""
    kernel = max((root / "boot").glob("vmlinuz-*"), key=lambda file: _version_key(file.name))
    initrd = root / "boot" / kernel.name.replace("vmlinuz-", "initrd.img-")
    shutil.copyfile(kernel, image.kernel)
    shutil.copyfile(initrd, image.initrd)
    run(["mkfs.ext4", "-q", "-d", str(root), "-E", "lazy_itable_init=1", str(image.disk), IMAGE_SIZE])


def _version_key(name: str) -> tuple[int, ...]:
    digits = "".join(letter if letter.isdigit() else " " for letter in name)
    return tuple(int(part) for part in digits.split())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _digest_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
