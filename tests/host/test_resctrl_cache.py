"""``CachePort`` on resctrl: what is read once and what each time, and which pCPUs are in which domain."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.host.resctrl.resctrl_cache import ResctrlCache
from manager.host.topology_reader import cache_domains
from manager.model.cpus import CpuSet
from tests.fakes.cache_host import CACHE
from tests.fakes.resctrl import FakeResctrl

BOTH, ONE = frozenset(range(4)), frozenset(range(3))


def opened(tree: FakeResctrl, asked: list[int] | None = None) -> ResctrlCache:
    def domains(level: int) -> dict[int, CpuSet]:
        if asked is not None:
            asked.append(level)
        return {0: BOTH}

    return ResctrlCache(tree, lambda _vm, _afresh: frozenset(), domains)


def test_what_is_offered_is_read_once_a_mount_and_set_of_pcpus() -> None:
    asked: list[int] = []
    cache = opened(FakeResctrl((CACHE,)), asked)
    for online, times in ((BOTH, 1), (BOTH, 1), (ONE, 2), (ONE, 2)):
        found = cache.offered(online)
        assert found is not None
        assert found.caches == (CACHE,)
        assert asked == [3] * times
    assert cache.domains() == {0: BOTH}


def test_nothing_is_offered_before_it_is_mounted_nor_after() -> None:
    tree = FakeResctrl((CACHE,), mounted=None)
    cache = opened(tree)
    assert cache.offered(BOTH) is None
    assert cache.mount()
    assert cache.offered(BOTH) is not None
    assert not cache.mount(), "it is mounted already"
    cache.groups()
    cache.unmount()
    assert tree.mounted is None
    assert cache.offered(BOTH) is None


def test_counters_that_are_held_do_not_keep_it_mounted() -> None:
    tree = FakeResctrl((CACHE,), rmids=8)
    cache = opened(tree)
    assert cache.monitored([""]) == {"": frozenset()}
    assert list(cache.uses([""])) == [""]
    cache.unmount()
    assert tree.mounted is None


def test_what_is_not_understood_is_an_error_and_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = FakeResctrl((CACHE,))
    cache = opened(tree)
    cache.offered(BOTH)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "text", lambda _group, _leaf: "L3:0=x")
        with pytest.raises(HostError, match="resctrl: 'L3:0=x' is not"):
            cache.groups()
    assert not tree.held
    assert list(cache.groups()) == [""]


def test_a_group_that_is_gone_refuses_what_is_written() -> None:
    cache = opened(FakeResctrl((CACHE,)))
    with pytest.raises(HostError) as caught:
        cache.write("equipoise-shop", {next(iter(cache.groups()[""].values)): 1})
    assert caught.value.errno == errno.ENOENT


def test_domains_are_called_by_the_ids_of_their_caches(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        file = tmp_path / "sys/devices/system/cpu" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    put("online", "0-2")
    for cpu, identity in enumerate((0, 0, 7, 7)):
        for index, (level, kind) in enumerate(((1, "Instruction"), (2, "Unified"), (3, "Unified"))):
            put(f"cpu{cpu}/cache/index{index}/level", str(level))
            put(f"cpu{cpu}/cache/index{index}/type", kind)
            put(f"cpu{cpu}/cache/index{index}/id", str(identity if level == 3 else cpu))
    paths = HostPaths(tmp_path)
    assert cache_domains(paths, 3) == {0: {0, 1}, 7: {2}}, "of those online"
    assert cache_domains(paths, 2) == {0: {0}, 1: {1}, 2: {2}}
    assert cache_domains(paths, 1) == {}
    (tmp_path / "sys/devices/system/cpu/cpu2/cache/index2/id").unlink()
    assert cache_domains(paths, 3) == {0: {0, 1}}
    (tmp_path / "sys/devices/system/cpu/online").unlink()
    with pytest.raises(HostError):
        cache_domains(paths, 3)
