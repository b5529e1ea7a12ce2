"""The hub processes of a store: membership, the division of shards among them, and the owner of each shard."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.status import IntakeOfNode, NodeOfStore, PeerProcess
from weft.protocols.link import Hello, RefuseCode
from weft.replication.runner import LinkRefused
from weft.storage import hub_keys, presence
from weft.storage.cluster import Cluster, ClusterCache, ClusterUnusable, raise_level, read_cluster, read_level
from weft.storage.object_store import ObjectStore, StoreError, Written
from weft.storage.presence import (
    ALONE_BEATS,
    BEAT_S,
    FORGET_S,
    MISSED_MAX,
    Intake,
    NodeEntry,
    Pace,
    Participant,
    Presence,
    Seen,
    decode_entry,
)

# Division of a store's shards among hub processes: one function of who is there, so that all who see the same agree.
#
# It is not persisted: who owns a shard is a hint, and the log decides who writes.


def divide(shards: int, weights: Mapping[str, float]) -> list[str]:
    """Return the owner of each shard: rendezvous hashing with weights and bounded loads.

    Hashing alone divides few shards unevenly, so each name gets its share, rounded up or down. A name that joins or
    leaves moves its own shards and few others. A division of 1,024 shards among 256 names takes some 0.3 s.

    Args:
        weights: name -> positive weight, at least one.
    """
    room = _shares(shards, weights)
    draws = {name: [draw / weight for draw in _draws(name, shards)] for name, weight in weights.items()}
    owners = []
    for shard in range(shards):
        owner = min((name for name in weights if room[name]), key=lambda name: (draws[name][shard], name))
        room[owner] -= 1
        owners.append(owner)
    return owners


def _shares(shards: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return the number of shards for each: its share rounded down, and one more for the largest remainders."""
    total = math.fsum(weights.values())
    exact = {name: shards * weight / total for name, weight in weights.items()}
    shares = {name: math.floor(share + 1e-9) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: shards - sum(shares.values())]:
        shares[name] += 1
    return shares


@functools.lru_cache(maxsize=512)
def _draws(name: str, shards: int) -> list[float]:
    """Return draws from an exponential distribution: the smallest of several, divided by weights, is each with a chance
    like its weight."""
    digests = (blake2b(name.encode(), digest_size=8, key=b"%d" % shard).digest() for shard in range(shards))
    return [-math.log((int.from_bytes(digest, "little") + 1) / (1 << 64)) for digest in digests]


# Owners: the hub process that serves each shard, among the live processes of all hosts.
#
# Ownership only concerns cost, since the log decides who writes: an edge that cannot reach the owner is served where
# it is, and two processes that disagree for some seconds lose time, never data.

logger = logging.getLogger(__name__)

KNOWN_BEATS = 1.5 * ALONE_BEATS + 1
"""Beats after which all others know of a process that has joined; it owns nothing before. A process that was away
begins again, so that one that comes and goes moves no shards."""
START_BEATS = 6
"""Beats after the start for which the other processes of the same machine count as present: they are starting as
well."""
SEEN_NS = 150 * 1_000_000_000
"""Age of an entry, or difference of clocks, from which its process counts as gone or its clock as wrong."""
JOINING, READY, LEAVING = "joining", "ready", "leaving"


@dataclass(frozen=True)
class Site:
    """Address of one process: its machine, and its number there."""

    host: str
    """Name of the machine."""
    port: int
    process: int = 0
    processes: int = 1
    advertise: tuple[str, ...] = ()
    """URLs of the machine's processes for edges; empty if edges of other hosts cannot be redirected to them."""
    weight: float = 1.0
    """Cores for each process."""
    label: str = ""
    """Suffix of the name where the port is any free one, to tell processes apart."""
    scheme: str = "http"
    """Scheme of the URLs of the machine's processes without ``advertise``."""

    def name(self, process: int) -> str:
        """Return the name of one of the machine's processes."""
        return self.advertise[process] if self.advertise else f"{self.host}:{self.label or self.port_of(process)}"

    def port_of(self, process: int) -> int:
        """Return the port of one of the machine's processes."""
        return self.port - self.process + process


