"""Records of metrics: names, types, times, quality, flags, and what a death leaves."""

from __future__ import annotations

import random
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import Minutes, definition
from tests.functions.restart import SECOND, Chain, cuts, run, same_after_restarts, stateful
from tests.functions.sparkplug_plant import (
    SENT,
    START,
    Plant,
    made,
    number,
    payload,
    requests,
    rpm,
    temperature,
    told,
    traffic,
)
from tests.functions.test_sparkplug_payloads import MEANING, NODE_BIRTH
from tests.support.examples import moving
from tests.support.processes import weft
from tests.support.slices import SLICE
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import definitions as definitions_definitions
from weft.edge_node.derived.definitions import function_findings, function_notes
from weft.functions import sparkplug
from weft.functions.contract import Function, Gap, Out, Row
from weft.functions.formats import PAYLOAD_BYTES_MAX
from weft.functions.sparkplug_payloads import Payload


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


# --- Numbers of messages, and when an edge node is asked for its births


DATA = {"alias": 1, "double_value": 20.0}
LINE1 = b"spBv1.0/plant/NCMD/line1"


def ran(plant: Plant, until_s: float = 1_000, **settings: Any) -> Chain:
    return run(lambda: made(**settings), plant.rows, until=START + round(until_s * SECOND))


def doubtful(chain: Chain) -> list[bool]:
    return [bool(dict(row.headers).get("sparkplug.doubtful")) for row in chain.emitted]


def test_numbers_go_round_without_a_word() -> None:
    plant = Plant()
    plant.born(seq=254)
    for at in range(600):
        plant.say("NDATA line1", DATA, seq=at % 256)
    chain = ran(plant)
    assert requests(chain) == []
    assert len(chain.emitted) == 603
    assert not any(doubtful(chain))


def test_a_lost_message_is_waited_for_and_then_a_birth_is_asked_for() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    plant.say("NDATA line1", DATA, seq=4, after=0.6)  # 0.9 s
    plant.say("NDATA line1", DATA, seq=5)
    chain = ran(plant)
    # Five seconds later, at the next whole second.
    assert requests(chain) == [(6.0, LINE1)]
    # The rows since then may have names that a lost birth has changed.
    assert doubtful(chain) == [False] * 4 + [True, True]


def test_a_message_that_comes_late_ends_the_wait() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=3)
    plant.say("NDATA line1", DATA, seq=4)
    plant.say("NDATA line1", DATA, seq=2, after=4)
    plant.say("NDATA line1", DATA, seq=5)
    chain = ran(plant)
    assert requests(chain) == []
    assert doubtful(chain) == [False] * 3 + [True, True, False, False]


def test_a_birth_ends_doubt() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=9)
    plant.say("NDATA line1", DATA, seq=10, after=20)
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1)]
    assert doubtful(chain) == [False] * 3 + [True, True] + [False] * 4


def test_data_before_a_birth_ask_for_it() -> None:
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=7)
    plant.say("DDATA line2/pump", {"name": "level", "datatype": 10, "double_value": 1}, seq=7)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1), (6.0, b"spBv1.0/plant/NCMD/line2")]
    assert chain.out.rejected() == ["a metric has the alias 1, and the birth that names it is not known"]
    # What says its name and datatype itself needs no birth.
    assert told(chain) == [(b"plant/line2/pump/level", 1.0)]


def test_a_birth_that_comes_in_time_is_not_asked_for() -> None:
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=1)
    plant.born()
    assert requests(ran(plant)) == []
    # Nor that of a device whose birth was overtaken by its data.
    plant.say("DDATA line1/valve", {"alias": 9, "int_value": 1}, seq=3)
    plant.say("DBIRTH line1/valve", {"name": "open", "alias": 9, "datatype": 3, "int_value": 0}, seq=2)
    assert requests(ran(plant)) == []


@pytest.mark.parametrize(
    "said",
    [("NDATA line1", {"alias": 99, "double_value": 1.0}), ("DDATA line1/valve", {"alias": 1, "double_value": 1.0})],
)
def test_an_alias_that_no_birth_has_asks_for_one(said: Any) -> None:
    plant = Plant()
    plant.born()
    plant.say(*said, seq=2)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1)]
    assert len(chain.out.rejected()) == 1


