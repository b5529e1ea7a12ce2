"""What one file is between two syncs, and what of it a power cut may leave."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from weft.storage.filesystem import Buffer, DirectoryInUse

SECTOR_BYTES = 512
"""Writes tear at these boundaries."""

T = TypeVar("T")


@dataclass(slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(slots=True)
class Resize:
    length: int


Change = Write | Resize


@dataclass(eq=False, slots=True)
class Inode:
    """A file's content: as processes see it, as the platter has it, and what lies between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)
    synced: int = 0
    """Changes that are durable."""
    unreadable: tuple[int, int] = (0, 0)
    """The device cannot read these bytes."""

    def change(self, change: Change) -> None:
        apply(self.live, change)
        self.unsynced.append(change)

    @property
    def changes(self) -> int:
        """How many there were since the file was made: a sync that begins now answers for so many."""
        return self.synced + len(self.unsynced)

    def sync(self, changes: int | None = None) -> None:
        """Make all changes durable, or the oldest so many since the file was made."""
        count = len(self.unsynced) if changes is None else max(0, changes - self.synced)
        for change in self.unsynced[:count]:
            apply(self.durable, change)
        del self.unsynced[:count]
        self.synced += count

    def after_power_cut(self, chance: random.Random) -> Inode:
        """What the platter has when the power is back: of the unsynced changes any part, in any order, torn."""
        content = bytearray(self.durable)
        for change in survivors(self.unsynced, chance):
            if isinstance(change, Resize):
                apply(content, change)
                continue
            if chance.random() < 0.2:
                # The new length reached the disk before the bytes did.
                apply(content, Resize(max(len(content), change.offset + len(change.data))))
            for part in survivors(sectors(change), chance):
                apply(content, part)
        return Inode(content, bytearray(content), unreadable=self.unreadable)


def apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Resize):
        del content[change.length :]
        content.extend(bytes(change.length - len(content)))
        return
    end = change.offset + len(change.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.data


def sectors(write: Write) -> list[Change]:
    """A write as the parts that reach the disk whole or not at all."""
    first = SECTOR_BYTES - write.offset % SECTOR_BYTES
    if len(write.data) <= first:
        return [write]
    parts: list[Change] = [Write(write.offset, write.data[:first])]
    for at in range(first, len(write.data), SECTOR_BYTES):
        parts.append(Write(write.offset + at, write.data[at : at + SECTOR_BYTES]))
    return parts


def survivors(changes: list[T], chance: random.Random) -> list[T]:
    """What a power cut leaves of changes that were not made durable: all, none, a beginning, all but one, or any."""
    if not changes:
        return []
    fate = chance.randrange(5)
    if fate == 0:
        return changes
    if fate == 1:
        return []
    if fate == 2:
        return changes[: chance.randint(0, len(changes))]
    if fate == 3:
        lost = chance.randrange(len(changes))
        return changes[:lost] + changes[lost + 1 :]
    return [change for change in changes if chance.random() < 0.5]


# --- A disk that forgets: everything that was not synced may be gone, torn or out of order after a power cut


FailureHook = Callable[[str, str], OSError | None]
"""(call, path) -> the error that the call shall raise, or None."""

CALLS = (
    "open",
    "create",
    "read",
    "size",
    "exists",
    "list_names",
    "is_directory",
    "make_directory",
    "link",
    "rename",
    "remove",
    "sync_directory",
    "free_bytes",
    "lock",
    "write_at",
    "read_at",
    "allocate",
    "truncate",
    "sync",
)
MUTATING_CALLS = frozenset(
    ("create", "link", "rename", "remove", "sync_directory", "write_at", "allocate", "truncate", "sync")
)
"""Calls before each of which a power cut may find something else than before the last."""
ERRNOS = (
    errno.EIO,
    errno.ENOSPC,
    errno.EROFS,
    errno.EMFILE,
    errno.EDQUOT,
    errno.EINTR,
    errno.EBUSY,
    errno.ENOENT,
    errno.EACCES,
    errno.ENOMEM,
)


def eio() -> OSError:
    return injected(errno.EIO)


def injected(number: int) -> OSError:
    """Of the class that Python gives to this errno, such as ``FileNotFoundError``."""
    return OSError(number, f"injected: {os.strerror(number).lower()}")


def no_failure(call: str, path: str) -> OSError | None:
    return None


class FakeFile:
    __slots__ = ("_filesystem", "_node", "_open", "_path")

    def __init__(self, filesystem: FakeFileSystem, path: str, node: Inode) -> None:
        self._filesystem, self._path, self._node = filesystem, path, node
        self._open = True

    def _call(self, name: str) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "the file is closed")
        self._filesystem.call(name, self._path)

    def write_at(self, offset: int, data: Buffer) -> None:
        try:
            self._call("write_at")
            self._filesystem.take_space(self._path, offset + len(data) - len(self._node.live))
        except OSError:
            # A short write: some of it went, and the result does not say how much.
            self._node.change(Write(offset, bytes(data)[: len(data) // 2]))
            raise
        self._node.change(Write(offset, bytes(data)))

    def read_at(self, offset: int, length: int) -> bytes:
        self._call("read_at")
        if max(offset, self._node.unreadable[0]) < min(offset + length, self._node.unreadable[1]):
            raise eio()
        return bytes(self._node.live[offset : offset + length])

    def allocate(self, length: int) -> None:
        self._call("allocate")
        if length > len(self._node.live):
            self._filesystem.take_space(self._path, length - len(self._node.live))
            self._node.change(Resize(length))

    def truncate(self, length: int) -> None:
        self._call("truncate")
        self._node.change(Resize(length))

    def sync(self) -> None:
        try:
            self._call("sync")
        except OSError:
            # As Linux does it: the pages count as clean, so that a second sync succeeds and makes nothing durable.
            self._node.unsynced.clear()
            raise
        if not self._filesystem.named(self._node):
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was being written", self._path)
        self._node.sync()

    def size(self) -> int:
        return len(self._node.live)

    def close(self) -> None:
        self._open = False


class _FakeLock:
    def __init__(self, locks: set[str], directory: str) -> None:
        self._locks, self._directory = locks, directory

    def is_in_place(self) -> bool:
        return True

    def close(self) -> None:
        self._locks.discard(self._directory)


Names = dict[str, Inode]
NameChange = dict[str, Inode | None]
UnsyncedName = tuple[str, NameChange]
"""(directory, what became of names in it)."""


class FakeFileSystem:
    """In memory, strict about what POSIX does not promise. ``fail`` may make any call raise."""

    def __init__(self) -> None:
        self.fail: FailureHook = no_failure
        self.free = 1 << 40
        """What ``free_bytes`` says; unless there is a ``capacity`` nothing ever runs out."""
        self.capacity: int | None = None
        """Bytes that all files may have together: beyond it calls fail with ENOSPC."""
        self.calls: list[tuple[str, str]] = []
        self._names: Names = {}
        self._durable_names: Names = {}
        self._unsynced_names: list[UnsyncedName] = []
        self._directories = {"/"}
        self._locks: set[str] = set()

    def call(self, name: str, path: str) -> None:
        self.calls.append((name, path))
        error = self.fail(name, path)
        if error is not None:
            raise error

    def kill_process(self) -> None:
        """SIGKILL: locks go, everything that was written stays visible."""
        self.drop_locks()
        self.fail = no_failure

    def drop_locks(self) -> None:
        """As a process that ends does."""
        self._locks = set()

    def power_cut(self, chance: random.Random) -> FakeFileSystem:
        """The disk as it is found after the power came back: of what was not synced, a random part."""
        after = FakeFileSystem()
        after.free, after.capacity = self.free, self.capacity
        after._directories = set(self._directories)
        names = dict(self._durable_names)
        for _, change in survivors(self._unsynced_names, chance):
            _rename(names, change)
        nodes: dict[Inode, Inode] = {}
        for path, node in names.items():
            if node not in nodes:
                nodes[node] = node.after_power_cut(chance)
            after._names[path] = after._durable_names[path] = nodes[node]
        return after

    @property
    def is_dirty(self) -> bool:
        """Whether a power cut would leave anything to chance."""
        return bool(self._unsynced_names) or any(node.unsynced for node in self._names.values())

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Rot: one bit of a file changes on the platter."""
        node = self._names[path]
        for content in (node.live, node.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def lose_blocks(self, path: str, first: int, end: int) -> None:
        """From now on the device cannot read these bytes of a file."""
        self._names[path].unreadable = (first, end)

    def content(self, path: str) -> bytearray:
        return self._names[path].live

    def node(self, path: str) -> Inode:
        """A file as the disk has it; ``FileNotFoundError``."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def paths(self) -> list[str]:
        """All files."""
        return sorted(self._names)

    def directories(self) -> list[str]:
        """All directories, each after the one that it is in."""
        return sorted(self._directories)

    def forget_directory(self, path: str) -> None:
        """As if the directory and all that is in it had never been made."""
        inside = f"{path}/"
        self._directories = {each for each in self._directories if each != path and not each.startswith(inside)}
        for names in (self._names, self._durable_names):
            for name in [name for name in names if name.startswith(inside)]:
                del names[name]

    def used_bytes(self) -> int:
        """Bytes of all files, each once however many names it has."""
        return sum(len(node.live) for node in set(self._names.values()))

    def take_space(self, path: str, length: int) -> None:
        if self.capacity is not None and length > 0 and self.used_bytes() + length > self.capacity:
            raise OSError(errno.ENOSPC, "no space left on the fake disk", path)

    def named(self, node: Inode) -> bool:
        return node in self._names.values()

    def _change_names(self, path: str, change: NameChange) -> None:
        _rename(self._names, change)
        self._unsynced_names.append((os.path.dirname(path), change))

    def _vacant(self, path: str) -> None:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "the file exists", path)
        if os.path.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def open(self, path: str, *, read_only: bool = False) -> FakeFile:
        self.call("open", path)
        return FakeFile(self, path, self.node(path))

    def create(self, path: str) -> FakeFile:
        self.call("create", path)
        self._vacant(path)
        node = Inode()
        self._change_names(path, {path: node})
        return FakeFile(self, path, node)

    def read(self, path: str) -> bytes:
        self.call("read", path)
        return bytes(self.node(path).live)

    def size(self, path: str) -> int:
        self.call("size", path)
        return len(self.node(path).live)

    def modified(self, path: str) -> int:
        if path not in self._directories:
            self.node(path)
        return time.time_ns()

    def exists(self, path: str) -> bool:
        self.call("exists", path)
        return path in self._names or path in self._directories

    def list_names(self, directory: str) -> list[str]:
        self.call("list_names", directory)
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        entries = [*self._names, *(self._directories - {"/"})]
        return sorted(os.path.basename(path) for path in entries if os.path.dirname(path) == directory)

    def is_directory(self, path: str) -> bool:
        self.call("is_directory", path)
        return path in self._directories

    def make_directory(self, path: str) -> None:
        self.call("make_directory", path)
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def link(self, source: str, target: str) -> None:
        self.call("link", target)
        node = self.node(source)
        self._vacant(target)
        self._change_names(target, {target: node})

    def rename(self, source: str, target: str) -> None:
        self.call("rename", target)
        self._change_names(target, {source: None, target: self.node(source)})

    def remove(self, path: str) -> None:
        try:
            self.call("remove", path)
            self.node(path)
        except FileNotFoundError:
            # No system says so of a name that is still there.
            self._change_names(path, {path: None})
            raise
        self._change_names(path, {path: None})

    def remove_directory(self, path: str) -> None:
        self.call("remove_directory", path)
        if self.list_names(path):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
        self._directories.discard(path)

    def sync_directory(self, path: str) -> None:
        # One that fails stays honest, unlike that of a file: names are the journal's, which a file system then aborts.
        self.call("sync_directory", path)
        self.names_are_durable(self.unsynced_names(path))

    def unsynced_names(self, path: str) -> list[UnsyncedName]:
        """What was done to the names of a directory since they were last durable, in order."""
        return [unsynced for unsynced in self._unsynced_names if unsynced[0] == path]

    def names_are_durable(self, changes: list[UnsyncedName]) -> None:
        """A sync of their directory that began after these changes has returned."""
        done = {id(unsynced) for unsynced in changes}
        for unsynced in self._unsynced_names:
            if id(unsynced) in done:
                _rename(self._durable_names, unsynced[1])
        self._unsynced_names = [unsynced for unsynced in self._unsynced_names if id(unsynced) not in done]

    def free_bytes(self, path: str) -> int:
        self.call("free_bytes", path)
        return self.free if self.capacity is None else max(0, self.capacity - self.used_bytes())

    def lock(self, directory: str) -> _FakeLock:
        self.call("lock", directory)
        if directory in self._locks:
            raise DirectoryInUse(f"{directory} is in use by another process")
        self._locks.add(directory)
        return _FakeLock(self._locks, directory)


def _rename(names: Names, change: NameChange) -> None:
    for path, node in change.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node
