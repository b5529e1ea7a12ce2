"""Options and positions: what is refused says what to do. Nothing here starts Spark."""

from __future__ import annotations

import itertools
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import WeftSource
from spark_sinks.source.options import GROUPS, NAMES, limited, parse_options, parse_position
from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.source.following import offsets

WHERE = {"store": "/data", "stream": "telemetry"}
NOBODY = {
    "store": "s3://bucket/weft",
    "store.aws_endpoint_url": "http://127.0.0.1:1",
    "store.aws_allow_http": "true",
    "store.aws_access_key_id": "id",
    "store.aws_secret_access_key": "secret",
}


@pytest.fixture(autouse=True)
def no_bucket_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in itertools.chain(*itertools.chain(*GROUPS.values())):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    hub = Hub(str(tmp_path_factory.mktemp("hub")))
    hub.write()
    return hub


def test_defaults_read_the_whole_stream_of_the_default_tenant() -> None:
    options = parse_options(WHERE)
    assert (options.tenant, options.starting, options.ending) == ("default", "earliest", "latest")
    given = (options.edges, options.keys, options.columns, options.max_records_per_trigger)
    assert given == (None, None, None, None)


def test_names_are_known_in_any_case_and_store_options_are_upper_case() -> None:
    options = parse_options(
        {"Store": "s3://b/p", "STREAM": "t", "store.aws_region": "eu-1", "Max_Records_Per_Trigger": "7"}
    )
    assert options.store_options == (("AWS_REGION", "eu-1"),)
    assert options.max_records_per_trigger == 7


def test_lists_are_separated_by_commas_or_json() -> None:
    assert parse_options(WHERE | {"keys": "a, b/c"}).keys == ("a", "b/c")
    assert parse_options(WHERE | {"keys": '["a,b", "c"]'}).keys == ("a,b", "c")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ('{"0": 12, "1": 0}', {0: 12, 1: 0}),
        ("2024-05-01T06:00:00Z", datetime(2024, 5, 1, 6, tzinfo=UTC)),
        ("2024-05-01T08:00:00+02:00", datetime(2024, 5, 1, 6, tzinfo=UTC)),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
    ],
)
def test_positions(text: str, position: object) -> None:
    assert parse_position("starting", text) == position


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stream": ""}, "stream: missing; give it with .option"),
        ({"store": ""}, "store: missing; give it with .option"),
        ({"stream": "Tele metry"}, "stream: expected lower-case letters"),
        ({"egdes": "press-1"}, "egdes: no such option; did you mean edges"),
        ({"path": "/data"}, "path: no such option; did you mean store"),
        ({"wavelength": "red"}, "wavelength: no such option; the options are store, tenant"),
        ({"starting": "yesterday"}, "starting: expected earliest, latest, a time such as"),
        ({"starting": '{"0": "a"}'}, "or offsets by shard such as"),
        ({"starting": '{"0": -1}'}, "or offsets by shard such as"),
        ({"starting": '{"zero": 1}'}, "or offsets by shard such as"),
        ({"starting": '{"0": true}'}, "or offsets by shard such as"),
        ({"edges": "a,,b"}, "edges: expected one name or more"),
        ({"keys": "[1]"}, "keys: expected names such as"),
        ({"max_records_per_trigger": "none"}, "max_records_per_trigger: expected a number of at least 1"),
        ({"max_records_per_trigger": "0"}, "max_records_per_trigger: expected a number of at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ReadError) as caught:
        parse_options(WHERE | options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stream": "telemetri"}, "the store has no stream 'telemetri' of tenant 'default'; it has telemetry"),
        ({"tenant": "other"}, "it has no stream of that tenant yet"),
        ({"store": "/nowhere/at/all"}, "the store holds no hub: check the store's address"),
        ({"store": "memory://x"}, "store 'memory://x': "),
        ({"store": "ftp://x/y"}, "'ftp://x/y' is not a store"),
        (
            {"starting": '{"0": 0}'},
            "starting: the offsets name the shards 0; name each shard of the log once: 0, 1, 2, 3",
        ),
        (
            {"ending": '{"0": 9999, "1": 0, "2": 0, "3": 0}'},
            "ending: offset 9999 of shard 0 is past the end of the log",
        ),
        ({"columns": "payload,colour"}, "columns: the stream has no colour; it has _offset"),
        ({"columns": "payload,_seq,payload"}, "columns: payload is named twice; name each column once"),
        (NOBODY, "does not answer; check its address and the credentials (store.aws_access_key_id"),
    ],
)
def test_options_that_the_store_cannot_serve_are_refused(small: Hub, options: dict[str, str], sentence: str) -> None:
    source = WeftSource({"store": small.root, "stream": STREAM} | options)
    with pytest.raises(ReadError) as caught:
        source.reader(source.schema()).partitions()
    assert sentence in str(caught.value)


