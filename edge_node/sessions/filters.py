"""Topic filters of sessions: the broker accepts, stores and removes them here (MQTT 5.0 sections 3.8, 3.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.bounds import Bound, RoundRobin
from weft.config.limits import EdgeLimits
from weft.edge_node.counters import Counters
from weft.edge_node.sessions.persistence import Persistence, ReaderPositions
from weft.edge_node.sessions.records import SessionShares
from weft.edge_node.sessions.session import RetainedDelivery, Session
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    SharedSubscription,
    SharedSubscriptions,
    Subscriptions,
)
from weft.protocols.mqtt.packets import ReasonCode, Subscription
from weft.protocols.topics import InvalidTopic, Share, split_share

LEVEL_BYTES = 400
"""Size of a node of the filter tree that only one filter uses; measured 360 in Python 3.11."""


def cost(topic_filter: str) -> int:
    """Return the largest number of bytes that a filter takes in memory."""
    return len(topic_filter.encode()) + LEVEL_BYTES * (topic_filter.count("/") + 1)


class SessionFilters:
    """Subscriptions of all sessions, within bounds. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        subscriptions: Subscriptions,
        shared: SharedSubscriptions,
        persistence: Persistence,
        positions: ReaderPositions,
        retained: RetainedDelivery,
        round_robin: RoundRobin,
        limits: EdgeLimits,
        shares: SessionShares,
        counters: Counters,
    ) -> None:
        """Start without any."""
        self._subscriptions = subscriptions
        self._shared = shared
        self._limits = limits
        self._counters = counters
        self._persistence = persistence
        self._positions = positions
        self._retained = retained
        self._round_robin = round_robin
        self._bytes: dict[Session, int] = {}
        self._shares = shares
        self.make_room: Callable[[Bound, Session, int], bool] = lambda bound, session, units: bound.fits(
            session.owner, units
        )
        """Function that makes room for units of a session at the cost of owners that have more; returns whether they
        fit. ``Sessions`` sets it."""

    def subscribe_all(
        self, session: Session, filters: Sequence[Subscription], identifier: int | None
    ) -> list[tuple[int, bool]]:
        """Call ``subscribe`` for the filters of one packet, in order. Refuse those beyond a session's limit unseen.

        A packet of 1 MiB holds a quarter of a million filters.

        Raises:
            LogFull, LogFailed: a persistent session cannot journal one; the filters before it are in force.
        """
        looked_at = filters[: self._limits.subscriptions]
        new = {each.filter for each in looked_at if each.filter not in session.subscriptions}
        self.make_room(self._shares.filters, session, len(new))
        self.make_room(self._shares.filter_bytes, session, sum(cost(each) for each in new))
        answers = [self.subscribe(session, options, identifier) for options in looked_at]
        refused = len(filters) - len(looked_at)
        self._counters.subscriptions_refused += refused
        return answers + [(int(ReasonCode.QUOTA_EXCEEDED), False)] * refused

    def subscribe(self, session: Session, options: Subscription, identifier: int | None) -> tuple[int, bool]:
        """Add a valid filter, or change the subscription.

        Returns:
            SUBACK's code: the granted QoS or the reason of a refusal; and whether the subscription is new.

        Raises:
            LogFull, LogFailed: a persistent session cannot journal it; nothing has changed.
        """
        text, share = options.filter, _share(options.filter)
        known = session.subscriptions.get(text)
        code = self._refusal(session, options, share, known is None)
        if code is not None or share is None:
            self._counters.subscriptions_refused += 1
            return code or ReasonCode.TOPIC_FILTER_INVALID, False
        subscription = ClientSubscription(session.window, share.filter, options, identifier)
        self._persistence.subscribed(session, subscription, is_new=known is None)
        if known is not None and known[1] is None:
            self._subscriptions.remove(known[0])
        shared = self._add(session, text, subscription, share)
        if shared is not None:
            self._positions.note_joined(shared)
        if known is None:
            self._note(session, text, share)
        return options.qos, known is None

    def unsubscribe(self, session: Session, text: str) -> int:
        """Remove a filter; return UNSUBACK's code.

        Raises:
            LogFull, LogFailed: a persistent session cannot journal it; nothing has changed.
        """
        if text not in session.subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self._persistence.unsubscribed(session, text)
        self._remove(session, text)
        self._retained.drop(session.window, text)
        return ReasonCode.SUCCESS

    def restore(self, session: Session, text: str, options: Subscription, identifier: int | None) -> None:
        """Restore a subscription of the node's last run."""
        share = _share(text)
        if share is None:
            return
        self._add(session, text, ClientSubscription(session.window, share.filter, options, identifier), share)
        self._note(session, text, share)

    def remove_all(self, session: Session) -> None:
        """Remove all filters of an ended session: if they are many, most in later turns. ``Sessions`` journals it."""
        if session.window.in_flight.deliveries:  # other members get these before the window is emptied
            for _, shared in session.subscriptions.values():
                if shared is not None:
                    self._return_unanswered(session, shared, for_good=True)
        self._round_robin.each(session.owner, list(session.subscriptions), lambda text: self._remove(session, text))

    def member_away(self, session: Session) -> None:
        """Give unacknowledged messages of a disconnected client to other members of its shared subscriptions: if these
        are many, mostly in later turns."""

        def away(shared: SharedSubscription) -> None:
            if not (session.connected or session.ended):  # the client may be back by then
                self._return_unanswered(session, shared, for_good=not session.persistent)
                shared.member_left()

        mine = [shared for _, shared in session.subscriptions.values() if shared is not None]
        self._round_robin.each(session.owner, mine, away)

    # --- inside

    def _refusal(self, session: Session, options: Subscription, share: Share | None, new: bool) -> int | None:
        text, identity, limits = options.filter, session.rules, self._limits
        too_long = len(text.encode()) > limits.filter_bytes or text.count("/") >= limits.topic_levels
        if share is None or too_long:
            return ReasonCode.TOPIC_FILTER_INVALID
        many = len(session.subscriptions) >= limits.subscriptions
        if new and (many or not self._has_room(session, cost(text))):
            return ReasonCode.QUOTA_EXCEEDED
        if identity is not None and not identity.may_subscribe(share.filter):
            return ReasonCode.NOT_AUTHORIZED
        if new and not self._shares.match_cost.fits(session.owner, share.filter, share.name):
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _has_room(self, session: Session, more: int) -> bool:
        if self._bytes.get(session, 0) + more > self._limits.filters_bytes:
            return False
        for bound, units in ((self._shares.filters, 1), (self._shares.filter_bytes, more)):
            if not bound.fits(session.owner, units):
                bound.refuse(session.owner, units)
                return False
        return True

    def _note(self, session: Session, text: str, share: Share) -> None:
        size = cost(text)
        self._shares.match_cost.hold(session.owner, share.filter, share.name)
        self._shares.filters.hold(session.owner)
        self._shares.filter_bytes.hold(session.owner, size)
        self._counters.subscriptions += 1
        self._bytes[session] = self._bytes.get(session, 0) + size

    def _forget(self, session: Session, text: str, share: Share) -> None:
        size = cost(text)
        self._shares.match_cost.free(session.owner, share.filter, share.name)
        self._shares.filters.free(session.owner)
        self._shares.filter_bytes.free(session.owner, size)
        self._counters.subscriptions -= 1
        self._bytes[session] = own = self._bytes[session] - size
        if not own:
            del self._bytes[session]

    def _remove(self, session: Session, text: str) -> None:
        subscription, shared = session.subscriptions.pop(text)
        self._forget(session, text, split_share(text))
        if shared is None:
            self._subscriptions.remove(subscription)
            return
        self._return_unanswered(session, shared, for_good=True)
        if not self._shared.leave(session.window, shared):
            self._positions.ended(shared)

    def _return_unanswered(self, session: Session, shared: SharedSubscription, *, for_good: bool) -> None:
        if shared.return_unanswered(session.window, for_good=for_good):
            self._positions.note_moved(shared)  # before the journal forgets the session that had them

    def _add(
        self, session: Session, text: str, subscription: ClientSubscription, share: Share
    ) -> SharedSubscription | None:
        shared = self._shared.join(session.window, subscription, share) if share.name else None
        session.subscriptions[text] = subscription, shared
        if shared is None:
            self._subscriptions.add(subscription)
        return shared


def _share(text: str) -> Share | None:
    try:
        return split_share(text)
    except InvalidTopic:
        return None
