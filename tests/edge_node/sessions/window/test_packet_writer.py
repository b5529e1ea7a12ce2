"""Packets as each client wants them: shared by clients of a kind where they can be."""

from tests.edge_node.sessions.window.clients import Clients, Socket
from weft.edge_node.sessions.packets_out import PacketWriter, SentAliases, Wire
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode_publish
from weft.protocols.mqtt.packets import Properties, Publish


def writer(clients: Clients, wire: Wire) -> tuple[PacketWriter, Socket]:
    found, connection = PacketWriter("c", wire, clients.context), Socket()
    found.open(connection)
    return found, connection


def options(*identifiers: int, retain: bool = False) -> DeliveryOptions:
    return DeliveryOptions(None, 2, retain_as_published=retain, identifiers=identifiers)  # type: ignore[arg-type]


def received(connection: Socket, version: int = 5) -> list[Publish]:
    data, at, found = b"".join(connection), 0, []
    while at < len(data):
        decoded = decode(data, at, 1 << 20, version)
        assert decoded is not None
        packet, at = decoded
        assert isinstance(packet, Publish)
        found.append(packet)
    return found


def test_clients_of_a_kind_get_the_same_bytes() -> None:
    clients, message = Clients(), Message(b"t", b"x", 0)
    for version in (4, 4, 5):
        one, connection = writer(clients, Wire(version))
        one.add_at_most_once(message, options())
        clients.outbox.flush()
        assert connection == [encode_publish(b"t", b"x", 0, 0, version=version)]
    assert message.packets is not None
    assert len(message.packets) == 2


def test_identifiers_retain_and_aliases_make_a_packet_ones_own() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.1-13] [MQTT-3.1.2-27]"""
    clients, message = Clients(), Message(b"t", b"x", 0, retain=True)
    one, connection = writer(clients, Wire(5, topic_alias_maximum=1))
    one.add_at_most_once(message, options(7))
    one.add_at_most_once(message, options(retain=True))
    clients.outbox.flush()
    first, second = received(connection)
    assert (first.topic, first.retain, first.properties.topic_alias) == (b"t", False, 1)
    assert first.properties.subscription_identifiers == (7,)
    assert (second.topic, second.retain, second.properties.topic_alias) == (b"", True, 1)


def test_what_is_too_long_for_a_client_is_not_sent() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    clients = Clients()
    one, connection = writer(clients, Wire(5, packet_bytes_max=20))
    one.add_at_most_once(Message(b"t", bytes(20)), options())
    assert not one.add_delivery(1, Message(b"t", bytes(20), 1), options(), 1, False, False)
    assert one.add_delivery(1, Message(b"t", b"x", 1), options(), 1, False, False)
    clients.outbox.flush()
    assert [packet.payload for packet in received(connection)] == [b"x"]
    assert clients.counters.deliveries_too_large == 2


def test_an_expiring_message_says_how_long_it_has_left() -> None:
    """[MQTT-3.3.2-6]"""
    clients = Clients()
    one, connection = writer(clients, Wire(5))
    expires_ns = clients.wall_clock() + 5_000_000_000
    one.add_at_most_once(
        Message(b"t", b"x", 0, properties=Properties(content_type="a"), expires_ns=expires_ns), options()
    )
    clients.outbox.flush()
    (packet,) = received(connection)
    assert (packet.properties.message_expiry_interval, packet.properties.content_type) == (5, "a")


def test_the_first_topics_get_an_alias_and_keep_it() -> None:
    """[MQTT-3.1.2-26]"""
    aliases = SentAliases(2)
    for topic, alias in ((b"a", 1), (b"b", 2)):
        assert aliases.find(topic) == (topic, alias)
        assert aliases.find(topic) == (topic, alias), "until a packet with both has gone out"
        aliases.sent(topic, alias)
        assert aliases.find(topic) == (b"", alias)
    assert aliases.find(b"c") == (b"c", None)
