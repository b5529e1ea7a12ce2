"""One small interface for other people's MQTT clients, so that one suite asks the same of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
from amqtt.client import MQTTClient as AmqttClient
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"
BURST_S_MAX = 60.0
SESSION_EXPIRY_S = 600
MOSQUITTO_MESSAGES = 100
"""After so many messages mosquitto_sub disconnects of its own accord. A signal cannot end it well: its handler takes a
lock, and hangs when it interrupts the handling of a packet."""
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Options:
    """How a client connects."""

    port: int
    client_id: str
    version: int = 4
    persistent: bool = False
    will: Message | None = None


class Peer(ABC):
    """One client of one library. Messages it got before it was lost are not had from it any more."""

    versions: tuple[int, ...] = (4, 5)

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    async def connect(self) -> None:
        """Connect and wait until that is accepted."""

    @abstractmethod
    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe and wait for the answer."""

    @abstractmethod
    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        """Publish and, at QoS 1 and 2, wait until the broker has it."""

    @abstractmethod
    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        """The next message. Raises TimeoutError."""

    @abstractmethod
    async def close(self) -> None:
        """Go with DISCONNECT."""

    @abstractmethod
    async def drop(self) -> None:
        """Go without a word."""


class Queued(Peer):
    """Messages wait in a queue that callbacks fill."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        return await asyncio.wait_for(self.messages.get(), seconds)


# --- MQTT clients that are programs of their own: mosquitto's, and MQTT.js


class Mosquitto(Queued):
    """mosquitto_sub and mosquitto_pub: a process for the subscriptions, and one for each publish."""

    PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")
    missing = None if PUB and SUB and shutil.which("stdbuf") else "mosquitto_pub and mosquitto_sub are not installed"

    async def connect(self) -> None:
        self._filters: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._end_topic = f"end/{self.options.client_id}"
        if self.options.persistent or self.options.will:
            await self._start([])

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        if self._process is not None:
            await self.close()
        await self._start(["--topic", topic_filter, "--qos", str(qos)])

    async def _start(self, filters: list[str]) -> None:
        options = self.options
        command = ["stdbuf", "-oL"]  # it speaks line by line to a terminal only
        command += [str(self.SUB), *self._common(options.client_id), "--debug", "-F", "%j"]
        command += ["--topic", self._end_topic, *filters, "-C", str(MOSQUITTO_MESSAGES)]
        if options.persistent:
            command += ["--disable-clean-session"]
            command += ["-x", str(SESSION_EXPIRY_S)] if options.version == 5 else []
        if (will := options.will) is not None:
            command += [
                "--will-topic",
                will.topic,
                "--will-payload",
                will.payload.decode(),
                "--will-qos",
                str(will.qos),
            ]
            command += ["--will-retain"] if will.retain else []
        self._subscribed.clear()
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._reading = asyncio.create_task(self._read(self._process))
        await asyncio.wait_for(self._subscribed.wait(), PATIENCE_S)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                said = json.loads(line)
                if said["topic"] == self._end_topic:
                    continue
                pairs = tuple(said.get("properties", {}).get("user-properties", {}).items())
                self.messages.put_nowait(
                    Message(said["topic"], said["payload"].encode(), said["qos"], bool(said["retain"]), pairs)
                )
            elif b"received SUBACK" in line:
                self._subscribed.set()

    def _common(self, client_id: str) -> list[str]:
        version = {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}[self.options.version]
        return ["--host", HOST, "--port", str(self.options.port), "--id", client_id, "--protocol-version", version]

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        command = [str(self.PUB), *self._common(f"{self.options.client_id}-pub"), "-t", topic, "-q", str(qos)]
        command += ["-m", payload.decode()] if payload else ["-n"]
        command += ["-r"] if retain else []
        for name, value in pairs:
            command += ["--property", "PUBLISH", "user-property", name, value]
        process = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0

    async def close(self) -> None:
        """Bring it to the number of messages after which it goes; further ones find no subscriber and are not kept."""
        if self._process is not None and self._process.returncode is None:
            command = [str(self.PUB), *self._common(f"{self.options.client_id}-end"), "-t", self._end_topic, "-n"]
            ending = await asyncio.create_subprocess_exec(*command, "--repeat", str(MOSQUITTO_MESSAGES))
            assert await asyncio.wait_for(ending.wait(), PATIENCE_S) == 0
            assert await asyncio.wait_for(self._process.wait(), PATIENCE_S) == 0
        await self._read_to_end()

    async def drop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._read_to_end()

    async def _read_to_end(self) -> None:
        if self._reading is not None:
            await self._reading


class MqttJs(Queued):
    """MQTT.js in Node: ``mqttjs_peer.js`` takes commands and gives answers and messages as lines of JSON."""

    folder: Path | None = None
    """Where ``npm install mqtt`` was done."""

    async def connect(self) -> None:
        options = self.options
        assert self.folder is not None
        self._process = await asyncio.create_subprocess_exec(
            "node",
            str(Path(__file__).with_name("mqttjs_peer.js")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(self.folder / "node_modules")},
        )
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())
        will = options.will
        await self._ask(
            "connect",
            port=options.port,
            clientId=options.client_id,
            protocolVersion=options.version,
            clean=not options.persistent,
            expiry=SESSION_EXPIRY_S if options.persistent else 0,
            will=None
            if will is None
            else {"topic": will.topic, "payload": will.payload.decode(), "qos": will.qos, "retain": will.retain},
        )

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if said["kind"] == "message":
                pairs = tuple((pair[0], pair[1]) for pair in said["pairs"])
                self.messages.put_nowait(
                    Message(said["topic"], bytes.fromhex(said["payload"]), said["qos"], said["retain"], pairs)
                )
            else:
                self._answers.put_nowait(said)

    async def _ask(self, do: str, *, seconds: float = PATIENCE_S, **values: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), seconds)
        assert answer["kind"] == "done", answer

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._ask("subscribe", filter=topic_filter, qos=qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        await self._ask("publish", topic=topic, payload=payload.hex(), qos=qos, retain=retain, pairs=list(pairs))

    async def burst(self, topic: str, count: int, qos: int) -> None:
        """Publish 0, 1, ... in one go, and wait until the broker has all of them."""
        await self._ask("burst", topic=topic, count=count, qos=qos, seconds=BURST_S_MAX)

    async def close(self) -> None:
        await self._ask("close")
        await self._process.wait()
        await self._reading

    async def drop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


# --- MQTT clients in Python, and all clients that the suite asks


def _paho_properties(kind: int, pairs: Pairs) -> Properties | None:
    if not pairs:
        return None
    properties = Properties(kind)
    properties.UserProperty = list(pairs)
    return properties


def _session_properties() -> Properties:
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = SESSION_EXPIRY_S
    return properties


def _paho_message(message: Any) -> Message:
    pairs = tuple(map(tuple, getattr(message.properties, "UserProperty", ()))) if message.properties else ()
    return Message(str(message.topic), bytes(message.payload), message.qos, bool(message.retain), pairs)


class Paho(Queued):
    """paho-mqtt, in its own thread."""

    versions = (3, 4, 5)

    async def connect(self) -> None:
        options, loop = self.options, asyncio.get_running_loop()
        is_5 = options.version == 5
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            options.client_id,
            clean_session=None if is_5 else not options.persistent,
            protocol=MQTTProtocolVersion(options.version),
            reconnect_on_failure=False,
        )
        if options.will is not None:
            self._client.will_set(options.will.topic, options.will.payload, options.will.qos, options.will.retain)
        accepted: asyncio.Future[Any] = loop.create_future()
        self._subscribed: asyncio.Queue[int] = asyncio.Queue()
        self._client.on_connect = lambda *a: loop.call_soon_threadsafe(_once, accepted, a[3])
        self._client.on_subscribe = lambda *a: loop.call_soon_threadsafe(self._subscribed.put_nowait, a[2])
        self._client.on_message = lambda *a: loop.call_soon_threadsafe(self.messages.put_nowait, _paho_message(a[2]))
        extra: dict[str, Any] = {}
        if is_5:
            extra["clean_start"] = not options.persistent
            extra["properties"] = _session_properties() if options.persistent else None
        self._client.connect(HOST, options.port, **extra)
        self._client.loop_start()
        reason = await asyncio.wait_for(accepted, PATIENCE_S)
        assert not reason.is_failure, reason

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        await asyncio.wait_for(self._subscribed.get(), PATIENCE_S)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        sent = self._client.publish(topic, payload, qos, retain, _paho_properties(PacketTypes.PUBLISH, pairs))
        await asyncio.to_thread(sent.wait_for_publish, PATIENCE_S)
        assert sent.is_published()

    async def close(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    async def drop(self) -> None:
        open_socket = self._client.socket()
        if open_socket is not None:
            with contextlib.suppress(OSError):  # the broker may have closed it
                open_socket.shutdown(socket.SHUT_RDWR)  # its thread sees this at once, and ends
        await asyncio.to_thread(self._client.loop_stop)


def _once(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


class Aiomqtt(Peer):
    """aiomqtt."""

    async def connect(self) -> None:
        options = self.options
        is_5 = options.version == 5
        will = options.will
        self._client = aiomqtt.Client(
            HOST,
            options.port,
            identifier=options.client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if is_5 else aiomqtt.ProtocolVersion.V311,
            clean_session=None if is_5 else not options.persistent,
            clean_start=not options.persistent if is_5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=_session_properties() if is_5 and options.persistent else None,
            will=None if will is None else aiomqtt.Will(will.topic, will.payload, will.qos, will.retain),
        )
        await self._client.__aenter__()

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._client.subscribe(topic_filter, qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        properties = _paho_properties(PacketTypes.PUBLISH, pairs)
        await self._client.publish(topic, payload, qos, retain, properties)

    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        return _paho_message(await asyncio.wait_for(anext(aiter(self._client.messages)), seconds))

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)

    async def drop(self) -> None:
        open_socket = self._client._client.socket()
        if open_socket is not None:
            open_socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(aiomqtt.MqttError):
            await asyncio.wait_for(self._client._disconnected, PATIENCE_S)
        with contextlib.suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)


class Amqtt(Peer):
    """The client of amqtt, which speaks 3.1.1."""

    versions = (4,)

    async def connect(self) -> None:
        config: dict[str, Any] = {"auto_reconnect": False, "reconnect_retries": 0}
        if (will := self.options.will) is not None:
            config["will"] = {
                "topic": will.topic,
                "message": will.payload.decode(),
                "qos": will.qos,
                "retain": will.retain,
            }
        self._client = AmqttClient(self.options.client_id, config=config)
        code = await self._client.connect(
            f"mqtt://{HOST}:{self.options.port}/", cleansession=not self.options.persistent
        )
        assert code == 0

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        assert await self._client.subscribe([(topic_filter, qos)]) == [qos]

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        await self._client.publish(topic, payload, qos, retain)

    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        message = await self._client.deliver_message(timeout_duration=seconds)
        assert message is not None
        packet = message.publish_packet
        assert packet is not None
        return Message(message.topic, bytes(message.data or b""), message.qos or 0, bool(packet.retain_flag))

    async def close(self) -> None:
        await self._client.disconnect()

    async def drop(self) -> None:
        handler = self._client._handler
        assert handler is not None
        assert handler.writer is not None
        await handler.writer.close()
        await self._client.cancel_tasks()


class Gmqtt(Queued):
    """gmqtt."""

    async def connect(self) -> None:
        options, loop = self.options, asyncio.get_running_loop()
        is_5 = options.version == 5
        will = options.will
        self._client = gmqtt.Client(
            options.client_id,
            clean_session=not options.persistent,
            will_message=None
            if will is None
            else gmqtt.Message(will.topic, will.payload, will.qos, will.retain, will_delay_interval=0),
            **({"session_expiry_interval": SESSION_EXPIRY_S} if is_5 and options.persistent else {}),
        )
        self._client.set_config({"reconnect_retries": 0})
        self._subscribed: asyncio.Queue[int] = asyncio.Queue()
        self._client.on_subscribe = lambda _client, mid, *_: self._subscribed.put_nowait(mid)
        self._client.on_message = self._on_message
        self._loop = loop
        await self._client.connect(HOST, options.port, version=MQTTv50 if is_5 else MQTTv311)

    def _on_message(self, _client: Any, topic: str, payload: Any, qos: int, properties: dict[str, Any]) -> int:
        data = payload if isinstance(payload, bytes) else str(payload).encode()
        pairs = tuple(map(tuple, properties.get("user_property", ())))
        self.messages.put_nowait(Message(topic, data, qos, bool(properties.get("retain")), pairs))
        return 0

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        await asyncio.wait_for(self._subscribed.get(), PATIENCE_S)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        extra = {"user_property": list(pairs)} if pairs else {}
        self._client.publish(topic, payload, qos, retain, **extra)
        async with asyncio.timeout(PATIENCE_S):
            while not self._client._persistent_storage.is_empty:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # it has no event for an acknowledgement

    async def close(self) -> None:
        await self._client.disconnect()

    async def drop(self) -> None:
        self._client.stop_reconnect()
        self._client._is_active = False
        self._client._connection._transport.abort()


LIBRARIES: dict[str, type[Peer]] = {
    "paho": Paho,
    "aiomqtt": Aiomqtt,
    "amqtt": Amqtt,
    "gmqtt": Gmqtt,
    "mosquitto": Mosquitto,
    "mqttjs": MqttJs,
}