def test_an_edge_node_is_asked_once_a_minute_as_long_as_it_talks_and_does_not_answer() -> None:
    plant = Plant()
    plant.born()
    for at in range(200):
        plant.say("NDATA line1", DATA, seq=(at + 9) % 256, after=1)
    assert [second for second, _ in requests(ran(plant))] == [7.0, 67.0, 127.0, 187.0, 247.0]
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=1)
    assert requests(ran(plant)) == [(6.0, LINE1)]  # and not at all when it says nothing more


def test_births_that_do_not_help_are_asked_for_no_more_often() -> None:
    plant = Plant()
    for _ in range(12):
        plant.born()
        plant.say("NDATA line1", DATA, seq=100, after=1)
        plant.at += 8
    assert [second for second, _ in requests(ran(plant, rebirth_every_s=30))] == [7.0, 43.0, 73.0, 108.0]


def test_numbers_that_go_back_ask_for_a_birth() -> None:
    """The edge node was started again, and its birth was lost."""
    plant = Plant()
    plant.born()
    for at in range(2, 60):
        plant.say("NDATA line1", DATA, seq=at, after=0.01)
    plant.say("NDATA line1", DATA, seq=1)
    chain = ran(plant)
    assert len(requests(chain)) == 1
    assert doubtful(chain)[-1]


def test_more_than_can_be_waited_for() -> None:
    plant = Plant()
    plant.born()
    for at in (60, 100, 160, 161):
        plant.say("NDATA line1", DATA, seq=at)
    chain = ran(plant)
    assert len(requests(chain)) == 1
    plant.born()
    assert [len(requests(ran(plant))), doubtful(ran(plant))[-1]] == [0, False]


def test_after_a_gap_in_the_log_no_alias_is_trusted() -> None:
    plant = Plant()
    plant.born()
    inputs: list[Row | Gap] = [*plant.rows, Gap("in", 2, 5, "expired", plant.rows[-1].time)]
    plant.say("NDATA line1", DATA, seq=2)
    plant.say("NDATA line1", temperature(), seq=3)
    plant.say("NDATA line1", number(0), seq=4)
    after = plant.rows[2:]
    chain = run(made, [*inputs, *after], until=START + 100 * SECOND)
    assert len(chain.out.rejected()) == 1
    assert requests(chain) == [(6.0, LINE1)]
    # An edge node that says nothing is not asked.
    assert requests(run(made, inputs, until=START + 100 * SECOND)) == []


@pytest.mark.parametrize("refused", [b"\xff", b"\x12\x02\x10\x01", b"\x18\xac\x02"])
def test_after_a_birth_that_is_not_understood_no_alias_is_trusted(refused: bytes) -> None:
    """It may have given them other names."""
    plant = Plant()
    plant.born()
    plant.publish("spBv1.0/plant/NBIRTH/line1", refused)
    plant.say("NDATA line1", DATA, seq=1)
    plant.say("DDATA line1/pump", {"alias": 2, "int_value": 1}, seq=2)
    chain = ran(plant)
    assert len(told(chain)) == 3
    assert len(chain.out.rejected()) == 3
    assert requests(chain) == [(6.0, LINE1)]


def test_a_death_is_the_end_of_the_matter() -> None:
    plant = Plant()
    plant.born(bd_seq=3)
    plant.say("NDATA line1", DATA, seq=50)
    plant.say("NDEATH line1", number(3))
    chain = ran(plant)
    assert requests(chain) == []
    assert chain.function.state is not None
    assert dict(chain.function.state.items()) == {}


def test_nothing_is_remembered_of_who_never_said_a_birth() -> None:
    plant = Plant()
    for at in range(50):
        plant.say(f"DDATA stranger{at}/x", DATA, seq=0)
    plant.say("DBIRTH stranger1/x", temperature(), seq=1)
    chain = ran(plant)
    assert len(requests(chain)) == 50
    assert chain.function.state is not None
    assert dict(chain.function.state.items()) == {}
    assert chain.function.due() is None


def test_who_only_listens_asks_nobody() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=9)
    assert requests(ran(plant, rebirth=False)) == []
    assert requests(ran(plant, reorder_s=0)) == [(1.0, LINE1)]


