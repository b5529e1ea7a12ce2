"""Reads through a hub: the rows are those of a read of the store, and the store stays closed."""

from __future__ import annotations

import asyncio
import http.server
import pickle
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from spark_sinks import complete_until
from spark_sinks import read as read_stream
from spark_sinks.errors import ReadError
from spark_sinks.source import hub as clients
from spark_sinks.source import hub as readers
from spark_sinks.source.data_source import WeftSource
from spark_sinks.source.hub import Declared, HubClient, HubStreamReader
from spark_sinks.source.options import HubAccess, ReadOptions
from tests.cloud_hub.live import running_hub
from tests.spark_sinks.conftest import EDGES, SHARDS, STREAM, Hub, records
from tests.support.certificates import Authority
from tests.support.tokens import (
    AUDIENCE,
    claims,
    create_token,
    declare_in,
    key_of,
    key_set,
    settings,
    signed,
    withdraw_in,
)
from tests.support.waiting import PATIENCE_S, wait_until
from weft.hub_api.rights import Scope
from weft.protocols.shard.completeness import Reason
from weft.storage.object_store import open_store
from weft.storage.table.typed_columns import FIELD, SINCE

NO_SPARK = cast(SparkSession, None)


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

    def until_known(self, entry: int) -> None:
        """Wait until the hub acts on an entry of the cluster log."""
        wait_until(lambda: self.hub._declared.position >= entry)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        async with running_hub(open_store(self._root), shards=SHARDS, **self._settings) as hub:
            self.hub, self.url = hub, hub.url
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
    with Serving(written.root, tokens=path, response_bytes_max=16_000) as serving:
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


def test_checkpoints_of_others_are_refused(served: Serving, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "BEHIND_S_MAX", 0.0)
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


def test_a_query_goes_on_with_the_token_that_its_file_has_now(written: Hub, tmp_path: Path) -> None:
    tokens, own = str(tmp_path / "tokens"), tmp_path / "token"
    own.write_text(create_token(tokens, "first", Scope.READER))
    with Serving(written.root, tokens=tokens, cluster_log_interval_s=0.02) as hub:
        options = source(hub=hub.url, token_file=own)
        reader = options.streamReader(options.schema())
        assert isinstance(reader, HubStreamReader)
        at = reader.initialOffset()
        end = reader.latestOffset(at, ReadMaxRows(70))
        for number in range(2):
            own.write_text(create_token(tokens, f"next-{number}", Scope.READER))
            declare_in(written.root, tokens)
            hub.until_known(withdraw_in(written.root, "first" if number == 0 else "next-0"))
            at, end = end, reader.latestOffset(end, ReadMaxRows(70))
            tasks = pickle.loads(pickle.dumps(reader.partitions(at, end)))
            assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 70
        known = own.read_text()
        own.write_text("")  # as one finds it that someone writes now
        assert reader.latestOffset(end, ReadMaxRows(70)) != end
        own.write_text(known)
        restarted = pickle.loads(pickle.dumps(reader))
        own.write_text(create_token(tokens, "last", Scope.READER))
        declare_in(written.root, tokens)
        hub.until_known(withdraw_in(written.root, "next-1"))
        (task, *_) = restarted.partitions(at, end)
        assert next(restarted.read(task)).num_rows > 0


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
        ({"hub": "127.0.0.1:8090"}, r"hub: 127.0.0.1:8090 has no scheme. Write http://127.0.0.1:8090, or https://"),
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


def test_a_hub_with_tls_and_one_without_are_told_apart(tmp_path: Path, served: Serving) -> None:
    """In one sentence, and at once: no other attempt makes a certificate good."""
    with pytest.raises(ReadError, match=r"hub: https://.* does not speak TLS. Write http://"):
        source(hub=served.url.replace("http:", "https:")).schema()
    made = Authority(tmp_path).sign("hub")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with pytest.raises(ReadError, match=r"a certificate that is refused: .*with the option ca_file"):
            source(hub=f"https://127.0.0.1:{server.server_port}").schema()
        plain = HubAccess((f"http://127.0.0.1:{server.server_port}",))
        with pytest.raises(ReadError, match=r"does not answer: .*If the hub has certificates, write https://"):
            HubClient(plain, "default", STREAM, sleep=lambda _: None).heads()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
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

    def client(*answers: Given, **named: Any) -> HubClient:
        Answers.left = list(answers)
        url = f"http://127.0.0.1:{server.server_port}"
        return HubClient(HubAccess((url,), "secret"), "default", STREAM, sleep=lambda _: None, **named)

    yield client
    server.shutdown()
    thread.join()
    server.server_close()


LOOKS_MAX = 20
"""More looks than a client makes at a node that is behind."""
GOOD: Given = 200, {}, b'{"next_offset": {"0": 7}}'
BUSY: Given = 429, {}, b'{"detail": "busy", "advice": "wait"}'


