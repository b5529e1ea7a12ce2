"""Handshake from connection.start to connection.open-ok: client, terms and virtual host
(section 2.2.4).
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from weft.bounds import user_or_address
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial, Identity
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.servers.amqp.client import AmqpClient, AmqpContext, Names, Peer
from weft.edge_node.servers.clients.reading import FULL, NEVER
from weft.edge_node.servers.listeners.settings import Authenticator
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, HEARTBEAT_FRAME, AmqpError, ReplyCode
from weft.protocols.amqp.methods import Method, commands, name_of, read_table

# Heartbeats and time-outs of one connection (section 4.2.7): one entry in the timer wheel for all of them.

BLOCKED_AFTER_S = 1.0
"""Time for which the disk holds a client before connection.blocked: a busy disk holds publishers for milliseconds."""
BLOCKED = "connection.blocked"
"""Capability of clients that want this notification."""
TERMS_S_MAX = 10.0
"""Time from connection.tune to connection.open: the listener bounds the time before it."""


class Liveness:
    """Times of one connection, in seconds of the loop's clock."""

    __slots__ = (
        "_awaited",
        "_blocked_at",
        "_close_at",
        "_connection",
        "_heartbeat_s",
        "_is_blocked",
        "_next_beat",
        "_shared",
        "wheel_slot",
        "wrote",
    )

    def __init__(self, connection: AmqpClient, shared: AmqpContext) -> None:
        self._connection = connection
        self._shared = shared
        self.wheel_slot = -1
        self.wrote = False
        """True if data was written since the last heartbeat was due."""
        self._heartbeat_s = 0
        self._next_beat = NEVER
        self._close_at = NEVER
        self._awaited = ""
        self._blocked_at = NEVER
        self._is_blocked = False

    def tunes(self) -> None:
        """Wait no longer than ``TERMS_S_MAX`` for the client's terms."""
        self._close_at, self._awaited = self._shared.context.clock() + TERMS_S_MAX, "connection.open"
        self.wait()

    def begin(self, heartbeat_s: int) -> None:
        """Start heartbeats; 0 for none."""
        self._close_at = NEVER
        self._heartbeat_s = heartbeat_s
        self._connection.reading.heard = now = self._shared.context.clock()
        if heartbeat_s:
            self._next_beat = now + heartbeat_s / 2
        self.wait()

    def on_disk(self, held: bool) -> None:
        """Notify the client that the disk holds it, if that lasts for a while, and when it no longer does."""
        if held:
            if self._blocked_at == NEVER and not self._is_blocked:
                self._blocked_at = self._shared.context.clock() + BLOCKED_AFTER_S
                self.wait()
            return
        self._blocked_at = NEVER
        if self._is_blocked:
            self._is_blocked = False
            self._connection.answer(commands.Connection.Unblocked())

    def closes(self, seconds: float) -> None:
        """Set the longest wait for the client's close-ok."""
        self._close_at, self._awaited = self._shared.context.clock() + seconds, "connection.close-ok"
        self._next_beat = NEVER
        self.wait()

    def end(self) -> None:
        """Stop all time-outs."""
        self._shared.context.wheel.cancel(self)

    def due(self, now: float) -> float | None:
        """Handle the time-outs that are due. For the timer wheel."""
        connection, reading, counters = self._connection, self._connection.reading, self._shared.context.counters
        if now >= self._close_at:
            connection.end(f"{self._awaited} did not come")
            return None
        if reading.is_stuck(now):
            connection.end(reading.stuck)
            return None
        if now >= self._blocked_at:
            self._block()
        if reading.pause:
            reading.heard = now  # silence of a client that is not read does not count
        if now >= self._next_beat:
            if now >= reading.heard + 2 * self._heartbeat_s:
                counters.keep_alive_timeouts += 1
                connection.end(f"silent for {2 * self._heartbeat_s} s, two times its heartbeat")
                return None
            if not self.wrote:
                connection.send(HEARTBEAT_FRAME)
            self.wrote = False
            self._next_beat = now + self._heartbeat_s / 2
        return self._next()

    def _block(self) -> None:
        self._blocked_at = NEVER
        peer = self._connection.peer
        if peer is not None and BLOCKED in peer.capabilities:
            self._is_blocked = True
            self._shared.counters.amqp_blocked += 1
            self._connection.answer(commands.Connection.Blocked("too many bytes wait for the disk"))

    def _next(self) -> float | None:
        when = min(self._next_beat, self._connection.reading.write_until, self._close_at, self._blocked_at)
        return None if when == NEVER else when

    def wait(self) -> None:
        """Set the timer."""
        when, wheel = self._next(), self._shared.context.wheel
        wheel.cancel(self) if when is None else wheel.set(self, when)


log = logging.getLogger(__name__)

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""Extensions of AMQP 0-9-1 that the node supports, by RabbitMQ's names."""
TELL_FAILURE = "authentication_failure_close"
LOCALES = "en_US"
NAME_SHOWN_MAX = 128
USER_CHANGED = "its user has changed; log in with the present password"


