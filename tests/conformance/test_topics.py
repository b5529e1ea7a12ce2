"""Topic names, topic filters, and which matches which (section 4.7)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect

MATCHES = [
    ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b"]),
    ("sport/#", ["sport", "sport/a", "sport/"]),
    ("sport/tennis/+", ["sport/tennis/a", "sport/tennis/"]),
    ("sport/+", ["sport/", "sport/a"]),
    ("+/tennis/#", ["a/tennis", "a/tennis/b"]),
    ("sport/+/player1", ["sport/tennis/player1", "sport//player1"]),
    ("+/+", ["/finance", "a/b"]),
    ("/+", ["/finance"]),
    ("/#", ["/finance", "/", "/a/b"]),
    ("a//b", ["a//b"]),
    ("a/b/", ["a/b/"]),
    ("Case", ["Case"]),
    ("with space/ü", ["with space/ü"]),
]
MISSES = [
    ("sport/tennis/+", ["sport/tennis", "sport/tennis/a/b"]),
    ("sport/+", ["sport"]),
    ("+", ["/finance", "a/b"]),
    ("a/b", ["a/b/", "/a/b", "a/B", "a"]),
    ("Case", ["case", "CASE"]),
    ("a/+/c", ["a/b/d", "a/b/c/d"]),
    ("sport/#", ["sports", "a/sport"]),
    ("\u212b", ["\u00c5"]),
]


@pytest.mark.parametrize(("topic_filter", "topics"), MATCHES, ids=[name for name, _ in MATCHES])
def test_filters_match(connected: Connect, version: int, live: str, topic_filter: str, topics: list[str]) -> None:
    """[MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-3.3.2-3], v3 [MQTT-3.8.3-2], v5 [MQTT-4.7.1-1]"""
    client = connected(version=version)
    assert client.subscribe(f"{live}/{topic_filter}", 0) == 0
    for topic in topics:
        client.publish(f"{live}/{topic}", b"x")
        assert client.message().topic == f"{live}/{topic}"


@pytest.mark.parametrize(("topic_filter", "topics"), MISSES, ids=[name for name, _ in MISSES])
def test_filters_do_not_match(
    connected: Connect, version: int, live: str, topic_filter: str, topics: list[str]
) -> None:
    """[MQTT-4.7.3-4] [MQTT-4.7.1-3]: character by character, nothing is normalised"""
    client = connected(version=version)
    client.subscribe(f"{live}/{topic_filter}", 0)
    client.subscribe(f"{live}/end", 0)
    for topic in topics:
        client.publish(f"{live}/{topic}", b"no")
    client.publish(f"{live}/end", b"end")
    assert client.message().payload == b"end"


EMPTY_LEVELS = [
    ("/", ["/"], ["//", "a/"]),
    ("//", ["//"], ["/", "///"]),
    ("+/+", ["/", "/a", "a/"], ["//"]),
    ("/+", ["/", "/a"], ["//", "a/"]),
    ("+/+/+", ["//", "a//b"], ["/"]),
    ("/#", ["/", "//", "/a/b"], ["a/"]),
    ("+//#", ["//", "a//", "a//b/c"], ["a/b/c"]),
    ("#", ["/", "//", "a", "a//b"], []),
]


@pytest.mark.parametrize(("topic_filter", "hits", "misses"), EMPTY_LEVELS, ids=[name for name, _, _ in EMPTY_LEVELS])
def test_levels_of_no_characters(  # noqa: PLR0917
    connected: Connect, version: int, client_id: str, topic_filter: str, hits: list[str], misses: list[str]
) -> None:
    """[MQTT-4.7.3-1], v3 [MQTT-4.7.1-2] [MQTT-4.7.1-3], v5 [MQTT-4.7.1-1] [MQTT-4.7.1-2], section 4.7.3: an empty level
    is a level, and '/' alone is a topic of two"""
    client, publisher = connected(version=version), connected(version=version)
    assert client.subscribe(topic_filter, 1) == 1
    client.subscribe(f"end/{client_id}", 1)
    for topic in [*hits, *misses, f"end/{client_id}"]:
        publisher.publish(topic, f"{client_id} {topic}".encode(), 1)
    got: list[str] = []
    while f"end/{client_id}" not in got:
        message = client.message()
        if message.payload.startswith(client_id.encode() + b" "):  # '#' has others' retained messages too
            got.append(message.topic)
    assert got == [*hits, f"end/{client_id}"]


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/conformance", "+"])
def test_wildcards_do_not_match_dollar_topics(connected: Connect, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.2-1]"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic_filter, 0)
    publisher.publish("$conformance/conformance" if "/" in topic_filter else "$conformance", b"no")
    try:
        while True:
            assert not client.message(0.3).topic.startswith("$")
    except TimeoutError:
        pass


def test_sys_topics_match_their_own_filter(connected: Connect, version: int) -> None:
    """[MQTT-4.7.2-1]: $SYS/# gets what the server tells of itself"""
    client = connected(version=version)
    assert client.subscribe("$SYS/#", 0) == 0
    assert client.message().topic.startswith("$SYS/")


def test_the_longest_topic(connected: Connect, version: int, live: str) -> None:
    """[MQTT-4.7.3-3]: 65,535 bytes where the packet limit allows; here nearly all of it"""
    client = connected(version=version)
    assert client.subscribe(f"{live}/+", 0) == 0
    topic = f"{live}/".ljust(65_500, "x")
    client.publish(topic, b"x")
    assert client.message().topic == topic
