"""Building the guest: module order, package resolution, the archive, and the choice of accelerator."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.lab.accelerator import PROBE_MARKER, Accelerator, decide, probe
from deploy.lab.commands import CommandFailed, LabError, run
from deploy.lab.guest import Guest
from deploy.lab.guest.initramfs import SOURCES, archive, filler_text
from deploy.lab.guest.kernel import load_order
from deploy.lab.guest.packages import Package, kernel_packages, missing_packages
from deploy.lab.lab_vms import ROLE_OPTIONS

MODULES_DEP = """\
kernel/net/core/failover.ko.xz:
kernel/drivers/net/net_failover.ko.xz: kernel/net/core/failover.ko.xz
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz \
kernel/drivers/virtio/virtio-ring.ko.xz
kernel/drivers/virtio/virtio-ring.ko.xz: kernel/drivers/virtio/virtio.ko.xz
kernel/drivers/virtio/virtio.ko.xz:
kernel/drivers/block/brd.ko.xz:
"""


@dataclass
class FakeRunner:
    """Answers commands that contain a key; failures are raised. Remembers what was run."""

    answers: Mapping[str, str | CommandFailed]
    commands: list[str] = field(default_factory=list)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        command = " ".join(argv)
        self.commands.append(command)
        answer = next(answer for key, answer in self.answers.items() if key in command)
        if isinstance(answer, CommandFailed):
            raise answer
        return answer


class TestLoadOrder:
    def test_dependencies_come_first_and_once(self) -> None:
        order = [path.rpartition("/")[2] for path in load_order(MODULES_DEP, "", ["virtio_ring", "virtio_net"])]
        assert order == [
            "virtio.ko.xz",
            "virtio-ring.ko.xz",
            "failover.ko.xz",
            "net_failover.ko.xz",
            "virtio_net.ko.xz",
        ]

    def test_a_built_in_module_needs_no_file(self) -> None:
        assert load_order("", "kernel/drivers/virtio/virtio-pci.ko\n", ["virtio_pci"]) == ()

    def test_an_unknown_module_is_named(self) -> None:
        with pytest.raises(LabError, match="no module virtio_pci"):
            load_order(MODULES_DEP, "", ["virtio_pci"])


class TestPackages:
    def test_the_kernel_of_debian_12(self) -> None:
        runner = FakeRunner(
            {
                "depends --no-recommends --no-suggests linux-image-cloud-amd64": (
                    "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n"
                ),
                "apt-cache depends": "linux-image-6.1.0-56-cloud-amd64\n  Depends: kmod\n |Depends: initramfs-tools\n",
                "apt-cache policy": "linux-image-6.1.0-56-cloud-amd64:\n  Installed: (none)\n  Candidate: 6.1.192-2\n",
            }
        )
        assert kernel_packages(runner) == (Package("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2"),)

    def test_image_and_modules_in_packages_of_their_own(self) -> None:
        runner = FakeRunner(
            {
                "no-suggests linux-image-cloud-amd64": "  Depends: linux-image-7.2.1-cloud-amd64\n",
                "no-suggests linux-image-7.2.1": (
                    "  Depends: linux-binary-7.2.1-cloud-amd64\n  Depends: linux-modules-7.2.1-cloud-amd64\n"
                ),
                "apt-cache depends": "  Depends: linux-modules-7.2.1-cloud-amd64\n  Depends: <linux-initramfs-tool>\n",
                "apt-cache policy": "  Candidate: 7.2.1-1\n",
            }
        )
        assert [package.name for package in kernel_packages(runner)] == [
            "linux-binary-7.2.1-cloud-amd64",
            "linux-image-7.2.1-cloud-amd64",
            "linux-modules-7.2.1-cloud-amd64",
        ]

    def test_empty_package_lists_are_explained(self) -> None:
        with pytest.raises(LabError, match="apt-get update"):
            kernel_packages(FakeRunner({"apt-cache depends": ""}))

    def test_missing_packages_are_what_apt_would_install(self) -> None:
        simulated = (
            "Remv busybox [1:1.35.0-4]\n"
            "Inst libevent-2.1-7 (2.1.12-8 Debian:12/stable [amd64])\n"
            "Inst nginx [1.22.1-8] (1.22.1-9 Debian:12/stable [amd64])\n"
            "Conf nginx (1.22.1-9 Debian:12/stable [amd64])\n"
        )
        assert missing_packages(["nginx"], FakeRunner({"--simulate": simulated})) == (
            Package("libevent-2.1-7", "2.1.12-8"),
            Package("nginx", "1.22.1-9"),
        )


class TestArchive:
    CONTENT: Mapping[str, bytes] = {"init": b"#!/bin/sh\n", "usr/share/text": b"words", "a": b""}

    def test_same_content_same_bytes(self) -> None:
        assert archive(self.CONTENT) == archive(dict(sorted(self.CONTENT.items(), reverse=True)))

    @pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
    def test_cpio_reads_it(self, tmp_path: Path) -> None:
        subprocess.run(
            ["cpio", "--extract", "--quiet", "--no-preserve-owner"],
            input=archive(self.CONTENT),
            cwd=tmp_path,
            check=True,
        )
        assert {
            str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        } == (self.CONTENT)
        assert (tmp_path / "proc").is_dir()
        assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755

    def test_filler_text_has_the_size_asked_for(self) -> None:
        assert [len(filler_text(size)) for size in (4096, 262144)] == [4096, 262144]


def test_every_option_is_documented_and_read_by_the_guest() -> None:
    init = (SOURCES / "init").read_text()
    for option in frozenset().union(*ROLE_OPTIONS.values()):
        assert f" equipoise.{option}=N" in init or f" equipoise.{option}=ADDRESS" in init
        assert f"$(option {option} " in init


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    program = tmp_path_factory.mktemp("batch") / "batch"
    run(["gcc", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCES / "batch.c")])
    return program


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--threads", "0", "--on-ms", "6", "--off-ms", "42"], "--threads needs a whole number from 1 to 512"),
        (["--threads", "1", "--on-ms", "6x", "--off-ms", "42"], "--on-ms needs"),
        (["--threads", "1", "--on-ms", "6"], "--off-ms needs"),
    ],
)
def test_batch_refuses_wrong_arguments(batch: Path, arguments: list[str], complaint: str) -> None:
    done = subprocess.run([batch, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert complaint in done.stderr


class TestAccelerator:
    GUEST = Guest(Path("/var/lib/equipoise-lab/guest/0123456789abcdef"))

    @pytest.fixture
    def device(self, tmp_path: Path) -> Path:
        path = tmp_path / "kvm"
        path.touch()
        return path

    @pytest.fixture
    def boot_id(self, tmp_path: Path) -> Path:
        path = tmp_path / "boot_id"
        path.write_text("boot-1\n")
        return path

    def test_no_device(self, tmp_path: Path) -> None:
        verdict = probe(self.GUEST, tmp_path / "kvm", FakeRunner({}))
        assert verdict.accelerator is Accelerator.TCG
        assert "does not exist" in verdict.reason

    def test_a_guest_that_boots(self, device: Path) -> None:
        runner = FakeRunner({"-accel kvm": f"{PROBE_MARKER} ip=none\n"})
        assert probe(self.GUEST, device, runner).accelerator is Accelerator.KVM
        assert "equipoise.role=probe" in runner.commands[0]
        assert str(self.GUEST.kernel) in runner.commands[0]

    def test_a_device_that_runs_nothing(self, device: Path) -> None:
        error = CommandFailed(["qemu-system-x86_64"], "status -6\nAssertion `ret == nmsrs' failed.")
        verdict = probe(self.GUEST, device, FakeRunner({"-accel kvm": error}))
        assert verdict.accelerator is Accelerator.TCG
        assert verdict.reason.endswith("no guest boots with it: Assertion `ret == nmsrs' failed.")

    def test_a_guest_that_hangs(self, device: Path) -> None:
        error = CommandFailed(["qemu-system-x86_64"], "no end after 20 s")
        verdict = probe(self.GUEST, device, FakeRunner({"-accel kvm": error}))
        assert verdict.reason.endswith("no guest boots with it: no end after 20 s")

    def test_a_guest_that_ends_too_early(self, device: Path) -> None:
        assert probe(self.GUEST, device, FakeRunner({"-accel kvm": "panic"})).accelerator is Accelerator.TCG

    def test_the_verdict_is_kept_for_guest_boot_and_rights(self, tmp_path: Path, device: Path, boot_id: Path) -> None:
        runner = FakeRunner({"-accel kvm": PROBE_MARKER})

        def probes(guest: Guest = self.GUEST, *, again: bool = False) -> int:
            runner.commands.clear()
            decide(guest, tmp_path, again=again, device=device, boot_id=boot_id, run=runner)
            return len(runner.commands)

        assert [probes(), probes(), probes(again=True)] == [1, 0, 1]
        device.chmod(0o600)
        assert [probes(), probes()] == [1, 0]
        boot_id.write_text("boot-2\n")
        assert [probes(), probes()] == [1, 0]
        assert probes(Guest(Path("/other"))) == 1

    def test_an_unreadable_verdict_is_no_verdict(self, tmp_path: Path, device: Path, boot_id: Path) -> None:
        (tmp_path / "accelerator.json").write_text("{")
        runner = FakeRunner({"-accel kvm": PROBE_MARKER})
        assert decide(self.GUEST, tmp_path, device=device, boot_id=boot_id, run=runner).accelerator is Accelerator.KVM
        assert len(runner.commands) == 1


class TestRun:
    def test_output(self) -> None:
        assert run(["sh", "-c", "echo $WORD; echo noise >&2"], env={"WORD": "hi"}) == "hi\n"

    def test_failure_carries_the_end_of_what_was_said(self) -> None:
        with pytest.raises(CommandFailed, match=r"(?s)status 3\nbecause$"):
            run(["sh", "-c", "echo because >&2; exit 3"])

    def test_a_missing_program(self) -> None:
        with pytest.raises(LabError, match=re.escape("setup.sh installs")):
            run(["no-such-program-anywhere"])

    def test_a_hang(self) -> None:
        with pytest.raises(CommandFailed, match=re.escape("no end after 0.1 s")):
            run(["sleep", "5"], timeout_s=0.1)
