"""Running hub nodes: each has an entry in the store (docs/how-to/upgrade-a-hub.md).

An entry is information for people and for ``weft hub finalize``: the safety of a log never depends on it.
"""

from __future__ import annotations

import contextlib

import msgspec

from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, Written

STALE_NS = 300 * 1_000_000_000
"""Age at which an entry no longer counts as a running node."""


class NodeEntry(msgspec.Struct, frozen=True):
    """A running node. JSON; a later release may add fields."""

    id: str
    url: str
    software: str
    level: int
    """The highest level that the node's release knows."""
    seen: int
    """Nanoseconds since 1970 by the node's clock."""


async def announce(store: ObjectStore, entry: NodeEntry) -> Written | None:
    """Write a node's entry, or write it again. Return when the store wrote the earlier one, if it records that.

    Raises:
        StoreError: the store did not answer.
    """
    key, data = hub_keys.node_key(entry.id), msgspec.json.encode(entry)
    with contextlib.suppress(AlreadyExists, PreconditionFailed):  # its own earlier attempt won; the next one is soon
        try:
            found = await store.get(key)
        except NotFound:
            await store.create(key, data)
        else:
            await store.swap(key, data, found.etag)
            return found.written
    return None


async def withdraw(store: ObjectStore, node_id: str) -> None:
    """Remove a node's entry.

    Raises:
        StoreError: the store did not answer.
    """
    await store.delete(hub_keys.node_key(node_id))


async def running(store: ObjectStore, now: int) -> list[NodeEntry]:
    """Return the nodes with fresh entries, by id. An entry that does not decode counts as a node of level 0: it may be
    any.

    Args:
        now: nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    found = []
    for item in await store.list(hub_keys.NODES):
        try:
            entry = msgspec.json.decode((await store.get(item.key)).data, type=NodeEntry)
        except NotFound:
            continue
        except (msgspec.MsgspecError, UnicodeDecodeError):
            entry = NodeEntry(item.key.rpartition("/")[2], "", "an entry that does not decode", 0, now)
        if abs(now - entry.seen) < STALE_NS:  # one of later is that of a wrong clock
            found.append(entry)
    return found
