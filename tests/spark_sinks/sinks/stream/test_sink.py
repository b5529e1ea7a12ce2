"""``StreamSink`` under Spark's own streaming: from one stream into another, through restarts and a lost checkpoint."""

from __future__ import annotations

import pickle
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.demo.fabric import get_json
from spark_sinks import complete_until
from spark_sinks.errors import SinkError
from spark_sinks.sinks import SourceStream, StreamSink, TargetStream
from spark_sinks.sinks.stream import sink as task
from spark_sinks.sinks.stream.lane import ordered
from spark_sinks.source.options import parse_options
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from tests.spark_sinks.sinks.stream.conftest import StreamHub, rows, send
from tests.support.processes import Node
from tests.support.tokens import create_token, declare_in
from weft.hub_api.rights import Scope


def even_seqs(source: Hub, spark: SparkSession, **options: object) -> DataFrame:
    """Half of the rows, twice each: a filter and an explode."""
    named = {"store": source.root, "stream": "telemetry", **options}
    frame = spark.readStream.format("weft").options(**named).load()
    return frame.where("_seq % 2 = 0").select(
        "_shard",
        "_offset",
        "_time",
        F.col("_key").alias("key"),
        F.explode(F.array(F.concat("_edge", F.lit(":"), "_seq"), F.lit("again"))).alias("payload"),
    )


def run(frame: DataFrame, sink: StreamSink, checkpoint: Path) -> None:
    writing = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writing.trigger(availableNow=True).start().awaitTermination()


def expected(source: Hub) -> list[str]:
    named = [f"{edge}:{seq}" for edge in EDGES for seq in range(0, 10 * source.rounds, 2)]
    return sorted([*named, *("again" for _ in named)])


@pytest.mark.slow
def test_a_derived_stream_has_each_row_once_after_restarts_and_a_lost_checkpoint(
    spark: SparkSession, tmp_path: Path, own_hub: StreamHub
) -> None:
    source = Hub(str(tmp_path / "source"))
    source.write(6)
    sink = StreamSink(TargetStream(own_hub.url, "clean", own_hub.store), "evens")
    checkpoint = tmp_path / "checkpoint"
    run(even_seqs(source, spark, max_records_per_trigger=130), sink, checkpoint)
    first = own_hub.stream_records("clean")
    assert sorted(record["payload"] for record in first) == expected(source)
    source.write(2)
    shutil.rmtree(checkpoint)  # all comes again, cut otherwise
    run(even_seqs(source, spark, max_records_per_trigger=180), sink, checkpoint)
    own_hub.kill()
    own_hub.start()
    source.write(1)
    again = pickle.loads(pickle.dumps(StreamSink(TargetStream(own_hub.url, "clean", own_hub.store), "evens")))
    run(even_seqs(source, spark), again, checkpoint)
    records = own_hub.stream_records("clean")
    assert sorted(record["payload"] for record in records) == expected(source)
    assert [record for record in records if record in first] == first
    assert own_hub.problems("clean") == []


@pytest.mark.slow
def test_a_derived_stream_has_each_row_once_under_changing_spreads(
    spark: SparkSession, tmp_path: Path, own_hub: StreamHub
) -> None:
    """With the checkpoint and without, and a hub that is killed in between."""
    source = Hub(str(tmp_path / "source"))
    target, checkpoint = TargetStream(own_hub.url, "clean", own_hub.store), tmp_path / "checkpoint"
    for number, spread in enumerate((1, 4, 2, 1)):
        source.write(2)
        run(
            even_seqs(source, spark, max_records_per_trigger=130),
            StreamSink(target, "evens", spread=spread),
            checkpoint,
        )
        assert sorted(record["payload"] for record in own_hub.stream_records("clean")) == expected(source)
        if number == 1:
            shutil.rmtree(checkpoint)
            own_hub.kill()
            own_hub.start()
    assert own_hub.problems("clean") == []


