"""Reads through a hub: the rows are those of a read of the store, and the store stays closed."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import WeftSource
from spark_sinks.source.hub import client as clients
from spark_sinks.source.hub import readers
from spark_sinks.source.hub.access import HubAccess
from spark_sinks.source.hub.client import HubClient
from spark_sinks.source.hub.readers import HubStreamReader
from tests.cloud_hub.live import running_hub
from tests.spark_sinks.conftest import SHARDS, STREAM, Hub, records
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub.api.tokens import Scope, create_token
from weft.storage.object_store import open_store


class Serving:
    """A hub on the store of a written log, in a thread of its own."""

    def __init__(self, root: str, **settings: Any) -> None:
        self._root, self._settings = root, settings
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.url = ""

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        async with running_hub(open_store(self._root), shards=SHARDS, **self._settings) as hub:
            self.url = hub.url
            self._ready.set()
            await self._over.wait()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    made = Hub(str(tmp_path_factory.mktemp("hub")))
    made.write(6)
    return made


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "token"


@pytest.fixture(scope="module")
def served(written: Hub, token_file: Path) -> Iterator[Serving]:
    path = str(token_file.parent / "tokens")
    token_file.write_text(create_token(path, "anna", Scope.READER))
    token_file.with_name("other").write_text(create_token(path, "eve", Scope.READER, "acme"))
    with Serving(written.root, tokens_file=path, response_bytes_max=16_000) as serving:
        yield serving


def source(**options: object) -> WeftSource:
    return WeftSource({name: str(value) for name, value in {"stream": STREAM, **options}.items()})


def read(source: WeftSource) -> pa.Table:
    """All rows of a batch read, in the order of shards and offsets."""
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, DataSourceReader)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    wanted = to_arrow_schema(schema, timezone="UTC")
    return pa.Table.from_batches(batches, wanted).sort_by([("_shard", "ascending"), ("_offset", "ascending")])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"edges": "press-1,paint-1"},
        {"keys": "plant/+/m1/#"},
        {"since": "2023-11-14T22:13:22Z", "until": "2023-11-14T22:13:24Z"},
        {"columns": "_shard,_offset,_edge,machine"},
        {"schema": "temperature float"},
        {"starting": '{"0": 7, "1": 3, "2": 0, "3": 0}', "ending": '{"0": 100, "1": 20, "2": 0, "3": 0}'},
    ],
    ids=str,
)
def test_the_rows_are_those_of_a_read_of_the_store(
    written: Hub, served: Serving, token_file: Path, options: dict[str, str]
) -> None:
    through = source(hub=served.url, token_file=token_file, **options)
    assert through.schema() == source(store=written.root, **options).schema()
    found, expected = read(through), read(source(store=written.root, **options))
    assert found.num_rows > 0
    assert found.equals(expected)


def test_many_small_tasks_read_each_row_once(
    written: Hub, served: Serving, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "TASK_ROWS", 37)
    found = read(source(hub=served.url, token_file=token_file))
    assert found.num_rows == len(written.expected())
    assert found.equals(read(source(store=written.root)))


def test_micro_batches_share_their_limit_and_go_on_where_they_ended(
    written: Hub, served: Serving, token_file: Path
) -> None:
    options = source(hub=served.url, token_file=token_file)
    reader = options.streamReader(options.schema())
    assert isinstance(reader, HubStreamReader)
    reader.prepareForTriggerAvailableNow()
    at, found = reader.initialOffset(), list[tuple[str, int, bytes]]()
    for _ in range(100):
        end = reader.latestOffset(at, ReadMaxRows(70))
        if end == at:
            break
        batch = [each for task in reader.partitions(at, end) for each in rows_of(reader.read(task))]
        assert 0 < len(batch) <= 70
        found += batch
        at = end
    assert sorted(found) == written.expected()
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert reader.reportLatestOffset() == {shard: end for shard, end in written.heads().items() if end}


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int, bytes]]:
    return [(row["_edge"], row["_seq"], row["payload"]) for batch in batches for row in batch.to_pylist()]


def test_checkpoints_of_others_are_refused(served: Serving, token_file: Path) -> None:
    options = source(hub=served.url, token_file=token_file)
    reader = options.streamReader(options.schema())
    assert isinstance(reader, HubStreamReader)
    with pytest.raises(ReadError, match="it is of a read of the store"):
        reader.latestOffset({"0": 3}, ReadAllAvailable())
    with pytest.raises(ReadError, match="or the hub's store was restored to an earlier state"):
        reader.latestOffset({"0": 10**6, "hub": True}, ReadAllAvailable())


def test_a_token_opens_its_tenant_alone(served: Serving, token_file: Path) -> None:
    with pytest.raises(ReadError, match="tenant acme has no stream"):
        source(hub=served.url, token_file=token_file.with_name("other"), tenant="acme").schema()
    with pytest.raises(ReadError, match=r"answered 403: .*is for tenant acme.*token_file names the file of a token"):
        source(hub=served.url, token_file=token_file.with_name("other")).schema()
    with pytest.raises(ReadError, match="answered 401: no valid token"):
        source(hub=served.url).schema()


def test_no_task_shows_its_token(served: Serving, token_file: Path) -> None:
    options = source(hub=served.url, token_file=token_file)
    reader = options.reader(options.schema())
    assert isinstance(reader, DataSourceReader)
    tasks: list[InputPartition] = list(reader.partitions())
    assert token_file.read_text() not in repr(tasks)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"hub": "http://h:1", "store": "/data"}, "store: with the option hub, the store is not read"),
        ({"hub": "http://h:1", "store.aws_region": "x"}, "with the option hub, the store is not read"),
        ({"hub": "ftp://h"}, "hub: expected http://host:port"),
        ({"hub": "http://u:p@h:1"}, "without a password; got http://h"),
        ({"hub": " , "}, "the URL of at least one node"),
        ({"hub": "http://[::1"}, "a URL that cannot be read"),
        ({"hub": "http://h:1", "token_file": "/nowhere"}, "token_file: /nowhere cannot be read"),
        ({"store": "/data", "token_file": "t"}, "token_file: it is for reads through a hub"),
        ({"hub": "http://h:1", "ca_file": "/nowhere"}, "ca_file: /nowhere cannot be read"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], error: str) -> None:
    with pytest.raises(ReadError, match=error):
        source(**options).schema()


def test_times_are_no_places(served: Serving, token_file: Path) -> None:
    with pytest.raises(ReadError, match="begins and ends at offsets; filter times with since and until"):
        read(source(hub=served.url, token_file=token_file, starting="2024-01-01"))


Given = tuple[int, dict[str, str], bytes]


class Answers(http.server.BaseHTTPRequestHandler):
    """Gives the answers of a list, one for each request."""

    left: list[Any] = []

    def do_GET(self) -> None:
        status, headers, body = self.left.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[..., HubClient]]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def client(*answers: Given) -> HubClient:
        Answers.left = list(answers)
        url = f"http://127.0.0.1:{server.server_port}"
        return HubClient(HubAccess((url,), "secret"), "default", STREAM, sleep=lambda _: None)

    yield client
    server.shutdown()
    thread.join()
    server.server_close()


GOOD: Given = 200, {}, b'{"next_offset": {"0": 7}}'
BUSY: Given = 429, {}, b'{"error": "busy", "advice": "wait"}'


def test_a_busy_hub_is_asked_again_and_a_refusal_is_not(answering: Callable[..., HubClient]) -> None:
    assert answering(BUSY, (503, {}, b""), GOOD).heads() == {0: 7}
    with pytest.raises(ReadError, match="answered 429: busy; wait"):
        answering(*[BUSY] * clients.TRIES_MAX).heads()
    with pytest.raises(ReadError, match="answered 404"):
        answering((404, {}, b"no"), GOOD).heads()
    with pytest.raises(ReadError, match="answered 302"):
        answering((302, {"Location": "http://127.0.0.1:1/steal"}, b""), GOOD).heads()


def test_a_shard_that_is_missing_for_a_while_ends_no_query(answering: Callable[..., HubClient]) -> None:
    missing: Given = 200, {}, b'{"next_offset": {}, "missing_shards": [{"shard": 1, "trouble": "it is being loaded"}]}'
    assert answering(missing, missing, GOOD).heads() == {0: 7}
    with pytest.raises(ReadError, match="cannot read shard 1: it is being loaded"):
        answering(*[missing] * clients.TRIES_MAX).heads()


def test_answers_of_other_programs_and_a_hub_that_stands_still_are_errors(answering: Callable[..., HubClient]) -> None:
    with pytest.raises(ReadError, match="is not a stream of rows"):
        answering((200, {}, b"<html>")).page(0, 0, None, 5)
    with pytest.raises(ReadError, match="is not about a stream"):
        answering((200, {}, b"<html>")).heads()
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([])).close()
    empty = sink.getvalue().to_pybytes()
    still = 200, {"Weft-Next-Offset": "3", "Weft-End-Offset": "9"}, empty
    with pytest.raises(ReadError, match="did not go on at offset 3"):
        list(answering(still, still).rows(0, 3, 9))
    with pytest.raises(ReadError, match="restored to an earlier state"):
        list(answering((200, {"Weft-Next-Offset": "3", "Weft-End-Offset": "3"}, empty)).rows(0, 3, 9))


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_through_a_hub(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.write(4)
    tokens, token = str(tmp_path / "tokens"), tmp_path / "token"
    token.write_text(create_token(tokens, "anna", Scope.READER))

    def drain(url: str) -> list[tuple[str, int, bytes]]:
        frame = spark.readStream.format("weft").options(hub=url, token_file=str(token), stream=STREAM).load()
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "out")
        ).awaitTermination()
        return records(spark.read.parquet(str(tmp_path / "out")))

    with Serving(hub.root, tokens_file=tokens) as serving:
        frame = spark.read.format("weft").options(hub=serving.url, token_file=str(token), stream=STREAM).load()
        assert records(frame) == hub.expected()
        assert drain(serving.url) == hub.expected()
    hub.write(3)
    with Serving(hub.root, tokens_file=tokens) as serving:
        assert drain(serving.url) == hub.expected(), "a query goes on from its checkpoint"
