"""Connections of Kafka's clients: frames, authentication, and one answer after the other in the order of requests.

A client of a hub with tokens authenticates by SASL PLAIN (KIP-43), with a token as the password and any user name. Its
rights are looked at with each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from weft.bounds import NestedShares, Owner, Refusals
from weft.cloud_hub.auth.access import Access, Charged, charged_to
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
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.units import Address
from weft.hub_api.answers import ApiError
from weft.network.accepting import Acceptor, CannotListen
from weft.network.admission import Admission, NetworkConnection
from weft.protocols.errors import Corrupt

logger = logging.getLogger(__name__)
T = TypeVar("T")

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
REQUESTS_BEFORE = 8
"""Maximum number of requests of a connection before its client is admitted: clients send three."""
READ_BYTES = 4 << 10
"""Half of the bytes that a connection reads ahead, beside those of one read."""
READ_BYTES_BEFORE = 16 << 10
"""Most bytes of one read before the client is admitted."""
REQUEST_S = 0.0001
"""Processor time of the loop for each request."""
REQUESTS_BYTES_MAX = 8 << 20
"""Bytes of long requests in progress, which have some 50 times as many in memory. A tenant has half of them at most, a
token an eighth."""
WORK_AT_ONCE = 2
"""Number of requests that are decoded, or answers that are encoded, in threads at one time."""
TOPICS_MAX = 4096
"""Maximum number of topics of a request: a tenant has about as many streams."""
IN_THREAD_BYTES = 1 << 10
"""Length of a request from which it is decoded in a thread: it may name thousands of partitions, and some versions take
a microsecond for each byte."""
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
        self._listener, self.access, self.broker, self._brokers = listener, access, broker, brokers
        self.answers, self.refusals, self.time = answers, refusals, time_of
        self.counters = KafkaCounters()
        limits = replace(
            settings.admission,
            connections_max=CONNECTIONS_MAX,
            connections_per_address_max=settings.connections_per_address_max,
            section="limits",
        )
        self._admission = Admission(limits, self.counters, self.counters)
        self._acceptor = Acceptor(self._connected, self._admission, name=NAME, bind=self._bind)
        self._requests: NestedShares[Owner] = NestedShares(
            REQUESTS_BYTES_MAX, REQUESTS_BYTES_MAX // 2, REQUESTS_BYTES_MAX // 8
        )
        self.work, self.work_before = asyncio.Semaphore(WORK_AT_ONCE), asyncio.Semaphore(1)
        """Turns in threads, of admitted clients and of others, for whom no admitted one waits."""
        self._repeats = Repeats()
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

    def lifetime(self, client: Client) -> timedelta:
        """Return the time after which a client has to authenticate again, by a new token (KIP-368); zero for no
        end."""
        left_s = None if client.identity is None else self.access.left_s(client.identity)
        return messages.NO_TIME if left_s is None else max(timedelta(milliseconds=1), timedelta(seconds=left_s))

    def _connected(self, _: asyncio.Transport, accepted: NetworkConnection) -> asyncio.Protocol:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
            task = asyncio.create_task(self._serve(accepted, reader, writer), name="kafka-connection")
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            return task

        return _Protocol(accepted, begin)

    async def _serve(
        self, accepted: NetworkConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with contextlib.AsyncExitStack() as holding:
                connection = KafkaConnection(self, accepted, reader, writer, holding)
                await connection.serve()
        except Leaving as error:
            self._admission.complain("protocol", "closed the Kafka connection of %s: %s", accepted.name, error)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        except Exception as error:
            if (count := self._repeats.due(repr(error), asyncio.get_running_loop().time())) is not None:
                logger.exception("the Kafka connection of %s failed%s", accepted.name, left_out(count))
        finally:
            accepted.closed()
            writer.transport.abort()

    @contextlib.contextmanager
    def place(self, charged: Charged) -> Iterator[None]:
        """Hold a place for an admitted client.

        Raises:
            Leaving: there is none.
        """
        what = "refused a connection. Close others, or run fewer consumers"
        with _share(self._places, charged, 1, self.refusals, what):
            yield

    @contextlib.contextmanager
    def request(self, charged: Charged, length: int) -> Iterator[None]:
        """Hold the bytes of a long request until it is answered.

        Raises:
            Leaving: its client has too many.
        """
        what = "refused a long request. Send fewer of them at once, or name fewer partitions"
        with _share(self._requests, charged, length, self.refusals, what):
            yield


@contextlib.contextmanager
def _share(shares: NestedShares[Owner], charged: Charged, units: int, refusals: Refusals, what: str) -> Iterator[None]:
    owner, tenant = charged
    if not shares.take(tenant, owner, units):
        refusals.note(_BOUND, owner, what)
        raise Leaving(f"{owner} has its share of connections, or of long requests in progress")
    try:
        yield
    finally:
        shares.free(tenant, owner, units)


class _Protocol(asyncio.StreamReaderProtocol):
    """A protocol that cancels the task of its connection once the client has left, so that no fetch waits for it.

    It ends a connection that sends more at once before its client is admitted than such a client has to say: a read of
    asyncio's has 256 KiB.
    """

    def __init__(
        self,
        accepted: NetworkConnection,
        begin: Callable[[asyncio.StreamReader, asyncio.StreamWriter], asyncio.Task[None]],
    ) -> None:
        self._accepted = accepted
        self._task: asyncio.Task[None] | None = None

        def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._task = begin(reader, writer)

        super().__init__(asyncio.StreamReader(READ_BYTES), begun)

    def data_received(self, data: bytes) -> None:
        """Keep the bytes for the task."""
        accepted = self._accepted
        if accepted.is_half_open and len(data) > READ_BYTES_BEFORE and accepted.transport is not None:
            accepted.transport.abort()
        else:
            super().data_received(data)

    def eof_received(self) -> bool:
        """Cancel the task: clients read answers to the end before they leave."""
        self._cancel()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the task."""
        super().connection_lost(exc)
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class KafkaConnection:
    """One connection.

    Args:
        holding: what the connection holds until its end.
    """

    def __init__(
        self,
        listener: KafkaListener,
        accepted: NetworkConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        holding: contextlib.AsyncExitStack,
    ) -> None:
        self._listener, self._accepted = listener, accepted
        self._reader, self._writer, self._holding = reader, writer, holding
        self._local_host = str(writer.get_extra_info("sockname")[0])
        self._client: Client | None = None
        """The client, once it is admitted."""

    async def serve(self) -> None:
        """Answer requests until the client leaves.

        Raises:
            Leaving: the connection has to end.
            TimeoutError, OSError, IncompleteReadError: the client is gone, idle, or too slow.
        """
        listener = self._listener
        for number in itertools.count(1):
            if self._client is None and number > REQUESTS_BEFORE:
                raise Leaving(f"{REQUESTS_BEFORE} requests before it authenticated")
            frame = await self._next()
            listener.counters.requests += 1
            if self._client is None and not listener.access.needs_token:
                await self._enter(await self._admit(None))
            if self._client is None:
                await self._before(frame)
            else:
                await self._serve(frame, self._client)
            await asyncio.sleep(0)  # requests that were sent together are steps of their own

    async def _before(self, frame: bytes) -> None:
        """Answer a request of a client that is not admitted."""
        request = await self._decoded(frame, None)
        if request.key == messages.API_VERSIONS:
            await self._send(request, messages.api_versions(request))
        elif request.key in (messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE):
            await self._authenticate(request)
        else:
            await self._admit(None)  # which says what is missing
            raise Leaving("a request before it authenticated")

    async def _serve(self, frame: bytes, client: Client) -> None:
        """Answer a request of an admitted client, which pays for all of it."""
        listener, charged = self._listener, client.charged
        await listener.time.pay(charged)
        listener.time.charge(charged, REQUEST_S)
        with contextlib.ExitStack() as holding:
            if len(frame) > IN_THREAD_BYTES:
                holding.enter_context(listener.request(charged, len(frame)))
            request = await self._decoded(frame, client)
            if listener.access.is_over(client.identity):
                raise Leaving("its token is no longer in force")
            if request.key == messages.API_VERSIONS:
                await self._send(request, messages.api_versions(request))
            elif request.key in (messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE):
                await self._authenticate(request)
            else:
                listener.counters.bytes_sent += await self._answer(request, client)

    async def _next(self) -> bytes:
        bytes_max = FRAME_BYTES_BEFORE if self._client is None else FRAME_BYTES_MAX
        async with asyncio.timeout(IDLE_S):
            first = await self._reader.readexactly(1)
        async with asyncio.timeout(FRAME_S):
            (length,) = LENGTH.unpack(first + await self._reader.readexactly(LENGTH.size - 1))
            if not 0 < length <= bytes_max:
                raise Leaving(f"a request of {length} bytes; the limit is {bytes_max}")
            return await self._reader.readexactly(length)

    async def _decoded(self, frame: bytes, client: Client | None) -> Request:
        try:
            if len(frame) < IN_THREAD_BYTES:
                return messages.decode(frame)
            return await self._worked(client, messages.decode, frame)
        except Corrupt as error:
            raise Leaving(str(error)) from None

    async def _worked(self, client: Client | None, work: Callable[..., T], *args: Any) -> T:
        """Do work in a thread, at the expense of a client."""
        cost = Search()
        async with self._listener.work_before if client is None else self._listener.work:
            try:
                return await asyncio.to_thread(cost.timed(work), *args)
            finally:
                if client is not None:
                    self._listener.time.charge(client.charged, cost.worked_s)

    async def _admit(self, token: str | None) -> Client:
        host = self._accepted.host
        try:
            identity: TokenIdentity | None = await self._listener.access.consumer(token, host, NAME)
        except ApiError as error:
            raise Leaving(f"{error.error}; {error.advice}") from None
        return Client(identity, charged_to(identity, host), self._local_host)

    async def _enter(self, client: Client) -> None:
        """Take a place for an admitted client, before any request of it is served."""
        if not await self._accepted.room():
            raise Leaving("there are too many connections")
        self._holding.enter_context(self._listener.place(client.charged))
        self._accepted.opened()
        self._client = client

    async def _authenticate(self, request: Request) -> None:
        if request.key == messages.SASL_HANDSHAKE:
            await self._send(request, messages.sasl_handshake(request.body))
            return
        try:
            client = await self._admit(messages.sasl_password(request.body))
            if self._client is None:
                await self._enter(client)
            elif not _is_same(self._client, client):
                raise Leaving("a connection cannot change its token for one of another name or other rights")
        except Leaving as why:
            await self._send(request, messages.sasl_authenticated(str(why)))
            raise
        self._client = client  # a renewed token lasts longer
        await self._send(request, messages.sasl_authenticated(None, self._listener.lifetime(client)))

    async def _answer(self, request: Request, client: Client) -> int:
        """Answer a request of an admitted client. Return the bytes of the answer."""
        if request.key == messages.PRODUCE and not request.body.acks:
            raise Leaving("it sent records, which the hub does not take, and waits for no answer")
        asked: Any = getattr(request.body, "topics", None) or getattr(request.body, "resources", ())
        if len(asked) > TOPICS_MAX:
            raise Leaving(f"a request for {len(asked)} topics; the limit is {TOPICS_MAX}")
        listener = self._listener
        call = Call(request, client, listener.access, listener.answers)

        async def write(piece: bytes) -> None:
            call.check()
            await self._write_piece(piece)

        try:
            answer = await listener.broker.handlers[request.key](call)
            call.check()
            frame = await self._worked(client, messages.encode, request, answer)
            del answer
            if call.room is None:
                async with asyncio.timeout(WRITE_S):
                    await write(frame)
            else:
                await call.room.send([frame], write)
            return len(frame)
        finally:
            await call.free_room()

    async def _send(self, request: Request, answer: Any) -> None:
        async with asyncio.timeout(WRITE_S):
            await self._write_piece(messages.encode(request, answer))

    async def _write_piece(self, piece: bytes) -> None:
        self._writer.write(piece)
        await self._writer.drain()


def _is_same(client: Client, renewed: Client) -> bool:
    """Return whether a client shows another token of the same name, tenant and rights, as one that was renewed."""
    before, after = client.identity, renewed.identity
    if before is None or after is None:
        return before is after
    return client.charged == renewed.charged and before.rights.texts == after.rights.texts
