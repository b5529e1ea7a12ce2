"""Arbitrary bytes against the codec: what it takes it can say again, what it refuses it refuses as it should."""

from __future__ import annotations

from collections.abc import Mapping

from weft.edge_node.ingest.record import Destination, Gathering, NodeSource, Route
from weft.protocols.mqtt.connection import Connection, ServerLimits
from weft.protocols.mqtt.decoder import decode, packet_end
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import MqttError, Packet, PacketIds
from weft.protocols.mqtt.publish_run import scan

LIMIT = 64 << 10
TARGETS: Mapping[bytes, Route] = {
    topic: Route(Destination((number,), False, False), live=False, marked=False)
    for number, topic in enumerate((b"a", b"a/b"), 1)
}


def run_one(data: bytes) -> None:
    """The first byte chooses the version, the rest comes in on a connection of it.

    Raises:
        AssertionError: a packet that does not survive the way back, an offset that is none, an error without a code.
        Exception: anything that is not an ``MqttError``.
    """
    version, stream = 3 + (data[0] if data else 0) % 3, data[1:]
    connection = Connection(ServerLimits(receive_maximum=4, topic_alias_maximum=2))
    at = 0
    try:
        while True:
            at = _scan(stream, at, version)
            decoded = decode(stream, at, LIMIT, version)
            if decoded is None:
                place = packet_end(stream, at, LIMIT)
                assert place is None or place[1] > len(stream)
                return
            packet, end = decoded
            assert at + 2 <= end <= len(stream)
            _check_way_back(packet, version)
            at = end
            connection.receive(packet)
    except MqttError as error:
        _check_refusal(connection, error)


def _check_refusal(connection: Connection, error: MqttError) -> None:
    assert error.code >= 0x80, error
    words = connection.last_words(error)
    assert not words or decode(words, 0, LIMIT, connection.version) is not None


def _scan(stream: bytes, at: int, version: int) -> int:
    """Whatever the fast scan takes, the decoder takes too."""
    end = scan(stream, at, TARGETS, Gathering(), NodeSource(None), PacketIds(), [], LIMIT, version)
    while at < end:
        decoded = decode(stream, at, LIMIT, version)
        assert decoded is not None
        at = decoded[1]
    assert at == end
    return end


def _check_way_back(packet: Packet, version: int) -> None:
    again = encode(packet, version)
    assert decode(again, 0, LIMIT, version) == (packet, len(again))
