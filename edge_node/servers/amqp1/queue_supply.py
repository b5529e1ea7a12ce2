"""Messages of a queue for one link."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.queues import message as queues_message
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.message import Delivery
from weft.edge_node.queues.queue.credit import Credit
from weft.edge_node.queues.queue.queue import Consumption, QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp1.items import Item, Outcome, Outlet
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import Message
from weft.protocols.batch import Flag
from weft.protocols.message_headers import EXPIRES

_Settled = queues_message.Outcome


class QueueSupply:
    """The ``Supply`` of such a link, and the ``Consumer`` of its queue. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        link: Outlet,
        queues: Queues,
        client: QueueClient,
        name: str,
        gone: Callable[[str, str], None],
        call_soon: Callable[[Callable[[], None]], object],
        *,
        settled: bool,
    ) -> None:
        """Prepare to consume from ``start`` on.

        Args:
            gone: closes the link, because its queue was deleted, or the client may no longer read it; takes the reason,
                and AMQP's name of it.
            call_soon: the loop's.
            settled: True if the client wants messages settled.
        """
        self._link = link
        self._queues = queues
        self._client = client
        self._name = name
        self._gone = gone
        self._call_soon = call_soon
        self._is_settled = settled
        self._credit = Credit(0)
        self._consumption: Consumption | None = None

    def begin(self) -> None:
        """Join the queue's consumers.

        Raises:
            QueueError: there is no such queue, the client may not read it, or another consumer has it exclusively.
        """
        self._consumption = self._queues.consume(
            self._client, self._name, self, [self._credit], needs_acks=not self._is_settled
        )

    # --- Supply

    @property
    def is_idle(self) -> bool:
        """Return whether the queue has nothing for the link now."""
        return self._consumption is None or not self._consumption.queue.ready.count

    def start(self) -> None:
        """Begin to send."""
        self.room()

    def room(self) -> None:
        """Let the queue send as far as there is room."""
        self._credit.set_limit(self._link.free)

    def again(self, item: Item) -> None:
        """Put a message back into the queue."""
        failed = item.attempts > item.delivery.attempts
        self._queues.settle([item.delivery], _Settled.REQUEUE if failed else _Settled.RELEASE)

    def done(self, item: Item, outcome: Outcome) -> None:
        """Remove a message from the queue; a rejected one is dead-lettered."""
        self._queues.settle([item.delivery], _Settled.ACCEPT if outcome.name == "accepted" else _Settled.REJECT)

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Leave the queue, and put unsettled messages back: after a broken connection each counts as a failure."""
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            self._queues.cancel(consumption)
        self._queues.settle([item.delivery for item in unsettled], _Settled.RELEASE if for_good else _Settled.REQUEUE)

    def may_go_on(self) -> bool:
        """Return True: the queue checks each message, and reports when the client may no longer read it."""
        return True

    # --- Consumer

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Send messages."""
        refused = []
        for delivery, found in batch:
            expires = next((value for name, value in found.headers if name == EXPIRES and isinstance(value, int)), 0)
            qos = 0 if found.flags & Flag.PUBLISHED_QOS0 else 1
            message = Message(found.topic, found.payload, qos, expires_ns=expires, headers=found.headers)
            item = Item(message, delivery.attempts, delivery=delivery, is_redelivered=delivery.redelivered)
            if not self._link.send(item):
                refused.append(delivery)
        if refused and not self._is_settled:  # later: the queue must not be called within this method
            self._call_soon(lambda: self._queues.settle(refused, _Settled.REJECT))
        if self.is_idle:
            self._link.idle()
        self._link.flush()

    def cancelled(self, error: QueueError) -> None:
        """Close the link: its queue was deleted, or the client may no longer read it."""
        self._consumption = None
        is_forbidden = error.reason is Reason.ACCESS_REFUSED
        self._gone(str(error), "amqp:unauthorized-access" if is_forbidden else "amqp:resource-deleted")
