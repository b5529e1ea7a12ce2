"""Presence: entries of processes in a store, written again and again, by which they know who is there, and divide
the tables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from heapq import nsmallest
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.config.log_lines import Repeats, left_out
from weft.protocols.chunk_index import StreamKey
from weft.storage import hub_keys
from weft.storage.object_store import (
    AlreadyExists,
    Listed,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    Written,
)

# Entries of others as one process knows them, and those that its next look reads.
#
# A look is bounded whatever is in the store: anyone who can write there can leave thousands of entries. They cost
# requests and memory up to these bounds, and hide no entry that is written again and again.

ENTRIES_MAX = 1024
"""Maximum number of entries whose content is kept: of those that change, and of those that were just found."""
REST_MAX = 256
"""Maximum number of further entries that a look reads, in turns; ``ENTRIES_MAX`` at the first look."""


class Seen(NamedTuple):
    """The entry of another one."""

    content: bytes
    age_s: float
    """Time since its content was seen to change."""


class _Known(NamedTuple):
    digest: bytes
    order: bytes
    """Place among those with the same turn."""
    changed: float
    read: float
    content: bytes | None
    """None for one of too many."""
    is_written: bool = False
    """True once its content was seen to change."""


class Entries:
    """The entries of others. Times are monotonic seconds.

    Args:
        own: name of the own entry; it decides whose turn is first, so that names cannot hide others.
        still_s: time without a change after which an entry stands still.
        forget_s: time after which one is to be removed.
    """

    def __init__(self, own: str, still_s: float, forget_s: float) -> None:
        self._own = own.encode()[:64]
        self._still_s, self._forget_s = still_s, forget_s
        self._known: dict[str, _Known] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._known)

    def seen(self, now: float) -> dict[str, Seen]:
        """Return the entries by name, also of those that are gone."""
        known = sorted(self._known.items())
        return {name: Seen(each.content, now - each.changed) for name, each in known if each.content is not None}

    def choose(self, names: Iterable[str], now: float) -> list[str]:
        """Return the entries that a look reads: those that are being written, and some of all others in turns.

        Args:
            names: all that are in the store, but for the own one.
        """
        listed = set(names)
        written = [name for name in self._known.keys() & listed if self._is_written(self._known[name], now)]
        # By a hash with the reader's own name, so that no forged name comes first everywhere and hides a real entry
        # from all.
        written = nsmallest(ENTRIES_MAX, written, key=lambda name: self._known[name].order)
        rest = listed.difference(written)
        return [*written, *nsmallest(REST_MAX if self._known else ENTRIES_MAX, rest, key=self._turn)]

    def note(self, read: Mapping[str, bytes | None], names: Iterable[str], now: float) -> list[str]:
        """Note what a look has read. Return the entries to remove: they stand still for too long.

        Args:
            read: name -> content; None if it is not there any more.
            names: as for ``choose``.
        """
        kept = self._known.keys() & set(names)
        found = {name: self._known[name] for name in kept if name not in read}
        for name, content in read.items():
            if content is not None:
                found[name] = self._noted(name, content, now)
        gone = [name for name in read if name in found and now - found[name].changed > self._forget_s]
        for name in gone:
            del found[name]
        self._known = self._bounded(found, now)
        return gone

    def _noted(self, name: str, content: bytes, now: float) -> _Known:
        before, digest = self._known.get(name), blake2b(content, digest_size=16).digest()
        if before is None:
            return _Known(digest, self._order(name), now, now, content)
        if before.digest == digest:
            return before._replace(read=now)
        # Only an entry whose content was seen to change is one that a process writes. What stands still may be years
        # old, or forged.
        return _Known(digest, before.order, now, now, content, is_written=True)

    def _is_written(self, entry: _Known, now: float) -> bool:
        return entry.is_written and now - entry.changed <= self._still_s

    def _bounded(self, found: dict[str, _Known], now: float) -> dict[str, _Known]:
        """Drop content that is too much. It is that of entries that stand still, as long as there is such."""
        full = [name for name, entry in found.items() if entry.content is not None]
        written = sorted(
            (name for name in full if self._is_written(found[name], now)), key=lambda name: found[name].order
        )
        others = sorted(set(full).difference(written), key=lambda name: found[name].changed)
        for name in (*written[ENTRIES_MAX:], *others[ENTRIES_MAX:]):
            found[name] = found[name]._replace(content=None)
        return found

    def _turn(self, name: str) -> tuple[float, bytes]:
        known = self._known.get(name)
        return (known.read, known.order) if known is not None else (-1.0, self._order(name))

    def _order(self, name: str) -> bytes:
        return blake2b(name.encode(), digest_size=8, key=self._own).digest()


# Running hub processes: each has an entry in the store (docs/how-to/upgrade-a-hub.md).
#
# An entry is information for people, for ``weft hub finalize`` and for the division of work: the safety of a log
# never depends on it.

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
    kafka: str = ""
    """Address for Kafka's clients, ``host:port``, or ``:port`` for any of the machine; empty if it serves none."""
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
        # Edges are sent to this URL with their tokens, so a field that no process writes makes the whole entry damaged.
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
        # What cannot be read counts as a node of the lowest level: raising the cluster's level beside an old node
        # cannot be taken back.
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