def test_a_process_that_does_not_know_the_declared_schema_yet_gives_no_nulls(
    answering: Callable[..., HubClient],
) -> None:
    def rows(version: int, *names: str) -> Given:
        fields = [pa.field(name, pa.int64(), metadata={FIELD: name} if name[0] != "_" else None) for name in names]
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, pa.schema(fields, {SINCE: str(version)})).close()
        return 200, {"Weft-End-Offset": "0"}, sink.getvalue().to_pybytes()

    plain, old, new = rows(0, "_offset"), rows(3, "_offset", "t", "_schema"), rows(7, "_offset", "t", "_schema")
    declared = Declared(7, ("t int64", "_schema int64"))
    assert answering(plain, old, new, declared=declared).page(0, 0, None, 0).schema.names[1:] == ["t", "_schema"]
    with pytest.raises(ReadError, match="does not know the declared schema that this read began with"):
        answering(*[plain] * clients.TRIES_MAX, declared=declared).page(0, 0, None, 0)
    # A later version may give a name to another field, and a topic level may have taken it.
    for other in (rows(8, "_offset", "t", "_schema"), rows(7, "_offset", "t", "t_2", "_schema")):
        with pytest.raises(ReadError, match="is later than this read"):
            answering(other, declared=declared).page(0, 0, None, 0)


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
    with pytest.raises(ReadError, match="did not continue at offset 3"):
        list(answering(still, still).rows(0, 3, 9))
    behind = 200, {"Weft-Next-Offset": "3", "Weft-End-Offset": "3"}, empty
    with pytest.raises(ReadError, match="restored to an earlier state"):
        list(answering(*[behind] * LOOKS_MAX).rows(0, 3, 9))


def test_rows_that_a_killed_node_did_not_send_are_read_from_another(answering: Callable[..., HubClient]) -> None:
    """Arrow takes a stream that ends between two batches for whole, and http.client an answer for read."""
    sink, ends = pa.BufferOutputStream(), []
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        for n in range(2):
            writer.write(pa.record_batch({"n": pa.array([n])}))
            ends.append(sink.tell())
    whole = sink.getvalue().to_pybytes()
    headers = {"Weft-Next-Offset": "2", "Weft-Next-Chunk": "1", "Weft-End-Offset": "2"}
    cut: Given = 200, {**headers, "Content-Length": str(len(whole))}, whole[: ends[0]]
    rows = answering(cut, (200, headers, whole)).rows(0, 0, 2)
    assert [n for batch in rows for n in batch.column("n").to_pylist()] == [0, 1]
    with pytest.raises(ReadError, match=r"ended \d+ bytes before its answer's end"):
        list(answering(*[cut] * clients.TRIES_MAX).rows(0, 0, 2))


def test_a_node_that_has_not_read_as_far_as_another_one_is_asked_again(answering: Callable[..., HubClient]) -> None:
    """After a fail-over the next node may not have read the chunks that the last one spoke of."""
    behind: Given = 200, {}, b'{"next_offset": {"0": 5}}'
    reader = HubStreamReader(ReadOptions("", STREAM, hub=HubAccess(("http://127.0.0.1:9",))), pa.schema([]))
    for answers in ([GOOD], [behind, behind, GOOD]):
        reader._made = answering(*answers)
        assert reader.latestOffset({"0": 7, "hub": True}, ReadAllAvailable()) == {"0": 7, "hub": True}
    reader._made = answering(*[behind] * LOOKS_MAX)
    with pytest.raises(ReadError, match=r"at offset 7 of shard 0, and the stream ends at 5\. .*restored"):
        reader.latestOffset({"0": 7, "hub": True}, ReadAllAvailable())


def test_a_task_waits_for_a_node_that_has_not_read_as_far(answering: Callable[..., HubClient]) -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([])).close()
    empty = sink.getvalue().to_pybytes()
    behind = 200, {"Weft-Next-Offset": "3", "Weft-End-Offset": "3"}, empty
    assert list(answering(behind, (200, {"Weft-Next-Offset": "9", "Weft-End-Offset": "9"}, empty)).rows(0, 3, 9)) == []


def test_the_moment_of_a_hub_is_that_of_its_store(written: Hub, served: Serving, token_file: Path) -> None:
    asked = complete_until(NO_SPARK, STREAM, hub=served.url, token_file=token_file)
    own = complete_until(NO_SPARK, STREAM, store=written.root)
    assert (asked.moment_ns, asked.open_gaps) == (own.moment_ns, own.open_gaps)
    assert asked.offsets == {shard: end for shard, end in own.offsets.items() if end}
    # Both clocks show the present, and the marks are of 2023: no edge has sent anything since.
    assert {(each.edge, each.log_id) for each in asked.held_back_by} == {*zip(EDGES, range(1, 5), strict=True)}
    assert {each.reason for each in asked.held_back_by} == {Reason.SILENT}
    assert asked.clock is not None
    assert own.clock is not None
    assert asked.clock >= own.clock.replace(microsecond=0)  # an answer has whole seconds
    assert str(asked).startswith(f"complete until {own.moment.isoformat() if own.moment else 'no moment'}")


