import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.decoder import decode
from protocols.mqtt.encoder import encode, encode_publish
from protocols.mqtt.errors import MqttError
from protocols.mqtt.packets import Publish
from protocols.mqtt.properties import NO_PROPERTIES
from protocols.mqtt.publish_run import PublishRun, scan
from tests.protocols.mqtt.strategies import VERSIONS, packets, publishes

LIMIT = 1 << 20
TARGETS = {b"a": "one", b"b": "two", b"c": "one"}


QOS0_FLAG = 8


def taken(data: bytes, limit: int = LIMIT, version: int = 4) -> tuple[int, PublishRun[str]]:
    run: PublishRun[str] = PublishRun()
    return scan(data, 0, TARGETS, run, limit, version, QOS0_FLAG), run


@st.composite
def known_publishes(draw: st.DrawFn, version: int) -> bytes:
    packet = draw(publishes(version))
    topic = draw(st.sampled_from([*TARGETS, b"unknown"]))
    properties = packet.properties if draw(st.booleans()) else NO_PROPERTIES
    return encode(msgspec.structs.replace(packet, topic=topic, properties=properties), version)


Group = tuple[list[tuple[bytes, bytes]], dict[int, int]]


def reference(data: bytes, version: int) -> tuple[int, dict[str, Group], bytes]:
    """What scan promises, said with the full decoder."""
    at, acks = 0, b""
    groups: dict[str, Group] = {}
    while True:
        try:
            decoded = decode(data, at, LIMIT, version)
        except MqttError:
            return at, groups, acks
        if decoded is None:
            return at, groups, acks
        packet, end = decoded
        if not isinstance(packet, Publish) or packet.qos > 1 or packet.dup or packet.retain:
            return at, groups, acks
        if packet.topic not in TARGETS or packet.properties is not NO_PROPERTIES:
            return at, groups, acks
        records, flags = groups.setdefault(TARGETS[packet.topic], ([], {}))
        if not packet.qos:
            flags[len(records)] = QOS0_FLAG
        records.append((packet.topic, packet.payload))
        if packet.qos:
            acks += b"\x40\x02" + packet.packet_id.to_bytes(2, "big")
        at = end


def check(data: bytes, version: int) -> None:
    at, run = taken(data, version=version)
    expected_at, groups, acks = reference(data, version)
    assert at == expected_at
    found = {
        target: (list(zip(records.keys, records.payloads)), records.flags) for target, records in run.groups.items()
    }
    assert found == groups
    assert b"".join(run.acks) == acks


@given(VERSIONS, st.data(), st.integers(0, 12))
@settings(deadline=None)
def test_takes_what_the_decoder_would_and_stops_where_it_must(version: int, data: st.DataObject, cut: int) -> None:
    """PUBACKs go out in the order of their publishes: v5 [MQTT-4.3.2-4]; v3 [MQTT-4.6.0-2]."""
    run = b"".join(data.draw(st.lists(known_publishes(version), max_size=6)))
    run += encode(data.draw(packets(version)), version)
    check(run[: len(run) - cut], version)


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
    at, run = taken(data)
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
