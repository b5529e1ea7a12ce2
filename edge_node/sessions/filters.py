"""What sessions are subscribed to: which filters are taken, and what becomes of them (MQTT 5.0 sections 3.8, 3.10)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.keeping import Keeping
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.shared_subscription import Group
from weft.edge_node.subscriptions.shared_subscriptions import Shares
from weft.edge_node.subscriptions.subscriptions import Entry, Subscriptions
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.protocols.topics import InvalidTopic, Share, split_share

LEVEL_BYTES = 400
"""Of a node of the tree of filters that no other filter has; measured 360 in Python 3.11."""


def cost(topic_filter: str) -> int:
    """Bytes that a filter takes at most."""
    return len(topic_filter.encode()) + LEVEL_BYTES * (topic_filter.count("/") + 1)


class SessionFilters:
    """The filters of all sessions. Belongs to the event loop's thread."""

    def __init__(
        self, subscriptions: Subscriptions, limits: SessionLimits, counters: Counters, keeping: Keeping
    ) -> None:
        """Start without any."""
        self._subscriptions = subscriptions
        self._limits = limits
        self._counters = counters
        self._keeping = keeping
        self._bytes: dict[Session, int] = {}
        self._bytes_total = 0
        self._shares = Shares(subscriptions, keeping, limits.queue_bytes_max)

    @property
    def groups(self) -> list[Group]:
        """All shared subscriptions."""
        return self._shares.groups

    def subscribe_all(
        self, session: Session, filters: Sequence[Subscription], identifier: int | None
    ) -> list[tuple[int, bool]]:
        """``subscribe`` for the filters of one packet, in order. Those beyond as many as a session may have are refused
        without a look at them: a packet of 1 MiB holds a quarter of a million.

        Raises:
            LogFull, LogFailed: a persistent session cannot note one; those before it are taken.
        """
        looked_at = filters[: self._limits.filters_max]
        answers = [self.subscribe(session, options, identifier) for options in looked_at]
        refused = len(filters) - len(looked_at)
        self._counters.subscriptions_refused += refused
        return answers + [(int(ReasonCode.QUOTA_EXCEEDED), False)] * refused

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
        entry = Entry(session.outbound, share.filter, options, identifier)
        self._keeping.subscribed(session, entry, is_new=known is None)
        if known is not None and known[1] is None:
            self._subscriptions.remove(known[0])
        group = self._shares.join(entry, share) if share.name else None
        session.entries[text] = entry, group
        if group is None:
            self._subscriptions.add(entry)
        else:
            self._keeping.note_group(group)
        self._counters.subscriptions += known is None
        if known is None:
            self._note(session, cost(text))
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
        if session.outbound.feed is not None:
            session.outbound.feed.drop(text)
        return ReasonCode.SUCCESS

    def restore(self, session: Session, text: str, options: Subscription, identifier: int | None) -> None:
        """Take up a subscription of the last run."""
        share = _share(text)
        if share is None:
            return
        entry = Entry(session.outbound, share.filter, options, identifier)
        group = self._shares.join(entry, share) if share.name else None
        session.entries[text] = entry, group
        self._counters.subscriptions += 1
        self._note(session, cost(text))
        if group is None:
            self._subscriptions.add(entry)

    def remove_all(self, session: Session) -> None:
        """The session ends; the journal is told by whoever ends it."""
        for text in list(session.entries):
            self._remove(session, text)

    def member_away(self, session: Session) -> None:
        """A client has gone: what it did not acknowledge goes to other members of its groups."""
        self._shares.member_away(session)

    # --- inside

    def _refusal(self, session: Session, options: Subscription, share: Share | None, new: bool) -> int | None:
        text, identity, limits = options.filter, session.outbound.identity, self._limits
        too_long = len(text.encode()) > limits.filter_bytes_max or text.count("/") >= limits.filter_levels_max
        if share is None or too_long:
            return ReasonCode.TOPIC_FILTER_INVALID
        full = self._counters.subscriptions >= limits.filters_total_max
        if new and (full or len(session.entries) >= limits.filters_max or not self._has_room(session, cost(text))):
            return ReasonCode.QUOTA_EXCEEDED
        if identity is not None and not identity.may_subscribe(share.filter):
            return ReasonCode.NOT_AUTHORIZED
        return None

    def _has_room(self, session: Session, more: int) -> bool:
        limits = self._limits
        own = self._bytes.get(session, 0) + more
        return own <= limits.filters_bytes_max and self._bytes_total + more <= limits.filters_bytes_total_max

    def _note(self, session: Session, more: int) -> None:
        self._bytes_total += more
        self._bytes[session] = own = self._bytes.get(session, 0) + more
        if not own:
            del self._bytes[session]

    def _remove(self, session: Session, text: str) -> None:
        entry, group = session.entries.pop(text)
        self._counters.subscriptions -= 1
        self._note(session, -cost(text))
        if group is None:
            self._subscriptions.remove(entry)
            return
        self._shares.leave(session, group)


def _share(text: str) -> Share | None:
    try:
        return split_share(text)
    except InvalidTopic:
        return None
