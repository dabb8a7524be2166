"""Domains start in the batch group when they are defined so, and all else of their definitions stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from manager.cli.main import main
from manager.errors import HostError
from manager.host.batch_group import PARTITION
from manager.host.partition import Definitions, Partitioned, partition_in, with_partition

XML = """<domain type='test' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>render-1</name>
  <uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>
  <description>it's "5 &lt; 6"</description>
  <memory unit='KiB'>8388608</memory>
  <vcpu placement='static'>2</vcpu>{resource}
  <os><type arch='i686'>hvm</type></os>
  <qemu:commandline><qemu:arg value='-foo'/></qemu:commandline>
</domain>"""
RESOURCE = "\n  <resource><partition>{}</partition><fibrechannel appid='x'/></resource>"


@pytest.mark.parametrize(
    "metadata", ['<ns0:app xmlns:ns0="http://example.org/x"/>', '<app xmlns="http://example.org/x"/>']
)
def test_namespaces_of_metadata_stay_as_they_are(metadata: str) -> None:
    plain = f"<domain type='test'><name>red</name><metadata>{metadata}</metadata></domain>"
    placed = with_partition(plain, PARTITION)
    assert partition_in(placed) == PARTITION
    assert placed.startswith('<domain type="test"><name>red')
    assert metadata in placed


def test_a_partition_is_set_and_taken_back_and_nothing_else_changes() -> None:
    plain = XML.format(resource="")
    placed = with_partition(plain, PARTITION)
    assert (partition_in(plain), partition_in(placed)) == ("", PARTITION)
    assert "qemu:commandline" in placed
    assert with_partition(placed, "") == with_partition(plain, "")
    kept = with_partition(XML.format(resource=RESOURCE.format("/machine")), PARTITION)
    assert partition_in(kept) == PARTITION
    assert "fibrechannel" in with_partition(kept, "")
    with pytest.raises(HostError, match="cannot be read"):
        partition_in("<domain>")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[str]:
    """libvirt's test driver with a domain of each kind, for this process."""
    node = tmp_path / "node.xml"
    domains = {"render-1": "", "render-2": RESOURCE.format(PARTITION), "team": RESOURCE.format("/machine/team")}
    texts = [
        XML.format(resource=resource).replace("render-1", name).replace("193f", f"193{number}")
        for number, (name, resource) in enumerate(domains.items())
    ]
    node.write_text(f"<node>{''.join(texts)}</node>")
    yield f"test://{node}"


def test_definitions_are_looked_at_and_changed(driver: str) -> None:
    definitions = Definitions(driver)
    states = {name: definitions.look(name).state for name in ("render-1", "render-2", "team", "gone")}
    assert states == {
        "render-1": Partitioned.DEFAULT,
        "render-2": Partitioned.BATCH,
        "team": Partitioned.OTHER,
        "gone": Partitioned.ABSENT,
    }
    definitions.define("render-1", batch=True)
    assert definitions.look("render-1").partition == PARTITION
    definitions.define("render-1", batch=False)
    assert definitions.look("render-1").state is Partitioned.DEFAULT
    with pytest.raises(HostError, match="domain gone"):
        definitions.define("gone", batch=True)
    definitions.close()
    with pytest.raises(HostError, match="libvirt at"):
        Definitions("nonsense:///")


def host(folder: Path, mount: str) -> Path:
    """The root of a host with this mount of control groups."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text(f"1 1 0:1 / /sys/fs/cgroup rw - {mount}\n")
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    (folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    return folder


def test_the_command_says_what_is_and_what_would_be(
    driver: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIPOISE_LIBVIRT_URI", driver)
    monkeypatch.setenv("EQUIPOISE_ROOT_DIR", str(host(tmp_path, "cgroup2 cgroup2 rw")))
    found = CliRunner().invoke(main, ["partition", "render-1", "team"])
    assert found.exit_code == 0, found.output
    assert "render-1: starts outside the batch group" in found.output
    assert "team: starts in /machine/team, a partition of your own: left alone" in found.output
    assert "--apply" in found.output
    undone = CliRunner().invoke(main, ["partition", "--undo", "--json", "render-2", "team"])
    rows = {row["domain"]: row["changed"] for row in json.loads(undone.output)["domains"]}
    assert rows == {"render-2": True, "team": False}
    both = CliRunner().invoke(main, ["partition", "--undo", "--apply"])
    assert both.exit_code == 2


def test_it_is_refused_where_running_vms_are_moved(
    driver: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIPOISE_LIBVIRT_URI", driver)
    monkeypatch.setenv("EQUIPOISE_ROOT_DIR", str(host(tmp_path, "cgroup cgroup rw,cpu")))
    shown = CliRunner().invoke(main, ["partition", "render-1"])
    assert ("--apply" in shown.output, "while they run" in shown.output) == (False, True), shown.output
    found = CliRunner().invoke(main, ["partition", "--apply", "render-1"])
    assert found.exit_code == 1
    assert "while they run" in found.output
