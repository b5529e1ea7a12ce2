from collections import defaultdict
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import VERSIONS, packets, publishes
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode, encode_publish
from weft.protocols.mqtt.packets import NO_PROPERTIES, MqttError, PacketIds, Publish
from weft.protocols.mqtt.publish_run import scan, single

LIMIT = 1 << 20


class Route(NamedTuple):
    destination: str
    noted: bool
    cost: int = 0


TARGETS = {b"a": Route("one", False), b"b": Route("two", False), b"c": Route("one", True, 3)}


QOS_FLAGS = (8, 0, 16)
OPEN = 7
"""A QoS 2 identifier that was received before."""


class Records:
    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.sources: list[object] = []
        self.flags: dict[int, int] = {}


class Taken:
    def __init__(self) -> None:
        self.groups: defaultdict[str, Records] = defaultdict(Records)
        self.clients: list[object] = []
        self.answers: list[bytes] = []
        self.more_acks = 0
        self.opened: list[int] = []
        self.noted: list[tuple[str, int]] = []

    def note(self, route: Route, run: Records, first: int) -> None:
        assert route.noted
        self.noted += [(route.destination, index) for index in range(first, len(run.keys))]


CLIENT = object()


def taken(data: bytes, limit: int = LIMIT, version: int = 4) -> tuple[int, Taken, PacketIds]:
    run = Taken()
    received = PacketIds()
    received.add(OPEN)
    at = scan(data, 0, TARGETS, run, CLIENT, received, run.opened, limit, version, QOS_FLAGS)
    return at, run, received


@st.composite
def known_publishes(draw: st.DrawFn, version: int, qos: int | None = None) -> bytes:
    packet = draw(publishes(version))
    topic = draw(st.sampled_from([*TARGETS, b"unknown"]))
    properties = packet.properties if draw(st.booleans()) else NO_PROPERTIES
    if qos is not None:  # most of a row of its kind
        packet = msgspec.structs.replace(
            packet, qos=qos, dup=False, retain=False, packet_id=draw(st.integers(1, 20)) if qos else 0
        )
    return encode(msgspec.structs.replace(packet, topic=topic, properties=properties), version)


Group = tuple[list[tuple[bytes, bytes]], dict[int, int]]


def reference(data: bytes, version: int) -> tuple[int, dict[str, Group], bytes, list[int]]:
    """What scan promises, said with the full decoder."""
    at, acks, opened = 0, b"", list[int]()
    groups: dict[str, Group] = {}
    while True:
        try:
            decoded = decode(data, at, LIMIT, version)
        except MqttError:
            return at, groups, acks, opened
        if decoded is None:
            return at, groups, acks, opened
        packet, end = decoded
        if not isinstance(packet, Publish) or data[at] != data[0] or packet.dup or packet.retain:
            return at, groups, acks, opened
        if packet.topic not in TARGETS or packet.properties is not NO_PROPERTIES:
            return at, groups, acks, opened
        if packet.qos == 2 and packet.packet_id in (OPEN, *opened):
            return at, groups, acks, opened
        records, flags = groups.setdefault(TARGETS[packet.topic].destination, ([], {}))
        if QOS_FLAGS[packet.qos]:
            flags[len(records)] = QOS_FLAGS[packet.qos]
        records.append((packet.topic, packet.payload))
        if packet.qos:
            acks += (b"\x40\x02" if packet.qos == 1 else b"\x50\x02") + packet.packet_id.to_bytes(2, "big")
        if packet.qos == 2:
            opened.append(packet.packet_id)
        at = end


def check(data: bytes, version: int) -> None:
    at, run, received = taken(data, version=version)
    expected_at, groups, acks, opened = reference(data, version)
    assert at == expected_at
    found = {
        target: (list(zip(records.keys, records.payloads)), records.flags) for target, records in run.groups.items()
    }
    assert found == groups
    for records in run.groups.values():
        assert records.sources == [CLIENT] * len(records.keys)
    assert sorted(run.noted) == [
        (target, index)
        for target in sorted(groups)
        for index, record in enumerate(groups[target][0])
        if record[0] == b"c"
    ]
    assert b"".join(run.answers) == acks
    assert run.clients == [CLIENT] * len(run.answers)
    assert len(run.answers) + run.more_acks == len(acks) // 4
    assert run.opened == opened
    assert len(received) == 1 + len(opened)


