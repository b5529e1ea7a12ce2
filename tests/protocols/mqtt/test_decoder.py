"""Tests of ``protocols/mqtt/decoder.py``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import IDS, PACKETS, TOPICS, VECTORS, VECTORS_5, VERSIONS, packets, publishes
from weft.protocols.mqtt.decoder import FILTERS_MAX, Reassembly, decode, packet_end
from weft.protocols.mqtt.encoder import REMAINING_LENGTH_MAX, encode, encode_length, encode_publish, publish_parts
from weft.protocols.mqtt.fields import PROPERTIES_MAX, encode_properties, property_body, variable
from weft.protocols.mqtt.packets import (
    NO_PROPERTIES,
    PACKET_IDS_MAX,
    TABLE,
    ConnAck,
    Connect,
    ConnectRefused,
    Disconnect,
    MalformedPacket,
    MqttError,
    Packet,
    PacketIds,
    PacketType,
    Properties,
    ProtocolViolation,
    PubAck,
    Publish,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)

LIMIT = 1 << 20
ALL_VECTORS = [(text, packet, 4) for text, packet in VECTORS] + [(text, packet, 5) for text, packet in VECTORS_5]
MAY_BE_SHORTER = {PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP, PacketType.DISCONNECT}
"""Packets of MQTT 5.0 that may end before their properties."""


@pytest.mark.parametrize(("hexadecimal", "packet", "version"), ALL_VECTORS)
def test_vectors_in_both_directions(hexadecimal: str, packet: Packet, version: int) -> None:
    """The layouts of chapter 3, among them: v5 [MQTT-2.2.1-2], [MQTT-2.2.2-1], [MQTT-3.1.3-1], [MQTT-3.1.3-3]; v3
    [MQTT-2.3.1-5], [MQTT-3.1.3-1], [MQTT-3.1.3-3]."""
    data = bytes.fromhex(hexadecimal)
    assert encode(packet, version) == data
    assert decode(data, 0, LIMIT, version) == (packet, len(data))


@pytest.mark.parametrize(("hexadecimal", "packet", "version"), ALL_VECTORS)
def test_a_packet_cut_short_needs_more(hexadecimal: str, packet: Packet, version: int) -> None:
    data = bytes.fromhex(hexadecimal)
    assert all(decode(data[:cut], 0, LIMIT, version) is None for cut in range(len(data)))


@pytest.mark.parametrize(("hexadecimal", "packet", "version"), ALL_VECTORS)
def test_a_field_cut_short_inside_a_complete_packet_is_an_error(hexadecimal: str, packet: Packet, version: int) -> None:
    """A field that its flag announces must be there: v5 [MQTT-3.1.2-9], [MQTT-3.1.2-17], [MQTT-3.1.2-19]; v3
    [MQTT-3.1.2-9], [MQTT-3.1.2-19], [MQTT-3.1.2-21]."""
    data = bytes.fromhex(hexadecimal)
    for length in range(data[1]):
        shorter = bytes([data[0], length]) + data[2 : 2 + length]
        try:
            decoded = decode(shorter, 0, LIMIT, version)
        except MqttError:
            continue
        assert decoded is not None, "a complete packet must not ask for more"
        if version == 5 and data[0] >> 4 in MAY_BE_SHORTER:
            assert decoded[0] == decode(encode(decoded[0], 5), 0, LIMIT, 5)[0]  # type: ignore[index]
        else:
            assert encode(decoded[0], version) == shorter


@given(VERSIONS, st.data(), st.binary(max_size=3), st.binary(max_size=3))
@settings(max_examples=150, deadline=None)
def test_round_trip_at_any_offset(version: int, drawn: st.DataObject, before: bytes, after: bytes) -> None:
    """Every packet of every version; text comes back as it was, U+FEFF included: v5 [MQTT-1.5.4-3]; v3
    [MQTT-1.5.3-3]."""
    packet = drawn.draw(packets(version))
    data = encode(packet, version)
    decoded = decode(before + data + after, len(before), LIMIT, version)
    assert decoded == (packet, len(before) + len(data))
    if getattr(decoded[0], "properties", None) == NO_PROPERTIES:
        assert decoded[0].properties is NO_PROPERTIES  # type: ignore[attr-defined]


@given(VERSIONS, st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_and_cut_bytes_raise_nothing_but_protocol_errors(version: int, data: st.DataObject) -> None:
    damaged = bytearray(encode(data.draw(packets(version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_outcome(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), version)


@given(st.binary(max_size=40), VERSIONS)
@settings(max_examples=150, deadline=None)
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes, version: int) -> None:
    check_outcome(data, version)


def check_outcome(data: bytes, version: int) -> None:
    try:
        decoded = decode(data, 0, LIMIT, version)
    except MqttError:
        return
    if decoded is None:
        place = packet_end(data, 0, LIMIT)
        assert place is None or place[1] > len(data)
    else:
        packet, end = decoded
        again = encode(packet, version)
        assert decode(again, 0, LIMIT, version) == (packet, len(again))
        assert 2 <= end <= len(data)


@pytest.mark.parametrize(
    ("hexadecimal", "says"),
    [
        ("00 00", "packet type 0 is reserved"),
        ("f0 00", "packet type 15 is reserved"),
        ("c1 00", "MQTT-2.2.2-2"),
        ("60 02 0001", "MQTT-2.2.2-2"),
        ("a0 05 0001 0001 61", "MQTT-2.2.2-2"),
        ("e1 00", "MQTT-2.2.2-2"),
        ("80 06 0001 0001 61 00", "MQTT-2.2.2-2"),
        ("c0 01 00", "follow the last field of PINGREQ"),
        ("40 03 0001 00", "follow the last field of PUBACK"),
        ("40 01 00", "PUBACK ends inside its packet identifier"),
        ("40 02 0000", "MQTT-2.3.1-1"),
        ("32 05 0001 61 0000", "MQTT-2.3.1-1"),
        ("36 05 0001 61 0001", "MQTT-3.3.1-4"),
        ("38 03 0001 61", "MQTT-3.3.1-2"),
        ("30 02 0000", "MQTT-4.7.3-1"),
        ("30 03 0001 2b", "MQTT-3.3.2-2"),
        ("30 03 0001 23", "MQTT-3.3.2-2"),
        ("30 03 0001 00", "MQTT-1.5.3-2"),
        ("30 03 0001 ff", "MQTT-1.5.3-1"),
        ("30 05 0003 eda080", "MQTT-1.5.3-1"),
        ("30 03 0005 61", "PUBLISH ends inside its topic name"),
        ("32 04 0001 61 00", "PUBLISH ends inside its packet identifier"),
        ("82 02 0001", "MQTT-3.8.3-3"),
        ("82 06 0001 0001 61 03", "MQTT-3.8.3-4"),
        ("82 06 0001 0001 61 81", "MQTT-3.8.3-4"),
        ("82 05 0001 0001 61", "SUBSCRIBE ends inside its requested QoS"),
        ("82 08 0001 0003 232f61 00", "MQTT-4.7.1-2"),
        ("82 07 0001 0002 612b 00", "MQTT-4.7.1-3"),
        ("a2 02 0001", "MQTT-3.10.3-2"),
        ("a2 05 0001 0001 ff", "MQTT-1.5.3-1"),
        ("82 06 0001 0001 ff 00", "MQTT-1.5.3-1"),
        ("90 03 0001 03", "MQTT-3.9.3-2"),
        ("20 02 02 00", "MQTT-3.2.2-4"),
        ("10 0d 0004 4d515458 04 02 003c 0001 61", "MQTT-3.1.2-1"),
        ("10 0d 0004 4d515454 04 03 003c 0001 61", "MQTT-3.1.2-3"),
        ("10 0d 0004 4d515454 04 0a 003c 0001 61", "MQTT-3.1.2-11"),
        ("10 0d 0004 4d515454 04 22 003c 0001 61", "MQTT-3.1.2-11"),
        ("10 12 0004 4d515454 04 1e 003c 0001 61 0001 61 0000", "MQTT-3.1.2-14"),
        ("10 12 0004 4d515454 04 06 003c 0001 61 0001 23 0000", "MQTT-3.3.2-2"),
        ("10 10 0004 4d515454 04 42 003c 0001 61 0001 61", "MQTT-3.1.2-22"),
        ("10 0d 0004 4d515454 04 82 003c 0001 61", "CONNECT ends inside its user name"),
        ("10 0d 0004 4d515454 04 02 003c 0001 00", "MQTT-1.5.3-2"),
        ("10 0e 0004 4d515454 04 02 003c 0001 61 00", "follow the last field of CONNECT"),
        ("10 12 0004 4d515454 04 06 003c 0001 61 0001 ff 0000", "MQTT-1.5.3-1"),
        ("10 10 0004 4d515454 04 82 003c 0001 61 0001 ff", "MQTT-1.5.3-1"),
        ("10 0d 0004 4d515454 04 02 003c 0001 ff", "MQTT-1.5.3-1"),
        ("30 ffffffff", "more than four bytes"),
    ],
)
def test_malformed_packets_name_the_rule_they_break(hexadecimal: str, says: str) -> None:
    """v3 [MQTT-1.5.3-1], [MQTT-1.5.3-2], [MQTT-2.2.2-1], [MQTT-2.2.2-2], [MQTT-2.3.1-1], [MQTT-3.1.2-1],
    [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-13], [MQTT-3.1.2-14], [MQTT-3.1.2-15], [MQTT-3.1.2-18],
    [MQTT-3.1.2-20], [MQTT-3.1.2-22], [MQTT-3.1.3-4], [MQTT-3.1.3-10], [MQTT-3.1.3-11], [MQTT-3.1.4-1],
    [MQTT-3.3.1-2], [MQTT-3.3.1-4], [MQTT-3.3.2-1], [MQTT-3.3.2-2], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.8.3-1],
    [MQTT-3.8.3-3], [MQTT-3.8.3-4], [MQTT-3.9.3-2], [MQTT-3.10.1-1], [MQTT-3.10.3-1], [MQTT-3.10.3-2],
    [MQTT-3.14.1-1], [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.3-1], [MQTT-4.7.3-2]."""
    with pytest.raises(MalformedPacket) as caught:
        decode(bytes.fromhex(hexadecimal), 0, REMAINING_LENGTH_MAX + 5)
    assert says in str(caught.value)


MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
NAME, FILTER = ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_FILTER_INVALID
CONNECT_5 = "0004 4d515454 05"


@pytest.mark.parametrize(
    ("hexadecimal", "code", "says"),
    [
        ("00 00", MALFORMED, "packet type 0 is reserved"),
        ("60 02 0001", MALFORMED, "MQTT-2.1.3-1"),
        ("80 07 0001 00 0001 61 00", MALFORMED, "MQTT-2.1.3-1"),
        ("a0 06 0001 00 0001 61", MALFORMED, "MQTT-2.1.3-1"),
        ("e1 00", MALFORMED, "MQTT-2.1.3-1"),
        ("f1 00", MALFORMED, "MQTT-2.1.3-1"),
        ("40 02 0000", PROTOCOL, "MQTT-2.2.1-3"),
        ("82 07 0000 00 0001 61 00", PROTOCOL, "MQTT-2.2.1-3"),
        ("40 03 0001 01", PROTOCOL, "PUBACK with reason code 0x01"),
        ("50 03 0001 92", PROTOCOL, "PUBREC with reason code 0x92"),
        ("62 03 0001 10", PROTOCOL, "PUBREL with reason code 0x10"),
        ("70 03 0001 80", PROTOCOL, "PUBCOMP with reason code 0x80"),
        ("40 05 0001 00 00 00", MALFORMED, "follow the last field of PUBACK"),
        ("40 04 0001 00 05", MALFORMED, "PUBACK ends inside its properties"),
        ("40 07 0001 00 03 23 0001", MALFORMED, "PUBACK with property 0x23 topic_alias"),
        ("40 06 0001 00 02 2600", MALFORMED, "PUBACK ends inside its user_properties"),
        ("30 07 0001 61 03 1f 0000", MALFORMED, "PUBLISH with property 0x1f reason_string"),
        ("30 05 0001 61 01 7e", MALFORMED, "PUBLISH with property 0x7e"),
        ("30 06 0001 61 02 ff01", MALFORMED, "PUBLISH with property 0xff"),
        ("30 06 0001 61 02 8100", MALFORMED, "MQTT-1.5.5-1"),
        ("30 05 0001 61 80 00", MALFORMED, "MQTT-1.5.5-1"),
        ("30 08 0001 61 80808080 01", MALFORMED, "more than four bytes"),
        ("30 06 0001 61 02 01 02", PROTOCOL, "payload_format_indicator 2, expected 0 or 1"),
        ("30 08 0001 61 04 0101 0101", PROTOCOL, "more than one payload_format_indicator"),
        ("30 0a 0001 61 06 23 0001 23 0002", PROTOCOL, "more than one topic_alias"),
        ("30 07 0001 61 03 23 0000", ReasonCode.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
        ("30 06 0001 61 02 0b 00", PROTOCOL, "subscription_identifiers 0"),
        ("30 08 0001 61 04 08 0001 2b", NAME, "MQTT-3.3.2-14"),
        ("30 08 0001 61 04 08 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        ("30 08 0001 61 04 03 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        ("30 0b 0001 61 07 26 0001 61 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        ("30 0b 0001 61 07 26 0001 00 0001 61", MALFORMED, "MQTT-1.5.4-2"),
        ("30 06 0003 eda080 00", MALFORMED, "MQTT-1.5.4-1"),
        ("30 04 0001 00 00", MALFORMED, "MQTT-1.5.4-2"),
        ("30 04 0001 2b 00", NAME, "MQTT-3.3.2-2"),
        ("30 03 0000 00", PROTOCOL, "neither a topic name nor a topic alias"),
        ("36 06 0001 61 0001 00", MALFORMED, "MQTT-3.3.1-4"),
        ("38 04 0001 61 00", MALFORMED, "MQTT-3.3.1-2"),
        ("30 03 0001 61", MALFORMED, "PUBLISH ends inside its property length"),
        ("82 03 0001 00", PROTOCOL, "MQTT-3.8.3-2"),
        ("82 07 0001 00 0001 61 40", MALFORMED, "MQTT-3.8.3-5"),
        ("82 07 0001 00 0001 61 80", MALFORMED, "MQTT-3.8.3-5"),
        ("82 07 0001 00 0001 61 03", PROTOCOL, "no QoS or retain handling is 3"),
        ("82 07 0001 00 0001 61 30", PROTOCOL, "no QoS or retain handling is 3"),
        ("82 07 0001 00 0001 ff 00", MALFORMED, "MQTT-1.5.4-1"),
        ("82 06 0001 00 0000 00", FILTER, "MQTT-4.7.3-1"),
        ("82 08 0001 00 0002 612b 00", FILTER, "MQTT-4.7.1-3"),
        ("82 0a 0001 00 0004 612f2361 00", FILTER, "MQTT-4.7.1-2"),
        ("82 10 0001 00 000a 2473686172652f2f61 62 00", FILTER, "MQTT-4.8.2-1"),
        ("82 0e 0001 00 0008 2473686172652f67 00", FILTER, "MQTT-4.8.2-2"),
        ("82 0f 0001 00 0009 2473686172652f672f 00", FILTER, "MQTT-4.8.2-2"),
        ("82 10 0001 00 000a 2473686172652f2b2f61 00", FILTER, "MQTT-4.8.2-1"),
        ("82 10 0001 00 000a 2473686172652f672f61 04", PROTOCOL, "MQTT-3.8.3-4"),
        ("82 0b 0001 04 0b 01 0b 02 0001 61 00", PROTOCOL, "more than one subscription_identifiers"),
        ("82 09 0001 02 0b 00 0001 61 00", PROTOCOL, "subscription_identifiers 0"),
        ("a2 03 0001 00", PROTOCOL, "MQTT-3.10.3-2"),
        ("a2 06 0001 00 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        ("b0 03 0001 00", MALFORMED, "MQTT-3.11.3-1"),
        ("b0 04 0001 00 01", MALFORMED, "MQTT-3.11.3-1"),
        ("90 04 0001 00 03", MALFORMED, "MQTT-3.9.3-1"),
        ("20 03 00 01 00", PROTOCOL, "MQTT-3.2.2-8"),
        ("20 03 01 80 00", MALFORMED, "MQTT-3.2.2-6"),
        ("20 03 02 00 00", MALFORMED, "MQTT-3.2.2-1"),
        ("e0 01 01", PROTOCOL, "DISCONNECT with reason code 0x01"),
        ("e0 0c 00 0a 11 00000001 11 00000002", PROTOCOL, "more than one session_expiry_interval"),
        ("f0 01 00", MALFORMED, "AUTH ends inside its property length"),
        ("f0 02 01 00", PROTOCOL, "AUTH with reason code 0x01"),
        ("f0 06 18 04 16 0001 78", PROTOCOL, "authentication data but no authentication method"),
        ("c0 01 00", MALFORMED, "follow the last field of PINGREQ"),
        ("30 ffffff7f", ReasonCode.PACKET_TOO_LARGE, "the limit is"),
        ("30 ffffffff", MALFORMED, "more than four bytes"),
        # CONNECT, which CONNACK answers
        (f"10 0e {CONNECT_5} 03 003c 00 0001 61", MALFORMED, "MQTT-3.1.2-3"),
        (f"10 0e {CONNECT_5} 0a 003c 00 0001 61", MALFORMED, "MQTT-3.1.2-11"),
        (f"10 0e {CONNECT_5} 22 003c 00 0001 61", MALFORMED, "MQTT-3.1.2-13"),
        (f"10 14 {CONNECT_5} 1e 003c 00 0001 61 00 0001 61 0000", MALFORMED, "MQTT-3.1.2-12"),
        (f"10 14 {CONNECT_5} 06 003c 00 0001 61 00 0001 23 0000", NAME, "MQTT-3.3.2-2"),
        (f"10 14 {CONNECT_5} 06 003c 00 0001 61 00 0001 ff 0000", MALFORMED, "MQTT-1.5.4-1"),
        (f"10 0e {CONNECT_5} 02 003c 00 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        (f"10 11 {CONNECT_5} 82 003c 00 0001 61 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
        (f"10 0e {CONNECT_5} 42 003c 00 0001 61", MALFORMED, "CONNECT ends inside its password"),
        (f"10 11 {CONNECT_5} 02 003c 03 21 0000 0001 61", PROTOCOL, "receive_maximum 0"),
        (f"10 13 {CONNECT_5} 02 003c 05 27 00000000 0001 61", PROTOCOL, "maximum_packet_size 0"),
        (f"10 10 {CONNECT_5} 02 003c 02 19 02 0001 61", PROTOCOL, "request_response_information 2"),
        (f"10 10 {CONNECT_5} 02 003c 02 17 02 0001 61", PROTOCOL, "request_problem_information 2"),
        (f"10 12 {CONNECT_5} 02 003c 04 1700 1700 0001 61", PROTOCOL, "more than one request_problem_information"),
        (f"10 11 {CONNECT_5} 02 003c 03 16 0000 0001 61", PROTOCOL, "authentication data but no authentication method"),
        (f"10 13 {CONNECT_5} 02 003c 05 18 00000000 0001 61", MALFORMED, "property 0x18 will_delay_interval"),
        (f"10 19 {CONNECT_5} 06 003c 00 0001 61 05 11 00000000 0001 61 0000", MALFORMED, "a will with property 0x11"),
        (f"10 0f {CONNECT_5} 02 003c 00 0001 61 00", MALFORMED, "follow the last field of CONNECT"),
    ],
)
def test_faults_of_mqtt_5_name_their_rule_and_reason_code(hexadecimal: str, code: ReasonCode, says: str) -> None:
    """v5 [MQTT-1.5.4-1], [MQTT-1.5.4-2], [MQTT-1.5.5-1], [MQTT-1.5.7-1], [MQTT-2.1.3-1], [MQTT-2.2.1-3],
    [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-12], [MQTT-3.1.2-13], [MQTT-3.1.2-16], [MQTT-3.1.2-18], [MQTT-3.1.3-4],
    [MQTT-3.1.3-11], [MQTT-3.1.3-12], [MQTT-3.1.4-1], [MQTT-3.2.2-15], [MQTT-3.3.1-2], [MQTT-3.3.1-4], [MQTT-3.3.2-1],
    [MQTT-3.3.2-2], [MQTT-3.3.2-8], [MQTT-3.3.2-13], [MQTT-3.3.2-14], [MQTT-3.3.2-19], [MQTT-3.6.1-1], [MQTT-3.8.1-1],
    [MQTT-3.8.3-1], [MQTT-3.8.3-2], [MQTT-3.8.3-4], [MQTT-3.8.3-5], [MQTT-3.10.1-1], [MQTT-3.10.3-1], [MQTT-3.10.3-2],
    [MQTT-3.14.1-1], [MQTT-3.15.1-1], [MQTT-4.7.0-1], [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1],
    [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    with pytest.raises(MqttError) as caught:
        decode(bytes.fromhex(hexadecimal), 0, REMAINING_LENGTH_MAX, 5)
    assert says in str(caught.value)
    assert caught.value.code is code
    kind = ConnectRefused if hexadecimal.startswith("10") else (MalformedPacket, ProtocolViolation)
    assert isinstance(caught.value, kind)
    if isinstance(caught.value, ConnectRefused):
        assert caught.value.version == 5


@pytest.mark.parametrize(
    "packet", [kind for kind in PacketType if kind not in (PacketType.PINGREQ, PacketType.PINGRESP)]
)
@pytest.mark.parametrize("identifier", [*TABLE, 0, 4, 0x2B, 127])
def test_each_packet_takes_the_properties_of_its_table_and_no_other(packet: PacketType, identifier: int) -> None:
    """Section 2.2.2.2: an identifier that is not valid for its packet type makes it malformed."""
    prefix, tail = {
        PacketType.WILL: ("10 %s 0004 4d515454 05 06 0000 00 0000", "0001 61 0000"),
        PacketType.CONNECT: ("10 %s 0004 4d515454 05 02 0000", "0001 61"),
        PacketType.CONNACK: ("20 %s 00 00", ""),
        PacketType.PUBLISH: ("30 %s 0001 61", ""),
        PacketType.PUBACK: ("40 %s 0001 00", ""),
        PacketType.PUBREC: ("50 %s 0001 00", ""),
        PacketType.PUBREL: ("62 %s 0001 00", ""),
        PacketType.PUBCOMP: ("70 %s 0001 00", ""),
        PacketType.SUBSCRIBE: ("82 %s 0001", "0001 61 00"),
        PacketType.SUBACK: ("90 %s 0001", "00"),
        PacketType.UNSUBSCRIBE: ("a2 %s 0001", "0001 61"),
        PacketType.UNSUBACK: ("b0 %s 0001", "00"),
        PacketType.DISCONNECT: ("e0 %s 00", ""),
        PacketType.AUTH: ("f0 %s 00", ""),
    }[packet]
    value = {
        "TEXT": "0001 61",
        "BINARY": "0001 61",
        "PAIR": "0001 61 0001 62",
        "TWO_BYTES": "0001",
        "FOUR_BYTES": "00000001",
    }.get(TABLE[identifier][1].name if identifier in TABLE else "BYTE", "01")
    field = bytes([identifier]) + bytes.fromhex(value)
    if identifier == 0x16:
        field += bytes.fromhex("15 0001 61")
    first, _, body = prefix.partition("%s")
    data = bytes.fromhex(body) + bytes([len(field)]) + field + bytes.fromhex(tail)
    data = bytes.fromhex(first) + bytes([len(data)]) + data
    if identifier in TABLE and packet in TABLE[identifier][2]:
        decoded = decode(data, 0, LIMIT, 5)
        assert decoded is not None
        holder: Any = decoded[0]
        if packet is PacketType.WILL:
            holder = holder.will
        assert getattr(holder.properties, TABLE[identifier][0]) not in (None, ())
    else:
        with pytest.raises(MqttError) as caught:
            decode(data, 0, LIMIT, 5)
        assert caught.value.code is MALFORMED


def test_a_password_without_a_user_name_is_allowed_in_mqtt_5() -> None:
    decoded = decode(bytes.fromhex("10 0f 0004 4d515454 05 42 0000 00 0000 0000"), 0, LIMIT)
    assert decoded is not None
    assert decoded[0] == Connect("", password=b"", version=5)


@pytest.mark.parametrize(
    ("hexadecimal", "version"),
    [("10 0f 0006 4d5149736470 83 02 003c 0001 61", 3), ("10 0d 0004 4d515454 84 02 003c 0001 61", 4)],
)
def test_bridges_of_mosquitto_set_a_bit_in_the_version(hexadecimal: str, version: int) -> None:
    data = bytes.fromhex(hexadecimal)
    packet = Connect("a", True, 60, version=version, bridge=True)
    assert decode(data, 0, LIMIT) == (packet, len(data))
    assert encode(packet) == data


@pytest.mark.parametrize(
    ("hexadecimal", "version"),
    [
        ("10 0f 0006 4d5149736470 04 02 003c 0001 61", 4),
        ("10 0d 0004 4d515454 03 02 003c 0001 61", 4),
        ("10 0d 0004 4d515454 00 02 003c 0001 61", 4),
        ("10 0f 0006 4d5149736470 84 02 003c 0001 61", 5),
        ("10 0d 0004 4d515454 83 02 003c 0001 61", 5),
        ("10 0e 0004 4d515454 85 02 003c 00 0001 61", 5),
        ("10 0e 0004 4d515454 06 02 003c 00 0001 61", 5),
        ("10 0e 0004 4d515454 ff 02 003c 00 0001 61", 5),
    ],
)
def test_other_protocol_versions_are_refused_in_words_that_the_client_knows(hexadecimal: str, version: int) -> None:
    """v5 [MQTT-3.1.2-2]; v3 [MQTT-3.1.2-2]: code 1 before 5.0, 0x84 after it."""
    with pytest.raises(ConnectRefused) as caught:
        decode(bytes.fromhex(hexadecimal), 0, LIMIT)
    assert caught.value.code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert "MQTT-3.1.2-2" in str(caught.value)
    answer = encode(ConnAck(False, caught.value.code), caught.value.version)
    assert answer == bytes.fromhex("20 03 00 84 00" if version == 5 else "20 02 00 01")


def test_other_protocols_are_not_answered() -> None:
    """v5 [MQTT-3.1.2-1]; v3 [MQTT-3.1.2-1]."""
    with pytest.raises(MalformedPacket, match="protocol name b'MQTX'"):
        decode(bytes.fromhex("10 0e 0004 4d515458 05 02 003c 00 0001 61"), 0, LIMIT)


def test_mqtt_3_1_is_read_and_answered_as_it_was() -> None:
    data = bytes.fromhex("10 0f 0006 4d5149736470 03 02 003c 0001 61")
    packet = Connect("a", keep_alive_s=60, version=3)
    assert decode(data, 0, LIMIT) == (packet, len(data))
    assert encode(packet) == data
    assert decode(bytes.fromhex("6a 02 0001"), 0, LIMIT, 3) == (PubRel(1), 4)  # with DUP
    repeated = Subscribe(1, (Subscription("a", 1),))
    assert decode(bytes.fromhex("8a 06 0001 0001 61 01"), 0, LIMIT, 3) == (repeated, 8)
    with pytest.raises(MalformedPacket):
        decode(bytes.fromhex("6e 02 0001"), 0, LIMIT, 3)
    assert encode(ConnAck(True, 0), 3) == bytes.fromhex("20 02 00 00")  # session present came with 3.1.1


@pytest.mark.parametrize(
    ("code", "says"), [(0, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x89, 3), (0x97, 3), (0x86, 4), (0x87, 5), (0x8A, 5)]
)
def test_reason_codes_are_told_in_the_words_of_3_1_1(code: int, says: int) -> None:
    """v5 [MQTT-3.2.2-6]; v3 [MQTT-3.2.2-4], [MQTT-3.9.3-2]."""
    assert encode(ConnAck(False, code)) == bytes([0x20, 2, 0, says])
    assert encode(SubAck(1, (code,))) == bytes([0x90, 3, 0, 1, 0x80 if code else 0])
    assert encode(PubAck(1, code)) == bytes.fromhex("40 02 0001")
    assert encode(Disconnect(code)) == bytes.fromhex("e0 00")


def test_the_longest_topic_is_read() -> None:
    """v5 [MQTT-4.7.3-3]; v3 [MQTT-4.7.3-3]: two bytes of length hold no more."""
    topic = b"x" * 65_535
    data = b"\x30" + encode_length(2 + 65_535) + b"\xff\xff" + topic
    decoded = decode(data, 0, LIMIT)
    assert decoded is not None
    assert decoded[0].topic == topic  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, REMAINING_LENGTH_MAX])
