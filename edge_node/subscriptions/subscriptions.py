"""Subscriptions in a tree, and the recipients of each topic, looked up once."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions, Subscriber, delivery_options
from weft.protocols.mqtt.filter_tree import FilterTree

TOPICS_MAX = 10_000
"""Maximum number of topics whose recipients are remembered; beyond it, all are forgotten and looked up again."""
TOPIC_BYTES_MAX = 512
"""Recipients of longer topics are looked up every time, so that the remembered ones stay small for any input."""


class Recipients:
    """The recipients of one topic."""

    __slots__ = ("clients", "shared")

    def __init__(self, clients: tuple[DeliveryOptions, ...], shared: tuple[SharedSubscription, ...]) -> None:
        self.clients = clients
        self.shared = shared

    @property
    def live(self) -> int:
        """Return the number of clients that get each message, rounded up to a power of two, so that topics share
        routes; 0 for none."""
        count = len(self.clients) + len(self.shared)
        return count and 1 << (count - 1).bit_length()

    @property
    def wanted(self) -> bool:
        """Return whether a persistent session subscribes to the topic at QoS 1 or 2."""
        return any(options.qos and options.subscriber.persistent for options in self.clients) or any(
            shared.persistent for shared in self.shared
        )

    @property
    def marked(self) -> bool:
        """Return whether the log must name the publisher: a session that may read there has subscribed with No Local.

        A session that ends with its connection reads there, too, when it is slow.
        """
        return any(options.no_local and options.qos for options in self.clients)


class Subscriptions:
    """All subscriptions of the node. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._tree: FilterTree[ClientSubscription | SharedSubscription] = FilterTree()
        self.known: dict[bytes, Recipients] = {}
        """Topic -> recipients found already; for other topics call ``recipients``."""
        self._watchers: list[Callable[[], None]] = []
        self._asked = False
        """True when recipients were looked up since the last change."""
        self.version = 0
        """Number of changes."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after changes of recipients, if recipients were looked up since the change before: a packet with a
        thousand filters calls back once."""
        self._watchers.append(callback)

    def add(self, subscription: ClientSubscription | SharedSubscription) -> None:
        """Add a subscription, or a shared one. Its filter must be valid."""
        self._tree.add(subscription.filter, subscription)
        self.changed()

    def remove(self, subscription: ClientSubscription | SharedSubscription) -> None:
        """Remove a subscription that was added."""
        self._tree.remove(subscription.filter, subscription)
        self.changed()

    def changed(self) -> None:
        """Forget all recipients: a subscription, or what clients may read, has changed."""
        self.version += 1
        if not self._asked:
            return
        self._asked = False
        self.known.clear()
        for callback in self._watchers:
            callback()

    def recipients(self, topic: bytes) -> Recipients:
        """Return the recipients of a valid topic."""
        found = self.known.get(topic)
        if found is None:
            found = self._find(topic)
            if len(self.known) >= TOPICS_MAX:
                self.known.clear()
            if len(topic) <= TOPIC_BYTES_MAX:
                self.known[topic] = found
        return found

    def _find(self, topic: bytes) -> Recipients:
        self._asked = True
        by_client: dict[Subscriber, list[ClientSubscription]] = {}
        shared: list[SharedSubscription] = []
        for each in self._tree.match(topic.decode()):
            if isinstance(each, ClientSubscription):
                by_client.setdefault(each.subscriber, []).append(each)
            else:
                shared.append(each)
        readable = [delivery_options(own) for client, own in by_client.items() if client.may_read(topic)]
        return Recipients(tuple(readable), tuple(shared))
