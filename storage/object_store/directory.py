"""The stores without a service: in a directory, the embedded default, shared by any processes of one machine; and in
memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from weft.config.machine import why_denied
from weft.storage.filesystem import DirectoryInUse, File, FileSystem, Lock, OSFileSystem
from weft.storage.object_store.protocol import (
    AlreadyExists,
    Buffer,
    Listed,
    Listing,
    NotFound,
    Object,
    PreconditionFailed,
    StoreAway,
    StoreError,
    StoreUnfit,
    Written,
    check_key,
    check_prefix,
    clamp_range,
    valid_part,
)

# Folders for a directory store's temporary files: one locked slot per open store.
#
# The lock distinguishes a crashed writer's leftovers from a live one's work in progress, without relying on a clock.

HIDDEN = ".weft"
"""Directory of a store's own files; no key starts with a dot."""
SLOTS_MAX = 1024
_LOCK_NAME = "lock"


class Slot:
    """A directory for temporary files that belongs to one open store until it is collected or the process ends."""

    def __init__(self, path: str, lock: Lock) -> None:
        self._path = path
        self._numbers = itertools.count()
        weakref.finalize(self, lock.close)

    def new_path(self) -> str:
        """Return a new path."""
        return f"{self._path}/{next(self._numbers)}"


def take_slot(filesystem: FileSystem, root: str) -> Slot:
    """Take a free slot, and remove the files of crashed writers from it and every other free slot.

    Raises:
        OSError: the directory cannot be written, or ``SLOTS_MAX`` stores are open at once.
    """
    base = f"{root}/{HIDDEN}/temporary"
    filesystem.make_directory(base)
    known = len(filesystem.list_names(base))
    taken: Slot | None = None
    for number in range(SLOTS_MAX):
        if taken is not None and number >= known:
            break
        path = f"{base}/{number}"
        filesystem.make_directory(path)
        with contextlib.suppress(DirectoryInUse):
            # The kernel frees the lock with the process, so a folder that can be locked is a dead writer's, and its
            # files may go.
            lock = filesystem.lock(path)
            _sweep(filesystem, path)
            if taken is None:
                taken = Slot(path, lock)
            else:
                lock.close()
    if taken is None:
        raise OSError(f"{SLOTS_MAX} stores have {root} open; close some")
    return taken


def _sweep(filesystem: FileSystem, path: str) -> None:
    for name in filesystem.list_names(path):
        if name != _LOCK_NAME:
            filesystem.remove(f"{path}/{name}")


# The store in memory: for tests, demonstrations and simulation. Durable only as long as the process.


def content_etag(data: Buffer) -> str:
    """Return an etag that depends only on the bytes, like S3's, so that code which relies on more fails here too."""
    return blake2b(data, digest_size=16).hexdigest()


class ContentEtag(str):
    """The etag of some bytes, computed when it is first compared: hardly any object is ever swapped, and the digest of
    a chunk takes a fifth of its commit's instructions."""

    __slots__ = ("_data", "_digest")
    _data: bytes | None
    _digest: str

    @classmethod
    def of(cls, data: Buffer) -> str:
        """Return the etag of some bytes."""
        if not isinstance(data, bytes):
            return content_etag(data)  # its owner may change it
        etag = cls()
        etag._data = data
        return etag

    def __str__(self) -> str:
        if self._data is not None:
            self._digest, self._data = content_etag(self._data), None
        return self._digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    # The characters of the base class are never set: without these, an etag would be false, and empty in a pickle.
    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(str(self))

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    __repr__ = __str__


