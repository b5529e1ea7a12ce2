"""Arbitrary bytes against the codec: what it takes it can say again, what it refuses it refuses as it should."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tests.fuzz.conversations import INTERESTING
from tests.protocols.mqtt.strategies import VECTORS, VECTORS_5
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


# --- Packets of the vectors, damaged in ways that a seed repeats, against the codec


SEEDS = [
    *(bytes([version - 3]) + bytes.fromhex(text) for text, _ in VECTORS for version in (3, 4)),
    *(b"\2" + bytes.fromhex(text) for text, _ in VECTORS_5),
]


def damage(seed: bytes, chance: random.Random, others: Sequence[bytes] = SEEDS) -> bytes:
    """Change an input in one to four places, its first byte left as it is."""
    data = bytearray(seed or b"\0")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(data) + 1)
        match chance.randrange(5):
            case 0 if at < len(data):
                data[at] = chance.choice(INTERESTING)
            case 1 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at:at] = bytes([chance.choice(INTERESTING)])
            case 3:
                del data[at : at + chance.randint(1, 3)]
            case _:
                data += chance.choice(others)[1:]
    return bytes(data)


def run_damaged(seed: int, rounds: int) -> None:
    """Feed damaged packets to the codec, as many as ``rounds`` says.

    Raises:
        AssertionError: the codec did what it must not; the message holds the bytes.
    """
    chance = random.Random(seed)
    for _ in range(rounds):
        data = damage(chance.choice(SEEDS), chance)
        try:
            run_one(data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error