class Owners:
    """The owner of each shard as one process sees it.

    Args:
        known: the store's shards, to which splits add.
        beat_s: interval at which processes write their entries.
        cluster: id of the cluster, and moment of its last restore: entries of others do not count.
        is_drained: whether an operator has drained a process, given its machine and its name.
        monotonic: seconds.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self,
        known: ClusterCache,
        site: Site,
        node_id: str,
        *,
        cluster: tuple[str, int] = ("", 0),
        is_drained: Callable[[str, str], bool] = lambda host, name: False,  # noqa: ARG005
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
        beat_s: float = BEAT_S,
    ) -> None:
        self.beat_s = beat_s
        self._known, self._site, self._id = known, site, node_id
        self._cluster = cluster
        self._monotonic, self._wall = monotonic, wall_clock
        self._watchers: list[Callable[[], Awaitable[None]]] = []
        self.own = site.name(site.process)
        """Name of this process."""
        self._port = site.port
        self._kafka = ""
        self.since = wall_clock()
        self._started = monotonic()
        self._joined_at: float | None = None
        """Moment from which this process may own shards; None before the first look."""
        self._gone_at = math.inf
        """Moment from which others count it as gone, unless it writes its entry before."""
        self._had_strangers = False
        """True if processes of other machines were present at its last write."""
        self._beats_since: float | None = None
        """Moment since which it has written its entry each beat; None while it does not."""
        self._beats_until = -math.inf
        """Moment up to which it continues to do so after the last process of another machine has gone, which may look
        rarely because it believes itself alone."""
        self._leaves = False
        self._is_drained = is_drained
        self._gone: dict[str, tuple[bytes, bool]] = {}
        """Entry of a process that was gone -> its content as last seen, and whether it has changed since."""
        self._members: dict[str, NodeEntry | None] = {}
        """Processes among which shards are divided; None for one of this machine that has no entry yet."""
        self._owners = divide(known.cluster.tree.count, dict.fromkeys(self._site_names(), 1.0))
        self._divisions = 0
        """Number of divisions that have begun."""
        self._has_warned = False

    @property
    def state(self) -> str:
        """Return the state of this process: joining, ready or leaving."""
        if self._leaves or self._is_drained(self._site.host, self.own):
            return LEAVING
        return READY if self._joined_at is not None and self._monotonic() >= self._joined_at else JOINING

    @property
    def is_leaving(self) -> bool:
        """Return whether this process gives its shards to others, because it ends or is drained. A drained process
        keeps all shards, and serves all edges, while no other process can own any."""
        return self._leaves or (self.state == LEAVING and self.is_relieved)

    @property
    def why_leaving(self) -> str | None:
        """Return why this process gives its shards to others; None if it does not."""
        if self._leaves:
            return "the node is leaving"
        if not self.is_leaving:
            return None
        host = self._site.host
        name = host if self._is_drained(host, "") else self.own
        return f"{name} is drained. `weft hub drain CONFIG {name} --undo` ends it"

    def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Call ``changed`` whenever owners of shards change, before a look returns."""
        self._watchers.append(changed)

    def listens(self, port: int) -> None:
        """Set the port at which the process listens, for its entry."""
        self._port = port

    def serves_kafka(self, address: str) -> None:
        """Set the address for Kafka's clients, for the entry: ``host:port``, or ``:port`` for any of the machine."""
        self._kafka = address

    def is_here(self, entry: NodeEntry) -> bool:
        """Return whether a process is on the same machine."""
        return entry.host == self._site.host

    def owner(self, shard: int) -> str:
        """Return the name of the process that owns a shard."""
        owners = self._owners
        return owners[shard] if shard < len(owners) else self.own  # a new one, until the next division

    def is_own(self, shard: int) -> bool:
        """Return whether this process owns a shard."""
        return self.owner(shard) == self.own

    @property
    def is_relieved(self) -> bool:
        """Return whether other processes own shards."""
        return any(entry.state == READY for entry in self.others())

    def others(self) -> list[NodeEntry]:
        """Return the entries of the other processes among whom shards are divided, by name."""
        return [entry for name, entry in sorted(self._members.items()) if entry is not None and name != self.own]

    def peers(self) -> list[PeerProcess]:
        """Return the number, the port and the URL for edges of each other process of this machine."""
        site = self._site
        return [
            PeerProcess(number, site.port_of(number), site.advertise[number] if site.advertise else None)
            for number in range(site.processes)
            if number != site.process
        ]

    def has_strangers(self) -> bool:
        """Return whether there are processes of other machines."""
        return any(not self._is_sibling(name) for name in self._members)

    def beats(self) -> bool:
        """Return whether this process has to look, and to write its entry, each beat: processes of other machines
        depend on it, or an operator who drained it waits until it has nothing left."""
        return self.has_strangers() or self.state == LEAVING or self._monotonic() < self._beats_until

    def entered(self, entry: NodeEntry, interval_s: float) -> NodeEntry:
        """Return this process's entry with what others need to divide the shards. The caller has to write it.

        Args:
            interval_s: longest time until the next one.
        """
        self._note_write(interval_s)
        site = self._site
        return msgspec.structs.replace(
            entry,
            name=self.own,
            since=self.since,
            host=site.host,
            port=self._port,
            process=site.process,
            advertise=site.advertise[site.process] if site.advertise else "",
            kafka=self._kafka,
            weight=site.weight,
            state=self.state,
            interval_s=interval_s,
            cluster=self._cluster[0],
            restored=self._cluster[1],
        )

    def _note_write(self, interval_s: float) -> None:
        """Note that the own entry is written: after a pause, others have taken this process's shards."""
        now = self._monotonic()
        if interval_s > self.beat_s:
            self._beats_since = None
        elif self._beats_since is None:
            self._beats_since = now
        # An answer from before the pause may show the others as gone; they continue without this process all the same.
        if now > self._gone_at and (self.has_strangers() or self._had_strangers):
            self._joined_at = now + KNOWN_BEATS * self.beat_s
        self._had_strangers = self.has_strangers()
        self._gone_at = now + MISSED_MAX * interval_s

    async def leave(self) -> None:
        """Give all shards to other processes from now on, if there are any."""
        self._leaves = True
        await self._divide()

    async def look(self, others: Mapping[str, Seen]) -> None:
        """Divide the shards among the present processes. Args: others: the entries of all others."""
        members, now = self._entries(others), self._monotonic()
        strangers = any(not self._is_sibling(name) for name in members)
        if self._joined_at is None:
            self._joined_at = now + KNOWN_BEATS * self.beat_s if strangers else now
        if strangers:
            self._beats_until = now + KNOWN_BEATS * self.beat_s
        self._members = dict(members)
        if now - self._started < START_BEATS * self.beat_s:
            for name in self._site_names():
                self._members.setdefault(name, None)
        await self._divide()

    def elsewhere(self, host_header: str) -> Callable[[int], str | None]:
        """Return a function from shard to the URL of its owner; None if this process is the owner, no edge can be sent
        there, or it has not loaded the shard yet.

        Args:
            host_header: Host header of the edge's request: processes of this machine without ``advertise`` have the
                same host.
        """
        host = _host_of(host_header)

        def url(shard: int) -> str | None:
            name = self.owner(shard)
            if name == self.own:
                return None
            entry = self._members.get(name)
            if entry is None:  # a process of this machine that starts, or one that is gone: shards are being divided
                names = self._site_names()
                if name not in names:
                    return None
                process = names.index(name)
                if self._site.advertise:
                    return self._site.advertise[process]
                return host and f"{self._site.scheme}://{host}:{self._site.port_of(process)}"
            if shard not in entry.shards:
                return None
            if entry.advertise:
                return entry.advertise
            return f"{self._site.scheme}://{host}:{entry.port}" if host and self.is_here(entry) else None

        return url

    def _site_names(self) -> list[str]:
        return [self._site.name(process) for process in range(self._site.processes)]

    def _is_sibling(self, name: str) -> bool:
        return name in self._site_names()

    def _entries(self, others: Mapping[str, Seen]) -> dict[str, NodeEntry]:
        """Return the entries that count, by name: the youngest process of each."""
        found: dict[str, NodeEntry] = {}
        now = self._wall()
        self._gone = {key: gone for key, gone in self._gone.items() if key in others}
        for key, seen in others.items():
            entry = decode_entry(seen.content)
            if entry is None or not entry.name or entry.id == self._id or abs(now - entry.seen) > SEEN_NS:
                continue
            if self._cluster[0] and not entry.is_of(*self._cluster):
                continue
            if seen.age_s > MISSED_MAX * self._interval_s(entry):
                self._gone[key] = seen.content, False
                continue
            if key in self._gone and not self._is_back(key, seen.content) and entry.state == READY:
                entry = msgspec.structs.replace(entry, state=JOINING)
            known = found.get(entry.name)
            if known is None or (entry.since, entry.id) > (known.since, known.id):
                found[entry.name] = entry
        namesake = found.pop(self.own, None)
        if namesake is not None and namesake.since > self.since and not self._has_warned:
            self._has_warned = True
            logger.warning("another node is also named %s: give each machine its own name or `advertise`", self.own)
        return found

    def _is_back(self, key: str, content: bytes) -> bool:
        """Return whether one that was gone has written twice since. Its first write may have been under way when it was
        stopped, and say that it owns shards as before; only the next one knows of the pause, whatever its state is."""
        before, is_changed = self._gone[key]
        if content == before:
            return False
        if is_changed:
            del self._gone[key]
            return True
        self._gone[key] = content, True
        return False

    def _interval_s(self, entry: NodeEntry) -> float:
        """Return the longest time between an entry's writes. One that was alone has promised few: it is only held to a
        write each beat when this process has made so many that the other must have seen one."""
        since = self._beats_since
        is_known = since is not None and self._monotonic() >= since + KNOWN_BEATS * self.beat_s
        return self.beat_s if is_known and not self._is_sibling(entry.name) else entry.interval_s

    async def grow(self) -> None:
        """Divide the shards again after a split."""
        await self._divide()

    async def _divide(self) -> None:
        weights: dict[str, dict[str, float]] = {JOINING: {}, READY: {}, LEAVING: {}}
        for name, entry in self._members.items():
            state, weight = (entry.state, entry.weight) if entry is not None else (self.state, self._site.weight)
            weights.setdefault(state, {})[name] = weight
        weights[self.state][self.own] = self._site.weight
        among = weights[READY] or weights[JOINING] or {self.own: 1.0}
        count = self._known.cluster.tree.count
        self._divisions += 1
        division = self._divisions
        small = count * len(among) <= 4096
        owners = divide(count, among) if small else await asyncio.to_thread(divide, count, among)
        if division != self._divisions:
            return  # a later call knows more, and may have ended before
        if owners != self._owners:
            before, self._owners = self._owners, owners
            moved = sum(old != new for old, new in zip(before, owners, strict=False))
            own = sum(name == self.own for name in owners)
            logger.info("%d processes share %d shards, %d here; moved: %d", len(among), count, own, moved)
            for changed in self._watchers:
                await changed()


