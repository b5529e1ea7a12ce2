"""A client's own subscriptions, as its reader of the log asks for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.subscriptions.members import FakeMember
from weft.edge_node.subscriptions import subscriptions as own_filters
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, OwnFilters, Subscriptions
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import matches

FILTERS = ["#", "+", "a", "a/#", "a/+", "+/b", "a/b", "$SYS/#", "+/+/c"]
TOPICS = [b"a", b"a/b", b"a/b/c", b"b", b"$SYS/a"]


def subscribed(client: FakeMember, *filters: str) -> dict[str, tuple[ClientSubscription, None]]:
    return {text: (ClientSubscription(client, text, Subscription(text, 1), None), None) for text in filters}


@given(st.sets(st.sampled_from(FILTERS)), st.booleans())
def test_those_match_that_the_topic_matches(filters: set[str], is_tree: bool) -> None:
    client = FakeMember("c")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_filters, "FILTERS_MAX", 0 if is_tree else 100)
        own = OwnFilters(client, subscribed(client, *filters), Subscriptions())
        for topic in (*TOPICS, *TOPICS):
            matching = {each.filter for each in own.matching(topic)}
            assert matching == {text for text in filters if matches(text, topic.decode())}


def test_what_is_remembered_is_bounded() -> None:
    client = FakeMember("c")
    own = OwnFilters(client, subscribed(client, "#"), Subscriptions())
    for number in range(1_000):
        assert own.matching(b"%d" % number)
        assert own.options(b"%d" % number + b"x" * 1_000)
    assert len(own._known) <= own_filters.OWN_TOPICS_MAX
    assert max(map(len, own._known)) <= own_filters.TOPIC_BYTES_MAX


def test_they_are_looked_at_again_when_something_has_changed() -> None:
    client, subscriptions = FakeMember("c"), Subscriptions()
    filters = subscribed(client, "a")
    own = OwnFilters(client, filters, subscriptions)
    assert own.matching(b"a")
    del filters["a"]
    subscriptions.changed()
    assert not own.matching(b"a")
