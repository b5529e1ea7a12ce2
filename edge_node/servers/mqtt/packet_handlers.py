"""Handlers of an admitted client's packets: the conversation between CONNACK and the end of a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.servers.clients.context import TURN_COST_MAX
from weft.edge_node.servers.mqtt.publishes import Publishes
from weft.edge_node.servers.mqtt.server import MqttClient, MqttServer
from weft.edge_node.sessions.session import Session
from weft.protocols.mqtt.connection import Connection
from weft.protocols.mqtt.encoder import PINGRESP, PUBACK, PUBREL
from weft.protocols.mqtt.packets import (
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from weft.storage.segment_log import LogError

CHANGE_WAIT_S_MIN = 0.05
"""Shortest wait of a client whose user has changed its sessions too much: many of them must not wake each other."""

_T = TypeVar("_T")


class PacketHandlers:
    """One client that has its CONNACK. The connection handles errors."""

    __slots__ = ("_client", "_context", "_machine", "_server", "publishes", "session")

    def __init__(
        self, server: MqttServer, client: MqttClient, machine: Connection, session: Session, publishes: Publishes
    ) -> None:
        self._server, self._context = server, server.context
        self._client = client
        self._machine = machine
        self.session = session
        self.publishes = publishes

    def scan(self, data: bytes, at: int) -> int:
        """Handle the most frequent packets, plain PUBLISH and PUBACK; return the offset of the first other one."""
        first = data[at]
        if first == PUBACK[0]:
            window = self.session.window
            after = window.in_flight.take_pubacks(data, at)
            if after > at:
                self._context.counters.packets_received += (after - at) // 4
                window.pump()
            return after
        if first == PUBREL[0]:
            return self._take_pubrels(data, at)
        return self.publishes.scan(data, at)

    def _take_pubrels(self, data: bytes, at: int) -> int:
        """Handle a row of plain PUBRELs of open publishes; return the offset after the last one."""
        received, first, last = self.session.received, at, len(data) - 4
        packet_ids: dict[int, None] = {}
        while at <= last and data[at : at + 2] == PUBREL:
            packet_id = data[at + 2] << 8 | data[at + 3]
            if packet_id not in received or packet_id in packet_ids:
                break
            packet_ids[packet_id] = None
            at += 4
        if packet_ids:
            self._context.counters.packets_received += (at - first) // 4
            self.publishes.complete(tuple(packet_ids))
        return at

    def handle(self, packet: Packet) -> None:
        """Handle a packet that the state table allows."""
        _HANDLERS[type(packet)](self, packet)

    def store(self) -> bool:
        """Append the publishes of all clients in this turn so far.

        Returns:
            Whether the client is still connected: it is refused when there is no room for its publishes.

        Raises:
            LogError: they could not be stored; the client must be refused.
        """
        self.publishes.store()
        return self._client.is_open

    # --- packets

    def _on_publish(self, packet: Publish) -> None:
        session = self.session
        if packet.dup and session.persistent and packet.packet_id not in session.received:
            self._ask_whether_resent(session, packet)
        else:
            self.publishes.publish(packet)

    def _ask_whether_resent(self, session: Session, packet: Publish) -> None:
        publishes = self.publishes
        route = publishes.routes.route(packet.topic)
        resent = self._server.resent
        if route is None or (packet.qos == 1 and not resent.suppresses(route.streams)):
            publishes.publish(packet)  # the flag is set
            return
        # At QoS 2 check in any case: a torn commit may have kept the record and lost its identifier.
        if not self.store():
            return
        self._client.reading.hold(Pause.RESULT)

        async def ask() -> None:
            try:
                known = await resent.recognise(session.client_id, packet.packet_id, packet.topic, packet.payload)
            except (OSError, LogError) as error:
                self._client.refuse(error)
                return
            if not self._client.is_open:
                return
            try:
                if known:
                    publishes.suppress(packet)
                else:
                    publishes.publish(packet)
                publishes.end_read()
            except (LogError, MqttError) as error:  # access rules may have changed meanwhile
                self._client.refuse(error)
                return
            self._client.reading.resume()

        self._context.run(ask())

    def _on_pubrel(self, packet: PubRel) -> None:
        if packet.packet_id in self.session.received:
            self.publishes.complete((packet.packet_id,))
        else:
            self._client.answer(PubComp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    def _on_puback(self, packet: PubAck) -> None:
        window = self.session.window
        window.in_flight.puback(packet.packet_id)
        window.pump()

    def _on_pubrec(self, packet: PubRec) -> None:
        window = self.session.window
        window.in_flight.pubrec(packet.packet_id, packet.code)
        window.pump()

    def _on_pubcomp(self, packet: PubComp) -> None:
        window = self.session.window
        window.in_flight.pubcomp(packet.packet_id)
        window.pump()

    def _on_subscribe(self, packet: Subscribe) -> None:
        if not self.store():  # earlier messages are not for it
            return
        session = self.session
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else None
        codes: list[int] = []
        feeds: list[tuple[Subscription, int]] = []

        def subscribe(filters: Sequence[Subscription]) -> None:
            change = self._server.retained.changes
            answers = self._server.sessions.filters.subscribe_all(session, filters, identifier)
            for options, (code, new) in zip(filters, answers, strict=True):
                codes.append(code)
                wants_retained = (True, new, False)[options.retain_handling]
                if code <= ReasonCode.GRANTED_QOS_2 and wants_retained:
                    feeds.append((options, change))

        def end() -> None:
            answer = self._machine.encode(SubAck(packet.packet_id, tuple(codes)))
            self._answer_durably(session, answer, lambda: self._server.sessions.send_retained(session, feeds))

        self._in_turns(packet.filters, subscribe, end)

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        if not self.store():
            return
        session = self.session
        codes: list[int] = []

        def unsubscribe(filters: Sequence[str]) -> None:
            codes.extend(self._server.sessions.filters.unsubscribe(session, text) for text in filters)

        def end() -> None:
            self._answer_durably(session, self._machine.encode(UnsubAck(packet.packet_id, tuple(codes))))

        self._in_turns(packet.filters, unsubscribe, end)

    def _in_turns(self, filters: Sequence[_T], do: Callable[[Sequence[_T]], None], end: Callable[[], None]) -> None:
        """Handle a packet's filters, ``TURN_COST_MAX`` in a turn; the packets behind it wait until all are done."""
        rest = self._do_some(filters, do)
        if rest:
            self._do_later(rest, do, end)
        else:
            end()

    def _do_some(self, filters: Sequence[_T], do: Callable[[Sequence[_T]], None]) -> Sequence[_T]:
        """Handle filters of one turn, unless their owner has changed its sessions too much. Return the others."""
        if self._wait_s():
            return filters
        do(filters[:TURN_COST_MAX])
        return filters[TURN_COST_MAX:]

    def _do_later(self, filters: Sequence[_T], do: Callable[[Sequence[_T]], None], end: Callable[[], None]) -> None:
        def resume() -> None:
            if not self._client.is_open:
                return
            try:
                rest = self._do_some(filters, do)
                if not rest:
                    end()
            except LogError as error:
                self._client.refuse(error)
                return
            if rest:
                self._do_later(rest, do, end)
            else:
                self._client.reading.resume()

        wait_s = self._wait_s()
        if wait_s:
            self._client.reading.hold(Pause.RESULT)
            self._context.call_later(max(wait_s, CHANGE_WAIT_S_MIN), resume)
        else:
            self._client.reading.await_turn(Pause.RESULT, resume)

    def _wait_s(self) -> float:
        """Return the seconds until the session may change again; a session that is not kept may at once."""
        return self._server.changes.rates.debt_s(self.session.owner) if self.session.persistent else 0.0

    def _answer_durably(self, session: Session, answer: bytes, then: Callable[[], None] | None = None) -> None:
        """Answer a change of a persistent session once the journal has it."""

        def durable(error: BaseException | None) -> None:
            if error is not None:
                self._client.refuse(error)
            elif self._client.is_open:
                self._client.send(answer)
                if then is not None:
                    then()

        if session.persistent:
            self._context.ingest.on_durable(durable)
        else:
            durable(None)

    def _on_pingreq(self, _packet: PingReq) -> None:
        self._client.send(PINGRESP)

    def _on_disconnect(self, packet: Disconnect) -> None:
        if not self.store():
            return
        session = self.session
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            self._server.sessions.change_expiry(session, expiry)
        with_will = packet.code != ReasonCode.SUCCESS  # [MQTT-3.1.2-10], [MQTT-3.14.4-3]
        self._client.has_left(packet.code, with_will=with_will)


_HANDLERS: dict[type[Packet], Callable[[PacketHandlers, Any], None]] = {
    Publish: PacketHandlers._on_publish,
    PubAck: PacketHandlers._on_puback,
    PubRec: PacketHandlers._on_pubrec,
    PubRel: PacketHandlers._on_pubrel,
    PubComp: PacketHandlers._on_pubcomp,
    Subscribe: PacketHandlers._on_subscribe,
    Unsubscribe: PacketHandlers._on_unsubscribe,
    PingReq: PacketHandlers._on_pingreq,
    Disconnect: PacketHandlers._on_disconnect,
}
"""Handlers of the packets that the state table allows."""
