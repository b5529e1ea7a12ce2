"""Exchanges, queues and bindings: declared, found again, refused, deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.edge_node.queues.room import Room
from tests.support.speed import slowness, uncollected
from tests.support.steps import STEP_S_MAX, TRIES
from weft.edge_node.access.authentication import AccountIdentity, Accounts
from weft.edge_node.access.identity import Permission, parse
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.queues.ready import Declared
from weft.edge_node.queues.registry import NOW_UNITS


class Restricted:
    """A user who may publish and subscribe only below ``own/``."""

    username = "eve"
    unrestricted = False
    admitted = True

    def may_publish(self, topic: bytes) -> bool:
        return topic.startswith(b"own/")

    def may_subscribe(self, topic_filter: str) -> bool:
        return topic_filter.startswith("own/")

    def may_read(self, topic: bytes) -> bool:
        return topic.startswith(b"own/")

    def queue_rights(self, topic: str) -> Permission:
        return Permission.READ | Permission.DECLARE if topic.startswith("own/") else Permission(0)


def refusal(call: Callable[..., Any], *args: Any, **options: Any) -> Reason:
    with pytest.raises(QueueError) as refused:
        call(*args, **options)
    assert len(str(refused.value)) > 20, "says what to do"
    return refused.value.reason


async def test_a_declaration_that_differs_is_an_error_and_one_that_does_not_is_none() -> None:
    room = Room()
    queues, client = room.queues, room.client
    assert queues.declarations.declare_queue(client, "q", durable=True, arguments={"x-max-length": 5}) == ("q", 0, 0)
    assert (
        queues.declarations.declare_queue(client, "q", durable=True, arguments={"x-max-length": 5, "x-unknown": 1}).name
        == "q"
    )
    for options in (
        {"durable": False},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-max-length": 6}},
        {"durable": True},
    ):
        assert refusal(queues.declarations.declare_queue, client, "q", **options) is Reason.PRECONDITION_FAILED
    queues.declarations.declare_exchange(client, "e", "topic", durable=True)
    queues.declarations.declare_exchange(client, "e", "topic", durable=True)
    assert (
        refusal(queues.declarations.declare_exchange, client, "e", "direct", durable=True) is Reason.PRECONDITION_FAILED
    )
    queues.declarations.declare_exchange(client, "amq.topic", "topic", durable=True)
    assert refusal(queues.declarations.declare_exchange, client, "amq.new", "topic") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.declare_queue, client, "amq.new") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.declare_exchange, client, "x", "x-delayed") is Reason.UNKNOWN_KIND
    assert refusal(queues.declarations.find_exchange, "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.find_queue, client, "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.delete_exchange, client, "amq.topic") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.bind, client, "q", "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.bind, client, "missing", "e") is Reason.NOT_FOUND


@pytest.mark.parametrize("name", ["a\x1b]0;b", "a\nb", "\x7f", "a\u202eb", "a\0b", "x" * 256, "é" * 128])
async def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    room = Room()
    assert refusal(room.queues.declarations.declare_queue, room.client, name) is Reason.PRECONDITION_FAILED
    assert refusal(room.queues.declarations.declare_exchange, room.client, name) is Reason.PRECONDITION_FAILED
    assert not room.queues.declarations.has_queue(name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": -1}, Reason.PRECONDITION_FAILED),
        ({"x-message-ttl": "5"}, Reason.PRECONDITION_FAILED),
        ({"x-expires": 0}, Reason.PRECONDITION_FAILED),
        ({"x-max-length": True}, Reason.PRECONDITION_FAILED),
        ({"x-overflow": "drop-tail"}, Reason.PRECONDITION_FAILED),
        ({"x-max-priority": 256}, Reason.PRECONDITION_FAILED),
        ({"x-dead-letter-exchange": 1}, Reason.PRECONDITION_FAILED),
        ({"x-dead-letter-routing-key": "k"}, Reason.PRECONDITION_FAILED),
        ({"x-single-active-consumer": 1}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "quorum"}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "fast"}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "stream"}, Reason.PRECONDITION_FAILED),
    ],
)
async def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], reason: Reason) -> None:
    room = Room()
    assert refusal(room.queues.declarations.declare_queue, room.client, "q", arguments=arguments) is reason


async def test_what_is_durable_is_there_after_a_power_cut_and_what_is_not_has_gone() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_exchange(
        client, "kept", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}
    )
    queues.declarations.declare_exchange(client, "gone", "topic")
    queues.declarations.declare_exchange(client, "deleted", "topic", durable=True)
    for name in ("q", "t", "d", "x"):
        queues.declarations.declare_queue(client, name, durable=name != "t", exclusive=name == "x")
    queues.declarations.bind(client, "q", "kept", "a.#")
    queues.declarations.bind(client, "q", "kept", "b.#")
    queues.declarations.bind(client, "q", "gone", "c.#")
    queues.declarations.bind(client, "t", "kept", "a.#")
    queues.declarations.bind(client, "q", "amq.fanout", arguments={"list": [1, "two"], "flag": True})
    queues.declarations.unbind(client, "q", "kept", "b.#")
    queues.declarations.delete_exchange(client, "deleted")
    queues.declarations.delete_queue(client, "d")
    room.publish(b"transient", key="t")
    await room.settle_down()
    room.power_cut()
    queues, client = room.queues, room.client
    for name in ("t", "d", "x"):
        assert refusal(queues.declarations.find_queue, client, name) is Reason.NOT_FOUND
    for name in ("gone", "deleted"):
        assert refusal(queues.declarations.find_exchange, name) is Reason.NOT_FOUND
    room.publish(b"1", exchange="kept", key="a.x")
    room.publish(b"2", exchange="kept", key="b.x")
    await room.settle_down()
    assert await room.drain() == [b"1", b"2"], "the second by the alternate exchange"
    queues.declarations.unbind(client, "q", "amq.fanout", arguments={"flag": True, "list": [1, "two"]})
    queues.declarations.declare_queue(client, "new", durable=True)
    assert await room.drain("new") == [], "its number is not that of the transient queue"
    assert room.publish(b"3", exchange="kept", key="b.x") == [False]
    await room.settle_down()
    assert await room.drain() == []


async def test_exclusive_queues_belong_to_their_connection_and_end_with_it() -> None:
    room = Room()
    other = room.new_client()
    name = room.queues.declarations.declare_queue(room.client, exclusive=True).name
    assert name.startswith("amq.gen-")
    assert refusal(room.queues.declarations.find_queue, other, name) is Reason.RESOURCE_LOCKED
    assert refusal(room.queues.declarations.declare_queue, other, name, exclusive=True) is Reason.RESOURCE_LOCKED
    assert refusal(room.queues.declarations.delete_queue, other, name) is Reason.RESOURCE_LOCKED
    room.publish(b"1", key=name)
    room.queues.disconnects.begin(room.client)
    assert refusal(room.queues.declarations.find_queue, other, name) is Reason.NOT_FOUND
    await room.settle_down()
    assert room.queues.bounds.waiting.used == 0


async def test_what_deletes_itself_does_so_when_it_is_not_used_any_more() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_exchange(client, "e", "fanout", auto_delete=True)
    queues.declarations.declare_queue(client, "q", auto_delete=True)
    queues.declarations.bind(client, "q", "e")
    first, second = room.consume(), room.consume()
    queues.consumptions.cancel(first.consumption)
    queues.declarations.find_queue(client, "q")
    queues.consumptions.cancel(second.consumption)
    assert refusal(queues.declarations.find_queue, client, "q") is Reason.NOT_FOUND
    assert refusal(queues.declarations.find_exchange, "e") is Reason.NOT_FOUND


async def test_deletion_may_depend_on_use() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_queue(client, "q", durable=True)
    queues.declarations.declare_exchange(client, "e", "fanout")
    queues.declarations.bind(client, "q", "e")
    room.publish(b"1", b"2")
    taker = room.consume(prefetch=1)
    assert refusal(queues.declarations.delete_queue, client, "q", if_unused=True) is Reason.IN_USE
    assert refusal(queues.declarations.delete_queue, client, "q", if_empty=True) is Reason.IN_USE
    assert refusal(queues.declarations.delete_exchange, client, "e", if_unused=True) is Reason.IN_USE
    await room.settle_down()
    assert queues.declarations.purge(client, "q") == 1
    assert queues.declarations.delete_queue(client, "q", if_empty=True) == 0
    assert taker.cancelled_by == [Reason.NOT_FOUND]
    taker.settle()
    queues.declarations.delete_exchange(client, "e", if_unused=True)
    assert queues.declarations.delete_queue(client, "q") == 0
    assert queues.bounds.waiting.used == queues.bounds.unacknowledged.used == queues.bounds.bindings.used == 0


async def test_only_one_may_have_a_queue_to_itself() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q")
    taker = room.consume(exclusive=True)
    assert refusal(room.consume) is Reason.ACCESS_REFUSED
    room.queues.consumptions.cancel(taker.consumption)
    room.consume()
    assert refusal(room.consume, exclusive=True) is Reason.ACCESS_REFUSED


async def test_access_rules_hold_for_publishing_binding_delivery_and_deletion() -> None:
    room = Room()
    queues = room.queues
    eve = room.new_client("eve", Restricted())
    queues.declarations.declare_queue(room.client, "own.q", durable=True)
    queues.declarations.bind(room.client, "own.q", "amq.topic", "#")
    queues.declarations.declare_queue(eve, "own.eves", durable=True)
    assert refusal(queues.declarations.bind, eve, "own.eves", "amq.topic", "#") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.bind, eve, "own.eves", "amq.topic", "#.own") is Reason.ACCESS_REFUSED
    queues.declarations.bind(eve, "own.eves", "amq.topic", "own.#")
    assert refusal(room.publish, b"x", exchange="amq.topic", key="other", client=eve) is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.delete_queue, eve, "own.q") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.purge, eve, "own.q") is Reason.ACCESS_REFUSED
    for key in ("own.1", "secret", "own.2"):
        room.publish(key.encode(), exchange="amq.topic", key=key)
    taker = room.consume("own.q", client=eve)
    await room.settle_down()
    assert taker.payloads == [b"own.1", b"own.2"]
    assert queues.declarations.find_queue(room.client, "own.q").messages == 1, "what she may not read waits for another"
    assert await room.drain("own.q") == [b"secret"]


@pytest.mark.parametrize("written", [False, True])
async def test_a_queue_with_many_bindings_goes_whole_or_not_at_all(written: bool) -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 10 * NOW_UNITS
    queues.declarations.declare_exchange(client, "kept", "topic", durable=True)
    queues.declarations.declare_exchange(client, "unused", "fanout", durable=True, auto_delete=True)
    queues.declarations.declare_queue(client, "q", durable=True)
    for number in range(count):
        queues.declarations.bind(client, "q", "kept", f"a.{number}")
    queues.declarations.bind(client, "q", "unused")
    room.publish(b"before", exchange="kept", key="a.1")
    await room.settle_down()
    assert queues.declarations.delete_queue(client, "q") == 1
    assert queues.bounds.bindings.used > count / 2
    room.publish(b"nobody's", exchange="kept", key="a.1")
    queues.declarations.declare_queue(client, "q", durable=True)
    queues.declarations.bind(client, "q", "kept", "a.2")
    room.publish(b"by an old binding", exchange="kept", key="a.1")
    room.publish(b"by a new one", exchange="kept", key="a.2")
    room.batch.store()
    if written:
        room.commit()
    room.power_cut()
    left = {binding.key for binding in room.queues.registry.topology.bindings()}
    if written:
        assert left == {"a.2"}
        assert refusal(room.queues.declarations.find_exchange, "unused") is Reason.NOT_FOUND
        assert await room.drain() == [b"by a new one"]
    else:
        assert left == {"", *(f"a.{number}" for number in range(count))}
        assert await room.drain() == [b"before"]
    room.queues.declarations.delete_queue(room.client, "q")
    while room.queues.bounds.bindings.used:
        await room.settle_down()
    assert not room.queues.registry.topology._destinations


async def test_an_exchange_with_many_bindings_goes_at_once() -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 10 * NOW_UNITS
    queues.declarations.declare_exchange(client, "e", "direct", durable=True)
    queues.declarations.declare_exchange(client, "before", "fanout", durable=True)
    queues.declarations.bind_exchange(client, "e", "before")
    for name in ("q", "r"):
        queues.declarations.declare_queue(client, name, durable=True)
        for number in range(count):
            queues.declarations.bind(client, name, "e", f"{number}")
    queues.declarations.delete_exchange(client, "e")
    queues.declarations.declare_exchange(client, "e", "direct", durable=True)
    queues.declarations.bind(client, "q", "e", "1")
    queues.declarations.delete_queue(client, "r")
    room.publish(b"1", exchange="before", key="1")
    room.publish(b"2", exchange="e", key="1")
    room.publish(b"3", exchange="e", key="2")
    await room.settle_down()
    assert await room.drain() == [b"2"]
    while queues.bounds.bindings.used > 1:
        await room.settle_down()
    await room.restart()
    assert [each.key for each in room.queues.registry.topology.bindings()] == ["1"]


async def test_exchanges_that_are_not_used_any_more_go_in_any_number() -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 1000
    for number in range(count):
        queues.declarations.declare_exchange(client, f"e{number}", "fanout", auto_delete=True)
        if number:
            queues.declarations.bind_exchange(client, f"e{number}", f"e{number - 1}")
    queues.declarations.declare_queue(client, "q")
    queues.declarations.bind(client, "q", f"e{count - 1}")
    assert room.publish(b"x", exchange="e0") == [False]
    await room.settle_down()
    assert room.queue().count == 1
    queues.declarations.delete_queue(client, "q")
    assert not queues.bounds.exchanges.used
    assert not queues.bounds.bindings.used


# --- What access rules let users do with the queues and exchanges of others


RULES = """\
user alice
topic readwrite secret/#
user mallory
topic readwrite public/#
"""


class Users:
    """Clients of a room with rules."""

    def __init__(self, rules: str = RULES) -> None:
        self.room = Room()
        self.accounts = Accounts(acl=parse(rules, "acl"))
        self.accounts.watch(self.room.queues.revocation.begin)
        self.alice, self.mallory = self.client("alice"), self.client("mallory")

    def client(self, user: str) -> QueueClient:
        return self.room.new_client(user, AccountIdentity(self.accounts, user, ""))

    def rules(self, text: str) -> None:
        self.accounts.replace(acl=parse(text, "acl"))

    def publish(self, *payloads: bytes, key: str = "secret.jobs", exchange: str = "") -> None:
        self.room.publish(*payloads, exchange=exchange, key=key, client=self.alice)

    def declare(self, name: str = "secret.jobs", **options: Any) -> None:
        self.room.queues.declarations.declare_queue(self.alice, name, durable=True, **options)

    def look(self, name: str = "secret.jobs", client: QueueClient | None = None) -> Declared:
        return self.room.queues.declarations.find_queue(client or self.alice, name)


def forbidden(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The sentence with which access rules refuse something."""
    with pytest.raises(QueueError) as refused:
        call(*args, **options)
    assert refused.value.reason is Reason.ACCESS_REFUSED
    return str(refused.value)


