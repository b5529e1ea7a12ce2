"""One client of each protocol, of its own library and all of one shape: what listeners do for one, they do for all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import importlib.util
import queue
import select
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.network.test_accepting import header
from tests.support.waiting import PATIENCE_S, Patience
from weft.config.listeners import ListenerProtocol

HOST = "127.0.0.1"
TOO_LONG = 311
"""Reply code of AMQP 0-9-1."""


@dataclass(frozen=True)
class Way:
    """The way to a node, and who comes."""

    port: int
    user: str | None = None
    password: str = ""
    tls: ssl.SSLContext | None = None
    files: tuple[str, str | None, str | None] | None = None
    """The same TLS for a client that takes files: authorities, certificate and key."""
    shows_certificate: bool = False


class Refused(Exception):
    """A client that was not let in, with the words it got."""


class ProtocolClient(ABC):
    """A client of one protocol; it blocks, so its methods belong in a thread. Every failure to connect is ``Refused``.

    Topics are written with ``/``.
    """

    protocol: ClassVar[ListenerProtocol]
    """Protocol of the listener that it speaks to."""

    def __init__(self, way: Way) -> None:
        self.way = way

    @abstractmethod
    def connect(self) -> None: ...

    @abstractmethod
    def publish(self, topic: str, body: bytes = b"x") -> bool:
        """Return whether it was acknowledged; False where the node says that it may not, or is too long."""

    @abstractmethod
    def subscribe(self, topic: str) -> bool:
        """Return whether it may read the topic."""

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the node ends the connection, which is waited for."""

    @abstractmethod
    def close(self) -> None: ...


class Mqtt(ProtocolClient):
    """paho-mqtt, with MQTT 5.0: its PUBACK says whether a message was taken."""

    protocol = "mqtt"
    BEGINNING = b"\x10\xff\x7f\x00\x04MQTT"
    """Bytes with which a client begins that then stops."""

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, reconnect_on_failure=False)
        self._codes: queue.Queue[str] = queue.Queue()
        self._grants: queue.Queue[int] = queue.Queue()
        self._acks: queue.Queue[int] = queue.Queue()
        self._lost = threading.Event()
        self.paho.on_connect = lambda _c, _u, _f, code, _p: self._codes.put(str(code))
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self._grants.put(codes[0].value)
        self.paho.on_publish = lambda _c, _u, _m, code, _p: self._acks.put(code.value)
        self.paho.on_disconnect = self._disconnected
        if way.files is not None:
            self.paho.tls_set(*way.files)
        if way.user is not None:
            self.paho.username_pw_set(way.user, way.password)

    def _disconnected(self, *_: Any) -> None:
        self._lost.set()
        self._acks.put(0x80)
        self._codes.put("lost")

    def connect(self) -> None:
        try:
            self.paho.connect(HOST, self.way.port)
        except OSError as error:
            raise Refused(str(error)) from error
        self.paho.loop_start()
        code = self._codes.get(timeout=PATIENCE_S)
        if code != "Success":
            raise Refused(code)

    def publish(self, topic: str, body: bytes = b"x") -> bool:
        self.paho.publish(topic, body, 1)
        return self._acks.get(timeout=PATIENCE_S) < 0x80

    def subscribe(self, topic: str) -> bool:
        self.paho.subscribe(topic, 1)
        return self._grants.get(timeout=PATIENCE_S) < 0x80

    def is_closed(self) -> bool:
        return self._lost.wait(PATIENCE_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class Amqp(ProtocolClient):
    """pika."""

    protocol = "amqp"
    BEGINNING = b"AMQP\0\0\x09\x01"

    def connect(self) -> None:
        way = self.way
        login: Any = pika.PlainCredentials(way.user, way.password) if way.user is not None else _Nobody()
        if way.shows_certificate and way.user is None:
            login = pika.credentials.ExternalCredentials()
        tls = None if way.tls is None else pika.SSLOptions(way.tls, HOST)
        parameters = pika.ConnectionParameters(
            HOST,
            way.port,
            credentials=login,
            ssl_options=tls,
            socket_timeout=PATIENCE_S,
            stack_timeout=PATIENCE_S,
            blocked_connection_timeout=PATIENCE_S,
        )
        try:
            self._connection = pika.BlockingConnection(parameters)
        except (pika.exceptions.AMQPError, OSError) as error:
            raise Refused(repr(error)) from error

    def _channel(self) -> Any:
        channel = self._connection.channel()
        channel.confirm_delivery()
        return channel

    def publish(self, topic: str, body: bytes = b"x") -> bool:
        try:
            self._channel().basic_publish("amq.topic", topic.replace("/", "."), body)
        except pika.exceptions.ChannelClosedByBroker as error:
            return error.reply_code != TOO_LONG and _is_not_forbidden(error.reply_code)
        except pika.exceptions.NackError:
            return False
        return True

    def subscribe(self, topic: str) -> bool:
        channel = self._channel()
        channel.queue_declare("", exclusive=True)
        try:
            channel.queue_bind("", "amq.topic", topic.replace("/", "."))
        except pika.exceptions.ChannelClosedByBroker as error:
            return _is_not_forbidden(error.reply_code)
        return True

    def is_closed(self) -> bool:
        patience = Patience()
        with contextlib.suppress(pika.exceptions.AMQPError):
            while not patience.is_over():
                self._connection.process_data_events(time_limit=0.1)
        return not self._connection.is_open

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError, AttributeError):
            self._connection.close()


