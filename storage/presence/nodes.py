"""Running hub processes: each has an entry in the store (docs/how-to/upgrade-a-hub.md).

An entry is information for people, for ``weft hub finalize`` and for the division of work: the safety of a log never
depends on it.
"""

from __future__ import annotations

import msgspec

from weft.storage import hub_keys
from weft.storage.object_store import NotFound, ObjectStore

STALE_NS = 300 * 1_000_000_000
"""Age at which an entry no longer counts as a running node."""
URL_CHARACTERS_MAX = 2048
NAME_CHARACTERS_MAX = 256


class NodeEntry(msgspec.Struct, frozen=True):
    """A running hub process. JSON; a later release may add fields."""

    id: str
    """Unique to each start."""
    url: str
    """URL at which it listens, for people."""
    software: str
    level: int
    """The highest level that the node's release knows."""
    seen: int
    """Nanoseconds since 1970 by the node's clock."""
    beat: int = 0
    """Number of the write, so that no two are equal."""
    name: str = ""
    """Name of the process, the same after a restart. Empty: it takes no part in the division of shards."""
    since: int = 0
    """Start of the process, nanoseconds since 1970 by its clock."""
    host: str = ""
    """Name of its machine."""
    port: int = 0
    process: int = 0
    """Number among the processes of its machine."""
    advertise: str = ""
    """URL for edges; empty if only those that know the machine's address can reach it."""
    weight: float = 1.0
    """Cores that the process may use."""
    state: str = "ready"
    """``joining``: it owns no shards yet. ``ready``. ``leaving``: it owns no more."""
    shards: tuple[int, ...] = ()
    """Shards that it has loaded."""
    links: int = 0
    cluster_log: int = 0
    """Number of the last entry of the cluster log that it knows."""
    interval_s: float = 60.0
    """Longest time until the next write, seconds."""


def decode_entry(data: bytes) -> NodeEntry | None:
    """Return an entry, or None if it is damaged, out of bounds, or of an unknown format."""
    try:
        entry = msgspec.json.decode(data, type=NodeEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    sound = (
        len(entry.advertise) <= URL_CHARACTERS_MAX
        and len(entry.name) <= NAME_CHARACTERS_MAX
        and 0 < entry.weight <= 4096
        and 0 < entry.interval_s <= 3600
        and 0 <= entry.port < 1 << 16
    )
    return entry if sound else None


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
            data = (await store.get(item.key)).data
        except NotFound:
            continue
        entry = decode_entry(data)
        if entry is None:
            entry = NodeEntry(item.key.rpartition("/")[2], "", "an entry that does not decode", 0, now)
        if abs(now - entry.seen) < STALE_NS:  # one of later is that of a wrong clock
            found.append(entry)
    return found
