"""CONNECT and CONNACK (sections 3.1 and 3.2)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import PACKET_BYTES_MAX, Connect
from tests.conformance.raw_client import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Client,
    Packet,
    Will,
    acknowledge,
    connect,
    packet,
    properties,
    publish,
    string,
    subscribe,
)


def refusal(client: Client) -> Packet | None:
    """The CONNACK that refuses, if the server says why before it closes."""
    packets = client.closed()
    assert len(packets) <= 1, packets
    if not packets:
        return None
    (answer,) = packets
    assert answer.kind == CONNACK
    assert not answer.session_present, "v3 [MQTT-3.2.2-4], v5 [MQTT-3.2.2-6]"
    assert answer.reason >= (0x80 if client.version == 5 else 1)
    return answer


def test_connack_is_the_first_packet_and_says_accepted(client: Connect, version: int) -> None:
    """[MQTT-3.2.0-1], v3 [MQTT-3.1.4-4], v5 [MQTT-3.1.4-5] [MQTT-3.2.0-2] [MQTT-3.2.2-1]"""
    opened = client(version)
    answer = opened.connect("")
    assert not answer.session_present
    opened.nothing()


def test_mqtt_3_1_connects(client: Connect) -> None:
    """Clients of MQTT 3.1 call the protocol MQIsdp, level 3."""
    old = client(3)
    old.connect("old-client")
    assert old.subscribe("live/old", 1) == 1
    old.publish("live/old", b"x", 1)
    assert old.message().payload == b"x"


@pytest.mark.parametrize("header", [0x10, 0x11, 0x16, 0x18, 0x1F])
@pytest.mark.parametrize("flags", [0b11, 0b0011_1010, 0b0010_0010, 0b0001_0011])
def test_mqtt_3_1_has_bits_that_it_does_not_use(client: Connect, header: int, flags: int) -> None:
    """MQTT 3.1, section 3.1: DUP, QoS and RETAIN of CONNECT, its connect flag 0, and will QoS and will retain without a
    will are not used; no client has to leave them 0"""
    old = client(3)
    sent = connect("old-client", version=3, flags=flags)
    old.send(bytes([header]) + sent[1:])
    answer = old.next()
    assert (answer.kind, answer.reason) == (CONNACK, 0)
    old.subscribe("live/old", 1)
    old.publish("live/old", b"x", 1)
    assert old.message().payload == b"x"


def test_flags_that_mqtt_3_1_does_use(client: Connect) -> None:
    """MQTT 3.1, section 3.1: a will at QoS 3, and a password without a user name, are still faults"""
    body = string("MQIsdp") + bytes([3, 0b0001_1110, 0, 0]) + string("name") + string("will") + string("x")
    opened = client(3)
    opened.send(packet(1, 0, body))
    refusal(opened)
    opened = client(3)
    opened.send(connect("a", version=3, password=b"secret"))
    refusal(opened)


@pytest.mark.parametrize("first", [packet(12, 0, b""), publish("a", b""), subscribe(1, ("a", 0)), packet(14, 0, b"")])
def test_connect_must_come_first(client: Connect, first: bytes) -> None:
    """[MQTT-3.1.0-1], v5 [MQTT-3.14.0-1]: nothing is answered, no DISCONNECT either"""
    opened = client()
    opened.send(first)
    assert opened.closed() == []


def test_a_second_connect_is_a_violation(connected: Connect, version: int, client_id: str) -> None:
    """[MQTT-3.1.0-2], v5 [MQTT-3.2.0-2]"""
    opened = connected(client_id, version)
    opened.send(connect(client_id, version=version))
    opened.refused(0x82)


@pytest.mark.parametrize("name", ["MQTX", "mqtt", "", "MQTTT", b"\xff\xff"])
def test_wrong_protocol_name(client: Connect, version: int, name: str | bytes) -> None:
    """[MQTT-3.1.2-1]"""
    opened = client(version)
    opened.send(connect("a", version=version, name=name))
    answer = refusal(opened)
    assert answer is None or answer.reason in (0x84, 0x81, 0x82, 1)


@pytest.mark.parametrize("level", [0, 2, 6, 255])
def test_unknown_protocol_level(client: Connect, level: int) -> None:
    """[MQTT-3.1.2-2], v3 [MQTT-3.1.4-5]: a CONNACK says so, in the format nearest to the client's"""
    opened = client(5 if level > 5 else 4)
    opened.send(packet(1, 0, string("MQTT") + bytes([level, 2, 0, 0]) + string("")))
    (answer,) = opened.closed()
    assert answer.reason == (0x84 if level > 5 else 1)


