"""All sessions of the node, and their beginning and end (MQTT 5.0 sections 3.1.2.4, 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.bounds import Bound, Owner, OwnerKind, Quota, Refusals, RoundRobin, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.filters import SessionFilters
from weft.edge_node.sessions.journal import DeliveryJournal, SessionJournal
from weft.edge_node.sessions.log_readers import LogReaders, StoredMessages
from weft.edge_node.sessions.packets_out import ClientConnection, WindowContext, Wire
from weft.edge_node.sessions.persistence import Persistence, ReaderPositions
from weft.edge_node.sessions.records import ChangeRates, SessionRecord, SessionShares
from weft.edge_node.sessions.retained import RetainedMessages
from weft.edge_node.sessions.session import Absence, AwaySessions, Match, RetainedDelivery, Session, Terms, seconds_left
from weft.edge_node.sessions.wills import Wills, is_storable
from weft.edge_node.sessions.window import ClientWindow
from weft.edge_node.subscriptions.limits import QueueBudget
from weft.edge_node.subscriptions.message import Outbox
from weft.edge_node.subscriptions.subscriptions import (
    FilterStarts,
    SharedSubscriptionContext,
    SharedSubscriptions,
    Subscriptions,
)
from weft.edge_node.timing import TimerWheel
from weft.protocols.mqtt.packets import Connect, ConnectRefused, ReasonCode, Subscription, Version, Will
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog

# The parts of sessions, assembled once for a node.


@dataclass(frozen=True, slots=True)
class PersistedState:
    """State kept across restarts, and the log (``BrokerState`` has the rest)."""

    log: SegmentLog
    journal: SessionJournal
    changes: ChangeRates
    retained: RetainedMessages


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Parts that deliver messages to clients of any protocol, also to slow and absent ones."""

    budget: QueueBudget
    shares: SessionShares
    starts: FilterStarts
    messages: StoredMessages
    readers: LogReaders


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Every part of sessions. Each is complete after its construction."""

    subscriptions: Subscriptions
    shared: SharedSubscriptions
    filters: SessionFilters
    windows: WindowContext
    readers: LogReaders
    positions: ReaderPositions
    persistence: Persistence
    retained: RetainedDelivery
    wills: Wills
    shares: SessionShares
    journal: SessionJournal


def make_delivery(  # noqa: PLR0917
    segment_log: SegmentLog,
    ingest: Ingest,
    subscriptions: Subscriptions,
    backlog: Backlog,
    outbox: Outbox,
    limits: EdgeLimits,
    refusals: Refusals,
    counters: Counters,
    wall_clock: Callable[[], int],
) -> DeliveryContext:
    """Create the parts that all protocols share.

    Args:
        refusals: counts refusals because of shares.
        wall_clock: nanoseconds since 1970.
    """
    starts = FilterStarts()
    messages = StoredMessages(segment_log, ingest, wall_clock, counters)
    queues = Quota.of("limits.session_queues", limits.session_queues_bytes, limits.user_share, "messages that wait")
    return DeliveryContext(
        QueueBudget(queues.total, queues.share),
        SessionShares(limits, refusals),
        starts,
        messages,
        LogReaders(segment_log, ingest, subscriptions, messages, backlog, starts, outbox, counters),
    )


def make_context(  # noqa: PLR0917
    kept: PersistedState,
    delivery: DeliveryContext,
    ingest: Ingest,
    subscriptions: Subscriptions,
    outbox: Outbox,
    round_robin: RoundRobin,
    match_retained: Match,
    limits: EdgeLimits,
    counters: Counters,
    wall_clock: Callable[[], int],
) -> SessionContext:
    """Create the parts, from the log upwards.

    Args:
        round_robin: queue of work that takes longer than a turn.
        match_retained: filter -> retained messages, ``$SYS`` among them.
        wall_clock: nanoseconds since 1970.
    """
    budget, shares, starts = delivery.budget, delivery.shares, delivery.starts
    messages, readers = delivery.messages, delivery.readers
    shared = SharedSubscriptions(
        subscriptions,
        SharedSubscriptionContext(
            counters, budget, outbox, messages.read, readers.shared_behind, limits.session_queue_bytes, set()
        ),
    )
    positions = ReaderPositions(kept.journal, ingest, readers, starts, shared)
    persistence = Persistence(kept.journal, kept.changes, ingest, readers, starts)
    retained = RetainedDelivery(match_retained, messages.keep_retained, round_robin)
    journal = DeliveryJournal(kept.log, kept.journal, positions.note_share, outbox)
    windows = WindowContext(counters, budget, outbox, journal, wall_clock, limits.inflight, limits.session_queue_bytes)
    return SessionContext(
        subscriptions,
        shared,
        SessionFilters(subscriptions, shared, persistence, positions, retained, round_robin, limits, shares, counters),
        windows,
        readers,
        positions,
        persistence,
        retained,
        Wills(ingest, kept.retained, kept.journal, persistence, counters, wall_clock, shares, round_robin),
        shares,
        kept.journal,
    )


# Sessions and shared subscriptions of the last run, restored at the start.


def recover(context: SessionContext, adopt: Callable[[SessionRecord], Session]) -> None:
    """Restore every record of the journal, with a reader for the missed messages of each.

    Args:
        adopt: creates a session from a record, without its subscriptions and its place in the log.
    """
    for record in context.journal.recover():
        session = adopt(record)
        for text, options in record.subscriptions.items():
            context.filters.restore(session, text, options, record.identifiers.get(text))
        context.persistence.restore_starts(session, record)
        if session.persistent:
            context.readers.restore(session.window, record)
    # After the sessions, which are the members: their persistence and their messages in flight are known now.
    by_name = {record.name: record for record in context.journal.recover_shared()}
    for shared in context.shared.all():
        kept = by_name.get(shared.name)
        if kept is not None:
            context.readers.restore_shared(shared, kept)
        elif shared.persistent:
            context.readers.shared_behind(shared, None)


LOOKED_AT_MAX = 1_000
"""Maximum number of an owner's absent sessions that are checked for one that can make room."""
SHARED_IDLE_MAX = 100
"""Shared subscriptions whose position is journaled in a round although they delivered nothing."""


