from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.storage.object_store.buckets import S3Endpoint
from tests.storage.object_store.emulators import Endpoint
from weft.cli import cli
from weft.config.units import kind_of
from weft.storage.object_store import NotFound, StoreError, StoreUnfit, open_store, probe


async def test_a_named_store_in_memory_is_one_per_process() -> None:
    await open_store("memory://opening").create("a", b"1")
    assert (await open_store("memory://opening").get("a")).data == b"1"
    with pytest.raises(NotFound):
        await open_store("memory://").get("a")


def test_memory_has_no_location() -> None:
    with pytest.raises(StoreUnfit, match="give the hub a directory or a bucket"):
        open_store("memory://").location("tables/a")


@pytest.mark.parametrize("uri", ["ftp://host/x", "s3://", "file://host/x"])
def test_other_kinds_are_refused_by_name(uri: str) -> None:
    with pytest.raises(ValueError, match="is not a store: expected a path"):
        open_store(uri)


@pytest.mark.parametrize("uri", ["ftp://u:pass@host/x", "s3://u:pass@bucket/x", "file://u:pass@localhost/x"])
def test_credentials_in_a_uri_are_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(ValueError, match=r"no user name or password: a key comes from the environment") as raised:
        open_store(uri)
    assert "pass@" not in str(raised.value)


def test_options_in_a_uri_are_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="no options behind") as raised:
        open_store("s3://bucket/x?secret_access_key=hunter2")
    assert "hunter2" not in str(raised.value)


def test_a_bucket_without_obstore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("bucket", "services"):
        monkeypatch.delitem(sys.modules, f"weft.storage.object_store.{name}", raising=False)
    with pytest.raises(StoreUnfit, match="a bucket needs obstore, which is not installed: pip install"):
        open_store("s3://bucket")


@pytest.mark.parametrize(
    ("scheme", "listens", "cause"),
    [
        ("http", False, "connection refused, so nothing listens there"),
        ("https", True, "the server does not speak TLS there; is it http:// instead of https://?"),
        ("http", True, "the server closed the connection; is it https:// instead of http://?"),
    ],
)
async def test_an_endpoint_that_does_not_answer_is_an_unknown_outcome_with_its_cause(
    scheme: str, listens: bool, cause: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if scheme == "https":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if not listens:
        server.close()
        await server.wait_closed()
    options = {
        "AWS_ENDPOINT_URL": f"{scheme}://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    async with server:
        with pytest.raises(StoreError) as raised:
            await open_store("s3://bucket/root", options).create("a", b"1")
    asked = f"a: PUT {scheme}://127.0.0.1:{port}/bucket/root/a failed"
    assert str(raised.value) == f"{asked}: {cause} (the address is from AWS_ENDPOINT_URL)"


def test_the_location_in_a_bucket_is_what_deltalake_takes() -> None:
    store = open_store("s3://bucket/root/", {"AWS_REGION": "eu-west-1"})
    assert store.location("tables/t") == ("s3://bucket/root/tables/t", {"AWS_REGION": "eu-west-1"})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(StoreUnfit, match="s3://bucket"):
        open_store("s3://bucket", {"AWS_REGOIN": "eu-west-1"})


@pytest.mark.s3
async def test_a_bucket_that_is_not_there_is_named(s3: S3Endpoint) -> None:
    with pytest.raises(StoreError, match="s3://no-such-bucket/root does not exist: create the bucket"):
        await probe(open_store("s3://no-such-bucket/root", s3.options))


async def test_credentials_come_from_the_environment(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"{endpoint.new_bucket()}/root")
    await store.create("a", b"1")
    assert (await store.get("a")).data == b"1"
    uri, options = store.location("tables/t")
    DeltaTable.create(uri, pa.schema([("a", pa.int64())]), storage_options=options)
    assert [item.key for item in await store.list("tables")] == [f"tables/t/_delta_log/{0:020d}.json"]


@pytest.mark.slow
async def test_a_check_names_the_kind_of_the_store(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, value)
    uri = f"{endpoint.new_bucket()}/root"
    (tmp_path / "hub.yaml").write_text(f"listen: 127.0.0.1:0\nstore: {uri}\n")
    command = ["hub", "check", str(tmp_path / "hub.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert result.exit_code == 0, result.output
    assert f"store {uri} ({kind_of(uri)})" in result.output
    assert await open_store(uri).list("") == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_ALLOW_HTTP": "false"},
            "AWS_ENDPOINT_URL is http://minio:9000, without TLS, and AWS_ALLOW_HTTP is false: "
            "set it to true or use https",
        ),
        (
            {"AWS_ENDPOINT": "minio:9000"},
            "AWS_ENDPOINT: expected a URL such as https://minio.example.com; got 'minio:9000'",
        ),
        ({"ENDPOINT_URL": "minio"}, "AWS_ENDPOINT_URL: expected a URL such as https://minio.example.com; got 'minio'"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named_with_the_way_out(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(StoreUnfit) as raised:
        open_store("s3://bucket", options)
    assert str(raised.value) == sentence


@pytest.mark.parametrize("where", ["options", "environment"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.s3
async def test_an_http_endpoint_is_leave_enough_to_use_it(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    given = {key: value for key, value in s3.options.items() if key != "AWS_ENDPOINT_URL"}
    given[name] = s3.url
    if where == "environment":
        for key, value in given.items():
            monkeypatch.setenv(key, value)
        given = {}
    store = open_store(f"{s3.new_bucket()}/root", given)
    await store.create("a", b"1")
    assert (await store.get("a")).data == b"1"
    uri, options = store.location("tables/t")
    DeltaTable.create(uri, pa.schema([("a", pa.int64())]), storage_options=options)
    assert DeltaTable(uri, storage_options=options).version() == 0


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    nobody = "http://127.0.0.1:9"
    options = {"AWS_ENDPOINT_URL": nobody, "AWS_REGION": "eu-west-1", "AWS_METADATA_ENDPOINT": nobody}
    with pytest.raises(StoreError, match=r"a: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are neither .* give a key$"):
        await open_store("s3://bucket/root", options).create("a", b"1")
