"""All sessions of the node: who has one, what it is subscribed to, when it ends (MQTT 5.0 sections 3.1.2.4, 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from edge_node.broker_ports import NEVER_EXPIRES, Identity
from edge_node.counters import Counters
from edge_node.outbound import Outbound
from edge_node.outbound_ports import Link
from edge_node.publish_packets import Wire
from edge_node.session import Session, restored, seconds_left
from edge_node.session_keeping import Keeping
from edge_node.shared_groups import Group
from edge_node.shares import Shares
from edge_node.subscriptions import Entry, Subscriptions
from edge_node.timer_wheel import TimerWheel
from edge_node.wills import Wills
from protocols.mqtt.packet_types import Version
from protocols.mqtt.packets import Connect, Subscription
from protocols.mqtt.reason_codes import ReasonCode
from protocols.topics import InvalidTopic, Share, split_share
from storage.segment_log import LogFailed, LogFull

log = logging.getLogger(__name__)

FILTER_LEVELS_MAX = 128
"""Deeper filters are refused in SUBACK. EMQX has the same default."""
FILTER_BYTES_MAX = 1024
"""So are longer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds on what sessions keep in memory."""

    sessions_max: int = 10_000
    """Beyond it, the session whose client has been away longest is forgotten."""
    filters_max: int = 1_000
    """Subscriptions of one session; further ones are refused in SUBACK."""
    filters_total_max: int = 1_000_000
    """The same of all sessions together."""
    filter_levels_max: int = FILTER_LEVELS_MAX
    inflight_max: int = 100
    """QoS 1 and 2 deliveries sent to one client and not completed."""
    queue_bytes_max: int = 1 << 20
    """QoS 1 and 2 deliveries kept in memory for one client, sent or waiting."""
    queue_bytes_total_max: int = 64 << 20
    """The same of all clients together."""
    expiry_s_max: int = NEVER_EXPIRES
    """Longest time that a session outlives its connection; ``NEVER_EXPIRES`` for any."""
    expiry_s_of_old_versions: int = 7 * 86_400
    """How long a session without clean session lasts before MQTT 5.0, which says so itself."""


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
        self._subscriptions = subscriptions
        self._counters = counters
        self._keeping = keeping
        self._wills = wills
        self._wheel = wheel
        self._clock = clock
        self._by_id: dict[str, Session] = {}
        self._away: dict[str, Session] = {}
        """Those without a client, longest away first."""
        self._shares = Shares(subscriptions, keeping, limits.queue_bytes_max)

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Session]:
        """All of them."""
        return list(self._by_id.values())

    @property
    def groups(self) -> list[Group]:
        """All shared subscriptions."""
        return self._shares.groups

    # --- clients come and go

    def open(self, connect: Connect, client_id: str, identity: Identity | None, link: Link) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it existed (CONNACK's session present).

        Another connection of the client identifier is closed first [MQTT-3.1.4-3]. The client is sent nothing before
        ``resume``.

        Raises:
            LogFull, LogFailed: the session cannot be kept, and there is none now.
        """
        known = self._by_id.get(client_id)
        if known is not None and known.outbound.link is not None:
            self._counters.takeovers += 1
            known.outbound.link.displace(ReasonCode.SESSION_TAKEN_OVER)
        known = self._by_id.get(client_id)  # displacing ended it if it was to end with its connection
        if known is not None and connect.clean_start:
            self.end(known)
            known = None
        session = known or self._create(client_id, connect.version)
        self._away.pop(client_id, None)
        self._wheel.cancel(session)
        session.version = connect.version
        session.expiry_s = self._expiry_s(connect)
        session.username = connect.username
        session.will, session.will_at, session.expires_at, session.disconnected_at = connect.will, None, None, None
        outbound = session.outbound
        outbound.link = link
        outbound.persistent = session.persistent
        outbound.identity = None if identity is None or identity.unrestricted else identity
        try:
            self._keeping.opened(session, existed=known is not None)
        except (LogFull, LogFailed):
            outbound.link = None
            session.will = None
            self.end(session)
            raise
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
        if not with_will:
            session.will = None
        session.disconnected_at = self._keeping.wall_clock()
        session.outbound.detach()
        self._shares.member_away(session)
        if not session.persistent:
            self.end(session)
            return
        now, left = self._clock(), seconds_left(session.expiry_s, 0)
        session.expires_at = None if left is None else now + left
        session.will_at = self._wills.due_at(session, now)
        self._away[session.client_id] = session
        self._keeping.away(session)
        self._wait(session)

    def session_due(self, session: Session) -> float | None:
        """Publish the will of a client that stays away, or end its session; when to look again."""
        now = self._clock()
        if session.expires_at is not None and session.expires_at <= now:
            self._counters.sessions_expired += 1
            self.end(session)
            return None
        if session.will_at is not None and session.will_at <= now:
            self._wills.publish(session)
            session.will_at = None
            self._keeping.will_published(session)
        return session.next_due()

    def end(self, session: Session) -> None:
        """Forget a session. Its will is published now at the latest (section 3.1.3.2.2)."""
        outbound = session.outbound
        outbound.link, outbound.live = None, False
        self._wheel.cancel(session)
        for text in list(session.entries):
            self._remove(session, text)
        if session.will is not None:
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
            self._keeping.ended(session)
            self._subscriptions.changed()

    # --- subscriptions

    def subscribe(self, session: Session, options: Subscription, identifier: int | None) -> tuple[int, bool]:
        """Add a valid filter, or change the subscription.

        Returns:
            SUBACK's code: the granted QoS or the reason why not; and whether the subscription is new.

        Raises:
            LogFull, LogFailed: a persistent session cannot note it; nothing has changed.
        """
        text, share = options.filter, _share(options.filter)
        known = session.entries.get(text)
        code = self._refusal(session, options, share, known is None)
        if code is not None or share is None:
            self._counters.subscriptions_refused += 1
            return code or ReasonCode.TOPIC_FILTER_INVALID, False
        self._keeping.subscribed(session, options, identifier)
        entry = Entry(session.outbound, share.filter, options, identifier)
        if known is not None and known[1] is None:
            self._subscriptions.remove(known[0])
        group = self._shares.join(entry, share) if share.name else None
        session.entries[text] = entry, group
        if group is None:
            self._subscriptions.add(entry)
            if known is None:
                self._keeping.began(session, entry)
        self._counters.subscriptions += known is None
        return options.qos, known is None

    def unsubscribe(self, session: Session, text: str) -> int:
        """Take a filter out; UNSUBACK's code.

        Raises:
            LogFull, LogFailed: a persistent session cannot note it; nothing has changed.
        """
        if text not in session.entries:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self._keeping.unsubscribed(session, text)
        self._remove(session, text)
        return ReasonCode.SUCCESS

    # --- after a restart

    def restore(self) -> None:
        """Take up the sessions of the last run."""
        records = self._keeping.recover()
        for record in records:
            if record.client_id.startswith("\0"):
                continue
            session = restored(record, self._outbound(record.client_id, record.version), self)
            self._by_id[record.client_id] = session
            self._counters.sessions += 1
            for text, options in record.subscriptions.items():
                self._restore_filter(session, text, options, record.identifiers.get(text))
            self._restore_times(session)
        self._keeping.restored(self, records)

    def _restore_filter(self, session: Session, text: str, options: Subscription, identifier: int | None) -> None:
        share = _share(text)
        if share is None:
            return
        entry = Entry(session.outbound, share.filter, options, identifier)
        group = self._shares.join(entry, share) if share.name else None
        session.entries[text] = entry, group
        self._counters.subscriptions += 1
        if group is None:
            self._subscriptions.add(entry)

    def _restore_times(self, session: Session) -> None:
        now, wall = self._clock(), self._keeping.wall_clock()
        gone_s = max(0, wall - (session.disconnected_at or wall)) / 1e9
        if session.disconnected_at is None:
            session.disconnected_at = wall
        left = seconds_left(session.expiry_s, gone_s)
        session.expires_at = None if left is None else now + left
        will_at = self._wills.due_at(session, now, publish=False)
        session.will_at = None if will_at is None else max(now, will_at - gone_s)
        self._away[session.client_id] = session
        self._wait(session)

    # --- inside

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
        return Outbound(client_id, Wire(version), self._keeping, limits.inflight_max, limits.queue_bytes_max)

    def _expiry_s(self, connect: Connect) -> int:
        if connect.version == Version.V5:
            return min(connect.properties.session_expiry_interval or 0, self.limits.expiry_s_max)
        return 0 if connect.clean_start else min(self.limits.expiry_s_of_old_versions, self.limits.expiry_s_max)

    def _wait(self, session: Session) -> None:
        due = session.next_due()
        if due is not None:
            self._wheel.set(session, due)

    def _refusal(self, session: Session, options: Subscription, share: Share | None, new: bool) -> int | None:
        text, identity = options.filter, session.outbound.identity
        if share is None or len(text.encode()) > FILTER_BYTES_MAX or text.count("/") >= self.limits.filter_levels_max:
            return ReasonCode.TOPIC_FILTER_INVALID
        full = self._counters.subscriptions >= self.limits.filters_total_max
        if new and (full or len(session.entries) >= self.limits.filters_max):
            return ReasonCode.QUOTA_EXCEEDED
        if identity is not None and not identity.may_subscribe(share.filter):
            return ReasonCode.NOT_AUTHORIZED
        return None

    def _remove(self, session: Session, text: str) -> None:
        entry, group = session.entries.pop(text)
        self._counters.subscriptions -= 1
        if group is None:
            self._subscriptions.remove(entry)
            return
        self._shares.leave(session, group)


def _share(text: str) -> Share | None:
    try:
        return split_share(text)
    except InvalidTopic:
        return None
