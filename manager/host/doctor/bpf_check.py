"""What loading a BPF scheduler takes."""

from __future__ import annotations

import re
import shutil
import subprocess

from manager.errors import HostError
from manager.host.doctor.check import Check, CheckResult, Subject, degraded, missing, works
from manager.host.doctor.kernel_text import mounted

_AREA = "BPF"
_BPFTOOL_S = 5
_VERSION = re.compile(r"bpftool v(\d+)\.(\d+)")
_ENOUGH = (7, 5)  # 7.1 ignores .struct_ops.link


def _btf(subject: Subject) -> CheckResult:
    if not subject.paths.btf.exists():
        return missing(f"no {subject.paths.btf}", "run a kernel with CONFIG_DEBUG_INFO_BTF")
    return works(f"{subject.paths.btf} is there")


def _bpffs(subject: Subject) -> CheckResult:
    point = mounted(subject.paths, "bpf")
    if point is None:
        return missing("no BPF file system is mounted", "mount -t bpf bpf /sys/fs/bpf")
    return works(f"mounted at {point}")


def _bpftool(_subject: Subject) -> CheckResult:
    program = shutil.which("bpftool")
    if program is None:
        return missing("bpftool is not installed", "install bpftool 7.5 or newer, such as from backports")
    try:
        ended = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_BPFTOOL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{program} version: no answer within {_BPFTOOL_S} s") from error
    match = _VERSION.search(ended.stdout)
    if match is None:
        said = (ended.stderr or ended.stdout).strip()[:200]
        return missing(f"{program} does not run: {said}", "install bpftool for this kernel")
    version = f"{program} {match[1]}.{match[2]}"
    if (int(match[1]), int(match[2])) < _ENOUGH:
        return degraded(f"{version}: too old to keep a scheduler loaded", "install bpftool 7.5 or newer")
    return works(version)


CHECKS = (
    Check("btf", _AREA, "Kernel types (BTF)", _btf),
    Check("bpffs", _AREA, "BPF file system", _bpffs),
    Check("bpftool", _AREA, "bpftool", _bpftool),
)
