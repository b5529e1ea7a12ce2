"""The rules of a connection, seen from the server: which packet may come when, and for how long none may come."""

from __future__ import annotations

from enum import Enum, auto

from protocols.mqtt.errors import ConnectCode, ConnectRefused, ProtocolViolation
from protocols.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    Unsubscribe,
)


class State(Enum):
    """Where a connection is in its life."""

    AWAITING_CONNECT = auto()
    OPEN = auto()
    CLOSED = auto()


_NEXT: dict[State, dict[type[Packet], State]] = {
    State.AWAITING_CONNECT: {Connect: State.OPEN},
    State.OPEN: {
        Publish: State.OPEN,
        PubAck: State.OPEN,
        PubRel: State.OPEN,
        Subscribe: State.OPEN,
        Unsubscribe: State.OPEN,
        PingReq: State.OPEN,
        Disconnect: State.CLOSED,
    },
    State.CLOSED: {},
}
"""State -> packets a client may send -> next state. PUBREC and PUBCOMP are not there: they answer deliveries at
QoS 2, and no subscription is granted more than QoS 1."""

CLIENT_ID_BYTES_MAX = 1024
"""Longer client identifiers are refused: the server keeps one for every session. 23 would be enough [MQTT-3.1.3-5]."""

KEEP_ALIVE_GRACE = 1.5
"""A client may be silent for this many times its keep alive [MQTT-3.1.2-24]."""


class Connection:
    """The state of one client's connection. No I/O, no clock: the caller says what came."""

    __slots__ = ("silence_s_max", "state")

    def __init__(self) -> None:
        self.state = State.AWAITING_CONNECT
        self.silence_s_max: float | None = None
        """Seconds without a packet after which the client counts as gone; None for ever."""

    def receive(self, packet: Packet) -> None:
        """Take note of a packet from the client.

        Raises:
            ProtocolViolation: the packet may not come in this state.
            ConnectRefused: a CONNECT with an unacceptable client identifier.
        """
        following = _NEXT[self.state].get(type(packet))
        if following is None:
            raise self._violation(packet)
        if isinstance(packet, Connect):
            self._check_connect(packet)
        self.state = following

    def _check_connect(self, packet: Connect) -> None:
        if not packet.client_id and not packet.clean_session:
            raise ConnectRefused(
                ConnectCode.IDENTIFIER_REJECTED,
                "an empty client identifier needs clean session; give the client an identifier", "3.1.3-8",
            )  # fmt: skip
        if len(packet.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise ConnectRefused(
                ConnectCode.IDENTIFIER_REJECTED,
                f"the client identifier is over {CLIENT_ID_BYTES_MAX} bytes; give the client a shorter one", "3.1.3-9",
            )  # fmt: skip
        if packet.keep_alive_s:
            self.silence_s_max = KEEP_ALIVE_GRACE * packet.keep_alive_s

    def _violation(self, packet: Packet) -> ProtocolViolation:
        name = type(packet).__name__.upper()
        if self.state is State.AWAITING_CONNECT:
            return ProtocolViolation(f"{name} before CONNECT", "3.1.0-1")
        if self.state is State.CLOSED:
            return ProtocolViolation(f"{name} after DISCONNECT", "3.14.4-2")
        if isinstance(packet, Connect):
            return ProtocolViolation("a second CONNECT", "3.1.0-2")
        return ProtocolViolation(f"{name} is nothing that a client may send here")
