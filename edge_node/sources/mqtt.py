"""One connection to an external MQTT broker: a client that acknowledges messages after the fsync.

The decoder and encoder are the node's own. A client library was not used: those for Python answer PUBREC on receipt
(docs/decisions/0083-sources.md), and after PUBREC a broker does not send a message at QoS 2 again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from weft.bounds import TurnBudget
from weft.config.sources import MqttSource
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.sources.connection import (
    CONNECT_TIMEOUT_S,
    AnyConnection,
    Memory,
    Runner,
    SourceConnection,
    SourceContext,
    SourceDown,
    Topics,
)
from weft.edge_node.sources.credentials import client_context, read_password, target_of
from weft.edge_node.sources.status import SourceStatus
from weft.edge_node.subscriptions.message import TooManyProperties, to_headers
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.mqtt.decoder import Reassembly, decode
from weft.protocols.mqtt.encoder import PUBACK, PUBCOMP, PUBREC, encode
from weft.protocols.mqtt.packets import (
    FAILED,
    NO_PROPERTIES,
    ConnAck,
    Connect,
    ConnectCode,
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
)
from weft.storage.filesystem import FileSystem, write_atomically

# Refusals of MQTT brokers as text: their meaning, and the remedy.

_ADVICE_5: dict[int, str] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "it does not know MQTT 5. Set `version: v3.1.1`",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "it rejects the client identifier. Set another `client_id`",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "user name or password is wrong. Check `username` and the password",
    ReasonCode.NOT_AUTHORIZED: "the client may not connect. Check `username`, the password and the broker's rules",
    ReasonCode.PACKET_TOO_LARGE: "it rejects a CONNECT of this length",
}
_ADVICE_311: dict[int, str] = {
    ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION: "it does not know MQTT 3.1.1",
    ConnectCode.IDENTIFIER_REJECTED: "it rejects the client identifier. Set another `client_id`",
    ConnectCode.SERVER_UNAVAILABLE: "it is not available",
    ConnectCode.BAD_USER_NAME_OR_PASSWORD: "user name or password is wrong. Check `username` and the password",
    ConnectCode.NOT_AUTHORISED: "the client may not connect. Check `username`, the password and the broker's rules",
}


def connect_refused(code: int, version: Version, said: str | None) -> str:
    """Return the reason why a broker refuses a client, by the code of its CONNACK."""
    advice = (_ADVICE_5 if version == Version.V5 else _ADVICE_311).get(code)
    why = advice or _name(code)
    return f"the broker refuses the client: {why} (reason code {code:#04x}){f': {said}' if said else ''}"


def subscribe_refused(filters: Sequence[str], code: int, version: Version) -> str:
    """Return the reason why a broker refuses filters, by a code of its SUBACK."""
    named = ", ".join(filters[:3]) + (f" and {len(filters) - 3} more" if len(filters) > 3 else "")
    why = _name(code) if version == Version.V5 else "no reason given"
    return (
        f"the broker refuses the subscription to {named}: {why} (reason code {code:#04x}). "
        "Check the broker's access rules"
    )


def _name(code: int) -> str:
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "for a reason of its own"


TURN_S_MAX = 0.002
"""Time for the packets of one read before others have their turn."""
TURN_COST_MAX = 1 << 30
"""Messages are charged only with their time, like those of the node's own clients."""
FILTERS_AT_A_TIME = 64
"""Maximum number of filters in one SUBSCRIBE: some brokers accept only few."""
ANSWER_BYTES = 4
_QOS_FLAGS = (int(Flag.PUBLISHED_QOS0), 0, int(Flag.PUBLISHED_QOS2))
_NEVER_S = 0xFFFF_FFFF
_RETAINED_IF_NEW = 1
_OLD_BROKER = b"\x20\x02\x00\x01"
"""CONNACK of a broker without MQTT 5, which answers in 3.1.1."""
Answer = TypeVar("Answer")


