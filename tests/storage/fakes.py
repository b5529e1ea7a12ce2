"""A disk that forgets: everything that was not synced may be gone, torn or out of order after a power cut."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.filesystem import Buffer, DirectoryInUse

SECTOR_BYTES = 512
"""Writes tear at these boundaries."""

FailureHook = Callable[[str, str], OSError | None]
"""(call, path) -> the error that the call shall raise, or None."""


def eio() -> OSError:
    return OSError(errno.EIO, "injected: input/output error")


@dataclass
class _Write:
    offset: int
    data: bytes


@dataclass
class _Resize:
    length: int


@dataclass(eq=False)
class _Node:
    """A file's content: as processes see it, as the platter has it, and what lies between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Resize] = field(default_factory=list)


def _apply(content: bytearray, change: _Write | _Resize) -> None:
    if isinstance(change, _Resize):
        del content[change.length :]
        content.extend(bytes(change.length - len(content)))
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.data


def _torn(write: _Write, chance: random.Random) -> list[_Write]:
    """Some of the sectors of a write: all, none, a beginning, or any subset."""
    sectors = []
    at = write.offset
    end = write.offset + len(write.data)
    while at < end:
        stop = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
        sectors.append(_Write(at, write.data[at - write.offset : stop - write.offset]))
        at = stop
    fate = chance.randrange(4)
    if fate == 0:
        return sectors
    if fate == 1:
        return []
    if fate == 2:
        return sectors[: chance.randint(0, len(sectors))]
    return [sector for sector in sectors if chance.random() < 0.5]


class FakeFile:
    def __init__(self, filesystem: FakeFileSystem, path: str, node: _Node) -> None:
        self._filesystem, self._path, self._node = filesystem, path, node
        self._open = True

    def _call(self, name: str) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "the file is closed")
        self._filesystem.call(name, self._path)

    def _change(self, change: _Write | _Resize) -> None:
        _apply(self._node.live, change)
        self._node.unsynced.append(change)

    def write_at(self, offset: int, data: Buffer) -> None:
        try:
            self._call("write_at")
        except OSError:
            self._change(_Write(offset, bytes(data)[: len(data) // 2]))
            raise
        self._change(_Write(offset, bytes(data)))

    def read_at(self, offset: int, length: int) -> bytes:
        self._call("read_at")
        return bytes(self._node.live[offset : offset + length])

    def allocate(self, length: int) -> None:
        self._call("allocate")
        if length > len(self._node.live):
            self._change(_Resize(length))

    def truncate(self, length: int) -> None:
        self._call("truncate")
        self._change(_Resize(length))

    def sync(self) -> None:
        try:
            self._call("sync")
        except OSError:
            # As Linux does it: the pages count as clean, so that a second sync succeeds and makes nothing durable.
            self._node.unsynced.clear()
            raise
        if self._node not in self._filesystem._names.values():
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was being written", self._path)
        for change in self._node.unsynced:
            _apply(self._node.durable, change)
        self._node.unsynced.clear()

    def size(self) -> int:
        return len(self._node.live)

    def close(self) -> None:
        self._open = False


class _FakeLock:
    def __init__(self, locks: set[str], directory: str) -> None:
        self._locks, self._directory = locks, directory

    def close(self) -> None:
        self._locks.discard(self._directory)


class FakeFileSystem:
    """In memory, strict about what POSIX does not promise. ``fail`` may make any call raise."""

    def __init__(self) -> None:
        self.fail: FailureHook = lambda call, path: None
        self.free = 1 << 40
        self.calls: list[tuple[str, str]] = []
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._unsynced_names: list[tuple[str, dict[str, _Node | None]]] = []
        self._directories = {"/"}
        self._locks: set[str] = set()

    def call(self, name: str, path: str) -> None:
        self.calls.append((name, path))
        error = self.fail(name, path)
        if error is not None:
            raise error

    def kill_process(self) -> None:
        """SIGKILL: locks go, everything that was written stays visible."""
        self._locks = set()
        self.fail = lambda call, path: None

    def power_cut(self, chance: random.Random) -> FakeFileSystem:
        """The disk as it is found after the power came back: of what was not synced, a random part."""
        after = FakeFileSystem()
        after.free = self.free
        after._directories = set(self._directories)
        names = dict(self._durable_names)
        for _, change in self._unsynced_names:
            if chance.random() < 0.5:
                _rename(names, change)
        nodes: dict[_Node, _Node] = {}
        for path, node in names.items():
            if node not in nodes:
                content = bytearray(node.durable)
                for change in node.unsynced:
                    parts = _torn(change, chance) if isinstance(change, _Write) else [change] * chance.randrange(2)
                    for part in parts:
                        _apply(content, part)
                nodes[node] = _Node(content, bytearray(content))
            after._names[path] = after._durable_names[path] = nodes[node]
        return after

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Rot: one bit of a file changes on the platter."""
        node = self._names[path]
        for content in (node.live, node.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def content(self, path: str) -> bytearray:
        return self._names[path].live

    def _change_names(self, path: str, change: dict[str, _Node | None]) -> None:
        _rename(self._names, change)
        self._unsynced_names.append((os.path.dirname(path), change))

    def _node(self, path: str) -> _Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def _vacant(self, path: str) -> None:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "the file exists", path)
        if os.path.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def open(self, path: str, *, read_only: bool = False) -> FakeFile:
        self.call("open", path)
        return FakeFile(self, path, self._node(path))

    def create(self, path: str) -> FakeFile:
        self.call("create", path)
        self._vacant(path)
        node = _Node()
        self._change_names(path, {path: node})
        return FakeFile(self, path, node)

    def read(self, path: str) -> bytes:
        self.call("read", path)
        return bytes(self._node(path).live)

    def size(self, path: str) -> int:
        self.call("size", path)
        return len(self._node(path).live)

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
        node = self._node(source)
        self._vacant(target)
        self._change_names(target, {target: node})

    def rename(self, source: str, target: str) -> None:
        self.call("rename", target)
        self._change_names(target, {source: None, target: self._node(source)})

    def remove(self, path: str) -> None:
        self.call("remove", path)
        self._node(path)
        self._change_names(path, {path: None})

    def sync_directory(self, path: str) -> None:
        self.call("sync_directory", path)
        for directory, change in self._unsynced_names:
            if directory == path:
                _rename(self._durable_names, change)
        self._unsynced_names = [(directory, change) for directory, change in self._unsynced_names if directory != path]

    def free_bytes(self, path: str) -> int:
        self.call("free_bytes", path)
        return self.free

    def lock(self, directory: str) -> _FakeLock:
        self.call("lock", directory)
        if directory in self._locks:
            raise DirectoryInUse(f"{directory} is in use by another process")
        self._locks.add(directory)
        return _FakeLock(self._locks, directory)


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for path, node in change.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node
