"""Transactions of one channel (class tx): publishes and acknowledgements that take effect together, in one commit of
the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from weft.edge_node.ingest.record import Gathering
from weft.edge_node.ingest.routes import COPY_COST
from weft.edge_node.ingest.turn import COST_MAX
from weft.edge_node.queues.message import Delivery, Outcome
from weft.edge_node.servers.amqp.client import AmqpClient, Shared
from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.methods import commands

RECORD_BYTES = 512
"""Charge for a message or acknowledgement that waits for its commit, beside its body."""
RESERVE_BYTES = 64 << 10
TRANSACTION_COST_MAX = 8 * COST_MAX
"""Highest cost of one commit, in units of ``Route.cost``: a commit is one step."""


class Publishing(Protocol):
    """Publishes of the channel."""

    def gather(
        self, gathered: Gathering, method: commands.Basic.Publish, properties: bytes, body: bytes, frame: bytes = b""
    ) -> None:
        """Add a message to the gathered records."""


class ChannelDeliveries(Protocol):
    """Deliveries of the channel."""

    def give_back(self, deliveries: Mapping[int, Delivery]) -> None:
        """Mark deliveries as unsettled again."""


class Transaction:
    """Publishes and acknowledgements of a channel since tx.select, or the last commit or rollback."""

    __slots__ = ("_bytes", "_client", "_gathered", "_number", "_settled", "_shared")

    def __init__(self, shared: Shared, client: AmqpClient, number: int) -> None:
        self._shared = shared
        self._client = client
        self._number = number
        self._gathered = Gathering()
        self._settled: list[tuple[dict[int, Delivery], Outcome]] = []
        self._bytes = 0
        """Bytes charged for messages and acknowledgements that wait for the commit."""

    def publish(self, publishing: Publishing, method: commands.Basic.Publish, properties: bytes, body: bytes) -> None:
        """Add a message, which takes effect with the commit.

        Raises:
            AmqpError: it cannot be published, or is one too many.
        """
        before = self._gathered.cost
        publishing.gather(self._gathered, method, properties, body)
        if before and self._gathered.cost > TRANSACTION_COST_MAX:
            copies = TRANSACTION_COST_MAX // COPY_COST
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"a transaction makes more than {copies} copies in queues or {TRANSACTION_COST_MAX} deliveries to "
                "subscribers; commit more often",
                commands.Basic.Publish.index,
            )
        self._charge(len(body) + len(properties) + RECORD_BYTES)

    def settle(self, deliveries: dict[int, Delivery], outcome: Outcome) -> None:
        """Add acknowledgements, which take effect with the commit."""
        self._settled.append((deliveries, outcome))
        self._charge(RECORD_BYTES * len(deliveries))

    def commit(self, done: Callable[[], None]) -> None:
        """Store all of it in one commit; call back when that is durable.

        Raises:
            LogFull, LogFailed: nothing was stored, and nothing was acknowledged.
        """
        context, shared = self._shared.context, self._shared
        context.ingest.turn.store()  # earlier publishes come first
        gathered, settled, size = self._gathered, self._settled, self._bytes
        if gathered or settled:
            with context.ingest.log.together(RESERVE_BYTES + size * 2):
                if gathered:
                    context.ingest.store(gathered)
                for deliveries, outcome in settled:
                    shared.queues.settle_together(list(deliveries.values()), outcome)
                shared.queues.flush()
        self._begin()
        shared.counters.amqp_transactions += 1

        def durable(error: BaseException | None) -> None:
            if error is None:
                done()
            else:
                self._client.fail(AmqpError(ReplyCode.INTERNAL_ERROR, f"the transaction is lost: {error}"))

        context.ingest.on_durable(durable)

    def rollback(self, consuming: ChannelDeliveries) -> None:
        """Forget all of it. Acknowledged deliveries become unsettled again; the client may recover them."""
        for deliveries, _ in self._settled:
            consuming.give_back(deliveries)
        self._begin()

    def end(self, consuming: ChannelDeliveries | None) -> None:
        """Roll back: the channel is closed."""
        if consuming is not None:
            self.rollback(consuming)
        else:
            self._begin()

    def _begin(self) -> None:
        self._gathered, self._settled = Gathering(), []
        self._charge(-self._bytes)

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._client.inbox.content_bytes += size