def test_remaining_lengths_of_table_2_4(length: int) -> None:
    encoded = encode_length(length)
    total = 1 + len(encoded) + length
    assert packet_end(b"\x30" + encoded, 0, total) == (1 + len(encoded), total)
    with pytest.raises(MalformedPacket, match="the limit is"):
        packet_end(b"\x30" + encoded, 0, total - 1)  # known from the fixed header alone, before any body


@pytest.mark.parametrize("payload_bytes", [0, 100, 200, 20_000])
def test_packets_over_the_limit_are_refused_on_their_fixed_header(payload_bytes: int) -> None:
    """v5 [MQTT-3.2.2-15]."""
    data = encode(Publish(b"a", bytes(payload_bytes)))
    assert decode(data, 0, len(data)) is not None
    for known in (data, data[:5]):
        with pytest.raises(MalformedPacket, match="the limit is") as caught:
            decode(known, 0, len(data) - 1)
        assert caught.value.code is ReasonCode.PACKET_TOO_LARGE


def test_a_length_that_mqtt_cannot_carry_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="MQTT has room for"):
        encode_length(REMAINING_LENGTH_MAX + 1)


def test_longer_than_necessary_lengths_are_read() -> None:
    assert decode(bytes.fromhex("40 8200 0001"), 0, LIMIT) == (PubAck(1), 5)