def outcome(call: Callable[[], object]) -> Reason | None:
    """Why something is refused; None where it is not."""
    try:
        call()
    except QueueError as error:
        return error.reason
    return None


async def test_a_queue_of_another_user_is_not_for_one_without_a_right() -> None:
    users = Users()
    room, queues = users.room, users.room.queues
    users.declare()
    users.publish(b"1", b"2")
    mallory = users.mallory
    calls: list[tuple[str, Callable[[str], object]]] = [
        ("read", lambda name: room.consume(name, client=mallory)),
        ("read", lambda name: room.consume(name, client=mallory, exclusive=True)),
        ("read", lambda name: queues.consumptions.get(mallory, name, lambda _: None)),
        ("read", lambda name: queues.declarations.find_queue(mallory, name)),
        ("declare", lambda name: queues.declarations.declare_queue(mallory, name, durable=True)),
        ("declare", lambda name: queues.declarations.declare_queue(mallory, name)),
        ("read", lambda name: queues.declarations.bind(mallory, name, "amq.topic", "public.#")),
        ("read", lambda name: queues.declarations.unbind(mallory, name, "amq.topic", "public.#")),
        ("write", lambda name: queues.declarations.purge(mallory, name)),
        ("write", lambda name: queues.declarations.delete_queue(mallory, name)),
    ]
    for word, call in calls:
        sentence = forbidden(call, "secret.jobs")
        assert f"`queue {word} secret.jobs`" in sentence
        assert forbidden(call, "secret.none") == sentence.replace("jobs", "none"), "it learns that there is none"
    await room.settle_down()
    assert users.look() == ("secret.jobs", 2, 0)
    for look in (queues.declarations.find_queue, queues.declarations.purge):
        assert refusal(look, users.alice, "secret.none") is Reason.NOT_FOUND
        assert refusal(look, mallory, "amq.gen-none") is Reason.NOT_FOUND
    assert queues.declarations.delete_queue(users.alice, "secret.none") == 0