class MqttTerms(NamedTuple):
    """The client's properties in CONNECT."""

    client_id: str
    version: Version
    username: str | None
    password: bytes | None
    keep_alive_s: float
    session_expiry_s: float
    receive_maximum: int
    packet_bytes_max: int


class MqttConnection(SourceConnection, asyncio.Protocol):
    """The client's side of one connection. After ``open`` and ``subscribe``, messages come until ``ended``."""

    def __init__(
        self, node: SourceContext, status: SourceStatus, topics: Topics, memory: Memory, terms: MqttTerms
    ) -> None:
        super().__init__(node, status, topics, memory)
        self._terms = terms
        self._transport: asyncio.Transport | None = None
        self._partial = Reassembly(terms.packet_bytes_max)
        self._ahead = b""
        """Bytes that arrived during a pause."""
        self._budget = TurnBudget(TURN_COST_MAX, TURN_S_MAX, self._loop.time)
        self._welcome: asyncio.Future[ConnAck] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[SubAck | UnsubAck]] = {}
        """Packet identifier -> the answer to a SUBSCRIBE or UNSUBSCRIBE."""
        self._packet_id = 0
        self._has_codes = False
        """True if some answers were longer than ``ANSWER_BYTES``, for a reason code."""
        self._keep_alive_s = terms.keep_alive_s
        self._heard = self._loop.time()
        self._written = self._heard
        self._timer: asyncio.TimerHandle | None = None

    # --- conversation

    async def open(self) -> bool:
        """Wait for CONNACK; return whether the broker has a session of this client.

        Raises:
            SourceDown: the broker refuses the client, or does not answer.
        """
        answer = await self._answer_to(self._welcome)
        if answer.code:
            reason = connect_refused(answer.code, self._terms.version, answer.properties.reason_string)
            raise SourceDown(reason)
        if answer.properties.server_keep_alive is not None:
            self._keep_alive_s = answer.properties.server_keep_alive or self._keep_alive_s
        if not answer.session_present:
            self.memory.received.clear()
        self._timer = self._loop.call_later(self._keep_alive_s / 2, self._look)
        self.join()
        return answer.session_present

    async def subscribe(self, filters: Sequence[str], qos: int) -> None:
        """Subscribe to some filters.

        Raises:
            SourceDown: the broker refuses one of them, or does not answer.
        """
        in_5 = self._terms.version == Version.V5
        for at in range(0, len(filters), FILTERS_AT_A_TIME):
            some = filters[at : at + FILTERS_AT_A_TIME]
            asked = tuple(
                Subscription(each, qos, retain_as_published=True, retain_handling=_RETAINED_IF_NEW)
                if in_5 and not each.startswith("$share/")
                else Subscription(each, qos, retain_as_published=in_5)
                for each in some
            )
            answer = await self._ask(partial(Subscribe, filters=asked))
            refused = [each for each, code in zip(some, answer.codes, strict=False) if code >= FAILED]
            if refused:
                code = next(code for code in answer.codes if code >= FAILED)
                raise SourceDown(subscribe_refused(refused, code, self._terms.version))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe from some filters.

        Raises:
            SourceDown: the broker does not answer.
        """
        for at in range(0, len(filters), FILTERS_AT_A_TIME):
            some = tuple(filters[at : at + FILTERS_AT_A_TIME])
            await self._ask(partial(Unsubscribe, filters=some))

    async def close(self) -> None:
        """Send DISCONNECT once all messages are acknowledged. The broker keeps the session."""
        await self.settle()
        if self._transport is not None:
            self._transport.write(encode(Disconnect(), self._terms.version))
        self.end("the source stops")

    async def _ask(self, packet: Callable[[int], Packet]) -> SubAck | UnsubAck:
        self._packet_id += 1
        answer: asyncio.Future[SubAck | UnsubAck] = self._loop.create_future()
        self._answers[self._packet_id] = answer
        self._send(encode(packet(self._packet_id), self._terms.version))
        try:
            return await self._answer_to(answer)
        finally:
            self._answers.pop(self._packet_id, None)

    async def _answer_to(self, answer: asyncio.Future[Answer]) -> Answer:
        awaited: list[asyncio.Future[Any]] = [answer, self.ended]
        await asyncio.wait(awaited, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if self.ended.done():
            raise SourceDown(self.ended.result())
        raise SourceDown(f"the broker did not answer within {CONNECT_TIMEOUT_S:g} s")

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        self._transport = cast(asyncio.Transport, transport)
        terms, properties = self._terms, NO_PROPERTIES
        if terms.version == Version.V5:
            properties = Properties(
                session_expiry_interval=min(round(terms.session_expiry_s), _NEVER_S),
                receive_maximum=terms.receive_maximum,
                maximum_packet_size=terms.packet_bytes_max,
            )
        packet = Connect(
            terms.client_id,
            clean_start=False,
            keep_alive_s=max(1, round(terms.keep_alive_s)),
            version=terms.version,
            username=terms.username,
            password=terms.password,
            properties=properties,
        )
        self._send(encode(packet, terms.version))

    def data_received(self, data: bytes) -> None:
        """Handle the data of a read, or keep it during a pause."""
        self._heard = self._loop.time()
        if self.is_held or self._ahead:
            self._ahead += data
        else:
            self._read(data)

    def pause_writing(self) -> None:
        """Pause, while the broker does not read."""
        self.hold(Pause.WRITE)

    def resume_writing(self) -> None:
        """Resume: the broker reads."""
        self.release(Pause.WRITE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.end(f"the connection was lost: {exc}" if exc else "the broker closed the connection")

    # --- a read

    def _read(self, data: bytes) -> None:
        self._budget.begin(self._loop.time())
        try:
            at = 0
            if self._partial:
                packet, at = self._partial.complete(data)
                if packet:
                    self._parse(packet, 0)
            at = self._parse(data, at)
            if at < len(data) and not self.ended.done():
                if self.is_held:
                    self._ahead = data[at:]
                else:
                    self._partial.keep(data[at:])
        except MqttError as error:
            self.end(self._broken(error, data))
        self.node.ingest.batch.gathered()

    def _broken(self, error: MqttError, data: bytes) -> str:
        if error.code == ReasonCode.PACKET_TOO_LARGE:
            return f"the broker sends {error}. Raise `packet`"
        if not self._welcome.done() and self._terms.version == Version.V5 and data.startswith(_OLD_BROKER):
            return connect_refused(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, Version.V5, None)
        return f"the broker sent data that is not MQTT: {error}"

    def _parse(self, data: bytes, at: int) -> int:
        version, packet_bytes_max = self._terms.version, self._terms.packet_bytes_max
        while at < len(data) and not self.is_held and not self.ended.done():
            decoded = decode(data, at, packet_bytes_max, version)
            if decoded is None:
                break
            packet, at = decoded
            if type(packet) is Publish:
                self._publish(packet)
            else:
                self._handle(packet)
            if not self._budget.spend(0) and at < len(data):
                self.hold(Pause.FAIRNESS)
                self.node.round_robin.wait(self.owner, lambda: self.release(Pause.FAIRNESS))
        return at

    def _publish(self, packet: Publish) -> None:
        qos = packet.qos
        if qos == 2 and packet.packet_id in self.memory.received:
            # The message is on disk, and the broker has not read the PUBREC.
            self.node.ingest.batch.answer(self, PUBREC + packet.packet_id.to_bytes(2, "big"))
            return
        flags = _QOS_FLAGS[qos] | (Flag.RETAINED if packet.retain else 0)
        if packet.dup:
            flags |= Flag.DUPLICATE_SUSPECTED
        headers: HeaderPairs = ()
        why: str | None = None
        if packet.properties is not NO_PROPERTIES:
            try:
                headers = to_headers(packet.properties, self.node.wall_clock())
            except TooManyProperties as error:
                why = self._refused("headers", str(error))
        answer = b"" if not qos else (PUBACK if qos == 1 else PUBREC) + packet.packet_id.to_bytes(2, "big")
        why = why or self.take(packet.topic, packet.payload, answer, int(flags), headers)
        if why is not None and qos:
            if self._terms.version == Version.V5:
                kind = PubAck if qos == 1 else PubRec
                answer = encode(kind(packet.packet_id, ReasonCode.TOPIC_NAME_INVALID), Version.V5)
                self._has_codes = True
            # Behind earlier answers [MQTT-4.6.0-2]. 3.1.1 has no reason code for a refusal: without an answer, the
            # message would hold up all others.
            self.node.ingest.batch.answer(self, answer)
            self.status.unacknowledged += 1

    def _handle(self, packet: Packet) -> None:
        match packet:
            case PubRel():
                self.memory.received.discard(packet.packet_id)
                self._send(PUBCOMP + packet.packet_id.to_bytes(2, "big"))
            case ConnAck():
                if not self._welcome.done():
                    self._welcome.set_result(packet)
            case SubAck() | UnsubAck():
                answer = self._answers.get(packet.packet_id)
                if answer is not None and not answer.done():
                    answer.set_result(packet)
            case Disconnect():
                why = packet.properties.reason_string or ReasonCode(packet.code).name.lower().replace("_", " ")
                self.end(f"the broker closed the connection: {why} (reason code {packet.code:#04x})")
            case _:  # PINGRESP, and packets without meaning for a client that only reads
                pass

    # --- for ingest and back-pressure

    def acknowledge(self, answers: bytes) -> None:
        """Send answers: everything before them is durable."""
        if self.ended.done():
            return
        count = _packets_in(answers) if self._has_codes else len(answers) // ANSWER_BYTES
        if PUBREC[:1] in answers:
            self.memory.received.update(_received(answers))
        self.status.acknowledged += count
        self.status.unacknowledged = max(0, self.status.unacknowledged - count)
        self._send(answers)

    def pause(self) -> None:
        """Stop reading from the broker."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Handle data that arrived meanwhile, and resume reading."""
        ahead, self._ahead = self._ahead, b""
        self._heard = self._loop.time()
        if ahead:
            self._read(ahead)
        if not self.is_held and self._transport is not None:
            self._transport.resume_reading()

    # --- timers

    def _look(self) -> None:
        """Ping a silent broker, and disconnect from one that does not answer."""
        now = self._loop.time()
        # The silence of a broker that is not read does not count, but that of one that does not read does.
        if now - self._heard > 2 * self._keep_alive_s and (not self.is_held or self._pauses & Pause.WRITE):
            self.end(f"the broker was silent for {now - self._heard:.0f} s")
            return
        if now - min(self._heard, self._written) >= self._keep_alive_s / 2:
            self._send(encode(PingReq(), self._terms.version))
        self._timer = self._loop.call_later(self._keep_alive_s / 2, self._look)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._written = self._loop.time()
            self._transport.write(data)

    def end(self, reason: str) -> None:
        """End the connection, once."""
        super().end(reason)
        if self._timer is not None:
            self._timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            # Do not wait for a broker that does not read.
            (transport.abort if self._pauses & Pause.WRITE else transport.close)()


