"""resctrl itself: files, folders and the mount, with the kernel's errors as they are; and what it offers."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from manager.errors import HostError
from manager.host.files import LIBC, mounts_of, succeeded
from manager.host.registry import HostPaths
from manager.model.cache import (
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    Mask,
    Monitoring,
    Resctrl,
    Schemata,
    is_cache,
    parse_schemata,
    parse_sizes,
)

_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_CHUNK_BYTES = 1 << 16
_MOST_PERCENT = 100
_MONITORED = "L3_MON"


class ResctrlFile:
    """A file that is held open; of a removed group it fails with ENODEV, also where the name is used again."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC)

    def read(self) -> str:
        """The whole text as it is now. Raises OSError."""
        text = b""
        while chunk := os.pread(self._fd, _CHUNK_BYTES, len(text)):
            text += chunk
        return text.decode()

    def write(self, text: str) -> None:
        """One command, in one system call. Raises OSError."""
        os.write(self._fd, text.encode())

    def close(self) -> None:
        """Close it; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ResctrlTree:
    """The tree of the running kernel, wherever ``options`` or ``mount`` last found it mounted.

    Paths are relative to its root, which is the empty path. Everything raises OSError.
    """

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._point = paths.resctrl

    def options(self) -> frozenset[str] | None:
        """Options of the mount, None where resctrl is not mounted."""
        mount = next(mounts_of(self._paths, "resctrl"), None)
        if mount is None:
            return None
        self._point = mount.point
        return frozenset(mount.options)

    def mount(self, options: frozenset[str]) -> None:
        """Mount it at the usual place."""
        self._point = self._paths.resctrl
        data = ",".join(sorted(options)).encode()
        point = os.fsencode(self._point)
        succeeded(LIBC.mount(b"resctrl", point, b"resctrl", ctypes.c_ulong(_NOSUID_NODEV_NOEXEC), data))

    def unmount(self) -> None:
        """Unmount it, by which the kernel removes all groups, of others too, and resets all values."""
        succeeded(LIBC.umount2(os.fsencode(self._point), 0))

    def open(self, path: str, *, write: bool = False) -> ResctrlFile:
        """Hold a file, for reading or for writing. It is neither made nor truncated."""
        return ResctrlFile(self._point / path, os.O_WRONLY if write else os.O_RDONLY)

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder, sorted."""
        with os.scandir(self._point / path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def make(self, path: str) -> None:
        """Make a group."""
        (self._point / path).mkdir(0o755)

    def remove(self, path: str) -> None:
        """Remove a group; its tasks go to the group above it."""
        (self._point / path).rmdir()


def read_text(tree: ResctrlTree, path: str) -> str | None:
    """A file's text, None where there is no such file. Raises other OSErrors."""
    try:
        file = tree.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read()
    finally:
        file.close()


def discover(tree: ResctrlTree) -> Resctrl | None:
    """Everything that is offered; None where resctrl is not mounted. Resources of a kind not known are left out.

    Raises HostError, and ValueError for what no kernel writes.
    """
    try:
        options = tree.options()
        if options is None:
            return None
        names = tree.folders("info")
        values = parse_schemata(read_text(tree, "schemata") or "")
        sizes = parse_sizes(read_text(tree, "size") or "")
        caches = [_cache(tree, name, values, sizes) for name in names if is_cache(name)]
        bandwidths = [_bandwidth(tree, name, values, options) for name in names]
        features = frozenset((read_text(tree, f"info/{_MONITORED}/mon_features") or "").split())
        monitoring = Monitoring(features, _number(tree, f"info/{_MONITORED}/num_rmids"))
    except OSError as error:
        raise HostError(f"read what resctrl offers: {error.strerror}", error.errno or 0) from error
    return Resctrl(
        tuple(cache for cache in caches if cache is not None),
        tuple(bandwidth for bandwidth in bandwidths if bandwidth is not None),
        monitoring if _MONITORED in names else None,
    )


def _number(tree: ResctrlTree, path: str) -> int:
    """The number in a file, 0 where there is no such file: ``sparse_masks`` came with Linux 6.7."""
    return int(read_text(tree, path) or 0)


def _mask(tree: ResctrlTree, path: str) -> Mask:
    return Mask.parse(read_text(tree, path) or "0")


def _cache(tree: ResctrlTree, name: str, values: Schemata, sizes: Schemata) -> CacheResource | None:
    """None of one that has no domain online. A way's size is that of the default group by its ways."""
    held = {slot: Mask(value) for slot, value in sorted(values.items()) if slot.resource == name}
    if not held:
        return None
    folder = f"info/{name}"
    return CacheResource(
        name,
        _mask(tree, f"{folder}/cbm_mask"),
        max(_number(tree, f"{folder}/min_cbm_bits"), 1),
        _mask(tree, f"{folder}/shareable_bits"),
        _number(tree, f"{folder}/num_closids"),
        bool(_number(tree, f"{folder}/sparse_masks")),
        tuple(slot.domain for slot in held),
        tuple((slot.domain, sizes[slot] // mask.ways) for slot, mask in held.items() if mask and sizes.get(slot)),
    )


def _bandwidth(tree: ResctrlTree, name: str, values: Schemata, options: frozenset[str]) -> BandwidthResource | None:
    """None of what is no such resource.

    The file system does not say the most that can be given: it is 100 where numbers are percent, else the largest
    that the default group has.
    """
    step = read_text(tree, f"info/{name}/bandwidth_gran")
    held = {slot.domain: value for slot, value in sorted(values.items()) if slot.resource == name}
    if step is None or not held:
        return None
    linear = bool(_number(tree, f"info/{name}/delay_linear"))
    if "mba_MBps" in options and name == "MB":
        unit = BandwidthUnit.MBPS
    else:  # Intel and Arm are linear in percent; AMD is not linear and absolute
        unit = BandwidthUnit.PERCENT if linear else BandwidthUnit.EIGHTH_GBPS
    return BandwidthResource(
        name,
        _number(tree, f"info/{name}/min_bandwidth"),
        int(step),
        _MOST_PERCENT if unit is BandwidthUnit.PERCENT else max(held.values()),
        unit,
        linear,
        _number(tree, f"info/{name}/num_closids"),
        tuple(held),
        (read_text(tree, f"info/{name}/thread_throttle_mode") or "").strip(),
    )