def owned_by(entries: Iterable[NodeEntry], shards: int, now: int) -> dict[str, list[int]]:
    """Return the shards that processes own by their entries: id -> shards. For display: a process that has just joined
    or left may divide them otherwise for some beats.

    Args:
        shards: their number in the store.
        now: nanoseconds since 1970.
    """
    there: dict[str, NodeEntry] = {}
    for entry in entries:
        if not entry.name or now - entry.seen > MISSED_MAX * entry.interval_s * 1e9:
            continue
        known = there.get(entry.name)
        if known is None or (entry.since, entry.id) > (known.since, known.id):
            there[entry.name] = entry
    of_state = {
        state: {name: entry.weight for name, entry in there.items() if entry.state == state}
        for state in (READY, JOINING)
    }
    among = of_state[READY] or of_state[JOINING]
    owned: dict[str, list[int]] = {}
    for shard, name in enumerate(divide(shards, among) if among else []):
        owned.setdefault(there[name].id, []).append(shard)
    return owned


def redirect(hello: Hello, shard: int, elsewhere: Callable[[int], str | None]) -> LinkRefused | None:
    """Return the refusal that redirects an edge to the owner of its shard; None if this process serves it.

    Args:
        shard: shard of the edge.
        elsewhere: shard -> the URL of its owner; None if it is this process, or unknown.
    """
    if hello.stay or (url := elsewhere(shard)) is None:
        return None
    return LinkRefused(
        RefuseCode.REDIRECT,
        f"shard {shard}, where edge {hello.edge} belongs, is served at {url}",
        "the edge connects there by itself, or stays if it cannot",
        url,
    )


