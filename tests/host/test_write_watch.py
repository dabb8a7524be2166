"""Writes by others are counted, whoever holds the folder, and none is missed when the kernel drops events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from manager.host.files import LIBC
from manager.host.write_watch import UNWATCHED, WriteWatch

QUEUED = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two, with files."""
    made = [tmp_path / "one", tmp_path / "two"]
    for folder in made:
        folder.mkdir()
        for name in ("weight", "quota"):
            (folder / name).write_text("1")
    return made


@pytest.fixture
def watch() -> Iterator[WriteWatch]:
    with closing(WriteWatch()) as opened:
        yield opened


def test_a_write_counts_in_its_own_folder_only(watch: WriteWatch, folders: list[Path]) -> None:
    one, two = map(watch.add, folders)
    assert watch.writes(one) is None, "nothing shows yet that this kernel reports any"
    (folders[0] / "quota").write_text("2")
    first = watch.writes(one)
    assert first
    assert watch.writes(two) == 0
    (folders[0] / "quota").read_text()
    assert watch.writes(one) == first, "reading is no writing"
    (folders[0] / "quota").write_text("3")
    assert (watch.writes(one) or 0) > first
    assert watch.writes(two) == 0


def test_a_folder_with_two_holders_is_watched_until_both_have_let_go(watch: WriteWatch, folders: list[Path]) -> None:
    first, second = watch.add(folders[0]), watch.add(folders[0])
    watch.remove(first)
    (folders[0] / "weight").write_text("2")
    assert watch.writes(second)
    watch.remove(second)
    again = watch.add(folders[0])
    (folders[0] / "weight").write_text("3")
    assert watch.writes(again)


def test_whatever_the_order_a_write_is_in_the_next_answer_but_one_at_the_latest(
    watch: WriteWatch, folders: list[Path]
) -> None:
    """Between two answers about a folder there is a look; a folder that is new is looked at at once."""
    one, two = map(watch.add, folders)
    (folders[0] / "weight").write_text("2")
    assert (watch.writes(one), watch.writes(two)) == (1, 0)
    (folders[1] / "weight").write_text("2")
    assert watch.writes(two), "it was asked about since the last look"
    (folders[0] / "weight").write_text("3")
    before = watch.writes(one)
    assert (watch.writes(one) or 0) > 1
    assert before in {1, 2}
    third = folders[0].parent / "three"
    third.mkdir()
    (third / "weight").write_text("1")
    number = watch.add(third)
    (third / "weight").write_text("2")
    assert watch.writes(number), "nothing that was known before it was added counts"


def test_many_folders_are_one_look(watch: WriteWatch, folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(map(watch.add, folders))
    looks: list[int] = []

    class Counted:
        def poll(self, timeout_ms: int) -> list[object]:
            looks.append(timeout_ms)
            return []

    monkeypatch.setattr(watch, "_poll", Counted())
    for _ in range(3):
        for number in numbers:
            watch.writes(number)
    assert len(looks) == 3


def test_a_folder_that_was_removed_meanwhile_is_let_go_of(watch: WriteWatch, folders: list[Path]) -> None:
    one = watch.add(folders[0])
    for file in folders[0].iterdir():
        file.unlink()
    folders[0].rmdir()
    watch.writes(one)
    watch.remove(one)


def test_lost_events_count_as_a_write_in_each_folder(watch: WriteWatch, folders: list[Path]) -> None:
    one, two = map(watch.add, folders)
    descriptors = [os.open(folders[0] / name, os.O_WRONLY) for name in ("weight", "quota")]
    for number in range(int(QUEUED.read_text()) + 1):  # by turns: equal events become one
        os.write(descriptors[number % 2], b"1")
    assert watch.writes(two)
    assert watch.writes(one)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_where_there_is_no_inotify_nothing_is_watched(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(LIBC, call, lambda *_: -1)
    watch = WriteWatch()
    number = watch.add(folders[0])
    assert number == UNWATCHED
    assert watch.writes(number) is None
    watch.close()
