"""One client's own subscriptions, for its reader of the log: what others subscribe to costs it nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions, Subscriber, delivery_options
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.filter_tree import FilterTree
from weft.protocols.topics import matches

SUBSCRIBED = Mapping[str, tuple[ClientSubscription, SharedSubscription | None]]
"""Filter -> a client's subscription, and the shared one that it is part of."""
FILTERS_MAX = 16
"""Filters that are compared one by one, a microsecond or two each; more are put into a tree."""
TOPICS_MAX = 64
"""Topics that are remembered, 0.3 KB each for each of thousands of readers; beyond it all are forgotten."""
TOPIC_BYTES_MAX = 512
"""Longer topics are matched each time, so that what is remembered stays small whatever clients send."""


class OwnFilters:
    """Belongs to the event loop's thread."""

    __slots__ = ("_known", "_own", "_subscribed", "_subscriber", "_subscriptions", "_tree", "_version")

    def __init__(self, subscriber: Subscriber, subscribed: SUBSCRIBED, subscriptions: Subscriptions) -> None:
        """Look at ``subscribed`` again each time that ``subscriptions`` have changed."""
        self._subscriber = subscriber
        self._subscribed = subscribed
        self._subscriptions = subscriptions
        self._version = -1
        self._own: list[ClientSubscription] = []
        self._tree: FilterTree[ClientSubscription] | None = None
        self._known: dict[bytes, tuple[Collection[ClientSubscription], DeliveryOptions | None]] = {}

    def matching(self, topic: bytes) -> Collection[ClientSubscription]:
        """Return the subscriptions that match a valid topic; none where the client may not read it."""
        return self._of(topic)[0]

    def options(self, topic: bytes) -> DeliveryOptions | None:
        """Return what they add up to; None where none matches."""
        return self._of(topic)[1]

    def _of(self, topic: bytes) -> tuple[Collection[ClientSubscription], DeliveryOptions | None]:
        if self._version != self._subscriptions.version:
            self._look()
        found = self._known.get(topic)
        if found is None:
            matching = self._find(topic)
            found = matching, delivery_options(matching) if matching else None
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            if len(topic) <= TOPIC_BYTES_MAX:
                self._known[topic] = found
        return found

    def _look(self) -> None:
        self._version = self._subscriptions.version
        self._own = [subscription for subscription, shared in self._subscribed.values() if shared is None]
        self._known.clear()
        self._tree = None
        if len(self._own) > FILTERS_MAX:
            self._tree = FilterTree()
            for each in self._own:
                self._tree.add(each.filter, each)

    def _find(self, topic: bytes) -> Collection[ClientSubscription]:
        if not self._subscriber.may_read(topic):
            return ()
        text = topic.decode()
        return (
            [each for each in self._own if matches(each.filter, text)] if self._tree is None else self._tree.match(text)
        )
