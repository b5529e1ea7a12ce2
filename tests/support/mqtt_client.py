"""paho-mqtt as tests use it, blocking or in an event loop: what the server says waits in queues."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.waiting import PATIENCE_S


class BlockingPaho:
    """A client on a thread of its own. A connection that is lost or refused stays so."""

    def __init__(self, client_id: str = "", **options: Any) -> None:
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, reconnect_on_failure=False, **options)
        self.codes: queue.Queue[str] = queue.Queue()
        """What CONNACK says, and ``"lost"`` at each end of a connection."""
        self.grants: queue.Queue[list[int]] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.lost = threading.Event()
        self.session_present = False
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self.grants.put([code.value for code in codes])
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)

    def _on_connect(self, _c: object, _u: object, flags: paho.ConnectFlags, code: object, _p: object) -> None:
        self.session_present = flags.session_present
        self.codes.put(str(code))

    def _on_disconnect(self, *_: object) -> None:
        self.lost.set()
        self.codes.put("lost")

    def connect(self, port: int, host: str = "127.0.0.1") -> str:
        """Return what CONNACK says; ``"lost"`` when there is none."""
        self.paho.connect(host, port)
        self.paho.loop_start()
        return self.code()

    def code(self) -> str:
        return self.codes.get(timeout=PATIENCE_S)

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.paho.subscribe(list(filters))
        return self.grants.get(timeout=PATIENCE_S)

    def publish(self, topic: str, payload: str | bytes = "x", qos: int = 1, *, retain: bool = False) -> None:
        """Publish and wait until the server has acknowledged (QoS 1, 2) or the packet was sent (QoS 0)."""
        sent = self.paho.publish(topic, payload, qos, retain)
        sent.wait_for_publish(PATIENCE_S)
        assert sent.is_published()

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class PahoClient:
    """The same for a test that runs in the event loop of its server."""

    def __init__(self, client_id: str = "", **options: Any) -> None:
        self.blocking = BlockingPaho(client_id, **options)
        self.paho, self.lost, self.messages = self.blocking.paho, self.blocking.lost, self.blocking.messages

    @property
    def session_present(self) -> bool:
        return self.blocking.session_present

    async def connect(self, port: int, host: str = "127.0.0.1") -> str:
        return await asyncio.to_thread(self.blocking.connect, port, host)

    async def code(self) -> str:
        return await asyncio.to_thread(self.blocking.code)

    async def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        return await asyncio.to_thread(self.blocking.subscribe, *filters)

    async def publish(self, topic: str, payload: str | bytes = "x", qos: int = 1, *, retain: bool = False) -> None:
        await asyncio.to_thread(self.blocking.publish, topic, payload, qos, retain=retain)

    async def message(self) -> paho.MQTTMessage:
        return await asyncio.to_thread(self.blocking.message)

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)
