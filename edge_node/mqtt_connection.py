"""One MQTT client's connection: reads to records, acknowledgements after the fsync."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from edge_node.back_pressure import Pause
from edge_node.mqtt_intake import Intake
from edge_node.sessions import Session
from protocols.mqtt.connection import Connection, State
from protocols.mqtt.decoder import decode
from protocols.mqtt.encoder import PINGRESP, encode
from protocols.mqtt.errors import ConnectCode, ConnectRefused, MqttError
from protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from protocols.mqtt.publish_run import scan
from protocols.mqtt.reassembly import Reassembly
from storage.segment_log import LogFailed, LogFull

if TYPE_CHECKING:
    from edge_node.mqtt_listener import MqttListener

log = logging.getLogger(__name__)


class MqttConnection(asyncio.Protocol):
    """Server side of one connection. Every method runs on the event loop's thread."""

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener
        self._ingest = listener.ingest
        self._counters = listener.counters
        self._packet_bytes_max = listener.settings.packet_bytes_max
        self._now = listener.loop.time
        self._machine = Connection()
        self._partial = Reassembly(self._packet_bytes_max)
        self._intake = Intake(listener.ingest, listener.counters, self, listener.loop.call_soon)
        self._session: Session | None = None
        self._will: Will | None = None
        self._pause = Pause(0)
        self._heard = self._now()
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._peer = "?"

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock for CONNECT."""
        self._transport = cast(asyncio.Transport, transport)
        self._peer = _address(transport.get_extra_info("peername"))
        settings = self._listener.settings
        self._transport.set_write_buffer_limits(high=settings.subscriber_queue_bytes_max)
        if self._listener.admit(self, self._peer):
            self._timer = self._listener.loop.call_later(settings.connect_timeout_s, self._connect_timeout)
        else:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Handle one read: parse all of it, append its records, and note what is to be acknowledged."""
        if self._transport is None:
            return
        self._heard = self._now()
        try:
            try:
                self._parse_read(data)
            finally:  # what came before a malformed packet was taken in good order
                self._intake.store(self._session)
        except ConnectRefused as error:
            self._transport.write(encode(ConnAck(False, error.code)))
            self._broken(error, flush=True)
        except MqttError as error:
            self._broken(error)
        except (LogFull, LogFailed) as error:
            self.refuse(error)

    def pause_writing(self) -> None:
        """The client does not read: neither is it read, and after a while it is closed."""
        self.hold(Pause.WRITE)
        timeout_s = self._listener.settings.write_timeout_s
        self._write_timer = self._listener.loop.call_later(timeout_s, self._write_timeout)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.release(Pause.WRITE)
        if self._session is not None:
            self._session.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, with or without DISCONNECT."""
        if self._transport is not None:
            self._close(f"connection lost ({exc or 'closed by the client'})", logging.INFO)

    # --- what sessions, intake and back-pressure ask of a connection

    @property
    def is_open(self) -> bool:
        """Whether the client can still be sent something."""
        return self._transport is not None

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what it is sent."""
        return not self._pause & Pause.WRITE

    def send(self, data: bytes) -> None:
        """Write whole packets."""
        if self._transport is not None:
            self._transport.write(data)

    def displace(self) -> None:
        """The client has connected anew [MQTT-3.1.4-2]."""
        self._close("the client identifier connected anew", logging.INFO)

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
        if not self._pause and self._transport is not None:
            self._heard = self._now()
            self._transport.resume_reading()

    def refuse(self, error: BaseException) -> None:
        """What the client sent could not be stored: unacknowledged, it will send it again."""
        if self._transport is not None:
            self._counters.log_refusals += 1
            self._close(f"what it sent could not be stored and is not acknowledged: {error}")

    def shut_down(self) -> None:
        """The node stops: close without publishing the will, the client has done nothing wrong."""
        self._will = None
        self._close("the node stops", logging.INFO)

    # --- one read

    def _parse_read(self, data: bytes) -> None:
        at = 0
        if self._partial:
            packet, at = self._partial.complete(data)
            if packet:
                self._parse(packet, 0)
        at = self._parse(data, at)
        if at < len(data) and self._transport is not None:
            self._partial.keep(data[at:])

    def _parse(self, data: bytes, at: int) -> int:
        """Handle the packets of ``data[at:]``; returns where the first incomplete one begins."""
        limit, machine = self._packet_bytes_max, self._machine
        while self._transport is not None:
            if machine.state is State.OPEN:
                at = scan(data, at, self._ingest.plain, self._intake.run, limit)
            decoded = decode(data, at, limit)
            if decoded is None:
                break
            packet, at = decoded
            machine.receive(packet)
            _HANDLERS[type(packet)](self, packet)
        return at

    # --- packets

    def _on_connect(self, packet: Connect) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._session, present = self._listener.sessions.open(packet.client_id, packet.clean_session, self)
        self._will = packet.will
        self.send(encode(ConnAck(present, ConnectCode.ACCEPTED)))
        self._session.resume()
        if self._machine.silence_s_max is not None:
            self._timer = self._listener.loop.call_later(self._machine.silence_s_max, self._check_silence)

    def _on_publish(self, packet: Publish) -> None:
        self._intake.publish(self._opened(), packet)

    def _on_pubrel(self, packet: PubRel) -> None:
        self._opened().received.discard(packet.packet_id)
        self.send(encode(PubComp(packet.packet_id)))

    def _on_puback(self, packet: PubAck) -> None:
        self._opened().acknowledged(packet.packet_id)

    def _on_subscribe(self, packet: Subscribe) -> None:
        session, sessions = self._opened(), self._listener.sessions
        codes = [sessions.subscribe(session, topic_filter, qos) for topic_filter, qos in packet.filters]
        self.send(encode(SubAck(packet.packet_id, tuple(codes))))

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        session = self._opened()
        for topic_filter in packet.filters:
            self._listener.sessions.unsubscribe(session, topic_filter)
        self.send(encode(UnsubAck(packet.packet_id)))

    def _on_pingreq(self, _packet: PingReq) -> None:
        self.send(PINGRESP)

    def _on_disconnect(self, _packet: Disconnect) -> None:
        self._will = None  # [MQTT-3.14.4-3]
        self._intake.store(self._session)
        self._close("DISCONNECT", logging.DEBUG)

    def _opened(self) -> Session:
        assert self._session is not None, "the state table lets nothing but CONNECT come first"
        return self._session

    # --- timers

    def _connect_timeout(self) -> None:
        self._counters.connect_timeouts += 1
        self._close(f"no CONNECT within {self._listener.settings.connect_timeout_s:g} s")

    def _check_silence(self) -> None:
        limit = self._machine.silence_s_max
        assert limit is not None
        if self._pause:
            self._heard = self._now()  # a client that is not read cannot be blamed for silence
        left = self._heard + limit - self._now()
        if left > 0:
            self._timer = self._listener.loop.call_later(left, self._check_silence)
            return
        self._counters.keep_alive_timeouts += 1
        self._close(f"silent for {limit:g} s, 1.5 times its keep alive [MQTT-3.1.2-24]")

    def _write_timeout(self) -> None:
        self._counters.write_timeouts += 1
        self._close(f"did not read what it was sent for {self._listener.settings.write_timeout_s:g} s")

    # --- the end

    def _broken(self, error: MqttError, *, flush: bool = False) -> None:
        self._counters.protocol_errors += 1
        self._close(str(error), flush=flush)

    def _close(self, reason: str, level: int = logging.WARNING, *, flush: bool = False) -> None:
        """Leave the session, publish the will, close the transport, in that order; once.

        Without ``flush`` what the socket has not taken is dropped, so that a client that does not read cannot stay.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        client_id = self._session.client_id if self._session is not None else None
        log.log(level, "closed MQTT client %r at %s: %s", client_id, self._peer, reason)
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._listener.leave(self)
        if self._session is not None:
            self._listener.sessions.close(self._session)
        self._publish_will()
        (transport.close if flush else transport.abort)()

    def _publish_will(self) -> None:
        will, self._will = self._will, None
        if will is None:
            return
        try:
            self._ingest.publish(will.topic, will.payload, will.qos, retain=will.retain)
            self._counters.wills_published += 1
        except (LogFull, LogFailed) as error:
            log.warning("the will of the MQTT client at %s could not be stored: %s", self._peer, error)


def _address(peername: object) -> str:
    return f"{peername[0]}:{peername[1]}" if isinstance(peername, tuple) else str(peername)


_HANDLERS: dict[type[Packet], Callable[[MqttConnection, Any], None]] = {
    Connect: MqttConnection._on_connect,
    Publish: MqttConnection._on_publish,
    PubAck: MqttConnection._on_puback,
    PubRel: MqttConnection._on_pubrel,
    Subscribe: MqttConnection._on_subscribe,
    Unsubscribe: MqttConnection._on_unsubscribe,
    PingReq: MqttConnection._on_pingreq,
    Disconnect: MqttConnection._on_disconnect,
}
"""What each packet does that the state table lets through."""
