"""Traffic of edge nodes with all that goes wrong: messages that are lost, late, repeated, broken, or of others."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies

from tests.functions.kinds.sparkplug.messages import START, number, payload
from tests.functions.restart import SECOND
from weft.functions.contract import Gap, Row

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
