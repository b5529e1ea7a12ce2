"""Running hub processes: each has an entry in the store (docs/how-to/upgrade-a-hub.md).

An entry is information for people, for ``weft hub finalize`` and for the division of work: the safety of a log never
depends on it.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import msgspec

from weft.storage import hub_keys
from weft.storage.object_store import Listed, NotFound, ObjectStore

STALE_NS = 300 * 1_000_000_000
"""Age at which an entry no longer counts as a running node."""
URL_CHARACTERS_MAX = 2048
NAME_CHARACTERS_MAX = 256
ENTRY_BYTES_MAX = 16 << 10
"""Size from which an entry is not read: one with 1,024 shards and the longest names has some 10 KiB."""
RUNNING_MAX = 10_000
"""Maximum number of entries that are read to see which nodes run."""
CLOCK_OFF_S_MAX = 1e11
TENANTS_MAX = 32
"""Maximum number of tenants with quotas in an entry."""
_READS_AT_ONCE = 16


class Intake(msgspec.Struct, frozen=True):
    """The rate of what links bring to a process, repetitions included."""

    records_per_s: float
    bytes_per_s: float
    """Bytes of batches as the edges stored them."""
    seconds: float
    """Time before the entry that the rate covers."""


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
    tenants: dict[str, tuple[int, int]] = {}
    """Tenants with quotas -> linked edges here, and links that send data: for the share of each process."""
    interval_s: float = 60.0
    """Longest time until the next write, seconds."""
    cluster: str = ""
    """Id of the cluster whose shards it serves; empty where its release did not say so yet."""
    restored: int = 0
    """Moment of the last restore of its store, as the cluster says it."""
    tables: int | None = None
    """Number of tables that it makes; None if it makes none, or its release does not say."""
    load: float | None = None
    """Cores that it used on average since its last entry; None if that is not known."""
    clock_off_s: float | None = None
    """Least time by which its clock is ahead of the store's; None if its release does not say."""
    intake: Intake | None = None
    """None right after the start, or if its release does not say."""

    def is_of(self, cluster: str, restored: int) -> bool:
        """Return whether the process serves this history of a cluster, as far as it says: one that began with the store
        that stood in the same place before has nothing to do with this one."""
        return not self.cluster or (self.cluster, self.restored) == (cluster, restored)


def decode_entry(data: bytes) -> NodeEntry | None:
    """Return an entry, or None if it is damaged, out of bounds, or of an unknown format."""
    try:
        entry = msgspec.json.decode(data, type=NodeEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    names = (entry.id, entry.name, entry.host, entry.software, entry.state)
    sound = (
        all(len(name) <= NAME_CHARACTERS_MAX and name.isprintable() for name in names)
        and len(entry.url) <= URL_CHARACTERS_MAX
        and entry.url.isprintable()
        and (not entry.advertise or _is_url(entry.advertise))
        and 0 < entry.weight <= 4096
        and 0 < entry.interval_s <= 3600
        and 0 <= entry.port < 1 << 16
        and (entry.tables is None or entry.tables >= 0)
        and (entry.load is None or 0 <= entry.load <= 4096)
        and (entry.clock_off_s is None or abs(entry.clock_off_s) <= CLOCK_OFF_S_MAX)
        and (entry.intake is None or all(each >= 0 for each in msgspec.structs.astuple(entry.intake)))
        and len(entry.tenants) <= TENANTS_MAX
        and all(number >= 0 for pair in entry.tenants.values() for number in pair)
    )
    return entry if sound else None


def _is_url(text: str) -> bool:
    """Return whether a text may be the URL of a hub process, for edges."""
    if len(text) > URL_CHARACTERS_MAX or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and "@" not in parts.netloc


async def running(store: ObjectStore, now: int) -> list[NodeEntry]:
    """Return the nodes with fresh entries, by id. What cannot be read counts as a node of level 0: it may be any.

    Args:
        now: nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    found = []
    listed = await store.list(hub_keys.NODES, limit=RUNNING_MAX + 1)
    for at in range(0, len(listed[:RUNNING_MAX]), _READS_AT_ONCE):
        part = listed[at : min(at + _READS_AT_ONCE, RUNNING_MAX)]
        for entry in await asyncio.gather(*(_read(store, item, now) for item in part)):
            if entry is not None and abs(now - entry.seen) < STALE_NS:  # one of later is that of a wrong clock
                found.append(entry)
    if len(listed) > RUNNING_MAX:
        found.append(_unknown("more", f"one of more than {RUNNING_MAX} entries", now))
    return found


async def _read(store: ObjectStore, item: Listed, now: int) -> NodeEntry | None:
    name = item.key.rpartition("/")[2]
    if item.size > ENTRY_BYTES_MAX:
        return _unknown(name, f"an entry of {item.size} bytes", now)
    try:
        data = (await store.get(item.key)).data
    except NotFound:
        return None
    return decode_entry(data) or _unknown(name, "an entry that does not decode", now)


def _unknown(name: str, what: str, now: int) -> NodeEntry:
    return NodeEntry(name, "", what, 0, now)