@pytest.mark.slow
def test_marks_say_up_to_when_the_derived_stream_is_complete(
    spark: SparkSession, tmp_path: Path, hub: StreamHub
) -> None:
    moment = datetime(2023, 11, 14, 22, 15, tzinfo=UTC)
    frame = spark.createDataFrame(
        [
            (0, 5, "k", "p", datetime(2023, 11, 14, 22, 13, tzinfo=UTC)),
            (1, 9, "k", "p", datetime(2023, 11, 14, 22, 14, tzinfo=UTC)),
        ],
        "_shard int, _offset long, key string, payload string, time timestamp",
    )
    sink = StreamSink(TargetStream(hub.url, "marked", hub.store), "marked", complete=lambda frame, batch_id: moment)
    sink(frame, 0)
    assert sink.last is not None
    assert (sink.last.sent, sink.last.skipped) == (2, 0)
    answer = get_json(f"{hub.url}/v1/streams/marked/completeness")
    assert answer["complete_up_to"] == "2023-11-14T22:15:00.000000000Z"
    assert len(answer["covers"]) == 2
    # A micro-batch without rows of shard 1 moves its lane, too; a moment that goes back moves none.
    moments = [moment + timedelta(minutes=5), moment]
    for batch_id, _ in enumerate(list(moments), 1):
        target = TargetStream(hub.url, "marked", hub.store)
        later = StreamSink(target, "marked", complete=lambda frame, _: moments.pop(0))
        later(frame.where("_shard = 0").withColumn("_offset", F.col("_offset") + batch_id), batch_id)
        answer = get_json(f"{hub.url}/v1/streams/marked/completeness")
        assert answer["complete_up_to"] == "2023-11-14T22:20:00.000000000Z"


@pytest.mark.slow
def test_the_sources_own_moment_below_a_micro_batch_is_the_derived_streams(
    spark: SparkSession, tmp_path: Path, hub: StreamHub
) -> None:
    source = Hub(str(tmp_path / "source"))
    source.write(5)
    checkpoint = tmp_path / "checkpoint"

    def below(frame: DataFrame, batch_id: int) -> datetime | None:
        ends = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]
        return complete_until(spark, "telemetry", store=source.root, at=ends).moment

    sink = StreamSink(TargetStream(hub.url, "timely", hub.store), "timely", complete=below)
    named = {"store": source.root, "stream": "telemetry", "max_records_per_trigger": 120}
    frame = spark.readStream.format("weft").options(**named).load()
    run(frame.where("_seq % 10 = 0").withColumnRenamed("_key", "key"), sink, checkpoint)
    moment = complete_until(spark, "telemetry", store=source.root).moment
    assert moment is not None
    answer = get_json(f"{hub.url}/v1/streams/timely/completeness")
    assert answer["complete_up_to"] == f"{moment:%Y-%m-%dT%H:%M:%S}.000000000Z"


@pytest.mark.slow
def test_a_check_asks_the_hub_and_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    own_hub = StreamHub(tmp_path)
    tokens, good = str(tmp_path / "tokens"), tmp_path / "good"
    good.write_text(create_token(tokens, "checked", Scope.EDGE, edge="spark-checked"))
    declare_in(own_hub.store, tokens)
    frame = spark.createDataFrame([], "_shard int, _offset long, key string, payload string, time timestamp")

    def check(name: str = "checked", patience_s: float = 0.5, **changes: Any) -> None:
        given: dict[str, Any] = {"store": own_hub.store, "token_file": good}
        target = TargetStream(own_hub.url, "checked", **given | changes)
        StreamSink(target, name, patience_s=patience_s).check(frame)

    with pytest.raises(SinkError, match=r"has accepted nothing from spark-checked for 0\.5 s: .*[Rr]efused"):
        check()
    node = Node("hub", own_hub.config_path)
    other = Hub(str(tmp_path / "other"))
    try:
        check(patience_s=20)
        refused: list[tuple[dict[str, Any], str]] = [
            ({"token_file": None}, r"requires a token \(401\)"),
            ({"name": "dirty"}, "the hub refuses spark-dirty: the token 'checked' is not for edge spark-dirty"),
            ({"store": other.root}, "name the store of this hub"),
            ({"store": tmp_path / "nowhere"}, "holds no hub"),
        ]
        for changes, sentence in refused:
            with pytest.raises(SinkError, match=sentence):
                check(**{"patience_s": 20, **changes})
    finally:
        assert node.stop() == 0
    assert not any("checked" in path.name for path in (tmp_path / "store").rglob("*"))
    chunks = (tmp_path / "store").rglob("chunk/*")  # those of the record of acts, which has the token's name
    assert not any(b"spark-checked" in path.read_bytes() for path in chunks if path.is_file())


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("key string, payload string, time timestamp", "no column _shard"),
        ("_shard int, _offset long, key string, payload string", "no column time"),
        ("_shard int, _offset long, key string, payload int, _time timestamp", "cast it to string or binary"),
        ("_shard int, _offset long, key string, payload string, time string", "cast it to timestamp"),
    ],
)
def test_a_frame_without_what_a_record_needs_is_refused(
    spark: SparkSession, hub: StreamHub, columns: str, sentence: str
) -> None:
    sink = StreamSink(TargetStream(hub.url, "shape", hub.store), "shape")
    with pytest.raises(SinkError, match=sentence):
        sink(spark.createDataFrame([], columns), 0)