def test_mqisdp_with_the_level_of_another_version(client: Connect) -> None:
    """[MQTT-3.1.2-1] [MQTT-3.1.2-2]"""
    opened = client(4)
    opened.send(connect("a", version=4, name="MQIsdp"))
    refusal(opened)


def test_reserved_connect_flag(client: Connect, version: int) -> None:
    """[MQTT-3.1.2-3]"""
    opened = client(version)
    opened.send(connect("a", version=version, flags=0b11))
    refusal(opened)


@pytest.mark.parametrize(
    "flags", [0b0000_1010, 0b0001_0010, 0b0010_0010, 0b0001_1110], ids=["qos 1", "qos 2", "retain", "qos 3"]
)
def test_will_flags_that_contradict(client: Connect, version: int, flags: int) -> None:
    """v3 [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT-3.1.2-14] [MQTT-3.1.2-15],
    v5 [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]: will QoS or retain without the will flag; QoS 3"""
    opened = client(version)
    body = string("MQTT") + bytes([version, flags, 0, 0])
    section = properties(None) if version == 5 else b""
    will = section + string("will") + string("x") if flags & 4 else b""
    opened.send(packet(1, 0, body + section + string("name") + will))
    refusal(opened)


def test_password_without_a_user_name(client: Connect) -> None:
    """v3 [MQTT-3.1.2-22]"""
    opened = client(4)
    opened.send(connect("a", version=4, password=b"secret"))
    refusal(opened)


def test_password_without_a_user_name_is_allowed_in_mqtt_5(client: Connect) -> None:
    """v5 section 3.1.2.9: the flags are independent; what is refused here is refused for what it says"""
    opened = client(5)
    opened.send(connect("a5pw", version=5, password=b"secret"))
    answer = opened.next()
    assert answer.reason in (0, 0x86, 0x87)


@pytest.mark.parametrize("flags", [0b1000_0010, 0b1100_0010, 0b0000_0110], ids=["user", "password", "will"])
def test_fields_that_the_flags_promise_are_missing(client: Connect, version: int, flags: int) -> None:
    """v3 [MQTT-3.1.2-9] [MQTT-3.1.2-19] [MQTT-3.1.2-21] [MQTT-3.1.3-1],
    v5 [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT-3.1.3-1]"""
    opened = client(version)
    opened.send(connect("name", version=version, flags=flags))
    refusal(opened)


def test_bytes_after_the_last_field(client: Connect, version: int) -> None:
    """v3 [MQTT-3.1.2-11] [MQTT-3.1.2-18] [MQTT-3.1.2-20], v5 [MQTT-3.1.2-16] [MQTT-3.1.2-18]: what no flag
    promised must not be there"""
    opened = client(version)
    opened.send(connect("name", version=version, username="user", flags=0b10))
    refusal(opened)


@pytest.mark.parametrize(
    "bad",
    [connect("a", flags=0b11), connect("XX").replace(b"XX", b"\xc3("), connect("a", name="MQTX"), connect("a")[:-1]],
    ids=["reserved flag", "utf-8", "name", "cut"],
)
def test_a_connect_for_which_3_1_1_has_no_code_is_not_answered(client: Connect, bad: bytes) -> None:
    """v3 [MQTT-3.1.4-1] [MQTT-3.2.2-6] [MQTT-3.1.2-3]: closed, without CONNACK"""
    opened = client(4)
    opened.send(bytes([bad[0], len(bad) - 2]) + bad[2:])
    assert opened.closed() == []


def test_client_id_is_missing(client: Connect, version: int) -> None:
    """[MQTT-3.1.3-3]"""
    opened = client(version)
    opened.send(packet(1, 0, string("MQTT") + bytes([version, 2, 0, 0]) + (b"\x00" if version == 5 else b"")))
    refusal(opened)


@pytest.mark.parametrize("field", ["client_id", "will", "username"])
def test_fields_that_are_not_utf8(client: Connect, version: int, field: str) -> None:
    """[MQTT-3.1.3-4], v3 [MQTT-3.1.3-10] [MQTT-3.1.3-11], v5 [MQTT-3.1.3-11] [MQTT-3.1.3-12]"""
    opened = client(version)
    bad = connect(
        "XXXX" if field == "client_id" else "good",
        version=version,
        will=Will("XXXX") if field == "will" else None,
        username="XXXX" if field == "username" else None,
    )
    opened.send(bad.replace(b"XXXX", b"\xed\xa0\x80x"))
    refusal(opened)


