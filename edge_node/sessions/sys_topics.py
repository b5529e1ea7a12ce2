"""``$SYS/broker/...``: the node's own figures by MQTT, under the usual names, those of Mosquitto.

Clients get the topics when they subscribe to them by name or to ``$SYS/#``; ``#`` does not match them [MQTT-4.7.2-1].
They behave as retained messages, but are kept only in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from weft.edge_node.counters import Counters
from weft.edge_node.subscriptions.message import Message
from weft.protocols.topics import matches

INTERVAL_S = 10.0
"""Interval between two updates, as with Mosquitto."""
PREFIX = "$SYS/broker/"

_LOADS = {"1min": 1, "5min": 5, "15min": 15}


class Facts(NamedTuple):
    """Facts about the node beside its counters."""

    clients_known: int
    retained: int


class SysTopics:
    """Values of the topics. Subscribers get those that change."""

    def __init__(
        self,
        counters: Counters,
        facts: Callable[[], Facts],
        deliver: Callable[[Message], None],
        clock: Callable[[], float],
        software: str,
    ) -> None:
        """Begin without values: the first ``update`` sets them.

        Args:
            deliver: fans a message out.
            clock: seconds, monotonic.
            software: value of the topic ``version``.
        """
        self._counters = counters
        self._facts = facts
        self._deliver = deliver
        self._clock = clock
        self._software = software
        self._started = self._updated = clock()
        self._values: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        self._loads: dict[str, float] = {}
        self._clients_maximum = 0
        self.update()

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Yield the topics of a filter, as retained messages."""
        if not topic_filter.startswith("$"):
            return
        for topic, value in self._values.items():
            if matches(topic_filter, topic):
                yield Message(topic.encode(), value.encode(), 0, retain=True)

    def update(self) -> None:
        """Read the counters, and send the values that have changed to their subscribers."""
        now = self._clock()
        values = {PREFIX + name: str(value) for name, value in self._read(now).items()}
        changed = [topic for topic, value in values.items() if self._values.get(topic) != value]
        self._values = values
        for topic in changed:
            self._deliver(Message(topic.encode(), values[topic].encode(), 0, retain=True))

    def _read(self, now: float) -> dict[str, object]:
        counters, facts = self._counters, self._facts()
        self._clients_maximum = max(self._clients_maximum, counters.connections)
        totals = {
            "messages/received": counters.packets_received,
            "messages/sent": counters.deliveries_sent + counters.acks_sent,
            "publish/received": counters.publishes_received,
            "publish/sent": counters.deliveries_sent,
            "publish/dropped": counters.deliveries_dropped,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "connections": counters.connections_accepted,
        }
        away = max(0, facts.clients_known - counters.connections)
        values: dict[str, object] = {
            "version": self._software,
            "uptime": f"{int(now - self._started)} seconds",
            "clients/connected": counters.connections,
            "clients/active": counters.connections,
            "clients/disconnected": away,
            "clients/inactive": away,
            "clients/expired": counters.sessions_expired,
            "clients/total": facts.clients_known,
            "clients/maximum": self._clients_maximum,
            "subscriptions/count": counters.subscriptions,
            "retained messages/count": facts.retained,
            "messages/stored": facts.retained,
            "messages/received": totals["messages/received"],
            "messages/sent": totals["messages/sent"],
            "publish/messages/received": totals["publish/received"],
            "publish/messages/sent": totals["publish/sent"],
            "publish/messages/dropped": totals["publish/dropped"],
            "publish/bytes/received": counters.publish_bytes_received,
            "bytes/received": totals["bytes/received"],
            "bytes/sent": totals["bytes/sent"],
        }
        return values | self._load(totals, now)

    def _load(self, totals: dict[str, int], now: float) -> dict[str, object]:
        """Return moving averages per minute, like the kernel's load: each update decays the earlier value."""
        passed_s = now - self._updated
        if self._totals and passed_s > 0:
            for name, total in totals.items():
                rate = (total - self._totals[name]) * 60 / passed_s
                for window, minutes in _LOADS.items():
                    keep = math.exp(-passed_s / (60 * minutes))
                    key = f"load/{name}/{window}"
                    self._loads[key] = self._loads.get(key, 0.0) * keep + rate * (1 - keep)
        self._totals, self._updated = totals, now
        return {key: f"{value:.2f}" for key, value in self._loads.items()}