@pytest.mark.parametrize("more", [{"edges": ["press-1"]}, {"peers": True}, {"at": {0: 1}}, {"retired_after": "1d"}])
def test_what_a_hub_cannot_be_asked_is_refused(more: dict[str, Any], served: Serving, token_file: Path) -> None:
    with pytest.raises(ReadError, match=f"{next(iter(more))}: a hub answers by its own settings"):
        complete_until(NO_SPARK, STREAM, hub=served.url, token_file=token_file, **more)


def test_mistakes_of_read_and_complete_until_are_one_sentence(served: Serving) -> None:
    """As an error of Python, before Spark has wrapped it into traces of its own."""
    for ask in (read_stream, complete_until):
        with pytest.raises(ReadError, match=r"127\.0\.0\.1:1 has no scheme") as raised:
            ask(NO_SPARK, STREAM, hub="127.0.0.1:1")
        assert "\n" not in str(raised.value)
        with pytest.raises(ReadError, match="answered 401: no valid token"):
            ask(NO_SPARK, STREAM, hub=served.url)
        with pytest.raises(ReadError, match="store: with the option hub, the store is not read"):
            ask(NO_SPARK, STREAM, hub=served.url, store="/data")
        with pytest.raises(ReadError, match="store: missing"):
            ask(NO_SPARK, STREAM)


@pytest.mark.slow
@pytest.mark.spark
def test_read_through_a_hub_stays_as_it_was_at_the_call(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.write(4)
    token = tmp_path / "token"
    token.write_text(create_token(str(tmp_path / "tokens"), "anna", Scope.READER))
    with Serving(hub.root, tokens=str(tmp_path / "tokens")) as serving:
        named: dict[str, Any] = {"hub": serving.url, "token_file": token}
        frame = read_stream(spark, STREAM, **named)
        some = read_stream(spark, STREAM, **named, edges=["press-1"], columns="_edge, _seq, payload", schema="x int")
        expected = hub.expected()
        assert records(frame) == expected
        assert records(some) == [each for each in expected if each[0] == "press-1"]
        assert some.columns == ["_edge", "_seq", "payload"]
        heads = {int(shard): end for shard, end in hub.heads().items() if end}
        assert read_stream(spark, STREAM, **named, starting=heads).count() == 0


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

    with Serving(hub.root, tokens=tokens) as serving:
        frame = spark.read.format("weft").options(hub=serving.url, token_file=str(token), stream=STREAM).load()
        assert records(frame) == hub.expected()
        assert drain(serving.url) == hub.expected()
    hub.read_on()
    hub.write(3)
    with Serving(hub.root, tokens=tokens) as serving:
        assert drain(serving.url) == hub.expected(), "a query continues from its checkpoint"


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_with_tokens_of_an_issuer_that_end_before_the_query(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.write(4)
    key, keys, token = key_of("ES256", "1"), tmp_path / "keys.json", tmp_path / "token"
    keys.write_bytes(key_set(key))
    until = list[float]()

    def renew(seconds: float) -> None:
        until.append(time.time() + seconds)
        token.write_text(signed(key, "ES256", claims(seconds, sub="spark", aud=[AUDIENCE, "x" * 5000])))

    renew(600)
    with Serving(hub.root, jwt=settings(jwks_file=str(keys), leeway_s=0.0)) as serving:
        options = {"hub": serving.url, "token_file": str(token), "stream": STREAM}
        assert records(spark.read.format("weft").options(**options).load()) == hub.expected()
        renew(8)
        query = (
            spark.readStream.format("weft")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "out"))
        )
        try:
            wait_until(lambda: query.lastProgress is not None, what="the first batch")
            renew(600)
            wait_until(lambda: time.time() > until[-2] + 1, what="the end of the token with which the query began")
            hub.write(3)
            wait_until(
                lambda: not query.isActive or records(spark.read.parquet(str(tmp_path / "out"))) == hub.expected(),
                what="the rows that came later",
            )
            assert query.exception() is None
        finally:
            query.stop()
        assert records(spark.read.parquet(str(tmp_path / "out"))) == hub.expected()
        token.write_text(signed(key, "ES256", claims(-60)))
        with pytest.raises(Exception, match="the JWT of 'press-1' expired at"):
            spark.read.format("weft").options(**options).load()