def _host_of(header: str) -> str | None:
    """Return the host of a Host header, in brackets if it is an IPv6 address; None without one."""
    try:
        host = urlsplit(f"//{header}").hostname
    except ValueError:
        return None
    return f"[{host}]" if host and ":" in host else host or None


# Membership of a hub process in its cluster: its entry among the running nodes, and its level.
#
# A release that extends the log's format knows a higher level, and writes the extension only when the cluster has
# that level. ``finalize`` raises it when every running node knows it (docs/how-to/upgrade-a-hub.md).

READ_INTERVAL_S = 5.0
"""Interval at which a node reads the cluster's level and splits again. A read costs a bucket 0.2 dollars a month."""
DRAIN_BEATS = 2.5
"""Beats after which a leaving process stops waiting for others to load its shards. They look once a beat."""
DRAIN_LOOK_S = 0.5
NAMED_MAX = 10
"""Maximum number of nodes that an error names."""
ANNOUNCE_INTERVAL_S = 60.0
"""Interval at which a node that is alone writes its entry again; after five missed ones it counts as gone."""


class NotFinalized(Exception):
    """The level cannot be raised. The message has the reason and advice."""


async def _nothing(_: Cluster) -> None:
    """Do nothing with a cluster that has grown."""


class Work(NamedTuple):
    """Current work of a process, for its entry."""

    shards: tuple[int, ...] = ()
    """Shards that the process has loaded."""
    links: int = 0
    cluster_log: int = 0
    """Number of the last entry of the cluster log that it knows."""
    tenants: dict[str, tuple[int, int]] = {}
    """Use of tenants with quotas, as in ``NodeEntry``."""
    tables: int | None = None
    """Number of tables that the process makes; None if it makes none."""
    load: float | None = None
    """Mean number of cores that the process used since its last entry or its start; None if no time has passed."""
    intake: Intake | None = None
    """Rate of records and bytes that links bring."""