def _packets_in(answers: bytes) -> int:
    return len(_packets(answers))


def _packets(answers: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(answers):
        starts.append(at)
        at += 2 + answers[at + 1]
    return starts


def _received(answers: bytes) -> list[int]:
    """Return the identifiers of the PUBRECs for stored messages."""
    return [
        int.from_bytes(answers[at + 2 : at + 4], "big")
        for at in _packets(answers)
        if answers[at] == PUBREC[0] and answers[at + 1] == PUBREC[1]
    ]


# Filters that a source has subscribed to at its broker, in ``<data_dir>/sources/NAME.json``.
#
# The broker's session outlives the node: it keeps filters that a changed configuration no longer has. MQTT cannot
# query them, so they are written to the file before each SUBSCRIBE.

FOLDER = "sources"


class Subscribed(msgspec.Struct, frozen=True):
    """Filters that the session may have."""

    client_id: str
    url: str
    qos: int = 0
    filters: tuple[str, ...] = ()


class SessionFile:
    """The file of one source. Every method blocks on the disk."""

    def __init__(self, filesystem: FileSystem, data_dir: str, name: str) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(data_dir, FOLDER, f"{name}.json")

    def read(self) -> Subscribed | None:
        """Return the content; None without a usable one."""
        try:
            return msgspec.json.decode(self._filesystem.read(self._path), type=Subscribed)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, subscribed: Subscribed) -> None:
        """Write the filters that the session may have from now on.

        Raises:
            OSError: nothing has changed.
        """
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, msgspec.json.encode(subscribed))


