"""Tests of ``protocols/topics.py``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from weft.protocols.topics import (
    PATTERN_LEVELS_MAX,
    FilterTree,
    InvalidTopic,
    Share,
    check_filter,
    compile_pattern,
    matches,
    split_share,
    valid_filter,
    valid_topic,
)

LEVELS = st.lists(st.sampled_from(["", "a", "b", "$s", "a.b"]), min_size=1, max_size=4)
FILTER_LEVELS = st.lists(st.sampled_from(["", "a", "b", "$s", "a.b", "+"]), min_size=0, max_size=4)


def naive_match(topic_filter: str, topic: str) -> bool:
    """Section 4.7 read out loud, one level after the other."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    wanted, have = topic_filter.split("/"), topic.split("/")
    while wanted and have:
        if wanted[0] == "#":
            return True
        if wanted[0] not in ("+", have[0]):
            return False
        wanted, have = wanted[1:], have[1:]
    return wanted in ([], ["#"]) and not have


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(FILTER_LEVELS) + (["#"] if draw(st.booleans()) else [])
    text = "/".join(levels or ["+"])
    return text or "+"


TOPICS = LEVELS.map("/".join).filter(bool)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [  # the examples of sections 4.7.1 and 4.7.2
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("ACCOUNTS", "Accounts", False),
        ("a.b", "axb", False),
        ("a/+", "a/line\nbreak", True),
        ("a/#", "a/line\nbreak/x", True),
    ],
)
def test_the_examples_of_the_standard(topic_filter: str, topic: str, expected: bool) -> None:
    """v5 [MQTT-4.7.2-1], [MQTT-4.7.3-4]; v3 [MQTT-4.7.2-1], [MQTT-4.7.3-4]."""
    assert (compile_pattern(topic_filter).match(topic) is not None) is expected
    assert matches(topic_filter, topic) is expected


@given(filters(), TOPICS)
def test_filters_and_patterns_match_what_the_rules_say(topic_filter: str, topic: str) -> None:
    expected = naive_match(topic_filter, topic)
    assert (compile_pattern(topic_filter).match(topic) is not None) is expected
    assert matches(topic_filter, topic) is expected


def test_named_levels_become_fields_in_order() -> None:
    pattern = compile_pattern("plant/{line}/+/{machine_2}/telemetry/#")
    assert pattern.filter == "plant/+/+/+/telemetry/#"
    assert pattern.fields == ("line", "machine_2")
    assert pattern.match("plant/a/x/m-7/telemetry") == {"line": "a", "machine_2": "m-7"}
    assert pattern.match("plant/a/x//telemetry/raw/1") == {"line": "a", "machine_2": ""}
    assert pattern.match("plant/a/x/telemetry") is None
    assert compile_pattern("{site}/t").match("$SYS/t") is None
    assert compile_pattern("a/b").match("a/b") == {}


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a/{line", "expected a whole level such as {line}"),
        ("a/x{line}", "expected a whole level such as {line}"),
        ("a/{}", "expected a whole level"),
        ("a/{_offset}", "expected a whole level"),
        ("a/{2nd}", "expected a whole level"),
        ("{a}/{a}", "named twice"),
        ("a/{payload}", "is a column of every table"),
        ("a/#/b", "MQTT-4.7.1-2"),
        ("a/b#", "MQTT-4.7.1-2"),
        ("a+/b", "MQTT-4.7.1-3"),
        ("", "MQTT-4.7.3-1"),
        ("a\0", "MQTT-4.7.3-2"),
        ("a" * 65_536, "MQTT-4.7.3-3"),
        ("\ud800", "MQTT-1.5.3-1"),
    ],
)
def test_bad_patterns_are_refused_with_the_rule(pattern: str, says: str) -> None:
    with pytest.raises(InvalidTopic) as caught:
        compile_pattern(pattern)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "a\0b", "\udfff", "é" * 32_768])
def test_neither_topic_nor_filter(text: str) -> None:
    """v5 [MQTT-4.7.3-1], [MQTT-4.7.3-2], [MQTT-4.7.3-3]; v3 [MQTT-4.7.3-1], [MQTT-4.7.3-2], [MQTT-4.7.3-3]."""
    assert not valid_topic(text)
    assert not valid_filter(text)


def test_wildcards_belong_to_filters_only() -> None:
    assert valid_filter("+/a/#")
    assert not valid_topic("+/a")
    assert not valid_topic("a#")
    assert valid_topic("/")
    assert valid_topic("é" * 32_767)
    check_filter("+/+/#")


@pytest.mark.parametrize(
    ("topic_filter", "share"),
    [
        ("$share/consumer1/sport/tennis/+", Share("consumer1", "sport/tennis/+")),  # the examples of section 4.8.2
        ("$share/consumer1//finance", Share("consumer1", "/finance")),
        ("$share/a/$SYS/#", Share("a", "$SYS/#")),
        ("$share/a/$share/b/c", Share("a", "$share/b/c")),
        ("$share", Share("", "$share")),
        ("$shared/a/b", Share("", "$shared/a/b")),
        ("a/$share/b", Share("", "a/$share/b")),
    ],
)
def test_shared_subscriptions_are_taken_apart(topic_filter: str, share: Share) -> None:
    """v5 [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    assert split_share(topic_filter) == share


@pytest.mark.parametrize(
    ("topic_filter", "says"),
    [
        ("$share/", "MQTT-4.8.2-1"),
        ("$share//a", "MQTT-4.8.2-1"),
        ("$share/g+/a", "MQTT-4.8.2-1"),
        ("$share/#", "MQTT-4.8.2-1"),
        ("$share/g", "MQTT-4.8.2-2"),
        ("$share/g/", "MQTT-4.8.2-2"),
        ("$share/g/a#", "MQTT-4.7.1-2"),
    ],
)
def test_bad_shared_subscriptions_are_refused_with_the_rule(topic_filter: str, says: str) -> None:
    """v5 [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    with pytest.raises(InvalidTopic) as caught:
        split_share(topic_filter)
    assert says in str(caught.value)


def test_a_pattern_has_a_bounded_number_of_levels() -> None:
    """Peers send patterns: one of 70 kB with nine thousand names took three seconds to compile"""
    assert compile_pattern("/".join("+" * PATTERN_LEVELS_MAX)).match("/" * (PATTERN_LEVELS_MAX - 1)) == {}
    with pytest.raises(InvalidTopic, match="129 levels"):
        compile_pattern("/".join("+" * (PATTERN_LEVELS_MAX + 1)))


# --- filter tree


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
