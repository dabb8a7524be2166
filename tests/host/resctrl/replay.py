"""Runs the recorded operations on a resctrl and tells what came of each in the form of the record."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from manager.host.resctrl.tree import ResctrlFile, ResctrlTree
from tests.host.resctrl import FOLDER

# What the port does not do (other users, names and links of files, where it is mounted), and what is only told. The
# status after such an operation is not compared either.
OTHERS = re.compile(
    r"^(UNLINK|RENAME|W g1/new|#|  root mode|  mounts:|  /proc/self|multi-threaded|\d[\d ]*$|p=|self=)"
    r"|^(uid1000|mkdir as uid|open \w+ [WR]:|chown)"
)
_PID = re.compile(r"\d+")
MOST_LIMBO_S = 60.0


class Role(StrEnum):
    """What a process of the record is."""

    SLEEPER = "sleeps"
    ZOMBIE = "ended, not waited for"
    DEAD = "ended"
    WRITER = "writes the commands"
    CHILD = "was started by the writer"
    THREADED = "has two threads more"


class Subject(Protocol):
    """A resctrl on which the record is run."""

    tree: ResctrlTree

    def entries(self, path: str) -> Mapping[str, bool]:
        """Names in a folder, and whether they are folders. Raises OSError."""

    def process(self, recorded: int, role: Role) -> int:
        """Bring a process about, and return its id here, where the record has ``recorded``."""

    def resctrl_groups(self, pid: int) -> str:
        """The text of /proc/PID/cpu_resctrl_groups."""


def read_record(name: str) -> list[str]:
    """The lines of a record."""
    return [line.rstrip() for line in (FOLDER / f"{name}.txt").read_text().splitlines()]


def differences(subject: Subject, lines: list[str]) -> tuple[int, list[str]]:
    """How many operations were run, and the lines to which the answer was another."""
    replay = Replay(subject, lines)
    pairs = enumerate(zip(lines, map(str.rstrip, replay.run()), strict=True), 1)
    different = [f"{number}: {line!r}, not {answer!r}" for number, (line, answer) in pairs if line != answer]
    return replay.operations, different


def unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\0", "\0").replace("\\t", "\t")


@dataclass
class Replay:
    """Runs recorded lines. A process is brought about when the record first needs it."""

    subject: Subject
    lines: list[str]
    operations: int = 0
    other: bool = False
    removed: list[ResctrlFile] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    roles: dict[int, Role] = field(default_factory=dict)

    def run(self) -> list[str]:
        text = "\n".join(self.lines)
        processes = re.search(r"^p=(\d+) q=(\d+) zombie=(\d+) dead=(\d+)", text, re.MULTILINE)
        writer = re.search(r"^self=(\d+) child=(\d+)", text, re.MULTILINE)
        threads = re.search(r"^multi-threaded leader=(\d+)", text, re.MULTILINE)
        assert processes and writer and threads
        found = (*processes.groups(), *writer.groups(), *threads.groups())
        roles = (Role.SLEEPER, Role.SLEEPER, Role.ZOMBIE, Role.DEAD, Role.WRITER, Role.CHILD, Role.THREADED)
        self.roles = dict(zip(map(int, found), roles, strict=True))
        self.first, self.writer = int(processes[1]), int(writer[1])
        return [self.answer(line) for line in self.lines]

    def answer(self, line: str) -> str:
        after_other = line.startswith("      status:") and self.other
        self.other = OTHERS.match(line) is not None
        if self.other or after_other:
            if line.startswith("self="):
                self.here(line)
            if line == "## CDP":
                self.subject.tree.unmount()
                self.subject.tree.mount(frozenset({"cdp"}))
            return line
        self.operations += 1
        for pattern, method in self.TABLE:
            match = re.match(pattern, line)
            if match:
                return method(self, line, *match.groups())
        raise AssertionError(f"what is {line!r}?")

    def pid(self, recorded: int) -> int:
        """The id here of a process of the record; others are as they are."""
        if recorded in self.roles and recorded not in self.pids:
            self.pids[recorded] = self.subject.process(recorded, self.roles[recorded])
        return self.pids.get(recorded, recorded)

    def here(self, text: str) -> str:
        """With the ids of processes here."""
        return _PID.sub(lambda match: str(self.pid(int(match[0]))), text)

    def recorded(self, text: str) -> str:
        """With the ids of processes in the record."""
        known = {str(pid): str(recorded) for recorded, pid in self.pids.items()}
        return _PID.sub(lambda match: known.get(match[0], match[0]), text)

    def errno_of(self, action: Callable[[], object]) -> str:
        try:
            action()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "OK"

    def write(self, path: str, text: str) -> None:
        file = self.subject.tree.open(path, write=True)
        try:
            file.write(text)
        finally:
            file.close()

    def text(self, path: str) -> str:
        try:
            file = self.subject.tree.open(path)
        except OSError as error:
            return f"<open {errno.errorcode[error.errno or 0]}>"
        try:
            return file.read().replace("\n", "\\n")
        finally:
            file.close()

    def on_write(self, line: str, path: str, text: str) -> str:
        if path.endswith("tasks"):
            self.pid(self.writer)
        told = self.here(text) if path.endswith("tasks") else text
        ended = self.errno_of(lambda: self.write(path, unescape(told)))
        words = "open " * (ended in {"EACCES", "ENOENT"}) + ended
        return f"W {path} <- '{text}' : {words}"

    def on_long(self, line: str, length: str) -> str:
        text = "L3:0=" + "0" * (int(length) - 7) + "3\n"
        ended = self.errno_of(lambda: self.write("g1/schemata", text))
        return f"W g1/schemata {length}-byte line : {length if ended == 'OK' else -1} {ended}"

    def on_split(self, line: str, part: str) -> str:
        ended = self.errno_of(lambda: self.write("g1/schemata", "L3:0" if part == "1" else "=ff\n"))
        return f"split write part{part} : -1 {ended}"

    def on_two(self, line: str) -> str:
        file = self.subject.tree.open("g1/schemata", write=True)
        file.write("L3:0=ff\n")
        file.write("L3:1=7\n")
        file.close()
        return "two writes 1 fd: 8 then 7 OK"

    def on_status(self, line: str) -> str:
        told = self.text("info/last_cmd_status")
        return f"      status: {self.recorded(told) if 'task' in told.lower() else told}"

    def on_make(self, line: str, path: str) -> str:
        return f"MKDIR {path} : {self.errno_of(lambda: self.subject.tree.make(unescape(path)))}"

    def make(self, path: str) -> None:
        """Once the RMIDs that others gave back are free, of which that of now may be one: until then it is EBUSY."""
        end_s = time.monotonic() + MOST_LIMBO_S
        while True:
            try:
                return self.subject.tree.make(path)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    def on_makes(self, line: str, words: str, last: str) -> str:
        """A loop of which only the end was recorded; g5 and above were removed again unless CDP is on."""
        first = 2 if words else 6
        for number in range(first, int(last)):
            self.make(f"g{number}")
        ended = self.errno_of(lambda: self.make(f"g{last}"))
        for number in range(5, int(last)):
            if not words:
                self.subject.tree.remove(f"g{number}")
        return f"{words}mkdir g{last}: {ended}"

    def on_remove(self, line: str, path: str) -> str:
        if "write tasks of removed group: ENODEV" in self.lines and path == "g1" and not self.removed:
            self.write("g1/tasks", f"{self.pid(self.first)}\n")
            self.removed = [self.subject.tree.open(f"g1/{name}", write=True) for name in ("tasks", "schemata")]
        return f"RMDIR {path} : {self.errno_of(lambda: self.subject.tree.remove(path))}"

    def on_removed(self, line: str, name: str) -> str:
        file = self.removed[name == "schemata"]
        ended = self.errno_of(lambda: file.write("1\n"))
        file.close()
        return f"write {name} of removed group: {ended}"

    def groups_of(self, recorded: int) -> str:
        return self.subject.resctrl_groups(self.pid(recorded)).replace("\n", "\\n")

    def on_after(self, line: str) -> str:
        return f"  task after rmdir: {self.groups_of(self.first)}"

    def on_group_of(self, line: str, pid: str) -> str:
        return f"  /proc/{pid}/cpu_resctrl_groups {self.groups_of(int(pid))}"

    def on_list(self, line: str, folder: str, names: str) -> str:
        """The order of names and the modes of files are not compared, but what is a folder is."""
        wanted = {re.sub(r"\(.*", "", name): "(40" in name for name in names.split()}
        try:
            found = dict(self.subject.entries("" if folder == "." else folder))
        except FileNotFoundError:
            found = {}
        return line if found == wanted else f"LS {folder}: {found}"

    def on_mount(self, line: str, options: str) -> str:
        ended = self.errno_of(lambda: self.subject.tree.mount(frozenset(filter(None, options.split(",")))))
        return f"MOUNT /sys/fs/resctrl opts='{options}' : {ended}"

    def on_unmount(self, line: str, kind: str) -> str:
        held = self.subject.tree.open("g2/tasks")
        if kind == "group g2":
            held.close()
        ended = self.errno_of(self.subject.tree.unmount)
        held.close()
        return f"umount with {kind}: {ended}"

    def on_tasks(self, line: str, path: str) -> str:
        """Only processes of the record: kthreadd is moved, and what it starts meanwhile goes with it."""
        ours = {1, 2, *self.pids.values()}
        found = [pid for pid in self.text(path).split("\\n") if pid and int(pid) in ours]
        told = "".join(f"{pid}\\n" for pid in found)
        return f"  {path:<28} {self.recorded(told)}"

    def on_show(self, line: str, path: str) -> str:
        return f"  {path:<28} {self.text(path)}"

    TABLE = (
        (r"^W (\S+) <- '(.*)' : ", on_write),
        (r"^W g1/schemata (\d+)-byte line", on_long),
        (r"^split write part(\d)", on_split),
        (r"^two writes", on_two),
        (r"^      status:", on_status),
        (r"^MKDIR (.*) : ", on_make),
        (r"^((?:cdp )?)mkdir g(\d+): ", on_makes),
        (r"^RMDIR (\S+) : ", on_remove),
        (r"^write (\w+) of removed", on_removed),
        (r"^  task after rmdir", on_after),
        (r"^  /proc/(\d+)/cpu_resctrl_groups", on_group_of),
        (r"^LS (\S+):(.*)$", on_list),
        (r"^MOUNT \S+ opts='(\w*)'", on_mount),
        (r"^umount with (.*): ", on_unmount),
        (r"^  (g1/tasks)(?: |$)", on_tasks),
        (r"^  ((?:[\w]+/)*[\w]+)(?: |$)", on_show),
    )
