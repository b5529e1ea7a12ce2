import pytest

from protocols.mqtt.connection import Connection, State
from protocols.mqtt.errors import ConnectCode, ConnectRefused, ProtocolViolation
from protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.protocols.mqtt.strategies import VECTORS

MAY_COME = (Publish, PubAck, PubRel, Subscribe, Unsubscribe, PingReq, Disconnect)


def connected(**fields: object) -> Connection:
    connection = Connection()
    connection.receive(Connect("a", **fields))  # type: ignore[arg-type]
    return connection


@pytest.mark.parametrize("packet", [packet for _, packet in VECTORS if not isinstance(packet, Connect)])
def test_connect_must_come_first(packet: Packet) -> None:
    with pytest.raises(ProtocolViolation, match=r"before CONNECT \[MQTT-3\.1\.0-1\]"):
        Connection().receive(packet)


def test_a_second_connect_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match=r"a second CONNECT \[MQTT-3\.1\.0-2\]"):
        connected().receive(Connect("a"))


@pytest.mark.parametrize("packet", [packet for _, packet in VECTORS if isinstance(packet, MAY_COME)])
def test_what_a_client_may_send(packet: Packet) -> None:
    connection = connected()
    connection.receive(packet)
    assert connection.state is (State.CLOSED if isinstance(packet, Disconnect) else State.OPEN)


@pytest.mark.parametrize("packet", [ConnAck(False, 0), PubRec(1), PubComp(1), SubAck(1, (0,)), UnsubAck(1), PingResp()])
def test_what_only_servers_send(packet: Packet) -> None:
    with pytest.raises(ProtocolViolation, match="is nothing that a client may send here"):
        connected().receive(packet)


def test_nothing_comes_after_disconnect() -> None:
    connection = connected()
    connection.receive(Disconnect())
    with pytest.raises(ProtocolViolation, match="PINGREQ after DISCONNECT"):
        connection.receive(PingReq())


def test_an_empty_identifier_needs_clean_session() -> None:
    Connection().receive(Connect("", clean_session=True))
    with pytest.raises(ConnectRefused) as caught:
        Connection().receive(Connect("", clean_session=False))
    assert caught.value.code is ConnectCode.IDENTIFIER_REJECTED


def test_silence_is_allowed_for_one_and_a_half_keep_alives() -> None:
    assert connected(keep_alive_s=10).silence_s_max == 15
    assert connected(keep_alive_s=0).silence_s_max is None


def test_identifiers_have_a_bound() -> None:
    Connection().receive(Connect("é" * 512))
    with pytest.raises(ConnectRefused) as caught:
        Connection().receive(Connect("é" * 513))
    assert caught.value.code is ConnectCode.IDENTIFIER_REJECTED
