"""MQTT clients in Python, and all clients that the suite asks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
from amqtt.client import MQTTClient as AmqttClient
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop.peer import HOST, SESSION_EXPIRY_S, Message, Pairs, Peer, Queued
from tests.interop.peer_programs import Mosquitto, MqttJs
from tests.support.waiting import PATIENCE_S


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
