"""Members of shared subscriptions, and other subscribers, without sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.bounds import Owner
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions
from weft.protocols.mqtt.packets import Subscription


class FakeMember:
    """A client that takes so many messages, and keeps a list of what it was given."""

    owner: Owner | None = None

    def __init__(self, client_id: str, room: int = 1 << 20, *, persistent: bool = False) -> None:
        self.client_id = client_id
        self.persistent = persistent
        self.connected = True
        self.room = room
        self.got: list[bytes] = []
        self.noted: list[bytes] = []
        self.pending: dict[int, tuple[Message, DeliveryOptions, int]] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.unreadable: set[bytes] = set()

    def may_read(self, topic: bytes) -> bool:
        return topic not in self.unreadable

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:
        self.send(message, options, qos)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        self.got.append(message.payload)

    def takes(self, qos: int) -> bool:
        return self.connected and (not qos or len(self.pending) < self.room)

    def send(self, message: Message, options: DeliveryOptions, qos: int, *, noted: bool = False) -> None:
        self.got.append(message.payload)
        self.pending[len(self.got)] = message, options, qos
        if noted:
            self.noted.append(message.payload)

    def unanswered(self, share: str) -> list[tuple[int, Message]]:
        return [(i, each[0]) for i, each in self.pending.items() if each[1].share == share and each[2] == 1]

    def unsettled(self, share: str) -> Iterable[tuple[int, int]]:
        return [(each[0].stream, each[0].seq) for each in self.pending.values() if each[1].share == share]

    def give_back(self, packet_id: int) -> None:
        del self.pending[packet_id]

    def when_room(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def no_longer_when_room(self, callback: Callable[[], None]) -> None:
        self.callbacks.remove(callback)

    def acknowledge(self) -> None:
        """Acknowledge everything: there is room again."""
        self.pending.clear()
        for callback in list(self.callbacks):
            callback()

    def goes(self) -> None:
        self.connected = False


def subscription(member: FakeMember, text: str, qos: int = 1, **options: bool) -> ClientSubscription:
    """A subscription without a share."""
    return ClientSubscription(member, text, Subscription(text, qos, **options), None)