@pytest.mark.slow
def test_a_tasks_error_is_one_sentence(spark: SparkSession, tmp_path: Path, hub: StreamHub) -> None:
    frame = spark.createDataFrame(
        [(0, 1, "k", None, datetime(2023, 11, 14, tzinfo=UTC))],
        "_shard int, _offset long, key string, payload string, time timestamp",
    )
    with pytest.raises(SinkError) as caught:
        StreamSink(TargetStream(hub.url, "shape", hub.store), "shape")(frame, 0)
    assert str(caught.value).startswith("the row of offset 1 of shard 0 has no payload (null)")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hub": "127.0.0.1:8090"}, "hub: 127.0.0.1:8090 has no scheme. Write http://127.0.0.1:8090"),
        ({"hub": []}, "at least one node"),
        ({"target": "http://127.0.0.1:8090"}, r"target: expected TargetStream\(hub, stream, store\), got str"),
        ({"hub": "https://me:secret@hub"}, "without a password"),
        ({"stream": "No"}, "stream: expected lower-case"),
        ({"name": "x" * 60}, "name: expected .* here 58"),
        ({"payload": "xml"}, "payload: expected one of bytes, text, json; got 'xml'"),
        ({"topics": ["a/#/b"]}, "topics: "),
        ({"tasks": 0}, "must be positive"),
        ({"spread": 3}, "spread: expected one of 1, 2, 4, 8, 16, 32, 64; got 3"),
        ({"spread": 2, "name": "x" * 52}, "name: expected .* here 51"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_once(arguments: dict[str, object], sentence: str) -> None:
    of_target: dict[str, Any] = {"hub": "http://127.0.0.1:8090", "stream": "s", "store": "store"}
    given: dict[str, Any] = {"name": "q"}
    for name, value in arguments.items():
        (of_target if name in of_target else given)[name] = value
    with pytest.raises(SinkError, match=sentence) as caught:
        StreamSink(**{"target": TargetStream(**of_target), **given})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("stream", ["", "No"])
def test_a_source_that_cannot_be_is_refused_at_once(stream: str) -> None:
    with pytest.raises(SinkError, match="source: "):
        SourceStream(stream, "store")


def test_the_text_of_a_target_holds_no_keys_of_its_store() -> None:
    target = TargetStream("http://127.0.0.1:8090", "s", "s3://b/p", store_options={"AWS_SECRET_ACCESS_KEY": "hidden"})
    assert "hidden" not in repr(target) + repr(StreamSink(target, "q"))


def test_rows_that_differ_in_headers_alone_have_one_order(spark: SparkSession) -> None:
    """A repeated micro-batch gives each row of one record the same place, in whichever order Spark brings them."""
    schema = "_shard int, _offset long, _time timestamp, key string, payload string, headers map<string,string>"
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    made = [(0, 7, moment, "k", "p", {"to": name}) for name in ("b", "a", "c")]
    found = [
        [row["_headers"] for row in ordered(spark.createDataFrame(each, schema).coalesce(1), 1).collect()]
        for each in (made, made[::-1])
    ]
    assert found == [[{"to": name} for name in "abc"]] * 2


# --- The source of a stream sink, restored from a backup: what the lanes say of it is enough to find it out


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