# Presence: entries of processes in a store, written again and again, by which they know who is there.
#
# No wall clock matters: an entry counts as long as its content changes. Who is there is a hint, since an entry may be
# late; nothing that must be right may depend on it.

_logger = logging.getLogger(__name__)
BEAT_S = 5.0
"""Interval of looks beside others, with a write each. Writes and listings cost money."""
ALONE_BEATS = 4
"""Interval of looks while alone, without a write, in beats."""
MISSED_MAX = 3
"""Number of missed writes after which one counts as gone."""
FORGET_S = 3600.0
"""Time after which the entry of one that is gone is removed."""
LISTED_MAX = 10_000
"""Maximum number of entries that a look lists."""
READS_AT_ONCE = 16


class Pace(NamedTuple):
    """Intervals of a presence, seconds. Writes and listings cost money."""

    beat_s: float
    """Between looks, with a write each, while others look."""
    alone_s: float
    """Between looks while none does."""
    alone_write_s: float | None
    """Between writes while none does; None for none."""
    forget_s: float
    """Time after which the entry of one that is gone is removed."""


class Participant:
    """A member of a presence, which asks it for its entry and reports the others; each overrides what it needs."""

    def content(self, beat: int) -> bytes:
        """Return the content of the own entry, which must differ from the last one.

        Args:
            beat: number of the write, from 1.
        """
        raise NotImplementedError

    async def looked(self, others: Mapping[str, Seen]) -> None:
        """Take what a look has seen, before the own entry is written."""

    def is_watched(self) -> bool | None:
        """Return whether others look; None if all who have entries do."""
        return None

    def entered(self) -> None:
        """Take that the last content is in the store."""

    def boot(self) -> int | None:
        """Return the boot clock in nanoseconds; None where the store's time of a write is of no use."""
        return None

    def wrote(self, before: int, after: int, written: Written) -> None:
        """Take the boot clock before and after a write, and the store's time of it."""