def test_null_character_in_the_client_id(client: Connect, version: int) -> None:
    """v3 [MQTT-1.5.3-2], v5 [MQTT-1.5.4-2]"""
    opened = client(version)
    opened.send(connect("a\0b", version=version))
    refusal(opened)


@pytest.mark.parametrize("name", ["a", "0123456789abcdefghijklm", "ABCDEFGHIJKLMNOPQRSTUVW", "x" * 64, "naïve/名前"])
def test_client_ids_that_are_accepted(client: Connect, version: int, name: str) -> None:
    """[MQTT-3.1.3-5]: 1 to 23 letters and digits must be, more may be"""
    client(version).connect(name)


@pytest.mark.parametrize("other", ["CASE", "case ", "case/", "cas", "case\u0301"], ids=ascii)
def test_each_client_id_has_a_session_of_its_own(
    client: Connect, connected: Connect, version: int, client_id: str, other: str
) -> None:
    """[MQTT-3.1.3-2]: identifiers are compared as they are; what is one session's is not another's"""
    options = {"clean": False, "properties_": {"session_expiry_interval": 60} if version == 5 else None}
    names = [f"{client_id}case", f"{client_id}{other}"]
    for name in names:
        opened = client(version)
        assert not opened.connect(name, **options).session_present
        opened.subscribe(f"kept/{client_id}/{name.encode().hex()}", 1)
        opened.disconnect()
    publisher = connected(version=version)
    for name in names:
        publisher.publish(f"kept/{client_id}/{name.encode().hex()}", name.encode(), 1)
    both = [client(version) for _ in names]
    for opened, name in zip(both, names, strict=True):
        assert opened.connect(name, **options).session_present
        assert opened.message().payload == name.encode()
    both[0].nothing()
    both[1].nothing(0.01)  # and meanwhile the other one got nothing either