class MemoryStore:
    """An ``ObjectStore`` in a dict. No method waits, so every call is atomic within an event loop.

    Args:
        clock: nanoseconds since 1970 by the store's clock; without it, objects do not record when they were written.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._objects: dict[str, Object] = {}
        self._keys: list[str] = []

    async def create(self, key: str, data: Buffer) -> str:
        """Make an object that must not exist yet."""
        if check_key(key) in self._objects:
            raise AlreadyExists(key)
        insort(self._keys, key)
        return self._put(key, data)

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Make an object that must not exist yet, from its parts."""
        data = b"".join([bytes(part) async for part in parts])
        await self.create(key, data)
        return len(data)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object if its etag still is ``expected_etag``."""
        found = self._objects.get(check_key(key))
        if found is None or found.etag != expected_etag:
            raise PreconditionFailed(f"{key}: {'missing' if found is None else 'changed'}")
        return self._put(key, data)

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        found = self._objects.get(check_key(key))
        if found is None:
            raise NotFound(key)
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object."""
        data = (await self.get(key)).data
        first, end = clamp_range(len(data), start, length)
        return data[first:end]

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below a folder, ascending."""
        prefix = check_prefix(prefix)
        start = f"{prefix}/" if prefix else ""
        found: Listing = []
        for key in self._keys[bisect_right(self._keys, max(start, after or "")) :]:
            if not key.startswith(start) or (limit is not None and len(found) >= limit):
                break
            found.append(Listed(key, len(self._objects[key].data)))
        return found

    async def delete(self, key: str) -> None:
        """Remove an object."""
        if self._objects.pop(check_key(key), None) is not None:
            self._keys.remove(key)

    async def sync(self, key: str) -> None:
        """Do nothing: there is nothing to make durable."""
        await self.get(key)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Refuse: other libraries cannot see this process's memory."""
        raise StoreUnfit(f"{key}: a store in memory cannot hold tables; give the hub a directory or a bucket")

    def _put(self, key: str, data: Buffer) -> str:
        written = Written(self._clock(), by_store=True) if self._clock is not None else None
        self._objects[key] = Object(bytes(data), content_etag(data), written)
        return self._objects[key].etag


# The store in a directory: the embedded default, shared by any processes of one machine.
#
# This module syncs everything itself, because obstore's and deltalake's local stores never call fsync. An object's
# bytes are synced under a temporary name before the final name exists, so a power cut leaves a whole object or none.

THREADS = 8
"""Maximum number of concurrent calls. An fsync waits for the disk, not for a core."""
SWAP_WAIT_SECONDS_MAX = 10.0
SYNC_BYTES = 32 << 20
"""Bytes of a long object after which they are synced: hundreds of megabytes at once would delay the disk's other
syncs."""
_SWAP_POLL_SECONDS = 0.002
FIRST_TIME_NS = 10**18
"""Earlier times of files, before 2001, are none: some file systems keep no times."""
LEFT_AFTER_NS = 24 * 3600 * 10**9
"""Age of what a test made from which on its process is gone: a test takes seconds, and a machine may sleep."""
CLEARED_MAX = 1024
"""Maximum number of such folders and objects that one call looks at."""
DURABLE_KEYS_MAX = 4096
"""Maximum number of keys whose directory entry is known to be synced, so that reading a chunk in ranges syncs once."""

T = TypeVar("T")

_FULL = "Free some space or move the store to a larger disk; nothing is lost, writing continues by itself"
_READ_ONLY = "Mount its disk writable, or name another folder as the store"
_MISSING = "Make the folder, mount its disk if it has one of its own, or name another folder as the store"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: _MISSING,
    errno.ELOOP: "An object is a regular file, and no symbolic link",
    errno.EIO: "The disk reports errors: see the system's log",
}


class _Held(NamedTuple):
    """The object that says which store this is."""

    key: str
    judge: Callable[[bytes | None], StoreAway | None]
    written: int = 0
    """Time of the file that was accepted last."""


