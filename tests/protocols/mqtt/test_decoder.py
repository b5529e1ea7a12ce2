import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.mqtt.decoder import decode, packet_end
from protocols.mqtt.encoder import REMAINING_LENGTH_MAX, encode, encode_length
from protocols.mqtt.errors import ConnectCode, ConnectRefused, MalformedPacket, MqttError
from protocols.mqtt.packets import Packet, PubAck
from tests.protocols.mqtt.strategies import PACKETS, VECTORS

LIMIT = 1 << 20


@pytest.mark.parametrize(("hexadecimal", "packet"), VECTORS)
def test_vectors_in_both_directions(hexadecimal: str, packet: Packet) -> None:
    data = bytes.fromhex(hexadecimal)
    assert encode(packet) == data
    assert decode(data, 0, LIMIT) == (packet, len(data))


@pytest.mark.parametrize(("hexadecimal", "packet"), VECTORS)
def test_a_packet_cut_short_needs_more(hexadecimal: str, packet: Packet) -> None:
    data = bytes.fromhex(hexadecimal)
    assert all(decode(data[:cut], 0, LIMIT) is None for cut in range(len(data)))


@pytest.mark.parametrize(("hexadecimal", "packet"), VECTORS)
def test_a_field_cut_short_inside_a_complete_packet_is_an_error(hexadecimal: str, packet: Packet) -> None:
    data = bytes.fromhex(hexadecimal)
    for length in range(data[1]):
        shorter = bytes([data[0], length]) + data[2 : 2 + length]
        try:
            decoded = decode(shorter, 0, LIMIT)
        except MqttError:
            continue
        assert decoded is not None, "a complete packet must not ask for more"
        assert encode(decoded[0]) == shorter


@given(PACKETS, st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip_at_any_offset(packet: Packet, before: bytes, after: bytes) -> None:
    data = encode(packet)
    assert decode(before + data + after, len(before), LIMIT) == (packet, len(before) + len(data))


@given(PACKETS, st.data())
def test_flipped_bytes_raise_nothing_but_protocol_errors(packet: Packet, data: st.DataObject) -> None:
    damaged = bytearray(encode(packet))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_outcome(bytes(damaged))


@given(st.binary(max_size=40))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    check_outcome(data)


def check_outcome(data: bytes) -> None:
    try:
        decoded = decode(data, 0, LIMIT)
    except MqttError:
        return
    if decoded is None:
        place = packet_end(data, 0, LIMIT)
        assert place is None or place[1] > len(data)
    else:
        packet, end = decoded
        assert decode(encode(packet), 0, LIMIT) == (packet, len(encode(packet)))
        assert 2 <= end <= len(data)


@pytest.mark.parametrize(
    ("hexadecimal", "says"),
    [
        ("00 00", "packet type 0 is reserved"),
        ("f0 00", "packet type 15 is reserved"),
        ("c1 00", "MQTT-2.2.2-2"),
        ("60 02 0001", "MQTT-2.2.2-2"),
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
        ("30 ffffffff", "more than four bytes"),
    ],
)
def test_malformed_packets_name_the_rule_they_break(hexadecimal: str, says: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode(bytes.fromhex(hexadecimal), 0, REMAINING_LENGTH_MAX + 5)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "hexadecimal",
    [
        "10 0f 0006 4d5149736470 03 02 003c 0001 61",  # MQTT 3.1
        "10 0e 0004 4d515454 05 02 003c 00 0001 61",  # MQTT 5.0
        "10 0d 0004 4d515454 84 02 003c 0001 61",  # the bridge bit of Mosquitto
    ],
)
def test_other_protocol_versions_are_refused_with_code_1(hexadecimal: str) -> None:
    with pytest.raises(ConnectRefused) as caught:
        decode(bytes.fromhex(hexadecimal), 0, LIMIT)
    assert caught.value.code is ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION
    assert "MQTT-3.1.2-2" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, REMAINING_LENGTH_MAX])
def test_remaining_lengths_of_table_2_4(length: int) -> None:
    encoded = encode_length(length)
    total = 1 + len(encoded) + length
    assert packet_end(b"\x30" + encoded, 0, total) == (1 + len(encoded), total)
    with pytest.raises(MalformedPacket, match="the limit is"):
        packet_end(b"\x30" + encoded, 0, total - 1)  # known from the fixed header alone, before any body


def test_a_length_that_mqtt_cannot_carry_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="MQTT has room for"):
        encode_length(REMAINING_LENGTH_MAX + 1)


def test_longer_than_necessary_lengths_are_read() -> None:
    assert decode(bytes.fromhex("40 8200 0001"), 0, LIMIT) == (PubAck(1), 5)
