"""The guests of the folders below ``inside``."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from deploy.bpf.suites import apt_of, fetch_sched_ext_kernel
from deploy.bpf.toolchain import fetch_toolchain
from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.initramfs import libraries
from deploy.lab.guest.kernel import Kernel, fetch_kernel
from tests.kernel.cat_kernel import Fetch, with_bandwidth_allocation, with_cache_allocation
from tests.kernel.emulator import fair_qemu, installed_qemu
from tests.kernel.machine import Files, Machine

LOAD = Path(__file__).parent / "inside/warp/load.c"
CROWD = Path(__file__).parent / "inside/tail/crowd.c"

# Each takes minutes; beside other work, with what that leaves, half an hour.
PATIENCE_S = 3000.0


def warp_files(cache: Path, run: Runner) -> dict[str, bytes]:
    """bpftool, and the loads of the experiments."""
    return bpf_files(cache, run) | {"bin/load": built(LOAD, run)}


def bpf_files(cache: Path, run: Runner) -> dict[str, bytes]:
    """bpftool."""
    toolchain = fetch_toolchain(cache, run)
    found = {"bin/bpftool": toolchain.bpftool.read_bytes()}
    return found | {target: source.read_bytes() for target, source in libraries(toolchain.bpftool, run).items()}


def policing_files(cache: Path, run: Runner) -> dict[str, bytes]:
    """That, and modules for taps and what limits them, and for vhost."""
    wanted = ("tun", "sch_ingress", "cls_u32", "act_police", "vhost_net")
    kernel = fetch_kernel(cache, run, lambda _line: None, wanted)
    return bpf_files(cache, run) | {f"modules/{module.name}": module.read_bytes() for module in kernel.modules}


def vhost_files(suite: str) -> Files:
    """bpftool, and modules of a suite's kernel for vhost."""

    def files(cache: Path, run: Runner) -> dict[str, bytes]:
        apt = apt_of((suite,), (), cache / f"apt-{suite}", run)
        kernel = fetch_kernel(cache, apt, lambda _line: None, ("vhost_net",))
        return bpf_files(cache, run) | {f"modules/{module.name}": module.read_bytes() for module in kernel.modules}

    return files


def of_suite(suite: str) -> Fetch:
    """Fetches the cloud kernel of a Debian suite."""
    return lambda cache, run, say: fetch_kernel(cache, apt_of((suite,), (), cache / f"apt-{suite}", run), say)


def disk_files(cache: Path, run: Runner) -> dict[str, bytes]:
    """Modules for a disk in memory to swap to, one that answers late, with a scheduler, and for vhost."""
    kernel = fetch_kernel(cache, run, lambda _line: None, ("brd", "null_blk", "bfq", "vhost_net"))
    return {f"modules/{module.name}": module.read_bytes() for module in kernel.modules}


def service_files(cache: Path, run: Runner) -> dict[str, bytes]:
    """These modules, and memcached, which asks who root is."""
    program = Path("/usr/bin/memcached")
    found = disk_files(cache, run) | {"bin/memcached": program.read_bytes(), "etc/passwd": b"root:x:0:0::/:/bin/sh\n"}
    return found | {target: source.read_bytes() for target, source in libraries(program, run).items()}


def tail_files(_cache: Path, run: Runner) -> dict[str, bytes]:
    """Threads like those of VMs."""
    return {"bin/crowd": built(CROWD, run)}