def _many(packet: str, count: int) -> Packet:
    match packet:
        case "SUBSCRIBE":
            return Subscribe(1, (Subscription("a"),) * count)
        case "UNSUBSCRIBE":
            return Unsubscribe(1, ("a",) * count)
    properties = Properties(user_properties=(("a", "b"),) * count)
    return (
        Connect("c", properties=properties, version=5)
        if packet == "CONNECT"
        else Publish(b"t", b"", properties=properties)
    )


@pytest.mark.parametrize(
    ("packet", "count_max"),
    [
        ("SUBSCRIBE", FILTERS_MAX),
        ("UNSUBSCRIBE", FILTERS_MAX),
        ("PUBLISH", PROPERTIES_MAX),
        ("CONNECT", PROPERTIES_MAX),
    ],
)
def test_fields_of_one_packet_are_bounded(packet: str, count_max: int) -> None:
    """Decoding the 262,144 filters that 1 MiB has room for would keep all other clients waiting."""
    assert decode(encode(_many(packet, count_max), 5), 0, LIMIT, 5) is not None
    with pytest.raises(MqttError, match=f"more than {count_max} .*s; s") as caught:
        decode(encode(_many(packet, count_max + 1), 5), 0, LIMIT, 5)
    assert caught.value.code is ReasonCode.QUOTA_EXCEEDED


