"""Declared deletions as the store keeps them: rows that left a stream's table on purpose, and who decided it.

A declaration is an object of its own, made with create-if-absent. It names rows by lane and number and by offset, so it
covers neither an unwritten row nor a later one. Of an erasure, a second object says which objects had the rows then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from weft.protocols.ranges import Range, RangeSet
from weft.storage.hub_keys import deletion_key, deletion_prefix, erasure_key
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore
from weft.storage.table.actions import TableError

T = TypeVar("T")
FORMAT: Final = 1
ATTEMPTS_MAX: Final = 5
RANGES_MAX: Final = 1_000_000
"""Maximum number of ranges in one declaration, some 20 MB; more are declared in parts, by time for example."""

LOOK_INTERVAL_S: Final = 2.0
"""Time after which a reader of the log looks for new erasures."""
STREAMS_MAX: Final = 1024
"""Maximum number of streams of which a process keeps the erased offsets; beyond, those not asked for the longest go."""


class Erasure(msgspec.Struct, frozen=True):
    """The part of a declaration whose rows are erased everywhere."""

    chunks: list[tuple[int, int]]
    """(shard, number of its last chunk then): these chunks, and those before, may have the records."""


class Deletion(msgspec.Struct, frozen=True):
    """A declaration in its JSON form."""

    format: int
    time: int
    """Time at which it was made, ns since 1970."""
    by: str
    reason: str
    rows: str
    """The choice of rows, for people; of an erasure without the values."""
    version: int
    """Version of the table that had the rows."""
    lanes: list[tuple[str, str, list[Range]]]
    """(edge, log id, numbers)"""
    offsets: list[tuple[int, list[Range]]]
    """(shard, offsets)"""
    erasure: Erasure | None = None
    received_until: int | None = None
    """Time of receipt of the newest of the rows, ns since 1970, if they were removed because of their age or of the
    table's size."""

    @property
    def count(self) -> int:
        """Return the number of its rows."""
        return sum(end - first for _, ranges in self.offsets for first, end in ranges)


class Erased(msgspec.Struct, frozen=True):
    """The objects that may have erased rows, once no version of a table has them any more."""

    format: int
    files: list[str]
    """Keys of files that no version names."""
    entries: list[str]
    """Keys of the newest entries of the tables' logs then: these, and those before, may have bounds of the rows."""


async def declare(store: ObjectStore, tenant: str, stream: str, deletion: Deletion) -> int:
    """Store a declaration, durably when this returns. Return its number."""
    data = msgspec.json.encode(deletion)
    number = len(await store.list(deletion_prefix(tenant, stream)))
    while True:
        try:
            await store.create(deletion_key(tenant, stream, number), data)
        except AlreadyExists:
            number += 1
        else:
            return number


async def stored_deletions(store: ObjectStore, tenant: str, stream: str) -> dict[int, Deletion]:
    """Return the declared deletions of a stream by their numbers, which ascend.

    Raises:
        TableError: a declaration is damaged, or a later release wrote it.
    """
    prefix = deletion_prefix(tenant, stream)
    for _ in range(ATTEMPTS_MAX):
        with contextlib.suppress(NotFound):  # retention has put another one in its place
            keys = [listed.key for listed in await store.list(prefix)]
            return {int(key.rpartition("/")[2]): _decoded(key, (await store.get(key)).data, Deletion) for key in keys}
    raise TableError(f"{prefix} changed {ATTEMPTS_MAX} times while it was read: try again")


async def erased_offsets(store: ObjectStore, tenant: str, stream: str) -> dict[int, RangeSet]:
    """Return the offsets of each shard whose rows were erased. Raises as ``stored_deletions``."""
    found = (await stored_deletions(store, tenant, stream)).values()
    declared = [each.offsets for each in found if each.erasure is not None]
    # A million ranges take most of a second.
    return await asyncio.to_thread(_united, declared) if declared else {}


def _united(declared: Iterable[Iterable[tuple[int, list[Range]]]]) -> dict[int, RangeSet]:
    found: dict[int, list[Range]] = {}
    for offsets in declared:
        for shard, ranges in offsets:
            found.setdefault(shard, []).extend(ranges)
    # In this order each one goes to the end of the set.
    return {shard: RangeSet(sorted(ranges)) for shard, ranges in found.items()}


class ErasedOffsetsCache:
    """The erased offsets of one stream, as a maker of a table needs them."""

    def __init__(self, store: ObjectStore, tenant: str, stream: str) -> None:
        self._store, self._stream = store, (tenant, stream)
        self._table: object = None
        self.offsets: dict[int, RangeSet] = {}
        """Shard -> offsets, as last read."""

    async def read(self, table: object) -> None:
        """Read the offsets, once for each table; raises as ``stored_deletions``.

        An erasure that finds the table removes the rows from it. One that did not is declared by now.

        Args:
            table: identity of the table.
        """
        if self._table != table:
            self.offsets = await erased_offsets(self._store, *self._stream)
            self._table = table


class FollowedErasures:
    """Erased offsets of the streams that a process reads from the log. They are in no table any more, and in chunks
    until the collector deletes these.

    Args:
        monotonic: seconds.
    """

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._known: OrderedDict[tuple[str, str], _CachedOffsets] = OrderedDict()

    async def of(self, tenant: str, stream: str) -> Mapping[int, RangeSet]:
        """Return the erased offsets of each shard, as the store had them at most ``LOOK_INTERVAL_S`` ago.

        The store is asked for the names of the declarations, and for these again only if there are others.

        Raises:
            TableError: a declaration is damaged, or a later release wrote it.
            StoreError: the store did not answer.
        """
        key, now = (tenant, stream), self._monotonic()
        known = self._known.get(key)
        if known is None or now - known.looked_at >= LOOK_INTERVAL_S:
            # A listing, and not a fact of the cluster log: an erasure may have a million ranges. One for each request
            # would cost a bucket's latency and price.
            names = tuple(listed.key for listed in await self._store.list(deletion_prefix(tenant, stream)))
            is_same = known is not None and known.names == names
            offsets = known.offsets if known and is_same else await erased_offsets(self._store, tenant, stream)
            known = self._known[key] = _CachedOffsets(now, names, offsets)
            if len(self._known) > STREAMS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known.offsets


class _CachedOffsets(NamedTuple):
    looked_at: float
    names: tuple[str, ...]
    offsets: Mapping[int, RangeSet]


async def put_erased(store: ObjectStore, tenant: str, stream: str, number: int, erased: Erased) -> None:
    """Store which objects had the rows of a declaration, durably when this returns; the first word of it stays."""
    try:
        await store.create(erasure_key(tenant, stream, number), msgspec.json.encode(erased))
    except AlreadyExists:
        return


async def stored_erased(store: ObjectStore, tenant: str, stream: str, number: int) -> Erased | None:
    """Return the same; None while it is not known. Raises as ``stored_deletions``."""
    key = erasure_key(tenant, stream, number)
    try:
        data = (await store.get(key)).data
    except NotFound:
        return None
    return _decoded(key, data, Erased)


class _Format(msgspec.Struct):
    format: int


def _decoded(key: str, data: bytes, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > FORMAT:
            raise TableError(f"{key} was written by a later release of Weft: audit with that one")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TableError(f"{key}, a declared deletion, is damaged ({error}): restore it from a backup") from None
