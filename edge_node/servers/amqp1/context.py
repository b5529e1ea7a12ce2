"""Objects that all AMQP 1.0 connections of a node share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from weft.bounds import Bound, Owner
from weft.bounds.bound import OwnerKind
from weft.edge_node.access.identity import ALL, Permission
from weft.edge_node.servers.amqp1.supplies import OpenConnection, TopicSubscription
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.sessions.filters import cost
from weft.edge_node.streams import AMQP_LINKS_STREAM, RAW_PREFIX, STATE_STREAMS, raw_stream
from weft.edge_node.subscriptions.limits import QueueAccount
from weft.edge_node.subscriptions.message import Positions
from weft.protocols.batch import records
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.queues.queues import Queues
    from weft.edge_node.servers.amqp1.engine import EngineSettings, OutgoingLink


# Links that outlive their connection: their place in the log, kept as records of an internal stream.
#
# A record has the whole state of one link, under the link's name, so the last one counts; an empty one marks an ended
# link. When the records outweigh the links, all links are written again, and older records are released.

READ_BYTES = 1 << 20
RECORDS_MIN = 256
"""Fewest records after which all links are written again."""
OWED_MAX = 4096
"""Messages of one link that are remembered as sent and not settled; beyond it the link resumes at the oldest."""
VERSION = 1

log = logging.getLogger(__name__)


class LinkName(NamedTuple):
    """Identity of a link: two containers of one user may have links of the same name."""

    owner: Owner
    container: str
    link: str


class PersistedLink(msgspec.Struct, array_like=True):
    """State of one link in a record."""

    version: int
    owner: tuple[str, str]
    container: str
    link: str
    address: str
    filter: str = ""
    positions: dict[str, int] = {}
    """Name of a stream -> the first unsent seq."""
    owed: dict[str, list[int]] = {}
    """Name of a stream -> numbers of unsettled messages."""
    is_attached: bool = False
    gone_ns: int = 0
    """Time at which it was detached, ns since 1970."""
    keep_s: float = 0.0
    """Seconds for which it is kept after that."""

    @property
    def name(self) -> LinkName:
        """Return the identity of the link."""
        return LinkName(Owner(OwnerKind(self.owner[0]), self.owner[1]), self.container, self.link)


class PersistedLinks:
    """All kept links. Belongs to the event loop's thread."""

    def __init__(
        self, segment_log: SegmentLog, shares: Bound, wall_clock: Callable[[], int], keep_s_max: float
    ) -> None:
        """Start without any.

        Args:
            shares: each link counts as a session that outlives its connection.
            wall_clock: nanoseconds since 1970.
            keep_s_max: longest time that a detached link is kept.
        """
        self._log = segment_log
        self._shares = shares
        self._wall_clock = wall_clock
        self.keep_s_max = keep_s_max
        self._links: dict[LinkName, PersistedLink] = {}
        self._live: dict[LinkName, Callable[[PersistedLink], None]] = {}
        """Attached link -> function that updates its state."""
        self._changed: set[LinkName] = set()
        self._stream: int | None = None
        self._records = 0
        self.crashed: set[LinkName] = set()
        """Links that were attached when the last run ended: more was sent to them than their state has."""
        self.on_end: Callable[[LinkName], None] = lambda _: None
        """Called with links that have ended."""
        self.ends: Positions = {}
        """Ends of the streams at the start."""

    def load(self) -> None:
        """Read the links of the last run, once."""
        if AMQP_LINKS_STREAM not in self._log.streams():
            return
        stream = self._log.stream(AMQP_LINKS_STREAM)
        seq, end = 0, self._log.durable_end(stream)
        while seq < end and (batches := self._log.read(stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    self._learn(record.key, record.payload)
        self._stream, self._records = stream, end
        for name, kept in self._links.items():
            self._shares.hold(name.owner)
            if kept.is_attached:
                self.crashed.add(name)
                kept.is_attached, kept.gone_ns = False, self._wall_clock()
        self.ends = {number: self._log.next_seq(number) for number in self._log.streams().values()}
        for kept in self._links.values():
            self._forget_lost(kept)

    def _forget_lost(self, kept: PersistedLink) -> None:
        """Forget messages that a crash lost: it may have kept a link's record and lost the messages of the same commit,
        whose numbers go to others."""
        streams = self._log.streams()
        ends = {
            stream: self.ends[streams[stream]] if stream in streams else 0 for stream in {**kept.positions, **kept.owed}
        }
        kept.positions = {stream: min(seq, ends[stream]) for stream, seq in kept.positions.items()}
        kept.owed = {stream: [seq for seq in seqs if seq < ends[stream]] for stream, seqs in kept.owed.items()}

    def _learn(self, key: bytes, payload: bytes) -> None:
        try:
            if payload:
                kept = msgspec.msgpack.decode(payload, type=PersistedLink)
                self._links[kept.name] = kept
            else:
                owner, container, link = msgspec.msgpack.decode(key, type=tuple[tuple[str, str], str, str])
                self._links.pop(LinkName(Owner(OwnerKind(owner[0]), owner[1]), container, link), None)
        except (msgspec.MsgspecError, ValueError) as error:
            log.error("the place of an AMQP 1.0 link cannot be read; the link is forgotten: %s", error)

    def all(self) -> list[tuple[LinkName, PersistedLink]]:
        """Return all kept links."""
        return list(self._links.items())

    def get(self, name: LinkName) -> PersistedLink | None:
        """Return the state of a link."""
        return self._links.get(name)

    def is_attached(self, name: LinkName) -> bool:
        """Return whether a connection has the link now."""
        return name in self._live

    def attach(
        self, name: LinkName, kept: PersistedLink, update: Callable[[PersistedLink], None], keep_s: float
    ) -> bool:
        """Keep a link from now on; return whether its owner may have one more.

        Args:
            update: updates the state before it is written.
            keep_s: time for which it is kept when its connection ends, also if the node ends with it.
        """
        if name not in self._links:
            if not self._shares.take(name.owner):
                self._shares.refuse(name.owner)
                return False
            self._links[name] = kept
        self._live[name] = update
        self._links[name].is_attached = True
        self._links[name].keep_s = min(keep_s, self.keep_s_max)
        self._changed.add(name)
        self.save()
        return True

    def detach(self, name: LinkName, keep_s: float) -> None:
        """Note that a link has no connection any more."""
        kept, update = self._links.get(name), self._live.pop(name, None)
        if kept is None or update is None:
            return
        update(kept)
        kept.is_attached, kept.gone_ns = False, self._wall_clock()
        kept.keep_s = min(keep_s, self.keep_s_max)
        self.crashed.discard(name)
        self._changed.add(name)

    def end(self, name: LinkName) -> None:
        """Forget a link for good."""
        self._live.pop(name, None)
        if self._links.pop(name, None) is not None:
            self._shares.free(name.owner)
            self._changed.add(name)
            self.on_end(name)

    def changed(self, name: LinkName) -> None:
        """Schedule a link's state for the next ``save``."""
        self._changed.add(name)

    def save(self) -> None:
        """Write the changes, and forget links whose clients did not come back."""
        now = self._wall_clock()
        for name, kept in list(self._links.items()):
            if name not in self._live and now - kept.gone_ns > kept.keep_s * 1e9:
                self.end(name)
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        if self._records > max(RECORDS_MIN, 4 * len(self._links)):
            self._write(set(self._links) | changed, is_copy=True)
        else:
            self._write(changed)

    def _write(self, names: set[LinkName], *, is_copy: bool = False) -> None:
        if self._stream is None:
            self._stream = self._log.stream(AMQP_LINKS_STREAM)
        stream = self._stream
        keys, payloads = [], []
        for name in names:
            kept = self._links.get(name)
            if kept is not None and name in self._live:
                self._live[name](kept)
            keys.append(msgspec.msgpack.encode((tuple(name.owner), name.container, name.link)))
            payloads.append(b"" if kept is None else msgspec.msgpack.encode(kept))
        try:
            first = self._log.append(stream, self._wall_clock(), keys, payloads)
        except LogError as error:
            log.warning("the places of AMQP 1.0 links could not be written: %s; they are written later", error)
            self._changed |= names
            return
        self._records += len(keys)
        if is_copy:
            self._records = len(keys)
            self._log.on_durable(
                lambda error: self._log.release(stream, RangeSet([(0, first)])) if error is None and first else None
            )


FRAME_BYTES_MAX = 64 << 10
"""Longest frame. An incomplete frame is held in memory, and most clients use the size that they are offered."""
IDLE_S = 60.0
"""Seconds of silence after which a client is treated as dead; it is asked to send a frame every 30 s."""
SESSIONS_MAX = 256
"""Sessions of one connection: go-amqp hangs where it finds fewer than it wants, and its suite wants a hundred."""
SESSION_LINKS = 8
"""Links that a session counts as: the engine takes 11 KB for one, also when it has none."""
LINKS_MAX = 256
"""Links of one connection, on both sides; further ones are refused."""


class _Nobody:
    """Identity for subscriptions whose client has not come back since a restart: its rights are checked at its
    return."""

    username: str | None = None
    unrestricted = True
    admitted = True

    def may_publish(self, topic: bytes) -> bool:  # noqa: ARG002
        return True

    def may_subscribe(self, topic_filter: str) -> bool:  # noqa: ARG002
        return True

    def may_read(self, topic: bytes) -> bool:  # noqa: ARG002
        return True

    def queue_rights(self, topic: str) -> Permission | None:  # noqa: ARG002
        return ALL


NOBODY = _Nobody()


class Amqp1Context:
    """Parts created once for a node with a listener for AMQP. Belongs to the event loop's thread."""

    def __init__(
        self,
        context: ProtocolContext,
        segment_log: SegmentLog,
        container: str,
        software: str,
        queues: Queues | None = None,
    ) -> None:
        """Connect context and log.

        Args:
            container: the node's container identifier: its name.
            queues: None on a node without queues.
        """
        limits = context.settings.limits
        self.context = context
        self.log = segment_log
        self.queues = queues
        self.container = container
        self.software = software
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.message_bytes_max = limits.message_bytes
        self.pages = segment_log.page_reader()
        self.connections: set[OpenConnection] = set()
        shares = context.delivery.shares
        self.links = Bound(shares.filters.quota._replace(what="links and sessions of AMQP 1.0"), context.refusals)
        """Links and sessions of all clients."""
        self.subscriptions: dict[LinkName, TopicSubscription] = {}
        """Subscriptions to topics that outlive their connections."""
        self.holders: dict[LinkName, OutgoingLink] = {}
        """Links that are attached now and outlive their connections."""
        self.kept = PersistedLinks(segment_log, shares.sessions, context.wall_clock, round(limits.session_expiry_s))

    def start(self) -> None:
        """Restore the links of the last run."""
        self.kept.load()
        self.kept.on_end = self._ended
        for name, kept in self.kept.all():
            if kept.filter:
                self._adopt(name, kept)
        self.context.call_later(self.context.settings.positions_interval_s, self._look_after_links)

    def close(self) -> None:
        """Close every connection. Unsettled messages are sent again."""
        for connection in list(self.connections):
            connection.end("amqp:connection:forced", "the node stops")
        self.kept.save()

    def permissions_changed(self) -> None:
        """Check the clients' rights again: users or access rules were read again."""
        for connection in list(self.connections):
            connection.permissions_changed()

    def engine_settings(self) -> EngineSettings:
        """Return the settings that ``open`` announces. The engine must be loaded."""
        from weft.edge_node.servers.amqp1.engine import EngineSettings

        return EngineSettings(
            container=self.container, frame_bytes_max=self.frame_bytes_max, idle_s=IDLE_S, sessions_max=SESSIONS_MAX
        )

    def stream_in(self, name: str) -> int | None:
        """Return the stream of the log for messages to a stream; None when clients cannot write it."""
        known, taking = self.log.streams(), self.context.routing.taking
        return next((known[each] for each in (raw_stream(name), name) if known.get(each, -1) in taking), None)

    def stream_out(self, name: str) -> int | None:
        """Return the stream of the log that a client may read under a name."""
        if name in STATE_STREAMS or name.startswith(RAW_PREFIX):
            return None
        return self.log.streams().get(name)

    def unsubscribe(self, owner: Owner, subscription: TopicSubscription) -> None:
        """End a subscription."""
        shares = self.context.delivery.shares
        subscription.finish()
        shares.filter_bytes.free(owner, cost(subscription.filter))
        shares.match_cost.free(owner, subscription.filter)
        self.context.counters.subscriptions -= 1

    def restore(self, subscription: TopicSubscription, name: LinkName, kept: PersistedLink) -> None:
        """Resume a subscription at the position of the node's last run."""
        numbers = self.log.streams()
        positions = {numbers[stream]: seq for stream, seq in kept.positions.items() if stream in numbers}
        owed = [(numbers[stream], seq) for stream, seqs in kept.owed.items() if stream in numbers for seq in seqs]
        subscription.resume(positions, owed)
        if name in self.kept.crashed:
            subscription.doubtful = self.kept.ends

    def _adopt(self, name: LinkName, kept: PersistedLink) -> None:
        """Subscribe for a client that is away: messages that no stream stores are stored for it meanwhile."""
        context, shares = self.context, self.context.delivery.shares
        delivery = context.delivery
        subscription = TopicSubscription(
            f"{name.container[:80]}/{name.link[:80]}",
            kept.filter,
            NOBODY,
            context.subscriptions,
            context.delivery.readers,
            context.outbox,
            context.counters,
            QueueAccount(delivery.budget, context.settings.limits.session_queue_bytes, name.owner),
            persistent=True,
        )
        self.restore(subscription, name, kept)
        shares.filter_bytes.hold(name.owner, cost(kept.filter))
        shares.match_cost.hold(name.owner, kept.filter)
        context.counters.subscriptions += 1
        subscription.begin()
        self.subscriptions[name] = subscription

    def _ended(self, name: LinkName) -> None:
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            self.unsubscribe(name.owner, subscription)

    def _look_after_links(self) -> None:
        self.kept.save()
        self.context.call_later(self.context.settings.positions_interval_s, self._look_after_links)