# A source that subscribes to an external MQTT broker.

VERSIONS = {"v5": Version.V5, "v3.1.1": Version.V311}


class MqttRunner(Runner):
    """The connections of one MQTT source, one after the other, and the session that outlives them."""

    def __init__(  # noqa: PLR0917
        self,
        settings: MqttSource,
        status: SourceStatus,
        node: SourceContext,
        rng: random.Random,
        client_id: str,
        file: SessionFile,
    ) -> None:
        """Use checked settings.

        Args:
            client_id: default where the settings have none.
        """
        super().__init__(settings, settings.url, status, node, rng)
        self._mqtt = settings
        self._client_id = settings.client_id or client_id
        self._file = file
        share = f"$share/{settings.share}/" if settings.share else ""
        self.filters = tuple(dict.fromkeys(share + each for each in settings.topics))

    async def connect(self, url: str) -> SourceConnection:
        """Connect, and subscribe.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        settings, target = self._mqtt, target_of(url)
        password = await asyncio.to_thread(read_password, settings)
        tls = await asyncio.to_thread(client_context, settings) if target.is_tls else None
        terms = MqttTerms(
            self._client_id,
            VERSIONS[settings.version],
            settings.username,
            password,
            settings.keep_alive_s,
            settings.session_expiry_s,
            settings.receive_maximum,
            settings.packet_bytes_max,
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await self._loop.create_connection(
                lambda: MqttConnection(self.node, self.status, self.topics, self.memory, terms),
                target.address.host,
                target.address.port,
                ssl=tls,
            )
        try:
            await self._subscribe(connection, url, has_session=await connection.open())
        except BaseException as error:
            connection.end(str(error))
            raise
        return connection

    async def close(self, connection: AnyConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""
        assert isinstance(connection, MqttConnection)
        await connection.close()

    async def _subscribe(self, connection: MqttConnection, url: str, *, has_session: bool) -> None:
        """Make the filters of the settings the session's only subscriptions."""
        wanted = Subscribed(self._client_id, url, self._mqtt.qos, self.filters)
        before = await asyncio.to_thread(self._file.read) if has_session else None
        if before is not None and before.client_id != wanted.client_id:
            before = None
        if before == wanted and self._mqtt.version == "v3.1.1":
            return  # after a SUBSCRIBE in 3.1.1 the broker would send every retained message again
        try:
            if before != wanted:
                may_have = tuple(dict.fromkeys([*(before.filters if before is not None else ()), *self.filters]))
                await asyncio.to_thread(self._file.write, Subscribed(self._client_id, url, 0, may_have))
            if before is not None and (gone := [each for each in before.filters if each not in self.filters]):
                await connection.unsubscribe(gone)
            await connection.subscribe(self.filters, self._mqtt.qos)
            if before != wanted:
                await asyncio.to_thread(self._file.write, wanted)
        except OSError as error:
            raise SourceDown(f"the filters of the session cannot be written down: {error}") from None
