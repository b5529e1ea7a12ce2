"""Records of metrics: names, types, times, quality, flags, and what a death leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.functions.formats.test_sparkplug import MEANING, NODE_BIRTH
from tests.functions.kinds.sparkplug.messages import SENT, START, Plant, made, number, rpm, temperature, told
from tests.functions.restart import SECOND, run
from weft.functions.contract import Row


def rows_of(plant: Plant, **settings: Any) -> list[Row]:
    chain = run(lambda: made(**settings), plant.rows)
    assert chain.out.rejected() == []
    return chain.emitted


def test_each_metric_is_a_record_with_its_name_type_and_place() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", {"alias": 1, "double_value": 22.25}, seq=2)
    plant.say("DDATA line1/pump", {"alias": 2, "int_value": 2**32 - 3, "timestamp": 99}, seq=3)
    *births, node, pump = rows_of(plant)
    assert [row.key for row in births] == [
        b"plant/line1//bdSeq",
        b"plant/line1//temperature",
        b"plant/line1/pump/Motor/RPM",
    ]
    assert node.values == {
        "metric": "temperature",
        "value": 22.25,
        "timestamp": SENT,
        "datatype": "Double",
        "quality": 192,
        "historical": False,
        "transient": False,
    }
    assert node.time == START + round(0.3 * SECOND)
    assert dict(node.headers) == {
        "sparkplug.group": "plant",
        "sparkplug.node": "line1",
        "sparkplug.type": "NDATA",
        "sparkplug.seq": 2,
    }
    assert (pump.key, pump.values["value"], pump.values["timestamp"]) == (b"plant/line1/pump/Motor/RPM", -3, 99)
    assert dict(pump.headers) == {
        "sparkplug.group": "plant",
        "sparkplug.node": "line1",
        "sparkplug.device": "pump",
        "sparkplug.type": "DDATA",
        "sparkplug.seq": 3,
    }


def test_what_a_metric_says_of_itself() -> None:
    plant = Plant()
    plant.say("NBIRTH line1", number(0), temperature(), seq=0)
    bad = {
        "keys": ["Quality", "engUnit", "limits"],
        "values": [
            {"type": 3, "int_value": 0},
            {"type": 12, "string_value": "°C"},
            {"type": 20, "propertyset_value": {"keys": ["low"], "values": [{"type": 10, "double_value": -5}]}},
        ],
    }
    plant.say(
        "NDATA line1",
        {"alias": 1, "is_null": True, "properties": bad},
        {"alias": 1, "double_value": 20.5, "timestamp": SENT - 9_000, "is_historical": True},
        {"alias": 1, "double_value": 20.75, "timestamp": SENT - 8_000, "is_historical": True, "is_transient": True},
        seq=1,
    )
    null, *old = rows_of(plant)[2:]
    assert (null.values["value"], null.values["quality"]) == (None, 0)
    assert null.values["properties"] == {"engUnit": "°C", "limits": {"low": -5}}
    # A node that was away sends the same metric several times: no value is lost.
    assert [(row.values["value"], row.values["timestamp"]) for row in old] == [
        (20.5, SENT - 9_000),
        (20.75, SENT - 8_000),
    ]
    assert [(row.values["historical"], row.values["transient"]) for row in old] == [(True, False), (True, True)]


def test_datasets_and_templates() -> None:
    plant = Plant()
    dataset = {
        "num_of_columns": 2,
        "columns": ["x", "y"],
        "types": [3, 12],
        "rows": [{"elements": [{"int_value": 1}, {"string_value": "a"}]}],
    }
    motor = {
        "template_ref": "motor_types/m1",
        "version": "v2",
        "parameters": [{"name": "poles", "type": 3, "int_value": 4}, {"name": "maker"}],
        "metrics": [{"name": "rpm", "datatype": 3, "int_value": 1480}],
    }
    plant.say("NBIRTH line1", number(0), seq=0)
    plant.say(
        "DBIRTH line1/press",
        {"name": "set", "alias": 1, "datatype": 16, "dataset_value": dataset},
        {"name": "m1", "alias": 2, "datatype": 19, "template_value": motor},
        {"name": "_types_/m1", "datatype": 19, "template_value": {"is_definition": True}},
        seq=1,
    )
    _, table, member, definition = rows_of(plant)
    assert (table.values["datatype"], table.values["value"]) == ("DataSet", [{"x": 1, "y": "a"}])
    assert (member.values["datatype"], member.values["value"]) == ("Template", {"rpm": 1480})
    assert member.values["template"] == {
        "of": "motor_types/m1",
        "version": "v2",
        "parameters": {"poles": 4, "maker": None},
    }
    assert definition.values["template"] == {"definition": True}


def test_a_payload_of_another_implementation() -> None:
    """Written by pysparkplug with the messages of Eclipse Tahu: each datatype, a property, metadata, uuid and body."""
    plant = Plant()
    plant.publish("spBv1.0/Sparkplug Devices/NBIRTH/C Edge Node 1", NODE_BIRTH)
    found = rows_of(plant)
    meaning = {name: value for name, value in MEANING.items() if name not in ("timestamp", "seq")}
    assert {row.values["metric"]: row.values["value"] for row in found} == meaning
    assert dict(found[0].headers)["sparkplug.seq"] == 2
    types = {row.values["metric"]: row.values["datatype"] for row in found}
    assert types | {"u8": "UInt8", "uuid": "UUID", "set": "DataSet", "t": "DateTime", "ints": "Int8Array"} == types
    (pressure,) = (row for row in found if row.values["metric"] == "quality")
    assert (pressure.values["properties"], pressure.values["quality"]) == ({"engUnit": "mm"}, 192)
    assert found[0].key == b"Sparkplug Devices/C Edge Node 1//bdSeq"


def test_a_message_is_a_record_where_that_is_wanted() -> None:
    plant = Plant()
    plant.born()
    plant.say(
        "NDATA line1",
        {"alias": 1, "double_value": 22.25},
        {"name": "door", "datatype": 11, "boolean_value": True, "is_transient": True, "timestamp": SENT},
        seq=2,
    )
    plant.say("DDEATH line1/pump", seq=3)
    node_birth, birth, data, death = rows_of(plant, rows="message")
    assert node_birth.values == {"timestamp": SENT, "seq": 0, "bdSeq": 0, "temperature": 21.5}
    assert (birth.key, birth.values["Motor/RPM"]) == (b"plant/line1/pump", 1480)
    assert data.key == b"plant/line1/"
    assert data.values == {
        "timestamp": SENT,
        "seq": 2,
        "temperature": 22.25,
        "door": True,
        "attributes": {"door": {"transient": True}},
    }
    assert (death.key, death.values) == (b"plant/line1/pump", {"timestamp": SENT})
    assert dict(death.headers)["sparkplug.stale"] is True


def test_a_death_leaves_no_value_of_its_metrics() -> None:
    plant = Plant()
    plant.born(bd_seq=7)
    plant.say("NDEATH line1", number(6))  # of the connection before, which the broker sends late
    plant.say("NDEATH line1", number(7))
    stale = rows_of(plant)[3:]
    assert [row.key for row in stale] == [
        b"plant/line1//bdSeq",
        b"plant/line1//temperature",
        b"plant/line1/pump/Motor/RPM",
    ]
    # The time of the death is not in the will, which was written before it.
    assert stale[2].values == {
        "metric": "Motor/RPM",
        "value": None,
        "timestamp": (START + SECOND * 4 // 10) // 10**6,
        "datatype": "Int32",
        "quality": 500,
        "historical": False,
        "transient": False,
    }
    assert dict(stale[2].headers) == {
        "sparkplug.group": "plant",
        "sparkplug.node": "line1",
        "sparkplug.device": "pump",
        "sparkplug.type": "NDEATH",
        "sparkplug.stale": True,
    }


def test_a_device_dies_alone() -> None:
    plant = Plant()
    plant.born()
    plant.say("DDEATH line1/pump", seq=2)
    plant.say("NDATA line1", {"alias": 1, "double_value": 20}, seq=3)
    assert [(row.key, row.values["quality"]) for row in rows_of(plant)[3:]] == [
        (b"plant/line1/pump/Motor/RPM", 500),
        (b"plant/line1//temperature", 192),
    ]


def test_another_connection_says_that_the_one_before_is_over() -> None:
    """Its death is lost where the log was full, or the node without power for a day."""
    plant = Plant()
    plant.born(bd_seq=1)
    plant.say("NBIRTH line1", number(2), temperature(30.0), seq=0)
    assert [(row.key, row.values["quality"]) for row in rows_of(plant)[3:]] == [
        (b"plant/line1//bdSeq", 500),
        (b"plant/line1//temperature", 500),
        (b"plant/line1/pump/Motor/RPM", 500),
        (b"plant/line1//bdSeq", 192),
        (b"plant/line1//temperature", 192),
    ]


def test_a_birth_that_was_asked_for_makes_nothing_stale() -> None:
    plant = Plant()
    plant.born(bd_seq=1)
    plant.born(bd_seq=1)
    plant.say("NDEATH line1", number(1))
    assert [row.values["quality"] for row in rows_of(plant)] == [192] * 6 + [500] * 3


def test_commands_and_states_are_no_metrics() -> None:
    plant = Plant()
    plant.say("NCMD line1", {"name": "Node Control/Rebirth", "datatype": 11, "boolean_value": True})
    plant.say("DCMD line1/pump", rpm())
    plant.publish("spBv1.0/STATE/scada", b'{"online":true,"timestamp":1}')
    assert rows_of(plant) == []


def test_headers_of_publishers_stay_and_say_nothing_of_the_place() -> None:
    plant = Plant()
    plant.say("NBIRTH line1", number(0), seq=0).headers = (("shift", "early"), ("sparkplug.node", "line9"))
    (row,) = rows_of(plant)
    assert dict(row.headers) == {
        "shift": "early",
        "sparkplug.group": "plant",
        "sparkplug.node": "line1",
        "sparkplug.type": "NBIRTH",
        "sparkplug.seq": 0,
    }


@pytest.mark.parametrize(
    ("topic", "message", "reason"),
    [
        ("plant/line1", b"", "its topic is none of an edge node or device"),
        ("spBv1.0/plant/NDATA/line1", b"\xff", "it is not Sparkplug B"),
        (f"spBv1.0/plant/NDATA/{'n' * 600}", b"", "the names in its topic have 606 bytes; at most 512"),
        ("spBv1.0/plant/NDATA/line1", b"\x18\xac\x02", "its number (seq) is 300; numbers are 0 to 255"),
        ("spBv1.0/plant/NBIRTH/line1", b"\x12\x02\x10\x01", "a metric has the alias 1, and the birth that names it"),
        ("spBv1.0/plant/NDATA/line1", b"\x12\x00" * 10_001, "it has 10001 metrics; at most 10000 are read"),
        (
            "spBv1.0/plant/NDATA/line1",
            b"\x12\x84\x02\x0a\x81\x02" + b"x" * 257,
            "the name of a metric has 257 characters; at most 256 can be",
        ),
    ],
)
def test_messages_that_nothing_can_be_made_of(topic: str, message: bytes, reason: str) -> None:
    plant = Plant()
    plant.publish(topic, message)
    chain = run(made, plant.rows)
    (found,) = chain.out.rejected()
    assert found.startswith(reason)
    assert told(chain) == []
