"""Queues as a part of a node: there when a listener has or had them, bounded by settings, told in the status."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.edge_node.queues.room import Room
from weft.bounds import Owner, OwnerKind, Refusals
from weft.config.load import load
from weft.config.metrics.edge import QUEUE_METRICS
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.node import EdgeNode
from weft.edge_node.queues.limits import QueueLimits, QueueShares
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.queues.ready import Outcome
from weft.edge_node.status.facts import samples
from weft.text.status import show_queues

ANN = Owner(OwnerKind.USER, "ann")
CONFIG = """
node: n
data_dir: {folder}/data
http: null
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB}}
queues: {{unacknowledged: 8}}
"""


def node(folder: Path) -> EdgeNode:
    file = folder / "edge.yaml"
    file.write_text(CONFIG.format(folder=folder))
    return EdgeNode(load(str(file), EdgeConfig).config)


async def test_a_node_that_has_no_queues_pays_nothing_and_one_that_had_some_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = node(tmp_path)
    shares = QueueShares(QueueLimits.of(first.config), Refusals(time.monotonic))
    assert shares.unacknowledged.share == 2
    assert (shares.waiting.total, shares.waiting.share) == (16 << 20, 4 << 20)
    await first.start()
    assert first.queues is None
    assert "weft-queues" not in first.log.streams()
    await first.close()
    with monkeypatch.context() as patch:
        patch.setattr("weft.edge_node.node.has_listener", lambda *_: True)
        second = node(tmp_path)
        await second.start()
    assert second.queues is not None
    second.queues.declarations.declare_queue(QueueClient(ANN), "jobs", durable=True)
    second.queues.declarations.bind(QueueClient(ANN), "jobs", "amq.topic", "plant.#")
    await second.log.durable()
    await second.close()
    third = node(tmp_path)
    await third.start()
    assert third.queues is not None, "what was bound continues taking messages"
    route = third.queues.arrivals.of_topic(b"plant/a")
    assert route is not None
    facts = third.status.facts()["queues"]
    assert facts["longest"][0]["queue"] == "jobs"
    reported = {each.name: each.value for each in samples(third.status) if isinstance(each, Sample)}
    catalogue = {metric.name for metric in QUEUE_METRICS}
    assert catalogue <= reported.keys(), "every metric of queues is exported"
    assert reported["weft_edge_queues"] == 1
    show_queues(facts)
    shown = capsys.readouterr().out
    assert "0 messages in 1 queue" in shown
    assert "jobs" in shown
    await third.close()


async def test_what_became_of_messages_is_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    room = Room()
    show_queues(room.queues.figures.facts())
    assert capsys.readouterr().out == "", "a node without queues says nothing of them"
    room.queues.declarations.declare_queue(room.client, "dead", durable=True)
    gone = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    room.queues.declarations.declare_queue(room.client, "q", durable=True, arguments={**gone, "x-max-length": 3})
    taker = room.consume(prefetch=2)
    room.publish(b"1", b"2", b"3", b"4", b"5", b"6")
    await room.settle_down()
    taker.settle(Outcome.ACCEPT, count=1)
    await room.settle_down()
    taker.settle(Outcome.REQUEUE, count=1)
    taker.settle(Outcome.REJECT, count=1)
    await room.settle_down()
    facts = room.queues.figures.facts()
    assert (facts["acknowledged"], facts["dropped"], facts["dead_lettered"]) == (1, 1, 2)
    assert facts["published"] == 8, "six, and two dead letters"
    assert facts["redelivered"] == 1
    assert facts["delivered"] == len(taker.got)
    assert facts["consumers"] == 1
    assert facts["messages"] + facts["unacknowledged"] == 5, facts
    show_queues(facts)
    shown = capsys.readouterr().out
    assert "1 acknowledged" in shown
    assert "2 dead letters" in shown