def _is_not_forbidden(code: object) -> bool:
    assert code == 403, code
    return False


class _Nobody:
    """SASL ANONYMOUS, which pika leaves to others."""

    TYPE = "ANONYMOUS"
    erase_on_connect = False

    def response_for(self, start: Any) -> tuple[str, bytes]:
        return self.TYPE, b""

    def erase_credentials(self) -> None: ...


pika.credentials.VALID_TYPES.append(_Nobody)


class Amqp1(ProtocolClient):
    """Proton's blocking client."""

    protocol = "amqp"
    BEGINNING = b"AMQP\3\1\0\0"

    def connect(self) -> None:
        from proton import ProtonException, SSLDomain
        from proton.utils import BlockingConnection

        way, domain = self.way, None
        if way.files is not None:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(way.files[0])
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
            if way.files[1] is not None and way.files[2] is not None:
                domain.set_credentials(way.files[1], way.files[2], None)
        mechanism = "PLAIN" if way.user is not None else "EXTERNAL" if way.shows_certificate else "ANONYMOUS"
        try:
            self._connection = BlockingConnection(
                f"{'amqp' if domain is None else 'amqps'}://{HOST}:{way.port}",
                timeout=PATIENCE_S,
                ssl_domain=domain,
                allowed_mechs=mechanism,
                allow_insecure_mechs=True,
                user=way.user,
                password=way.password or None,
            )
        except (ProtonException, OSError) as error:
            raise Refused(str(error)) from error

    def publish(self, topic: str, body: bytes = b"x") -> bool:
        from proton import Message
        from proton.utils import LinkDetached, SendException

        try:
            sender = self._connection.create_sender(topic)
        except LinkDetached:
            return False
        try:
            sender.send(Message(body=body, inferred=True))
        except (SendException, LinkDetached):
            return False
        finally:
            with contextlib.suppress(LinkDetached):
                sender.close()
        return True

    def subscribe(self, topic: str) -> bool:
        from proton.utils import LinkDetached

        try:
            self._connection.create_receiver(topic).close()
        except LinkDetached as error:
            return _is_not_forbidden(403 if "unauthorized" in str(error) else str(error))
        return True

    def is_closed(self) -> bool:
        from proton import ProtonException

        try:
            self._connection.wait(lambda: False, timeout=PATIENCE_S)
        except ProtonException as error:
            return "Timeout" not in type(error).__name__
        return False

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()


class Http(ProtocolClient):
    """The standard library's client, which keeps its connection. It is let in with its first request."""

    protocol = "http"
    BEGINNING = b"POST /v1/topics/t/x HTTP/1.1\r\nHost: a\r\nX: "

    def connect(self) -> None:
        way = self.way
        if way.tls is None:
            self._http = http.client.HTTPConnection(HOST, way.port, timeout=PATIENCE_S)
        else:
            self._http = http.client.HTTPSConnection(HOST, way.port, timeout=PATIENCE_S, context=way.tls)
        try:
            self._http.connect()
            status, body = self._ask("GET", "/v1/nothing")
        except (OSError, http.client.HTTPException) as error:
            raise Refused(str(error)) from error
        if status != 404:
            raise Refused(f"{status} {body.decode()}")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        fields = {}
        if self.way.user is not None:
            login = base64.b64encode(f"{self.way.user}:{self.way.password}".encode()).decode()
            fields["Authorization"] = f"Basic {login}"
        self._http.request(method, path, body, fields)
        with self._http.getresponse() as answer:
            is_stream = answer.getheader("Content-Type", "").startswith("text/event-stream")
            return answer.status, b"" if is_stream else answer.read()

    def publish(self, topic: str, body: bytes = b"x") -> bool:
        status, answer = self._ask("POST", f"/v1/topics/{topic}", body)
        assert status in (200, 400, 403, 413), answer
        return status == 200

    def subscribe(self, topic: str) -> bool:
        """On a connection of its own: it is the stream's from then on."""
        other = Http(self.way)
        other.connect()
        status, body = other._ask("GET", f"/v1/topics?filter={topic}")
        other.close()
        assert status in (200, 403), body
        return status == 200

    def is_closed(self) -> bool:
        sock: socket.socket = self._http.sock
        if not select.select([sock], [], [], PATIENCE_S)[0]:
            return False
        try:
            return sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._http.close()


_NEEDS_PROTON = pytest.mark.skipif(
    importlib.util.find_spec("proton") is None, reason="python-qpid-proton is not installed: weft-fabric[amqp1]"
)
PROTOCOLS = [
    pytest.param(Mqtt, id="mqtt"),
    pytest.param(Amqp, id="amqp"),
    pytest.param(Amqp1, id="amqp1", marks=_NEEDS_PROTON),
    pytest.param(Http, id="http"),
]


# --- A proxy that says, by the PROXY protocol, that its clients are where a test wants them to be


@asynccontextmanager
async def proxy(port: int, host: str) -> AsyncIterator[int]:
    """Yield the port of a proxy before ``port``, whose clients are at ``host``."""
    relays: set[asyncio.Task[None]] = set()
    clients = 0

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        to_node = await asyncio.open_connection("127.0.0.1", port)
        to_node[1].write(header(socket.inet_aton(host) * 2 + struct.pack("!HH", 40_000 + clients, port)))
        for pair in ((reader, to_node[1]), (to_node[0], writer)):
            task = asyncio.create_task(copy(*pair))
            relays.add(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in relays:
            each.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
