"""Access rules: what they grant, what they never grant, and what a file that cannot be used says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.access.acl import AclUnusable, covers, parse
from weft.protocols.topics import compile_pattern, valid_filter

RULES = """\
# what anybody may see
topic read public/#
user press-7
topic readwrite plant/a/press-7/#
topic deny plant/a/press-7/firmware
topic plant/a/orders
user office
topic read #
topic deny plant/+/press-7/firmware
pattern write devices/%u/#
pattern read clients/dev-%c/in
"""
ACL = parse(RULES, "acl")

WORDS = st.sampled_from(["a", "b", "%u", "x%cy", "$SYS", "", "é"])
LEVELS = st.lists(st.sampled_from(["a", "b", "+", "$SYS", ""]), min_size=1, max_size=4)
NAMES = st.text(st.sampled_from("ab+#/$%uc\0 é"), max_size=4)


@pytest.mark.parametrize(
    ("who", "may_read", "topic"),
    [
        (None, True, "public/notice"),
        (None, True, "public"),
        (None, False, "plant/a/orders"),
        ("press-7", False, "public/notice"),
        ("press-7", True, "plant/a/press-7/temperature"),
        ("press-7", False, "plant/a/press-7/firmware"),
        ("press-7", True, "plant/a/orders"),
        ("press-7", False, "devices/press-7/x"),
        ("press-7", True, "clients/dev-C1/in"),
        ("press-7", False, "clients/dev-C2/in"),
        ("office", True, "plant/b/press-9/temperature"),
        ("office", False, "plant/b/press-7/firmware"),
        ("office", False, "$SYS/broker/uptime"),
        ("stranger", False, "plant/a/orders"),
    ],
)
def test_reading(who: str | None, may_read: bool, topic: str) -> None:
    assert ACL.may_read(who, "C1", topic) is may_read


@pytest.mark.parametrize(
    ("who", "may_write", "topic"),
    [
        (None, False, "public/notice"),
        ("press-7", True, "devices/press-7/temperature"),
        ("press-7", False, "devices/press-8/temperature"),
        ("office", False, "plant/a/orders"),
        ("press-7", False, "plant/a/press-7/firmware"),
    ],
)
def test_writing(who: str | None, may_write: bool, topic: str) -> None:
    assert ACL.may_publish(who, "C1", topic) is may_write


@pytest.mark.parametrize(
    ("who", "may_subscribe", "topic_filter"),
    [
        (None, True, "public/+/x"),
        (None, True, "public/#"),
        (None, False, "#"),
        ("press-7", True, "plant/a/press-7/#"),
        ("press-7", False, "plant/a/press-7/firmware"),
        ("press-7", False, "plant/a/+/temperature"),
        ("office", True, "#"),
        ("office", True, "+/+"),
        ("office", False, "$SYS/#"),
        ("office", False, "plant/a/press-7/firmware"),
    ],
)
def test_subscribing(who: str | None, may_subscribe: bool, topic_filter: str) -> None:
    assert ACL.may_subscribe(who, "C1", topic_filter) is may_subscribe


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "a+", "#/x"])
def test_a_name_that_could_be_more_than_a_level_is_granted_nothing(name: str) -> None:
    acl = parse("pattern readwrite devices/%u/#\npattern read clients/%c\n", "acl")
    assert not acl.may_subscribe(name, name, "devices/+/#")
    assert not acl.may_publish(name, name, f"devices/{name}/x")
    assert not acl.may_read("good", name, f"clients/{name}")


def test_a_name_that_could_be_more_than_a_level_does_not_escape_a_rule_that_denies() -> None:
    acl = parse("user a/b\ntopic readwrite #\npattern deny secret/%u/key\n", "acl")
    assert not acl.may_read("a/b", "c", "secret/a/b/key")
    assert acl.may_read("a/b", "c", "open")


def test_a_percent_sign_in_a_name_is_no_variable() -> None:
    acl = parse("pattern read x/%u/y\n", "acl")
    assert acl.may_read("%c", "client", "x/%c/y")
    assert not acl.may_read("%c", "client", "x/client/y")


@given(LEVELS, st.booleans(), LEVELS, st.booleans(), LEVELS)
def test_a_filter_covers_another_only_if_it_matches_all_of_its_topics(
    wider: list[str], wider_open: bool, narrower: list[str], narrower_open: bool, topic: list[str]
) -> None:
    wider, narrower = wider + ["#"] * wider_open, narrower + ["#"] * narrower_open
    filters = "/".join(wider), "/".join(narrower)
    name = "/".join(level.replace("+", "q") for level in topic)
    if not all(map(valid_filter, filters)) or not name:
        return
    is_matched = [compile_pattern(each).match(name) is not None for each in filters]
    assert covers(wider, name.split("/")) is is_matched[0]
    if covers(wider, narrower):
        assert is_matched[0] or not is_matched[1]


@given(st.lists(WORDS, min_size=1, max_size=4), st.booleans(), NAMES, NAMES, LEVELS)
def test_a_pattern_never_grants_what_is_outside_its_prefix(
    levels: list[str], is_open: bool, username: str, client_id: str, wanted: list[str]
) -> None:
    pattern = "/".join(levels + ["#"] * is_open)
    if not valid_filter(pattern):
        return
    acl = parse(f"pattern readwrite {pattern}\n", "acl") if pattern.strip() == pattern else parse("", "acl")
    names = {"%u": username, "%c": client_id}
    for topic_filter in ("/".join(wanted), "/".join([*wanted, "#"]), "#"):
        if acl.may_subscribe(username, client_id, topic_filter):
            granted = topic_filter.split("/")
            for position, level in enumerate(levels):
                expected = level
                for variable, name in names.items():
                    expected = expected.replace(variable, name)
                assert granted[position] == expected or position == len(granted) == len(levels) - 1
                assert not set("+#/") & set(expected)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("topics read x\n", "acl:1: expected `user NAME`"),
        ("# fine\n\nuser\n", "acl:3: expected `user NAME`"),
        ("topic read\n", "acl:1: "),
        ("topic read a/#/b\n", "acl:1: topic filter 'a/#/b'"),
        ("topic write devices/%u/x\n", "write `pattern` instead of `topic`"),
        ("topic\n", "acl:1: expected read, write, readwrite or deny, and a topic filter"),
    ],
)
def test_a_bad_line_is_named(text: str, error: str) -> None:
    with pytest.raises(AclUnusable) as caught:
        parse(text, "acl")
    assert error in str(caught.value)


def test_a_file_of_silly_length_is_refused() -> None:
    with pytest.raises(AclUnusable, match="at most 100000 are read"):
        parse("\n" * 100_001, "acl")