async def test_a_name_is_not_taken_from_those_who_have_a_right_to_it() -> None:
    users = Users()
    queues = users.room.queues
    sentence = forbidden(queues.declarations.declare_queue, users.mallory, "secret.next", durable=True)
    assert "`queue declare secret.next`" in sentence
    assert "`queue declare secret.x`" in forbidden(queues.declarations.declare_exchange, users.mallory, "secret.x")
    users.declare("secret.next")
    queues.declarations.declare_queue(users.mallory, "public.next")
    queues.declarations.declare_exchange(users.mallory, "public", "fanout")
    # Names of the node need no right.
    own = queues.declarations.declare_queue(users.mallory, exclusive=True).name
    users.room.consume(own, client=users.mallory)
    forbidden(queues.declarations.find_queue, users.alice, own)


@pytest.mark.parametrize(
    ("rules", "permitted"),
    [
        ("queue read secret.#", {"consume", "get", "look", "declare again", "bind to"}),
        ("topic read secret/#", {"consume", "get", "look", "declare again", "declare", "bind to"}),
        ("topic write secret/#", {"look", "declare again", "declare"}),
        ("queue declare secret.#", {"look", "declare again", "declare"}),
        ("queue write secret.#", {"look", "declare again", "purge", "bind", "unbind", "delete", "delete exchange"}),
        ("queue read secret.#\nqueue deny secret.#", set()),
        ("topic readwrite secret/#\nqueue deny secret.#", set()),
    ],
)
async def test_what_each_rule_permits(rules: str, permitted: set[str]) -> None:
    users = Users(f"{RULES}user bob\n{rules}\ntopic readwrite bobs/#\n")
    queues, bob = users.room.queues, users.client("bob")
    users.declare()
    queues.declarations.declare_exchange(users.alice, "secret.all", "fanout")
    queues.declarations.bind(users.alice, "secret.jobs", "amq.topic", "secret.a")
    queues.declarations.declare_queue(bob, "bobs.q")
    calls: dict[str, Callable[[], object]] = {
        "consume": lambda: queues.consumptions.cancel(users.room.consume("secret.jobs", client=bob).consumption),
        "get": partial(queues.consumptions.get, bob, "secret.jobs", lambda _: None),
        "look": partial(queues.declarations.find_queue, bob, "secret.jobs"),
        "declare again": partial(queues.declarations.declare_queue, bob, "secret.jobs", durable=True),
        "declare": partial(queues.declarations.declare_queue, bob, "secret.new"),
        "bind to": partial(queues.declarations.bind, bob, "bobs.q", "secret.all"),
        "purge": partial(queues.declarations.purge, bob, "secret.jobs"),
        "bind": partial(queues.declarations.bind, bob, "secret.jobs", "amq.topic", "bobs.#"),
        "unbind": partial(queues.declarations.unbind, bob, "secret.jobs", "amq.topic", "secret.a"),
        "delete": partial(queues.declarations.delete_queue, bob, "secret.jobs"),
        "delete exchange": partial(queues.declarations.delete_exchange, bob, "secret.all"),
    }
    outcomes = {name: outcome(call) for name, call in calls.items()}
    assert {name for name, reason in outcomes.items() if reason is None} == permitted
    assert set(outcomes.values()) <= {None, Reason.ACCESS_REFUSED}


