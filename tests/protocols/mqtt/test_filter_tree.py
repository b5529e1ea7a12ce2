from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocols.mqtt.filter_tree import FilterTree
from tests.protocols.test_topics import TOPICS, filters, naive_match

SUBSCRIBERS = st.sampled_from("xyz")


class TreeAgainstNaiveMatching(RuleBasedStateMachine):
    """The tree answers what a walk over all filters would."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: FilterTree[str] = FilterTree()
        self.model: dict[tuple[str, str], int] = {}

    @rule(topic_filter=filters(), subscriber=SUBSCRIBERS, qos=st.integers(0, 1))
    def subscribe(self, topic_filter: str, subscriber: str, qos: int) -> None:
        self.tree.add(topic_filter, subscriber, qos)
        self.model[topic_filter, subscriber] = qos

    @rule(topic_filter=filters(), subscriber=SUBSCRIBERS)
    def unsubscribe(self, topic_filter: str, subscriber: str) -> None:
        self.tree.remove(topic_filter, subscriber)
        self.model.pop((topic_filter, subscriber), None)

    @rule(data=st.data())
    def unsubscribe_known(self, data: st.DataObject) -> None:
        if self.model:
            self.unsubscribe(*data.draw(st.sampled_from(sorted(self.model))))

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        expected: dict[str, int] = {}
        for (topic_filter, subscriber), qos in self.model.items():
            if naive_match(topic_filter, topic):
                expected[subscriber] = max(qos, expected.get(subscriber, 0))
        assert self.tree.match(topic) == expected

    @invariant()
    def empty_branches_are_cut(self) -> None:
        assert bool(self.tree) is bool(self.model)


TestFilterTree = TreeAgainstNaiveMatching.TestCase
TestFilterTree.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_filter_of_the_greatest_depth_is_walked() -> None:
    tree: FilterTree[str] = FilterTree()
    deep = "/" * 65_534
    tree.add(deep, "x", 0)
    assert tree.match(deep) == {"x": 0}
    tree.remove(deep, "x")
    assert not tree