def built(source: Path, run: Runner) -> bytes:
    """A program that needs no library."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / source.stem
        run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source), "-lm"])
        return program.read_bytes()


def counting(instruction_ns: int, cpus: int) -> tuple[str, ...]:
    """Hardware whose clock counts instructions: what a guest measures does not depend on what this machine does
    meanwhile. Its CPUs take turns, so that each gets 1/``cpus`` of that. ``instruction_ns`` is a power of two.
    """
    clock = f"shift={instruction_ns.bit_length() - 1},sleep=off"
    return ("-accel", "tcg,thread=single", "-icount", clock, "-smp", str(cpus), "-cpu", "qemu64,+rdrand")


def cgroup_v2_machine() -> Machine:
    """A guest with two CPUs. Where a CPU stands still while it runs a group of little weight, that group owes a
    thousand times as long to the others: no test would see the end of it.
    """
    return Machine(
        mounts=(("cgroup2", "/sys/fs/cgroup"),),
        packages=("pytest", "libvirt-python", "pydantic"),
        files=service_files,
        qemu=fair_qemu,
        hardware=counting(instruction_ns=4, cpus=2),
        timeout_s=PATIENCE_S,
    )


def sched_ext_machine(cpus: int) -> Machine:
    """A guest with a scheduler of our own."""
    return Machine(
        mounts=(("cgroup2", "/sys/fs/cgroup"), ("bpf", "/sys/fs/bpf"), ("debugfs", "/sys/kernel/debug")),
        fetch=fetch_sched_ext_kernel,
        packages=("pytest", "pydantic"),
        files=warp_files,
        qemu=fair_qemu if cpus > 1 else installed_qemu,
        hardware=counting(instruction_ns=1, cpus=cpus),
        timeout_s=PATIENCE_S,
    )


def taps_machine(fetch: Fetch, files: Files = bpf_files) -> Machine:
    """A guest whose only network is its loopback."""
    return Machine(
        fetch=fetch,
        mounts=(("bpf", "/sys/fs/bpf"),),
        packages=("pytest", "pydantic"),
        files=files,
        hardware=("-accel", "tcg,thread=single", "-cpu", "qemu64,+rdrand"),
        timeout_s=PATIENCE_S,
    )


def tail_machine() -> Machine:
    """A guest with two CPUs, on which VMs' groups have several threads."""
    return dataclasses.replace(
        cgroup_v2_machine(),
        mounts=(("cgroup2", "/sys/fs/cgroup"), ("debugfs", "/sys/kernel/debug"), ("tracefs", "/sys/kernel/tracing")),
        files=tail_files,
        # Else a CPU that is idle wakes up milliseconds late.
        command_line="idle=poll",
        seed=1,
    )


def resctrl_machine(fetch: Fetch, socket: str = "cores=2") -> Machine:
    """A guest with two sockets of two CPUs, each with a cache that can be divided."""
    return Machine(
        fetch=fetch,
        packages=("pytest", "pydantic"),
        hardware=(
            *("-accel", "tcg,thread=single", "-smp", f"4,sockets=2,{socket}"),
            # model 63: a Haswell server. level 16: CPUID's leaf 0x10 is asked for. Without cx16 there is no code that
            # the kernel patches while others run it. The others, and what is done against faults of a real processor,
            # cost the emulator a third of its time.
            *("-cpu", "Haswell-noTSX,model=63,level=16,-cx16,-erms,-avx2,-avx"),
        ),
        command_line="mitigations=off",
        timeout_s=PATIENCE_S,
    )


MACHINES = {
    "agent": dataclasses.replace(sched_ext_machine(1), packages=("pytest", "equipoise"), memory_mib=1024),
    "cgroup_v2": cgroup_v2_machine(),
    "warp": sched_ext_machine(1),
    "resctrl": dataclasses.replace(
        resctrl_machine(with_cache_allocation(fetch_kernel), socket="cores=1,threads=2"),
        mounts=(("cgroup2", "/sys/fs/cgroup"),),
        packages=("pytest", "libvirt-python", "pydantic"),
    ),
    "taps_newest": taps_machine(fetch_sched_ext_kernel),
    "warp_smp": sched_ext_machine(4),
    "tail": tail_machine(),
    "taps": taps_machine(fetch_kernel, policing_files),
    "taps_6_12": taps_machine(of_suite("trixie"), vhost_files("trixie")),
    "resctrl_mba": resctrl_machine(with_bandwidth_allocation(fetch_sched_ext_kernel)),
    "resctrl_16": resctrl_machine(with_cache_allocation(fetch_sched_ext_kernel, closids=16)),
}
"""By the folder of their tests, the one that takes longest first."""
RESCTRL = ("resctrl", "resctrl_16", "resctrl_mba")
"""Those with a resctrl."""
SCHED_EXT = ("warp", "warp_smp", "agent", "taps_newest")
"""Those with the newest kernel, which also run on one of one's own."""


def with_image(machine: Machine, image: Path) -> Machine:
    """The same guest with this kernel image. Raises LabError when that is no file."""
    if not image.is_file():
        raise LabError(f"--kernel {image}: there is no such file")
    return dataclasses.replace(machine, fetch=lambda _cache, _run, _say: Kernel(image.name, image, ()))
