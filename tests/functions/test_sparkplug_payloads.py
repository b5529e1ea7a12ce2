"""Sparkplug B: payloads of another implementation, datatypes, and what does not fit."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from tests.support.examples import given
from weft.functions import sparkplug_payloads
from weft.functions.chain import Outputs
from weft.functions.contract import PayloadError, Row
from weft.functions.formats import DEPTH_MAX, PAYLOAD_BYTES_MAX
from weft.functions.sparkplug_payloads import Payload, SparkplugFormat, SparkplugRows, parse_topic

SPARKPLUG = SparkplugFormat()

NODE_BIRTH = bytes.fromhex(
    "08eaf2f5a8a02b12120a05626453657118eaf2f5a8a02b2008580712100a02693818eaf2f5a8a02b200150ff0112140a0369"
    "387318eaf2f5a8a02b200150ffffffff0f12120a0369313618eaf2f5a8a02b200250ffff0312140a0369333218eaf2f5a8a0"
    "2b200350fbffffff0f12190a0369363418eaf2f5a8a02b200458ffffffffffffffffff0112100a02753818eaf2f5a8a02b20"
    "0550ff0112140a0375333218eaf2f5a8a02b200750ffffffff0f12150a047533326c18eaf2f5a8a02b200758ffffffff0f12"
    "190a0375363418eaf2f5a8a02b200858ffffffffffffffffff0112110a016618eaf2f5a8a02b2009650000c03f12150a0164"
    "18eaf2f5a8a02b200a6900000000000002c0120e0a016218eaf2f5a8a02b200b700112130a017318eaf2f5a8a02b200c7a05"
    "68c3b6686512130a017418eaf2f5a8a02b200d58eaf2f5a8a02b12350a047575696418eaf2f5a8a02b200f7a243132336534"
    "3536372d653839622d313264332d613435362d34323636313431373430303012130a0372617718eaf2f5a8a02b2011820102"
    "000112140a076e6f7468696e6718eaf2f5a8a02b2003380112370a0373657418eaf2f5a8a02b20108a012608021201611201"
    "621803180c22090a0208010a03320178220d0a0608feffffff0f0a03320179123b0a056d6f746f7218eaf2f5a8a02b201392"
    "01280a027631120a0a0372706d200350c80b1a0a0a0473697a6510031805220a6d6f746f725f7479706512140a04696e7473"
    "18eaf2f5a8a02b201682010201ff12190a05626f6f6c7318eaf2f5a8a02b20208201060c00000034d0121c0a047374727318"
    "eaf2f5a8a02b202182010a4142430068656c6c6f00122e0a077175616c697479100918eaf2f5a8a02b200342034201644a11"
    "0a07656e67556e69741206080c42026d6d500118022201752a04626f6479"
)
"""Written by pysparkplug 0.6 with the messages of Eclipse Tahu: all datatypes, properties, metadata, uuid and body."""
MEANING = {
    "timestamp": 1486144502122,
    "seq": 2,
    "bdSeq": 7,
    "i8": -1,
    "i8s": -1,
    "i16": -1,
    "i32": -5,
    "i64": -1,
    "u8": 255,
    "u32": 4294967295,
    "u32l": 4294967295,
    "u64": 18446744073709551615,
    "f": 1.5,
    "d": -2.25,
    "b": True,
    "s": "höhe",
    "t": 1486144502122,
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "raw": b"\x00\x01",
    "nothing": None,
    "set": [{"a": 1, "b": "x"}, {"a": -2, "b": "y"}],
    "motor": {"rpm": 1480},
    "ints": [1, -1],
    "bools": [False, False, True, True, False, True, False, False, True, True, False, True],
    "strs": ["ABC", "hello"],
    "quality": 1,
}


def payload(*metrics: dict[str, Any], **own: Any) -> bytes:
    """A payload with metrics as protobuf has them."""
    return bytes(Payload(metrics=list(metrics), **own).SerializeToString())


def test_a_payload_of_another_implementation() -> None:
    assert SPARKPLUG.decode(NODE_BIRTH) == MEANING
    assert SPARKPLUG.decode(SPARKPLUG.encode(MEANING)) == MEANING


@pytest.mark.parametrize(
    ("datatype", "code", "values"),
    [
        (22, "b", [-23, 123]),
        (23, "h", [-30000, 30000]),
        (24, "i", [-1, 315338746]),
        (25, "q", [-4270929666821191986, -3601064768563266876]),
        (26, "B", [23, 250]),
        (27, "H", [30, 52360]),
        (28, "I", [52, 3293969225]),
        (29, "Q", [52, 16444743074749521625]),
        (30, "f", [1.5, -0.25]),
        (31, "d", [12.354213, 1022.9123213]),
        (34, "Q", [1256102875335, 1656107875000]),
        (32, "", [False, False, True, True, False, True, False, False, True, True, False, True]),
        (33, "", ["ABC", "hello"]),
    ],
)
def test_arrays_of_the_specification(datatype: int, code: str, values: list[Any]) -> None:
    """Sparkplug 3.0, section 6.4.16.3"""
    packed = {32: b"\x0c\0\0\0\x34\xd0", 33: b"ABC\0hello\0"}.get(datatype) or struct.pack(f"<2{code}", *values)
    assert SPARKPLUG.decode(payload({"name": "a", "datatype": datatype, "bytes_value": packed})) == {"a": values}
    assert SPARKPLUG.decode(SPARKPLUG.encode({"a": values})) == {"a": values}


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ({"int_value": 1}, "neither a name nor an alias"),
        ({"alias": 5, "int_value": 1}, "alias 5, and the birth that names it is not known"),
        ({"name": "a", "int_value": 1}, "integer without a datatype"),
        ({"name": "a", "datatype": 0, "long_value": 1}, "integer without a datatype"),
        ({"name": "a", "datatype": 1, "int_value": 256}, "does not fit into its datatype, int8"),
        ({"name": "a", "datatype": 5, "int_value": 256}, "does not fit into its datatype, uint8"),
        ({"name": "a", "datatype": 3, "long_value": 2**33}, "does not fit into its datatype, int32"),
        ({"name": "a", "datatype": 9, "int_value": 1}, "it is an integer, and its datatype is float"),
        ({"name": "a", "datatype": 99, "int_value": 1}, "it is an integer, and its datatype is datatype 99"),
        ({"name": "a", "datatype": 3, "float_value": 1}, "it is a float, and its datatype is int32"),
        ({"name": "a", "datatype": 3, "boolean_value": True}, "true or false, and its datatype is int32"),
        ({"name": "a", "datatype": 3, "string_value": "x"}, "it is text, and its datatype is int32"),
        ({"name": "a", "datatype": 3, "bytes_value": b"x"}, "it is bytes, and its datatype is int32"),
        ({"name": "a", "datatype": 24, "bytes_value": b"xyz"}, "not a whole number of values of int32_array"),
        ({"name": "a", "datatype": 32, "bytes_value": b"\xff\xff\xff\xff\1"}, "do not match the count of values"),
        ({"name": "a", "datatype": 32, "bytes_value": b"\1"}, "do not match the count of values"),
        ({"name": "a", "datatype": 33, "bytes_value": b"abc"}, "does not end with NUL"),
        ({"name": "a", "datatype": 33, "bytes_value": b"\xff\0"}, "texts is not UTF-8"),
        ({"name": "a", "dataset_value": {"columns": ["x", "x"], "types": [3, 3]}}, "2 types for 1 different columns"),
        ({"name": "a", "dataset_value": {"columns": ["x"], "types": []}}, "0 types for 1 different columns"),
        (
            {"name": "a", "dataset_value": {"columns": ["x"], "types": [3], "rows": [{"elements": []}]}},
            "0 values for 1 columns",
        ),
        ({"name": "a", "dataset_value": {"rows": [{"elements": []}]}}, "rows and no columns"),
        ({"name": "a", "template_value": {"metrics": [{"alias": 1, "int_value": 1}]}}, "alias 1, and the birth"),
    ],
)
def test_metrics_that_are_refused(metric: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        SPARKPLUG.decode(payload({"name": "good", "datatype": 10, "double_value": 1}, metric))


@pytest.mark.parametrize(
    "broken",
    [b"\xff", b"\x12", b"\x12\xff\xff\xff\xff\x0f", b"\x12\x03\x0a\x01\xff", b"{}", b"\x12\x04\x0a\x00\x7a\x01\xff"],
)
def test_what_is_no_sparkplug_is_refused(broken: bytes) -> None:
    with pytest.raises(PayloadError):
        SPARKPLUG.decode(broken)


def test_templates_in_templates_have_a_bottom() -> None:
    def within(levels: int) -> dict[str, Any]:
        metric: dict[str, Any] = {"name": "a", "datatype": 3, "int_value": 1}
        for _ in range(levels):
            metric = {"name": "a", "datatype": 19, "template_value": {"metrics": [metric]}}
        return metric

    found = SPARKPLUG.decode(payload(within(DEPTH_MAX)))
    assert SPARKPLUG.decode(SPARKPLUG.encode(found)) == found
    for levels in (DEPTH_MAX + 1, 45):
        with pytest.raises(PayloadError, match="deep in each other"):
            SPARKPLUG.decode(payload(within(levels)))
    with pytest.raises(PayloadError, match="deep in each other"):
        SPARKPLUG.encode({"more": found})
    # The parser itself stops at a hundred messages in each other.
    deep = b""
    for _ in range(5_000):
        deep = b"\x12" + _length(inner := b"\x92\x01" + _length(deep) + deep) + inner
    with pytest.raises(PayloadError, match="not Sparkplug B"):
        SPARKPLUG.decode(deep)


def _length(of: bytes) -> bytes:
    number, found = len(of), bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


_NUMBERS = st.integers(-(2**63), 2**64 - 1)
_TEXTS = st.text(max_size=8)
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.floats(allow_nan=False) | _TEXTS
_COLUMNS = st.sampled_from([st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), _TEXTS])
_DATASETS = st.dictionaries(_TEXTS, _COLUMNS, min_size=1, max_size=3).flatmap(
    lambda columns: st.lists(
        st.fixed_dictionaries({name: st.none() | each for name, each in columns.items()}), min_size=1, max_size=3
    )
)
_LISTS = (
    st.lists(st.booleans())
    | st.lists(st.integers(-(2**63), 2**63 - 1))
    | st.lists(st.floats(allow_nan=False))
    | st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5))
)
_VALUES = st.recursive(
    _SCALARS | st.binary(max_size=8) | _LISTS | _DATASETS,
    lambda inside: st.dictionaries(_TEXTS, inside, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(_TEXTS | st.sampled_from(["timestamp", "seq"]), _VALUES, max_size=5))
def test_what_is_written_is_read_again(values: dict[str, Any]) -> None:
    written = SPARKPLUG.encode(values)
    assert SPARKPLUG.decode(written) == values
    assert SPARKPLUG.encode(values) == written


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_what_is_read_can_be_written(data: bytes) -> None:
    try:
        values = SPARKPLUG.decode(data)
    except PayloadError:
        return
    SPARKPLUG.decode(SPARKPLUG.encode(values))


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        1j,
        object(),
        (1, 2),
        [1, "a"],
        ["a\0"],
        [b"x"],
        [[1]],
        [2**63, -1],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": "x"}],
        [{"a": [1]}],
        [{"a": 2**63}, {"a": -1}],
        [{}, 1],
        [{}],
        {"a": object()},
        "\ud800",
        [1.5, 10**400],
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values_that_sparkplug_has_not(value: Any) -> None:
    with pytest.raises(PayloadError):
        SPARKPLUG.encode({"a": value})


def test_a_payload_of_nothing_but_metrics_is_refused_at_once() -> None:
    """Two bytes for a metric each: the most that a payload can stand for."""
    with pytest.raises(PayloadError, match="neither a name nor an alias"):
        SPARKPLUG.decode(b"\x12\x00" * (PAYLOAD_BYTES_MAX // 2))
    with pytest.raises(PayloadError, match="at most"):
        SPARKPLUG.decode(b"\x12\x00" * PAYLOAD_BYTES_MAX)


def test_floats_that_are_no_numbers_stay_so() -> None:
    found = SPARKPLUG.decode(SPARKPLUG.encode({"a": math.nan, "b": [math.inf, math.nan]}))
    assert math.isnan(found["a"])
    assert found["b"][0] == math.inf


# --- Rows of Sparkplug B whose metrics have aliases: names and datatypes come from births


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
