"""Live fan-out to local subscribers: what is published now, to who is subscribed now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocols.mqtt.encoder import encode_publish
from protocols.mqtt.filter_tree import FilterTree

MATCHES_MAX = 10_000
"""Topics whose subscribers are remembered; when there are more, all are forgotten and found anew."""
MATCH_BYTES_MAX = 512
"""Longer topics are looked up every time, so that what is remembered stays small whatever clients send."""

_Matches = tuple[tuple["Subscriber", int], ...]


class Subscriber(Protocol):
    """Who can be delivered to. Both calls return at once; what there is no room for is dropped and counted."""

    def deliver_at_most_once(self, packet: bytes) -> None:
        """Send an encoded PUBLISH at QoS 0."""

    def deliver_at_least_once(self, topic: bytes, payload: bytes) -> None:
        """Send, or queue, a message at QoS 1."""


class Subscriptions:
    """All subscriptions of the node. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._tree: FilterTree[Subscriber] = FilterTree()
        self._matches: dict[bytes, _Matches] = {}
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after every change of who is subscribed to what."""
        self._watchers.append(callback)

    def add(self, topic_filter: str, subscriber: Subscriber, qos: int) -> None:
        """Subscribe at QoS 0 or 1, or change the QoS of a subscription. The filter must be valid."""
        self._tree.add(topic_filter, subscriber, qos)
        self._changed()

    def remove(self, topic_filter: str, subscriber: Subscriber) -> None:
        """End a subscription; nothing happens when there is none."""
        self._tree.remove(topic_filter, subscriber)
        self._changed()

    def subscribers(self, topic: bytes) -> _Matches:
        """The subscribers of a valid topic with the QoS that each was granted; one entry each [MQTT-3.3.5-1]."""
        found = self._matches.get(topic)
        if found is None:
            found = tuple(self._tree.match(topic.decode()).items()) if self._tree else ()
            if len(self._matches) >= MATCHES_MAX:
                self._matches.clear()
            if len(topic) <= MATCH_BYTES_MAX:
                self._matches[topic] = found
        return found

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        """Deliver to every subscriber at the lower of the two QoS, without the retain flag [MQTT-3.3.1-9]."""
        packet = b""
        for subscriber, granted in self.subscribers(topic):
            if qos and granted:
                subscriber.deliver_at_least_once(topic, payload)
            else:
                packet = packet or encode_publish(topic, payload)
                subscriber.deliver_at_most_once(packet)

    def _changed(self) -> None:
        self._matches.clear()
        for callback in self._watchers:
            callback()
