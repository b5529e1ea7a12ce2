"""Streams in an object store: history and tail both come through the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sinks import ReadError, read, table
from tests.spark_sinks.conftest import STREAM, Hub, records
from tests.storage.object_store.buckets import S3Endpoint, s3_endpoint
from tests.storage.object_store.emulators import bucket_server

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with s3_endpoint() as running:
        yield running


@pytest.mark.slow
def test_log_and_table_in_a_bucket(spark: SparkSession, endpoint: S3Endpoint) -> None:
    options = dict(endpoint.options)
    hub = Hub(f"{endpoint.new_bucket()}/weft", options)
    hub.write(2)
    hub.tier()
    hub.write(1)
    assert records(read(spark, STREAM, store=hub.root, store_options=options)) == hub.expected()
    named = {f"store.{name}": value for name, value in options.items()}
    starting = {shard: min(5, end) for shard, end in hub.heads().items()}
    some = hub.load(spark, edges="press-1", starting=json.dumps(starting), **named)
    assert {row[0] for row in records(some)} == {"press-1"}
    with pytest.raises(ReadError, match="or use read"):
        table(spark, STREAM, store=hub.root, store_options=options)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_log_and_table_with_google_and_azure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with bucket_server(scheme, tmp_path) as server:
        hub = Hub(f"{server.new_bucket()}/weft", server.options)
        hub.write(2)
        hub.tier()
        hub.write(1)
        assert records(read(spark, STREAM, store=hub.root, store_options=server.options)) == hub.expected()
        for name, value in server.options.items():
            monkeypatch.setenv(name, value)
        assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


@pytest.mark.slow
def test_executors_get_the_endpoint_and_the_key_from_the_driver(
    spark: SparkSession, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session runs already, so its workers do not see what is set now. The endpoint has no TLS."""
    assert endpoint.url.startswith("http://")
    hub = Hub(f"{endpoint.new_bucket()}/weft", endpoint.options)
    hub.write(2)
    hub.tier()
    hub.write(1)
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, value)
    assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "AWS_ENDPOINT_URL: expected a URL such as https://minio.example.com"),
        ({"AWS_ENDPOINT_URL": "http://minio", "AWS_ALLOW_HTTP": "no"}, "without TLS, and AWS_ALLOW_HTTP is no"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_a_sentence(
    spark: SparkSession, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ReadError, match=sentence):
        read(spark, STREAM, store="s3://bucket/weft", store_options=options)
