"""A source that consumes a queue of an external AMQP 0-9-1 broker, by aio-pika. Loaded only where one is configured."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl

from aio_pika import Connection
from aio_pika.exceptions import AMQPError
from yarl import URL

from weft.config.intake.sources import AmqpSource
from weft.edge_node.sources.amqp_connection import AmqpConnection, told
from weft.edge_node.sources.amqp_frames import Deliveries
from weft.edge_node.sources.connection import CONNECT_TIMEOUT_S, NodeParts, SourceConnection, SourceDown
from weft.edge_node.sources.credentials import BrokerUrl, client_context, read_password, target_of
from weft.edge_node.sources.runner import Runner
from weft.edge_node.sources.status import SourceStatus

for _name in ("aiormq", "aio_pika"):
    # They log at each attempt. The source logs the same once, and its status always has it.
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class AmqpRunner(Runner):
    """The connections of one AMQP source, one after the other."""

    def __init__(
        self, settings: AmqpSource, status: SourceStatus, node: NodeParts, rng: random.Random, name: str
    ) -> None:
        super().__init__(settings, status, node, rng)
        self._amqp = settings
        self._name = f"weft {name}"
        self._leaving: set[asyncio.Task[None]] = set()

    async def connect(self, url: str) -> SourceConnection:
        """Connect, and consume.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        settings, target = self._amqp, target_of(url)
        password = await asyncio.to_thread(read_password, settings)
        tls = await asyncio.to_thread(client_context, settings) if target.is_tls else None
        opened = Connection(self._url(target, password), ssl_context=tls)
        deliveries = Deliveries(settings.message_bytes_max, is_tls=target.is_tls)
        opened.kwargs["transport_factory"] = deliveries  # aio-pika passes it on to aiormq, but has no parameter for it
        try:
            await opened.connect(timeout=CONNECT_TIMEOUT_S)
        except AMQPError as error:
            cause = _cause(error)
            if isinstance(cause, OSError) and not isinstance(cause, AMQPError):
                raise cause from None
            raise SourceDown(told(error, settings.queue)) from None
        except KeyError as error:
            raise _says_too_little(error) from None
        connection = AmqpConnection(self.node, self.status, self.topics, self.memory, settings, opened, deliveries)
        try:
            await connection.consume()
        except BaseException as error:
            connection.end(str(error))
            await connection.disconnect()
            if isinstance(error, KeyError):
                raise _says_too_little(error) from None
            raise
        connection.ended.add_done_callback(lambda _: self._disconnect(connection))
        return connection

    async def close(self, connection: SourceConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""
        assert isinstance(connection, AmqpConnection)
        await connection.close()

    def _url(self, target: BrokerUrl, password: bytes | None) -> URL:
        settings = self._amqp
        is_external = settings.username is None and settings.tls is not None and settings.tls.certificate is not None
        return URL.build(
            scheme=target.scheme, host=target.address.host, port=target.address.port,
            user=settings.username or "guest", password=(password or b"guest").decode(errors="replace"),
            path=f"/{target.path}" if target.path != "/" else "/",
            query={
                "heartbeat": str(max(1, round(settings.keep_alive_s))), "name": self._name,
                "auth": "external" if is_external else "plain",
            },
        )  # fmt: skip

    def _disconnect(self, connection: AmqpConnection) -> None:
        task = self._loop.create_task(connection.disconnect())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _says_too_little(error: KeyError) -> SourceDown:
    """Return the error for a broker without a property that aiormq requires."""
    return SourceDown(
        f"the broker names no {error.args[0]} when it greets, as RabbitMQ does and the client needs. Is the "
        "address that of RabbitMQ, or of a broker that is compatible with it?"
    )


def _cause(error: BaseException) -> BaseException:
    """Return the system's error of a failed connection."""
    while error.__cause__ is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__
    return error
