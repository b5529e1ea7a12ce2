"""Connections of Kafka's clients: frames, authentication, and one answer after the other in the order of requests.

A client of a hub with tokens authenticates by SASL PLAIN (KIP-43), with a token as the password and any user name. Its
rights are looked at with each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from weft.bounds import NestedShares, Owner, Refusals
from weft.cloud_hub.auth.access import Access, charged_to
from weft.cloud_hub.auth.tokens import JWT_CHARACTERS_MAX, TokenIdentity
from weft.cloud_hub.http.exchange import Answers
from weft.cloud_hub.http.listener import HubListener
from weft.cloud_hub.kafka import messages
from weft.cloud_hub.kafka.broker import Broker
from weft.cloud_hub.kafka.messages import LENGTH, Request
from weft.cloud_hub.kafka.partitions import ProcessorTime
from weft.cloud_hub.kafka.topics import Brokers, Call, Client, Leaving
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.views import Search
from weft.cloud_hub.settings import HubSettings
from weft.config.errors import SettingError
from weft.config.metrics.exposition import Sample
from weft.config.units import Address
from weft.hub_api.answers import ApiError
from weft.network.accepting import Acceptor, CannotListen
from weft.network.admission import Admission, NetworkConnection
from weft.protocols.errors import Corrupt

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 1024
"""Maximum number of admitted connections of a process. A tenant has half of them at most, a token an eighth."""
FRAME_BYTES_MAX = 128 << 10
"""Longest request: a fetch of some 4,000 partitions."""
FRAME_BYTES_BEFORE = JWT_CHARACTERS_MAX + 1024
"""Longest request before the client is authenticated: one with a JSON Web Token."""
FRAME_S = 10.0
"""Longest time in which a request must be complete after its first bytes."""
IDLE_S = 600.0
"""Time without a request after which a connection is closed, as by Kafka (``connections.max.idle.ms``)."""
WRITE_S = 10.0
"""Longest time for a client to read an answer without records."""
TOPICS_MAX = 4096
"""Maximum number of topics of a request: a tenant has about as many streams."""
IN_THREAD_BYTES = 4 << 10
"""Length of a request from which it is decoded in a thread: it may name thousands of partitions."""
NAME = "kafka"
_BOUND = "connections of Kafka's clients"


@dataclass
class KafkaCounters:
    """Totals since the start; ``connections`` and ``connections_half_open`` have the present number."""

    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connect_timeouts: int = 0
    connections_rate_limited: int = 0
    connections_half_open: int = 0
    half_open_evicted: int = 0
    handshakes_failed: int = 0
    proxy_headers_refused: int = 0
    accept_pauses: int = 0
    requests: int = 0
    bytes_sent: int = 0


class KafkaListener(Part):
    """The listener of one process. Event loop's thread only.

    Args:
        listener: the listener for HTTP, whose certificate this one uses as well.
        answers: bounds on the answers in progress.
        time_of: processor time of the readers.
    """

    def __init__(
        self,
        settings: HubSettings,
        listener: HubListener,
        access: Access,
        broker: Broker,
        *,
        answers: Answers,
        brokers: Brokers,
        refusals: Refusals,
        time_of: ProcessorTime,
    ) -> None:
        assert settings.kafka_port is not None, "else the hub makes none"
        self._bind = Address(settings.kafka_host, settings.kafka_port)
        self._listener, self._access, self._broker, self._brokers = listener, access, broker, brokers
        self._answers, self._refusals, self._time = answers, refusals, time_of
        self.counters = KafkaCounters()
        limits = replace(
            settings.admission,
            connections_max=CONNECTIONS_MAX,
            connections_per_address_max=settings.connections_per_address_max,
            section="limits",
        )
        self._admission = Admission(limits, self.counters, self.counters)
        self._acceptor = Acceptor(self._connected, self._admission, name=NAME, bind=self._bind)
        self._places: NestedShares[Owner] = NestedShares(CONNECTIONS_MAX, CONNECTIONS_MAX // 2, CONNECTIONS_MAX // 8)
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Return the port of the started listener."""
        return self._acceptor.addresses[0][1]

    async def start(self) -> None:
        """Listen, with the certificate of the listener for HTTP, which has started.

        Raises:
            SettingError: the address cannot be bound.
        """
        self._listener.share_tls(self._acceptor)
        try:
            await self._acceptor.start()
        except CannotListen as error:
            raise SettingError(("kafka", "listen"), str(error)) from None
        self._acceptor.accept()
        self._brokers.listens(self.port)

    async def close(self) -> None:
        """Accept no more connections, and end all. Consumers continue at another process."""
        self._acceptor.stop()
        self._admission.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        counters = self.counters
        yield Sample("weft_hub_kafka_connections", counters.connections)
        yield Sample("weft_hub_kafka_requests_total", counters.requests)
        yield Sample("weft_hub_kafka_sent_bytes_total", counters.bytes_sent)

    def _connected(self, _: asyncio.Transport, accepted: NetworkConnection) -> asyncio.Protocol:
        reader = asyncio.StreamReader(FRAME_BYTES_MAX)

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(accepted, reader, writer), name="kafka-connection")
            self._open.add(task)
            task.add_done_callback(self._open.discard)

        return asyncio.StreamReaderProtocol(reader, begin)

    async def _serve(
        self, accepted: NetworkConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = KafkaConnection(
            self._access, self._broker, self._answers, self._time, accepted, reader=reader, writer=writer
        )
        try:
            async with contextlib.AsyncExitStack() as holding:
                await connection.serve(self.counters, lambda client: holding.enter_context(self._place(client)))
        except Leaving as error:
            self._admission.complain("protocol", "closed the Kafka connection of %s: %s", accepted.name, error)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        except Exception:
            logger.exception("the Kafka connection of %s failed", accepted.name)
        finally:
            accepted.closed()
            writer.transport.abort()

    @contextlib.contextmanager
    def _place(self, client: Client) -> Iterator[None]:
        """Hold a place for an admitted client."""
        owner, tenant = client.charged
        if not self._places.take(tenant, owner):
            self._refusals.note(_BOUND, owner, "refused a connection. Close others, or run fewer consumers")
            raise Leaving(f"{owner} has its share of {CONNECTIONS_MAX} connections")
        try:
            yield
        finally:
            self._places.free(tenant, owner)


class KafkaConnection:
    """One connection."""

    def __init__(
        self,
        access: Access,
        broker: Broker,
        answers: Answers,
        time_of: ProcessorTime,
        accepted: NetworkConnection,
        *,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._access, self._broker, self._answers, self._time = access, broker, answers, time_of
        self._accepted, self._reader, self._writer = accepted, reader, writer
        self._local_host = str(writer.get_extra_info("sockname")[0])
        self._client: Client | None = None
        """The client, once it is admitted."""

    async def serve(self, counters: KafkaCounters, admitted: Callable[[Client], None]) -> None:
        """Answer requests until the client leaves.

        Args:
            admitted: called with the client before its first request is served.

        Raises:
            Leaving: the connection has to end.
            TimeoutError, OSError, IncompleteReadError: the client is gone, idle, or too slow.
        """
        while True:
            request = await self._next()
            counters.requests += 1
            if request.key == messages.API_VERSIONS:
                await self._send(request, messages.api_versions(request))
            elif request.key in (messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE):
                await self._authenticate(request)
            else:
                counters.bytes_sent += await self._answer(request, await self._current())
            if self._client is None and not self._access.needs_token:
                await self._current()
            if self._client is not None and self._accepted.is_half_open:
                if not await self._accepted.room():
                    raise Leaving("there are too many connections")
                admitted(self._client)
                self._accepted.opened()

    async def _next(self) -> Request:
        bytes_max = FRAME_BYTES_BEFORE if self._accepted.is_half_open else FRAME_BYTES_MAX
        async with asyncio.timeout(IDLE_S):
            first = await self._reader.readexactly(1)
        async with asyncio.timeout(FRAME_S):
            (length,) = LENGTH.unpack(first + await self._reader.readexactly(LENGTH.size - 1))
            if not 0 < length <= bytes_max:
                raise Leaving(f"a request of {length} bytes; the limit is {bytes_max}")
            frame = await self._reader.readexactly(length)
        try:
            if length < IN_THREAD_BYTES:
                return messages.decode(frame)
            return await asyncio.to_thread(messages.decode, frame)
        except Corrupt as error:
            raise Leaving(str(error)) from None

    async def _current(self) -> Client:
        """Return the client of a request, with the rights that it has now."""
        client = self._client
        if client is not None and not self._access.is_over(client.identity):
            return client
        if client is not None:
            raise Leaving("its token is no longer in force")
        self._client = await self._admit(None)  # a hub without tokens
        return self._client

    async def _admit(self, token: str | None) -> Client:
        host = self._accepted.host
        try:
            identity: TokenIdentity | None = await self._access.consumer(token, host, NAME)
        except ApiError as error:
            raise Leaving(f"{error.error}; {error.advice}") from None
        return Client(identity, charged_to(identity, host), self._local_host)

    async def _authenticate(self, request: Request) -> None:
        if request.key == messages.SASL_HANDSHAKE:
            await self._send(request, messages.sasl_handshake(request.body))
            return
        try:
            client = await self._admit(messages.sasl_password(request.body))
        except Leaving as why:
            await self._send(request, messages.sasl_authenticated(str(why)))
            raise
        if self._client is not None and self._client.identity != client.identity:
            raise Leaving("a connection cannot change its token")  # its place is its first token's
        self._client = client
        await self._send(request, messages.sasl_authenticated(None))

    async def _answer(self, request: Request, client: Client) -> int:
        """Answer a request of an admitted client. Return the bytes of the answer."""
        if request.key == messages.PRODUCE and not request.body.acks:
            raise Leaving("it sent records, which the hub does not take, and waits for no answer")
        asked: Any = getattr(request.body, "topics", None) or getattr(request.body, "resources", ())
        if len(asked) > TOPICS_MAX:
            raise Leaving(f"a request for {len(asked)} topics; the limit is {TOPICS_MAX}")
        call = Call(request, client, self._access, self._answers)
        try:
            answer = await self._broker.handlers[request.key](call)
            await self._time.pay(client.charged)
            cost = Search()
            frame = await asyncio.to_thread(cost.timed(messages.encode), request, answer)
            self._time.charge(client.charged, cost.worked_s)
            if call.room is None:
                await self._write(frame)
            else:
                await call.room.send([frame], self._write_piece)
            return len(frame)
        finally:
            await call.free_room()

    async def _send(self, request: Request, answer: Any) -> None:
        await self._write(messages.encode(request, answer))

    async def _write(self, frame: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await self._write_piece(frame)

    async def _write_piece(self, piece: bytes) -> None:
        self._writer.write(piece)
        await self._writer.drain()
