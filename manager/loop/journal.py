"""The journal: the durable list of original values, by which everything is undone.

A knob enters before its first write and leaves after its original was restored. Both are SQLite transactions with
``synchronous=FULL``: after a kill -9 or a power cut the journal names every value that may differ from its original. A
second file has all of it, too, see ``ReplicatedFile``. Groups of resctrl are known by their names, so that of these
there is but a note.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manager.errors import JournalError
from manager.loop.replicated import ReplicatedFile, Reserve
from manager.loop.sqlite import MEMORY, Layout
from manager.model.cache import Schemata, format_schemata, parse_schemata
from manager.model.decision import Owned
from manager.model.host import VmInstance
from manager.model.knob_spec import Family
from manager.model.knob_text import knob_text, knob_value
from manager.model.knobs import Knob, KnobKey
from manager.sqlite_files import Damage

_OWNED = """
CREATE TABLE IF NOT EXISTS owned (
    uuid TEXT NOT NULL, knob TEXT NOT NULL, idx INTEGER NOT NULL,
    vm TEXT NOT NULL, libvirt_name TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL, ticks INTEGER NOT NULL,
    original TEXT NOT NULL, previous TEXT NOT NULL, intended TEXT NOT NULL,
    is_external INTEGER NOT NULL, adoptions INTEGER NOT NULL,
    PRIMARY KEY (uuid, knob, idx)
) STRICT
"""
_CACHE = """
CREATE TABLE IF NOT EXISTS cache (
    boot_id TEXT PRIMARY KEY, mounted INTEGER NOT NULL, original TEXT, external TEXT NOT NULL
) STRICT
"""
_BANDWIDTH = """
CREATE TABLE IF NOT EXISTS bandwidth (
    boot_id TEXT NOT NULL, domain INTEGER NOT NULL, maximum REAL NOT NULL, PRIMARY KEY (boot_id, domain)
) STRICT
"""
_CACHE_MEMORY = "CREATE TABLE IF NOT EXISTS cache_memory (boot_id TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT"
_JOBS = "CREATE TABLE IF NOT EXISTS jobs (boot_id TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT"
_POLICY_MEMORY = """
CREATE TABLE IF NOT EXISTS policy_memory (policy TEXT PRIMARY KEY, kernel TEXT NOT NULL, text TEXT NOT NULL) STRICT
"""
_SELECT_POLICY_MEMORY = "SELECT policy, kernel, text FROM policy_memory"
_TABLES = {"owned": _OWNED, "cache": _CACHE, "bandwidth": _BANDWIDTH, "cache_memory": _CACHE_MEMORY, "jobs": _JOBS}
_UPSERT = "INSERT OR REPLACE INTO owned VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "uuid, knob, idx, vm, libvirt_name, pid, ticks, original, previous, intended, is_external, adoptions"
_SELECT = f"SELECT {_COLUMNS} FROM owned WHERE boot_id = ?"  # noqa: S608 - constants, here and below
_SELECT_CACHE = "SELECT mounted, original, external FROM cache WHERE boot_id = ?"

_Database = sqlite3.Connection | sqlite3.Cursor


@dataclass(frozen=True, slots=True)
class CacheNote:
    """What resctrl itself does not show of our doing. ``mounted``: we mounted it, or were about to.

    ``original`` is what the default group had before the first change, None before that. ``external`` are the groups
    that another tool changed, each with how often the host had been adopted then.
    """

    mounted: bool = False
    original: Schemata | None = None
    external: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A journalled knob: of which run of which VM, and its values."""

    instance: VmInstance
    vm: str
    owned: Owned


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of VMs that have journalled knobs: all, and the last by domain UUID with the VM's name.

    ``knobs`` are the kinds of knobs, ``families`` those of each domain, HOST_UUID among them, that are read apart;
    ``differing`` is how many knobs are, or may be, other than their originals because of us.
    """

    revision: int
    instances: frozenset[VmInstance]
    by_domain: Mapping[str, tuple[VmInstance, str]]
    knobs: frozenset[Knob]
    families: Mapping[str, Set[Family]]
    differing: int


class Journal:
    """The knobs Equipoise changed on this host, on disk and in memory. Not thread-safe.

    To be read only: ``entries``, all journalled knobs, with another ``revision`` whenever they change; ``cache``, the
    note on resctrl, None: nothing of it is ours; ``maxima``, the most memory traffic measured since the host started,
    in bytes per second by domain of the cache; ``cache_memory``, the effect of each ``auto`` on response times;
    ``jobs``, since when the work of batch VMs counts;
    ``policy_memories``, what policies keep, by their names, with the kernel it was learnt on: it outlasts a boot.
    """

    def __init__(self, path: Path, boot_id: str, reserve: Reserve | None = None) -> None:
        """Open or create. Entries of an earlier boot are dropped: what they describe ended with it.

        ``reserve`` is what is given back when the disk is full. Raises JournalError when the file cannot be used.
        """
        self._path = path
        self._boot_id = boot_id
        self._entries: dict[KnobKey, Entry] = {}
        self.entries = MappingProxyType(self._entries)
        self.revision = 0
        self._runs: Runs | None = None
        self.cache: CacheNote | None = None
        self.maxima: dict[int, float] = {}
        self.cache_memory = ""
        self.jobs = ""
        self.policy_memories: dict[str, tuple[str, str]] = {}
        layout = Layout("FULL", self._prepare, _fits)
        try:
            self._file = ReplicatedFile(path, layout, reserve or Reserve(None), self._read, self._fill)
        except (OSError, sqlite3.Error, ValueError) as error:
            raise JournalError(f"the journal {path} cannot be used: {error}") from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        for schema in _TABLES.values():
            database.execute(schema)
        database.execute(_POLICY_MEMORY)
        database.execute(_SELECT_POLICY_MEMORY).fetchone()
        for table in _TABLES:
            database.execute(f"SELECT boot_id FROM {table}").fetchall()  # noqa: S608 - raises for what is no text
            database.execute(f"DELETE FROM {table} WHERE boot_id <> ?", (self._boot_id,))  # noqa: S608
        database.execute(_SELECT, (self._boot_id,)).fetchone()  # also an empty table must have its columns

    def _read(self, database: _Database) -> None:
        entries = dict(_entry(row) for row in database.execute(_SELECT, (self._boot_id,)))
        self._entries.clear()
        self._entries.update(entries)
        self.cache = _note(database, self._boot_id)
        self.maxima = dict(database.execute("SELECT domain, maximum FROM bandwidth").fetchall())
        self.cache_memory = next(iter(database.execute("SELECT text FROM cache_memory").fetchall()), ("",))[0]
        self.jobs = _jobs(database, self._boot_id)
        self.policy_memories = _policy_memories(database)

    def _fill(self, database: _Database) -> None:
        self._put_entries(database, self.entries)
        self._put_note(database, self.cache)
        self._put_maxima(database, self.maxima)
        self._put_memory(database, self.cache_memory)
        self._put_jobs(database, self.jobs)
        for policy, (kernel, text) in self.policy_memories.items():
            _put_policy_memory(database, policy, kernel, text)

    @classmethod
    def copy_of(cls, path: Path, boot_id: str) -> Journal:
        """A journal in memory with what is in the file now, which is only read. Raises JournalError."""
        copy = cls(MEMORY, boot_id)
        if not path.exists():
            return copy
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source:
                for row in source.execute(_SELECT, (boot_id,)):
                    key, entry = _entry(row)
                    copy._entries[key] = entry
                if source.execute("SELECT 1 FROM sqlite_master WHERE name = 'cache'").fetchone():
                    copy.cache = _note(source, boot_id)
                if source.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs'").fetchone():
                    copy.jobs = _jobs(source, boot_id)
                if source.execute("SELECT 1 FROM sqlite_master WHERE name = 'policy_memory'").fetchone():
                    copy.policy_memories = _policy_memories(source)
        except (sqlite3.Error, ValueError) as error:
            raise JournalError(f"the journal {path} cannot be read: {error}") from error
        return copy

    def take_damages(self) -> list[Damage]:
        """What happened to the file since this was asked last."""
        return self._file.take_damages()

    def note_cache(self, note: CacheNote | None) -> None:
        """Take the note on resctrl, durable on return. Raises JournalError, and then the note is as before."""
        if note != self.cache:
            self._write(lambda database: self._put_note(database, note))
            self.cache = note

    def _put_note(self, database: _Database, note: CacheNote | None) -> None:
        database.execute("DELETE FROM cache")
        if note is not None:
            original = None if note.original is None else format_schemata(note.original)
            row = (self._boot_id, int(note.mounted), original, json.dumps(dict(note.external)))
            database.execute("INSERT OR REPLACE INTO cache VALUES (?, ?, ?, ?)", row)

    def note_cache_memory(self, text: str) -> None:
        """Keep it for the next start of the agent. Raises JournalError, and then it is as before."""
        if text != self.cache_memory:
            self._write(lambda database: self._put_memory(database, text))
            self.cache_memory = text

    def _put_memory(self, database: _Database, text: str) -> None:
        database.execute("INSERT OR REPLACE INTO cache_memory VALUES (?, ?)", (self._boot_id, text))

    def note_jobs(self, text: str) -> None:
        """Keep it for the next start of the agent in this boot. Raises JournalError, and then it is as before."""
        if text != self.jobs:
            self._write(lambda database: self._put_jobs(database, text))
            self.jobs = text

    def _put_jobs(self, database: _Database, text: str) -> None:
        database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (self._boot_id, text))

    def note_policy_memory(self, policy: str, kernel: str, text: str) -> None:
        """Keep it for the next start of the agent. Raises JournalError, and then it is as before."""
        if self.policy_memories.get(policy) != (kernel, text):
            self._write(lambda database: _put_policy_memory(database, policy, kernel, text))
            self.policy_memories[policy] = kernel, text

    def note_maxima(self, maxima: Mapping[int, float]) -> None:
        """Keep these for the next start of the agent. Raises JournalError, and then they are as before."""
        self._write(lambda database: self._put_maxima(database, maxima))
        self.maxima = dict(maxima)

    def _put_maxima(self, database: _Database, maxima: Mapping[int, float]) -> None:
        rows = [(self._boot_id, domain, maximum) for domain, maximum in maxima.items()]
        database.executemany("INSERT OR REPLACE INTO bandwidth VALUES (?, ?, ?)", rows)

    @property
    def runs(self) -> Runs:
        """Of which VMs the journalled knobs are."""
        if self._runs is None or self._runs.revision != self.revision:
            entries = self.entries.items()
            families: dict[str, set[Family]] = {}
            for key in self.entries:
                if key.knob.spec.family.apart:
                    families.setdefault(key.uuid, set()).add(key.knob.spec.family)
            instances = frozenset(entry.instance for _, entry in entries)
            self._runs = Runs(
                self.revision,
                instances,
                {key.uuid: (entry.instance, entry.vm) for key, entry in entries},
                frozenset(key.knob for key in self.entries),
                families,
                sum(entry.owned.differs for _, entry in entries),
            )
        return self._runs

    def update(self, put: Mapping[KnobKey, Entry], drop: Iterable[KnobKey] = ()) -> None:
        """Write entries and then remove some, in one transaction, durable on return.

        Raises JournalError, and then nothing of it is in the journal.
        """
        gone = [key for key in dict.fromkeys(drop) if key in self.entries]
        if not put and not gone:
            return

        def write(database: _Database) -> None:
            self._put_entries(database, put)
            database.executemany(
                "DELETE FROM owned WHERE uuid = ? AND knob = ? AND idx = ?",
                [(key.uuid, str(key.knob), key.index) for key in gone],
            )

        self._write(write)
        self.revision += 1
        self._entries.update(put)
        for key in gone:
            del self._entries[key]

    def settle(self, keys: Iterable[KnobKey]) -> None:
        """Note in memory that the intended values of ``keys`` were written: nothing else is accepted there now."""
        for key in keys:
            entry = self.entries.get(key)
            if entry is not None and not entry.owned.settled:
                self._entries[key] = replace(entry, owned=replace(entry.owned, settled=True))
                self.revision += 1

    def close(self) -> None:
        """Close the file and its replica."""
        self._file.close()

    def _write(self, act: Callable[[_Database], None]) -> None:
        try:
            self._file.write(act)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal {self._path} cannot be written: {error}") from error

    def _put_entries(self, database: _Database, entries: Mapping[KnobKey, Entry]) -> None:
        database.executemany(_UPSERT, [self._row(key, entry) for key, entry in entries.items()])

    def _row(self, key: KnobKey, entry: Entry) -> tuple[str | int, ...]:
        run, owned = entry.instance, entry.owned
        texts = (knob_text(owned.original), knob_text(owned.previous), knob_text(owned.intended))
        process = (run.libvirt_name, self._boot_id, run.pid, run.start_ticks)
        return (key.uuid, str(key.knob), key.index, entry.vm, *process, *texts, int(owned.external), owned.adoptions)


def _fits(table: str, row: Mapping[str, object]) -> bool:
    """Whether a row can be understood: one that cannot came of damage or of another version."""
    try:
        if table == "owned":
            _entry(tuple(row[name] for name in _COLUMNS.split(", ")))  # type: ignore[misc]
        elif table == "cache":
            _note_of(*(row[name] for name in ("mounted", "original", "external")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _jobs(database: _Database, boot_id: str) -> str:
    return next((text for (text,) in database.execute("SELECT text FROM jobs WHERE boot_id = ?", (boot_id,))), "")


def _policy_memories(database: _Database) -> dict[str, tuple[str, str]]:
    return {policy: (kernel, text) for policy, kernel, text in database.execute(_SELECT_POLICY_MEMORY)}


def _put_policy_memory(database: _Database, policy: str, kernel: str, text: str) -> None:
    database.execute("INSERT OR REPLACE INTO policy_memory VALUES (?, ?, ?)", (policy, kernel, text))


def _entry(row: tuple[str | int, ...]) -> tuple[KnobKey, Entry]:
    uuid, knob_name, index, vm, libvirt_name, pid, ticks, *texts, external, adoptions = row
    knob = Knob(str(knob_name))
    original, previous, intended = (knob_value(knob, str(text)) for text in texts)
    owned = Owned(original, previous, intended, external=bool(external), adoptions=int(adoptions))
    instance = VmInstance(str(uuid), str(libvirt_name), int(pid), int(ticks))
    return KnobKey(str(uuid), knob, int(index)), Entry(instance, str(vm), owned)


def _note(database: _Database, boot_id: str) -> CacheNote | None:
    """What is noted of resctrl in this boot. Raises sqlite3.Error, ValueError."""
    for row in database.execute(_SELECT_CACHE, (boot_id,)):
        return _note_of(*row)
    return None


def _note_of(mounted: Any, original: Any, external: Any) -> CacheNote:
    groups = {str(group): int(adoptions) for group, adoptions in json.loads(external).items()}
    return CacheNote(bool(mounted), None if original is None else parse_schemata(original), groups)
