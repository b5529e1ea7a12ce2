"""A protocol as a part of the node, and the list of protocols."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.config.intake.listeners import ListenerProtocol, has_listener
from weft.config.models import EdgeConfig
from weft.edge_node.part import Part
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.listeners.door import Arrival, Door

if TYPE_CHECKING:
    from weft.edge_node.queues.queues import Queues


@dataclass(frozen=True, slots=True)
class Foundation:
    """Parts of the node from which a protocol is created."""

    config: EdgeConfig
    software: str
    """Name and version of the node, for its clients."""
    context: ProtocolContext
    queues: Queues | None
    """None where no listener serves them, and none did before."""


class ProtocolPart(Part):
    """Base of the protocols. Its ``__init__`` restores the state of the last run before clients connect, so it may
    block on the disk.

    Each is imported where a listener uses it, and loads the modules that only clients need with the first client.
    """

    prefixes: tuple[bytes, ...] = ()
    """First bytes of its clients, where another protocol has the same listeners; all of one length."""
    greeting = b""
    """Answer to clients of an unknown protocol at such listeners."""

    def connect(self, door: Door, arrival: Arrival) -> asyncio.Protocol:
        """Return the protocol object of a connection."""
        raise NotImplementedError


PROTOCOLS: dict[ListenerProtocol, tuple[str, ...]] = {
    "http": ("weft.edge_node.servers.http.part",),
    "amqp": ("weft.edge_node.servers.amqp1.part", "weft.edge_node.servers.amqp.part"),
}
"""Protocol of a listener -> modules, each with a ``make``. MQTT is not among them: its sessions, retained messages and
wills exist with any listeners."""


def protocols(foundation: Foundation) -> Iterator[tuple[ListenerProtocol, ProtocolPart]]:
    """Yield the protocols of a node's listeners, each with its name in the configuration."""
    for name, modules in PROTOCOLS.items():
        if has_listener(name, foundation.config.listeners):
            for module in modules:
                yield name, importlib.import_module(module).make(foundation)
