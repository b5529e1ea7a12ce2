import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import IDS, TOPICS, VERSIONS, publishes
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode, encode_publish, publish_parts
from weft.protocols.mqtt.fields import encode_properties, property_body, variable
from weft.protocols.mqtt.packets import NO_PROPERTIES, Packet, Properties, PubAck, Publish, Unsubscribe


@given(VERSIONS, st.data())
@settings(deadline=None)
def test_the_fast_way_to_a_publish_gives_the_same_bytes(version: int, data: st.DataObject) -> None:
    packet = data.draw(publishes(version))
    topic = data.draw(TOPICS | st.just(b"x" * 300))
    packet = Publish(topic, packet.payload, packet.qos, packet.packet_id, packet.retain, packet.dup, packet.properties)
    whole = encode_publish(
        topic,
        packet.payload,
        packet.qos,
        packet.packet_id,
        retain=packet.retain,
        dup=packet.dup,
        version=version,
        properties=packet.properties,
    )
    assert encode(packet, version) == whole
    assert decode(whole, 0, 1 << 20, version) == (packet, len(whole))


@given(VERSIONS, publishes(5), IDS)
@settings(deadline=None)
def test_one_publish_is_every_subscribers_with_its_own_identifier(
    version: int, packet: Publish, packet_id: int
) -> None:
    """v5 [MQTT-2.2.1-4]; v3 [MQTT-2.3.1-4]."""
    head, tail = publish_parts(b"a", packet.payload, 1, retain=True, version=version, properties=packet.properties)
    properties = packet.properties if version == 5 else NO_PROPERTIES
    decoded = decode(head + packet_id.to_bytes(2, "big") + tail, 0, 1 << 20, version)
    assert decoded is not None
    assert decoded[0] == Publish(b"a", packet.payload, 1, packet_id, True, properties=properties)


@pytest.mark.parametrize("length", [126, 127, 128, 129, 16_383, 16_384])
@pytest.mark.parametrize("topic_bytes", [1, 100, 255, 256])
def test_lengths_around_their_borders(length: int, topic_bytes: int) -> None:
    packet = Publish(b"t" * topic_bytes, bytes(max(0, length - topic_bytes - 4)), 1, 7)
    data = encode(packet)
    assert decode(data, 0, len(data)) == (packet, len(data))


def test_properties_can_be_added_behind_others() -> None:
    body = property_body(Properties(content_type="text")) + b"\x0b" + variable(7)
    both = Properties(content_type="text", subscription_identifiers=(7,))
    decoded = decode(b"\x30" + variable(4 + len(body)) + b"\0\1a" + variable(len(body)) + body, 0, 100, 5)
    assert decoded is not None
    assert decoded[0] == Publish(b"a", b"", properties=both)


def test_empty_properties_take_one_byte_or_none() -> None:
    """v5 [MQTT-2.2.2-1]."""
    assert encode_properties(Properties()) == encode_properties(NO_PROPERTIES) == b"\0"
    assert encode(PubAck(1), 5) == bytes.fromhex("40 02 0001")


@pytest.mark.parametrize(
    "packet",
    [Unsubscribe(1, ("x" * 65_536,)), Publish(b"a", b"", properties=Properties(correlation_data=bytes(65_536)))],
)
def test_what_a_field_cannot_hold_is_the_callers_error(packet: Packet) -> None:
    with pytest.raises(ValueError, match="MQTT has room for 65535"):
        encode(packet, 5)