class Membership(Participant):
    """A node's part in its cluster.

    Args:
        node_id: unique for each process and each start.
        level: the cluster's level, just read.
        release_level: the highest level that this release knows.
        clock: compared with the store's each time that the entry is written.
        owners: told which processes exist; None for a node that takes no part in the division of shards.
    """

    def __init__(
        self,
        store: ObjectStore,
        node_id: str,
        *,
        software: str,
        level: int,
        release_level: int,
        clock: HubClock,
        owners: Owners | None = None,
    ) -> None:
        self.node_id = node_id
        self.level = level
        """The cluster's level, as last read."""
        self.release_level = release_level
        self._store = store
        self._software = software
        self._clock = clock
        self._owners = owners
        self._work: Callable[[], Work] = Work
        """Returns the current work of the process; none before it serves edges."""
        self._url = ""
        self._added = 0
        """Number of shards beyond those of the cluster's beginning, as last announced."""
        self._soon = asyncio.Event()
        self._repeats = Repeats()
        beat_s = BEAT_S if owners is None else owners.beat_s
        self._presence = Presence(
            store,
            hub_keys.NODES,
            node_id,
            self,
            pace=Pace(beat_s, ALONE_BEATS * beat_s, ANNOUNCE_INTERVAL_S, FORGET_S),
            monotonic=asyncio.get_running_loop().time,
        )
        self._task = BackgroundTask()

    @property
    def writes(self) -> int:
        """Return the level up to which the node may write."""
        return min(self.level, self.release_level)

    @property
    def is_outdated(self) -> bool:
        """Return whether the cluster has reached a level that this release does not know."""
        return self.level > self.release_level

    @property
    def why_leaving(self) -> str | None:
        """Return why the node gives its shards to others; None if it does not."""
        return None if self._owners is None else self._owners.why_leaving

    async def look(self) -> None:
        """Read the entries of all processes, before the node serves edges.

        Raises:
            StoreError: the store did not answer.
        """
        await self._presence.look(writes=False)

    async def start(
        self, url: str, work: Callable[[], Work] = Work, grown: Callable[[Cluster], Awaitable[None]] = _nothing
    ) -> None:
        """Write the node's entry, and keep the entry and the level up to date.

        Args:
            work: returns the current work of the process.
            grown: called with the cluster when a read finds more shards.

        Raises:
            StoreError: the store did not answer.
        """
        self._url, self._work = url, work
        await self._presence.start()
        self._task.start(self._read_levels(grown), name="cluster-level")

    def look_now(self) -> None:
        """Divide the shards at once, and write the entry for the others, after an operator drained a process."""
        self._presence.hurry()

    async def drain(self, links: Callable[[], int], send_on: Callable[[], Awaitable[None]]) -> None:
        """Give the shards and their links to other processes, if there are any, for ``DRAIN_BEATS`` at most. The node
        serves its edges meanwhile.

        Args:
            links: number of links that are open.
            send_on: redirects edges to processes that have loaded their shards.
        """
        if self._owners is None or not self._owners.others():
            return
        await self._owners.leave()
        deadline = asyncio.get_running_loop().time() + DRAIN_BEATS * self._owners.beat_s
        while True:
            try:
                await self._presence.look()
            except StoreError as error:
                logger.warning("the node leaves, but cannot announce it to others: %s", error)
                return
            await send_on()
            if not links() or not self._owners.is_relieved or asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(min(DRAIN_LOOK_S, self._owners.beat_s))

    async def close(self) -> None:
        """Stop, and delete the entry. The process of an entry that remains counts as gone after five minutes."""
        await self._task.close()
        await self._presence.close()

    def content(self, beat: int) -> bytes:
        """Return the entry of the process."""
        entry = NodeEntry(self.node_id, self._url, self._software, self.release_level, self._clock.now(), beat)
        if self._owners is not None:
            interval_s = self._owners.beat_s if self._owners.beats() else ANNOUNCE_INTERVAL_S
            entry = self._owners.entered(entry, interval_s)
            entry = msgspec.structs.replace(entry, clock_off_s=self._clock.off_ns / 1e9, **self._work()._asdict())
        return msgspec.json.encode(entry)

    async def looked(self, others: Mapping[str, Seen]) -> None:
        """Divide the shards among those that are there."""
        if self._owners is not None:
            await self._owners.look(others)

    def is_watched(self) -> bool | None:
        """Return whether processes of other machines exist, which learn of this one by its entry alone."""
        return None if self._owners is None else self._owners.beats()

    def boot(self) -> int:
        """Return the boot clock."""
        return self._clock.boot()

    def wrote(self, before: int, after: int, written: Written) -> None:
        """Compare the clock with the store's."""
        self._clock.wrote(before, after, written)

    def read_soon(self) -> None:
        """Read the cluster soon: a log has a split that this node may not know."""
        self._soon.set()

    async def _read_levels(self, grown: Callable[[Cluster], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), READ_INTERVAL_S)
            self._soon.clear()
            try:
                await self._read_level(grown)
            except (StoreError, ClusterUnusable) as error:
                count = self._repeats.due(str(error), asyncio.get_running_loop().time())
                if count is not None:
                    logger.warning("the cluster's level: %s%s", error, left_out(count))

    async def _read_level(self, grown: Callable[[Cluster], Awaitable[None]]) -> None:
        cluster = await read_cluster(self._store)
        level = cluster.level
        if cluster.tree.count - cluster.shards > self._added:
            self._added = cluster.tree.count - cluster.shards
            await grown(cluster)
        if level > self.level:
            logger.info("the cluster is at level %d now", level)
            self.level = level
            if self.is_outdated:
                logger.error(
                    "the cluster is at level %d, this release knows level %d: it accepts no more links; use the "
                    "release that the other nodes run",
                    level,
                    self.release_level,
                )


