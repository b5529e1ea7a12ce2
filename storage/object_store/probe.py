"""Probe of a store's promises, before the hub relies on them.

Some S3-compatible stores ignore conditions on writes; two hub nodes would overwrite each other's chunks there. Others
respect them only for requests in sequence: they check first and write later. So the probe runs races.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from typing import NoReturn, Protocol, runtime_checkable

from weft.storage.object_store.opening import PlacedStore, bare
from weft.storage.object_store.protocol import (
    AlreadyExists,
    Buffer,
    Listing,
    NotFound,
    Object,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreUnfit,
)

PREFIX = "probe"
RACES = 10
"""Number of races, each for a key of its own."""
WRITERS = 32
"""Number of writers of one race."""
RACE = 1
"""Number of this set of races, to be raised when they find more: a server is then raced again before it is trusted."""
LARGE_RACES = 3
LARGE_WRITERS = 4
LARGE_BYTES = 1 << 20
"""Length of a body that a server takes so long to write that other requests arrive in between."""
AGAIN = "-again"
"""Suffix of the key of a race that could not be run with overlapping requests."""
ORDERED = ("-1", "/2", "0")
"""Ends of names in the order of their bytes. A bucket with folders of its own lists the second one first."""
INSTEAD = (
    "Use a store whose conditional writes hold under a race: Amazon S3, Google Cloud Storage, Azure Blob Storage, "
    "MinIO, versitygw, or a folder (docs/reference/stores.md)"
)
_EXPECTED = (AlreadyExists, PreconditionFailed, StoreError)
_FIRST, _SECOND, _THIRD = b"weft probe: first", b"weft probe: second", b"weft probe: third"


@runtime_checkable
class Overlapping(Protocol):
    """A store over a network, with half-sent requests and the name of the server."""

    async def overlap(self, key: str, bodies: Sequence[bytes], expected_etag: str | None) -> Sequence[bool] | None:
        """Return for each of several writes to one key whether it was accepted; None if that is not clear."""
        ...

    async def name(self) -> str:
        """Return the server's name, as far as it is known."""
        ...


@runtime_checkable
class Folders(Protocol):
    """A store whose folders stay when they are empty."""

    async def clear(self, folder: str) -> None:
        """Remove a folder of tests, with what is in it, and those that dead processes left beside it."""
        ...


async def probe(store: ObjectStore, second: ObjectStore | None = None) -> None:
    """Test every promise on objects with new names, and remove them. It takes a second in a bucket, less in a folder.

    Args:
        second: another client of the same store, for the races.

    Raises:
        StoreUnfit: a promise is broken; the message names it, the server, and an alternative.
        StoreError: the store is unavailable.
    """
    await probe_in_sequence(store)
    await race(store, second)


async def probe_in_sequence(store: ObjectStore) -> None:
    """Test the promises that one request after the other can test. Raises as ``probe``."""
    store = bare(store)
    base = f"{PREFIX}/{os.urandom(8).hex()}"
    key, missing = f"{base}/object", f"{base}/missing"
    ordered = [f"{base}/order{end}" for end in ORDERED]
    async with _tested(store, base, (key, missing, *ordered)):
        await _probe_create(store, key)
        await _probe_swap(store, key, missing)
        await _probe_reads(store, base, key)
        await _probe_order(store, base, ordered)
    await _expect_absent(store, key)


async def race(store: ObjectStore, second: ObjectStore | None = None) -> None:
    """Test the promises about writers at the same time: nearly all requests of a probe. Raises as ``probe``.

    Args:
        second: another client of the same store.
    """
    store, second = bare(store), None if second is None else bare(second)
    base = f"{PREFIX}/{os.urandom(8).hex()}"
    races = [f"{base}/race-{number:02d}" for number in range(RACES + LARGE_RACES)]
    async with _tested(store, base, (*races, *(race + AGAIN for race in races[RACES:]))):
        await _probe_races([store, second or store], races)


async def raced_key(store: ObjectStore) -> str | None:
    """Return the key of the note that a process has raced this server; None for a store without a server. A copy of the
    store elsewhere has the notes as well, which say nothing there."""
    store = bare(store)
    if not isinstance(store, Overlapping):
        return None
    # That writes hold under a race is a property of the server at an address, so the note is of both.
    return f"{PREFIX}/raced/{RACE}-{sha256((await store.name()).encode()).hexdigest()[:32]}"


