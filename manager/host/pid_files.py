"""The running domains without libvirt: by the files that its QEMU driver keeps of each.

For a libvirtd that does not answer. The pid files are those by which a listed domain's process is found, too; whether
libvirt still sets a domain up is in its status file, whose form is libvirt's own and may change: a domain without a
readable one counts as set up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from manager.errors import HostError
from manager.host import process
from manager.host.registry import HostPaths
from manager.model.host import VmInstance

_STARTING = re.compile(rb"<domstatus state='paused' reason='starting up'")
_STATUS_BYTES = 4096

log = logging.getLogger(__name__)


def find_running(paths: HostPaths, known: Mapping[str, VmInstance]) -> dict[str, VmInstance]:
    """The running domains by UUID, without those that libvirt still sets up.

    Those of ``known`` stay while their process runs, whatever becomes of their files. Blocks on no other process.
    """
    found: dict[str, VmInstance] = {}
    for uuid, instance in known.items():
        try:
            if process.is_alive(paths, instance):
                found[uuid] = instance
        except HostError as error:  # nothing says that it ended
            log.warning("domain %s cannot be looked up: %s", instance.libvirt_name, error)
            found[uuid] = instance
    names = {instance.libvirt_name for instance in found.values()}
    try:
        files = sorted(paths.pid_files.glob("*.pid"))
    except OSError as error:
        log.warning("the pid files of domains cannot be listed: %s", error)
        return found
    for file in files:
        if file.stem in names or _is_starting(paths, file.stem):
            continue
        try:
            instance_found = process.find_named(paths, file.stem)
        except HostError as error:
            log.warning("domain %s cannot be looked up: %s", file.stem, error)
            continue
        if instance_found is not None:
            found[instance_found.uuid] = instance_found
    return found


def _is_starting(paths: HostPaths, libvirt_name: str) -> bool:
    try:
        with paths.status_file(libvirt_name).open("rb") as file:
            return _STARTING.search(file.read(_STATUS_BYTES)) is not None
    except OSError:
        return False