class Presence:
    """The entries below a prefix, as one of those who write them sees them.

    Args:
        prefix, own: the entry's key is ``prefix/own``; ``own`` is unique to each start.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        own: str,
        participant: Participant,
        *,
        pace: Pace,
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._prefix, self._own = store, prefix, own
        self._participant, self._pace, self._now = participant, pace, monotonic
        self._was_watched = False
        self._etag: str | None = None
        self._beats = 0
        self._written_at: float | None = None
        self._written_boot: tuple[int, int] | None = None
        """The boot clock before and after the last write; None when that is not clear."""
        # One that is alone writes its entry each ``alone_write_s`` until it sees another.
        self._others = Entries(own, 2 * max(pace.alone_s, pace.alone_write_s or 0.0), pace.forget_s)
        self._repeats = Repeats()
        self._task = BackgroundTask()
        self._sooner = asyncio.Event()

    def others(self) -> Mapping[str, Seen]:
        """Return the entries of the others, by name, also of those that are gone."""
        return self._others.seen(self._now())

    async def start(self, *, must_look: bool = True) -> None:
        """Look once, write the entry, and continue in the background.

        Args:
            must_look: False to continue as well where the store does not answer the first look.

        Raises:
            StoreError: the store did not answer.
        """
        await (self.look() if must_look else self._try())
        self._task.start(self._run(), name=f"presence-{self._prefix}")

    def hurry(self) -> None:
        """Write the entry at once: its content has changed in a way that others wait for."""
        self._sooner.set()

    async def close(self) -> None:
        """Stop, and remove the entry: the others know at their next look."""
        if not await self._task.close() and not self._beats:
            return  # it has written none, not even with an unknown outcome
        self._etag = None
        try:
            await self._store.delete(self._key(self._own))
        except (StoreError, NotFound) as error:
            _logger.info("the entry %s stays in the store until others remove it: %s", self._key(self._own), error)

    async def look(self, *, writes: bool = True) -> None:
        """Write the own entry if anyone looks or it is time, and see who is there.

        Args:
            writes: False before the process serves anyone.

        Raises:
            StoreError: the store did not answer.
        """
        listed = await self._store.list(self._prefix, limit=LISTED_MAX)
        sound = {item.key.removeprefix(f"{self._prefix}/") for item in listed if item.size <= ENTRY_BYTES_MAX}
        names, contents = sound - {self._own}, dict[str, bytes | None]()
        chosen = self._others.choose(names, self._now())
        for at in range(0, len(chosen), READS_AT_ONCE):
            part = chosen[at : at + READS_AT_ONCE]
            contents.update(zip(part, await asyncio.gather(*map(self._read, part)), strict=True))
        for name in self._others.note(contents, names, self._now()):
            # Left by a process that was killed an hour ago or more.
            await self._store.delete(self._key(name))
        await self._participant.looked(self.others())
        was_watched, self._was_watched = self._was_watched, self._is_watched()
        is_first = was_watched or self._own not in sound  # after the last one who looked, the next write is later
        # Each write costs money in a bucket. A process that is alone writes once a minute, and every few seconds only
        # while others look.
        if writes and (self._was_watched or is_first or self._sooner.is_set() or self._is_due()):
            self._sooner.clear()
            await self._beat()

    def _is_watched(self) -> bool:
        is_watched = self._participant.is_watched()
        return bool(self._others) if is_watched is None else is_watched

    @property
    def _silent_s(self) -> float:
        return self._now() - self._written_at if self._written_at is not None else float("inf")

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _is_due(self) -> bool:
        every_s = self._pace.alone_write_s
        return every_s is not None and self._silent_s >= every_s - self._pace.alone_s / 2

    async def _read(self, name: str) -> bytes | None:
        try:
            return (await self._store.get(self._key(name))).data
        except NotFound:
            return None

    async def _beat(self) -> None:
        key, self._beats, participant = self._key(self._own), self._beats + 1, self._participant
        content, last, self._written_boot = participant.content(self._beats), self._written_boot, None
        before = participant.boot()
        try:
            if self._etag is None:
                self._etag = await self._store.create(key, content)
            else:
                if last is not None and (written := (await self._store.get(key)).written) is not None:
                    # The entry's own time in the store measures the clock at no further request.
                    participant.wrote(*last, written)
                before = participant.boot()
                self._etag = await self._store.swap(key, content, self._etag)
        except (AlreadyExists, PreconditionFailed, NotFound):
            # An earlier attempt of its own had an unknown outcome, or its entry was removed in a long pause.
            self._etag = None
            with contextlib.suppress(NotFound):
                self._etag = (await self._store.get(key)).etag
            return
        self._written_at, after = self._now(), participant.boot()
        self._written_boot = None if before is None or after is None else (before, after)
        participant.entered()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._sooner.wait(), self._pace.beat_s if self._is_watched() else self._pace.alone_s
                )
            await self._try()

    async def _try(self) -> None:
        what = f"the other processes cannot be listed ({self._prefix})"
        try:
            await self.look()
        except Exception as error:  # without looks, the work of one that is gone would stand still
            if not isinstance(error, StoreError | NotFound):
                _logger.exception("a look at %s failed", self._prefix)
            count = self._repeats.due(what, self._now())
            if count is not None:
                _logger.warning("%s: %s%s", what, error, left_out(count))
            self._sooner.clear()
            await asyncio.sleep(self._pace.beat_s / 5)
        else:
            self._repeats.forget(what)


# Division of a store's tables among those who keep tables: hub processes, and clusters of Spark that claim some.
#
# Each has an object in the store that it writes again while others are there. Who is alive is a hint: the version of
# a table decides which write counts. No wall clock matters: an object counts as long as its content changes.
# A claim in the table itself would need a clock to declare its maker dead.

KEEPER_BEAT_S, ALONE_S = 5.0, 20.0
"""Longest intervals of looks: beside others, with a write each, and alone, with a listing only: they cost money."""
BEAT_MIN_S = 0.5
TROUBLES_MAX, TROUBLE_CHARACTERS_MAX, STOPPED_MAX = 32, 300, 4
"""Bounds of what a beat says about tables that are held up: tables, characters of a text, and ranges of one table."""
BEAT_BYTES = 12 << 10
"""Bytes of a beat with troubles, which leaves some out where it would be longer. Readers take ``ENTRY_BYTES_MAX``."""
KNOWN_BEATS = 1.5
"""Beats after which the others, who look each beat, have seen what one has written."""
KEEPER_FORGET_S = 120.0
"""Time after which the object of one that is gone is removed."""


class Claim(msgspec.Struct, frozen=True):
    """The statement of a keeper that is no hub process: the tables that it makes for as long as it is alive."""

    name: str
    """Name of the maker, for people."""
    since: int
    """Start of the maker by its own clock, nanoseconds since 1970, for people."""
    tenants: str = "*"
    streams: str = "*"
    """Patterns of names, in which ``*`` matches any characters."""

    def covers(self, stream: StreamKey) -> bool:
        """Return whether a stream is among those claimed."""
        return fnmatchcase(stream[0], self.tenants) and fnmatchcase(stream[1], self.streams)


class TableTrouble(msgspec.Struct, frozen=True, array_like=True):
    """The reason that holds up a table, as its maker tells others."""

    tenant: str
    stream: str
    error: str
    stopped: tuple[tuple[int, int, int, str], ...] = ()
    """Records that cannot become rows: shard, first offset, offset after the last, reason."""


class _Beat(msgspec.Struct, frozen=True):
    """Content of the object of a keeper; releases before this one write a number for a hub process."""

    beat: int
    claim: Claim | None = None
    node: str = ""
    """Name of the hub process, for people."""
    joins: bool = False
    """True while others that are alive may not know of it yet: they continue with all tables until it has said no."""
    follows: bool = True
    """True if it knows all tables, also those that others make. Releases that do not say so may."""

    troubles: tuple[TableTrouble, ...] = ()
    """Troubles of the tables that it makes, as many as fit."""
    leaves: bool | None = None
    """True while an operator has drained it: others make its tables, if there are any. None of a process of a release
    that does not know of this: as long as there is one, no keeper leaves its tables, or they would have no maker."""


_UNSAID = _Beat(0)


class TableOwners(Participant):
    """The keepers of a store as one of them sees them.

    Args:
        own: name of this keeper, unique to each start of a process.
        claim: tables that this keeper makes instead of the hub; None for a hub process.
        interval_s: interval of the table step, the upper bound of all intervals here.
        monotonic: seconds.
        changed: called when other tables may be this keeper's.
        node: name of the hub process, for people.
        follows: whether it knows all tables, also those that others make.
    """

    def __init__(
        self,
        store: ObjectStore,
        own: str,
        interval_s: float,
        monotonic: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        *,
        claim: Claim | None = None,
        node: str = "",
        follows: bool = True,
    ) -> None:
        self._own, self._monotonic, self._changed = own, monotonic, changed
        self._claim, self._node, self._follows = claim, node, follows
        beat_s, alone_s = (max(BEAT_MIN_S, min(most, interval_s)) for most in (KEEPER_BEAT_S, ALONE_S))
        # While it is alone it looks, and writes nothing.
        self._pace = Pace(beat_s, alone_s, None, KEEPER_FORGET_S)
        self._presence = Presence(store, hub_keys.KEEPERS, own, self, pace=self._pace, monotonic=monotonic)
        self._waits = False
        """True until its first look, by which it knows whether it joins others."""
        self._joins_until: float | None = None
        """Moment up to which others that are alive may not know of it; None once it has said that they do."""
        self._keeps_from: float | None = None
        """Moment from which the others have seen that it has joined; None before it joins, and long after."""
        self._logged_joins = False
        """True if its last beat says that it joins."""
        self._troubles: Sequence[TableTrouble] = ()
        self._leaves = False
        self._alive: dict[str, _Beat] = {}
        """Last words of the others that are alive, by name."""

    async def start(self, waits: bool = True) -> None:
        """Join: look once, and continue in the background.

        Args:
            waits: whether it keeps no table before those that are alive know of it. It is only about work done twice.

        A store that does not answer is no reason to stop: the table step will not get far either.
        """
        self._waits = waits
        await self._presence.start(must_look=False)

    async def close(self) -> None:
        """Leave: the others take over at their next look."""
        await self._presence.close()

    def publish(self, troubles: Sequence[TableTrouble]) -> None:
        """Take the troubles of the tables that this keeper makes. The next beat tells others of them."""
        self._troubles = troubles

    def leave(self, leaves: bool) -> None:
        """Leave the tables to the other keepers, or keep tables again. The next beat tells them. A keeper makes tables
        as long as no other one can."""
        if leaves != self._leaves:
            self._leaves = leaves
            self._changed()

    @property
    def alive(self) -> int:
        """Return the number of keepers that count as alive, this one included."""
        return len(self._alive) + 1

    # A hint about who works, and no lease: of two that believe it, the table's version chooses one.
    def keeps(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes a stream's table: of all that are alive and may, one does (rendezvous
        hashing). Hub processes may if no claim covers the stream, and others only with such a claim."""
        return self._first(self._claiming(stream) or self._hubs(), stream) == self._own

    def keeps_beside(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes what is kept beside a stream's table, which no claim covers.

        Of the hub processes, one that follows all tables does: it answers for its host, so operators find there what
        it says of quality rules, quarantines and latest tables. Another one does as long as none has joined.
        """
        hubs = self._hubs()
        following = {name: each for name, each in hubs.items() if each.follows and not each.leaves}
        is_there = any(not each.joins for each in following.values()) or all(each.joins for each in hubs.values())
        return self._first(following if following and is_there else hubs, stream) == self._own

    def claimed_by(self, stream: StreamKey) -> Claim | None:
        """Return the claim of one that is alive and makes a stream's table; None if hub processes make it."""
        claiming = sorted(self._claiming(stream).items())
        return claiming[0][1].claim if claiming else None

    def process_of(self, stream: StreamKey) -> str | None:
        """Return the name of the hub process that makes a stream's table, as far as this keeper knows; None if that is
        not known, or if a claim covers the stream."""
        hubs = self._hubs()
        if self._claiming(stream) or (first := self._first(hubs, stream)) is None:
            return None
        return hubs[first].node or None

    def trouble_of(self, stream: StreamKey) -> TableTrouble | None:
        """Return what holds up a stream's table, as the other hub process says that makes it; None without any, and
        where this keeper makes it."""
        hubs = self._hubs()
        if self._claiming(stream) or (first := self._first(hubs, stream)) is None:
            return None
        return next((each for each in hubs[first].troubles if (each.tenant, each.stream) == stream), None)

    def _all(self) -> dict[str, _Beat]:
        own = _Beat(0, self._claim, self._node, self._is_joining(), self._follows, leaves=self._leaves)
        return {**self._alive, self._own: own}

    def _hubs(self) -> dict[str, _Beat]:
        found = {name: each for name, each in self._all().items() if each.claim is None}
        if any(each.leaves is None for each in found.values()):
            return {name: msgspec.structs.replace(each, leaves=False) for name, each in found.items()}
        return found

    def _claiming(self, stream: StreamKey) -> dict[str, _Beat]:
        # A claim is in force when the hub's processes know of it.
        said = self._all().items()
        return {name: each for name, each in said if each.claim and not each.joins and each.claim.covers(stream)}

    def _is_joining(self) -> bool:
        if not self._alive:
            return False
        if self._joins_until is not None:
            return True
        if self._keeps_from is not None and self._monotonic() >= self._keeps_from:
            self._keeps_from = None
        return self._keeps_from is not None

    @staticmethod
    def _first(among: Mapping[str, _Beat], stream: StreamKey) -> str | None:
        """Return which of some keepers is to make a table: one that the others know of, if there are any."""
        # One that joins makes nothing until the others must have seen it, or two would write the same files.
        there = [name for name, each in among.items() if not each.joins] or list(among)
        names = [name for name in there if not among[name].leaves] or there
        if len(names) < 2:
            return names[0] if names else None
        text = "/".join(stream).encode()
        # Rendezvous hashing: when a maker comes or goes, only its own tables move.
        return max(names, key=lambda each: blake2b(text, key=each.encode()).digest())

    async def look(self) -> None:
        """See who is there, and show that this one is, if anyone looks.

        Raises:
            StoreError: the store did not answer.
        """
        await self._presence.look()

    async def looked(self, others: Mapping[str, Seen]) -> None:
        """Take who is alive."""
        if self._waits:
            # One that was alone looks for others only now and then; one that is gone is found out by then.
            self._waits = False
            self._joins_until = self._monotonic() + 1.5 * self._pace.alone_s if others else None
        missed_s = MISSED_MAX * self._pace.beat_s
        alive = {name: _said(seen.content) for name, seen in others.items() if seen.age_s <= missed_s}
        if alive.keys() != self._alive.keys():
            _logger.info("keepers of tables that are alive: %d", len(alive) + 1)
        is_changed = {name: _terms(each) for name, each in alive.items()} != {
            name: _terms(each) for name, each in self._alive.items()
        }
        self._alive = alive
        if is_changed:
            self._changed()

    def is_watched(self) -> bool | None:
        """Return true while it joins, and None otherwise: all who have entries look."""
        return True if self._joins_until is not None else None

    def content(self, beat: int) -> bytes:
        """Return what it tells others."""
        joins = self._logged_joins = self._joins_until is not None and self._monotonic() < self._joins_until
        troubles = tuple(map(_shortened, self._troubles[:TROUBLES_MAX]))
        said = _Beat(beat, self._claim, self._node, joins, self._follows, troubles, self._leaves)
        while len(content := msgspec.json.encode(said)) > BEAT_BYTES:
            # Troubles are information; the beat itself must fit its bound, or the process would count as gone.
            said = msgspec.structs.replace(said, troubles=said.troubles[: len(said.troubles) // 2])
        return content

    def entered(self) -> None:
        """Have joined, once the others can read that it has."""
        if not self._logged_joins and self._joins_until is not None:
            self._joins_until, self._keeps_from = None, self._monotonic() + KNOWN_BEATS * self._pace.beat_s


def _terms(beat: _Beat) -> tuple[Claim | None, str, bool, bool, bool | None]:
    """Return what decides who makes which tables."""
    return beat.claim, beat.node, beat.joins, beat.follows, beat.leaves


def _shortened(trouble: TableTrouble) -> TableTrouble:
    stopped_text = trouble.stopped[:STOPPED_MAX]
    stopped = tuple((shard, first, end, why[:TROUBLE_CHARACTERS_MAX]) for shard, first, end, why in stopped_text)
    return TableTrouble(trouble.tenant, trouble.stream, trouble.error[:TROUBLE_CHARACTERS_MAX], stopped)


def _said(content: bytes) -> _Beat:
    """Return what an object says, without its number: what is unreadable counts as a hub process without a name."""
    try:
        found = msgspec.json.decode(content, type=_Beat)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNSAID
    named = found.node if len(found.node) <= NAME_CHARACTERS_MAX and found.node.isprintable() else ""
    return msgspec.structs.replace(found, beat=0, node=named)
