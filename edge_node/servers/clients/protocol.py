"""A protocol as a part of the node, and those that there are."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.config.listeners import ListenerProtocol, has_listener
from weft.config.models import EdgeConfig
from weft.edge_node.part import Part
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.listeners.door import Arrival, Door

if TYPE_CHECKING:
    from weft.edge_node.queues.queues import Queues


@dataclass(frozen=True, slots=True)
class Foundation:
    """Parts of the node that a protocol is made with."""

    config: EdgeConfig
    software: str
    """Name and version of the node, for its clients."""
    context: ProtocolContext
    queues: Queues | None
    """None where no listener has them, and none had before."""


class ProtocolPart(Part):
    """Base of the protocols. Its ``__init__`` takes up what the last run left: before clients connect, so it may block
    on the disk.

    Each is imported where a listener speaks it, and loads with its first client what an idle node can do without.
    """

    prefixes: tuple[bytes, ...] = ()
    """First bytes of its clients, where another protocol has the same listeners; all of one length."""
    greeting = b""
    """Answer to clients of a protocol that such listeners do not have."""

    def connect(self, door: Door, arrival: Arrival) -> asyncio.Protocol:
        """Return the side of a connection that knows the protocol."""
        raise NotImplementedError


PROTOCOLS: dict[ListenerProtocol, tuple[str, ...]] = {
    "http": ("weft.edge_node.servers.http.part",),
    "amqp": ("weft.edge_node.servers.amqp1.part", "weft.edge_node.servers.amqp.part"),
}
"""Protocol of a listener -> modules, each with a ``make``. MQTT is not among them: its sessions, retained messages and
wills are there whatever the listeners speak."""


def protocols(foundation: Foundation) -> Iterator[tuple[ListenerProtocol, ProtocolPart]]:
    """Make those that the listeners of a node speak, with the name that its configuration has for them."""
    for name, modules in PROTOCOLS.items():
        if has_listener(name, foundation.config.listeners):
            for module in modules:
                yield name, importlib.import_module(module).make(foundation)
