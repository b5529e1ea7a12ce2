"""What access rules let users do with the queues and exchanges of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.edge_node.queues.room import Room
from tests.edge_node.queues.test_declarations import refusal
from tests.support.speed import slowness, uncollected
from tests.support.steps import STEP_S_MAX, TRIES
from weft.edge_node.access.authentication import AccountIdentity, Accounts
from weft.edge_node.access.identity import parse
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.queues.ready import Declared

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
