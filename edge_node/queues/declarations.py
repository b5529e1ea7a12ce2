"""Requests of clients to declare, bind and delete, in the order of their publishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.edge_node.ingest.turn import Turn
from weft.edge_node.queues.contents.contents import Contents
from weft.edge_node.queues.contents.unused import UnusedQueues
from weft.edge_node.queues.definitions import SERVER_NAME, check_not_default
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.message import Declared
from weft.edge_node.queues.queue.queue import Queue, QueueClient
from weft.edge_node.queues.registry import Registry
from weft.edge_node.queues.rights import CHANGE, LOOK


class Declarations:
    """Changes of exchanges, queues and bindings. Event loop's thread only.

    Changes are applied when a call returns, and durable with the next commit: have ``Turn.answer`` send the answer.
    """

    def __init__(self, registry: Registry, contents: Contents, turn: Turn, unused: UnusedQueues) -> None:
        self._registry = registry
        self._contents = contents
        self._turn = turn
        self._unused = unused

    # --- exchanges

    def declare_exchange(
        self,
        client: QueueClient,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange. ``alternate-exchange`` is the only known argument.

        Raises:
            QueueError: UNKNOWN_KIND, ACCESS_REFUSED (reserved name, or access rules), PRECONDITION_FAILED (it exists
                and differs, or an argument is invalid), TOO_MANY, NO_ROOM.
        """
        self._registry.declare_exchange(
            client, name, kind, arguments or {}, durable=durable, auto_delete=auto_delete, internal=internal
        )  # fmt: skip

    def find_exchange(self, name: str) -> None:
        """Check that there is an exchange: a passive declaration.

        Raises:
            QueueError: NOT_FOUND; ACCESS_REFUSED for the default exchange.
        """
        check_not_default(name)
        self._registry.topology.exchange(name)

    def delete_exchange(self, client: QueueClient, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; do nothing where there is none.

        Raises:
            QueueError: ACCESS_REFUSED (the node's own, or another user's), IN_USE.
        """
        self._turn.store()
        self._registry.delete_exchange(client, name, if_unused=if_unused)

    # --- queues

    def declare_queue(
        self,
        client: QueueClient,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        own_name: str = SERVER_NAME,
    ) -> Declared:
        """Declare a queue; without a name the node chooses one.

        Args:
            own_name: beginning of that name.

        Raises:
            QueueError: ACCESS_REFUSED (reserved name, or access rules), RESOURCE_LOCKED (it is exclusive, and only one
                of the two declarations is exclusive, or it is another connection's), PRECONDITION_FAILED (it exists and
                differs, or an argument is invalid), TOO_MANY, NO_ROOM.
        """
        self._turn.store()
        queue = self._registry.declare_queue(
            client, name, arguments or {}, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
            own_name=own_name,
        )  # fmt: skip
        self._unused.used(queue)
        return self._declared(queue)

    def find_queue(self, client: QueueClient, name: str) -> Declared:
        """Return the facts of a queue: a passive declaration.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED.
        """
        self._turn.store()
        return self._declared(self._registry.queue(client, name, LOOK))

    def has_queue(self, name: str) -> bool:
        """Return whether there is a queue, also an exclusive one of another connection."""
        return name in self._registry.queues

    def delete_queue(self, client: QueueClient, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; do nothing where there is none. Return the number of messages deleted with it.

        Raises:
            QueueError: RESOURCE_LOCKED, ACCESS_REFUSED (another user's, unless rules permit it), IN_USE.
        """
        if name not in self._registry.queues:
            client.check_missing(name, CHANGE)
            return 0
        self._turn.store()
        queue = self._registry.queue(client, name, CHANGE)
        if if_unused and queue.consumptions:
            raise QueueError(Reason.IN_USE, f"queue {name!r} has consumers: cancel them, or delete it all the same")
        if if_empty and queue.count:
            raise QueueError(Reason.IN_USE, f"queue {name!r} has messages: purge it, or delete it all the same")
        count = queue.count
        self._registry.remove_queue(queue)
        return count

    def purge(self, client: QueueClient, name: str) -> int:
        """Remove all messages that are ready. Return their number.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED (another user's).
        """
        self._turn.store()
        queue = self._registry.queue(client, name, CHANGE)
        return self._contents.purge(queue)

    # --- bindings

    def bind(
        self, client: QueueClient, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Bind a queue to an exchange.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED (the default exchange, or access rules),
                PRECONDITION_FAILED (an argument is invalid), TOO_MANY, NO_ROOM.
        """
        found = self._registry.queue(client, queue, LOOK)
        binding = self._registry.binding(exchange, found.name, key, arguments or {}, to_exchange=False)
        self._registry.bind(client, binding)

    def unbind(
        self, client: QueueClient, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove a binding; do nothing where it does not exist, or its queue or exchange does not.

        Programs unbind as they end, when a queue or an exchange may have been deleted with its last consumer or
        binding.

        Raises:
            QueueError: as ``bind``, except for NOT_FOUND.
        """
        if queue not in self._registry.queues:
            client.check_missing(queue, LOOK)
            return
        found = self._registry.queue(client, queue, LOOK)
        if exchange not in self._registry.topology.exchanges:
            return
        binding = self._registry.binding(exchange, found.name, key, arguments or {}, to_exchange=False)
        self._registry.unbind(client, binding)

    def bind_exchange(
        self,
        client: QueueClient,
        destination: str,
        source: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind an exchange to another: ``destination`` routes on the messages that match the binding at ``source``.

        Raises:
            QueueError: as ``bind``.
        """
        binding = self._registry.binding(source, destination, key, arguments or {}, to_exchange=True)
        self._registry.bind(client, binding)

    def unbind_exchange(
        self,
        client: QueueClient,
        destination: str,
        source: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Remove a binding between exchanges; do nothing where it does not exist, or one of them does not.

        Raises:
            QueueError: as ``bind``, except for NOT_FOUND.
        """
        if not {source, destination} <= self._registry.topology.exchanges.keys():
            return
        binding = self._registry.binding(source, destination, key, arguments or {}, to_exchange=True)
        self._registry.unbind(client, binding)

    def _declared(self, queue: Queue) -> Declared:
        return Declared(queue.name, queue.count, len(queue.consumptions))