class DirectoryStore:
    """An ``ObjectStore`` in files below ``root``, one file per object.

    Args:
        root: the directory; made when missing, unless an object is held.
        filesystem: the door to the disk.
    """

    def __init__(
        self, root: str, filesystem: FileSystem | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = os.path.abspath(root)
        self._monotonic = monotonic
        self._fs: FileSystem = filesystem or OSFileSystem()
        self._threads = ThreadPoolExecutor(THREADS, "weft-store")
        self._mutex = threading.Lock()
        self._swaps = threading.Lock()
        self._slot: Slot | None = None
        self._held: _Held | None = None
        self._durable_directories: set[str] = set()
        self._durable_keys: OrderedDict[str, None] = OrderedDict()

    def hold(self, key: str, judge: Callable[[bytes | None], StoreAway | None]) -> None:
        """Make nothing from now on, and believe nothing, while another file than an accepted one is in an object's
        place: every call but ``get`` of the object itself raises ``StoreAway`` then.

        Args:
            judge: bytes of the object, None if it is missing -> the error to raise; None accepts them. In threads.
        """
        self._held = _Held(key, judge)

    async def create(self, key: str, data: Buffer) -> str:
        """Write a temporary file, fdatasync it, link it to the final name, and fsync the directory."""
        return await self._run(self._create, check_key(key), data)

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Write a temporary file part by part, and make it the object as ``create`` does."""
        path, size, written = self._path(check_key(key)), 0, 0
        temporary = await self._run(lambda _: self._take_slot().new_path(), key)
        file = await self._run(lambda _: self._fs.create(temporary), key)
        try:
            try:
                async for part in parts:
                    await self._run(lambda _, at=size, part=part: file.write_at(at, part), key)
                    size, written = size + len(part), written + len(part)
                    # Half a gigabyte of dirty pages at once would hold up every other sync on the disk.
                    if written >= SYNC_BYTES:
                        await self._run(lambda _: file.sync(), key)
                        written = 0
                # The bytes are durable before the name exists: a power cut leaves a whole object or none.
                await self._run(lambda _: file.sync(), key)
            finally:
                file.close()
            await self._run(lambda _: self._make_directories(os.path.dirname(path)), key)
            await self._run(lambda _: self._link(temporary, key), key)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)
            raise
        return size

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Compare and rename under a lock that every process of this machine respects."""
        return await self._run(self._swap, check_key(key), data, expected_etag)

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        return await self._read(self._get, check_key(key), is_held=self._held is None or key != self._held.key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object."""
        return await self._read(self._get_range, check_key(key), start, length)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below a folder, ascending."""
        return await self._run(self._list, check_prefix(prefix), after or "", limit)

    async def delete(self, key: str) -> None:
        """Remove an object durably."""
        await self._run(self._delete, check_key(key))

    async def clear(self, folder: str) -> None:
        """Remove a folder of tests, with what is in it, and those beside it that processes left which ended a day ago
        or earlier. No other folder may be removed: a writer may be about to make an object in it."""
        await self._run(self._clear, check_key(folder))

    async def sync(self, key: str) -> None:
        """Sync the file (fdatasync) and its directories (fsync)."""
        await self._read(self._sync, check_key(key))

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the path, which deltalake and pyarrow open directly."""
        path = self._path(check_key(key))
        self._check_held()
        return path, {}

    async def free_bytes(self) -> int:
        """Return the bytes of the file system that this user may still write.

        Raises:
            StoreError: it does not answer, or the held object is not in its place.
        """
        return await self._run(lambda _: self._fs.free_bytes(self._root), "")

    async def _run(self, call: Callable[..., T], key: str, *arguments: object, is_held: bool = True) -> T:
        """Run a blocking call in a thread, and add the key to its errors."""
        run = self._while_held if is_held else (lambda call, *given: call(*given))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run, call, key, *arguments)
        except OSError as error:
            raise StoreError(self._told(key, error)) from error

    async def _read(self, call: Callable[..., T], key: str, *arguments: object, is_held: bool = True) -> T:
        """Run a blocking call as ``_run`` does, but let ``FileNotFoundError`` through: a missing file is an answer."""

        def read() -> T:
            try:
                return call(key, *arguments)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise NotFound(key) from None

        return await self._run(lambda _: read(), key, is_held=is_held)

    def _while_held(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call between two looks at the held object: what it makes is in the store, and its answer, also that
        something is missing, is the store's."""
        self._check_held()
        try:
            return call(*arguments)
        finally:
            # After the call as well: a disk that was unmounted meanwhile left an empty folder, into which the object
            # was written.
            self._check_held()

    def _check_held(self) -> None:
        held = self._held
        if held is None:
            return
        data: bytes | None = None
        try:
            written = self._fs.modified(self._path(held.key))
            # One stat for each call, instead of reading and decoding the file.
            if written == held.written and written > FIRST_TIME_NS:
                return  # the file that was accepted: each change of it is a new file
            data = self._fs.read(self._path(held.key))
        except (FileNotFoundError, NotADirectoryError):
            written = 0
        if (error := held.judge(data)) is None:
            self._held = held._replace(written=written)
            return
        self._held = held._replace(written=0)
        with self._mutex:  # a copy of the store may come back, without these files, and not synced
            self._slot = None
            self._durable_directories.clear()
            self._durable_keys.clear()
        raise error

    def _told(self, key: str, error: OSError) -> str:
        reason, advice = error.strerror or str(error), _ADVICE.get(error.errno or 0)
        sentence = f"the store's folder {self._root} cannot be used for {key or 'listing'}"
        if isinstance(error, PermissionError):
            return f"{sentence}: {why_denied(str(error.filename or self._root), 'use')}"
        place = f" ({error.filename})" if error.filename else ""
        sentence = f"{sentence}: {reason}{place}"
        return f"{sentence}. {advice}" if advice else sentence

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _create(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        if self._fs.exists(path):
            self._refuse_create(key)
        self._make_directories(os.path.dirname(path))
        self._link(self._write_temporary(data), key)
        return ContentEtag.of(data)

    def _link(self, temporary: str, key: str) -> None:
        """Make a temporary file the object, if there is none; its temporary name goes in any case."""
        path = self._path(key)
        try:
            # link(2) fails if the name exists, which rename(2) does not: it decides between concurrent creators.
            self._fs.link(temporary, path)
        except FileExistsError:
            self._refuse_create(key)
        finally:
            self._fs.remove(temporary)
        self._fs.sync_directory(os.path.dirname(path))

    def _refuse_create(self, key: str) -> None:
        """Sync the existing object, then refuse: its creator may not have synced its name yet, and the caller will rely
        on it."""
        # The winner may not have synced the name yet. "Exists" is acted upon at once, so it must survive a power cut.
        self._fs.sync_directory(os.path.dirname(self._path(key)))
        raise AlreadyExists(key)

    def _swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        path = self._path(key)
        # POSIX has no rename on a condition. Threads of this process wait for each other, other processes for the file
        # lock.
        with self._swaps, contextlib.closing(self._swap_lock()):
            try:
                # Read again under the lock: the caller's etag may be from before another swap.
                found = content_etag(self._fs.read(path))
            except FileNotFoundError:
                raise PreconditionFailed(f"{key}: missing") from None
            if found != expected_etag:
                raise PreconditionFailed(f"{key}: changed")
            self._fs.rename(self._write_temporary(data), path)
            self._fs.sync_directory(os.path.dirname(path))
        return content_etag(data)

    def _swap_lock(self) -> Lock:
        """Return the machine-wide lock of swaps and deletions: about one a minute, so one for the whole store."""
        directory = f"{self._root}/{HIDDEN}/swap"
        self._make_directory(directory)
        deadline = self._monotonic() + SWAP_WAIT_SECONDS_MAX
        while True:
            try:
                lock = self._fs.lock(directory)
                break
            except DirectoryInUse:
                if self._monotonic() > deadline:
                    raise TimeoutError(f"another process held the swap lock for {SWAP_WAIT_SECONDS_MAX} s") from None
                time.sleep(_SWAP_POLL_SECONDS)
        try:
            self._check_held()  # again: the wait may have been long
        except BaseException:
            lock.close()
            raise
        return lock

    def _get(self, key: str) -> Object:
        path = self._path(key)
        data = self._fs.read(path)
        written = self._fs.modified(path)
        self._fs.sync_directory(os.path.dirname(path))
        # By this machine's clock, or by that of a file server: which of them is not known.
        found = Written(written, by_store=False) if written > FIRST_TIME_NS else None
        return Object(data, ContentEtag.of(data), found)

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        # Read-only, because members of the store's group may have no write access.
        with self._opened(key, read_only=True) as file:
            first, end = clamp_range(file.size(), start, length)
            data = file.read_at(first, end - first)
        self._sync_name_once(key)
        return data

    def _sync_name_once(self, key: str) -> None:
        """Sync a name once. It is visible before its writer has synced it, and an object that a reader relied on must
        not vanish."""
        with self._mutex:
            # Readers of one object in pieces would sync its folder for each piece.
            if key in self._durable_keys:
                return
        self._fs.sync_directory(os.path.dirname(self._path(key)))
        with self._mutex:
            self._durable_keys[key] = None
            if len(self._durable_keys) > DURABLE_KEYS_MAX:
                self._durable_keys.popitem(last=False)

    def _list(self, prefix: str, after: str, limit: int | None) -> Listing:
        found: Listing = []
        walk = self._walk(prefix, after)
        while limit is None or len(found) < limit:
            listed = next(walk, None)
            if listed is None:
                break
            found.append(listed)
        return found

    def _walk(self, directory: str, after: str) -> Iterator[Listed]:
        """Yield files in key order. A directory sorts as its name with '/', since that is how its keys continue."""
        base = f"{directory}/" if directory else ""
        try:
            names = [
                name
                for name in self._fs.list_names(self._path(directory))
                # Only names that can come after `after` are read from the disk: a log has millions of others.
                if (base + name > after or after.startswith(base + name)) and valid_part(name)
            ]
        except (FileNotFoundError, NotADirectoryError):
            return
        # Marked before sorting: with its '/' a directory sorts as the keys below it do.
        marked = sorted(f"{name}/" if self._fs.is_directory(self._path(base + name)) else name for name in names)
        for key in (base + name for name in marked):
            if key.endswith("/"):
                if key > after or after.startswith(key):
                    yield from self._walk(key[:-1], after)
            elif key > after:
                with contextlib.suppress(FileNotFoundError):
                    yield Listed(key, self._fs.size(self._path(key)))

    def _delete(self, key: str) -> None:
        path = self._path(key)
        with self._swaps, contextlib.closing(self._swap_lock()), contextlib.suppress(FileNotFoundError):
            self._fs.remove(path)
            self._fs.sync_directory(os.path.dirname(path))
        with self._mutex:
            self._durable_keys.pop(key, None)

    def _clear(self, folder: str) -> None:
        path = self._path(folder)
        beside, now = os.path.dirname(path), self._fs.modified(path)  # one clock for all of them, whosever it is
        self._remove_tree(path)
        for each in [f"{beside}/{name}" for name in self._fs.list_names(beside)][:CLEARED_MAX]:
            with contextlib.suppress(OSError):  # another process clears as well, or it is another user's
                if now - self._fs.modified(each) > LEFT_AFTER_NS:
                    self._remove_tree(each)

    def _remove_tree(self, path: str) -> None:
        if not self._fs.is_directory(path):
            self._fs.remove(path)
            return
        for name in self._fs.list_names(path):
            self._remove_tree(f"{path}/{name}")
        self._fs.remove_directory(path)
        with self._mutex:
            self._durable_directories.discard(path)

    def _sync(self, key: str) -> None:
        with self._opened(key) as file:
            file.sync()
        self._make_directories(os.path.dirname(self._path(key)))
        self._fs.sync_directory(os.path.dirname(self._path(key)))

    @contextlib.contextmanager
    def _opened(self, key: str, *, read_only: bool = False) -> Iterator[File]:
        with contextlib.closing(self._fs.open(self._path(key), read_only=read_only)) as file:
            yield file

    def _make_directories(self, directory: str) -> None:
        """Create a directory, and make it and its parents durable, including those that other processes created."""
        with self._mutex:
            if directory in self._durable_directories:
                return
        self._make_directory(directory)
        parent = directory
        # Each parent has the name of a directory that may not be durable yet.
        while parent != self._root and parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
            self._fs.sync_directory(parent)
        with self._mutex:
            self._durable_directories.add(directory)

    def _make_directory(self, directory: str) -> None:
        """Create a directory and its missing parents, durably."""
        self._check_held()  # again, since the call may have waited for a lock
        self._fs.make_directory(directory)

    def _write_temporary(self, data: Buffer) -> str:
        path = self._take_slot().new_path()
        file = self._fs.create(path)
        try:
            file.write_at(0, data)
            file.sync()
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.remove(path)
            raise
        finally:
            file.close()
        return path

    def _take_slot(self) -> Slot:
        self._check_held()
        with self._mutex:
            if self._slot is None:
                self._slot = take_slot(self._fs, self._root)
            return self._slot
