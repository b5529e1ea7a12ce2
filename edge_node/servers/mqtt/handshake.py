"""CONNECT to CONNACK: the client's identity, its session, and the content of CONNACK (MQTT 5.0 sections 3.1, 3.2)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

import msgspec

from weft.bounds import user_or_address
from weft.edge_node.access.credentials import AccessDenied, Credentials, Denial
from weft.edge_node.access.identity import Identity, session_name
from weft.edge_node.servers.listeners.door import Door
from weft.edge_node.servers.mqtt.client import MqttClient
from weft.edge_node.servers.mqtt.server import MqttServer
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.window.packets_out import Wire
from weft.protocols.mqtt.connection import Connection, ConnectionState
from weft.protocols.mqtt.errors import ConnectRefused
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import ConnAck, Connect
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogFailed, LogFull

CHANGES_WAIT_S_MAX = 5.0
"""Longest time that a client waits because the sessions of its user have changed too often."""

_DENIALS = {
    Denial.WRONG: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Denial.NOT_ALLOWED: ReasonCode.NOT_AUTHORIZED,
    Denial.BUSY: ReasonCode.SERVER_BUSY,
}


class Handshake:
    """One CONNECT. The connection is not parsed meanwhile."""

    __slots__ = ("_client", "_context", "_door", "_machine", "_server", "_task", "client_id")

    def __init__(self, server: MqttServer, door: Door, client: MqttClient, machine: Connection) -> None:
        self._server, self._context = server, server.context
        self._door = door
        self._client = client
        self._machine = machine
        self._task: asyncio.Task[None] | None = None
        self.client_id = ""
        """Client identifier in CONNECT; empty until that has come."""

    def begin(self, packet: Connect, transport: Any) -> None:
        """Ask the door, then welcome or refuse the client."""
        self.client_id = packet.client_id
        self._task = self._context.run(self._let_in(packet, transport))

    def cancel(self) -> None:
        """Stop the handshake of a connection that is gone."""
        if self._task is not None:
            self._task.cancel()

    async def _let_in(self, packet: Connect, transport: Any) -> None:
        client = self._client
        try:
            identity = await self._identify(packet, transport)
            await self._await_changes(packet, identity)
            has_room = await self._has_room(packet, identity)
            self._task = None
            if has_room:
                self._welcome(packet, identity)
            else:  # the listener has logged it, once for many
                reason = "as many clients as limits.connections allows are connected"
                refusal = ConnectRefused(ReasonCode.QUOTA_EXCEEDED, reason, version=packet.version)
                client.fail(refusal, logging.DEBUG)
        except ConnectRefused as error:
            self._task = None
            client.fail(error)

    async def _identify(self, packet: Connect, transport: Any) -> Identity:
        if packet.properties.authentication_method is not None:
            code = ReasonCode.BAD_AUTHENTICATION_METHOD
            raise ConnectRefused(code, "no enhanced authentication here", "4.12.0-1", packet.version)
        credentials = Credentials(packet.client_id, packet.username, packet.password)
        try:
            return await self._door.authenticate(credentials, transport, self._client.arrival.origin)
        except AccessDenied as error:
            raise ConnectRefused(_DENIALS[error.denial], str(error), version=packet.version) from None

    async def _await_changes(self, packet: Connect, identity: Identity) -> None:
        """Wait until the owner may change its sessions again: a persistent session is journaled when its client comes
        and goes.

        Raises:
            ConnectRefused: that takes too long.
        """
        lasts = packet.properties.session_expiry_interval if packet.version == Version.V5 else not packet.clean_start
        if not lasts and packet.will is None:
            return
        owner = user_or_address(identity.username, self._client.arrival.origin)
        while wait_s := self._server.changes.wait_s(owner):
            if wait_s > CHANGES_WAIT_S_MAX:
                self._server.changes.refuse(owner)
                reason = f"the sessions of its user change too often; try again in {wait_s:.0f} s"
                raise ConnectRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, reason, version=packet.version)
            await asyncio.sleep(wait_s)

    async def _has_room(self, packet: Connect, identity: Identity) -> bool:
        """Wait until the client can be admitted. One that takes over its own connection needs no room: a device that
        lost its network comes back before its old connection is known to be dead.

        Raises:
            ConnectRefused: the client lost its permission meanwhile.
        """
        takes_over = self._server.sessions.is_connected(session_name(identity.username, packet.client_id))
        has_room = takes_over or await self._client.arrival.room()
        if has_room and not identity.admitted:
            raise ConnectRefused(ReasonCode.NOT_AUTHORIZED, "its user has changed", version=packet.version)
        return has_room

    def _welcome(self, packet: Connect, identity: Identity) -> None:
        context, client, machine = self._context, self._client, self._machine
        if packet.will is not None and packet.will.topic.startswith(b"$SYS/"):
            # Bridges of Mosquitto would not connect otherwise; their publishes to $SYS are treated in the same way.
            packet = msgspec.structs.replace(packet, will=None)
        client_id = packet.client_id or f"auto-{secrets.token_hex(12)}"
        self._check_will(packet, identity)
        try:
            name = session_name(identity.username, client_id)
            session, present = self._server.sessions.open(packet, name, identity, client, client.arrival.origin)
        except (LogFull, LogFailed) as error:
            raise ConnectRefused(
                ReasonCode.SERVER_BUSY, f"its session cannot be kept: {error}", version=packet.version
            ) from error
        client.welcome(session, context.routing.routes_of(identity))
        answer = machine.encode(ConnAck(present, ReasonCode.SUCCESS, self._announcement(packet, client_id, session)))
        if session.awaits_journal:
            machine.state = ConnectionState.AWAITING_CONNECT
            context.ingest.on_durable(lambda error: self._accept(session, answer, error))
        else:
            self._accept(session, answer, None)

    def _accept(self, session: Session, answer: bytes, error: BaseException | None) -> None:
        client, machine = self._client, self._machine
        if error is not None:
            client.refuse(error)
        elif client.is_open and session.window.is_of(client):
            machine.state = ConnectionState.OPEN
            client.send(answer)
            wire = Wire(session.version, machine.client_packet_bytes_max, machine.client_topic_alias_maximum)
            self._server.sessions.resume(session, wire, machine.client_receive_maximum)
            client.reading.go_on()  # CONNACK is the first packet that the client gets [MQTT-3.2.0-1]

    def _announcement(self, packet: Connect, client_id: str, session: Session) -> Any:
        asked = packet.properties.session_expiry_interval or 0
        return self._machine.announcement(
            assigned_client_identifier=client_id if client_id != packet.client_id else None,
            session_expiry_interval=session.expiry_s if session.expiry_s != asked else None,
        )

    def _check_will(self, packet: Connect, identity: Identity) -> None:
        will = packet.will
        if will is not None and not identity.unrestricted and not identity.may_publish(will.topic):
            reason = f"it may not publish its will to {will.topic.decode()!r}"
            raise ConnectRefused(ReasonCode.NOT_AUTHORIZED, reason, version=packet.version)
        if will is not None and self._context.routing.refuses(will.topic):
            reason = f"no stream matches {will.topic.decode()!r}, the topic of its will (`unrouted: refuse`)"
            raise ConnectRefused(ReasonCode.TOPIC_NAME_INVALID, reason, version=packet.version)