def test_births_are_kept_for_later_subscribers() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    chain = ran(plant, certificates=True)
    said = [each for each in chain.out.said if each[0] == "alert"]
    assert [each[1] for each in said] == [
        b"$sparkplug/certificates/spBv1.0/plant/NBIRTH/line1",
        b"$sparkplug/certificates/spBv1.0/plant/DBIRTH/line1/pump",
    ]
    assert [(each[2], each[5]) for each in said] == [(row.payload, True) for row in plant.rows[:2]]


# --- What one client may make of the memory of all, and of the time of the node


EMPTY = {"datatype": 3, "is_null": True}


def test_births_have_a_bound_for_all_and_for_one_edge_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug, "NODE_METRICS_MAX", 6)
    plant = Plant()
    many = [EMPTY | {"name": f"m{at}"} for at in range(4)]
    plant.say("NBIRTH line1", number(0), *many, seq=0)
    plant.say("DBIRTH line1/pump", *many, seq=1)  # five and four: too many for one
    plant.say("NBIRTH line2", number(0), seq=0)
    plant.say("NBIRTH line3", number(0), seq=0)  # a third source
    plant.say("NBIRTH line2", number(0), *many, seq=0)  # eleven are too many for all
    chain = run(lambda: made(sources_max=2, metrics_max=9), plant.rows)
    assert chain.out.rejected() == [
        "an edge node with its devices has at most 6 metrics",
        "births of at most 2 edge nodes and devices with 9 metrics are remembered",
        "births of at most 2 edge nodes and devices with 9 metrics are remembered",
    ]
    # Those that are known may be born again.
    plant.say("NBIRTH line1", number(0), temperature(), seq=0)
    assert len(run(lambda: made(sources_max=2, metrics_max=9), plant.rows).out.rejected()) == 3


def test_strangers_take_no_more_than_their_places() -> None:
    plant = Plant()
    for at in range(500):
        plant.say(f"NDATA stranger{at}", {"alias": 1}, seq=0, after=0.001)
    chain = run(lambda: made(sources_max=50), plant.rows)
    assert len(stateful(chain.function).values) == 100
    chain.tick_before(plant.rows[-1].time + 10**12)
    assert len(requests(chain)) == 100
    assert stateful(chain.function).values == {}


def test_a_long_payload_takes_bounded_memory() -> None:
    """The shortest metrics that become rows, with the longest names in the topic."""
    metric = Payload(metrics=[EMPTY | {"name": "a"}]).SerializeToString()
    hostile = metric * (PAYLOAD_BYTES_MAX // len(metric))
    hostile = hostile[: len(metric) * 10_000]
    plant = Plant()
    plant.publish("spBv1.0/g/DDATA/n/" + "d" * 500, hostile)
    function, (row,) = made(), plant.rows
    tracemalloc.start()
    try:
        made_of_it = function.process([row], _Nothing())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made_of_it) == 10_000
    assert peak < 160 * PAYLOAD_BYTES_MAX
    assert sum(len(each.key) for each in made_of_it) < 6 << 20