@given(VERSIONS, st.data(), st.integers(0, 12))
@settings(deadline=None)
def test_takes_what_the_decoder_would_and_stops_where_it_must(version: int, data: st.DataObject, cut: int) -> None:
    """PUBACKs go out in the order of their publishes: v5 [MQTT-4.3.2-4]; v3 [MQTT-4.6.0-2]."""
    qos = data.draw(st.sampled_from([None, 0, 1, 2]))
    run = b"".join(data.draw(st.lists(known_publishes(version, qos), max_size=6)))
    run += encode(data.draw(packets(version)), version)
    check(run[: len(run) - cut], version)


@given(VERSIONS, st.sampled_from([0, 1, 2]), st.data(), st.integers(0, 12))
@settings(deadline=None)
def test_rows_of_packets_that_are_alike_end_where_one_is_not(
    version: int, qos: int, data: st.DataObject, cut: int
) -> None:
    size = data.draw(st.sampled_from([0, 1, 2, 40, 200]))
    row = bytearray()
    starts = []
    for packet_id in range(1, data.draw(st.integers(1, 12)) + 1):
        starts.append(len(row))
        row += encode_publish(b"a", bytes([packet_id]) * size, qos, packet_id if qos else 0, version=version)
    if data.draw(st.booleans()):
        # Its topic, identifier, properties or payload: of the length that its neighbours have.
        start = data.draw(st.sampled_from(starts))
        row[min(start + data.draw(st.integers(0, 12)), len(row) - 1)] = data.draw(st.sampled_from([0, 1, 2, 98, 255]))
    row += data.draw(known_publishes(version))
    check(bytes(row[: len(row) - cut]), version)


@given(VERSIONS, st.sampled_from([0, 1, 2]), st.data(), st.integers(-3, 20))
@settings(deadline=None)
def test_a_row_that_costs_more_is_taken_in_parts(version: int, qos: int, data: st.DataObject, cost_max: int) -> None:
    topics = data.draw(st.lists(st.sampled_from(list(TARGETS)), max_size=30))
    row = b"".join(
        encode_publish(topic, b"p" * data.draw(st.sampled_from([0, 1, 9])), qos, qos and number + 10, version=version)
        for number, topic in enumerate(topics)
    )
    at, parts, received = 0, Taken(), PacketIds()
    while at < len(row):
        before = len(parts.noted)
        at = scan(
            row, at, TARGETS, parts, CLIENT, received, parts.opened, LIMIT, version, QOS_FLAGS, len(row), cost_max
        )
        costs = TARGETS[b"c"].cost * (len(parts.noted) - before)
        assert costs <= max(cost_max, TARGETS[b"c"].cost)
    _, whole, _ = taken(row, version=version)
    assert {name: vars(run) for name, run in parts.groups.items()} == {
        name: vars(run) for name, run in whole.groups.items()
    }
    assert parts.noted == whole.noted
    assert b"".join(parts.answers) == b"".join(whole.answers)


def test_a_run_that_is_worth_the_whole_cost_is_the_last_one() -> None:
    row = b"".join(encode_publish(b"c", payload, 0, 0, version=4) for payload in (b"p", b"p", b"", b"", b""))
    parts = Taken()
    at = scan(row, 0, TARGETS, parts, CLIENT, PacketIds(), parts.opened, LIMIT, 4, QOS_FLAGS, len(row), 6)
    assert (len(parts.noted), len(row) - at) == (2, 15)