def test_clean_start_while_the_client_is_there(client: Connect, connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.4-4] [MQTT-3.1.4-3] [MQTT-3.1.2-4] [MQTT-3.2.2-2]: the old connection is closed with a reason, the
    session with all that it was owed is gone, and a new one begins"""
    session = {"session_expiry_interval": 60}
    first, publisher = connected(client_id, 5, properties_=session), connected(version=5)
    first.subscribe(topic, 2)
    publisher.publish(topic, b"unacknowledged", 2)
    first.take(PUBLISH)
    first.send(publish("live/unfinished", b"", version=5, qos=2, packet_id=7))
    first.take(PUBREC)
    second = client(5)
    assert not second.connect(client_id, clean=True, properties_=session).session_present
    first.refused(0x8E)
    publisher.publish(topic, b"no", 1)
    second.nothing()
    second.send(acknowledge(PUBREL, 7))
    assert second.take(PUBCOMP).reason == 0x92
    second.subscribe(topic, 1)
    publisher.publish(topic, b"yes", 1)
    assert second.message().payload == b"yes"
    second.disconnect()
    assert client(5).connect(client_id, clean=False).session_present


def test_clean_start_of_one_client_is_not_another_s(client: Connect, connected: Connect, client_id: str) -> None:
    """v5 [MQTT-3.1.4-4] [MQTT-3.1.3-2]"""
    session = {"session_expiry_interval": 60}
    for name in ("a", "b"):
        connected(f"{client_id}{name}", 5, properties_=session).disconnect()
    connected(f"{client_id}a", 5, clean=True)
    assert client(5).connect(f"{client_id}b", clean=False).session_present


def test_characters_at_the_edges_of_utf8(client: Connect, connected: Connect, version: int, client_id: str) -> None:
    """v3 [MQTT-1.5.3-1] [MQTT-1.5.3-3], v5 [MQTT-1.5.4-1] [MQTT-1.5.4-3]: everything but surrogates and U+0000 may be
    text, in identifiers as in topics, and comes out as it went in"""
    edges = "\u007f\u0080\u07ff\u0800\ud7ff\ue000\ufeff\ufffd\U00010000\U0010ffff"
    opened = client(version)
    opened.connect(client_id + edges, will=Will(f"live/{client_id}/{edges}", b"gone"))
    watching = connected(version=version)
    watching.subscribe(f"live/{client_id}/{edges}")
    opened.publish(f"live/{client_id}/{edges}", b"x")
    assert watching.message().topic == f"live/{client_id}/{edges}"
    opened.drop()
    message = watching.message()
    assert (message.topic, message.payload) == (f"live/{client_id}/{edges}", b"gone")


def test_empty_client_id_with_clean_session(client: Connect, version: int) -> None:
    """v3 [MQTT-3.1.3-6] [MQTT-3.1.3-7], v5 [MQTT-3.1.3-6]: each is a session of its own"""
    one, two = client(version), client(version)
    one.connect("")
    two.connect("")
    one.ping()
    two.ping()


def test_empty_client_id_without_clean_session(client: Connect) -> None:
    """v3 [MQTT-3.1.3-8] [MQTT-3.2.2-5]"""
    opened = client(4)
    opened.send(connect("", version=4, clean=False))
    answer = refusal(opened)
    assert answer is not None
    assert answer.reason == 2


@pytest.mark.parametrize("clean", [True, False])
def test_assigned_client_identifier(client: Connect, clean: bool) -> None:
    """v5 [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]: unique, and good for resuming the session"""
    options = {"clean": clean, "properties_": {"session_expiry_interval": 60}}
    first, second = client(5), client(5)
    names = [opened.connect("", **options).properties["assigned_client_identifier"] for opened in (first, second)]
    assert names[0] != names[1]
    first.drop()
    again = client(5)
    answer = again.connect(names[0], clean=False, properties_={"session_expiry_interval": 0})
    assert answer.session_present
    assert "assigned_client_identifier" not in answer.properties


def test_no_identifier_is_assigned_to_who_has_one(client: Connect, client_id: str) -> None:
    """v5 section 3.2.2.3.7"""
    assert "assigned_client_identifier" not in client(5).connect(client_id).properties


def test_packets_sent_right_behind_connect(client: Connect, version: int, live: str) -> None:
    """v3 section 3.1.4, v5 section 3.1.4: a client need not wait for CONNACK"""
    opened = client(version)
    opened.send(
        connect("", version=version), subscribe(1, (live, 0), version=version), publish(live, b"early", version=version)
    )
    assert opened.next().kind == CONNACK
    assert opened.message().payload == b"early"


def test_what_follows_a_refused_connect_is_not_processed(client: Connect, connected: Connect, live: str) -> None:
    """v3 [MQTT-3.1.4-5], v5 [MQTT-3.1.4-6]"""
    subscriber = connected()
    subscriber.subscribe(live)
    refused = client(4)
    refused.send(connect("", version=4, clean=False), publish(live, b"no"))
    refusal(refused)
    subscriber.nothing()


def test_a_connection_without_connect_gets_nothing(client: Connect) -> None:
    """[MQTT-3.2.0-1]: the server speaks when it is spoken to"""
    client().nothing()


# --- MQTT 5


def test_connack_tells_the_limits(client: Connect) -> None:
    """v5 section 3.2.2.3: what it does not say is as the specification's default"""
    answer = client(5).connect("")
    said = answer.properties
    assert said["maximum_packet_size"] == PACKET_BYTES_MAX
    assert 0 < said.get("receive_maximum", 65_535) <= 65_535
    assert said.get("topic_alias_maximum", 0) > 0
    for available in (
        "retain_available",
        "wildcard_subscription_available",
        "subscription_identifier_available",
        "shared_subscription_available",
    ):
        assert said.get(available, 1) == 1
    assert "maximum_qos" not in said, "2 is said by leaving it out (section 3.2.2.3.4)"
    assert "response_information" not in said, "[MQTT-3.1.2-28]"


BAD_CONNECT_PROPERTIES = {
    "unknown": b"\x7f\x00",
    "of publish": b"\x01\x00",
    "expiry twice": b"\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01",
    "receive maximum zero": b"\x21\x00\x00",
    "receive maximum twice": b"\x21\x00\x01\x21\x00\x01",
    "packet size zero": b"\x27\x00\x00\x00\x00",
    "packet size twice": b"\x27\x00\x00\x01\x00\x27\x00\x00\x01\x00",
    "alias maximum twice": b"\x22\x00\x01\x22\x00\x01",
    "response information 2": b"\x19\x02",
    "problem information 2": b"\x17\x02",
    "data without method": b"\x16\x00\x01x",
    "cut": b"\x11\x00",
}


@pytest.mark.parametrize("bad", BAD_CONNECT_PROPERTIES.values(), ids=BAD_CONNECT_PROPERTIES)
def test_properties_that_connect_may_not_have(client: Connect, bad: bytes) -> None:
    """v5 [MQTT-3.1.4-1] [MQTT-3.2.2-7] [MQTT-4.13.2-1]; section 3.1.2.11"""
    opened = client(5)
    opened.send(connect("name", version=5, properties_=bad))
    answer = refusal(opened)
    assert answer is not None
    assert answer.reason in (0x81, 0x82)


