import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import VERSIONS, packets, publishes
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode, encode_publish
from weft.protocols.mqtt.errors import MqttError
from weft.protocols.mqtt.packet_ids import PacketIds
from weft.protocols.mqtt.packets import Publish
from weft.protocols.mqtt.properties import NO_PROPERTIES
from weft.protocols.mqtt.publish_run import PublishRun, scan

LIMIT = 1 << 20
TARGETS = {b"a": "one", b"b": "two", b"c": "one"}


QOS_FLAGS = (8, 0, 16)
OPEN = 7
"""A QoS 2 identifier that was received before."""


def taken(data: bytes, limit: int = LIMIT, version: int = 4) -> tuple[int, PublishRun[str], PacketIds]:
    run: PublishRun[str] = PublishRun()
    received = PacketIds()
    received.add(OPEN)
    return scan(data, 0, TARGETS, run, received, limit, version, QOS_FLAGS), run, received


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
        records, flags = groups.setdefault(TARGETS[packet.topic], ([], {}))
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
        assert records.payload_bytes == sum(map(len, records.payloads))
    assert b"".join(run.acks) == acks
    assert run.received == opened
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


@given(VERSIONS, st.data())
@settings(deadline=None)
def test_damaged_bytes_are_left_to_the_decoder(version: int, data: st.DataObject) -> None:
    damaged = bytearray(b"".join(data.draw(st.lists(known_publishes(version), min_size=1, max_size=4))))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(damaged), version)


def test_groups_by_target_in_order_of_receipt() -> None:
    data = b"".join(
        encode_publish(topic, payload, 1, i + 1)
        for i, (topic, payload) in enumerate([(b"a", b"0"), (b"b", b"1"), (b"c", b"2"), (b"a", b"3")])
    )
    at, run, _ = taken(data)
    assert at == len(data)
    assert (run.groups["one"].keys, run.groups["one"].payloads) == ([b"a", b"c", b"a"], [b"0", b"2", b"3"])
    assert (run.groups["two"].keys, run.groups["two"].payloads) == ([b"b"], [b"1"])
    assert b"".join(run.acks) == bytes.fromhex("40020001 40020002 40020003 40020004")


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
