"""Contract of an object store, and its errors: each kind implies the caller's next step."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, Protocol

from weft.protocols.errors import CodecError, Corrupt, PreRelease, UnsupportedVersion

# Contract of an object store.
#
# Memory, directory and buckets implement it, under one test suite: tests/storage/object_store/test_conformance.py.

Buffer = bytes | bytearray | memoryview

KEY_CHARACTERS_MAX = 512
KEY_PART_CHARACTERS_MAX = 200
"""Longest part of a key: below the 255 bytes of a file name, and S3's 1,024 bytes of a key with a prefix."""
PART_SUFFIX = ".part"
"""End of the name of an object that is being uploaded in parts."""
_PART = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.=@+~-]{{0,{KEY_PART_CHARACTERS_MAX - 1}}}")


class Written(NamedTuple):
    """The moment at which an object was written, by the clock of who keeps the store."""

    time: int
    """Nanoseconds since 1970, rounded down to seconds by buckets."""
    by_store: bool
    """True where that clock is not this machine's: a server's."""


class Object(NamedTuple):
    """An object as it was at one instant."""

    data: bytes
    etag: str
    """Identifier of this content for ``swap``. It may be derived from the bytes, so equal bytes may have equal etags: a
    caller that swaps in a loop needs a counter in the object."""
    written: Written | None = None
    """None where the store does not record it."""


class Listed(NamedTuple):
    """One line of a listing."""

    key: str
    size: int
    """Bytes."""


Listing = list[Listed]


class ObjectStore(Protocol):
    """Immutable objects by key, and compare-and-swap for the few that change.

    Keys are '/'-separated relative names (``check_key``). A store serves any number of tasks of one event loop and any
    number of processes at once. Every method may raise ``StoreError``: unavailable, or the outcome is unknown. Every
    call is bounded in time by the implementation.
    """

    async def create(self, key: str, data: Buffer) -> str:
        """Create an object that must not exist yet; exactly one of any number of concurrent attempts succeeds.

        Returns:
            Its etag. The object is durable, complete, and visible to every later read anywhere.

        Raises:
            AlreadyExists: the key is taken (perhaps by an earlier attempt of the caller).
        """
        ...

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Create an object as ``create`` does, from parts that come one after the other: a few are in memory at a time.

        An error of ``parts`` ends it without an object, and is raised as it is. What a crash leaves has no name that a
        reader of ``key`` finds; in a bucket it may be an object whose name begins with ``key`` and
        ends in ``PART_SUFFIX``.

        Returns:
            Bytes of the object.

        Raises:
            AlreadyExists: as ``create``; perhaps only after all parts were taken.
        """
        ...

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object if its etag still is ``expected_etag``; durable when it returns. Swaps of a key are linear.

        Raises:
            PreconditionFailed: the object has another etag, or is missing.
        """
        ...

    async def get(self, key: str) -> Object:
        """Return the whole object. It is durable: a power cut after this read does not remove it.

        Raises:
            NotFound: no such object.
        """
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes ``[start, start + length)`` of an object that is never swapped; fewer at its end.

        Args:
            start: from the beginning; negative counts from the end, clamped to the beginning.
            length: most bytes to return, at least 0.

        Raises:
            NotFound: no such object.
        """
        ...

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below the folder ``prefix`` ('' for all), ascending by key, compared byte by byte.

        Args:
            prefix: whole parts of a key: ``a/b`` holds ``a/b/c`` but not ``a/bc``. A final '/' changes nothing.
            after: a full key; only later ones are listed.
            limit: most objects to return.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; an absent one is fine."""

    async def sync(self, key: str) -> None:
        """Make an object durable that another library wrote under ``key``: the bytes, the name, and its directories.

        Raises:
            NotFound: no such object.
        """

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URI and storage options of the same place for deltalake and pyarrow.

        Raises:
            StoreUnfit: other libraries cannot reach this store (memory).
        """
        ...


def valid_key(key: str) -> bool:
    """Return whether ``key`` is a relative name that every store and file system can hold."""
    return len(key) <= KEY_CHARACTERS_MAX and all(map(_PART.fullmatch, key.split("/")))


def check_key(key: str) -> str:
    """Return ``key`` itself, checked.

    Raises:
        ValueError: not a relative name that every store and file system can hold.
    """
    if not valid_key(key):
        raise ValueError(
            f"{key[:80]!r} is not an object key: expected {KEY_CHARACTERS_MAX} characters at most, in parts joined by "
            "'/'. A part has only A-Z a-z 0-9 _ . = @ + ~ - and does not begin with a dot or a dash"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` without a final '/'; '' means everything.

    Raises:
        ValueError: as ``check_key``.
    """
    prefix = prefix.removesuffix("/")
    return check_key(prefix) if prefix else ""


