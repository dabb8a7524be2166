"""What is discovered of resctrl on trees of machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.host.registry import HostPaths
from manager.host.resctrl.tree import ResctrlTree, discover
from manager.model.cache import BandwidthResource, BandwidthUnit, CacheResource, Mask, Monitoring, Resctrl
from tests.host.resctrl import TREES, unpack

PERCENT, TWO = BandwidthUnit.PERCENT, (0, 1)
ALL_COUNTERS = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})


def cache(
    name: str, ways: int, closids: int, shareable: int, domains: tuple[int, ...], way_bytes: int
) -> CacheResource:
    bytes_of = tuple((domain, way_bytes) for domain in domains)
    return CacheResource(name, Mask.span(0, ways), 1, Mask(shareable), closids, False, domains, bytes_of)


def sparse(one: CacheResource) -> CacheResource:
    return CacheResource(one.name, one.ways, one.minimum, one.shareable, one.closids, True, one.domains, one.way_bytes)


EXPECTED = {
    "haswell": Resctrl(
        (CacheResource("L3", Mask(0xFFFFF), 2, Mask(0xC0000), 4, False, TWO, ((0, 838860), (1, 838860))),), ()
    ),
    "skylake-sp": Resctrl(
        (cache("L3", 11, 16, 0x600, TWO, 1835008),),
        (BandwidthResource("MB", 10, 10, 100, PERCENT, True, 8, TWO),),
        Monitoring(ALL_COUNTERS, 160),
    ),
    "icelake-l2-cat": Resctrl(
        (cache("L2", 20, 8, 0, tuple(range(8)), 65536), cache("L3", 12, 16, 0xC00, (0,), 1 << 20)),
        (BandwidthResource("MB", 10, 10, 100, PERCENT, True, 8, (0,), "max"),),
        Monitoring(ALL_COUNTERS, 224),
    ),
    "sapphire-rapids": Resctrl(
        (sparse(cache("L2", 16, 8, 0, tuple(range(8)), 131072)), sparse(cache("L3", 15, 15, 0x6000, TWO, 7340032))),
        (BandwidthResource("MB", 10, 10, 100, PERCENT, True, 15, TWO, "per-thread"),),
        Monitoring(ALL_COUNTERS, 448),
    ),
    "epyc": Resctrl(
        (cache("L3", 16, 16, 0, tuple(range(16)), 2097152),),
        (BandwidthResource("MB", 0, 1, 2048, BandwidthUnit.EIGHTH_GBPS, False, 16, tuple(range(16))),),
        Monitoring(ALL_COUNTERS, 256),
    ),
    "arm-mpam": Resctrl(
        (sparse(cache("L3", 16, 64, 0, (1, 5), 4194304)),),
        (BandwidthResource("MB", 1, 1, 100, PERCENT, True, 64, (1, 5)),),
        Monitoring(frozenset({"llc_occupancy", "mbm_total_bytes"}), 256),
    ),
    "cdp": Resctrl(
        (cache("L3CODE", 20, 8, 0xC0000, TWO, 838860), cache("L3DATA", 20, 8, 0xC0000, TWO, 838860)),
        (BandwidthResource("MB", 10, 10, 100, PERCENT, True, 8, TWO, "max"),),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_everything_is_taken_from_info(name: str, tmp_path: Path) -> None:
    assert discover(ResctrlTree(unpack(name, tmp_path))) == EXPECTED[name]


def test_every_tree_offers_the_fewest_closids_of_its_resources(tmp_path: Path) -> None:
    assert {name: offered.closids for name, offered in EXPECTED.items()} == {
        "haswell": 4,
        "skylake-sp": 8,
        "icelake-l2-cat": 8,
        "sapphire-rapids": 8,
        "epyc": 16,
        "arm-mpam": 64,
        "cdp": 8,
    }


def test_bandwidth_in_megabytes_is_known_by_the_mount(tmp_path: Path) -> None:
    paths = unpack("skylake-sp", tmp_path)
    paths.mountinfo.write_text(paths.mountinfo.read_text().rstrip() + ",mba_MBps\n")
    (paths.resctrl / "schemata").write_text("MB:0=4294967295;1=4294967295\nL3:0=7ff;1=7ff\n")
    offered = discover(ResctrlTree(paths))
    assert offered is not None
    assert offered.bandwidths[0].unit is BandwidthUnit.MBPS
    assert offered.bandwidths[0].most == 4294967295


def test_it_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    paths = unpack("haswell", tmp_path)
    (tmp_path / "mnt").mkdir()
    paths.resctrl.rename(tmp_path / "mnt/my cache")
    paths.mountinfo.write_text("40 23 0:30 / /mnt/my\\040cache rw - resctrl resctrl rw\n")
    assert discover(ResctrlTree(paths)) == EXPECTED["haswell"]


def test_nothing_is_offered_where_it_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("22 1 0:20 / /sys rw - sysfs sysfs rw\n")
    assert discover(ResctrlTree(HostPaths(tmp_path))) is None


def test_a_file_of_garbage_is_refused(tmp_path: Path) -> None:
    paths = unpack("haswell", tmp_path)
    (paths.resctrl / "schemata").write_text("nonsense\n")
    with pytest.raises(ValueError, match="nonsense"):
        discover(ResctrlTree(paths))