# --- encoder


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


# --- reassembly


def receive(reads: list[bytes]) -> list[Packet]:
    """Decode a stream that comes in these reads, as a server does."""
    partial, packets = Reassembly(LIMIT), []
    for data in reads:
        at = 0
        if partial:
            whole, at = partial.complete(data)
            if whole:
                decoded = decode(whole, 0, LIMIT)
                assert decoded is not None
                assert decoded[1] == len(whole)
                packets.append(decoded[0])
        while (decoded := decode(data, at, LIMIT)) is not None:
            packets.append(decoded[0])
            at = decoded[1]
        if at < len(data):
            assert not partial
            partial.keep(data[at:])
    assert not partial
    return packets


@given(st.lists(PACKETS, max_size=5), st.data())
@settings(deadline=None)
def test_any_cuts_give_the_same_packets(packets: list[Packet], data: st.DataObject) -> None:
    stream = b"".join(map(encode, packets))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)]) if start < end]
    assert receive(reads) == packets


@given(st.lists(PACKETS, min_size=1, max_size=3))
@settings(deadline=None)
def test_byte_by_byte(packets: list[Packet]) -> None:
    stream = b"".join(map(encode, packets))
    assert receive([stream[at : at + 1] for at in range(len(stream))]) == packets


def test_a_packet_over_the_limit_is_refused_before_it_is_kept() -> None:
    with pytest.raises(MalformedPacket, match="the limit is 100"):
        Reassembly(100).keep(b"\x30\x63")
    partial = Reassembly(100)
    partial.keep(b"\x30")
    with pytest.raises(MalformedPacket, match="the limit is 100"):
        partial.complete(b"\x63" + bytes(50))


def test_a_length_without_end_is_refused() -> None:
    partial = Reassembly(LIMIT)
    partial.keep(b"\x30\xff\xff")
    with pytest.raises(MalformedPacket, match="more than four bytes"):
        partial.complete(b"\xff\xff")


# --- packet ids


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([1, 2, 7, 8, 9, 255, 256, 65_534, 65_535]))))
def test_behaves_as_a_set(steps: list[tuple[bool, int]]) -> None:
    ids, model = PacketIds(), set()
    for add, packet_id in steps:
        if add:
            assert ids.add(packet_id) is (packet_id not in model)
            model.add(packet_id)
        else:
            ids.discard(packet_id)
            model.discard(packet_id)
        assert len(ids) == len(model)
        assert (packet_id in ids) is (packet_id in model)
        assert list(ids) == sorted(model)


def test_all_of_them_come_back() -> None:
    ids = PacketIds()
    assert list(ids) == []
    for packet_id in range(PACKET_IDS_MAX, 0, -1):
        ids.add(packet_id)
    assert list(ids) == list(range(1, PACKET_IDS_MAX + 1))
