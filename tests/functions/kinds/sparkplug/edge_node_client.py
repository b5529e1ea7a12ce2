"""An edge node of Sparkplug B with a real MQTT client: will, births, data by alias, births when it is asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.functions.kinds.sparkplug.messages import number, payload, rpm, temperature
from tests.support.waiting import PATIENCE_S, until
from weft.functions.sparkplug_payloads import Payload


class EdgeNodeClient:
    """Edge node ``plant/line1`` with the device ``pump``."""

    def __init__(self, port: int, bd_seq: int = 0, qos: int = 0, password: str = "") -> None:
        self.bd_seq = bd_seq
        self.qos = qos
        self.requests = 0
        """Births that it was asked for."""
        self.states: list[bytes] = []
        """What the primary host said."""
        self.born = threading.Event()
        self._seq = 0
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2, "line1", reconnect_on_failure=False)
        if password:
            client.username_pw_set("line1", password)
        client.will_set("spBv1.0/plant/NDEATH/line1", payload(number(bd_seq)), qos=1)
        client.on_connect = self._connected
        client.on_message = self._asked
        client.on_subscribe = lambda *_: self.birth()
        client.connect("127.0.0.1", port, keepalive=60)

    async def __aenter__(self) -> Self:
        """For a node on the loop of the test."""
        self._client.loop_start()
        await until(self.born.is_set)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.vanish()

    def __enter__(self) -> Self:
        """For a node in a process of its own."""
        self._client.loop_start()
        assert self.born.wait(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.vanish()

    def vanish(self) -> None:
        """Be gone without DISCONNECT: the broker publishes the will."""
        found = self._client.socket()
        if found is not None:
            with contextlib.suppress(OSError):  # the node may have gone before
                found.shutdown(socket.SHUT_RDWR)
        self._client.loop_stop()

    def birth(self) -> None:
        """Say what there is."""
        self._seq = 0
        self.say("NBIRTH/line1", number(self.bd_seq), temperature(), {"name": "Node Control/Rebirth", "datatype": 11})
        self.say("DBIRTH/line1/pump", rpm())
        self.born.set()

    def say(self, place: str, *metrics: dict[str, Any]) -> paho.MQTTMessageInfo:
        """Publish a message with the next number."""
        sent = self._client.publish(f"spBv1.0/plant/{place}", payload(*metrics, seq=self._seq), qos=self.qos)
        self._seq = (self._seq + 1) % 256
        return sent

    def measure(self, value: float) -> paho.MQTTMessageInfo:
        return self.say("NDATA/line1", {"alias": 1, "double_value": value})

    def lose_a_message(self) -> None:
        """Count one that never goes out."""
        self._seq = (self._seq + 1) % 256

    # --- callbacks, on the client's thread

    def _connected(self, client: Any, *_: Any) -> None:
        client.subscribe([("spBv1.0/plant/NCMD/line1", 1), ("spBv1.0/STATE/+", 1)])

    def _asked(self, client: Any, data: Any, message: Any) -> None:
        if "/STATE/" in message.topic:
            self.states.append(message.payload)
            return
        (metric,) = Payload.FromString(message.payload).metrics
        if metric.name == "Node Control/Rebirth" and metric.boolean_value:
            self.birth()
            self.requests += 1  # who waits for it publishes behind the births
