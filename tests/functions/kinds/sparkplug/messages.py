"""Messages of a plant that speaks Sparkplug B, as edge nodes publish them, and the function as tests drive it."""

from __future__ import annotations

from typing import Any

from tests.functions.restart import SECOND, Chain, context
from weft.config.functions.step import Sparkplug
from weft.functions.contract import Function, Row
from weft.functions.registry import make_sparkplug
from weft.functions.sparkplug_payloads import Payload

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
