"""The taking of a hub's messages: a real node, with the frames that a hub would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weft.config.links import Down, Link
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.down import KEPT_MAX
from weft.edge_node.links.down_part import DownPart
from weft.edge_node.node import EdgeNode
from weft.protocols.batch import records
from weft.protocols.link import DownMessage, MessageOutcome, OutcomeKind, Outcomes
from weft.replication.runner.settings import MessageTaker
from weft.storage.segment_log import LogFull

HOUR = 3600 * 10**9
HUB = "0f" * 16


def message(number: int, topic: str = "down/x", payload: bytes = b"go", **fields: int) -> DownMessage:
    return DownMessage(number, fields.get("accepted", number), fields.get("left", HOUR), topic, payload)


async def running(folder: Path) -> EdgeNode:
    links = {"cloud": Link(to=("http://127.0.0.1:9",), down=Down(), hold_at_start_s=0.0)}
    streams = {"telemetry": Stream(from_=("plant/#",))}
    node = EdgeNode(
        EdgeConfig(node="press-1", data_dir=str(folder), streams=streams, links=links, listeners={}, http=None)
    )
    await node.start()
    return node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[EdgeNode]:
    node = await running(tmp_path)
    yield node
    await node.close()


def taker_of(node: EdgeNode) -> MessageTaker:
    taker = node.part(DownPart).taker("cloud")
    assert taker is not None
    return taker


async def reported(node: EdgeNode, *messages: DownMessage) -> list[MessageOutcome]:
    """Give messages to the node; return the first answer."""
    answered: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
    taker = taker_of(node)
    taker.opening(HUB)
    taker.take(HUB, list(messages), lambda outcomes: None if answered.done() else answered.set_result(outcomes))
    return (await answered).outcomes


def stored(node: EdgeNode) -> list[tuple[bytes, bytes]]:
    stream = node.log.stream("weft-down")
    batches = node.log.read(stream, 0, 1 << 20)
    return [(record.key, record.payload) for data in batches for record in records(data)]


async def test_each_message_is_stored_once_across_a_restart(tmp_path: Path) -> None:
    node = await running(tmp_path)
    first = await reported(node, message(3), message(4, "cmd/x"), message(9, left=0))
    await node.close()
    assert [each.outcome for each in first] == [OutcomeKind.PUBLISHED, OutcomeKind.REFUSED, OutcomeKind.EXPIRED]
    node = await running(tmp_path)
    assert taker_of(node).opening(HUB).next == 10
    assert await reported(node, message(3), message(4, "cmd/x"), message(9)) == first
    # The same messages of another hub are others.
    assert taker_of(node).opening("other").next == 0
    assert stored(node) == [(b"down/x", b"go")]
    await node.close()


async def test_a_number_that_a_restored_hub_gives_again_is_another_message(node: EdgeNode) -> None:
    await reported(node, message(3), message(7))
    again = await reported(node, message(3, payload=b"new", accepted=1000))
    assert [each.outcome for each in again] == [OutcomeKind.PUBLISHED]
    assert [payload for _, payload in stored(node)] == [b"go", b"go", b"new"]


async def test_what_is_not_known_is_said(node: EdgeNode) -> None:
    await reported(node, message(7))
    assert [each.outcome for each in await reported(node, message(2))] == [OutcomeKind.UNKNOWN]


async def test_a_message_twice_in_one_frame_is_stored_once(node: EdgeNode) -> None:
    await reported(node, message(1), message(1))
    assert len(stored(node)) == 1


@pytest.mark.parametrize("topic", ["plant/x", "down/#", "", "$SYS/x", "down/" + "/" * 200, "down\0/x"])
async def test_topics_that_the_edge_refuses(node: EdgeNode, topic: str) -> None:
    (outcome,) = await reported(node, message(1, topic))
    assert (outcome.outcome, bool(outcome.reason)) == (OutcomeKind.REFUSED, True)
    assert stored(node) == []


async def test_a_full_log_keeps_messages_waiting(node: EdgeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise LogFull("the disk is full")

    together = node.log.together
    monkeypatch.setattr(node.log, "together", full)
    answers: asyncio.Queue[Outcomes] = asyncio.Queue()
    taker = taker_of(node)
    taker.opening(HUB)
    taker.take(HUB, [message(1), message(2)], answers.put_nowait)
    waiting = (await answers.get()).outcomes
    assert [(each.outcome, each.reason) for each in waiting] == [(OutcomeKind.WAITING, "the disk is full")] * 2
    assert node.part(DownPart).facts()["down"]["cloud"]["waiting"] == 2
    monkeypatch.setattr(node.log, "together", together)
    taker.take(HUB, [message(3)], answers.put_nowait)  # the next attempt stores all of them
    assert [each.outcome for each in (await answers.get()).outcomes] == [OutcomeKind.PUBLISHED] * 3
    assert len(stored(node)) == 3


async def test_outcomes_beyond_those_that_a_hub_asks_for_are_forgotten(node: EdgeNode) -> None:
    for first in range(0, KEPT_MAX + 512, 64):
        await reported(node, *(message(number, payload=b"") for number in range(first, first + 64)))
    assert [each.outcome for each in await reported(node, message(0))] == [OutcomeKind.UNKNOWN]
    assert [each.outcome for each in await reported(node, message(KEPT_MAX))] == [OutcomeKind.PUBLISHED]
