"""What ``disk_recorder.c`` wrote down about a real process, played into the forgetful fake disk.

At any record of the recording the power may be cut: the fake then says what may be left of the node's folder, and that
is opened, or written into a real folder on which a real node starts.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.storage.fakes import FakeFileSystem, Inode, Resize, UnsyncedName, Write

SOURCE = Path(__file__).with_name("disk_recorder.c")
_RECORD = struct.Struct("<IIQQII")
_MAGIC = 0x57464A31
_NOT_RELIED_ON = "-shm"
"""SQLite's shared memory: mapped, never synced, made again by the first to open the database (sqlite.org/wal.html)."""


class Kind(IntEnum):
    """As in ``disk_recorder.c``."""

    CREATE = 1
    OPEN = 2
    WRITE = 3
    RESIZE = 4
    EXTEND = 5
    SYNC_BEGIN = 6
    SYNC_END = 7
    DIRECTORY_SYNC_BEGIN = 8
    DIRECTORY_SYNC_END = 9
    LINK = 10
    RENAME = 11
    UNLINK = 12
    MAKE_DIRECTORY = 13
    REMOVE_DIRECTORY = 14
    SENT = 15
    UNSUPPORTED = 16


class Event(NamedTuple):
    """One record. Texts are paths, or bytes that were written or sent."""

    kind: Kind
    inode: int
    """Of the file; of ``SENT`` the client's port."""
    number: int
    text1: bytes
    text2: bytes


def build_recorder(folder: Path) -> Path:
    """Compile the recorder; the test is skipped where that cannot be done."""
    library = folder / "disk_recorder.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("recording a real process needs a C compiler (cc)")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the disk recorder cannot be built here (it wants Linux and glibc): {built.stderr[:300]}")
    return library


def recorded(library: Path, tree: Path, journal: Path) -> dict[str, str]:
    """The environment in which a process is recorded."""
    return os.environ | {"LD_PRELOAD": str(library), "WEFT_RECORD_TREE": str(tree), "WEFT_RECORD_JOURNAL": str(journal)}


def read_events(journal: Path) -> list[Event]:
    """All whole records; SIGKILL may leave a part of one, of a call that never returned."""
    return list(_events(journal.read_bytes()))


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at + _RECORD.size <= len(data):
        magic, kind, inode, number, length1, length2 = _RECORD.unpack_from(data, at)
        assert magic == _MAGIC, "the recording is not what disk_recorder.c writes"
        at += _RECORD.size
        if at + length1 + length2 > len(data):
            return
        yield Event(Kind(kind), inode, number, data[at : at + length1], data[at + length1 : at + length1 + length2])
        at += length1 + length2


class Replay:
    """A folder as the recorded process saw it, and as the platter has it."""

    def __init__(self, tree: Path, disk: FakeFileSystem | None = None) -> None:
        """Begin with what a power cut before left of the same folder, or with an empty one."""
        self.disk = disk or FakeFileSystem()
        self.disk.make_directory(str(tree))
        self._tree = str(tree)
        self._nodes: dict[int, Inode] = {}
        self._directories: dict[int, str] = {}
        self._syncs: dict[int, list[int]] = {}
        self._directory_syncs: dict[int, list[list[UnsyncedName]]] = {}
        self._unsynced_directories: list[str] = []

    def apply(self, event: Event) -> None:
        """One more thing happened."""
        kind, inode, disk = event.kind, event.inode, self.disk
        path, other = (os.fsdecode(event.text1), os.fsdecode(event.text2)) if kind in _NAMING else ("", "")
        assert kind is not Kind.UNSUPPORTED, f"the recorder does not know what this means for the disk: {event}"
        if kind is Kind.CREATE:
            disk.create(path)
            self._nodes[inode] = disk.node(path)
        elif kind is Kind.OPEN:
            if disk.is_directory(path):
                self._directories[inode] = path
            else:
                self._nodes[inode] = disk.node(path)
        elif kind is Kind.WRITE:
            self._nodes[inode].change(Write(event.number, event.text1))
        elif kind is Kind.RESIZE or (kind is Kind.EXTEND and event.number > len(self._nodes[inode].live)):
            self._nodes[inode].change(Resize(event.number))
        elif kind is Kind.SYNC_BEGIN:
            self._syncs.setdefault(inode, []).append(self._nodes[inode].changes)
        elif kind is Kind.SYNC_END:
            self._nodes[inode].sync(self._syncs[inode].pop(0))
        elif kind is Kind.DIRECTORY_SYNC_BEGIN:
            changes = disk.unsynced_names(self._directories[inode])
            self._directory_syncs.setdefault(inode, []).append(changes)
        elif kind is Kind.DIRECTORY_SYNC_END:
            self._end_directory_sync(inode)
        elif kind is Kind.LINK:
            disk.link(path, other)
        elif kind is Kind.RENAME:
            disk.rename(path, other)
        elif kind is Kind.UNLINK:
            disk.remove(path)
        elif kind is Kind.MAKE_DIRECTORY:
            disk.make_directory(path)
            self._unsynced_directories.append(path)
        elif kind is Kind.REMOVE_DIRECTORY:
            disk.forget_directory(path)

    def _end_directory_sync(self, inode: int) -> None:
        path = self._directories[inode]
        self.disk.names_are_durable(self._directory_syncs[inode].pop(0))
        self._unsynced_directories = [each for each in self._unsynced_directories if os.path.dirname(each) != path]

    def power_cut(self, chance: random.Random) -> FakeFileSystem:
        """What may be left if the power is cut now."""
        after = self.disk.power_cut(chance)
        for path in self._unsynced_directories:
            if chance.random() < 0.5:
                after.forget_directory(path)
        for path in after.paths():
            if path.endswith(_NOT_RELIED_ON):
                after.remove(path)
        return after


_NAMING = frozenset(
    (Kind.CREATE, Kind.OPEN, Kind.LINK, Kind.RENAME, Kind.UNLINK, Kind.MAKE_DIRECTORY, Kind.REMOVE_DIRECTORY)
)


def write_out(disk: FakeFileSystem, tree: Path) -> None:
    """Put what is on the fake disk below ``tree`` into that real folder, in place of what is there."""
    shutil.rmtree(tree)
    tree.mkdir()
    for path in disk.directories():
        if path.startswith(f"{tree}/"):
            Path(path).mkdir(parents=True, exist_ok=True)
    for path in disk.paths():
        content = bytes(disk.content(path))
        with Path(path).open("wb") as file:
            file.write(content.rstrip(b"\0"))
            file.truncate(len(content))
