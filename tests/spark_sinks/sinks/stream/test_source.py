"""The source of a stream sink, restored from a backup: what the lanes say of it is enough to find it out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.sinks import SourceStream, StreamSink, TargetStream
from spark_sinks.sinks.stream import sink as task
from spark_sinks.source.options import parse_options
from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.sinks.stream.conftest import StreamHub, rows, send


def since_the_restore(edge: str, seq: int) -> bytes:
    return f"{edge}:{seq} since the restore".encode()


class Sending:
    """A query from a stream into another, without any checkpoint."""

    def __init__(self, spark: SparkSession, hub: StreamHub, source: Hub, name: str) -> None:
        self.spark, self.hub, self.source, self.name = spark, hub, source, name

    def run(self, store: str | None = "") -> None:
        """Send everything, as after the loss of the checkpoint."""
        target = TargetStream(self.hub.url, self.name, self.hub.store)
        sink = StreamSink(target, self.name, source=SourceStream(STREAM, self.source.root if store == "" else store))
        sink(self.source.load(self.spark).withColumnRenamed("_key", "key"), 0)

    def sent(self) -> list[str]:
        """Payloads that the stream has, sorted."""
        return sorted(record["payload"] for record in self.hub.stream_records(self.name))

    def expected(self) -> list[str]:
        """Payloads of the source, sorted."""
        return sorted(payload.decode() for _, _, payload in self.source.expected())


@pytest.fixture
def source(tmp_path: Path) -> Hub:
    return Hub(str(tmp_path / "source"))


@pytest.mark.slow
def test_a_source_that_was_restored_and_has_grown_past_the_lanes_is_refused(
    spark: SparkSession, hub: StreamHub, source: Hub
) -> None:
    sending = Sending(spark, hub, source, "restored")
    source.write(1)
    restore = source.backup()
    source.write(1)
    sending.run()
    assert sending.sent() == sending.expected()
    before = sending.sent()
    restore()
    with pytest.raises(SinkError, match=r"rows of query restored up to offset \d+ of shard \d of telemetry, and"):
        sending.run()
    source.payload = since_the_restore
    source.write(4)
    with pytest.raises(SinkError, match=r"the log has another chunk 1: the source's store was restored"):
        sending.run()
    assert sending.sent() == before


@pytest.mark.slow
def test_a_source_that_lost_only_what_was_not_sent_is_none_to_refuse(
    spark: SparkSession, hub: StreamHub, source: Hub
) -> None:
    sending = Sending(spark, hub, source, "unsent")
    source.write(2)
    sending.run()
    restore = source.backup()
    source.write(2)
    restore()
    source.write(1)
    sending.run()
    assert sending.sent() == sending.expected()


@pytest.mark.slow
def test_lanes_of_an_earlier_release_go_on_and_say_the_chunk_from_then_on(
    spark: SparkSession, hub: StreamHub, source: Hub
) -> None:
    sending = Sending(spark, hub, source, "earlier")
    source.write(1)
    sending.run(store=None)
    assert not [record for record in hub.stream_records("earlier") if "weft.position-chunk" in dict(record["headers"])]
    source.write(1)
    sending.run()
    restore = source.backup()
    assert sending.sent() == sending.expected()
    restore()
    sending.run()
    assert sending.sent() == sending.expected()
    last = hub.stream_records("earlier")[-1]
    assert dict(last["headers"])["weft.position-chunk"].startswith("1:")


def test_each_batch_ends_with_the_chunk_so_that_a_kill_between_two_leaves_it_known(
    hub: StreamHub, source: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write(6)
    monkeypatch.setattr(task, "BATCH_ROWS", 7)
    log = parse_options({"store": source.root, "stream": STREAM})
    settings = hub.settings("batches", source_log=log, source=STREAM)
    shard, end = max(((int(shard), end) for shard, end in source.heads().items()), key=lambda each: each[1])
    send(settings, rows(shard, range(end)))
    reported = {
        int(headers["weft.position"].split(":")[1]): int(headers["weft.position-chunk"].split(":")[0])
        for headers in (dict(record["headers"]) for record in hub.stream_records("batches"))
        if "weft.position-chunk" in headers
    }
    assert set(reported) == {*range(6, end, 7), end - 1}
    assert reported == {offset: offset // (end // 6) for offset in reported}
