from hypothesis import given
from hypothesis import strategies as st

from protocols.mqtt.decoder import decode
from protocols.mqtt.encoder import encode, encode_publish
from protocols.mqtt.errors import MqttError
from protocols.mqtt.packets import Publish
from protocols.mqtt.publish_run import PublishRun, scan
from tests.protocols.mqtt.strategies import PACKETS, publishes

LIMIT = 1 << 20
TARGETS = {b"a": "one", b"b": "two", b"c": "one"}


def taken(data: bytes, limit: int = LIMIT) -> tuple[int, PublishRun[str]]:
    run: PublishRun[str] = PublishRun()
    return scan(data, 0, TARGETS, run, limit), run


@st.composite
def known_publishes(draw: st.DrawFn) -> Publish:
    packet = draw(publishes())
    topic = draw(st.sampled_from([*TARGETS, b"unknown"]))
    return Publish(topic, packet.payload, packet.qos, packet.packet_id, packet.retain, packet.dup)


def reference(data: bytes) -> tuple[int, dict[str, list[tuple[bytes, bytes]]], bytes]:
    """What scan promises, said with the full decoder."""
    at, groups, acks = 0, {}, b""
    while True:
        try:
            decoded = decode(data, at, LIMIT)
        except MqttError:
            return at, groups, acks
        if decoded is None:
            return at, groups, acks
        packet, end = decoded
        plain = isinstance(packet, Publish) and packet.qos < 2 and not packet.dup and not packet.retain
        if not plain or packet.topic not in TARGETS:
            return at, groups, acks
        groups.setdefault(TARGETS[packet.topic], []).append((packet.topic, packet.payload))
        if packet.qos:
            acks += b"\x40\x02" + packet.packet_id.to_bytes(2, "big")
        at = end


def check(data: bytes) -> None:
    at, run = taken(data)
    expected_at, groups, acks = reference(data)
    assert at == expected_at
    found = {target: list(zip(records.keys, records.payloads)) for target, records in run.groups.items()}
    assert found == groups
    assert b"".join(run.acks) == acks


@given(st.lists(known_publishes(), max_size=6), PACKETS, st.integers(0, 12))
def test_takes_what_the_decoder_would_and_stops_where_it_must(packets: list[Publish], last: object, cut: int) -> None:
    data = b"".join(map(encode, packets)) + encode(last)  # type: ignore[arg-type]
    check(data[: len(data) - cut])


@given(st.lists(known_publishes(), min_size=1, max_size=4), st.data())
def test_damaged_bytes_are_left_to_the_decoder(packets: list[Publish], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(map(encode, packets)))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(damaged))


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
