"""Which domains migrate, by the status files that libvirt keeps of them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.host import status_files
from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.host.status_files import MigrationWatch
from manager.model.host import Discovery, VmInstance
from tests.host.conftest import Root

WEB, DB = VmInstance("uuid-web", "web", 11, 1), VmInstance("uuid-db", "db", 12, 1)
# As libvirt 9.0.0 writes it, in parts.
STATUS = """<!--
WARNING: THIS IS AN AUTO-GENERATED FILE. CHANGES TO IT ARE LIKELY TO BE
OVERWRITTEN AND LOST.
-->

<domstatus state='{state}' reason='{reason}' pid='11'>
  <taint flag='high-privileges'/>
  <monitor path='/var/lib/libvirt/qemu/domain-1-web/monitor.sock' type='unix'/>
  <qemuCaps>
    <flag name='mem-merge'/>
  </qemuCaps>
{job}  <fakereboot/>
  <domain type='kvm' id='1'>
    <name>web</name>
    <metadata>
      {metadata}
    </metadata>
  </domain>
</domstatus>
"""
JOB = "  <job type='{}' async='{}' phase='perform3' flags='0x101' asyncStarted='1795431168375'>\n  </job>\n"
MIGRATING = JOB.format("none", "migration out")


def note(root: Root, job: str = "", *, name: str = "web", metadata: str = "", state: str = "running") -> None:
    """Write the status file as libvirt does: another file takes its place."""
    file = root.paths.status_file(name)
    new = file.with_suffix(".new")
    new.write_text(STATUS.format(state=state, reason="booted", job=job, metadata=metadata))
    new.rename(file)


def test_a_domain_migrates_from_when_its_job_begins_until_it_ends(root: Root) -> None:
    watch = MigrationWatch(root.paths)
    assert watch.migrating([WEB, DB]) == set(), "no file can be read"
    note(root)
    note(root, name="db")
    assert watch.migrating([WEB, DB]) == set()
    note(root, MIGRATING)
    assert watch.migrating([WEB, DB]) == {WEB.uuid}
    note(root, JOB.format("modify", "migration out"), state="paused")
    assert watch.migrating([DB, WEB]) == {WEB.uuid}, "as at the end, or in a post-copy migration"
    note(root)
    assert watch.migrating([WEB, DB]) == set(), "it was cancelled"
    note(root, MIGRATING)
    assert watch.migrating([WEB]) == {WEB.uuid}
    root.paths.status_file("web").unlink()
    assert watch.migrating([WEB]) == set(), "it left"


@pytest.mark.parametrize("job", ["migration in", "save", "dump", "snapshot", "start", "backup", "none"])
def test_other_jobs_are_no_migration_away(root: Root, job: str) -> None:
    note(root, JOB.format("none", job))
    assert MigrationWatch(root.paths).migrating([WEB]) == set()


def test_what_a_domain_is_described_with_says_nothing(root: Root) -> None:
    """A tenant may choose it."""
    note(root, metadata=MIGRATING)
    assert MigrationWatch(root.paths).migrating([WEB]) == set()


def test_a_file_is_read_again_only_when_libvirt_wrote_it(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    @dataclass(frozen=True)
    class CountedPath:
        path: str

        def open(self, mode: str) -> object:
            read.append(Path(self.path))
            return Path(self.path).open(mode)

    monkeypatch.setattr(status_files, "Path", CountedPath)
    watch = MigrationWatch(root.paths)
    note(root)
    for _ in range(3):
        watch.migrating([WEB])
    assert read == [root.paths.status_file("web")]
    before = root.paths.status_file("web").stat()
    note(root, MIGRATING)
    os.utime(root.paths.status_file("web"), ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(3):
        assert watch.migrating([WEB]) == {WEB.uuid}, "also within one tick of the clock"
    assert len(read) == 2


def test_no_file_is_looked_at_while_their_folder_is_as_it_was_long_ago(root: Root) -> None:
    folder = root.paths.pid_files
    watch = MigrationWatch(root.paths)
    note(root)
    os.utime(folder, ns=(10**9, 10**9))
    assert watch.migrating([WEB]) == set()
    note(root, MIGRATING)
    os.utime(folder, ns=(10**9, 10**9))  # as no libvirt does
    assert watch.migrating([WEB]) == set()
    assert watch.migrating([WEB, DB]) == {WEB.uuid}, "another domain runs"
    note(root)
    assert watch.migrating([WEB, DB]) == set(), "the folder changed"


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains
    discovery: Discovery


@pytest.mark.parametrize(("age_s", "expected"), [(60.0, [WEB.uuid]), (60.1, [])])
def test_libvirts_word_counts_until_it_has_not_listed_for_long(
    root: Root, age_s: float, expected: Collection[str]
) -> None:
    """A libvirtd that was killed leaves the file as it was."""
    note(root, MIGRATING)
    watch = Watch(Domains({WEB.uuid: WEB}, 1, connected=False), Discovery(age_s, 60.0))
    host = KernelHost(root.paths, watch)  # type: ignore[arg-type]
    assert list(host.migrating()) == expected


def test_without_libvirt_nothing_migrates(root: Root) -> None:
    assert not KernelHost(root.paths, None).migrating()
