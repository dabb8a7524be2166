"""The guest's whole user space as one archive: a few programs, the libraries they load, an init script."""

from __future__ import annotations

import hashlib
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.kernel import Kernel
from deploy.lab.guest.packages import missing_packages, unpack

SOURCES = Path(__file__).parent
LIBRARIES = PurePosixPath("lib/x86_64-linux-gnu")  # where Debian's ld.so looks without a cache file
MOUNT_POINTS = ("dev", "proc", "run", "srv", "sys", "tmp")
TEXT_BYTES = 256 * 1024

# Debian package, and where it has or had the program (Debian 13 moved all to /usr).
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "busybox-static": ("usr/bin/busybox", "bin/busybox"),
    "memcached": ("usr/bin/memcached",),
    "nginx": ("usr/sbin/nginx",),
}

# "libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x...)" or "/lib64/ld-linux-x86-64.so.2 (0x...)"
_LDD_LINE = re.compile(r"^\s*(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x", re.MULTILINE)


def files(kernel: Kernel, cache: Path, run: Runner) -> dict[str, bytes]:
    """Every file of the initramfs by its path without the leading slash. All are executable, none are links.

    Programs that the host lacks are downloaded with their libraries and kept in ``cache``. Raises LabError.
    """
    unpacked = _fetch_programs(cache, run)
    content = {
        "init": (SOURCES / "init").read_bytes(),
        "bin/antagonist": _compile(SOURCES / "antagonist.c", run),
        "bin/batch": _compile(SOURCES / "batch.c", run),
        "etc/nginx.conf": (SOURCES / "nginx.conf").read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        "usr/share/text": filler_text(TEXT_BYTES),
        "modules/order": "".join(f"{module.name}\n" for module in kernel.modules).encode(),
    }
    content |= {f"modules/{module.name}": module.read_bytes() for module in kernel.modules}
    for package, places in PROGRAMS.items():
        program = _locate(package, places, unpacked)
        content[f"bin/{program.name}"] = program.read_bytes()
        if package != "busybox-static":
            for target, source in libraries(program, run, unpacked).items():
                content[target] = source.read_bytes()
    return content


def filler_text(size_bytes: int) -> bytes:
    """Always the same text, which compresses about as well as a log does."""
    lines = (b"%d requests in %d us\n" % (n * 2654435761 % 99991, n * 40503 % 9973) for n in range(size_bytes // 16))
    return b"".join(lines)[:size_bytes]


def _fetch_programs(cache: Path, run: Runner) -> Path:
    """The directory with the files of those packages that the host lacks; it is empty where it has them all."""
    packages = missing_packages(tuple(PROGRAMS), run)
    kept = cache / f"programs-{hashlib.sha256(' '.join(map(str, packages)).encode()).hexdigest()[:16]}"
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            root = Path(scratch) / "root"
            if packages:
                unpack(packages, root, run)
            else:
                root.mkdir()
            root.rename(kept)
    return kept


def _locate(package: str, places: tuple[str, ...], unpacked: Path) -> Path:
    for root in (unpacked, Path("/")):
        for place in places:
            if (root / place).is_file():
                return root / place
    raise LabError(f"the package {package} has none of {', '.join(places)}")


def libraries(program: Path, run: Runner, unpacked: Path = Path("/")) -> dict[str, Path]:
    """Where in a guest each library of a program or module goes, and where on the host it is.

    Those in ``unpacked``, a directory of unpacked packages, come first. Raises LabError when one is missing.
    """
    search = ":".join(str(unpacked / place / "x86_64-linux-gnu") for place in ("usr/lib", "lib"))
    listed = run(["ldd", str(program)], env={"LD_LIBRARY_PATH": search})
    if "not found" in listed:
        raise LabError(f"{program}: libraries are missing\n{listed}")
    return {
        str(LIBRARIES / match["name"] if match["name"] else match["path"].lstrip("/")): Path(match["path"])
        for match in _LDD_LINE.finditer(listed)
    }


def _compile(source: Path, run: Runner) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / source.stem
        run(["gcc", "-O2", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source)])
        return target.read_bytes()


def archive(content: Mapping[str, bytes]) -> bytes:
    """A cpio archive in the kernel's "newc" format: the same bytes for the same content.

    Layout of a header: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's sources.
    """
    return b"".join(_members(content))


def _members(content: Mapping[str, bytes]) -> Iterator[bytes]:
    directories = {str(parent) for path in content for parent in PurePosixPath(path).parents} - {"."}
    modes = dict.fromkeys(directories | set(MOUNT_POINTS), stat.S_IFDIR | 0o755)
    modes |= dict.fromkeys(content, stat.S_IFREG | 0o755)
    # Sorted, so that a directory comes before what is in it.
    for inode, (path, mode) in enumerate(sorted(modes.items()), start=1):
        yield _member(inode, path, mode, content.get(path, b""))
    yield _member(0, "TRAILER!!!", 0, b"")


def _member(inode: int, path: str, mode: int, data: bytes) -> bytes:
    name = path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name, checksum
    numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers)
    return _pad(header + name) + _pad(data)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
