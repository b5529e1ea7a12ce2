"""Access rules: what they grant, what they never grant, and what a file that cannot be used says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.access.identity import ALL, AclUnusable, Permission, covers, parse
from weft.edge_node.queues.definitions import topic_of
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

QUEUES = """\
queue read status.#
user alice
topic readwrite secret/#
topic deny secret/vault
user bob
topic write secret/jobs
queue read plant/orders
queue write plant.orders.#
queue declare plant.+.tasks
queue deny plant.orders.7
user carol
queue plant.#
user operator
topic read #
pattern queue readwrite users.%u.#
pattern queue declare users/%u/#
pattern queue deny users/%u/keys
"""
QUEUE_ACL = parse(QUEUES, "acl")
NOTHING, READ, WRITE, DECLARE = Permission(0), Permission.READ, Permission.WRITE, Permission.DECLARE

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


@pytest.mark.parametrize(
    ("who", "rights", "name"),
    [
        (None, READ, "status/press"),
        (None, NOTHING, "secret/jobs"),
        ("alice", NOTHING, "status/press"),
        # A right to the topic of its name is one to declare a queue, and to read it where the topic may be read.
        ("alice", READ | DECLARE, "secret/jobs"),
        ("alice", READ | DECLARE, "secret"),
        ("alice", NOTHING, "secret/vault"),
        ("alice", NOTHING, "public/jobs"),
        ("bob", DECLARE, "secret/jobs"),
        ("bob", NOTHING, "secret/other"),
        # Rules for queues, with dots or slashes; a rule of denial wins.
        ("bob", READ | WRITE, "plant/orders"),
        ("bob", WRITE, "plant/orders/6"),
        ("bob", None, "plant/orders/7"),
        ("bob", DECLARE, "plant/7/tasks"),
        ("carol", READ | WRITE, "plant/orders/7"),
        ("operator", READ | DECLARE, "secret/jobs"),
        ("operator", READ | DECLARE, "amq/gen-x"),
        ("dan", ALL, "users/dan/orders"),
        ("dan", NOTHING, "users/eve/orders"),
        ("dan", None, "users/dan/keys"),
        ("operator", READ | DECLARE, "users/dan/keys"),
    ],
)
def test_rights_to_queues(who: str | None, rights: Permission | None, name: str) -> None:
    assert QUEUE_ACL.queue_rights(who, "C1", name) == rights


def test_rules_for_queues_say_nothing_about_topics() -> None:
    for who, topic in (("carol", "plant/orders"), ("dan", "users/dan/orders"), ("bob", "plant/7/tasks")):
        assert not QUEUE_ACL.may_read(who, "C1", topic)
        assert not QUEUE_ACL.may_publish(who, "C1", topic)
        assert not QUEUE_ACL.may_subscribe(who, "C1", topic)
    assert QUEUE_ACL.may_publish("bob", "C1", "secret/jobs"), "a rule that denies neither"


def test_the_example_of_the_reference_page_is_a_good_file() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "access-rules.md"
    example = page.read_text().partition("```text\n")[2].partition("```")[0]
    acl = parse(example, "acl")
    assert acl.users == {"press-7", "orders-worker"}
    assert acl.queue_rights("orders-worker", "", "plant/4/tasks") == READ | DECLARE
    assert acl.queue_rights("press-7", "", "devices/press-7/x") == DECLARE


@pytest.mark.parametrize("name", ["a.b", "$dan", "a/b", "+", ""])
def test_a_name_that_could_be_more_than_a_level_of_a_queue_is_granted_nothing(name: str) -> None:
    wide = parse("pattern queue readwrite users.%u.#\npattern queue readwrite %u.#\n", "acl")
    for topic in ("users/a/b/x", "users/a.b/x", "users/_dan/x", "_dan/x", f"users/{name}/x"):
        assert not wide.queue_rights(name, "C1", topic)
    denying = parse("pattern queue deny users.%u.keys\nuser a.b\nqueue #\n", "acl")
    assert denying.queue_rights("a.b", "C1", "users/a/b/keys") is None


def test_a_pattern_of_queues_is_made_a_topic_as_names_are() -> None:
    acl = parse("queue read $intern.jobs\n", "acl")
    assert acl.queue_rights(None, "", topic_of("", "$intern.jobs")) == READ


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
        ("topic declare x\n", "acl:1: expected read, write, readwrite or deny before the topic filter, got 'declare'"),
        ("queue\n", "acl:1: expected declare, read, write, readwrite or deny, and a pattern of names after it"),
        ("queue reed x\n", "acl:1: expected declare, read, write, readwrite or deny before the pattern of names, got"),
        ("queue read a.*\n", "acl:1: the pattern of names 'a.*': write `+` for one level, `#` for all that follow"),
        ("queue read a.#.b\n", "acl:1: topic filter 'a/#/b'"),
        ("queue read users.%u\n", "write `pattern queue` instead of `queue`"),
        ("pattern queue reed x\n", "acl:1: expected declare"),
    ],
)
def test_a_bad_line_is_named(text: str, error: str) -> None:
    with pytest.raises(AclUnusable) as caught:
        parse(text, "acl")
    assert error in str(caught.value)


def test_a_file_of_silly_length_is_refused() -> None:
    with pytest.raises(AclUnusable, match="at most 100000 are read"):
        parse("\n" * 100_001, "acl")