def valid_part(name: str) -> bool:
    """Return whether ``name`` may be one part of a key; other names in a store's directory are not objects."""
    return _PART.fullmatch(name) is not None


def clamp_range(size: int, start: int, length: int) -> tuple[int, int]:
    """Return the range ``[first, end)`` within ``size`` bytes that ``get_range(start, length)`` means.

    Raises:
        ValueError: a negative length.
    """
    if length < 0:
        raise ValueError(f"a range of {length} bytes")
    first = max(0, size + start) if start < 0 else min(start, size)
    return first, min(size, first + length)


# Errors of a store. Each kind implies the caller's next step.


class StoreError(Exception):
    """A call with an unknown outcome: a timeout, a refused connection, a full disk, a server error.

    After a write, read the object to learn the outcome; never infer it from the error.
    """


class AccessDenied(StoreError):
    """The store answered that the key has no right to this."""


class StoreAway(StoreError):
    """The store is not in its place at present, or another one is there. A write may have happened there; nothing that
    follows from the answer may be said to anyone.

    Args:
        replaced: another store is there.
    """

    def __init__(self, why: str, *, replaced: bool = False) -> None:
        super().__init__(why)
        self.replaced = replaced


class AlreadyExists(Exception):
    """``create`` found the key taken, perhaps by an earlier attempt of the same writer: read it."""


class PreconditionFailed(Exception):
    """``swap`` found another etag, or no object. Read the object, decide again, swap again."""


class NotFound(Exception):
    """No object has this key."""


async def replace(store: ObjectStore, key: str, data: bytes, etag: str | None) -> str | None:
    """Write an object in place of the one with ``etag``, None for no object. Return the new etag; None if another
    writer was first, and nothing was written.

    Raises:
        StoreError: as of ``ObjectStore``.
    """
    try:
        return await (store.create(key, data) if etag is None else store.swap(key, data, etag))
    except (AlreadyExists, PreconditionFailed, NotFound):
        return None


class StoreUnfit(Exception):
    """A store that breaks promises that the log depends on, or lacks a requested feature. Choose another."""


# Errors about damaged objects, with the object's key and advice.


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Add the object's key and advice to errors about damage."""
    try:
        yield
    except PreRelease:
        raise  # it is about the store as a whole
    except UnsupportedVersion as error:
        raise UnsupportedVersion(
            f"{key} was written by a later release of Weft ({error}): install that release again"
        ) from error
    except CodecError as error:
        raise Corrupt(f"{key} is damaged: {error}; restore this object from a backup of the store") from error


# An object as a file for libraries that read Parquet: ranges of it are fetched when they are asked for.

WINDOW_BYTES = 256 << 10
"""Least bytes of a request: the columns of a footer's facts are neighbours of some hundred bytes each."""
WINDOWS_MAX = 4
"""Maximum number of ranges that are kept, each of ``WINDOW_BYTES`` or of one longer read."""


class ObjectFile(io.RawIOBase):
    """An object that is never swapped, for reading in other threads than the event loop's.

    Args:
        size: bytes of the object.
        loop: event loop of the store; it must be running, and not in the thread that reads.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._store, self._key, self._size, self._loop = store, key, size, loop
        self._at = 0
        self._windows: deque[tuple[int, bytes]] = deque(maxlen=WINDOWS_MAX)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return bytes from the position on; fewer at the object's end.

        Raises:
            NotFound, StoreError: as the store.
        """
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if self._at >= end:
            return b""
        start, data = next((each for each in self._windows if self._covers(each, end)), None) or self._fetch(end)
        found = data[self._at - start : end - start]
        self._at += len(found)
        return found

    def _covers(self, window: tuple[int, bytes], end: int) -> bool:
        return window[0] <= self._at and end <= window[0] + len(window[1])

    def _fetch(self, end: int) -> tuple[int, bytes]:
        # A window that would pass the end begins earlier: a footer's length is read first, and then what is before it.
        start = max(0, min(self._at, self._size - WINDOW_BYTES))
        length = max(end - start, WINDOW_BYTES)
        reading = asyncio.run_coroutine_threadsafe(self._store.get_range(self._key, start, length), self._loop)
        self._windows.append((start, reading.result()))
        return self._windows[-1]
