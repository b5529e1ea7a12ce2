"""Positions of readers."""

from weft.edge_node.subscriptions.message import NOWHERE, Message, before, lowered


def test_what_is_missing_lowers_the_position_of_its_stream_alone() -> None:
    positions = {1: 10, 2: 20}
    assert lowered(positions, [(1, 7), (1, 12), (3, 4)]) == {1: 7, 2: 20, 3: 4}
    assert positions == {1: 10, 2: 20}


def test_what_the_log_does_not_have_is_not_read_from_it() -> None:
    queued = [Message(b"t", b"", stream=1, seq=5), Message(b"t", b"", stream=NOWHERE, seq=0)]
    assert before(queued, {1: 9}) == {1: 5}
    assert before([], {1: 9}) == {1: 9}
