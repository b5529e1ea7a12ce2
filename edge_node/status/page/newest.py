"""The newest message of each topic, with the last values of its numbers, while a page is open."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from weft.edge_node.access.identity import Identity
from weft.edge_node.status.page.readers import shown
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import matches

EVERYTHING = "#"
WATCHED_S = 30.0
"""Time without a request after which the node no longer looks at messages."""
TOPICS_MAX = 500
"""Number of topics that are remembered: those with the newest messages."""
TOPIC_BYTES_MAX, PAYLOAD_BYTES_MAX = 512, 512
"""Longer topics are left out; of longer payloads the beginning is shown."""
FIELDS_MAX, POINTS_MAX = 3, 60
"""Numbers of a topic, and values of each."""
POINT_INTERVAL_S = 1.0
"""Shortest time between two values of a topic: messages in between count, and their numbers are not looked at."""
PARSED_BYTES_MAX, PARSED_PER_S_MAX = 2048, 200
"""Payloads that are looked into: not longer ones, and not more in a second."""
CHECKED_AT_ONCE = 50
"""Topics whose access rules are checked in one step."""
_decode = msgspec.json.decode


class NewestOfTopic:
    """The newest message of a topic, and values of its numbers."""

    __slots__ = ("messages", "next_point", "payload", "points", "size", "time")

    def __init__(self) -> None:
        self.messages = 0
        self.time = 0.0
        self.payload = b""
        self.size = 0
        self.points: dict[str, deque[float]] = {}
        self.next_point = 0.0


class NewestMessages:
    """A subscriber to everything at QoS 0, while it is asked. Belongs to the event loop's thread.

    Args:
        monotonic: seconds.
        wall_clock: nanoseconds since 1970.
    """

    client_id = ""
    persistent = False

    def __init__(
        self, subscriptions: Subscriptions, monotonic: Callable[[], float], wall_clock: Callable[[], int]
    ) -> None:
        self._subscriptions = subscriptions
        self._subscription = ClientSubscription(self, EVERYTHING, Subscription(EVERYTHING, 0), None)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._topics: OrderedDict[bytes, NewestOfTopic] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = 0.0
        self._since = 0.0
        """Time from which on messages were seen, in seconds since 1970."""
        self._parsed, self._parsed_until = 0, 0.0

    def close(self) -> None:
        """Forget all, and look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._subscriptions.remove(self._subscription)
            self._topics.clear()

    async def view(self, identity: Identity, topic_filter: str, limit: int) -> dict[str, Any]:
        """Return the newest messages of the topics that a reader may read and that match a filter, and watch on."""
        self._asked = self._monotonic()
        if self._timer is None:
            self._since = self._wall_clock() / 1e9
            self._subscriptions.add(self._subscription)
            self._timer = asyncio.get_running_loop().call_later(WATCHED_S, self._look)
        found: list[dict[str, Any]] = []
        for number, (topic, newest) in enumerate(list(reversed(self._topics.items()))):
            if number % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            name = topic.decode()
            if matches(topic_filter, name) and (identity.unrestricted or identity.may_read(topic)):
                if len(found) == limit:
                    return {"since": self._since, "topics": found, "is_whole": False}
                found.append(_view(name, newest))
        return {"since": self._since, "topics": found, "is_whole": len(self._topics) < TOPICS_MAX}

    def _look(self) -> None:
        left = self._asked + WATCHED_S - self._monotonic()
        if left <= 0:
            self.close()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)

    # --- ``Subscriber``

    def may_read(self, topic: bytes) -> bool:  # noqa: ARG002
        """Return True: readers' rights are looked at when they ask."""
        return True

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Remember a message."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Remember a message."""
        topics, topic = self._topics, message.topic
        newest = topics.get(topic)
        if newest is None:
            if len(topic) > TOPIC_BYTES_MAX:
                return
            newest = topics[topic] = NewestOfTopic()
            if len(topics) > TOPICS_MAX:
                topics.popitem(last=False)
        else:
            topics.move_to_end(topic)
        newest.messages += 1
        newest.time = self._wall_clock() / 1e9
        newest.payload, newest.size = message.payload[:PAYLOAD_BYTES_MAX], len(message.payload)
        now = self._monotonic()
        if now >= newest.next_point and newest.size <= PARSED_BYTES_MAX and self._may_parse(now):
            newest.next_point = now + POINT_INTERVAL_S
            for name, value in numbers(message.payload):
                if name in newest.points or len(newest.points) < FIELDS_MAX:
                    newest.points.setdefault(name, deque(maxlen=POINTS_MAX)).append(value)

    def _may_parse(self, now: float) -> bool:
        if now >= self._parsed_until:
            self._parsed, self._parsed_until = 0, now + 1.0
        self._parsed += 1
        return self._parsed <= PARSED_PER_S_MAX


def numbers(payload: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON payload: of itself, under an empty name, or of the fields of an object."""
    try:
        value = _decode(payload)
    except msgspec.DecodeError:
        return
    fields = value.items() if isinstance(value, dict) else [("", value)]
    for name, each in fields:
        if isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e300:
            yield str(name)[:64], float(each)


def _view(topic: str, newest: NewestOfTopic) -> dict[str, Any]:
    return {
        "topic": topic,
        "time": newest.time,
        "messages": newest.messages,
        "payload": shown(newest.payload, PAYLOAD_BYTES_MAX) | {"bytes": newest.size},
        "numbers": {name: list(values) for name, values in newest.points.items()},
    }