async def test_a_rule_that_denies_holds_for_the_owner_too() -> None:
    users = Users()
    users.declare("secret.a")
    users.rules(RULES.replace("user mallory", "queue deny secret.a\nuser mallory"))
    assert forbidden(users.look, "secret.a") == "access rules deny the user every use of queue secret.a"
    users.declare("secret.b")


async def test_an_owner_keeps_its_queue_without_a_right_to_the_name() -> None:
    users = Users()
    users.declare()
    users.rules("user alice\ntopic readwrite other/#\n")
    users.declare()
    users.room.consume("secret.jobs", client=users.client("alice"))
    assert users.room.queues.declarations.delete_queue(users.alice, "secret.jobs") == 0
    assert "`queue declare secret.jobs`" in forbidden(users.declare)


async def test_without_rules_everybody_may_do_all() -> None:
    room = Room()
    other = room.new_client("mallory")
    room.queues.declarations.declare_queue(room.client, "q", auto_delete=True)
    room.queues.declarations.declare_queue(other, "q", auto_delete=True)
    room.queues.consumptions.cancel(room.consume(client=other).consumption)
    assert refusal(room.queues.declarations.find_queue, room.client, "q") is Reason.NOT_FOUND


# --- exchanges


@pytest.mark.parametrize("kind", ["fanout", "headers"])
async def test_messages_of_another_s_exchange_are_not_counted(kind: str) -> None:
    users = Users()
    queues, mallory = users.room.queues, users.mallory
    queues.declarations.declare_exchange(users.alice, "secret.all", kind)
    queues.declarations.declare_queue(mallory, "public.q")
    queues.declarations.declare_exchange(mallory, "public.x", "fanout")
    assert "`queue read secret.all`" in forbidden(queues.declarations.bind, mallory, "public.q", "secret.all")
    assert "`queue read secret.all`" in forbidden(queues.declarations.bind_exchange, mallory, "public.x", "secret.all")
    assert "`queue write secret.all`" in forbidden(queues.declarations.bind_exchange, mallory, "secret.all", "public.x")
    assert "`queue write secret.all`" in forbidden(queues.declarations.delete_exchange, mallory, "secret.all")
    users.publish(b"x", exchange="secret.all", key="secret.x")
    assert users.look("public.q", mallory).messages == 0


