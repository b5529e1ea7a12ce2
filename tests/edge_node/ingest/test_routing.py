import pytest

from weft.edge_node.ingest.routing import Router
from weft.protocols.topics import InvalidTopic

NUMBERS = {"a": 1, "b": 2, "c": 3}


def test_a_topic_belongs_to_every_stream_that_matches_in_order() -> None:
    router = Router({"b": ["x/{line}/t", "y/#"], "a": ["#"], "c": ["x/+/t", "+/1/t"]}, NUMBERS.__getitem__)
    assert router.streams("x/1/t") == (2, 1, 3)
    assert router.streams("y") == (2, 1)
    assert router.streams("z") == (1,)
    assert router.streams("$SYS/x") == ()


def test_bad_patterns_are_refused() -> None:
    with pytest.raises(InvalidTopic, match=r"MQTT-4\.7\.1-2"):
        Router({"a": ["x/#/y"]}, NUMBERS.__getitem__)
