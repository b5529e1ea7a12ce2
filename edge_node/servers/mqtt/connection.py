"""One MQTT client's connection: reads to packets, packets to what the session does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from weft.bounds import user_or_address
from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.ingest.routes import RouteCache
from weft.edge_node.ingest.turn import COST_MAX, TURN_BYTES_MAX
from weft.edge_node.servers.broker.broker import Broker
from weft.edge_node.servers.broker.output import LONG_BYTES, Output, WritingConnection
from weft.edge_node.servers.listeners.door import Arrival, Door
from weft.edge_node.servers.mqtt import other_protocols
from weft.edge_node.servers.mqtt.costs import cost
from weft.edge_node.servers.mqtt.handshake import Handshake
from weft.edge_node.servers.mqtt.inbox import Inbox
from weft.edge_node.servers.mqtt.packet_handlers import PacketHandlers
from weft.edge_node.servers.mqtt.publishes import Publishes
from weft.edge_node.sessions.session import Session
from weft.protocols.mqtt.connection import Connection, State
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.errors import MqttError
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import ConnAck, Connect, Packet
from weft.protocols.mqtt.properties import Properties
from weft.protocols.mqtt.publish_run import single
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogError, LogFull

log = logging.getLogger(__name__)

_WAITING = Pause.ASKING | Pause.TURN
"""Reasons for which what came is kept unparsed."""


class ClientConnection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_broker", "_door", "_fast", "_handlers", "_handshake", "_heard", "_inbox", "_machine", "_missed_turn",
        "_packet_bytes_max", "_pause", "_turn", "_write_deadline", "arrival", "wheel_slot",
    )  # fmt: skip

    def __init__(self, broker: Broker, door: Door, arrival: Arrival) -> None:
        """Take a connection in; the listener has counted it."""
        self.arrival = arrival
        self.wheel_slot = -1
        self._broker = broker
        self._door = door
        self._machine = Connection(broker.server_limits)
        self._turn = broker.ingest.turn
        self._packet_bytes_max = broker.settings.packet_bytes_max
        self._fast: Publishes | None = None
        """Publishes of the fast path. Set while nothing but packets of an open session may come, that all begin where a
        read begins, and publishes are stored at the end of the turn."""
        owner = user_or_address(None, arrival.origin)
        self._inbox = Inbox(broker.unfinished, owner, broker.settings.connect_bytes_max)
        self._handlers: PacketHandlers | None = None
        self._handshake: Handshake | None = None
        self._pause = 0
        self._missed_turn = False  # True once its turn came while publishers wait for the disk
        self._heard = 0.0
        self._write_deadline: float | None = None
        self._transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for CONNECT; the listener minds how long."""
        self._transport = cast(asyncio.Transport, transport)
        self._output = Output(self._transport, self._broker.writes, self, self._inbox.owner)
        self._broker.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read: parse all of it, gather or append its records, and note what is to be acknowledged."""
        publishes = self._fast
        if publishes is not None:
            turn = self._turn
            if single(data, publishes.known, turn, publishes, self._packet_bytes_max, publishes.in_5):
                if not turn.begun:
                    turn.begin()
                self._heard = turn.now
                publishes.due += 1
                if publishes.due > publishes.due_max:
                    publishes.hold_back()
                turn.bytes += len(data)
                if turn.bytes > TURN_BYTES_MAX or turn.cost > COST_MAX:
                    turn.store()
                return
        now, turns = self._broker.clock(), self._broker.turns
        if self._pause & _WAITING or (now >= turns.reads_until and not turns.admits(now)):
            self._put_off(data)
        else:
            self._read(data, now)

    def _put_off(self, data: bytes) -> None:
        """Keep a read for the time when the client may go on."""
        if self._transport is None:
            return
        self._inbox.ahead += data
        self._settle()
        if self._transport is not None and not self._pause & _WAITING:
            self._fast = None
            self.await_turn(Pause.TURN, partial(self.go_on, Pause.TURN))

    def _read(self, data: bytes, now: float) -> None:
        if self._transport is None:
            return
        self._heard = now
        self._broker.turns.budget.begin(now)
        self._turn.bytes += len(data)
        try:
            try:
                self._parse_read(data)
            finally:  # what came before a malformed packet was taken in good order
                if self._handlers is not None:
                    self._handlers.publishes.end_read()
        except MqttError as error:
            self._broken(error, data)
        except LogError as error:
            self.refuse(error)
        self._turn.gathered()
        self._broker.fan_out.flush()
        if self._output.corked is not None:
            self._output.uncork()
        inbox, is_whole = self._inbox, not self._inbox.partial
        if inbox.ahead or inbox.charged or not is_whole:
            self._settle()
        publishes = self._handlers.publishes if self._handlers is not None else None
        if len(data) > LONG_BYTES and self._broker.writes.is_full and not self._pause & _WAITING:
            self.hold(Pause.TURN)
            self._broker.writes.when_short(self._inbox.owner, partial(self.go_on, Pause.TURN))
        is_plain = self._transport is not None and is_whole and not self._pause & _WAITING
        self._fast = publishes if is_plain and publishes is not None and publishes.is_fast else None

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read, and close it if that lasts for ``write_timeout_s``."""
        self.hold(Pause.WRITE)
        if self._handlers is not None:
            self._handlers.session.window.pause(self)
        self._write_deadline = self._broker.clock() + self._broker.settings.write_timeout_s
        self._broker.wheel.set(self, self._write_deadline)

    def catches_up(self) -> None:
        """Read on from a client that has caught up."""
        self._write_deadline = None
        self._wait()
        self.release(Pause.WRITE)
        if self._handlers is not None:
            self._handlers.session.window.resume(self)
            self._broker.fan_out.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection of a client that has gone, with or without DISCONNECT."""
        if self._transport is not None:
            self._close(f"connection lost ({exc or 'closed by the client'})", logging.INFO)

    # --- what sessions, intake and back-pressure ask of a connection

    @property
    def is_open(self) -> bool:
        """Return whether the client can still be sent something."""
        return self._transport is not None

    def answer(self, packet: Packet) -> None:
        """Write one packet in the client's version."""
        self.send(self._machine.encode(packet))

    def displace(self, code: ReasonCode) -> None:
        """Close the connection: its session is another connection's now, or has ended [MQTT-3.1.4-3]."""
        self._close(f"{code.name.lower().replace('_', ' ')}", logging.INFO, code=code)

    def hold(self, reason: Pause) -> None:
        """Stop reading."""
        if not self._pause and self._transport is not None:
            self._transport.pause_reading()
        self._pause |= reason

    def release(self, reason: Pause) -> None:
        """Read on, if this was the last reason not to."""
        if not self._pause & reason:
            return
        self._pause &= ~reason
        if self._missed_turn and not self._pause & Pause.DISK:
            self._missed_turn = False
            self._broker.rounds.wait(self._inbox.owner, partial(self.go_on, Pause.TURN))
        if not self._pause and self._transport is not None:
            self._heard = self._broker.clock()
            self._transport.resume_reading()

    def await_turn(self, reason: Pause, go_on: Callable[[], None]) -> None:
        """Stop reading, and call back when others have had their turn."""
        self.hold(reason)
        self._broker.rounds.wait(self._inbox.owner, go_on)

    def refuse(self, error: BaseException) -> None:
        """Close without acknowledging: what the client sent could not be stored. The client will send it again."""
        if self._transport is not None:
            self._broker.counters.log_refusals += 1
            code = ReasonCode.QUOTA_EXCEEDED if isinstance(error, LogFull) else ReasonCode.UNSPECIFIED_ERROR
            self._close(f"what it sent could not be stored and is not acknowledged: {error}", code=code)

    def said_goodbye(self, code: int, *, with_will: bool) -> None:
        """Close the connection after DISCONNECT."""
        self._close(f"DISCONNECT with reason code {code:#04x}", logging.DEBUG, with_will=with_will)

    def shut_down(self) -> None:
        """Close because the node stops, without publishing the will: the client has done nothing wrong."""
        self._close("the node stops", logging.INFO, code=ReasonCode.SERVER_SHUTTING_DOWN, with_will=False)

    def due(self, now: float) -> float | None:
        """Close the connection if the client did not send, or did not read, for too long. For the timer wheel."""
        if self._write_deadline is not None and now >= self._write_deadline:
            self._broker.counters.write_timeouts += 1
            self._close(f"did not read what it was sent for {self._broker.settings.write_timeout_s:g} s")
            return None
        limit = self._machine.silence_s_max
        if self._pause:
            self._heard = now  # a client that is not read cannot be blamed for silence
        if limit is not None and self._handlers is not None and now >= self._heard + limit:
            self._broker.counters.keep_alive_timeouts += 1
            clause = "3.1.2-22" if self._machine.version == Version.V5 else "3.1.2-24"
            code = ReasonCode.KEEP_ALIVE_TIMEOUT
            self._close(f"silent for {limit:g} s, 1.5 times its keep alive [MQTT-{clause}]", code=code)
            return None
        return self._next_due()

    # --- one read

    def _parse_read(self, data: bytes) -> None:
        at, inbox = 0, self._inbox
        if inbox.partial:
            packet, at = inbox.partial.complete(data)
            if packet:
                self._turn.joined_bytes += len(packet)
                self._parse(packet, 0)
        at = self._parse(data, at)  # nothing, if the packet has to wait for something
        if at < len(data) and self._transport is not None:
            if self._pause & _WAITING:
                inbox.ahead = data[at:]
            else:
                inbox.partial.keep(data[at:])

    def _parse(self, data: bytes, at: int) -> int:
        """Handle the packets of ``data[at:]``; returns where the first incomplete one begins."""
        machine, budget, size = self._machine, self._broker.turns.budget, len(data)
        while at < size and self._transport is not None and not self._pause & _WAITING:
            handlers = self._handlers
            if handlers is not None:
                before, at = at, handlers.scan(data, at)
                if at > before:
                    if at < size and not budget.spend(0) and self._transport is not None:
                        self._wait_for_turn()
                    continue
            limit = self._packet_bytes_max if handlers is not None else self._broker.settings.connect_bytes_max
            decoded = decode(data, at, limit, machine.version)
            if decoded is None:
                break
            packet, at = decoded
            packet = machine.receive(packet)
            self._broker.counters.packets_received += 1
            if handlers is None:
                assert isinstance(packet, Connect)  # the state table lets nothing else come first
                self._on_connect(packet)
                continue
            self._output.cork()
            handlers.handle(packet)
            if not budget.spend(cost(packet)) and at < size and self._transport is not None:
                self._wait_for_turn()
        return at

    def _wait_for_turn(self) -> None:
        """Go on when others had their turn and what came is durable: all wait for the commits of one client."""
        if not self._pause & _WAITING:
            self.hold(Pause.TURN)
            self._turn.store()
            go_on = partial(self.await_turn, Pause.TURN, partial(self.go_on, Pause.TURN))
            self._broker.ingest.on_durable(lambda _: go_on())

    def _settle(self) -> None:
        if self._transport is not None and not self._inbox.settle():
            self._close("no memory for packets that are not whole (limits.unfinished)", code=ReasonCode.QUOTA_EXCEEDED)

    # --- packets

    def _on_connect(self, packet: Connect) -> None:
        self.hold(Pause.ASKING)
        self._handshake = Handshake(self._broker, self._door, self, self._machine)
        self._handshake.begin(packet, self._transport)

    def welcome(self, session: Session, routes: RouteCache) -> None:
        """Handle packets for this session from now on. CONNACK follows, and then ``go_on``."""
        machine = self._machine
        publishes = Publishes(self._broker, self, session, routes, machine.answers_due_max)
        self._handlers = PacketHandlers(self._broker, self, machine, session, publishes)
        self._handshake = None
        self._inbox.welcome(session.owner, self._packet_bytes_max)
        self._output.owner = session.owner
        self._heard = self._broker.clock()
        self._wait()
        self.arrival.opened()

    def go_on(self, waited_for: Pause = Pause.ASKING) -> None:
        """Parse what came while the connection waited for an answer or its turn, and read on."""
        self._pause &= ~waited_for
        if self._inbox.ahead and self._pause & Pause.DISK:
            # All clients together may have read ahead much more than may wait for the disk.
            self._pause |= Pause.TURN
            self._missed_turn = True
        elif data := self._inbox.take():
            self._read(data, self._broker.clock())
        if not self._pause and self._transport is not None:
            self._heard = self._broker.clock()
            self._transport.resume_reading()

    def fail(self, error: MqttError, level: int = logging.WARNING) -> None:
        """Close a connection whose CONNECT was refused, by the door or for want of room: CONNACK says why."""
        self._broker.counters.protocol_errors += 1
        answer = ConnAck(False, error.code, Properties(reason_string=str(error)))
        self._close(str(error), level, words=self._machine.encode(answer))

    # --- timers

    def _wait(self) -> None:
        when, wheel = self._next_due(), self._broker.wheel
        wheel.cancel(self) if when is None else wheel.set(self, when)

    def _next_due(self) -> float | None:
        limit = self._machine.silence_s_max if self._handlers is not None else None
        times = [] if limit is None else [self._heard + limit]
        if self._write_deadline is not None:
            times.append(self._write_deadline)
        return min(times, default=None)

    # --- the end

    def _broken(self, error: MqttError, data: bytes) -> None:
        self._broker.counters.protocol_errors += 1
        is_first = self._handlers is None and self._handshake is None
        reason = (other_protocols.named(data) if is_first else None) or str(error)
        self._close(reason, words=self._machine.last_words(error))

    def _close(
        self,
        reason: str,
        level: int = logging.WARNING,
        *,
        code: ReasonCode | None = None,
        words: bytes = b"",
        with_will: bool = True,
    ) -> None:
        """Say why, leave the session, publish the will, close the transport, in that order; once.

        With nothing to say, what the socket has not taken is dropped, so that a client that does not read cannot stay.
        """
        if self._transport is None:
            return
        self._output.uncork()
        self._turn.store()  # what came before the end comes before the will, too
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._fast = None
        who, stranger_at = f"closed MQTT client {self._client()} at {self.arrival.name}", self.arrival.origin
        self._broker.partings.closed(log, who, reason, level, stranger_at if self._handlers is None else None)
        if code is not None and not words:
            words = self._machine.farewell(code, reason)
        drains = bool(words) and not self._pause & Pause.WRITE
        if drains:
            self._output.write(words)
        if self._handshake is not None:
            self._handshake.cancel()
        self._machine.state = State.CLOSED
        self._inbox.clear()
        self._leave(with_will=with_will)
        self.shut(transport, drains=drains)

    def _client(self) -> str:
        """Return the client as log lines name it."""
        if self._handlers is not None:
            return repr(self._handlers.session.client_id)
        # A CONNECT that was refused names its client, too; without any CONNECT only the address is known.
        client_id = self._handshake.client_id if self._handshake is not None else None
        return repr(client_id) if client_id else "without an identifier" if client_id == "" else "without a CONNECT"

    def _leave(self, *, with_will: bool) -> None:
        broker, handlers = self._broker, self._handlers
        broker.wheel.cancel(self)
        if handlers is not None:
            broker.ingest.leave(handlers.publishes.routes)
            if handlers.session.window.is_of(self):
                broker.sessions.close(handlers.session, with_will=with_will)
        broker.left(self)
        self.arrival.closed()
