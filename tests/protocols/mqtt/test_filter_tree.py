from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.protocols.test_topics import TOPICS, filters, naive_match
from weft.protocols.topics import FilterTree

ENTRIES = st.sampled_from("xyz")


class TreeAgainstNaiveMatching(RuleBasedStateMachine):
    """The tree answers what a walk over all filters would: v5 [MQTT-4.7.2-1], [MQTT-4.7.3-4]."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: FilterTree[str] = FilterTree()
        self.model: set[tuple[str, str]] = set()

    @rule(topic_filter=filters(), entry=ENTRIES)
    def add(self, topic_filter: str, entry: str) -> None:
        self.tree.add(topic_filter, entry)
        self.model.add((topic_filter, entry))

    @rule(topic_filter=filters(), entry=ENTRIES)
    def remove(self, topic_filter: str, entry: str) -> None:
        self.tree.remove(topic_filter, entry)
        self.model.discard((topic_filter, entry))

    @rule(data=st.data())
    def remove_known(self, data: st.DataObject) -> None:
        if self.model:
            self.remove(*data.draw(st.sampled_from(sorted(self.model))))

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        expected = sorted(entry for topic_filter, entry in self.model if naive_match(topic_filter, topic))
        assert sorted(self.tree.match(topic)) == expected

    @invariant()
    def empty_branches_are_cut(self) -> None:
        assert bool(self.tree) is bool(self.model)


TestFilterTree = TreeAgainstNaiveMatching.TestCase
TestFilterTree.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_filter_of_the_greatest_depth_is_walked() -> None:
    tree: FilterTree[str] = FilterTree()
    deep = "/" * 65_534
    tree.add(deep, "x")
    assert tree.match(deep) == ["x"]
    tree.remove(deep, "x")
    assert not tree


def test_an_entry_comes_once_for_each_of_its_filters() -> None:
    """Overlapping subscriptions are all found, so that every identifier can be sent: v5 [MQTT-3.3.4-3]."""
    tree: FilterTree[str] = FilterTree()
    for topic_filter in ("a/b", "a/+", "#"):
        tree.add(topic_filter, "x")
    tree.add("a/b", "x")
    assert tree.match("a/b") == ["x", "x", "x"]
