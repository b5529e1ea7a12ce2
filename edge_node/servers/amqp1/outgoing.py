"""A link on which a client receives: credit, deliveries, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from weft.edge_node.servers.amqp1 import deliveries, endpoints
from weft.edge_node.servers.amqp1.items import Item, Supply
from weft.edge_node.servers.amqp1.mapping import to_message
from weft.edge_node.subscriptions.queue_budget import QueueAccount
from weft.protocols.amqp1.message import message_parts

UNSETTLED_MAX = 2048
"""Maximum number of unsettled deliveries of one link, for any credit."""
LONG_BYTES = 64 << 10
"""Length above which the frames of a message are made in turns: 4 MB take the engine 8 ms."""
WINDOW_BYTES = 256 << 10
"""Bytes that the engine holds for one session because the client's window is closed."""


class ReceivingClient(Protocol):
    """The connection (``Amqp1Connection``)."""

    @property
    def takes_more(self) -> bool:
        """Return whether its socket has room."""
        ...

    def flush(self) -> None:
        """Send the engine's output."""

    def flush_in_turn(self) -> None:
        """Send the engine's output at the client's turn."""

    def owes(self, link: OutgoingLink) -> None:
        """Call the link's ``left`` once the engine has made frames."""

    def room_in_turn(self) -> None:
        """Let links resume at the client's turn."""


class OutgoingLink:
    """A link on which a client receives."""

    __slots__ = ("_account", "_client", "_counters", "_has_long", "_is_settled", "_link", "_session",
                 "_tag", "_unsettled", "_wall_clock", "is_open", "supply", "unsent")  # fmt: skip

    def __init__(
        self, client: ReceivingClient, link: Any, account: QueueAccount, wall_clock: Callable[[], int], counters: Any
    ) -> None:
        """Wait for ``begin``.

        Args:
            account: account for unsettled messages.
            wall_clock: nanoseconds since 1970.
            counters: the node's.
        """
        self._client = client
        self._link = link
        self._session = link.session
        self._account = account
        self._wall_clock = wall_clock
        self._counters = counters
        self._is_settled = endpoints.wants_settled(link)
        self._tag = 0
        self._has_long = False
        """True while a long message was sent and not flushed."""
        self.unsent = 0
        """Bytes of settled messages that the engine may still have."""
        self._unsettled: dict[int, Item] = {}
        """Number of a delivery -> its message, in the order of sending."""
        self.is_open = True
        self.supply: Supply

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        return (
            self.is_open
            and deliveries.credit(self._link) > 0
            and self._client.takes_more
            and len(self._unsettled) < UNSETTLED_MAX
            and self._has_memory()
            and self._session.outgoing_bytes < WINDOW_BYTES
        )

    def _has_memory(self) -> bool:
        if not self._account.is_full():
            return True
        self._account.when_free(self._client.room_in_turn)
        return False

    @property
    def free(self) -> int:
        """Return the number of messages that can be sent at once."""
        if not self.has_room:
            return 0
        return min(deliveries.credit(self._link), UNSETTLED_MAX - len(self._unsettled))

    @property
    def unsettled(self) -> list[Item]:
        """Return the unsettled messages, in the order of sending."""
        return list(self._unsettled.values())

    def begin(self) -> None:
        """Start the supply."""
        self.supply.start()

    def send(self, item: Item) -> bool:
        """Send a message; there is room. Return False where it has expired or is too long for the client."""
        now = self._wall_clock()
        if item.message.expired(now):
            self._counters.messages_expired += 1
            return False
        parts = message_parts(
            to_message(item.message, now, item.place, item.attempts, is_redelivered=item.is_redelivered)
        )
        size, limit = sum(map(len, parts)), self._link.remote_max_message_size
        if limit and size > limit:
            self._counters.deliveries_too_large += 1
            return False
        if size > LONG_BYTES:
            self._has_long = True  # and not copied once more
        else:
            parts = [b"".join(parts)]
        self._tag += 1
        number, _ = deliveries.send(self._link, self._tag.to_bytes(8, "big"), parts, settled=self._is_settled)
        self._counters.deliveries_sent += 1
        self._account.take(item.size)
        if self._is_settled:
            self.unsent += item.size
            self._client.owes(self)
        else:
            self._unsettled[number] = item
        return True

    def flush(self) -> None:
        """Write the sent messages."""
        if self._has_long:
            self._has_long = False
            self._client.flush_in_turn()
        else:
            self._client.flush()

    def room_in_turn(self) -> None:
        """Resume sending at the client's turn."""
        self._client.room_in_turn()

    def left(self) -> bool:
        """Free messages whose frames the engine has made, and resume sending. Return whether there were any."""
        kept = min(self.unsent, self._session.outgoing_bytes)
        if kept == self.unsent:
            return False
        freed, self.unsent = self.unsent - kept, kept
        self._account.free(freed)
        self.room()
        return True

    def idle(self) -> None:
        """Return the credit of a client in drain mode, as there is nothing to send."""
        if self.is_open and self._link.drain_mode:
            self._link.drained()

    def end(self, *, closed: bool) -> None:
        """Stop sending: the link is gone."""
        if not self.is_open:
            return
        self.is_open = False
        unsettled, self._unsettled = self.unsettled, {}
        self._account.free(sum(item.size for item in unsettled) + self.unsent)
        self.unsent = 0
        self.supply.stop(unsettled, for_good=closed)

    def stolen(self) -> None:
        """Close the link: another connection of its container has attached it (part 2, section 2.6.1)."""
        self.end(closed=False)
        endpoints.fail(self._link, "amqp:link:stolen", "another connection of its container has attached it")
        self._client.flush()

    def lost(self, reason: str, condition: str) -> None:
        """Close the link: its source was deleted, or the client may no longer read it."""
        if self.is_open:
            self.end(closed=False)
            endpoints.fail(self._link, condition, reason)
            self._client.flush()

    def permissions_changed(self) -> None:
        """Close the link if the client may no longer read there."""
        if self.is_open and not self.supply.may_go_on():
            self.end(closed=False)
            endpoints.fail(self._link, "amqp:unauthorized-access", "the client may not read there any more")

    def room(self) -> None:
        """Resume sending: the socket has room."""
        if self.is_open:
            self.supply.room()

    def flow(self) -> None:
        """Resume sending: credit has changed."""
        if self.is_open:
            self.supply.room()
            if self.supply.is_idle:
                self.idle()

    def delivery(self, delivery: Any) -> None:
        """Handle the outcome of a delivery."""
        number = deliveries.number_of(delivery)
        if number not in self._unsettled:
            return
        outcome = deliveries.outcome(delivery)
        if outcome is None:
            return
        item = self._unsettled.pop(number)
        self._account.free(item.size)
        deliveries.settle(delivery)
        if outcome.is_final or outcome.undeliverable or not item.is_kept:
            self.supply.done(item, outcome)
        else:
            self.supply.again(item._replace(attempts=item.attempts + outcome.failed))
        self.supply.room()