async def finalize(store: ObjectStore, release_level: int, now: int) -> tuple[int, int]:
    """Raise the cluster's level to that of this release, if all running nodes know it.

    Args:
        now: nanoseconds since 1970.

    Returns:
        The level before and after.

    Raises:
        NotFinalized: a running node does not know the level, or the cluster is past it.
        ClusterUnusable: the store holds no cluster.
        StoreError: the store did not answer.
    """
    before = await read_level(store)
    if before > release_level:
        raise NotFinalized(
            f"the cluster is at level {before}, this release knows level {release_level}: use the release that the "
            "nodes run"
        )
    behind = [node for node in await presence.running(store, now) if node.level < release_level]
    if behind and before < release_level:
        raise NotFinalized(f"level {release_level} is unknown to {_named(behind)}")
    await raise_level(store, release_level)
    return before, release_level


def _named(behind: list[NodeEntry]) -> str:
    """Return names of nodes that do not know a level, and advice."""
    nodes = [f"node {each.id} at {each.url or 'an unknown address'}, {each.software}" for each in behind[:NAMED_MAX]]
    more = f"; and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
    advice = "Upgrade these nodes, or wait five minutes when they are gone"
    if any(each.level == 0 for each in behind):
        advice += ". What cannot be read is not a node of Weft: remove it from the store, below `nodes/`"
    return f"{'; '.join(nodes)}{more}. {advice}"