@contextlib.asynccontextmanager
async def _tested(store: ObjectStore, folder: str, keys: Sequence[str]) -> AsyncIterator[None]:
    """Name the server in an error, and remove the objects."""
    try:
        yield
    except StoreUnfit as unfit:
        who = f"{await store.name()}: " if isinstance(store, Overlapping) else ""
        raise StoreUnfit(f"{who}{unfit}. {INSTEAD}") from unfit
    finally:
        await asyncio.gather(*(_delete(store, key) for key in keys))
        if isinstance(store, Folders):
            with contextlib.suppress(StoreError):
                await store.clear(folder)


async def _delete(store: ObjectStore, key: str) -> None:
    with contextlib.suppress(StoreError):
        await store.delete(key)


async def _probe_create(store: ObjectStore, key: str) -> None:
    await _expect_absent(store, key)
    try:
        await store.create(key, _FIRST)
    except AlreadyExists:
        raise StoreUnfit("the store reports an object that was never created") from None
    try:
        await store.create(key, _SECOND)
    except AlreadyExists:
        pass
    else:
        raise StoreUnfit("the store let a second create of one key succeed: it ignores If-None-Match")
    await _expect_content(store, key, _FIRST, "a create that the store refused changed the object all the same")


async def _probe_swap(store: ObjectStore, key: str, missing: str) -> None:
    stale = (await store.get(key)).etag
    try:
        fresh = await store.swap(key, _SECOND, stale)
    except PreconditionFailed:
        raise StoreUnfit("the store refused a swap with the object's current etag") from None
    await _expect_content(store, key, _SECOND, "a swap that the store accepted is not there to be read")
    if (await store.get(key)).etag != fresh:
        raise StoreUnfit("the store answers a swap with another etag than a read gives")
    await _expect_refused(store, key, stale, "the store accepted a swap with a stale etag: it ignores If-Match")
    await _expect_content(store, key, _SECOND, "a swap that the store refused changed the object all the same")
    await _expect_refused(store, missing, fresh, "the store accepted a swap of an object that does not exist")
    await _expect_absent(store, missing)


async def _probe_reads(store: ObjectStore, base: str, key: str) -> None:
    if await store.get_range(key, 5, 5) != _SECOND[5:10] or await store.get_range(key, -6, 100) != _SECOND[-6:]:
        raise StoreUnfit("the store answers a ranged read with other bytes")
    try:
        long = await store.get_range(key, -(1 << 16), 1 << 16)
    except StoreError:
        await store.get(key)  # raises during an outage, which has nothing to do with ranges
        raise StoreUnfit("the store refuses a suffix range that is longer than the object") from None
    if long != _SECOND:
        raise StoreUnfit("the store answers a suffix range that is longer than the object with other bytes")
    if [listed.key for listed in await store.list(base)] != [key]:
        raise StoreUnfit("the store does not list an object right after it was made")


async def _probe_order(store: ObjectStore, base: str, keys: Sequence[str]) -> None:
    await asyncio.gather(*(store.create(key, _FIRST) for key in keys))
    if [listed.key for listed in await store.list(base, after=f"{base}/order")] != list(keys):
        raise StoreUnfit("the store does not list objects in the order of their names")
    if [listed.key for listed in await store.list(base, after=keys[0], limit=1)] != [keys[1]]:
        raise StoreUnfit("the store does not list objects from a name on")


async def _probe_races(clients: Sequence[ObjectStore], keys: Sequence[str]) -> None:
    for key in keys[:RACES]:
        await _Race(clients, key).run(list(_bodies(WRITERS, 0)))
    for key in keys[RACES:]:
        bodies = list(_bodies(LARGE_WRITERS, LARGE_BYTES))
        if not await _Race(clients, key).overlap(bodies):
            # With another key: requests without an answer may still be written to this one.
            await _Race(clients, key + AGAIN).run(bodies)


