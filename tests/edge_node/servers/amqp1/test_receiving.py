"""Clients that receive: from streams and topics, with credit, outcomes and links that are found again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp1.harness import (
    Amqp,
    AtMostOnce,
    BlockingReceiver,
    Delivery,
    DurableSubscription,
    Filter,
    LinkDetached,
    Message,
    SettlesSecond,
    amqp,
    in_thread,
    symbol,
    timestamp,
    ulong,
)
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import LOCAL, Bound, Owner, OwnerKind, Quota, Refusals
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.amqp1.context import VERSION, LinkName, PersistedLink, PersistedLinks
from weft.protocols.mqtt.packets import PubAck, Publish


def messages(count: int, first: int = 0) -> list[Message]:
    return [Message(body=b"%d" % i, inferred=True) for i in range(first, first + count)]


def bodies(found: list[Message]) -> list[Any]:
    return [bytes(each.body) for each in found]


def since(value: object) -> Filter:
    return Filter({symbol("weft:offset-spec"): value})


async def test_a_receiver_of_a_stream_gets_what_comes_from_now_on(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        await in_thread(client.send, "plant/1/x", *messages(3))
        receiver = await in_thread(client.receiver, "stream/telemetry")
        await in_thread(client.send, "plant/1/x", *messages(3, 3))
        found = await in_thread(client.receive, receiver, 3)
        assert bodies(found) == [b"3", b"4", b"5"]
        assert [each.address for each in found] == ["plant/1/x"] * 3
        assert [each.annotations["x-opt-weft-offset"] for each in found] == [3, 4, 5]
        await client.close()


async def test_a_receiver_may_settle_second(tmp_path: Path) -> None:
    """The node settles what has an outcome, and the receiver after it; what was released comes again."""
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "stream/telemetry", options=SettlesSecond())
        await in_thread(client.send, "plant/1/x", *messages(2))

        def receive() -> list[Message]:
            link, found = receiver.link, []
            assert link.remote_rcv_settle_mode == link.RCV_SECOND
            for outcome in (Delivery.ACCEPTED, Delivery.RELEASED, Delivery.ACCEPTED):
                found.append(receiver.receive(timeout=PATIENCE_S))
                delivery = receiver.fetcher.unsettled.popleft()
                delivery.update(outcome)
                client.connection.wait(lambda each=delivery: each.settled, timeout=PATIENCE_S)
                delivery.settle()
            return found

        assert bodies(await in_thread(receive)) == [b"0", b"1", b"1"]
        await client.close()


@pytest.mark.parametrize(
    ("value", "expected"), [("first", 0), (ulong(2), 2), ("last", 4), ("5m", 0), ("time", 3), (ulong(99), 5)]
)
async def test_a_receiver_of_a_stream_says_where_it_begins(tmp_path: Path, value: Any, expected: int) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        await in_thread(client.send, "plant/1/x", *messages(3))
        await asyncio.sleep(0.01)
        records = await node.node.stored()
        if value == "time":
            value = timestamp(records[-1].time // 1_000_000 + 1)
        await in_thread(client.send, "plant/1/x", *messages(2, 3))
        receiver = await in_thread(client.receiver, "stream/telemetry", options=since(value))
        await in_thread(client.send, "plant/1/x", *messages(1, 5))
        found = await in_thread(client.receive, receiver, 6 - expected)
        assert bodies(found) == [b"%d" % i for i in range(expected, 6)]
        await client.close()


async def test_a_receiver_of_a_topic_gets_what_others_publish(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "plant/+/x")
        mqtt = await RawClient.connect(node.node.port)
        mqtt.send(Publish(b"plant/1/x", b"by MQTT", 1, packet_id=1), Publish(b"plant/1/y", b"not wanted"))
        await in_thread(client.send, "plant/2/x", Message(body=b"by AMQP", inferred=True))
        found = await in_thread(client.receive, receiver, 2)
        assert sorted(bodies(found)) == [b"by AMQP", b"by MQTT"]
        await client.close()
        await mqtt.close()


@pytest.mark.parametrize("level", ["plant", "none"], ids=["stream", "unrouted"])
async def test_nothing_is_lost_by_a_receiver_that_falls_behind(tmp_path: Path, level: str) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, f"{level}/#", credit=10)
        sender = await node.client("another")
        long = [Message(body=b"%d" % i + bytes(3000), inferred=True) for i in range(700)]
        await in_thread(sender.send, f"{level}/1/x", *long)
        assert node.node.counters.deliveries_dropped == 0
        found = await in_thread(client.receive, receiver, 700)
        assert [int(body.rstrip(b"\0")) for body in bodies(found)] == list(range(700))
        await client.close()
        await sender.close()


@pytest.mark.parametrize("address", ["stream/telemetry", "plant/#"])
async def test_released_messages_come_again_and_modified_ones_are_counted(tmp_path: Path, address: str) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, address)
        await in_thread(client.send, "plant/1/x", *messages(1))

        def handle() -> None:
            first = receiver.receive(timeout=PATIENCE_S)
            assert (first.delivery_count, first.first_acquirer) == (0, True)
            receiver.release(delivered=False)
            second = receiver.receive(timeout=PATIENCE_S)
            assert (bytes(second.body), second.delivery_count) == (b"0", 0)
            receiver.fetcher.unsettled[0].local.failed = True
            receiver.release(delivered=True)  # modified, delivery-failed
            third = receiver.receive(timeout=PATIENCE_S)
            assert (bytes(third.body), third.delivery_count) == (b"0", 1)
            receiver.reject()

        await in_thread(handle)
        await in_thread(client.send, "plant/1/x", *messages(1, 1))
        assert bodies(await in_thread(client.receive, receiver, 1)) == [b"1"]
        await client.close()


async def test_credit_is_kept_to_and_drained(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "stream/telemetry", credit=0, options=since("first"))
        await in_thread(client.send, "plant/1/x", *messages(5))

        def take() -> None:
            receiver.link.flow(2)
            client.connection.wait(lambda: receiver.fetcher.has_message == 2, timeout=PATIENCE_S)
            receiver.link.drain(10)
            client.connection.wait(lambda: receiver.fetcher.has_message == 5, timeout=PATIENCE_S)
            client.connection.wait(lambda: not receiver.link.draining(), timeout=PATIENCE_S)  # the rest was given back

        await in_thread(take)
        await client.close()


async def kept(client: Any, address: str) -> BlockingReceiver:
    receiver: BlockingReceiver = await in_thread(
        client.receiver, address, name="my-link", options=[DurableSubscription(), since("first")]
    )
    return receiver


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("address", ["stream/telemetry", "plant/#", "other/#"])
async def test_a_durable_link_goes_on_where_it_was(tmp_path: Path, address: str, kill: bool) -> None:
    topic = "other/x" if address == "other/#" else "plant/1/x"
    async with amqp(tmp_path, kill=kill) as node:
        client = await node.client()
        receiver = await kept(client, address)
        await in_thread(client.send, topic, *messages(4))
        assert bodies(await in_thread(client.receive, receiver, 2)) == [b"0", b"1"]
        client.drop()
        sender = await node.client("another")
        await in_thread(sender.send, topic, *messages(2, 4))
        client = await node.client()
        receiver = await kept(client, address)
        found = await in_thread(client.receive, receiver, 2)
        assert bodies(found) == [b"2", b"3"]
        assert [each.delivery_count for each in found] == [1, 1]  # they were on their way before
        await in_thread(client.receive, receiver, 1)
        client.drop()
        await sender.close()
        await asyncio.sleep(0.05)
        node.parts.kept.save()
        await node.node.durable()
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await kept(client, address)
        assert bodies(await in_thread(client.receive, receiver, 1)) == [b"5"]
        await in_thread(receiver.close)
        receiver = await in_thread(client.receiver, address, name="my-link")
        await in_thread(client.send, topic, *messages(1, 6))
        assert bodies(await in_thread(client.receive, receiver, 1)) == [b"6"]  # it was closed, and began again
        await client.close()


async def test_a_connection_that_comes_back_takes_its_link_over(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        former = await node.client()
        receiver = await kept(former, "plant/#")
        client = await node.client()
        receiver = await kept(client, "plant/#")
        await in_thread(client.send, "plant/1/x", *messages(1))
        assert bodies(await in_thread(client.receive, receiver, 1)) == [b"0"]
        with pytest.raises(LinkDetached) as stolen:
            await in_thread(former.connection.wait, lambda: False, timeout=PATIENCE_S)
        assert stolen.value.condition == "amqp:link:stolen"
        await former.close()
        await client.close()


async def test_what_a_client_may_not_read_is_refused_or_left_out(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        node.node.authenticator.may = lambda what, topic: what == "publish" or not topic.startswith("plant/secret")
        client = await node.client()
        with pytest.raises(LinkDetached) as refused:
            await in_thread(client.receiver, "plant/secret/x")
        assert refused.value.condition == "amqp:unauthorized-access"
        receiver = await in_thread(client.receiver, "stream/telemetry", options=since("first"))
        await in_thread(client.send, "plant/secret/x", *messages(1))
        await in_thread(client.send, "plant/1/x", *messages(1, 1))
        assert bodies(await in_thread(client.receive, receiver, 1)) == [b"1"]
        await client.close()


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("stream/nothing", "amqp:not-found"),
        ("stream/weft-sessions", "amqp:not-found"),
        ("a/#/b", "amqp:invalid-field"),
        (None, "amqp:not-found"),
    ],
)
async def test_a_source_that_cannot_be_is_refused(tmp_path: Path, address: str | None, condition: str) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        with pytest.raises(LinkDetached) as refused:
            await in_thread(client.receiver, address)
        assert refused.value.condition == condition
        await client.close()


async def test_a_receiver_may_want_settled_messages(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "plant/#", options=AtMostOnce())
        await in_thread(client.send, "plant/1/x", *messages(2))

        def take() -> None:
            assert bytes(receiver.receive(timeout=PATIENCE_S).body) == b"0"
            assert bytes(receiver.receive(timeout=PATIENCE_S).body) == b"1"
            assert not receiver.fetcher.unsettled, "there is nothing to be settled"

        await in_thread(take)
        await client.close()


async def test_sources_that_the_node_would_have_to_make_are_refused(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        with pytest.raises(LinkDetached) as refused:
            await in_thread(client.receiver, None, dynamic=True)
        assert refused.value.condition == "amqp:not-implemented"
        await client.close()


class Narrow(AtMostOnce):  # type: ignore[misc]
    """A receiver of settled messages in a session that takes few bytes at a time."""

    def apply(self, link: Any) -> None:
        super().apply(link)
        link.session.incoming_capacity = 70_000


def bytes_held(node: Amqp) -> int:
    return node.node.mqtt.session_context.windows.budget.used


async def test_a_narrow_session_gets_all_settled_messages_and_holds_no_memory(tmp_path: Path) -> None:
    count, body = 100, b"x" * 40_000
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "plant/#", credit=10 * count, options=Narrow())
        publisher = await RawClient.connect(node.node.port, "publisher")
        for _ in range(count):
            publisher.send(Publish(b"plant/1/x", body, 1, packet_id=1))
            assert isinstance(await publisher.receive(), PubAck)

        def take() -> None:
            for _ in range(count):
                assert len(receiver.receive(timeout=PATIENCE_S).body) == len(body)

        await in_thread(take)
        await until(lambda: bytes_held(node) == 0)
        await client.close()


async def test_receivers_of_one_user_get_long_messages_one_after_the_other(tmp_path: Path) -> None:
    """Their memory is one share, which has room for four of them."""
    async with amqp(tmp_path, message_bytes=5_000_000) as node:
        clients = [await node.client(f"container-{number}") for number in range(7)]
        options = [AtMostOnce() if number % 2 else None for number in range(7)]
        receivers = [
            await in_thread(client.receiver, "plant/#", options=option)
            for client, option in zip(clients, options, strict=True)
        ]
        publisher = await RawClient.connect(node.node.port, "publisher")
        publisher.send(Publish(b"plant/1/x", b"x" * 4_000_000, 1, packet_id=1))
        assert isinstance(await publisher.receive(), PubAck)
        for client, receiver, option in zip(clients, receivers, options, strict=True):
            message = await in_thread(receiver.receive, timeout=PATIENCE_S)
            assert len(message.body) == 4_000_000
            if option is None:
                await in_thread(receiver.accept)
                await in_thread(client.receiver, "plant/other")  # what goes behind the outcome
        await until(lambda: bytes_held(node) == 0)
        for client in clients:
            await client.close()


# --- Queues that clients of AMQP 1.0 send to and receive from


def declare(node: Amqp, name: str = "orders", **arguments: object) -> None:
    assert node.parts.queues is not None
    client = QueueClient(Owner(OwnerKind.ADDRESS, LOCAL))
    node.parts.queues.declarations.declare_queue(client, name, durable=True, arguments=arguments)


async def test_what_is_sent_to_a_queue_is_received_once(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        declare(node)
        client = await node.client()
        await in_thread(client.send, "queue/orders", *[Message(body=b"%d" % i, inferred=True) for i in range(5)])
        first = await in_thread(client.receiver, "queue/orders")
        found = await in_thread(client.receive, first, 3)
        assert [bytes(each.body) for each in found] == [b"0", b"1", b"2"]
        assert [each.first_acquirer for each in found] == [True] * 3
        await client.close()
        client = await node.client("another")
        second = await in_thread(client.receiver, "queue/orders")
        found = await in_thread(client.receive, second, 2)
        assert [bytes(each.body) for each in found] == [b"3", b"4"]
        assert [each.first_acquirer for each in found] == [False] * 2  # they were on their way to the first
        await client.close()


async def test_outcomes_are_those_of_the_queue(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        declare(node, "dead")
        declare(node, "orders", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        client = await node.client()
        await in_thread(client.send, "queue/orders", Message(body=b"x", inferred=True))
        receiver = await in_thread(client.receiver, "queue/orders", credit=1)

        def handle() -> None:
            assert receiver.receive(timeout=PATIENCE_S).delivery_count == 0
            receiver.release(delivered=False)
            again = receiver.receive(timeout=PATIENCE_S)
            assert (again.delivery_count, again.first_acquirer) == (0, False)
            receiver.fetcher.unsettled[0].local.failed = True
            receiver.release(delivered=True)
            assert receiver.receive(timeout=PATIENCE_S).delivery_count == 1
            receiver.reject()

        await in_thread(handle)
        dead = await in_thread(client.receiver, "queue/dead")
        (found,) = await in_thread(client.receive, dead, 1)
        assert bytes(found.body) == b"x"
        await client.close()


async def test_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        for attach in (client.receiver, client.sender):
            with pytest.raises(LinkDetached) as refused:
                await in_thread(attach, "queue/nothing")
            assert refused.value.condition == "amqp:not-found"
        await client.close()


# --- Places of links in the log, as a start finds them


NAME = LinkName(Owner(OwnerKind.USER, "ann"), "container", "link")


async def test_a_link_does_not_pass_over_messages_that_have_the_numbers_of_lost_ones() -> None:
    """What is written of a link may outlive messages of the same commit, when the power fails during that."""
    log = open_log(FakeFileSystem())
    stream = log.stream("telemetry")
    log.append(stream, 0, [b"plant/1"] * 3, [b"0", b"1", b"2"])

    def links() -> PersistedLinks:
        return PersistedLinks(log, Bound(Quota("limits.sessions", 4, 4, ""), Refusals(time.monotonic)), lambda: 0, 60)

    def sent(kept: PersistedLink) -> None:
        kept.positions, kept.owed = {"telemetry": 9, "gone": 7}, {"telemetry": [1, 7], "gone": [2]}

    state = PersistedLink(VERSION, ("user", "ann"), "container", "link", "plant/#", "plant/#")
    assert links().attach(NAME, state, sent, 60)
    commit_all(log)
    found = links()
    found.load()
    kept = found.get(NAME)
    assert kept is not None
    assert kept.positions == {"telemetry": 3, "gone": 0}
    assert kept.owed == {"telemetry": [1], "gone": []}
    log.close()


async def test_a_link_that_was_attached_in_a_crash_is_kept_for_its_time() -> None:
    """A client needs longer to come back than the node needs to save its links for the first time."""
    log, now = open_log(FakeFileSystem()), 10**18

    def links() -> PersistedLinks:
        bound = Bound(Quota("limits.sessions", 4, 4, ""), Refusals(time.monotonic))
        return PersistedLinks(log, bound, lambda: now, 60)

    state = PersistedLink(VERSION, ("user", "ann"), "container", "link", "plant/#", "plant/#")
    assert links().attach(NAME, state, lambda _: None, float("inf"))
    commit_all(log)
    found = links()
    found.load()
    now += 59 * 10**9
    found.save()
    assert found.get(NAME) is not None
    now += 2 * 10**9
    found.save()
    assert found.get(NAME) is None
    log.close()
