"""Contract of a subscriber, its subscriptions, and their combined delivery options for a topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from weft.bounds import Owner
from weft.edge_node.subscriptions.message import Message
from weft.protocols.mqtt.packets import Subscription


class Subscriber(Protocol):
    """A client of any protocol that messages are delivered to. Compared by identity."""

    client_id: str

    @property
    def persistent(self) -> bool:
        """Return whether the client gets messages later that it misses while it is away."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let it read messages of a topic."""
        ...

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:
        """Deliver at QoS 1 or 2: now, later, or from the log. Messages that are not in the log may be dropped."""

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        """Deliver at QoS 0, or drop the message when the client is slow or away."""


class Member(Subscriber, Protocol):
    """A subscriber as a member of a shared subscription, which chooses the recipient of each message."""

    owner: Owner | None
    """Owner that its memory is charged to; None for the node."""

    @property
    def connected(self) -> bool:
        """Return whether the client is connected, slow or not."""
        ...

    def takes(self, qos: int) -> bool:
        """Return whether one more message at this QoS can be sent at once."""
        ...

    def send(self, message: Message, options: DeliveryOptions, qos: int, *, noted: bool = False) -> None:
        """Send at QoS 1 or 2, after ``takes`` has returned True.

        Args:
            noted: the journal must record, before the client receives the message, that it is this member's.
        """

    def unanswered(self, share: str) -> Sequence[tuple[int, Message]]:
        """Return the QoS 1 deliveries of a share that the client has not acknowledged, in the order of sending."""
        ...

    def unsettled(self, share: str) -> Iterable[tuple[int, int]]:
        """Return (stream, seq) of the deliveries of a share that this client would lose in a crash."""
        ...

    def give_back(self, packet_id: int) -> None:
        """Remove a delivery from flight: another member gets it."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back each time that there may be room again."""

    def no_longer_when_room(self, callback: Callable[[], None]) -> None:
        """Stop calling back."""


class ClientSubscription:
    """One subscription of one client. Compared by identity."""

    __slots__ = ("filter", "identifier", "options", "subscriber")

    def __init__(
        self, subscriber: Subscriber, topic_filter: str, options: Subscription, identifier: int | None
    ) -> None:
        self.subscriber = subscriber
        self.filter = topic_filter
        """Filter that topics are matched against, without ``$share/{name}/``."""
        self.options = options
        self.identifier = identifier


class DeliveryOptions(msgspec.Struct, frozen=True, eq=False):
    """Options of one client for the messages of a topic. Its matching subscriptions make one delivery (section 3.3.4).

    Compared by identity.
    """

    subscriber: Subscriber
    qos: int
    """Highest QoS that was granted."""
    no_local: bool = False
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()
    """Subscription identifiers; a client with any gets packets of its own."""
    share: str | None = None
    """Name of the shared subscription of the messages; None for the client's own subscriptions."""


def delivery_options(subscriptions: Collection[ClientSubscription], share: str | None = None) -> DeliveryOptions:
    """Return the combined options of one client's subscriptions."""
    return DeliveryOptions(
        next(iter(subscriptions)).subscriber,
        qos=max(each.options.qos for each in subscriptions),
        no_local=all(each.options.no_local for each in subscriptions),
        retain_as_published=any(each.options.retain_as_published for each in subscriptions),
        identifiers=tuple(each.identifier for each in subscriptions if each.identifier),
        share=share,
    )
