from pathlib import Path

import pytest

from edge_node import ingest, subscriptions
from edge_node.subscriptions import Subscriptions
from protocols.batch import Flag
from protocols.mqtt.publish_run import PublishRun
from tests.edge_node.mqtt_harness import running


class Nobody:
    def deliver_at_most_once(self, packet: bytes) -> None: ...

    def deliver_at_least_once(self, topic: bytes, payload: bytes) -> None: ...


async def test_streams_that_share_topics_keep_their_records_apart(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"one": ["a/+"], "both": ["a/+", "b"]}) as node:
        for topic, payload in ((b"a/1", b"1"), (b"b", b"2"), (b"a/2", b"3")):
            run: PublishRun[ingest.Target] = PublishRun()
            run.add(node.ingest.target(topic), topic, payload, Flag.RETAINED if payload == b"3" else 0)
            node.ingest.store(run)
        assert [(record.payload, record.flags) for record in await node.stored("one")] == [
            (b"1", 0), (b"3", Flag.RETAINED),
        ]  # fmt: skip
        assert [(record.payload, record.flags) for record in await node.stored("both")] == [
            (b"1", 0), (b"2", 0), (b"3", Flag.RETAINED),
        ]  # fmt: skip


async def test_what_is_remembered_of_topics_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "TOPICS_MAX", 10)
    monkeypatch.setattr(subscriptions, "MATCHES_MAX", 10)
    async with running(tmp_path) as node:
        for number in range(100):
            assert node.ingest.target(b"plant/a/%d" % number).streams == (1,)
            assert node.ingest.target(b"none/%d" % number).streams == ()
            assert len(node.ingest.plain) <= 10
            assert len(node.ingest._subscriptions._matches) <= 10
        long = b"plant/a/" + bytes(b"x" * 600)
        assert node.ingest.target(long).streams == (1,)
        assert long not in node.ingest.plain


async def test_topics_with_subscribers_are_not_plain(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        live: Subscriptions = node.ingest._subscriptions
        somebody = Nobody()
        assert not node.ingest.target(b"plant/a").live
        assert b"plant/a" in node.ingest.plain
        live.add("plant/#", somebody, 0)
        assert b"plant/a" not in node.ingest.plain
        assert node.ingest.target(b"plant/a").live
        assert b"plant/a" not in node.ingest.plain
        live.remove("plant/#", somebody)
        assert not node.ingest.target(b"plant/a").live
