"""A client's window without sockets, log or journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.bounds import FanOutCap
from weft.edge_node.counters import Counters
from weft.edge_node.sessions.packets_out import WindowContext, Wire
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window import ClientWindow
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueBudget
from weft.edge_node.subscriptions.message import Message, Outbox
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, FanOut, Subscriptions
from weft.protocols.mqtt.packets import ReasonCode, Subscription

ROOM = MESSAGE_OVERHEAD_BYTES + 1
"""What a message of one byte takes."""


class Socket(list[bytes]):
    """A connection: what was written to it, and why it was closed."""

    closed: ReasonCode | None = None

    def send(self, data: bytes) -> None:
        self.append(data)

    def send_all(self, parts: Sequence[bytes]) -> None:
        self.append(b"".join(parts))

    def displace(self, code: ReasonCode) -> None:
        self.closed = code


class Journal:
    """The journal of deliveries, which is durable when ``sync`` says so."""

    def __init__(self) -> None:
        self.noted: list[tuple[object, ...]] = []
        self.full = False
        self._waiting: list[Callable[[], None]] = []

    def sending(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        self.noted.append(("sending", client_id, dict(deliveries)))

    def completed(self, client_id: str, packet_ids: Sequence[int]) -> None:
        self.noted.append(("completed", client_id, list(packet_ids)))

    def before_sending(
        self, client_id: str, deliveries: Mapping[int, Sent], shares: Collection[str], send: Callable[[], None]
    ) -> bool:
        self.noted.append(("before_sending", client_id, dict(deliveries), sorted(shares)))
        return self._wait(send)

    def before_pubrel(self, client_id: str, packet_id: int, send: Callable[[], None]) -> bool:
        self.noted.append(("before_pubrel", client_id, packet_id))
        return self._wait(send)

    def _wait(self, send: Callable[[], None]) -> bool:
        if not self.full:
            self._waiting.append(send)
        return not self.full

    def sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()


class Clients:
    """What the windows of a test share, and the subscriptions of each to ``t`` at QoS 2."""

    def __init__(self, budget_bytes: int = 1 << 20, inflight_max: int = 2, bytes_max: int = 1 << 20) -> None:
        self.counters, self.budget, self.outbox = Counters(), QueueBudget(budget_bytes), Outbox(FanOutCap())
        self.journal = Journal()
        self.behind: list[tuple[str, int, int]] = []
        self.context = WindowContext(
            self.counters,
            self.budget,
            self.outbox,
            self.journal,  # type: ignore[arg-type]
            self.wall_clock,
            inflight_max,
            bytes_max,
        )

    def wall_clock(self) -> int:
        return 1_000_000_000

    def fall_behind(self, window: ClientWindow, first: Message | None) -> None:
        assert first is not None
        self.behind.append((window.client_id, first.stream, first.seq))

    def window(self, *, version: int = 4, persistent: bool = False) -> tuple[ClientWindow, Socket]:
        """A client that is there, and has its CONNACK."""
        window = ClientWindow("c", Wire(version), self.context, self.fall_behind)
        window.introduce(None, persistent=persistent)
        return window, self.connect(window, version=version)

    def connect(self, window: ClientWindow, receive_maximum: int = 65_535, *, version: int = 4) -> Socket:
        connection = Socket()
        window.open(connection)
        window.greet(Wire(version), receive_maximum)
        window.pump()
        self.outbox.flush()
        return connection

    def fan_out_to(self, window: ClientWindow) -> FanOut:
        subscriptions = Subscriptions()
        subscriptions.add(ClientSubscription(window, "t", Subscription("t", 2), None))
        return FanOut(subscriptions, self.outbox)

    def answered(self, window: ClientWindow) -> None:
        """As a read ends that may have brought answers."""
        window.pump()
        self.outbox.flush()
