"""Live messages of the topics that match a filter, kept or not. Messages that a client is too slow for are dropped, and
it gets their number."""

from __future__ import annotations

import asyncio
from typing import Any

from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.exchange import Way
from weft.edge_node.servers.http.out.events import EventObjects
from weft.edge_node.servers.http.out.feed import Feed
from weft.edge_node.servers.http.out.stream_feed import IDLE_S
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.packets import Subscription

GATHERED_MAX = 1_000
"""Maximum number of messages of one turn of the loop, which are sent together; further ones are dropped."""


class TopicFeed(Feed):
    """A feed of live messages; a ``Subscriber`` at QoS 0."""

    client_id = ""
    persistent = False

    def __init__(
        self, base: tuple[Any, ...], subscriptions: Subscriptions, topic_filter: str, objects: EventObjects,
        counters: HttpCounters,
    ) -> None:  # fmt: skip
        super().__init__(*base)
        self._subscriptions = subscriptions
        self._subscription = ClientSubscription(self, topic_filter, Subscription(topic_filter, 0), None)
        self._objects = objects
        self._counters = counters
        self._gathered: list[bytes] = []
        """Parts of the gathered events."""
        self._count = 0
        self._dropped = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, way: Way) -> None:
        """Send the head, then messages published from now on."""
        super().begin(way)
        way.send(self._wrapping.idle())
        self._subscriptions.add(self._subscription)
        self._timer = self._loop.call_later(IDLE_S, self._tick)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._subscriptions.remove(self._subscription)
            self._timer = None
        super().stop()

    def resume(self) -> None:
        """Resume sending, and report the messages dropped meanwhile."""
        super().resume()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._write(self._wrapping.event("dropped", b'{"messages":%d}' % dropped))

    # --- ``Subscriber``

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Send or drop a message."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Send or drop a message."""
        if self.is_over:
            return
        if self.is_paused or self._count >= GATHERED_MAX:
            self._dropped += 1
            self._counters.http_events_dropped += 1
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered += self._wrapping.event("message", self._objects.of_message(message))
        self._count += 1

    # --- inside

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        count, self._count = self._count, 0
        if gathered and not self.is_over:
            self._counters.http_events += count
            self._write(gathered)

    def _tick(self) -> None:
        if not self.is_paused:
            self._write([self._wrapping.idle()])
        self._timer = self._loop.call_later(IDLE_S, self._tick)
