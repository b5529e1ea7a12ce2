"""A user without any right to the topics of another neither takes, blocks nor sees that user's queues by AMQP 1.0."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp1.harness import Amqp, Delivery, LinkDetached, Message, ProtonClient, amqp, in_thread
from tests.support.waiting import PATIENCE_S
from weft.bounds import Owner, OwnerKind
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import parse
from weft.edge_node.queues.queue import QueueClient

RULES = """\
user alice
topic readwrite secret/#
user mallory
topic readwrite public/#
"""
ALICE = QueueClient(Owner(OwnerKind.USER, "alice"))
FORBIDDEN = "amqp:unauthorized-access"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Amqp]:
    async with amqp(tmp_path) as serves:
        assert serves.parts.queues is not None
        serves.node.authenticator.accounts = Accounts(acl=parse(RULES, "acl"))
        serves.node.authenticator.accounts.watch(serves.parts.queues.revocation.begin)
        serves.node.authenticator.accounts.watch(serves.parts.permissions_changed)
        yield serves


def rules(node: Amqp, text: str) -> None:
    accounts = node.node.authenticator.accounts
    assert accounts is not None
    accounts.replace(acl=parse(text, "acl"))


def declare(node: Amqp, **options: Any) -> None:
    assert node.parts.queues is not None
    node.parts.queues.declarations.declare_queue(ALICE, "secret.jobs", **options)


def waiting(node: Amqp) -> int:
    assert node.parts.queues is not None
    return node.parts.queues.declarations.find_queue(ALICE, "secret.jobs").messages


async def entered(node: Amqp, user: str) -> ProtonClient:
    return await node.client(user, mechanisms="PLAIN", user=user, password="x", allow_insecure_mechs=True)


async def refusal(attach: Callable[..., object], *arguments: Any, **options: Any) -> LinkDetached:
    with pytest.raises(LinkDetached) as refused:
        await in_thread(attach, *arguments, **options)
    assert refused.value.condition == FORBIDDEN
    return refused.value


@pytest.mark.parametrize(
    "options", [{"auto_delete": True}, {"arguments": {"x-single-active-consumer": True}}], ids=["auto-delete", "single"]
)
async def test_a_queue_is_neither_read_nor_destroyed_nor_blocked(node: Amqp, options: dict[str, Any]) -> None:
    declare(node, **options)
    alice, mallory = await entered(node, "alice"), await entered(node, "mallory")
    await in_thread(alice.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    refused = await refusal(mallory.receiver, "queue/secret.jobs")
    assert "`queue read secret.jobs`" in str(refused)
    await mallory.close()
    assert waiting(node) == 1
    receiver = await in_thread(alice.receiver, "queue/secret.jobs")
    (found,) = await in_thread(alice.receive, receiver, 1)
    assert bytes(found.body) == b"job"
    await alice.close()


async def test_a_sender_does_not_learn_which_queues_there_are(node: Amqp) -> None:
    declare(node)
    mallory = await entered(node, "mallory")
    seen = await refusal(mallory.sender, "queue/secret.jobs")
    missing = await refusal(mallory.sender, "queue/secret.none")
    said = [str(each).partition(FORBIDDEN)[2] for each in (seen, missing)]  # behind the name of the link
    assert "`queue read secret.jobs`" in said[0]
    assert said[0].replace("jobs", "none") == said[1]

    def send() -> None:
        sender = mallory.sender(None)
        delivery = sender.link.send(Message(body=b"x", address="queue/secret.jobs"))
        mallory.connection.wait(lambda: delivery.settled, timeout=PATIENCE_S)
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == FORBIDDEN

    await in_thread(send)
    await mallory.close()


async def test_who_may_publish_to_the_topic_of_a_queue_may_send_to_it(node: Amqp) -> None:
    declare(node)
    rules(node, RULES + "user bob\ntopic write secret/jobs\n")
    bob = await entered(node, "bob")
    await in_thread(bob.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    await refusal(bob.receiver, "queue/secret.jobs")
    assert waiting(node) == 1
    await bob.close()


async def test_a_receiver_that_loses_the_right_is_closed(node: Amqp) -> None:
    declare(node, auto_delete=True)
    rules(node, RULES + "topic read secret/jobs\n")
    alice, mallory = await entered(node, "alice"), await entered(node, "mallory")
    receiver = await in_thread(mallory.receiver, "queue/secret.jobs")
    await in_thread(alice.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    held = await in_thread(receiver.receive, timeout=PATIENCE_S)
    assert bytes(held.body) == b"job"
    rules(node, RULES)
    await refusal(mallory.connection.wait, lambda: False, timeout=PATIENCE_S)
    assert waiting(node) == 1, "what it had and did not settle"
    receiver = await in_thread(alice.receiver, "queue/secret.jobs")
    (found,) = await in_thread(alice.receive, receiver, 1)
    assert bytes(found.body) == b"job"
    await mallory.close()
    await alice.close()