class _Before(NamedTuple):
    """A session as it was before a CONNECT that could not be accepted."""

    terms: Terms
    absence: Absence | None
    will: Will | None
    will_at: float | None


class Sessions:
    """All sessions, shared by the listeners. Belongs to the event loop's thread."""

    def __init__(
        self,
        context: SessionContext,
        limits: EdgeLimits,
        counters: Counters,
        wheel: TimerWheel,
        clock: Callable[[], float],
    ) -> None:
        """Start without any.

        Args:
            clock: the loop's, in seconds.
        """
        self.filters = context.filters
        self._context = context
        self._expiry_s_max = round(limits.session_expiry_s)
        """Longest time that a session outlives its connection. It is the lifetime of sessions without clean session
        before MQTT 5.0, whose clients choose it themselves."""
        self._counters = counters
        self._wheel = wheel
        self._clock = clock
        self._wall_clock = context.windows.wall_clock
        self._stopping = False
        self._by_id: dict[str, Session] = {}
        self._away = AwaySessions()
        self.filters.make_room = self._make_room_for

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Session]:
        """Return all sessions."""
        return list(self._by_id.values())

    # --- clients come and go

    def is_connected(self, client_id: str) -> bool:
        """Return whether a client with this identifier has a connection, which ``open`` would close."""
        known = self._by_id.get(client_id)
        return known is not None and known.connected

    def open(
        self,
        connect: Connect,
        client_id: str,
        identity: Identity | None,
        connection: ClientConnection,
        address: str = "",
    ) -> tuple[Session, bool]:
        """Return the session of a client that connects, and whether it existed (CONNACK's session present).

        Another connection of the client identifier is closed first [MQTT-3.1.4-3]. The client is sent nothing before
        ``resume``. CONNACK waits until the session's journal entries are durable.

        Args:
            address: of the client; empty for this machine.

        Raises:
            LogFull, LogFailed: the session cannot be kept: an existing one waits as before, a new one is deleted.
            ConnectRefused: there is no room for the will, or too many clients are connected; nothing has changed.
        """
        if (known := self._by_id.get(client_id)) is not None and known.has_expired(self._clock()):
            self._on_due(known)  # The wheel has not reached it yet. An expired session is not resumed [MQTT-3.1.2-23].
            known = None
        username = None if identity is None else identity.username
        # Before any change: a refused CONNECT must leave the session and its present connection as they are.
        self._check_room(connect, known, user_or_address(username, address))
        if known is not None and known.connected:
            self._counters.takeovers += 1
            # Devices reconnect before the node notices that their former connection is dead. Refusing the new one would
            # lock them out for the keep-alive.
            known.window.displace(ReasonCode.SESSION_TAKEN_OVER)
        known = self._by_id.get(client_id)  # displacing the client ended a session that ends with its connection
        persistence, wills = self._context.persistence, self._context.wills
        was_journaled = known is not None and persistence.knows(known)
        if known is not None and connect.clean_start:
            self.end(known)
            known = None
        wills.settle(client_id)  # a due will of the last connection, before the new one replaces it
        session = known or self._new(client_id, connect.version, user_or_address(username, address))
        # A CONNECT that the journal cannot take must leave everything as it was, and the client tries again.
        before = _Before(session.terms, session.absence, session.will, session.will_at)
        self._away.discard(session)
        self._wheel.cancel(session)
        session.agree(Terms(connect.version, self._expiry_s(connect), username, identity))
        session.be_absent(None)
        wills.keep(session, connect.will)
        session.window.open(connection)
        self._context.shares.connections.hold(session.owner)
        try:
            persistence.opened(session)
        except (LogFull, LogFailed):
            self._lose(session)
            if known is None:
                wills.keep(session, None)
                self.end(session)
            else:
                self._put_back(session, before)
            raise
        # CONNACK says whether a session is present. A client may rely on it, so the answer waits until that survives a
        # crash.
        session.awaits_journal = was_journaled or persistence.knows(session)
        return session, known is not None

    def resume(self, session: Session, wire: Wire, inflight_max: int) -> None:
        """Send the client's pending messages: it has its CONNACK."""
        session.window.greet(wire, inflight_max)
        if session.subscriptions and session.rules is not None:
            self._context.subscriptions.changed()  # another user may read other topics
        self._context.readers.resume(session.window)

    def send_retained(self, session: Session, subscribed: Iterable[tuple[Subscription, int]]) -> None:
        """Begin to send the retained messages of new subscriptions; shared ones get none (section 4.8.2).

        Args:
            subscribed: each with the number of the last change of retained messages before it.
        """
        for options, change in subscribed:
            subscription, shared = session.subscriptions.get(options.filter, (None, None))
            if subscription is not None and shared is None:
                self._context.retained.send(session.window, subscription, change)
        session.window.pump()
        self._context.windows.outbox.flush()

    def close(self, session: Session, *, with_will: bool = True) -> None:
        """Wait for another connection of the client, or end the session: this connection is gone.

        Args:
            with_will: False after a DISCONNECT that deletes the will [MQTT-3.14.4-3].
        """
        context, now = self._context, self._clock()
        if not (with_will or self._stopping):
            context.wills.keep(session, None)
        self._lose(session)
        context.retained.forget(session.window)
        left = seconds_left(session.expiry_s, 0) if session.persistent else None
        session.be_absent(Absence(self._wall_clock(), self._stopping, expires_at=None if left is None else now + left))
        self.filters.member_away(session)
        context.windows.outbox.flush()
        if not session.persistent:
            if not self._stopping:
                self.end(session)
            return
        if session.window.catch_up is None:  # before the will is published: the session may be subscribed to it, too
            context.readers.fall_behind(session.window, None)
        context.wills.wait(session, now)
        if session.will_at is not None and session.will_at <= now and not self._stopping:
            context.wills.publish(session)
        self._away.add(session)
        # Noted later where possible: a client that flaps costs its user a journal entry for each connection otherwise.
        context.persistence.closed(session, at_once=self._stopping)
        # Its record now has the messages that it took over from another member of a shared subscription.
        context.positions.note_if_moved(shared for _, shared in session.subscriptions.values() if shared is not None)
        self._wait(session)

    def stop(self) -> None:
        """Treat connections that end from now on as not lost: the node stops. Their wills stay in the journal, to be
        published when it starts again, unless their clients are back before they are due."""
        self._stopping = True
        self._context.persistence.note_late(at_once=True)
        self._context.wills.stop()

    def stop_reading(self) -> None:
        """Stop reading the log, and journal all positions."""
        for session in self.all():
            session.window.stop_reading()
        for shared in self._context.shared.all():
            shared.stop_reading()
        self.note_positions()

    def add_streams(self, ends: Mapping[int, int]) -> None:
        """Add streams to sessions that read from the log. ``ends`` maps each to the offset at which sessions start."""
        for session in self.all():
            if session.window.catch_up is not None:
                session.window.catch_up.add(dict(ends))
        for shared in self._context.shared.all():
            shared.add_streams(dict(ends))

    def note_positions(self) -> None:
        """Journal all positions at once."""
        for _ in self._context.positions.note_all(self.all()):
            pass

    def positions_to_note(self) -> Iterator[None]:
        """Journal the positions that have moved, one at each step; begin it every second or so."""
        return self._context.positions.note_all(self.all(), SHARED_IDLE_MAX)

    def permissions_changed(self) -> None:
        """Check the clients' rights again, and close clients that may no longer connect, with their wills published."""
        for session in self.all():
            # A user that was removed is disconnected at once. Its session stays, as an operator may have made a
            # mistake.
            if session.connected and session.identity is not None and not session.identity.admitted:
                self._counters.clients_expelled += 1
                session.window.displace(ReasonCode.NOT_AUTHORIZED)
        self._context.subscriptions.changed()

    def end(self, session: Session) -> None:
        """End a session. Its will is published now at the latest (section 3.1.3.2.2)."""
        context = self._context
        session.end()
        self._lose(session)
        self._wheel.cancel(session)
        self.filters.remove_all(session)
        context.wills.publish(session)
        context.positions.forget(session.client_id)
        context.persistence.ended(session)
        context.retained.forget(session.window)
        session.window.end()
        if self._by_id.pop(session.client_id, None) is not None:
            self._counters.sessions -= 1
            context.shares.sessions.free(session.owner)
        self._away.discard(session)

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """Set the expiry of a session from DISCONNECT."""
        was_persistent = session.persistent
        session.agree(replace(session.terms, expiry_s=min(expiry_s, self._expiry_s_max)))
        if session.persistent != was_persistent:
            self._context.subscriptions.changed()

    # --- after a restart

    def restore(self) -> None:
        """Restore the sessions of the last run. Its open connections are lost: publish their wills, unless delayed."""
        recover(self._context, self._adopt)
        for session in self.all():
            due = session.next_due()
            if due is not None and due <= self._clock():
                self._wheel.cancel(session)
                self._on_due(session)
                self._wait(session)

    def _adopt(self, record: SessionRecord) -> Session:
        session = self._new(record.client_id, record.version, user_or_address(record.username, record.address or ""))
        session.restore(record)
        self._context.persistence.restored(session)
        self._context.wills.keep(session, record.will)
        self._restore_times(session, record)
        return session

    def _restore_times(self, session: Session, record: SessionRecord) -> None:
        now, wall = self._clock(), self._wall_clock()
        gone_at, lost_at = record.disconnected_at, record.lost_at
        # The node ended while the client was connected. Its absence begins with this start, because a node that was
        # down for a week must not let sessions expire for it.
        if gone_at is None or record.stopped:
            if lost_at is None:
                lost_at = wall
                self._context.persistence.lost(session, wall)
            will_since = lost_at
        else:
            will_since = gone_at
        left = seconds_left(session.expiry_s, max(0, wall - (gone_at or will_since)) / 1e9)
        session.be_absent(Absence(gone_at, record.stopped, lost_at, None if left is None else now + left))
        self._context.wills.wait(session, now - max(0, wall - will_since) / 1e9)
        self._away.add(session)
        self._wait(session)

    # --- inside

    def _on_due(self, session: Session) -> float | None:
        """Publish the will of a client that stays away, or end its session; return the next time to call."""
        if session.has_expired(now := self._clock()):
            self._counters.sessions_expired += session.persistent
            self.end(session)
            return None
        if session.will_at is not None and session.will_at <= now:
            self._context.wills.publish(session)
        return session.next_due()

    def _check_room(self, connect: Connect, known: Session | None, owner: Owner) -> None:
        shares, will = self._context.shares, connect.will
        stays = known is not None and not connect.clean_start
        owner = known.owner if stays and known is not None else owner
        is_new = known is None or known.owner != owner
        takes_over = known is not None and known.connected
        # Addresses have a bound of their own, at the listener.
        if owner.kind is OwnerKind.USER and not takes_over and shares.connections.is_own_share_full(owner):
            shares.connections.refuse(owner)
            self._counters.connections_refused += 1
            reason = "too many clients of its user are connected"
            raise ConnectRefused(ReasonCode.QUOTA_EXCEEDED, reason, version=connect.version)
        if will is not None:
            more = self._context.wills.bytes_more(will, None if is_new else known)
            # The user that has most makes room with its absent sessions. One that is within its share is not refused
            # because others took much.
            has_room = self._make_room(shares.will_bytes, owner, more, lambda each: each.will is not None)
            if not has_room:
                shares.will_bytes.refuse(owner, more)
            if not (has_room and is_storable(will)):
                self._counters.wills_refused += 1
                raise ConnectRefused(ReasonCode.QUOTA_EXCEEDED, "no room for its will", version=connect.version)
        if is_new and not self._has_room_for_session(owner):
            shares.sessions.refuse(owner)
            self._counters.sessions_refused += 1
            raise ConnectRefused(ReasonCode.QUOTA_EXCEEDED, "too many sessions are connected", version=connect.version)

    def _has_room_for_session(self, owner: Owner) -> bool:
        """Make room for a session where that is fair: a flood of one owner's sessions evicts its own."""
        bound = self._context.shares.sessions
        if bound.fits(owner):
            return True
        if bound.is_own_share_full(owner):
            # A flood of sessions evicts its own user's, and never those of others.
            victim = self._away.longest_of(owner)
        else:
            heavier = bound.heavier(owner)
            longest = self._away.longest()
            victim = None if heavier is None else self._away.longest_of(heavier)
            # Never from one that has less, or two users would evict each other in turn.
            if victim is None and longest is not None and bound.taken(longest.owner) > bound.taken(owner):
                victim = longest
        if victim is not None:
            self._evict(victim)
        return bound.fits(owner)

    def _make_room_for(self, bound: Bound, session: Session, units: int) -> bool:
        return self._make_room(bound, session.owner, units, lambda each: bool(each.subscriptions))

    def _make_room(self, bound: Bound, owner: Owner, units: int, has_some: Callable[[Session], bool]) -> bool:
        """Return whether so many units fit; in a full total, owners that have more lose absent sessions first."""
        while not bound.fits(owner, units) and not bound.is_own_share_full(owner, units):
            heavier = bound.heavier(owner)
            if heavier is None or heavier == owner:
                return False
            used = bound.used
            # Bounded: with a hundred thousand absent sessions one CONNECT must not look at all of them.
            for session in self._away.some_of(heavier, LOOKED_AT_MAX):
                if has_some(session):
                    self._evict(session)
                    break
            if bound.used >= used:  # nothing to evict, or a will that must be stored first
                return False
        return bound.fits(owner, units)

    def _evict(self, session: Session) -> None:
        self._counters.sessions_evicted += 1
        self.end(session)

    def _lose(self, session: Session) -> None:
        if session.connected:
            self._context.shares.connections.free(session.owner)
        session.window.lose()

    def _put_back(self, session: Session, before: _Before) -> None:
        """Restore the session's absence as it was before: the connection was refused."""
        self._context.wills.keep(session, before.will)
        session.keep_will(before.will, before.will_at)
        session.agree(before.terms)
        session.be_absent(before.absence)
        self._away.add(session)
        self._wait(session)

    def _new(self, client_id: str, version: int, owner: Owner) -> Session:
        window = ClientWindow(client_id, Wire(version), self._context.windows, self._context.readers.fall_behind, owner)
        session = self._by_id[client_id] = Session(window, version, self._on_due, owner)
        self._counters.sessions += 1
        self._context.shares.sessions.hold(owner)
        return session

    def _expiry_s(self, connect: Connect) -> int:
        if connect.version == Version.V5:
            return min(connect.properties.session_expiry_interval or 0, self._expiry_s_max)
        return 0 if connect.clean_start else self._expiry_s_max

    def _wait(self, session: Session) -> None:
        due = session.next_due()
        if due is not None and not (session.ended or self._stopping):
            self._wheel.set(session, due)