BAD_WILL_PROPERTIES = {
    "of connect": b"\x21\x00\x01",
    "delay twice": b"\x18\x00\x00\x00\x01\x18\x00\x00\x00\x01",
    "payload format 2": b"\x01\x02",
    "wildcard response topic": b"\x08" + string("a/#"),
    "alias": b"\x23\x00\x01",
}


@pytest.mark.parametrize("bad", BAD_WILL_PROPERTIES.values(), ids=BAD_WILL_PROPERTIES)
def test_properties_that_a_will_may_not_have(client: Connect, bad: bytes) -> None:
    """v5 [MQTT-3.1.4-1] [MQTT-3.3.2-14]; section 3.1.3.2"""
    opened = client(5)
    opened.send(connect("name", version=5, will=Will("live/will", properties=bad)))
    refusal(opened)


@pytest.mark.parametrize("topic", ["a/+", "#", ""])
def test_will_topics_that_are_none(client: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.2-2] [MQTT-4.7.3-1], v3 [MQTT-4.7.1-1], v5 [MQTT-4.7.0-1]: the will is published one day"""
    opened = client(version)
    opened.send(connect("name", version=version, will=Will(topic)))
    refusal(opened)


def test_enhanced_authentication_is_refused(client: Connect) -> None:
    """v5 [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT-3.1.2-30]"""
    opened = client(5)
    said = {"authentication_method": "SCRAM-SHA-1", "authentication_data": b"x"}
    opened.send(connect("name", version=5, properties_=said))
    answer = refusal(opened)
    assert answer is not None
    assert answer.reason == 0x8C


def test_auth_without_a_method_is_a_protocol_error(connected: Connect) -> None:
    """v5 [MQTT-4.12.0-6] [MQTT-3.15.1-1]"""
    opened = connected(version=5)
    opened.send(packet(15, 0, b"\x18" + properties({"authentication_method": "x"})))
    opened.refused(0x82)


def test_auth_flags(connected: Connect) -> None:
    """v5 [MQTT-3.15.1-1]"""
    opened = connected(version=5)
    opened.send(packet(15, 2, b""))
    opened.refused(0x81, 0x82)


def test_connect_takes_every_property_it_may_have(client: Connect) -> None:
    """v5 section 3.1.2.11, [MQTT-3.1.3-10]"""
    everything = {
        "session_expiry_interval": 0,
        "receive_maximum": 10,
        "maximum_packet_size": 100_000,
        "topic_alias_maximum": 5,
        "request_response_information": 1,
        "request_problem_information": 0,
        "user_property": [("a", "b"), ("a", "b")],
    }
    will = {
        "will_delay_interval": 0,
        "payload_format_indicator": 1,
        "message_expiry_interval": 10,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\xff",
        "user_property": [("a", "b"), ("c", "d")],
    }
    client(5).connect("everything", properties_=everything, will=Will("live/will", b"x", properties=will))


def test_no_reason_string_without_request_problem_information(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.1.2-29]: not in SUBACK, UNSUBACK and PUBACK"""
    opened = connected(version=5, properties_={"request_problem_information": 0})
    opened.send(subscribe(1, (live, 0), version=5))
    assert not {"reason_string", "user_property"} & set(opened.take(9).properties)
    assert not {"reason_string", "user_property"} & set(opened.unsubscribe("never/subscribed").properties)
    answer = opened.publish(live, b"x", 1)
    assert answer is not None
    assert not {"reason_string", "user_property"} & set(answer.properties)


def test_disconnect_has_no_session_expiry(connected: Connect) -> None:
    """v5 [MQTT-3.14.2-2]"""
    opened = connected(version=5)
    opened.send(packet(12, 1, b""))
    packets = opened.closed()
    assert packets[-1].kind == DISCONNECT
    assert "session_expiry_interval" not in packets[-1].properties


def test_many_connections_at_once(client: Connect, version: int) -> None:
    """[MQTT-3.2.0-1]: each gets its own answer"""
    opened = [client(version) for _ in range(200)]
    for index, one in enumerate(opened):
        one.send(connect(f"many-{version}-{index}", version=version), packet(12, 0, b""))
    for one in opened:
        assert one.next().kind == CONNACK
        assert one.next().kind == PINGRESP


def test_half_a_connect_is_waited_for(client: Connect, version: int) -> None:
    """Section 4.2"""
    half = client(version)
    whole = connect("half", version=version)
    half.send(whole[:7])
    half.nothing()
    half.send(whole[7:])
    assert half.next().kind == CONNACK
