from __future__ import annotations

import pytest

from weft.edge_node.sources.connection import Topics
from weft.protocols.topics import InvalidTopic, compile_rule


@pytest.mark.parametrize(
    ("from_", "to", "topic", "expected"),
    [
        ("a/b", "c", "a/b", "c"),
        ("factory/{line}/{machine}/raw", "plant/{machine}/line-{line}", "factory/4/7/raw", "plant/7/line-4"),
        ("factory/#", "plant/#", "factory/a/b", "plant/a/b"),
        ("factory/#", "plant/#", "factory", "plant"),
        ("factory/{line}/#", "{line}/#", "factory/4", "4"),
        ("#", "all/#", "a/b", "all/a/b"),
        ("factory/+/raw", "raw", "factory/4/raw", "raw"),
        ("factory/+/raw", "raw", "elsewhere", None),
    ],
)
def test_a_rule_puts_a_topic_in_the_place_of_another(from_: str, to: str, topic: str, expected: str | None) -> None:
    assert compile_rule(from_, to).apply(topic) == expected


@pytest.mark.parametrize(
    ("from_", "to", "word"),
    [
        ("a/+", "b/{line}", "does not name"),
        ("a/{line}", "b/+", "no wildcards"),
        ("a/{line}", "b/#", "no rest"),
        ("a/#/b", "c", "#"),
        ("a", "", "at least one character"),
        ("a/#", "b/#/c", "no wildcards"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(from_: str, to: str, word: str) -> None:
    with pytest.raises(InvalidTopic, match=word):
        compile_rule(from_, to)


def test_the_first_rule_counts_and_the_prefix_comes_before_every_topic() -> None:
    topics = Topics([("a/{x}", "one/{x}"), ("a/#", "two/#")], "site/")
    assert [topics.key(each) for each in (b"a/1", b"a/1/2", b"b", b"a/1")] == [
        b"site/one/1",
        b"site/two/1/2",
        b"site/b",
        b"site/one/1",
    ]


def test_a_topic_that_becomes_none_is_an_error() -> None:
    with pytest.raises(InvalidTopic):
        Topics((), "x" * 60_000).key(b"y" * 6_000)
