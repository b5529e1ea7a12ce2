"""Retained messages for new subscriptions, as fast as the client takes them (MQTT 5.0 section 3.3.1.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from edge_node.message import Message
from edge_node.outbound import Outbound
from edge_node.subscriptions import Entry, Grant

Match = Callable[[str], Iterable[Message]]
"""Filter -> the retained messages to deliver, each with ``retain`` set."""
Keep = Callable[[Outbound, Message], Message]
"""Makes a message that is about to be sent to a client at QoS 1 or 2 one that a restart does not lose."""


class RetainedFeed:
    """The subscriptions of one client whose retained messages are still to be sent.

    One filter is looked up at a time, when the one before is done, so that a client with a thousand filters of ``#``
    costs the memory of one.
    """

    __slots__ = ("_grant", "_keep", "_match", "_messages", "_outbound", "_pumping", "_waiting")

    def __init__(self, outbound: Outbound, match: Match, keep: Keep) -> None:
        self._outbound = outbound
        self._match = match
        self._keep = keep
        self._waiting: deque[Entry] = deque()
        self._messages: Iterator[Message] = iter(())
        self._grant: Grant | None = None
        self._pumping = False

    def add(self, entry: Entry) -> None:
        """Send what a new subscription matches."""
        self._waiting.append(entry)

    def pump(self) -> None:
        """Send as far as the client keeps up. When all is sent the feed takes itself off the client."""
        if self._pumping:
            return
        self._pumping = True
        outbound = self._outbound
        try:
            while outbound.window_open and not outbound.queue:
                message = next(self._messages, None)
                if message is not None and self._grant is not None:
                    self._send(message, self._grant)
                elif self._waiting:
                    entry = self._waiting.popleft()
                    self._grant = grant_for(entry)
                    self._messages = iter(self._match(entry.filter))
                else:
                    outbound.feed = None
                    return
        finally:
            self._pumping = False

    def _send(self, message: Message, grant: Grant) -> None:
        outbound = self._outbound
        if not outbound.may_read(message.topic):
            return
        qos = min(message.qos, grant.qos)
        if qos:
            outbound.send(self._keep(outbound, message), grant, qos)
        else:
            outbound.send_at_most_once(message, grant)


def grant_for(entry: Entry) -> Grant:
    """How retained messages are sent: for this subscription alone, and with the retain flag [MQTT-3.3.1-8]."""
    grant = Grant([entry])
    grant.retain_as_published = True
    return grant