async def check_secret(authenticator: Authenticator, client: AmqpClient, transport: Any, secret: bytes) -> None:
    """Answer connection.update-secret: the present password of the client's user is accepted, and any other is ignored.

    Both get the same answer, as for RabbitMQ's own users, so that it reveals nothing about passwords. The connection
    keeps the rights of its login either way, until its user is removed or gets another password.
    """
    credentials = Credentials(client.peer.name, client.peer.identity.username, secret)
    try:
        await authenticator.authenticate(credentials, transport, client.accepted.origin)
    except AccessDenied as error:
        level = logging.DEBUG if client.has_sent_wrong_secret else logging.WARNING
        client.has_sent_wrong_secret = True
        log.log(
            level,
            "AMQP client at %s, user %r, sent a new secret that is not the user's password (%s): it keeps the "
            "rights of its login",
            client.accepted.name,
            client.peer.identity.username,
            error,
        )
    client.answer(commands.Connection.UpdateSecretOk())
    client.reading.resume()


class _HandshakeState(IntEnum):
    AWAITS_START_OK = 0
    ASKS = 1
    AWAITS_TUNE_OK = 2
    AWAITS_OPEN = 3


_EXPECTED: Mapping[_HandshakeState, Any] = {
    _HandshakeState.AWAITS_START_OK: commands.Connection.StartOk,
    _HandshakeState.AWAITS_TUNE_OK: commands.Connection.TuneOk,
    _HandshakeState.AWAITS_OPEN: commands.Connection.Open,
}