@pytest.mark.parametrize("kind", ["fanout", "headers"])
async def test_an_exchange_without_topics_takes_a_right_to_publish_to_it(kind: str) -> None:
    users = Users(
        f"{RULES}user bob\ntopic readwrite bobs/#\nqueue write secret.all\nuser carol\ntopic write secret/all\n"
    )
    queues, mallory = users.room.queues, users.mallory
    queues.declarations.declare_exchange(users.alice, "secret.all", kind)
    users.declare()
    queues.declarations.bind(users.alice, "secret.jobs", "secret.all")
    assert "`queue write secret.all`" in forbidden(queues.publishing.route, mallory, "secret.all", "public.x")
    away = {"alternate-exchange": "secret.all"}
    assert "`queue write secret.all`" in forbidden(
        queues.declarations.declare_exchange, mallory, "public.x", arguments=away
    )
    away = {"x-dead-letter-exchange": "secret.all", "x-dead-letter-routing-key": "public.x"}
    assert "`queue write secret.all`" in forbidden(
        queues.declarations.declare_queue, mallory, "public.q", arguments=away
    )
    assert users.look().messages == 0
    for user, key in (("alice", "secret.x"), ("bob", "bobs.x"), ("carol", "secret.all")):
        assert queues.publishing.route(users.client(user), "secret.all", key).is_routed
    users.rules(RULES + "queue deny secret.all\n")
    assert "deny" in forbidden(queues.publishing.route, mallory, "secret.all", "public.x")
    queues.publishing.route(mallory, f"amq.{kind}", "public.x")