def test_any_bytes_make_rows_or_an_error() -> None:
    chance = random.Random(7)
    plant = Plant()
    plant.born()
    whole = [row.payload or b"" for row in plant.rows]
    for at in range(400):
        message = bytearray(chance.choice(whole))
        for _ in range(chance.randint(0, 3)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        kind = chance.choice(("NBIRTH/line1", "NDATA/line1", "NDEATH/line1", "DBIRTH/line1/pump", "DDATA/line1/pump"))
        plant.publish(
            f"spBv1.0/plant/{kind}",
            bytes(message[: chance.choice((len(message), chance.randint(1, len(message))))]),
            after=at % 3,
        )
    chain = run(made, plant.rows)
    assert len(chain.emitted) > 10
    assert len(chain.out.rejected()) > 10


class _Nothing:
    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        raise AssertionError(reason)

    def route(self, row: Row, stream: str) -> None:
        raise AssertionError(stream)

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        raise AssertionError(topic)

    def drop(self, row: Row, reason: str) -> None:
        raise AssertionError(reason)


# --- Where the function may stand, and what follows for the streams around it


HEAD = "node: a\ndata_dir: /data\nstreams:\n"
RAW = '  raw: {from: "spBv1.0/#", payload: sparkplug}\n'


def parsed(streams: str) -> EdgeConfig:
    return parse(HEAD + streams, "/etc/weft/edge.yaml", EdgeConfig, check).config


def test_its_rows_are_json_unless_the_stream_says_otherwise() -> None:
    config = parsed(
        RAW
        + "  tags: {from_stream: raw, functions: [sparkplug: {rows: message}]}\n"
        + "  again: {from_stream: raw, payload: cbor, functions: [sparkplug: {}]}\n"
        + "  behind: {from_stream: tags, functions: [where: node == 'line1']}\n"
    )
    flow = Flow(config)
    formats = [flow.payload(name).format for name in config.streams]
    assert formats == ["sparkplug", "json", "cbor", "json"]
    assert flow.patterns("behind") == ("{group}/{node}/{device}",)
    assert list(function_findings(config)) == []
    assert list(function_notes(config)) == []


def test_the_stream_that_it_asks_in_may_be_its_own_input() -> None:
    """`spBv1.0/#` takes the requests as well: that is no circle, as commands are answered with nothing."""
    parsed('  tags: {from: "spBv1.0/#", functions: [sparkplug: {}]}\n')


@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        (
            RAW + "  tags: {from_stream: raw, functions: [{where: x > 1}, {sparkplug: {}}]}\n",
            "sparkplug reads messages as they were received, so it must be the first function of its stream",
        ),
        (RAW + "  tags: {from_stream: raw, functions: [sparkplug: {rows: tag}]}\n", "rows"),
        (RAW + "  tags: {from_stream: raw, functions: [sparkplug: {rebirth_every: 0s}]}\n", "rebirth_every"),
        (RAW + "sparkplug: {host_id: a/b}\n", "host_id"),
    ],
)
def test_settings_that_are_refused(streams: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parsed(streams)


def test_it_has_a_memory() -> None:
    config = parsed('  tags: {from: "spBv1.0/#", raw: discard, functions: [sparkplug: {}]}\n')
    (found,) = function_findings(config)
    assert "functions without a memory, and sparkplug have one" in found.message


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weft.functions.sparkplug", None)
    with pytest.raises(ValueError, match=r"pip install 'weft-fabric\[sparkplug\]'"):
        made()


# --- How the input is cut into batches, steps and runs changes no byte of what comes out, nor which births are asked


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"rows": "message", "certificates": True},
    {"sources_max": 2, "metrics_max": 5, "reorder_s": 0.0, "rebirth_every_s": 2.0},
)


def _is_the_same(data: strategies.DataObject) -> None:
    given = data.draw(traffic())
    chosen = data.draw(strategies.sampled_from(SETTINGS))
    whole = same_after_restarts(
        lambda: made(**chosen), given, data.draw(cuts(len(given))), until=START + 10**5 * SECOND
    )
    # Nothing waits when all is said, and what is remembered has its bounds.
    assert whole.function.due() is None
    assert whole.function.state is not None
    sources = [key for key, _ in whole.function.state.items() if key[:1] != b"\0"]
    assert len(sources) <= chosen.get("sources_max", 6)