class Handshake:
    """Handshake of one connection that is not open yet."""

    __slots__ = (
        "_authenticator",
        "_capabilities",
        "_channels_max",
        "_client",
        "_frame_bytes_max",
        "_heartbeat_s",
        "_identity",
        "_live",
        "_name",
        "_shared",
        "_state",
        "_task",
        "_transport",
    )

    def __init__(
        self, shared: AmqpContext, authenticator: Authenticator, client: AmqpClient, live: Liveness, transport: Any
    ) -> None:
        """Attach a handshake to its connection.

        Args:
            live: times of the connection.
            transport: source of the client's certificate.
        """
        self._shared = shared
        self._authenticator = authenticator
        self._client = client
        self._live = live
        self._transport = transport
        self._state = _HandshakeState.AWAITS_START_OK
        self._task: asyncio.Task[None] | None = None
        self._identity: Identity | None = None
        self._capabilities: frozenset[str] = frozenset()
        self._name = ""
        self._frame_bytes_max = shared.settings.frame_bytes_max
        self._channels_max = shared.settings.channels_max
        self._heartbeat_s = shared.settings.heartbeat_s

    def begin(self) -> None:
        """Send the node's properties and the mechanisms for authentication."""
        properties: Mapping[str, Any] = {
            "product": "Weft",
            "version": self._shared.settings.software,
            "platform": f"Python {platform.python_version()}",
            "capabilities": CAPABILITIES,
        }
        start = commands.Connection.Start(0, 9, dict(properties), " ".join(self._mechanisms()), LOCALES)
        self._client.answer(start)

    def handle(self, method: Method) -> None:
        """Handle the method that must come next.

        Raises:
            AmqpError: it is another one, or has invalid values.
        """
        expected = _EXPECTED.get(self._state)
        if expected is None or not isinstance(method, expected):
            wanted = "nothing" if expected is None else name_of(expected.index)
            raise AmqpError(ReplyCode.COMMAND_INVALID, f"got {name_of(method.index)}, expected {wanted}", method.index)
        if isinstance(method, commands.Connection.StartOk):
            self._on_start_ok(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._on_tune_ok(method)
        elif isinstance(method, commands.Connection.Open):
            self._on_open(method)

    def failed(self, error: AmqpError) -> None:
        """Close the connection: before authentication without an answer (2.2.4), unless the client asks for one."""
        if self._state < _HandshakeState.AWAITS_TUNE_OK:
            self._refuse(error)
        else:
            self._client.fail(error)

    def cancel(self) -> None:
        """Stop the handshake of a connection that is gone."""
        if self._task is not None:
            self._task.cancel()

    # --- authentication

    def _mechanisms(self) -> list[str]:
        has_certificate = self._transport.get_extra_info("peercert") is not None
        return ["PLAIN", "AMQPLAIN", "ANONYMOUS", *(["EXTERNAL"] if has_certificate else [])]

    def _on_start_ok(self, method: commands.Connection.StartOk) -> None:
        properties: Mapping[str, Any] = method.client_properties or {}
        found = properties.get("capabilities")
        if isinstance(found, dict):
            self._capabilities = frozenset(name for name, has in found.items() if has is True)
        name = properties.get("connection_name")
        self._name = name[:NAME_SHOWN_MAX] if isinstance(name, str) else ""
        credentials = self._credentials(method.mechanism, method.response)
        self._state = _HandshakeState.ASKS
        self._client.reading.hold(Pause.RESULT)
        self._task = self._shared.context.run(self._let_in(credentials))

    def _credentials(self, mechanism: str, response: str | bytes) -> Credentials:
        if mechanism not in self._mechanisms():
            offered = ", ".join(self._mechanisms())
            reason = f"the mechanism {mechanism[:NAME_SHOWN_MAX]!r} is not offered; use one of {offered}"
            raise AmqpError(ReplyCode.ACCESS_REFUSED, reason)
        data = response.encode() if isinstance(response, str) else response
        username: str | None = None
        password: bytes | None = None
        try:
            if mechanism == "PLAIN":
                _, user, password = data.split(b"\0")  # RFC 4616: identity to act for, own identity, password
                username = user.decode()
            elif mechanism == "AMQPLAIN":
                table, _ = read_table(len(data).to_bytes(4, "big") + data, 0, len(data) + 4)
                username, secret = table["LOGIN"], table["PASSWORD"]
                password = secret.encode() if isinstance(secret, str) else secret
                if not isinstance(username, str) or not isinstance(password, bytes):
                    raise ValueError
        except (ValueError, KeyError, AmqpError):
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"the response of {mechanism} is not well formed") from None
        return Credentials(self._name, username, password)

    async def _let_in(self, credentials: Credentials) -> None:
        accepted = self._client.accepted
        try:
            identity = await self._authenticator.authenticate(credentials, self._transport, accepted.origin)
        except AccessDenied as error:
            self._task = None
            code = ReplyCode.RESOURCE_ERROR if error.denial is Denial.BUSY else ReplyCode.ACCESS_REFUSED
            self._refuse(AmqpError(code, str(error)))
            return
        has_room = await accepted.room()
        self._task = None
        if not has_room:  # the listener has logged it, once for many
            reason = "as many clients as limits.connections allows are connected; try again later"
            self._refuse(AmqpError(ReplyCode.RESOURCE_ERROR, reason))
        elif not identity.admitted:
            self._refuse(AmqpError(ReplyCode.ACCESS_REFUSED, USER_CHANGED))
        elif not self._client.slot.take(user_or_address(identity.username, accepted.origin)):
            self._refuse(AmqpError(ReplyCode.RESOURCE_ERROR, FULL))
        else:
            self._identity = identity
            self._state = _HandshakeState.AWAITS_TUNE_OK
            settings = self._shared.settings
            tune = commands.Connection.Tune(settings.channels_max, settings.frame_bytes_max, settings.heartbeat_s)
            self._live.tunes()
            self._client.answer(tune)
            self._client.reading.resume()

    def _refuse(self, error: AmqpError) -> None:
        """Close the connection of a refused client. Clients with the capability get the reason."""
        if TELL_FAILURE in self._capabilities:
            self._client.fail(error)
        else:
            self._client.refuse_silently(error.text)

    # --- terms

    def _on_tune_ok(self, method: commands.Connection.TuneOk) -> None:
        settings = self._shared.settings
        frame_bytes_max = method.frame_max or settings.frame_bytes_max
        channels_max = method.channel_max or settings.channels_max
        if not FRAME_BYTES_MIN <= frame_bytes_max <= settings.frame_bytes_max:
            bounds = f"{FRAME_BYTES_MIN} to {settings.frame_bytes_max}"
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"frame-max {frame_bytes_max} is not in {bounds}", method.index)
        if channels_max > settings.channels_max:
            reason = f"channel-max {channels_max} is above {settings.channels_max}"
            raise AmqpError(ReplyCode.NOT_ALLOWED, reason, method.index)
        self._frame_bytes_max = frame_bytes_max
        self._channels_max = channels_max
        self._heartbeat_s = method.heartbeat
        self._client.frame_bytes_max = frame_bytes_max
        self._state = _HandshakeState.AWAITS_OPEN

    def _on_open(self, method: commands.Connection.Open) -> None:
        vhost = method.virtual_host
        prefix = self._shared.settings.prefix_of(self._authenticator.name, vhost)
        if prefix is None:
            reason = f"there is no virtual host {vhost!r}: use `/`, or name it in `vhosts` of the listener"
            raise AmqpError(ReplyCode.INVALID_PATH, reason, method.index)
        identity = self._identity
        assert identity is not None, "it was admitted"
        if not identity.admitted:  # changed since its password was checked
            raise AmqpError(ReplyCode.ACCESS_REFUSED, USER_CHANGED, method.index)
        peer = Peer(
            identity,
            user_or_address(identity.username, self._client.accepted.origin),
            self._shared.context.routing.routes_of(identity),
            self._name,
            Names(prefix),
            self._capabilities,
        )
        self._client.welcome(peer, self._frame_bytes_max, self._channels_max, self._heartbeat_s)
        self._client.answer(commands.Connection.OpenOk())
