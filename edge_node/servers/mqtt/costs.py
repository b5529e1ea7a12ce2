"""Costs of packets in a client's turn."""

from __future__ import annotations

from weft.protocols.mqtt.packets import Packet, PingReq, Subscribe, Unsubscribe


def cost(packet: Packet) -> int:
    """Return what a packet is charged with. Publishes cost their time alone: a client that sends much is what the node
    is there for."""
    if isinstance(packet, Subscribe | Unsubscribe):
        return len(packet.filters)
    return isinstance(packet, PingReq)
