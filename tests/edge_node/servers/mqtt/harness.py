"""A broker over a real log and database, a filesystem whose sync can be held, and clients over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support.waiting import PATIENCE_S
from weft.bounds import Refusals, TurnBudget
from weft.config.limits import EdgeLimits
from weft.edge_node.access.authentication import AccountIdentity, Accounts
from weft.edge_node.access.identity import Credentials, Identity, Permission
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import TickBatch
from weft.edge_node.ingest.routing import Unrouted, UnroutedPolicy
from weft.edge_node.servers.clients.context import TURN_COST_MAX, ClientSettings, ProtocolContext
from weft.edge_node.servers.mqtt.connection import ClientConnection
from weft.edge_node.servers.mqtt.server import MqttServer, MqttSettings
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.records import StateCounters, StateSettings
from weft.protocols.batch import ClockReading, ClockState, Record, records
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import NO_PROPERTIES, Connect, Packet, Properties, SubAck, Subscribe, Subscription
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog

PATTERNS = {"telemetry": ["plant/{line}/#"], "alarms": ["alarm/+"]}


class _GatedFile:
    def __init__(self, file: File, gate: SyncGate) -> None:
        self._file, self._gate = file, gate

    def sync(self) -> None:
        self._gate.pass_through()
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SyncGate(OSFileSystem):
    """The disk, except that a sync waits while the gate is held, and fails with ``error`` if that is set."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.error: OSError | None = None
        self.reached = threading.Event()
        """Set when a sync waits at the gate."""

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
        assert self._open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error

    @contextmanager
    def held(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self.reached.clear()
            self._open.set()

    def open(self, path: str, *, read_only: bool = False) -> Any:
        return _GatedFile(super().open(path, read_only=read_only), self)

    def create(self, path: str) -> Any:
        return _GatedFile(super().create(path), self)


class Anyone:
    """Lets everybody in and do everything, unless a test says otherwise."""

    name = "anyone"

    def __init__(self) -> None:
        self.refuse: Exception | None = None
        self.may: Callable[[str, str], bool] | None = None
        """(what, topic or filter) -> whether; None for everything."""
        self.username: str | None = None
        """Who clients are, whatever they say: as by a certificate."""
        self.removed: set[str | None] = set()
        """Users who would not be let in any more."""
        self.accounts: Accounts | None = None
        """The rules of users, instead of ``may``."""

    async def authenticate(self, credentials: Credentials, transport: Any, address: str) -> Identity:
        if self.refuse is not None:
            raise self.refuse
        if self.accounts is not None:
            return AccountIdentity(self.accounts, credentials.username, credentials.client_id)
        return Somebody(self, self.username or credentials.username)

    def watch(self, callback: Callable[[], None]) -> None: ...


class Somebody:
    def __init__(self, authenticator: Anyone, username: str | None) -> None:
        self._authenticator = authenticator
        self.username = username
        self.unrestricted = authenticator.may is None

    @property
    def admitted(self) -> bool:
        return self.username not in self._authenticator.removed

    def may_publish(self, topic: bytes) -> bool:
        return self._authenticator.may is None or self._authenticator.may("publish", topic.decode())

    def may_subscribe(self, topic_filter: str) -> bool:
        return self._authenticator.may is None or self._authenticator.may("subscribe", topic_filter)

    def may_read(self, topic: bytes) -> bool:
        return self._authenticator.may is None or self._authenticator.may("read", topic.decode())

    def queue_rights(self, topic: str) -> Permission:
        """The rights to a queue that those to a topic bring."""
        if self.may_read(topic.encode()):
            return Permission.READ | Permission.DECLARE
        return Permission.DECLARE if self.may_publish(topic.encode()) else Permission(0)


class Guest:
    """A connection without limits."""

    def __init__(self, counters: Counters) -> None:
        self.name = "guest"
        self.origin = ""
        self._counters = counters
        counters.connections += 1
        counters.connections_accepted += 1

    async def room(self) -> bool:
        return True

    def opened(self) -> None: ...

    def closed(self) -> None:
        self._counters.connections -= 1


@dataclass
class BrokerNode:
    log: SegmentLog
    context: ProtocolContext
    mqtt: MqttServer
    state: BrokerState
    authenticator: Anyone
    counters: Counters
    port: int

    def close(self) -> None:
        """End as an orderly stop does."""
        self.mqtt.close()
        self.context.close()

    async def durable(self) -> None:
        """Wait until everything appended so far is on disk."""
        done = asyncio.get_running_loop().create_future()
        self.log.on_durable(done.set_result)
        assert await asyncio.wait_for(done, PATIENCE_S) is None

    async def stored(self, stream: str = "telemetry") -> list[Record]:
        """All records of a stream, once durable."""
        await self.durable()
        number, found, seq = self.log.streams()[stream], [], 0
        while batches := self.log.read(number, seq, 1 << 24):
            found += [record for data in batches for record in records(data)]
            seq = found[-1].seq + 1
        return found


@asynccontextmanager
async def running(
    directory: Path,
    *,
    patterns: dict[str, list[str]] = PATTERNS,
    filesystem: OSFileSystem | None = None,
    limits: EdgeLimits = EdgeLimits(),
    log_settings: LogSettings = LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20),
    state_settings: StateSettings = StateSettings(),
    wall_clock: Callable[[], int] = time.time_ns,
    kill: bool = False,
    unrouted: UnroutedPolicy = "keep",
    **settings: Any,
) -> AsyncIterator[BrokerNode]:
    """A node until the block ends.

    Args:
        kill: whether it ends without saving anything, as a process does that is killed: the log alone is left.
        settings: of ``MqttSettings``, further ``limits``, and ``positions_interval_s``.
    """
    loop, counters, authenticator = asyncio.get_running_loop(), Counters(), Anyone()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    batch = TickBatch(loop.call_soon, loop.time, counters)
    log = SegmentLog.open(
        str(directory),
        log_settings,
        filesystem=filesystem or OSFileSystem(),
        wall_clock=wall_clock,
        clock_reading=lambda: ClockReading(7, time.monotonic_ns(), ClockState.SYNCED),
        random_bits=random.SystemRandom().getrandbits,
        post=post,
        end_of_tick=batch.at_end,
    )
    state = BrokerState(
        str(directory),
        log,
        state_settings,
        StateCounters(),
        wall_clock=wall_clock,
        post=post,
        refusals=Refusals(time.monotonic),
    )
    own = {name: settings.pop(name) for name in MqttSettings.__slots__ if name in settings}
    intervals = {name: settings.pop(name) for name in ("positions_interval_s",) if name in settings}
    context = ProtocolContext(
        log,
        state.backlog,
        batch,
        Unrouted(unrouted, log, counters),
        ClientSettings(patterns=patterns, limits=msgspec.structs.replace(limits, **settings), **intervals),
        state.refusals,
        counters,
        wall_clock,
    )
    mqtt = MqttServer(context, state, MqttSettings(**own))
    if isinstance(filesystem, SyncGate):
        # Whose turn is over waits for the disk, too. On a busy machine the time of a turn may pass with one packet.
        context.pacing.budget = TurnBudget(TURN_COST_MAX, PATIENCE_S, loop.time)
    mqtt.start()
    server = await loop.create_server(lambda: ClientConnection(mqtt, authenticator, Guest(counters)), "127.0.0.1", 0)
    try:
        yield BrokerNode(log, context, mqtt, state, authenticator, counters, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        if kill:
            parts, mqtt.journal = mqtt.session_context, _Dead()  # type: ignore[assignment]
            for part in (parts.persistence, parts.positions, parts.wills, parts.windows.journal):
                part._journal = mqtt.journal
        mqtt.close()
        context.close()
        await asyncio.sleep(0)
        await state.close()
        await asyncio.to_thread(log.close)


class _Dead:
    """The journal of a process that has been killed."""

    bytes_noted = 0

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class RawClient:
    """A client that sends exactly what a test gives it, byte by byte if need be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.version = 4
        self.welcome: Any = None
        """The CONNACK."""
        self._data = b""

    @classmethod
    async def open(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def deaf(cls, port: int, *packets: Packet, again: int = 0) -> RawClient:
        """A client that sends these packets, the last one so often again, and reads nothing, with little room in its
        socket."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        client = cls(*await asyncio.open_connection(sock=connection))
        client.send(*packets)
        client.writer.write(encode(packets[-1], client.version) * again)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return client

    @classmethod
    async def connect(cls, port: int, client_id: str = "raw", **fields: Any) -> RawClient:
        client = await cls.open(port)
        client.version = fields.get("version", 4)
        client.send(Connect(client_id, **fields))
        client.welcome = await client.receive()
        assert client.welcome is not None
        assert client.welcome.code == 0
        return client

    @classmethod
    async def connect5(cls, port: int, client_id: str = "raw", **fields: Any) -> RawClient:
        """As ``connect``, in MQTT 5.0; fields that CONNECT has not are properties."""
        own = {name: fields.pop(name) for name in list(fields) if name in Connect.__struct_fields__}
        return await cls.connect(port, client_id, version=5, properties=Properties(**fields), **own)

    async def subscribe(self, *filters: Any, identifier: int | None = None) -> tuple[int, ...]:
        """Subscribe and return the codes; a filter is (text, qos) or a ``Subscription``."""
        wanted = tuple(each if isinstance(each, Subscription) else Subscription(*each) for each in filters)
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
        self.send(Subscribe(9999, wanted, properties))
        answer = await self.receive()
        assert isinstance(answer, SubAck), answer
        codes: tuple[int, ...] = answer.codes
        return codes

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def receive(self) -> Any:
        """The next packet; None when the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while (decoded := decode(self._data, 0, 1 << 24, self.version)) is None:
                try:
                    more = await self.reader.read(1 << 16)
                except ConnectionResetError:
                    more = b""
                if not more:
                    return None
                self._data += more
        packet, end = decoded
        self._data = self._data[end:]
        return packet

    async def silent(self) -> bool:
        """Whether nothing has come although the event loop has had time to send it."""
        for _ in range(20):
            await asyncio.sleep(0.001)
        return not self.has_data

    @property
    def has_data(self) -> bool:
        """Whether something has come that was not received yet."""
        return bool(self._data or self.reader._buffer)  # type: ignore[attr-defined]

    async def close(self) -> None:
        self.writer.close()
