"""Rows of Sparkplug B whose metrics have aliases: names and datatypes come from births."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weft.functions import sparkplug_payloads
from weft.functions.chain import Outputs
from weft.functions.contract import Row
from weft.functions.sparkplug_payloads import Payload, SparkplugRows, parse_topic

TEMPERATURE = {"name": "temperature", "alias": 1, "datatype": 3}
PRESSURE = {"name": "pressure", "alias": 2, "datatype": 2}


def message(topic: str, *metrics: dict[str, Any], seq: int = 0) -> Row:
    payload = Payload(metrics=list(metrics), seq=seq).SerializeToString()
    return Row(time=1, key=topic.encode(), payload=payload, values={})


def death_number(number: int) -> dict[str, Any]:
    return {"name": "bdSeq", "datatype": 8, "long_value": number}


class Station:
    """The function, and what it did with each row."""

    def __init__(self) -> None:
        self.rows = SparkplugRows()

    def take(self, row: Row) -> dict[str, Any] | str:
        """The fields of the row, or why there are none."""
        out = Outputs()
        found = self.rows.process([row], out)
        if not found:
            return out.rejected[0].reason
        values = dict(found[0].values)
        assert values.pop("seq") == 0
        return values

    def restarted(self) -> Station:
        """Another one with what the runtime would have put back, by way of its log."""
        other = Station()
        for key, value in self.rows.state.items():
            other.rows.state.load(key, msgspec.msgpack.decode(msgspec.msgpack.encode(value)))
        return other


def test_data_have_the_names_and_datatypes_of_their_birth() -> None:
    station = Station()
    data = message("spBv1.0/plant/NDATA/line1", {"alias": 1, "int_value": 2**32 - 7})
    assert station.take(data) == "a metric has the alias 1, and the birth that names it is not known"
    birth = message("spBv1.0/plant/NBIRTH/line1", death_number(0), TEMPERATURE | {"int_value": 20})
    assert station.take(birth) == {"bdSeq": 0, "temperature": 20}
    assert station.take(data) == {"temperature": -7}
    # The name, without a datatype.
    named = message("spBv1.0/plant/NDATA/line1", {"name": "temperature", "int_value": 2**32 - 8})
    assert station.take(named) == {"temperature": -8}
    assert station.restarted().take(data) == {"temperature": -7}


def test_devices_and_edge_nodes_have_definitions_of_their_own() -> None:
    station = Station()
    for place in ("NBIRTH/line1", "NBIRTH/line2"):
        station.take(message(f"spBv1.0/plant/{place}", death_number(0), TEMPERATURE | {"int_value": 20}))
    station.take(message("spBv1.0/plant/DBIRTH/line1/pump", PRESSURE | {"int_value": 0xFFFF}))
    pump = message("spBv1.0/plant/DDATA/line1/pump", {"alias": 2, "int_value": 0xFFFE})
    assert station.take(pump) == {"pressure": -2}
    for topic in ("spBv1.0/plant/NDATA/line1", "spBv1.0/plant/DDATA/line2/pump", "spBv1.0/other/DDATA/line1/pump"):
        assert "birth that names it" in str(station.take(message(topic, {"alias": 2, "int_value": 1})))
    # A birth of the edge node ends its devices, and of no other whose name begins alike.
    station.take(message("spBv1.0/plant/DBIRTH/line12/pump", PRESSURE | {"int_value": 1}))
    station.take(message("spBv1.0/plant/NBIRTH/line1", death_number(1), TEMPERATURE | {"int_value": 20}))
    assert "birth that names it" in str(station.take(pump))
    assert station.take(message("spBv1.0/plant/DDATA/line12/pump", {"alias": 2, "int_value": 1})) == {"pressure": 1}


def test_deaths_end_what_was_known_unless_they_are_of_an_earlier_birth() -> None:
    station = Station()
    data = message("spBv1.0/plant/NDATA/line1", {"alias": 1, "int_value": 21})
    pump = message("spBv1.0/plant/DDATA/line1/pump", {"alias": 2, "int_value": 1})
    station.take(message("spBv1.0/plant/NBIRTH/line1", death_number(4), TEMPERATURE | {"int_value": 20}))
    station.take(message("spBv1.0/plant/DBIRTH/line1/pump", PRESSURE | {"int_value": 1}))
    # The will of the connection before, which the broker sent late (6.4.20).
    assert station.take(message("spBv1.0/plant/NDEATH/line1", death_number(3))) == {"bdSeq": 3}
    assert station.take(data) == {"temperature": 21}
    assert station.take(message("spBv1.0/plant/DDEATH/line1/pump")) == {}
    assert "birth that names it" in str(station.take(pump))
    assert station.take(message("spBv1.0/plant/NDEATH/line1", death_number(4))) == {"bdSeq": 4}
    assert "birth that names it" in str(station.take(data))
    assert dict(station.rows.state.items()) == {}


def test_a_birth_takes_the_place_of_the_one_before() -> None:
    station = Station()
    station.take(message("spBv1.0/g/NBIRTH/n", TEMPERATURE | {"int_value": 20}))
    data = message("spBv1.0/g/NDATA/n", {"alias": 1, "int_value": 5})
    assert station.take(data) == {"temperature": 5}
    station.take(message("spBv1.0/g/NBIRTH/n", {"name": "level", "alias": 1, "datatype": 3, "int_value": 1}))
    assert station.take(data) == {"level": 5}
    assert station.restarted().take(data) == {"level": 5}


def test_after_a_birth_that_is_not_understood_no_alias_is_trusted() -> None:
    station = Station()
    station.take(message("spBv1.0/g/NBIRTH/n", TEMPERATURE | {"int_value": 20}))
    data = message("spBv1.0/g/NDATA/n", {"alias": 1, "int_value": 5})
    assert station.take(data) == {"temperature": 5}
    assert "neither a name nor an alias" in str(station.take(message("spBv1.0/g/NBIRTH/n", {"int_value": 20})))
    assert "birth that names it" in str(station.take(data))


def test_memory_for_births_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug_payloads, "SOURCES_MAX", 3)
    monkeypatch.setattr(sparkplug_payloads, "DEFINITIONS_MAX", 5)
    station = Station()
    for node in ("a", "b"):
        assert isinstance(station.take(message(f"spBv1.0/g/NBIRTH/{node}", TEMPERATURE | {"is_null": True})), dict)
    many = [TEMPERATURE | {"name": f"t{number}", "is_null": True} for number in range(4)]
    full = "births of at most 3 edge nodes and devices with 5 metrics are remembered"
    assert station.take(message("spBv1.0/g/NBIRTH/c", *many)) == full
    assert isinstance(station.take(message("spBv1.0/g/NBIRTH/c", *many[:3])), dict)
    assert station.take(message("spBv1.0/g/NBIRTH/d")) == full
    # Those that are known may be born again, with as many metrics as there is room for.
    assert isinstance(station.take(message("spBv1.0/g/NBIRTH/a", *many[:1])), dict)
    long = TEMPERATURE | {"name": "x" * 257, "is_null": True}
    assert "has 257 characters" in str(station.take(message("spBv1.0/g/NBIRTH/a", long)))
    far = f"spBv1.0/{'g' * 1_024}/NBIRTH/a"
    assert "the names in its topic have 1026 bytes" in str(station.take(message(far, *many[:1])))
    unnamed = {"alias": 5, "datatype": 3, "is_null": True}
    assert "birth that names it" in str(station.take(message("spBv1.0/g/NBIRTH/a", unnamed)))
    assert station.take(message("spBv1.0/g/NDATA/b", {"alias": 1, "int_value": 1})) == {"temperature": 1}


@pytest.mark.parametrize(
    "topic",
    [
        "spBv1.0/STATE/host",
        "spBv1.0/g/NDATA",
        "spBv1.0/g/NDATA/n/d",
        "spBv1.0/g/DDATA/n",
        "spAv1.0/g/NDATA/n",
        "spBv1.0/g/DATA/n",
        "spBv1.0//NDATA/n",
        "plant/1",
        "",
        "spBv1.0/g/DDATA/n/d/e",
    ],
)
def test_topics_of_something_else(topic: str) -> None:
    assert parse_topic(topic.encode()) is None
    assert "its topic is none of an edge node or device" in str(Station().take(message(topic)))