async def test_bindings_that_name_topics_ask_for_these() -> None:
    """So a reader of some topics gets them of whatever exchange they are published to."""
    users = Users(f"{RULES}user bob\ntopic read secret/b\ntopic readwrite bobs/#\n")
    queues, bob = users.room.queues, users.client("bob")
    queues.declarations.declare_queue(bob, "bobs.q")
    for name, kind in (("secret.topic", "topic"), ("secret.direct", "direct")):
        queues.declarations.declare_exchange(users.alice, name, kind)
        queues.declarations.declare_exchange(bob, name, kind)  # as programs do before they bind
        queues.declarations.bind(bob, "bobs.q", name, "secret.b")
        assert forbidden(queues.declarations.bind, bob, "bobs.q", name, "secret.c")
    queues.declarations.bind(bob, "bobs.q", "amq.fanout")


async def test_an_exchange_that_ends_with_its_last_binding_is_not_ended_by_others() -> None:
    users = Users()
    queues, mallory = users.room.queues, users.mallory
    queues.declarations.declare_exchange(users.alice, "secret.topic", "topic", auto_delete=True)
    queues.declarations.declare_queue(mallory, "public.q")
    assert "`queue read secret.topic`" in forbidden(
        queues.declarations.bind, mallory, "public.q", "secret.topic", "public.#"
    )
    queues.declarations.find_exchange("secret.topic")


