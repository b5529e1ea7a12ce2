"""All sessions of the node: who has one, and when it ends (MQTT 5.0 sections 3.1.2.4, 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.filters import SessionFilters
from weft.edge_node.sessions.keeping import Keeping
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.session import Session, restored, seconds_left
from weft.edge_node.sessions.wills import Wills
from weft.edge_node.sessions.window_ports import Link
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.edge_node.timer_wheel import TimerWheel
from weft.protocols.mqtt.errors import ConnectRefused
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import Connect, Will
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogFailed, LogFull

_OF_CONNECTION = (
    "disconnected_at", "expires_at", "expiry_s", "identity", "lost_at", "stopped", "username", "version", "will_at",
)  # fmt: skip
"""What CONNECT changes of a session, beside the will."""


class Sessions:
    """All sessions, shared by the listeners. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        subscriptions: Subscriptions,
        limits: SessionLimits,
        counters: Counters,
        keeping: Keeping,
        wills: Wills,
        wheel: TimerWheel,
        clock: Callable[[], float],
    ) -> None:
        """Start without any.

        Args:
            clock: the loop's, in seconds.
        """
        self.limits = limits
        self.filters = SessionFilters(subscriptions, limits, counters, keeping)
        self._subscriptions = subscriptions
        self._counters = counters
        self._keeping = keeping
        self._wills = wills
        self._wheel = wheel
        self._clock = clock
        self._stopping = False
        self._by_id: dict[str, Session] = {}
        self._away: dict[str, Session] = {}
        """Those without a client, longest away first."""

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Session]:
        """All of them."""
        return list(self._by_id.values())

    # --- clients come and go

    def is_connected(self, client_id: str) -> bool:
        """Return whether a client with this identifier has a connection, which ``open`` would close."""
        known = self._by_id.get(client_id)
        return known is not None and known.outbound.link is not None

    def open(self, connect: Connect, client_id: str, identity: Identity | None, link: Link) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it existed (CONNACK's session present).

        Another connection of the client identifier is closed first [MQTT-3.1.4-3]. The client is sent nothing before
        ``resume``. CONNACK waits until what was journaled of the session is durable.

        Raises:
            LogFull, LogFailed: the session cannot be kept: one that existed waits as before, a new one is no more.
            ConnectRefused: there is no room for the will, or too many clients are there; nothing has changed.
        """
        known = self._by_id.get(client_id)
        self._check_room(connect, known)
        if known is not None and known.outbound.link is not None:
            self._counters.takeovers += 1
            known.outbound.link.displace(ReasonCode.SESSION_TAKEN_OVER)
        known = self._by_id.get(client_id)  # displacing ended it if it was to end with its connection
        was_journaled = known is not None and known.journaled
        if known is not None and connect.clean_start:
            self.end(known)
            known = None
        self._wills.settle(client_id)
        session = known or self._create(client_id, connect.version)
        before, will = {name: getattr(session, name) for name in _OF_CONNECTION}, session.will
        self._away.pop(client_id, None)
        self._wheel.cancel(session)
        self._introduce(session, connect, identity, link)
        try:
            self._keeping.opened(session)
        except (LogFull, LogFailed):
            session.outbound.link = None
            if known is None:
                self._wills.keep(session, None)
                self.end(session)
            else:
                self._put_back(session, before, will)
            raise
        session.awaits_journal = session.journaled or was_journaled
        return session, known is not None

    def resume(self, session: Session, link: Link, wire: Wire, inflight_max: int) -> None:
        """The client has its CONNACK: send what it is owed."""
        outbound = session.outbound
        changed = bool(session.entries) and (outbound.wire.kind != wire.kind or outbound.identity is not None)
        outbound.attach(link, wire, min(inflight_max, self.limits.inflight_max))
        for entry, group in session.entries.values():
            if group is not None:
                group.renew(outbound, entry)
        if changed:
            self._subscriptions.changed()
        self._keeping.resume(session)

    def close(self, session: Session, *, with_will: bool = True) -> None:
        """The connection is gone. The session waits for its client, or ends.

        Args:
            with_will: False after a DISCONNECT that deletes the will [MQTT-3.14.4-3].
        """
        if not (with_will or self._stopping):
            self._wills.keep(session, None)
        session.disconnected_at, session.stopped = self._keeping.wall_clock(), self._stopping
        session.outbound.detach()
        self.filters.member_away(session)
        if not session.persistent:
            if not self._stopping:
                self.end(session)
            return
        now, left = self._clock(), seconds_left(session.expiry_s, 0)
        session.expires_at = None if left is None else now + left
        session.will_at = self._wills.due_at(session, now)
        if session.will_at is not None and session.will_at <= now and not self._stopping:
            self._wills.publish(session)
        self._away[session.client_id] = session
        self._keeping.away(session)
        self._wait(session)

    def stop(self) -> None:
        """The node stops: connections that end now were not lost. Their wills stay in the journal, to be published
        when it starts again, unless their clients are back before they are due."""
        self._stopping = True
        self._wills.stop()

    def session_due(self, session: Session) -> float | None:
        """Publish the will of a client that stays away, or end its session; when to look again."""
        now = self._clock()
        if session.expires_at is not None and session.expires_at <= now:
            self._counters.sessions_expired += session.persistent
            self.end(session)
            return None
        if session.will_at is not None and session.will_at <= now:
            self._wills.publish(session)
        return session.next_due()

    def end(self, session: Session) -> None:
        """Forget a session. Its will is published now at the latest (section 3.1.3.2.2)."""
        session.ended = True
        outbound = session.outbound
        outbound.link, outbound.live = None, False
        self._wheel.cancel(session)
        self.filters.remove_all(session)
        self._wills.publish(session)
        self._keeping.ended(session)
        outbound.clear()
        if self._by_id.pop(session.client_id, None) is not None:
            self._counters.sessions -= 1
        self._away.pop(session.client_id, None)

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """DISCONNECT said how long the session is to last from now on."""
        session.expiry_s = min(expiry_s, self.limits.expiry_s_max)
        if session.outbound.persistent != session.persistent:
            session.outbound.persistent = session.persistent
            self._subscriptions.changed()

    # --- after a restart

    def restore(self) -> None:
        """Take up the sessions of the last run. Connections that were open then are lost now: wills are published,
        unless they have a delay."""
        records = self._keeping.recover()
        for record in records:
            if record.client_id.startswith("\0"):
                continue
            session = restored(record, self._outbound(record.client_id, record.version), self)
            self._by_id[record.client_id] = session
            self._counters.sessions += 1
            for text, options in record.subscriptions.items():
                self.filters.restore(session, text, options, record.identifiers.get(text))
            self._wills.keep(session, record.will)
            self._restore_times(session)
        self._keeping.restored(self, records)
        for session in self.all():
            due = session.next_due()
            if due is not None and due <= self._clock():
                self._wheel.cancel(session)
                self.session_due(session)
                self._wait(session)

    def _restore_times(self, session: Session) -> None:
        now, wall = self._clock(), self._keeping.wall_clock()
        gone_at = session.disconnected_at
        if gone_at is None or session.stopped:
            if session.lost_at is None:
                session.lost_at = wall
                self._keeping.lost(session, wall)
            will_since = session.lost_at
        else:
            will_since = gone_at
        left = seconds_left(session.expiry_s, max(0, wall - (gone_at or will_since)) / 1e9)
        session.expires_at = None if left is None else now + left
        session.will_at = self._wills.due_at(session, now - max(0, wall - will_since) / 1e9)
        self._away[session.client_id] = session
        self._wait(session)

    # --- inside

    def _check_room(self, connect: Connect, known: Session | None) -> None:
        if not self._wills.has_room(connect.will, known):
            self._counters.wills_refused += 1
            raise ConnectRefused(ReasonCode.QUOTA_EXCEEDED, "no room for its will", version=connect.version)
        if known is None and len(self._by_id) >= self.limits.sessions_max and not self._away:
            self._counters.sessions_refused += 1
            raise ConnectRefused(ReasonCode.QUOTA_EXCEEDED, "too many sessions are connected", version=connect.version)

    def _introduce(self, session: Session, connect: Connect, identity: Identity | None, link: Link) -> None:
        """The session is this connection's now."""
        session.version = connect.version
        session.expiry_s = self._expiry_s(connect)
        session.identity = identity
        session.username = None if identity is None else identity.username
        self._wills.keep(session, connect.will)
        session.expires_at, session.disconnected_at, session.lost_at, session.stopped = None, None, None, False
        session.outbound.link = link
        _tell_outbound(session)

    def _put_back(self, session: Session, before: dict[str, Any], will: Will | None) -> None:
        """The connection could not be let in: the session waits as it did before."""
        self._wills.keep(session, will)
        for name, value in before.items():
            setattr(session, name, value)
        _tell_outbound(session)
        self._away[session.client_id] = session
        self._wait(session)

    def _create(self, client_id: str, version: int) -> Session:
        session = Session(self._outbound(client_id, version), version, self)
        self._by_id[client_id] = session
        self._counters.sessions += 1
        if len(self._by_id) > self.limits.sessions_max and self._away:
            self._counters.sessions_evicted += 1
            self.end(next(iter(self._away.values())))
        return session

    def _outbound(self, client_id: str, version: int) -> Outbound:
        limits = self.limits
        return Outbound(client_id, Wire(version), self._keeping.deliveries, limits.inflight_max, limits.queue_bytes_max)

    def _expiry_s(self, connect: Connect) -> int:
        if connect.version == Version.V5:
            return min(connect.properties.session_expiry_interval or 0, self.limits.expiry_s_max)
        return 0 if connect.clean_start else min(self.limits.expiry_s_of_old_versions, self.limits.expiry_s_max)

    def _wait(self, session: Session) -> None:
        due = session.next_due()
        if due is not None and not (session.ended or self._stopping):
            self._wheel.set(session, due)


def _tell_outbound(session: Session) -> None:
    """What deliveries must know of the client."""
    outbound, identity = session.outbound, session.identity
    outbound.persistent = session.persistent
    outbound.identity = None if identity is None or identity.unrestricted else identity
