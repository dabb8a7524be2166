"""What is discovered of a host: of fixtures in ``topologies``, of trees with holes, and of this machine.

EQUIPOISE_REGENERATE_GOLDEN=1 writes the golden files anew; read the diff.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.host.topology_reader import discover
from manager.model.cpus import MAX_CPU, format_cpus, parse_cpus
from manager.model.topology import Topology
from tests.host import topologies
from tests.host.conftest import REAL
from tests.host.topologies.reduce import reduce
from tests.host.tree import CPU, Tree

GOLDEN = Path(__file__).parent / "golden_topologies"


def text_of(found: Topology) -> str:
    """A topology with a line for each CPU and queue."""
    lines = [
        f"cpu {cpu.number}: core {cpu.core} socket {cpu.socket} node {cpu.node} l3 {cpu.l3}"
        f" capacity {cpu.capacity:.3f}{' isolated' if cpu.isolated else ''}"
        for cpu in found.cpus
    ]
    lines += [
        f"queue {queue.interface} irq {queue.irq}: cpus {format_cpus(queue.cpus)}"
        f" serving {format_cpus(queue.serving)}{' managed' if queue.managed else ''}"
        for queue in found.queues
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", topologies.NAMES)
def test_golden_topology(name: str, tmp_path: Path) -> None:
    text = text_of(topologies.topology(name, tmp_path))
    golden = GOLDEN / f"{name}.txt"
    if "EQUIPOISE_REGENERATE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_there_is_a_golden_topology_and_an_origin_for_each_fixture_and_no_other() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(topologies.NAMES)
    told = (topologies.FOLDER / "README.md").read_text()
    assert [name for name in topologies.NAMES if f"| `{name}` |" not in told] == []


def count(name: str, field: str) -> int:
    return len({getattr(cpu, field) for cpu in topologies.load(name).cpus})


@pytest.mark.parametrize(
    ("name", "cpus", "cores", "sockets", "nodes", "caches"),
    [  # as the makers of these processors print them
        ("zhaoxin-fc1081-1s", 8, 8, 1, 1, 1),
        ("xeon-nehalem-1s", 8, 4, 1, 1, 1),
        ("xeon-4108-2s", 32, 16, 2, 2, 2),
        ("xeon-e5345-2s", 8, 8, 2, 1, 4),
        ("xeon-e7-4870-4s", 40, 40, 4, 4, 4),
        ("epyc-7451-2s", 96, 48, 2, 8, 16),
        ("epyc-7763-2s", 128, 128, 2, 2, 16),
        ("opteron-6276-4s", 64, 32, 4, 8, 8),
        ("kunpeng-920-2s", 128, 128, 2, 4, 4),
        ("alder-lake-12900k-1s", 24, 16, 1, 1, 1),
    ],
)
def test_machines_have_what_their_makers_say(
    name: str, cpus: int, cores: int, sockets: int, nodes: int, caches: int
) -> None:
    assert len(topologies.load(name).cpus) == cpus
    assert [count(name, field) for field in ("core", "socket", "node", "l3")] == [cores, sockets, nodes, caches]


def test_offline_cpus_are_not_there_although_lists_name_them() -> None:
    found = topologies.load("xeon-e5-2680v3-offline")
    assert found.numbers == set(range(4, 21))
    assert {cpu.l3 for cpu in found.cpus} == {4, 5}, "the lowest that is online"


def test_what_nothing_is_known_of_is_flat() -> None:
    assert topologies.load("container") == Topology.flat({2, 3, 6})


def test_equal_cores_with_different_turbo_are_equal_and_core_types_are_not() -> None:
    found = topologies.load("alder-lake-12900k-1s")
    assert {cpu.capacity for cpu in found.cpus if cpu.number < 16} == {1.0}
    assert {cpu.capacity for cpu in found.cpus if cpu.number >= 16} == {3.9 / 5.2}


def fields(found: Topology, field: str) -> list[int]:
    return [getattr(cpu, field) for cpu in found.cpus]


def test_the_whole_tree(tree: Tree) -> None:
    found = tree.discover()
    assert fields(found, "core") == [0, 0, 2, 2, 4, 4, 6, 6]
    assert fields(found, "socket") == fields(found, "node") == [0] * 4 + [1] * 4
    assert fields(found, "l3") == [0] * 4 + [4] * 4
    assert found.isolated == {6, 7}
    assert found.queues == ()


GARBAGE = ("", "\0", "x", "-1", "1-", "3-1", "0x1", "1 2", "99999999999999999999", "0-99999999", "\u0661", "5")


@pytest.mark.parametrize("text", [None, *GARBAGE])
@pytest.mark.parametrize(
    ("pattern", "field", "instead"),
    [
        ("CPU/cpu[0-7]/topology/core_cpus_list", "core", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("CPU/cpu[0-7]/topology/physical_package_id", "socket", [0] * 8),
        ("sys/devices/system/node/node[0-1]/cpulist", "node", [0] * 8),
        ("CPU/isolated", "isolated", [False] * 8),
        ("CPU/cpu[0-7]/cache/index3/shared_cpu_list", "l3", [0] * 4 + [4] * 4),
        ("CPU/cpu[0-7]/cache/index[2-3]/level", "l3", [0] * 4 + [4] * 4),
    ],
)
def test_what_is_missing_or_malformed_costs_that_field_only(
    tree: Tree, text: str | None, pattern: str, field: str, instead: list[int]
) -> None:
    whole = tree.discover()
    if text is None:
        tree.remove(pattern)
    else:
        for path in topologies.expand(pattern.replace("CPU/", f"{CPU}/")):
            (tree.folder / path).write_text(text)
    found = tree.discover()
    others = {"core", "socket", "node", "l3", "isolated", "capacity"} - {field}
    for other in others - ({"l3"} if field == "node" else set()):
        assert fields(found, other) == fields(whole, other)
    if text != "5":  # which is well-formed, and true of CPU 5 alone
        assert fields(found, field) == instead


@pytest.mark.parametrize("text", [None, *(text for text in GARBAGE if text != "5")])
def test_without_the_online_list_there_is_no_host(tree: Tree, text: str | None) -> None:
    file = tree.folder / CPU / "online"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(HostError, match="online"):
        tree.discover()


def test_threads_of_a_core_under_their_old_name(tree: Tree) -> None:
    tree.remove("CPU/cpu[0-7]/topology/core_cpus_list")
    tree.add("CPU/cpu[0,4]/topology/thread_siblings_list: 0,4\nCPU/cpu[1,5]/topology/thread_siblings_list: 1,5")
    assert fields(tree.discover(), "core") == [0, 1, 2, 3, 0, 1, 6, 7]


def test_what_one_cpu_does_not_tell_its_siblings_do(tree: Tree) -> None:
    whole = tree.discover()
    tree.remove("CPU/cpu[0,4]/{topology/core_cpus_list,cache/index3/shared_cpu_list}")
    assert tree.discover() == whole


def test_a_list_without_the_cpu_itself_is_not_believed(tree: Tree) -> None:
    tree.add("CPU/cpu[2-3]/topology/core_cpus_list: 0-1")
    assert fields(tree.discover(), "core") == [0, 0, 2, 3, 4, 4, 6, 6]


def test_lists_that_overlap_make_one_domain_of_its_lowest_cpu(tree: Tree) -> None:
    tree.add("CPU/cpu[0-1]/topology/core_cpus_list: 0-1\nCPU/cpu2/topology/core_cpus_list: 1-2")
    assert fields(tree.discover(), "core") == [0, 0, 0, 0, 4, 4, 6, 6]


def test_a_cpu_that_several_nodes_name_is_on_the_lowest(tree: Tree) -> None:
    tree.add("sys/devices/system/node/node{2,10,30}/cpulist: 4-7\nsys/devices/system/node/node1/cpulist: 5")
    assert fields(tree.discover(), "node") == [0] * 4 + [2, 1, 2, 2]


def test_an_l3_that_does_not_name_the_cpu_leaves_the_level_below(tree: Tree) -> None:
    tree.add("CPU/cpu[0-7]/cache/index3/shared_cpu_list: 8-15")
    tree.add("CPU/cpu[4-7]/cache/index2/shared_cpu_list: 4-7")
    tree.add("CPU/cpu[0-3]/topology/physical_package_id: 1\nsys/devices/system/node/node0/cpulist: 0-7")
    assert fields(tree.discover(), "l3") == [0] * 4 + [4] * 4


def test_an_l1_is_never_the_last_level(tree: Tree) -> None:
    tree.remove("CPU/cpu[0-7]/cache/index[2-3]/level")
    tree.add("CPU/cpu[0-7]/cache/index0/level: 1\nCPU/cpu[0-7]/cache/index0/shared_cpu_list: 0-7")
    assert fields(tree.discover(), "l3") == [0] * 4 + [4] * 4


def test_a_cluster_s_l2_is_the_last_level_without_an_l3_and_a_core_s_own_is_not(tree: Tree) -> None:
    tree.remove("CPU/cpu[0-7]/cache/index3/level")
    assert fields(tree.discover(), "l3") == [0] * 4 + [4] * 4, "an L2 of a core's two threads: the socket"
    tree.add("CPU/cpu[0-3]/topology/core_cpus_list: 0-3\nCPU/cpu[0-3]/cache/index2/shared_cpu_list: 0-3")
    for cpu in range(4):
        tree.add(f"CPU/cpu{cpu}/topology/core_cpus_list: {cpu}")
    tree.add("CPU/cpu[0-1]/cache/index2/shared_cpu_list: 0-1\nCPU/cpu[2-3]/cache/index2/shared_cpu_list: 2-3")
    assert fields(tree.discover(), "l3") == [0, 0, 2, 2, 4, 4, 4, 4]


def test_an_l3_of_one_core_is_one_nevertheless(tree: Tree) -> None:
    for first in range(0, 8, 2):
        tree.add(f"CPU/cpu[{first}-{first + 1}]/cache/index3/shared_cpu_list: {first}-{first + 1}")
    assert fields(tree.discover(), "l3") == [0, 0, 2, 2, 4, 4, 6, 6]


def test_an_l4_does_not_count_beside_an_l3_and_does_without_one(tree: Tree) -> None:
    tree.add("CPU/cpu[0-7]/cache/index4/level: 4\nCPU/cpu[0-7]/cache/index4/shared_cpu_list: 0-7")
    assert fields(tree.discover(), "l3") == [0] * 4 + [4] * 4
    tree.remove("CPU/cpu[0-7]/cache/index3/level")
    assert fields(tree.discover(), "l3") == [0] * 8


def test_caches_of_instructions_do_not_count(tree: Tree) -> None:
    tree.add("CPU/cpu[0-7]/cache/index3/type: Instruction")
    tree.add("CPU/cpu[0-7]/cache/index2/shared_cpu_list: 0-7")
    assert fields(tree.discover(), "l3") == [0] * 8


def test_a_socket_with_two_nodes_and_no_cache_known_is_two_domains(tree: Tree) -> None:
    tree.remove("CPU/cpu[0-7]/cache/index[2-3]/level")
    tree.add("CPU/cpu[0-7]/topology/physical_package_id: 0")
    assert fields(tree.discover(), "l3") == [0] * 4 + [4] * 4


@pytest.mark.parametrize(
    ("lines", "slow", "capacity"),
    [
        ("CPU/cpu[0-3]/cpu_capacity: 1024\nCPU/cpu[4-7]/cpu_capacity: 512", 4, 0.5),
        ("CPU/cpu[0-3]/cpu_capacity: 800\nCPU/cpu[4-7]/cpu_capacity: 400", 4, 0.5),
        # 5 % apart, as firmware tells of equal cores: kernel/sched/fair.c does not tell them apart either
        ("CPU/cpu[0-3]/cpu_capacity: 1024\nCPU/cpu[4-7]/cpu_capacity: 973", 4, 1.0),
        ("CPU/cpu[0-3]/cpu_capacity: 1024\nCPU/cpu[4-7]/cpu_capacity: 972", 4, 972 / 1024),
        ("CPU/cpu[0-7]/cpu_capacity: 0", 4, 1.0),
        ("CPU/cpu[0-3]/cpu_capacity: 1024\nCPU/cpu[4-7]/cpu_capacity: none", 4, 1.0),
        # frequencies only between core types
        ("CPU/cpu[0-3]/cpufreq/cpuinfo_max_freq: 4000000\nCPU/cpu[4-7]/cpufreq/cpuinfo_max_freq: 2000000", 4, 1.0),
        (
            "CPU/cpu[0-3]/cpufreq/cpuinfo_max_freq: 4000000\nCPU/cpu[4-7]/cpufreq/cpuinfo_max_freq: 2000000\n"
            "sys/devices/cpu_core/cpus: 0-3\nsys/devices/cpu_atom/cpus: 4-7",
            4,
            0.5,
        ),
        (
            "CPU/cpu[0-3]/cpufreq/cpuinfo_max_freq: 4000000\nCPU/cpu[4-7]/cpufreq/cpuinfo_max_freq: 2000000\n"
            "sys/devices/cpu_core/cpus: 0-7\nsys/devices/cpu_atom/cpus: 8-9",  # of one type all that is online
            4,
            1.0,
        ),
        ("sys/devices/cpu_core/cpus: 0-3\nsys/devices/cpu_atom/cpus: 4-7", 4, 1.0),
        # the capacity goes before the frequency, and a type is as fast as its fastest
        (
            "CPU/cpu[0-3]/cpu_capacity: 1024\nCPU/cpu[4-6]/cpu_capacity: 512\nCPU/cpu7/cpu_capacity: 640\n"
            "CPU/cpu[0-7]/cpufreq/cpuinfo_max_freq: 4000000\n"
            "sys/devices/cpu_core/cpus: 0-3\nsys/devices/cpu_atom/cpus: 4-7",
            4,
            0.625,
        ),
    ],
)
def test_capacity(tree: Tree, lines: str, slow: int, capacity: float) -> None:
    tree.add(lines)
    assert tree.cpu(slow).capacity == capacity
    assert tree.cpu(0).capacity == 1.0


def test_capacities_that_fall_in_small_steps_do_not_all_become_one(tree: Tree) -> None:
    for cpu in range(8):
        tree.add(f"CPU/cpu{cpu}/cpu_capacity: {1024 - 40 * cpu}")
    assert [round(cpu.capacity * 1024) for cpu in tree.discover().cpus] == [1024, 1024, 944, 944, 864, 864, 784, 744]


SPOILT = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from([text.encode() for text in GARBAGE]),
    st.sampled_from(["folder", "loop"]),
    st.integers(0, MAX_CPU + 1).map(lambda number: str(number).encode()),
    st.sets(st.integers(0, 9), max_size=4).map(lambda cpus: format_cpus(cpus).encode()),
)


@settings(deadline=None)  # it makes a hundred files
@given(st.data())
def test_a_spoilt_tree_is_discovered_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["kvm-guest-2s", "lakefield-1s-types", "xeon-nehalem-1s", "arm-big-little-1s"]))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = topologies.unpack(name, root)
        files = sorted(path for path in root.rglob("*") if path.is_file() or path.is_symlink())
        for path in data.draw(st.sets(st.sampled_from(files), max_size=len(files))):
            spoil(path, data.draw(SPOILT))
        try:
            online = parse_cpus(paths.online_cpus.read_text("ascii"))
        except (OSError, ValueError):
            online = frozenset()
        if not online:
            with pytest.raises(HostError, match="online"):
                discover(paths)
        else:
            check(discover(paths), online)


def spoil(path: Path, how: bytes | str | None) -> None:
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    elif isinstance(how, bytes):
        path.write_bytes(how)


def check(found: Topology, online: frozenset[int]) -> None:
    """What holds of every topology."""
    assert fields(found, "number") == sorted(online)
    for field in ("core", "l3"):
        for domain in set(fields(found, field)):
            assert domain == min(cpu.number for cpu in found.cpus if getattr(cpu, field) == domain)
    for core in {cpu.core for cpu in found.cpus}:
        assert len({cpu.socket for cpu in found.cpus if cpu.core == core}) == 1
    assert all(0 < cpu.capacity <= 1 and cpu.socket >= 0 and cpu.node >= 0 for cpu in found.cpus)
    irqs = [queue.irq for queue in found.queues]
    assert irqs == sorted(set(irqs))
    assert all(queue.cpus <= online and queue.serving <= online for queue in found.queues)


@pytest.mark.parametrize("name", topologies.NAMES)
def test_every_fixture_makes_a_sound_topology(name: str) -> None:
    found = topologies.load(name)
    check(found, found.numbers)


def test_this_machine() -> None:
    found = discover(REAL)
    check(found, parse_cpus(REAL.online_cpus.read_text()))
    interrupts = Path("/proc/interrupts").read_text()
    for queue in found.queues:
        assert Path(f"/sys/class/net/{queue.interface}/device").exists()
        assert f"\n{queue.irq:>3}: " in interrupts


def test_a_fixture_of_this_machine_says_the_same_as_it_does(tmp_path: Path) -> None:
    names = [link.name for link in REAL.interfaces.iterdir()] if REAL.interfaces.is_dir() else []
    text = reduce(Path("/"), names)
    topologies.unpack_text(text, tmp_path)
    assert discover(HostPaths(tmp_path)) == discover(REAL)


@pytest.mark.parametrize("name", topologies.NAMES)
def test_reducing_a_fixture_loses_nothing_that_is_discovered(name: str, tmp_path: Path) -> None:
    names = {queue.interface for queue in topologies.load(name).queues}
    paths = topologies.unpack(name, tmp_path / "one")
    topologies.unpack_text(reduce(paths.root, sorted(names)), tmp_path / "other")
    assert discover(HostPaths(tmp_path / "other")) == topologies.load(name)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a", ["a"]),
        ("a[0-1,3]/b", ["a0/b", "a1/b", "a3/b"]),
        ("a[1]/{b/c,d[2-3]}", ["a1/b/c", "a1/d2", "a1/d3"]),
    ],
)
def test_patterns(pattern: str, paths: list[str]) -> None:
    assert list(topologies.expand(pattern)) == paths


def test_a_malformed_line_of_a_fixture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a b'"):
        topologies.unpack_text("a: 1\na b\n", tmp_path)
