"""Declarations of exchanges, queues and bindings by methods (classes exchange and queue of the specification)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.servers.amqp.client import AmqpClient, Shared
from weft.edge_node.servers.amqp.names import DIRECT_REPLY_TO
from weft.edge_node.servers.amqp.replies import amqp_error
from weft.protocols.amqp.methods import Method, commands

Exchange, Queue = commands.Exchange, commands.Queue


class Topology:
    """Handler of one method of these classes.

    Args:
        last_queue: name of the queue that the channel declared last: an empty name means it.
    """

    __slots__ = ("_client", "_names", "_queues", "last_queue")

    def __init__(self, shared: Shared, client: AmqpClient, last_queue: str) -> None:
        self._queues = shared.queues
        self._client = client.queue_client
        self._names = client.peer.names
        self.last_queue = last_queue

    def handle(self, method: Method) -> Method:
        """Handle the method, and return the answer. The caller sends it when the change is durable.

        Raises:
            AmqpError: it was refused; nothing has changed.
        """
        try:
            return _HANDLERS[method.index](self, method)
        except QueueError as error:
            raise amqp_error(error, method.index) from None

    # --- class exchange

    def _declare_exchange(self, method: commands.Exchange.Declare) -> Method:
        name = self._names.name(method.exchange)
        if method.passive:
            self._queues.declarations.find_exchange(name)
        else:
            self._queues.declarations.declare_exchange(
                self._client, name, method.exchange_type, durable=method.durable, auto_delete=method.auto_delete,
                internal=method.internal, arguments=self._names.arguments(method.arguments),
            )  # fmt: skip
        return Exchange.DeclareOk()

    def _delete_exchange(self, method: commands.Exchange.Delete) -> Method:
        self._queues.declarations.delete_exchange(
            self._client, self._names.name(method.exchange), if_unused=method.if_unused
        )
        return Exchange.DeleteOk()

    def _bind_exchange(self, method: commands.Exchange.Bind) -> Method:
        self._queues.declarations.bind_exchange(self._client, *self._between_exchanges(method))
        return Exchange.BindOk()

    def _unbind_exchange(self, method: commands.Exchange.Unbind) -> Method:
        self._queues.declarations.unbind_exchange(self._client, *self._between_exchanges(method))
        return Exchange.UnbindOk()

    def _between_exchanges(self, method: Any) -> tuple[str, str, str, Mapping[str, Any]]:
        names = self._names
        return (
            names.name(method.destination), names.name(method.source), names.key(method.source, method.routing_key),
            method.arguments or {},
        )  # fmt: skip

    # --- class queue

    def _declare_queue(self, method: commands.Queue.Declare) -> Method:
        name = self._names.name(method.queue)
        if name.startswith(DIRECT_REPLY_TO):
            return self._reply_queue(name)
        if method.passive:
            found = self._queues.declarations.find_queue(self._client, name or self._queue(""))
        else:
            found = self._queues.declarations.declare_queue(
                self._client, name, durable=method.durable, exclusive=method.exclusive, auto_delete=method.auto_delete,
                arguments=self._names.arguments(method.arguments),
            )  # fmt: skip
        self.last_queue = self._names.own(found.name)
        answer = Queue.DeclareOk("", found.messages, found.consumers)
        answer.queue = self.last_queue  # set unchecked: pamqp allows few characters, and the queue exists
        return answer

    def _reply_queue(self, name: str) -> Method:
        """Answer as if there were a queue: a responder checks in this way whether its answer is awaited."""
        if name != DIRECT_REPLY_TO and not self._queues.declarations.has_queue(name):
            raise QueueError(Reason.NOT_FOUND, f"no consumer waits for answers at {name!r}: its channel is closed")
        return Queue.DeclareOk(name, 0, 1)

    def _delete_queue(self, method: commands.Queue.Delete) -> Method:
        count = self._queues.declarations.delete_queue(
            self._client, self._queue(method.queue), if_unused=method.if_unused, if_empty=method.if_empty
        )
        return Queue.DeleteOk(count)

    def _bind_queue(self, method: commands.Queue.Bind) -> Method:
        # If both are left out, the key is the queue's name, too.
        key = method.routing_key if method.queue or method.routing_key else self.last_queue
        self._queues.declarations.bind(self._client, *self._to_queue(method, key))
        return Queue.BindOk()

    def _unbind_queue(self, method: commands.Queue.Unbind) -> Method:
        self._queues.declarations.unbind(self._client, *self._to_queue(method, method.routing_key))
        return Queue.UnbindOk()

    def _purge_queue(self, method: commands.Queue.Purge) -> Method:
        return Queue.PurgeOk(self._queues.declarations.purge(self._client, self._queue(method.queue)))

    def _to_queue(self, method: Any, key: str) -> tuple[str, str, str, Mapping[str, Any]]:
        names = self._names
        return (
            self._queue(method.queue), names.name(method.exchange), names.key(method.exchange, key),
            method.arguments or {},
        )  # fmt: skip

    def _queue(self, name: str) -> str:
        return self._names.name(name or self.last_queue)


_HANDLERS: Mapping[int, Callable[[Topology, Any], Method]] = {
    Exchange.Declare.index: Topology._declare_exchange,
    Exchange.Delete.index: Topology._delete_exchange,
    Exchange.Bind.index: Topology._bind_exchange,
    Exchange.Unbind.index: Topology._unbind_exchange,
    Queue.Declare.index: Topology._declare_queue,
    Queue.Delete.index: Topology._delete_queue,
    Queue.Bind.index: Topology._bind_queue,
    Queue.Unbind.index: Topology._unbind_queue,
    Queue.Purge.index: Topology._purge_queue,
}
