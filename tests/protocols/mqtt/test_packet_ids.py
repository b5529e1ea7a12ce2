from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.mqtt.packets import PACKET_IDS_MAX, PacketIds


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
