"""Retained messages for new subscriptions, as fast as the client takes them (MQTT 5.0 section 3.3.1.3)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from weft.bounds import Rounds
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions, Subscriber

Match = Callable[[str, int], Iterable[Message | None]]
"""(filter, number of the last change to consider) -> the retained messages to deliver, each with ``retain`` set, in
their present state; None for a step of the search without a match."""
Keep = Callable[[Subscriber, Message], Message]
"""Function that makes a message, about to be sent to a client at QoS 1 or 2, survive a restart."""

TURN_MESSAGES_MAX = 200
"""Messages sent to one client before others have their turn, about a millisecond."""
TURN_BYTES_MAX = 256 << 10
"""Payload bytes after which they have it, too."""
TURN_STEPS_MAX = 2_000
"""Steps of a search after which they have it: a search without matches may take as long as one that matches
everything."""
HELD_WAIT_S = 0.01
"""Interval between checks whether the journal, for which a client's writes wait, is durable."""
_END = Message(b"", b"", 0)


class RetainedDelivery:
    """The feeds of all clients that are receiving retained messages. Belongs to the event loop's thread.

    Feeds with more work wait for their turn: a thousand clients that look up ``#`` wait for each other, and others are
    not delayed.
    """

    def __init__(self, match: Match, keep: Keep, rounds: Rounds) -> None:
        """Start without any."""
        self._match = match
        self._keep = keep
        self._rounds = rounds
        self._feeds: dict[ClientWindow, RetainedFeed] = {}

    def is_sending(self, window: ClientWindow) -> bool:
        """Return whether a client still has retained messages to receive."""
        return window in self._feeds

    def send(self, window: ClientWindow, subscription: ClientSubscription, change: int) -> None:
        """Send the retained messages of a new subscription, from the client's next ``pump`` on.

        Args:
            change: number of the last change before it subscribed. Messages retained later reach the client as normal
                publishes, and must not come twice.
        """
        feed = self._feeds.get(window)
        if feed is None:
            feed = self._feeds[window] = RetainedFeed(
                window, self._match, self._keep, self._rounds, lambda: self._feeds.pop(window, None)
            )
        feed.add(subscription, change)

    def drop(self, window: ClientWindow, text: str) -> None:
        """Stop sending a filter's messages: the client has unsubscribed [MQTT-3.10.4-2]."""
        feed = self._feeds.get(window)
        if feed is not None:
            feed.drop(text)

    def forget(self, window: ClientWindow) -> None:
        """Stop sending to a client: it has gone, and subscribes again if it wants them."""
        feed = self._feeds.get(window)
        if feed is not None:
            feed.stop()


class RetainedFeed:
    """The subscriptions of one client that still have retained messages to send.

    One filter is looked up at a time, when the one before is done, so that a client with a thousand filters of ``#``
    costs the memory of one. A filter that waits already is not sent twice. Turns bound the time: one ends after so many
    messages or steps of the search, or with one filter begun.
    """

    __slots__ = (
        "_done", "_filter", "_is_over", "_keep", "_match", "_messages", "_options", "_pumping", "_rounds",
        "_scheduled", "_waiting", "_window",
    )  # fmt: skip

    def __init__(
        self,
        window: ClientWindow,
        match: Match,
        keep: Keep,
        rounds: Rounds,
        done: Callable[[], object],
    ) -> None:
        """Start without any.

        Args:
            rounds: calls ``go_on`` at the feed's turn.
            done: called once, when all is sent or ``stop`` was called.
        """
        self._window = window
        self._match = match
        self._keep = keep
        self._rounds = rounds
        self._done = done
        self._waiting: OrderedDict[str, tuple[ClientSubscription, int]] = OrderedDict()
        """Waiting subscriptions, with the last change before each, by filter as the client wrote it."""
        self._filter: str | None = None
        self._options: DeliveryOptions | None = None
        self._messages: Iterator[Message | None] = iter(())
        self._pumping = False
        self._scheduled = False
        self._is_over = False
        window.when_room(self.pump)

    def add(self, subscription: ClientSubscription, change: int) -> None:
        """Send the retained messages of a new subscription."""
        self._waiting[subscription.options.filter] = subscription, change

    def drop(self, text: str) -> None:
        """Stop sending a filter's messages."""
        self._waiting.pop(text, None)
        if self._filter == text:
            self._messages = iter(())

    def stop(self) -> None:
        """Stop sending."""
        if not self._is_over:
            self._is_over = True
            self._window.no_longer_when_room(self.pump)
            self._done()

    def pump(self) -> None:
        """Send as far as the client keeps up, and continue in later turns by itself."""
        if self._pumping or self._scheduled or self._is_over:
            return
        self._pumping = True
        try:
            self._take_turn()
        finally:
            self._pumping = False

    def go_on(self) -> None:
        """Continue in the feed's turn."""
        self._scheduled = False
        if self._is_over:
            return
        if self._window.held:  # packets sent now would wait in memory
            self._schedule()
            return
        self.pump()

    # --- inside

    def _take_turn(self) -> None:
        window, left, left_bytes, looked_up = self._window, TURN_MESSAGES_MAX, TURN_BYTES_MAX, False
        left_steps = TURN_STEPS_MAX
        while window.is_idle:
            message: Message | None = None
            if left > 0 and left_bytes > 0:
                while message is None and left_steps > 0:
                    left_steps -= 1
                    message = next(self._messages, _END)
            if message is None:
                self._schedule()
                return
            if message is not _END and self._options is not None:
                left -= 1
                left_bytes -= len(message.payload)
                self._send(message, self._options)
            elif not self._waiting:
                self.stop()
                return
            elif looked_up:
                self._schedule()
                return
            else:
                self._filter, (subscription, change) = self._waiting.popitem(last=False)
                self._options = options_of(subscription)
                self._messages = iter(self._match(subscription.filter, change))
                looked_up = True

    def _schedule(self) -> None:
        self._scheduled = True
        if self._window.held:
            asyncio.get_running_loop().call_later(HELD_WAIT_S, self._rounds.wait, self._window.owner, self.go_on)
        else:
            self._rounds.wait(self._window.owner, self.go_on)

    def _send(self, message: Message, options: DeliveryOptions) -> None:
        window = self._window
        if not window.may_read(message.topic):
            return
        qos = min(message.qos, options.qos)
        if qos:
            window.send(self._keep(window, message), options, qos)
        else:
            window.send_at_most_once(message, options)


def options_of(subscription: ClientSubscription) -> DeliveryOptions:
    """Return the options for retained messages: for this subscription alone, and with the retain flag
    [MQTT-3.3.1-8]."""
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    options = subscription.options
    return DeliveryOptions(subscription.subscriber, options.qos, options.no_local, True, identifiers)