@given(VERSIONS, st.data())
@settings(deadline=None)
def test_damaged_bytes_are_left_to_the_decoder(version: int, data: st.DataObject) -> None:
    damaged = bytearray(b"".join(data.draw(st.lists(known_publishes(version), min_size=1, max_size=4))))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(damaged), version)


def check_single(data: bytes, version: int) -> None:
    """It takes all of a read or nothing, and then just what ``scan`` takes."""
    alone, run = Taken(), Taken()
    took = single(data, TARGETS, alone, CLIENT, LIMIT, version == 5)
    at = scan(data, 0, TARGETS, run, CLIENT, PacketIds(), [], LIMIT, version)
    is_one = at == len(data) and len(run.clients) == 1 and not run.more_acks and data[0] == 0x32
    assert took == is_one
    if took:
        assert (alone.clients, alone.answers, alone.more_acks) == (run.clients, run.answers, 0)
        assert alone.noted == run.noted
        assert {route: vars(records) for route, records in alone.groups.items()} == {
            route: vars(records) for route, records in run.groups.items()
        }
    else:
        assert (alone.groups, alone.clients, alone.answers, alone.noted) == ({}, [], [], [])


@given(VERSIONS, st.data(), st.integers(0, 12), st.booleans())
@settings(deadline=None)
def test_a_read_of_one_publish_is_taken_as_in_a_row(version: int, data: st.DataObject, cut: int, damage: bool) -> None:
    read = bytearray(b"".join(data.draw(st.lists(known_publishes(version, 1), min_size=1, max_size=2))))
    if damage:
        read[data.draw(st.integers(0, len(read) - 1))] = data.draw(st.integers(0, 255))
    check_single(bytes(read[: len(read) - cut]), version)


@given(VERSIONS, st.binary(max_size=40))
@settings(deadline=None)
def test_any_bytes_are_taken_as_in_a_row(version: int, data: bytes) -> None:
    check_single(data, version)
    check_single(b"\x32" + data, version)


def test_a_single_packet_over_the_limit_is_left_to_the_decoder() -> None:
    data = encode_publish(b"a", bytes(200), 1, 1)
    assert single(data, TARGETS, Taken(), CLIENT, len(data), False)
    assert not single(data, TARGETS, Taken(), CLIENT, len(data) - 1, False)


def test_groups_by_target_in_order_of_receipt() -> None:
    data = b"".join(
        encode_publish(topic, payload, 1, i + 1)
        for i, (topic, payload) in enumerate([(b"a", b"0"), (b"b", b"1"), (b"c", b"2"), (b"a", b"3")])
    )
    at, run, _ = taken(data)
    assert at == len(data)
    assert (run.groups["one"].keys, run.groups["one"].payloads) == ([b"a", b"c", b"a"], [b"0", b"2", b"3"])
    assert (run.groups["two"].keys, run.groups["two"].payloads) == ([b"b"], [b"1"])
    assert b"".join(run.answers) == bytes.fromhex("40020001 40020002 40020003 40020004")


def test_packets_over_the_limit_are_left_to_the_decoder() -> None:
    data = encode_publish(b"a", bytes(200))
    assert taken(data, len(data))[0] == len(data)
    assert taken(data, len(data) - 1)[0] == 0


def test_lengths_of_three_bytes_are_left_to_the_decoder() -> None:
    assert taken(encode_publish(b"a", bytes(16_383 - 3)))[0] == 16_383 + 3
    assert taken(encode_publish(b"a", bytes(16_384)))[0] == 0


def test_a_row_ends_where_the_qos_changes_and_at_an_identifier_that_is_open() -> None:
    first, other = encode_publish(b"a", b"0", 2, 1), encode_publish(b"a", b"1", 1, 2)
    assert taken(first + other)[0] == len(first)
    assert taken(first + encode_publish(b"a", b"1", 2, 1))[0] == len(first)
    assert taken(first + encode_publish(b"a", b"1", 2, OPEN))[0] == len(first)
    assert len(taken(encode_publish(b"unknown", b"", 2, 1))[2]) == 1
