import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import PACKETS
from weft.protocols.mqtt.decoder import Reassembly, decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import MalformedPacket, Packet

LIMIT = 1 << 20


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
