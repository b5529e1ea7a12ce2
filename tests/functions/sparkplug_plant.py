"""A plant that speaks Sparkplug B: messages, traffic with all that goes wrong, and an edge node with a real client."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as paho
from hypothesis import strategies
from paho.mqtt.enums import CallbackAPIVersion

from tests.functions.restart import SECOND, Chain, context
from tests.support.waiting import PATIENCE_S, until
from weft.config.functions.step import Sparkplug
from weft.functions.contract import Function, Gap, Row
from weft.functions.registry import make_sparkplug
from weft.functions.sparkplug_payloads import Payload

# --- Messages of a plant that speaks Sparkplug B, as edge nodes publish them, and the function as tests drive it


START = 1_700_000_000 * SECOND
SENT = 1_700_000_000_000
"""Timestamp of payloads, ms."""


def payload(*metrics: dict[str, Any], seq: int | None = None, **own: Any) -> bytes:
    """A payload with metrics as protobuf has them."""
    fields = {"timestamp": SENT} | own | ({} if seq is None else {"seq": seq})
    return bytes(Payload(metrics=list(metrics), **fields).SerializeToString())


def number(bd_seq: int) -> dict[str, Any]:
    """The metric that says which death belongs to a birth."""
    return {"name": "bdSeq", "datatype": 8, "long_value": bd_seq}


def temperature(value: float = 21.5) -> dict[str, Any]:
    """A metric as a birth has it."""
    return {"name": "temperature", "alias": 1, "datatype": 10, "double_value": value}


def rpm(value: int = 1480) -> dict[str, Any]:
    return {"name": "Motor/RPM", "alias": 2, "datatype": 3, "int_value": value % 2**32}


class Plant:
    """Messages one after the other, a tenth of a second apart unless it is said otherwise."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.at = 0.0

    def say(self, kind: str, *metrics: dict[str, Any], seq: int | None = None, after: float = 0.1, **own: Any) -> Row:
        """Publish a message: ``NDATA line1``, ``DDATA line1/pump``."""
        type_, _, place = kind.partition(" ")
        return self.publish(f"spBv1.0/plant/{type_}/{place}", payload(*metrics, seq=seq, **own), after=after)

    def publish(self, topic: str, message: bytes, *, after: float = 0.1) -> Row:
        self.at += after
        seq = len(self.rows)
        row = Row(START + round(self.at * SECOND), topic.encode(), message, {}, (), seq, "in", message)
        self.rows.append(row)
        return row

    def born(self, *, bd_seq: int = 0, seq: int = 0, pump: bool = True) -> None:
        """The births of an edge node and of its device."""
        self.say("NBIRTH line1", number(bd_seq), temperature(), seq=seq)
        if pump:
            self.say("DBIRTH line1/pump", rpm(), seq=seq + 1)


def made(**settings: Any) -> Function:
    return make_sparkplug(Sparkplug(**settings), context())


def requests(chain: Chain) -> list[tuple[float, bytes]]:
    """Seconds and topics of the requests for births."""
    said = [each for each in chain.out.said if each[0] == "alert" and b"/NCMD/" in each[1]]
    for _, _, request, qos, time, retain in said:
        asked = Payload.FromString(request)
        (metric,) = asked.metrics
        assert (metric.name, metric.datatype, metric.boolean_value) == ("Node Control/Rebirth", 11, True)
        assert asked.timestamp == metric.timestamp == time // 10**6
        assert (qos, retain) == (0, False)
    return [((time - START) / SECOND, topic) for _, topic, _, _, time, _ in said]


def told(chain: Chain) -> list[tuple[bytes, Any]]:
    """Keys and values of the rows for each metric."""
    return [(row.key, row.values["value"]) for row in chain.emitted]


# --- Traffic of edge nodes with all that goes wrong: messages that are lost, late, repeated, broken, or of others


NODES = ("line1", "line2")
DEVICES = ("pump", "valve")
NAMES = ("temperature", "Motor/RPM", "state", "bdSeq")
VALUES: tuple[dict[str, Any], ...] = (
    {"datatype": 10, "double_value": 21.5},
    {"datatype": 3, "int_value": 2**32 - 1},
    {"int_value": 7},
    {"datatype": 12, "string_value": "on"},
    {"datatype": 11, "boolean_value": True},
    {"is_null": True},
    {"datatype": 1, "int_value": 300},
    {"datatype": 19, "template_value": {"metrics": []}},
    {"float_value": 1.5},
    {"datatype": 3, "int_value": 1, "is_historical": True, "timestamp": 5},
    {"datatype": 3, "int_value": 1, "properties": {"keys": ["Quality"], "values": [{"type": 3, "int_value": 0}]}},
)
BROKEN = (b"", b"\xff", b"\x12", b"\x12\x00", b"\x18\xff\x7f", b"{}", b"\x12\x02\x0a\x00")
TYPES = ("NBIRTH", "DBIRTH", "NDATA", "NDATA", "NDATA", "DDATA", "DDATA", "DDATA", "NDEATH", "DDEATH", "NCMD")
STEPS = (0, 1, SECOND // 10, SECOND // 2, SECOND, 3 * SECOND, 9 * SECOND, 70 * SECOND)


@strategies.composite
def _metric(draw: strategies.DrawFn, *, named: bool) -> dict[str, Any]:
    at = draw(strategies.integers(0, len(NAMES) - 1))
    who: dict[str, Any] = {"name": NAMES[at]} if named or draw(strategies.integers(0, 3)) == 0 else {}
    if named or not who:
        who["alias"] = at + draw(strategies.sampled_from((0, 0, 0, 4)))
    value: dict[str, Any] = draw(strategies.sampled_from(VALUES))
    return who | value


@strategies.composite
def traffic(draw: strategies.DrawFn, count: int = 40) -> list[Row | Gap]:
    """Draw messages in the order in which a node took them in, with gaps."""
    found: list[Row | Gap] = []
    time, numbers = START, dict.fromkeys(NODES, 0)
    for seq in range(draw(strategies.integers(1, count))):
        if draw(strategies.integers(0, 19)) == 0:
            found.append(Gap("in", seq * 2, seq * 2 + 1, "expired", time if found else 0))
        time += draw(strategies.sampled_from(STEPS))
        kind, node = draw(strategies.sampled_from(TYPES)), draw(strategies.sampled_from(NODES))
        topic = f"spBv1.0/plant/{kind}/{node}"
        if kind[0] == "D":
            topic += "/" + draw(strategies.sampled_from(DEVICES))
        topic = draw(strategies.sampled_from((topic,) * 12 + ("spBv1.0/STATE/scada", "plant/line1")))
        own: dict[str, Any] = {}
        if kind not in ("NDEATH", "NCMD"):
            if kind == "NBIRTH":
                numbers[node] = 0
            own["seq"] = (numbers[node] + draw(strategies.sampled_from((0,) * 9 + (1, 2, 200, 255)))) % 256
            numbers[node] = (own["seq"] + 1) % 256
        named = kind.endswith("BIRTH")
        metrics = draw(strategies.lists(_metric(named=named), max_size=4))
        if kind in ("NBIRTH", "NDEATH"):
            metrics.append(number(draw(strategies.sampled_from((0, 0, 0, 1)))))
        message = payload(*metrics, **own)
        if draw(strategies.integers(0, 14)) == 0:
            message = draw(strategies.sampled_from(BROKEN))
        found.append(Row(time, topic.encode(), message, {}, (), seq * 2 + 1, "in", message))
    return found


# --- An edge node of Sparkplug B with a real MQTT client: will, births, data by alias, births when it is asked


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
