"""KVM or TCG: decided by booting the guest, as /dev/kvm may exist and yet run nothing.

``python -m deploy.lab.accelerator`` prints the verdict and its reason.
"""

from __future__ import annotations

import json
import pwd
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import click

from deploy.lab.commands import CommandFailed, LabError, Runner, run
from deploy.lab.guest import DEFAULT_BASE, Guest, build

PROBE_TIMEOUT_S = 20.0
PROBE_MARKER = "equipoise-guest ready role=probe"
QEMU = "qemu-system-x86_64"
QEMU_USER = "libvirt-qemu"  # Debian's libvirt runs QEMU as this user
KVM_DEVICE = Path("/dev/kvm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Accelerator(StrEnum):
    """What executes the guests' instructions: the CPU (KVM), or QEMU's translator (TCG), some ten times slower."""

    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The accelerator to use, and why, in words for an operator."""

    accelerator: Accelerator
    reason: str


def probe(guest: Guest, device: Path = KVM_DEVICE, run: Runner = run) -> Chosen:
    """Boot the guest's ``probe`` role with KVM, as the user that libvirt's QEMU runs as, and see whether it comes up.

    Every failure of the guest is a reason for TCG. Raises LabError when QEMU is not installed.
    """
    if not device.exists():
        return Chosen(Accelerator.TCG, f"{device} does not exist: no virtualisation in the CPU, or no kvm module")
    try:
        output = run(_as_qemu_user(_probe_command(guest)), timeout_s=PROBE_TIMEOUT_S)
    except CommandFailed as error:
        last = error.cause.splitlines()[-1]
        return Chosen(Accelerator.TCG, f"{device} exists, but no guest boots with it: {last}")
    if PROBE_MARKER not in output:
        return Chosen(Accelerator.TCG, f"{device} exists, but a guest ended without getting to its first process")
    return Chosen(Accelerator.KVM, f"a guest with two vCPUs booted through {device}")


def _probe_command(guest: Guest) -> list[str]:
    machine = ["-accel", "kvm", "-machine", "pc", "-cpu", "host", "-smp", "2", "-m", "256"]
    console = ["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]
    kernel = ["-kernel", str(guest.kernel), "-initrd", str(guest.initrd)]
    return [QEMU, *machine, *console, *kernel, "-append", "console=ttyS0 quiet panic=-1 equipoise.role=probe"]


def _as_qemu_user(argv: list[str]) -> list[str]:
    try:
        pwd.getpwnam(QEMU_USER)
    except KeyError:
        return argv
    return ["setpriv", f"--reuid={QEMU_USER}", f"--regid={QEMU_USER}", "--init-groups", "--", *argv]


def decide(
    guest: Guest,
    base: Path = DEFAULT_BASE,
    *,
    again: bool = False,
    device: Path = KVM_DEVICE,
    boot_id: Path = BOOT_ID,
    run: Runner = run,
) -> Chosen:
    """The verdict of ``probe``, kept below ``base`` for this guest, this boot, and these rights on the device.

    ``again`` probes in any case.
    """
    kept = base / "accelerator.json"
    key = {"guest": guest.stamp, "boot_id": boot_id.read_text().strip(), "device": _identity(device)}
    if not again and (verdict := _recall(kept, key)) is not None:
        return verdict
    verdict = probe(guest, device, run)
    new = kept.with_suffix(".new")
    new.write_text(json.dumps({"key": key, "verdict": asdict(verdict)}, indent=2) + "\n")
    new.replace(kept)
    return verdict


def _recall(kept: Path, key: dict[str, str]) -> Chosen | None:
    try:
        stored = json.loads(kept.read_text())
        if stored["key"] != key:
            return None
        return Chosen(Accelerator(stored["verdict"]["accelerator"]), str(stored["verdict"]["reason"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # never probed, or a file of another version of this program


def _identity(device: Path) -> str:
    """Mode and owners: an operator who lets QEMU use the device gets a new verdict."""
    if not device.exists():
        return "absent"
    status = device.stat()
    return f"{status.st_mode:o} {status.st_uid}:{status.st_gid}"


@click.command()
@click.option("--again", is_flag=True, help="Probe even if the verdict is known.")
@click.option(
    "--base",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_BASE,
    show_default=True,
    help="Where the guest is, or is to be built.",
)
def main(again: bool, base: Path) -> None:
    """Tell whether the lab's VMs can use KVM on this machine, or have to be emulated, and why."""
    try:
        verdict = decide(build(base), base, again=again)
    except LabError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{verdict.accelerator}: {verdict.reason}")


if __name__ == "__main__":
    main()
