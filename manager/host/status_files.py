"""What libvirt's QEMU driver notes of running domains in their status files, read without a call of libvirt.

Their form is libvirt's own and may change (virDomainObjFormat, src/conf/domain_conf.c): a domain without a file that
can be read counts as set up, and as not migrating.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from manager.host.registry import HostPaths
from manager.model.host import VmInstance

_STARTING = re.compile(rb"<domstatus state='paused' reason='starting up'")
_STATUS_BYTES = 4096
# qemuDomainObjPrivateXMLFormatJob, src/qemu/qemu_domainjob.c: written when the job begins and when it ends.
_MIGRATING_OUT = re.compile(rb"<job type='[^']*' async='migration out'")
_DESCRIPTION = b"<domain "
"""Begins the domain's own description, whose metadata may hold any element."""

_SETTLED_NS = 1_000_000_000
"""Times of change are of a coarse clock: two changes within some milliseconds have the same."""

log = logging.getLogger(__name__)


def is_starting(paths: HostPaths, libvirt_name: str) -> bool:
    """Whether libvirt still sets a domain up."""
    try:
        with paths.status_file(libvirt_name).open("rb") as file:
            return _STARTING.search(file.read(_STATUS_BYTES)) is not None
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _StatusFile:
    """A status file as last read. ``version``: inode and time of change (ns), which are new whenever libvirt writes it,
    as it replaces the file; None: it could not be read.
    """

    path: str
    version: tuple[int, int] | None
    migrating: bool


class MigrationWatch:
    """Which domains libvirt migrates to other hosts. A file is read again only when it was written anew."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._files: dict[VmInstance, _StatusFile] = {}
        self._asked: list[VmInstance] = []
        self._folder: tuple[int, int] | None = None
        self._migrating: frozenset[str] = frozenset()

    def migrating(self, instances: Collection[VmInstance]) -> frozenset[str]:
        """The UUIDs of those of these domains with an outgoing migration.

        libvirt replaces a file that it writes, which changes their folder: mostly nothing else is looked at.
        """
        folder = self._settled_folder()
        asked = list(instances)
        if folder is None or folder != self._folder or asked != self._asked:
            self._files = {instance: self._look(instance) for instance in asked}
            self._migrating = frozenset(instance.uuid for instance, file in self._files.items() if file.migrating)
            self._folder, self._asked = folder, asked
        return self._migrating

    def _settled_folder(self) -> tuple[int, int] | None:
        """The version of the files' folder; None: another change of it by now might leave that as it is."""
        now_ns = time.time_ns()
        try:
            version = _version(self._paths.pid_files.stat())
        except OSError:
            return None
        return version if version[1] < now_ns - _SETTLED_NS else None

    def _look(self, instance: VmInstance) -> _StatusFile:
        before = self._files.get(instance)
        path = before.path if before else str(self._paths.status_file(instance.libvirt_name))
        try:
            if before is not None and before.version == _version(os.stat(path)):  # noqa: PTH116 - in each tick
                return before
            with Path(path).open("rb") as file:
                version, status = _version(os.fstat(file.fileno())), file.read().partition(_DESCRIPTION)[0]
        except OSError as error:
            log.debug("status file of domain %s: %s", instance.libvirt_name, error)
            return _StatusFile(path, None, False)
        return _StatusFile(path, version, _MIGRATING_OUT.search(status) is not None)


def _version(file: os.stat_result) -> tuple[int, int]:
    return file.st_ino, file.st_mtime_ns
