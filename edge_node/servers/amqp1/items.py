"""Messages on their way to a receiver, and the interfaces of their origin and their link."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES


class Outcome(NamedTuple):
    """An outcome of AMQP, one of four."""

    name: str
    failed: bool = False
    """True if the attempt counts as failed (``modified``)."""
    undeliverable: bool = False
    """True if the same link must not get the message again (``modified``)."""

    @property
    def is_final(self) -> bool:
        """Return whether the message is not delivered again."""
        return self.name in ("accepted", "rejected")


class Outcomes:
    """Outcomes without details."""

    ACCEPTED = Outcome("accepted")
    REJECTED = Outcome("rejected")
    RELEASED = Outcome("released")


class Item(NamedTuple):
    """A message on its way to a link."""

    message: Message
    attempts: int = 0
    """Number of earlier deliveries without success."""
    place: tuple[str, int] | None = None
    """Name of its stream and its seq there, for receivers of streams."""
    is_kept: bool = True
    """False for a message at QoS 0: it is never delivered again."""
    delivery: Any = None
    """Delivery of the message's queue."""
    is_redelivered: bool = False
    """True if it was, or may have been, delivered before, even where no attempt has failed."""

    @property
    def size(self) -> int:
        """Return the bytes charged until the message is settled."""
        return len(self.message.payload) + self.message.header_bytes + MESSAGE_OVERHEAD_BYTES


class Supply(Protocol):
    """Origin of a link's messages. Two answers end a delivery: ``again`` and ``done``."""

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to send now."""
        ...

    def start(self) -> None:
        """Begin to send."""

    def room(self) -> None:
        """Resume sending: there may be room again."""

    def again(self, item: Item) -> None:
        """Send a message once more."""

    def done(self, item: Item, outcome: Outcome) -> None:
        """Note that a message is finished."""

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Stop sending: the link is gone.

        Args:
            unsettled: unsettled messages, in the order of sending.
            for_good: the client has closed the link, and will not resume it.
        """

    def may_go_on(self) -> bool:
        """Return whether the client may still read this, after access rules have changed."""
        ...


class Outlet(Protocol):
    """The link of a supply (``OutgoingLink``)."""

    supply: Supply

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        ...

    @property
    def unsettled(self) -> list[Item]:
        """Return the unsettled messages, in the order of sending."""
        ...

    @property
    def free(self) -> int:
        """Return the number of messages that can be sent at once."""
        ...

    def send(self, item: Item) -> bool:
        """Send a message; there is room. Return False where it has expired or is too long for the client."""
        ...

    def flush(self) -> None:
        """Write the sent messages."""

    def room_in_turn(self) -> None:
        """Call the supply's ``room`` at the client's turn."""

    def idle(self) -> None:
        """Note that there is nothing to send."""
