"""Retained messages for new subscriptions, as fast as the client takes them (MQTT 5.0 section 3.3.1.3)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import Entry, Grant

Match = Callable[[str], Iterable[Message]]
"""Filter -> the retained messages to deliver, each with ``retain`` set, as they are when they are asked for."""
Keep = Callable[[Outbound, Message], Message]
"""Makes a message that is about to be sent to a client at QoS 1 or 2 one that a restart does not lose."""

TURN_MESSAGES_MAX = 200
"""Messages sent to one client before others have their turn, about a millisecond."""
TURN_BYTES_MAX = 256 << 10
"""Payloads after which they have it, too."""
HELD_WAIT_S = 0.01
"""Between looks at whether the journal, for which a client's writes wait, is durable."""


class RetainedFeed:
    """The subscriptions of one client whose retained messages are still to be sent.

    One filter is looked up at a time, when the one before is done, so that a client with a thousand filters of ``#``
    costs the memory of one. A filter that waits already is not sent twice. Belongs to the event loop's thread, which it
    leaves to others after a while: a turn ends after so many messages, or with one filter looked up.
    """

    __slots__ = ("_filter", "_flush", "_grant", "_keep", "_match", "_messages", "_outbound", "_pumping", "_scheduled",
                 "_waiting")  # fmt: skip

    def __init__(self, outbound: Outbound, match: Match, keep: Keep, flush: Callable[[], None]) -> None:
        """Start without any.

        Args:
            flush: writes what was gathered for clients, at the end of each turn but the first, which is the caller's.
        """
        self._outbound = outbound
        self._match = match
        self._keep = keep
        self._flush = flush
        self._waiting: OrderedDict[str, Entry] = OrderedDict()
        """By filter as the client wrote it."""
        self._filter: str | None = None
        self._grant: Grant | None = None
        self._messages: Iterator[Message] = iter(())
        self._pumping = False
        self._scheduled = False

    def add(self, entry: Entry) -> None:
        """Send what a new subscription matches."""
        self._waiting[entry.options.filter] = entry

    def drop(self, text: str) -> None:
        """The client has unsubscribed: send no more of this filter's messages [MQTT-3.10.4-2]."""
        self._waiting.pop(text, None)
        if self._filter == text:
            self._messages = iter(())

    def pump(self) -> None:
        """Send as far as the client keeps up, and go on by itself after the turn. When all is sent, the feed takes
        itself off the client."""
        if self._pumping or self._scheduled:
            return
        self._pumping = True
        try:
            self._take_turn()
        finally:
            self._pumping = False

    # --- inside

    def _take_turn(self) -> None:
        outbound, left, left_bytes, looked_up = self._outbound, TURN_MESSAGES_MAX, TURN_BYTES_MAX, False
        while outbound.window_open and not outbound.queue:
            if left <= 0 or left_bytes <= 0:
                self._schedule()
                return
            message = next(self._messages, None)
            if message is not None and self._grant is not None:
                left -= 1
                left_bytes -= len(message.payload)
                self._send(message, self._grant)
            elif not self._waiting:
                outbound.feed = None
                return
            elif looked_up:  # what matches nothing may take as long to find out as what matches everything
                self._schedule()
                return
            else:
                self._filter, entry = self._waiting.popitem(last=False)
                self._grant = grant_for(entry)
                self._messages = iter(self._match(entry.filter))
                looked_up = True

    def _schedule(self) -> None:
        self._scheduled = True
        loop = asyncio.get_running_loop()
        if self._outbound.held:
            loop.call_later(HELD_WAIT_S, self._go_on)
        else:
            loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        outbound = self._outbound
        if outbound.feed is not self:
            return
        if outbound.held:  # what is sent now would wait in memory
            self._schedule()
            return
        self.pump()
        self._flush()

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