# The hub processes of a store for people, from their entries.

GONE, FOREIGN = "gone", "of another cluster"


def node_views(entries: Iterable[NodeEntry], cluster: Cluster | None, now: int) -> list[NodeOfStore]:
    """Return the processes by machine and number, each with its state and the shards that it owns.

    Args:
        cluster: the store's cluster; None if it has none.
        now: nanoseconds since 1970.
    """
    nodes = sorted(entries, key=lambda entry: (entry.host, entry.process, entry.name, entry.since))
    newest = dict[str, int]()
    for entry in nodes:
        newest[entry.name] = max(newest.get(entry.name, 0), entry.since)
    found = [replace(entry, state=_state(entry, cluster, now, newest[entry.name])) for entry in nodes]
    owned = owned_by(found, cluster.tree.count if cluster is not None else 0, now)
    return [_view(entry, owned.get(entry.id, []), now) for entry in found]


def _state(entry: NodeEntry, cluster: Cluster | None, now: int, newest: int) -> str:
    """Return the state of a process.

    Args:
        now: nanoseconds since 1970.
        newest: start of the youngest process of the same name.
    """
    if cluster is not None and not entry.is_of(cluster.cluster_id.hex(), cluster.restored):
        return FOREIGN
    is_silent = now - entry.seen > MISSED_MAX * entry.interval_s * 1e9
    return GONE if is_silent or (entry.name and entry.since < newest) else entry.state


def _view(entry: NodeEntry, owns: list[int], now: int) -> NodeOfStore:
    intake = (
        None
        if entry.intake is None or entry.state == GONE
        else IntakeOfNode(
            records_per_second=entry.intake.records_per_s,
            bytes_per_second=entry.intake.bytes_per_s,
            seconds=entry.intake.seconds,
        )
    )
    return NodeOfStore(
        id=entry.id,
        name=entry.name,
        host=entry.host,
        process=entry.process,
        url=entry.url,
        advertise=entry.advertise or None,
        state=entry.state,
        owns=owns,
        shards=list(entry.shards),
        links=entry.links,
        tables=entry.tables,
        intake=intake,
        cluster_log=entry.cluster_log,
        cores=entry.weight,
        load=entry.load,
        clock_off_seconds=entry.clock_off_s,
        software=entry.software,
        level=entry.level,
        seen_seconds_ago=max(0, now - entry.seen) / 1e9,
    )