def test_what_spark_shows_of_a_refusal_is_nearly_the_sentence_alone(small: Hub) -> None:
    """Spark sends the whole traceback to the driver; event loops and storage between help no reader."""
    try:
        WeftSource({"store": small.root, "stream": "telemetri"}).schema()
    except ReadError:
        shown = traceback.format_exc().splitlines()
    assert not [line for line in shown if "asyncio" in line or "stream_log" in line]
    assert "it has telemetry" in shown[-1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ending": "latest"}, "ending: a streaming read has no end; use .trigger(availableNow=True)"),
        ({"startin": "latest"}, "startin: no such option; did you mean starting"),
        ({"columns": "colour"}, "the stream has no colour"),
    ],
)
def test_a_streaming_read_is_refused_at_its_first_use(small: Hub, options: dict[str, str], sentence: str) -> None:
    """Not by the constructor: Spark would show an error of its own instead."""
    schema = StructType().add(options.get("columns", "payload"), StringType() if "columns" in options else BinaryType())
    reader = WeftSource({"store": small.root, "stream": STREAM} | options).streamReader(schema)
    with pytest.raises(ReadError) as caught:
        reader.initialOffset()
    assert sentence in str(caught.value)


def test_a_checkpoint_of_another_store_is_refused(small: Hub) -> None:
    reader = WeftSource({"store": small.root, "stream": STREAM}).streamReader(StructType().add("payload", BinaryType()))
    behind, ahead = {"0": 0, "1": 0, "2": 0, "3": 0}, {"0": 0, "1": 0, "2": 0, "3": 999}
    assert offsets(reader.latestOffset(behind, ReadAllAvailable())) == small.heads()
    with pytest.raises(ReadError, match=r"checkpoint: offset 999 of shard 3 is past .* it belongs to another store"):
        reader.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(ReadError, match="it belongs to another store"):
        reader.partitions(behind, ahead)


def test_a_wrong_address_makes_no_directory(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    with pytest.raises(ReadError):
        WeftSource({"store": str(wrong), "stream": STREAM}).schema()
    assert not wrong.exists()


def test_a_schema_that_does_not_fit_is_refused(small: Hub) -> None:
    source = WeftSource({"store": small.root, "stream": STREAM})
    with pytest.raises(ReadError, match="column payload has the type binary, not string; cast it after the read"):
        source.reader(StructType().add("payload", StringType())).partitions()
    with pytest.raises(ReadError, match="column _seq has the type bigint, not string; cast it after the read"):
        source.reader(StructType().add("_seq", StringType()))
    with pytest.raises(ReadError, match="the stream has no colour"):
        source.reader(StructType().add("colour", StringType())).partitions()
    with pytest.raises(ReadError, match="it has no columns"):
        source.reader(StructType())
    assert source.reader(StructType().add("payload", BinaryType())).partitions()


def test_every_option_is_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "spark.md").read_text()
    missing = [name for name in NAMES if f"`{name}`" not in page]
    assert missing == []


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6), st.integers(1, 3000))
def test_a_limit_is_kept_used_up_and_shared(shards: list[tuple[int, int]], records_max: int) -> None:
    start = {shard: first for shard, (first, _) in enumerate(shards)}
    end = {shard: first + backlog for shard, (first, backlog) in enumerate(shards)}
    result = limited(start, end, records_max)
    taken = {shard: result[shard] - start[shard] for shard in start}
    assert sum(taken.values()) == min(records_max, sum(backlog for _, backlog in shards))
    # No shard gets less than an equal share while it has that much to read.
    share = records_max // len(shards)
    assert all(taken[shard] >= min(share, end[shard] - start[shard]) for shard in start)


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "session",
    "AWS_REGION": "eu-central-1",
    "AWS_ENDPOINT_URL": "http://minio:9000",
    "AWS_ALLOW_HTTP": "",
    "HOME": "/root",
}


def test_a_bucket_is_opened_on_executors_as_the_driver_would(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    found = dict(
        parse_options({"store": "s3://bucket", "stream": "s", "store.aws_access_key_id": "other"}).store_options
    )
    # The session token belongs to the environment's key, not to the one that was given.
    assert found == {
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://minio:9000",
    }
    assert parse_options({"store": "/hub", "stream": "s"}).store_options == ()


def test_credentials_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    assert "the-secret" not in repr(parse_options({"store": "s3://bucket", "stream": "s"}))