# --- rules that change


async def test_consumers_that_lose_the_right_are_ended() -> None:
    users = Users(RULES + "queue read secret.#\n")
    room, mallory = users.room, users.mallory
    users.declare()
    exclusive = room.consume("secret.jobs", prefetch=2, client=mallory, exclusive=True)
    users.publish(b"1", b"2", b"3", key="secret.jobs")
    await room.settle_down()
    assert exclusive.payloads == [], "their topic is still not for it"
    users.rules(RULES + "queue read secret.#\ntopic read secret/jobs\n")
    await room.settle_down()
    assert exclusive.payloads == [b"1", b"2"]
    users.rules(RULES)
    assert exclusive.cancelled_by == [Reason.ACCESS_REFUSED]
    own = room.consume("secret.jobs", client=users.alice)
    await room.settle_down()
    assert own.payloads == [b"1", b"2", b"3"], "also what the other had and did not settle"
    exclusive.settle()
    own.settle()
    await room.settle_down()
    assert users.look().messages == room.queues.bounds.unacknowledged.used == 0
    assert room.queues.bounds.consumers.used == 1
    users.rules(RULES)
    assert own.consumption.active


async def test_who_waits_for_one_message_and_loses_the_right_gets_none() -> None:
    users = Users(RULES + "topic read secret/jobs\n")
    users.declare()
    users.publish(b"1")
    await users.room.restart()
    users.accounts.watch(users.room.queues.revocation.begin)
    found: list[object] = []
    users.room.queues.consumptions.get(users.client("mallory"), "secret.jobs", found.append)
    assert found == [], "the message is read from the log"
    users.rules(RULES)
    assert found == [None]
    await users.room.settle_down()
    assert users.look().messages == 1
    assert users.room.queues.bounds.unacknowledged.used == 0


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_consumer_without_the_right_does_not_end_the_queue(leaves: bool) -> None:
    """A queue that is deleted with its last consumer outlives one that has lost the right."""
    users = Users(RULES + "queue read secret.#\n")
    users.declare(auto_delete=True)
    users.publish(b"1")
    taker = users.room.consume("secret.jobs", client=users.mallory)
    if leaves:  # before the node has come to it
        users.accounts.acl = parse(RULES, "acl")
        users.room.queues.disconnects.begin(users.mallory)
    else:
        users.rules(RULES)
    assert not taker.consumption.active
    await users.room.settle_down()
    assert users.look().messages == 1
    users.room.queues.consumptions.cancel(users.room.consume("secret.jobs", client=users.alice).consumption)
    assert refusal(users.look) is Reason.NOT_FOUND


async def test_a_change_of_rules_is_worked_off_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is not held however many consumers a user has, and however many rules."""
    longest: list[float] = []
    for _ in range(TRIES):
        steps = await steps_of_a_change(monkeypatch)
        assert len(steps) > 3
        longest.append(max(steps))
        if min(longest) < STEP_S_MAX * slowness():
            return
    raise AssertionError(f"steps of {longest} s")


async def steps_of_a_change(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    rules = RULES + "".join(f"queue read secret.{number}\n" for number in range(200))
    users = Users(rules)
    for number in range(200):
        users.declare(f"secret.{number}")
    takers = [users.room.consume(f"secret.{at % 200}", client=users.mallory) for at in range(3_000)]
    steps: list[float] = []
    step = users.room.queues.revocation._step

    def timed() -> None:
        began = time.thread_time()
        step()
        steps.append(time.thread_time() - began)

    monkeypatch.setattr(users.room.queues.revocation, "_step", timed)
    with uncollected():
        users.rules(rules.replace("secret.", "public."))
        while any(taker.consumption.active for taker in takers):
            await users.room.settle_down()
    assert users.room.queues.bounds.consumers.used == 0
    return steps
