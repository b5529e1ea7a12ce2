"""The journal's entries stand on disks: their numbers and orders are pinned here. Add, never change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.sessions.room import StoredNode, record
from weft.edge_node.sessions import records
from weft.edge_node.sessions.records import (
    Entry,
    Sent,
    decode_entry,
    encode_entry,
    ids_of_acks,
    pack_ids,
    pack_properties,
    pack_record,
    unpack_ids,
    unpack_properties,
    unpack_record,
)
from weft.protocols.mqtt.encoder import PUBACK
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties, Subscription, Will

PINNED: list[tuple[Entry, str]] = [
    (records.Restarted({1: 2}), "9201810102"),
    (records.Snapshot(b"{}"), "9202c4027b7d"),
    (records.Ended(), "9103"),
    (records.Subscribed("a", 2, True, False, 1, 7), "9804a16102c3c2010780"),
    (records.Subscribed("a", 0, False, False, 0, None, {1: 2}), "9804a16100c2c200c0810102"),
    (records.Unsubscribed("a"), "9205a161"),
    (records.Received(b"\0\1", ((1, 2, 3),)), "9306c40200019193010203"),
    (records.Released(b"\0\1"), "9207c4020001"),
    (records.Sending({1: Sent(2, 3, 2)}), "9208810194020302c2"),
    (records.Taken(b"\0\1"), "9209c4020001"),
    (records.Completed(b"\0\1"), "920ac4020001"),
    (records.Positions({1: 300}), "920b8101cd012c"),
    (records.Published(b"\0\1\0\2", ()), "930cc4040001000290"),
    (records.WillPublished(((1, 2, 3),)), "920d9193010203"),
    (records.Lost(1_700_000_000_000_000_000), "920ecf17979cfe362a0000"),
    (records.SharedMoved({1: 300}, ((1, 2),)), "930f8101cd012c91920102"),
    (records.SharedMoved({1: 300}), "930f8101cd012cc0"),
    (records.SharedEnded(), "9110"),
]


@pytest.mark.parametrize(("entry", "written"), PINNED, ids=[type(entry).__name__ for entry, _ in PINNED])
def test_what_an_earlier_release_wrote_means_the_same(entry: Entry, written: str) -> None:
    assert encode_entry(entry).hex() == written
    assert decode_entry(bytes.fromhex(written)) == entry


def test_what_was_written_before_a_field_was_added_means_the_same() -> None:
    assert decode_entry(bytes.fromhex("9704a16102c3c20107")) == records.Subscribed("a", 2, True, False, 1, 7)


def test_every_kind_is_pinned() -> None:
    assert {type(entry) for entry, _ in PINNED} == set(Entry.__subclasses__())


def test_a_kind_of_a_later_release_is_passed_over() -> None:
    assert decode_entry(msgspec.msgpack.encode([99, "whatever"])) is None


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", b"\x92\x05\x01", b"\x90"])
def test_what_nobody_wrote_is_an_error(payload: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_entry(payload)


@given(st.lists(st.integers(1, 65_535)))
def test_packet_identifiers(packet_ids: list[int]) -> None:
    packed = pack_ids(packet_ids)
    assert list(unpack_ids(packed)) == packet_ids
    assert ids_of_acks(b"".join(PUBACK + each.to_bytes(2, "big") for each in packet_ids)) == packed


@given(
    st.builds(
        Properties,
        payload_format_indicator=st.none() | st.integers(0, 1),
        message_expiry_interval=st.none() | st.integers(0, 0xFFFFFFFF),
        content_type=st.none() | st.text(max_size=4),
        correlation_data=st.none() | st.binary(max_size=4),
        user_properties=st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3).map(tuple),
    )
)
def test_properties_come_back(properties: Properties) -> None:
    packed = pack_properties(properties)
    assert unpack_properties(packed) == properties
    assert (packed is None) == (properties == NO_PROPERTIES)


def test_a_record_is_short_and_legible() -> None:
    session = record(
        subscriptions={"a": Subscription("a", 0)},
        positions={1: 0},
        inflight={5: Sent(1, 0, 1)},
        done={(1, 4)},
        received={6},
        will=Will(b"t", b"", 0, False, Properties(will_delay_interval=0)),
    )
    packed = pack_record(session)
    assert unpack_record(packed) == session
    assert packed == (
        b'{"client_id":"pi","version":5,"expiry_interval":3600,"subscriptions":{"a":{"filter":"a","qos":0,'
        b'"retain_handling":0}},"positions":{"1":0},"inflight":{"5":[1,0,1,false]},"done":[[1,4]],"received":[6],'
        b'"will":{"topic":"dA==","payload":"","qos":0,"properties":{"will_delay_interval":0}}}'
    )


# --- docs/reference/formats/mqtt-state.md says what the code does


PAGE = (Path(__file__).parents[3] / "docs/reference/formats/mqtt-state.md").read_text("utf-8")


def table(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- {name} -->\n\n((?:\|.*\n)+)", PAGE)
    assert found is not None
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def kinds() -> dict[str, type[Entry]]:
    return {kind.__name__: kind for kind in Entry.__subclasses__()}


def meaning(entry: Entry) -> Any:
    found = {name: getattr(entry, name) for name in entry.__struct_fields__}
    if "packet_ids" in found:
        found["packet_ids"] = list(unpack_ids(found["packet_ids"]))
    if "record" in found:
        found["record"] = json.loads(found["record"])
    return {type(entry).__name__: json.loads(msgspec.json.encode(found))}


def test_the_table_of_entries_is_that_of_the_code() -> None:
    assert {(int(row[0]), row[1], row[2]) for row in table("entries")} == {
        (kind.__struct_config__.tag, name, ", ".join(kind.__struct_fields__)) for name, kind in kinds().items()
    }


def test_the_schema_is_that_of_the_database() -> None:
    node = StoredNode()
    found: list[tuple[str, str]] = []
    columns = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    node.state._database.run(lambda database: found.extend(database.execute(columns)))
    node.stop_database()
    assert {(row[0], row[1]) for row in table("schema")} == set(found)


def test_the_example_decodes_to_what_the_page_says() -> None:
    (listing,) = re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    entries = []
    for line in listing.splitlines():
        payload, _, name = line.partition(";")
        entry = decode_entry(bytes.fromhex(payload))
        assert entry is not None
        assert type(entry).__name__ == name.strip()
        assert encode_entry(entry) == bytes.fromhex(payload)
        entries.append(entry)
    assert [meaning(entry) for entry in entries] == json.loads(said)
    assert {type(entry) for entry in entries} == set(kinds().values()), "every kind is shown"