def _bodies(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield f"weft probe: writer {number:04d} {os.urandom(8).hex()}".encode().ljust(size, b".")


class _Race:
    """A race of writers for one key: all create it, and then all swap the winner's object."""

    def __init__(self, clients: Sequence[ObjectStore], key: str) -> None:
        self._clients = clients
        self._key = key

    async def run(self, bodies: Sequence[bytes]) -> None:
        """Write with ordinary requests, spread over all clients."""
        await self._write(bodies, None)
        await self._write([body[::-1] for body in bodies], await self._etag())

    async def overlap(self, bodies: Sequence[bytes]) -> bool:
        """Write with requests that are all half sent at the same time. Return whether that was possible."""
        client = self._clients[0]
        if not isinstance(client, Overlapping):
            return False
        for data, etag in ((bodies, None), ([body[::-1] for body in bodies], self._etag)):
            expected = await etag() if etag else None
            won = await client.overlap(self._key, data, expected)
            if won is None:
                return False
            await self._judge(data, won, [False] * len(data), expected)
        return True

    async def _etag(self) -> str:
        return (await self._clients[0].get(self._key)).etag

    async def _write(self, bodies: Sequence[bytes], etag: str | None) -> None:
        clients = self._clients
        outcomes = await asyncio.gather(
            *(self._one(clients[at % len(clients)], body, etag) for at, body in enumerate(bodies)),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, _EXPECTED):
                raise outcome
        unclear = [isinstance(outcome, StoreError) for outcome in outcomes]
        if all(unclear):
            raise StoreError(f"the store answered none of {len(bodies)} requests at once: {outcomes[0]}")
        await self._judge(bodies, [isinstance(outcome, str) for outcome in outcomes], unclear, etag)

    async def _one(self, client: ObjectStore, body: bytes, etag: str | None) -> str:
        return await (client.create(self._key, body) if etag is None else client.swap(self._key, body, etag))

    async def _judge(
        self, bodies: Sequence[bytes], won: Sequence[bool], unclear: Sequence[bool], etag: str | None
    ) -> None:
        """Check that exactly one writer won, and that every client reads its bytes."""
        what, condition = ("creates of one key", "If-None-Match") if etag is None else ("swaps of one etag", "If-Match")
        writes, broken = f"{len(bodies)} concurrent {what}", f"it does not keep {condition} under a race"
        if sum(won) > 1:
            raise StoreUnfit(f"the store let {sum(won)} of {writes} succeed: {broken}")
        candidates = won if any(won) else unclear
        possible = [body for body, candidate in zip(bodies, candidates, strict=True) if candidate]
        for client in self._clients:
            try:
                found = (await client.get(self._key)).data
            except NotFound:
                raise StoreUnfit(f"the store refused every one of {writes}") from None
            if found not in possible and any(won):
                raise StoreUnfit(f"of {writes} one succeeded and another's bytes are read: {broken}")
            if found not in possible:
                raise StoreUnfit(f"the store refused every one of {writes}: {broken}")


async def _expect_content(store: ObjectStore, key: str, data: bytes, otherwise: str) -> None:
    try:
        found = (await store.get(key)).data
    except NotFound:
        raise StoreUnfit("the store does not find an object right after it was made") from None
    if found != data:
        raise StoreUnfit(otherwise)


async def _expect_refused(store: ObjectStore, key: str, etag: str, otherwise: str) -> None:
    try:
        await store.swap(key, _THIRD, etag)
    except PreconditionFailed:
        return
    raise StoreUnfit(otherwise)


async def _expect_absent(store: ObjectStore, key: str) -> None:
    try:
        await store.get(key)
    except NotFound:
        return
    raise StoreUnfit(f"the store finds {key}, which should not exist")


# Store that cannot be changed: for commands that only read, so that no change is without its line in the record.


class ReadOnly(RuntimeError):
    """A change of a store that was opened for reading."""


class _ReadOnlyStore:
    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def create(self, key: str, data: Buffer) -> str:
        if not key.startswith(f"{PREFIX}/"):  # a look at the store's clock
            _refuse(key)
        return await self._inner.create(key, data)

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:  # noqa: ARG002
        _refuse(key)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:  # noqa: ARG002
        _refuse(key)

    async def delete(self, key: str) -> None:
        if not key.startswith(f"{PREFIX}/"):
            _refuse(key)
        await self._inner.delete(key)

    async def sync(self, key: str) -> None:
        await self._inner.sync(key)

    async def get(self, key: str) -> Object:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get_range(key, start, length)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        return await self._inner.list(prefix, after, limit)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return self._inner.location(key)


def read_only(store: ObjectStore) -> ObjectStore:
    """Return the same store without a way to change it, except for objects of a look at its clock. Libraries that open
    a place by its ``location`` are not held back."""
    return PlacedStore(_ReadOnlyStore(bare(store)))


def _refuse(key: str) -> NoReturn:
    raise ReadOnly(f"{key}: the store was opened for reading; a command that changes it needs a line of its own")