@given(data=strategies.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
def test_how_the_input_is_cut_changes_no_byte(data: strategies.DataObject) -> None:
    _is_the_same(data)


@pytest.mark.search
@moving
@given(data=strategies.data())
@settings(
    max_examples=SLICE.amount(ci=100, night=2000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
def test_how_any_input_is_cut_changes_no_byte(data: strategies.DataObject) -> None:
    _is_the_same(data)


# --- Power cuts through births and numbers: what comes out is what would have come out without them


KINDS = ("NDATA",) * 6 + ("DDATA",) * 6 + ("NBIRTH", "NBIRTH", "DBIRTH", "DBIRTH", "NDEATH", "DDEATH")
POWER_CUTS_SETTINGS: dict[str, dict[str, Any]] = {
    "metrics": {"reorder_s": 2.0, "rebirth_every_s": 3.0},
    "messages": {"rows": "message", "reorder_s": 0.0, "sources_max": 3, "certificates": True},
}


class Spoken(Function):
    """Makes a message of Sparkplug B of each number that a device of the harness publishes."""

    is_stateless = True

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        for row in rows:
            value = row.values["value"]
            if isinstance(value, dict):
                value = value["value"]
            kind, node = KINDS[value % len(KINDS)], row.key.decode()
            device = "/pump" if kind[0] == "D" else ""
            row.key = f"spBv1.0/plant/{kind}/{node}{device}".encode()
            metrics: list[dict[str, Any]] = [{"alias": value % 3, "int_value": value}]
            if kind.endswith("BIRTH"):
                metrics = [{"name": f"m{value % 3 + at}", "alias": at, "datatype": 3, "int_value": at} for at in (0, 1)]
            if kind in ("NBIRTH", "NDEATH"):
                metrics.append(number(value % 2))
            row.payload = payload(*metrics, seq=None if kind == "NDEATH" else value % 5)
        return rows


def definitions() -> list[Any]:
    def chain(name: str) -> list[tuple[str, Function]]:
        return [("spoken", Spoken()), (name, made(**POWER_CUTS_SETTINGS[name]))]

    class Counted(Minutes):
        def process(self, rows: list[Row], out: Out) -> list[Row]:
            for row in rows:
                row.values = {"value": 1}
            return super().process(rows, out)

    return [
        definition("metrics", ["telemetry"], lambda: chain("metrics")),
        definition("messages", ["telemetry", "events"], lambda: chain("messages")),
        definition("counted", ["metrics"], lambda: [("minutes", Counted(7))]),
    ]


def test_power_cuts_change_no_output() -> None:
    with mock.patch.object(power_cuts, "definitions", definitions):
        power_cuts.run_cuts(15, seed=3)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output() -> None:
    with mock.patch.object(power_cuts, "definitions", definitions):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=150))


# --- The example on the page of the function does what the page says


PAGE = Path(__file__).parents[2] / "docs/functions/sparkplug.md"
_BLOCK = re.compile(r"<!-- (\w+): (\S+) -->\s*\n```\w+\n(.*?)```", re.DOTALL)


def test_the_example_does_what_the_page_says() -> None:
    blocks = [found.groups() for found in _BLOCK.finditer(PAGE.read_text())]
    text, host = (body for kind, _, body in blocks if kind == "config")
    lines = {kind: body.splitlines() for kind, _, body in blocks}
    config = parse(text, "/etc/weft/edge.yaml", EdgeConfig, check).config
    settings = config.streams["metrics"].functions[0].sparkplug
    assert settings is not None
    plant = Plant()
    for line in lines["messages"]:
        kind, place, message = line.split(maxsplit=2)
        fields = msgspec.json.decode(message)
        plant.say(f"{kind} {place}", *fields.pop("metrics", ()), **fields)
    chain = run(lambda: made(**msgspec.structs.asdict(settings)), plant.rows)
    assert [(row.key.decode(), row.values) for row in chain.emitted] == [
        (key, msgspec.json.decode(values)) for key, values in (line.split(maxsplit=1) for line in lines["rows"])
    ]
    assert chain.out.rejected() == lines["reasons"]
    # The functions behind know the place of a tag, and the stream in one piece is JSON as well.
    found = {each.name: each for each in definitions_definitions(config)}
    assert found["shifts"].make_chain()
    assert Flow(config).patterns("shifts") == ("{group}/{node}/{device}/#",)
    short = parse(host, "/etc/weft/edge.yaml", EdgeConfig, check).config
    assert (Flow(short).payload("metrics").format, Flow(short).input_payload("metrics").format) == ("json", "sparkplug")
    assert short.sparkplug is not None
    assert short.sparkplug.host_id == "plant-historian"


def test_the_command_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: dict[str, str] = {}
    for kind, _, body in _BLOCK.findall(PAGE.read_text()):
        blocks.setdefault(kind, body)
    monkeypatch.chdir(tmp_path)
    Path("edge.yaml").write_text(blocks["config"])
    Path("sample.jsonl").write_text(blocks["sample"])
    done = weft("edge", "test-function", "edge.yaml", "metrics", "--input", "sample.jsonl")
    assert done.exception is None, done.exception
    assert done.stdout == blocks["answer"]
