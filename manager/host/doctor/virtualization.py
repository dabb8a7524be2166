"""libvirt, KVM, and what the running domains run on."""

from __future__ import annotations

import errno
import fcntl
from collections import Counter
from collections.abc import Sequence

from manager.host.doctor.check import CheckResult, Subject, degraded, missing, unknown, warning, works
from manager.host.files import text_of

_KVM_GET_API_VERSION = 0xAE00
_KVM_API_VERSION = 12  # Documentation/virt/kvm/api.rst, 4.1: the only one there ever will be
_SHOWN = 5
_YES_NO = {"Y": "yes", "1": "yes", "N": "no", "0": "no"}


def connection(subject: Subject) -> CheckResult:
    view = subject.libvirt
    if view.error:
        return missing(
            f"no connection to {view.uri}: {view.error}",
            "start libvirtd (`systemctl start libvirtd` or virtqemud), or name another connection with --libvirt-uri",
        )
    if view.hanging:
        return degraded(
            f"{view.versions}, which does not answer about {len(view.hanging)} domains: {some(view.hanging)}",
            "look at these domains' QEMU processes, storage and hooks; all others are controlled, and so are these",
        )
    return works(f"{view.versions}, {len(view.domains)} running domains")


def events(subject: Subject) -> CheckResult:
    view = subject.libvirt
    if view.error:
        return unknown("libvirt is not connected", "see the finding `libvirt`")
    if view.events_error:
        return degraded(
            f"no lifecycle events: {view.events_error}",
            "started VMs are seen only every reconcile_s seconds: make that setting smaller",
        )
    return works("lifecycle events can be followed")


def kvm(subject: Subject) -> CheckResult:
    device, advice = subject.paths.kvm, "switch on VT-x or AMD-V in the firmware, and load kvm_intel or kvm_amd"
    try:
        with device.open("r+b", buffering=0) as file:
            try:
                version = fcntl.ioctl(file, _KVM_GET_API_VERSION)
            except OSError as error:
                return missing(f"{device} is not KVM's: {error.strerror}", advice)
    except FileNotFoundError:
        return missing(f"no {device}: VMs are emulated (TCG), far slower", advice)
    except PermissionError as error:
        return unknown(f"{device} cannot be opened: {error.strerror}", "run as root on the host itself")
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.ENXIO}:
            return missing(f"{device} cannot be used: {error.strerror}", advice)
        raise
    if version != _KVM_API_VERSION:
        return missing(f"{device} speaks version {version}, not {_KVM_API_VERSION}", "run a kernel of this century")
    nested = next((text for file in subject.paths.kvm_nested if (text := text_of(file)) is not None), None)
    return works(f"{device} answers; guests may run guests: {_YES_NO.get(nested or '', 'unknown')}")


def accelerator(subject: Subject) -> CheckResult:
    view = subject.libvirt
    if view.error:
        return unknown("libvirt is not connected", "see the finding `libvirt`")
    if not view.domains:
        return works("no domain is running")
    kinds = Counter(domain.kind for domain in view.domains)
    seen = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    emulated = [domain.name for domain in view.domains if domain.kind == "qemu"]
    if emulated:
        return degraded(
            f"running: {seen}; emulated (TCG): {some(emulated)}",
            "use <domain type='kvm'> where /dev/kvm works; times of emulated VMs mean little",
        )
    return works(f"running: {seen}")


def tuning(subject: Subject) -> CheckResult:
    view = subject.libvirt
    if view.error:
        return unknown("libvirt is not connected", "see the finding `libvirt`")
    tuned = [f"{domain.name} ({', '.join(domain.tuning)})" for domain in view.domains if domain.tuning]
    if tuned:
        return warning(
            f"domains with CPU tuning of their own: {some(tuned)}",
            "remove <shares>, <vcpupin>, <emulatorpin> and <cachetune> from domains that Equipoise is to manage (`virsh"
            " edit`): libvirt sets them anew at each start and whenever a vCPU is plugged",
        )
    return works("no running domain has CPU tuning of its own")


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
