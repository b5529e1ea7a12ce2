"""Tests of ``storage/object_store/opening.py``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.object_store.buckets import Endpoint, S3Endpoint
from weft.cli import cli
from weft.config.units import kind_of
from weft.storage.object_store import AlreadyExists, NotFound, StoreError, StoreUnfit, open_store, probe
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import CLUSTER, PlacedStore, bare, lay_out


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


# --- Places of objects: what callers see of a store whose tenants have prefixes of their own


FILE = msgspec.json.encode({"shards": 2, "splits": [2, 0], "apart": [["acme", 2], ["b", 5]]})
"""Shards 0, 1 and 4 of all tenants, 2 and 3 of acme, 5 of b."""
PLACES = {
    "shard-1/manifest": "shard-1/manifest",
    "shard-2/manifest": "tenants/acme/shard-2/manifest",
    "shard-3/chunk/0": "tenants/acme/shard-3/chunk/0",
    "shard-4/chunk/0": "shard-4/chunk/0",
    "shard-5/ended/b/e": "tenants/b/shard-5/ended/b/e",
    "tables/acme/s/x": "tenants/acme/tables/s/x",
    "tables/acm/s/x": "tables/acm/s/x",
    "tables/acme-2/s/x": "tables/acme-2/s/x",
    "deletions/b/s/0": "tenants/b/deletions/s/0",
    "erasures/b/s/0": "tenants/b/erasures/s/0",
    "latest/acme/s/x": "tenants/acme/latest/s/x",
    "nodes/1": "nodes/1",
}
PREFIXES = ["", "tables", "tables/acme", "tables/acme/s", "shard-2", "shard-3/chunk", "deletions", "nodes", "tenants"]
keys = st.sampled_from(
    [
        *PLACES,
        "shard-0/chunk/1",
        "shard-2/chunk/1",
        "shard-20/x",
        "shard-5/chunk/2",
        "tables/b/s/1",
        "tables/b/s/2",
        "tables/z/s/1",
        "uploads/1",
        "zzz",
    ]
)


async def placed() -> PlacedStore:
    store = PlacedStore(MemoryStore())
    await store.create(CLUSTER, FILE)
    return store


async def test_keys_of_tenants_apart_name_objects_below_their_prefixes() -> None:
    store = await placed()
    for key, name in PLACES.items():
        etag = await store.create(key, key.encode())
        assert (await bare(store).get(name)).data == key.encode()
        assert (await store.get_range(key, 0, 99)) == (await store.get(key)).data == key.encode()
        await store.swap(key, b"new", etag)
        await store.sync(key)
        with pytest.raises(AlreadyExists):
            await store.create(key, b"")
    assert [item.key for item in await store.list("")] == sorted([CLUSTER, *PLACES])
    for key in PLACES:
        await store.delete(key)
    assert await bare(store).list("") == await bare(store).list("", limit=1), "only cluster.json is left"


@given(st.sets(keys), st.sampled_from(PREFIXES), st.none() | keys, st.none() | st.integers(1, 5))
def test_a_listing_is_that_of_a_store_without_places(
    there: set[str], prefix: str, after: str | None, limit: int | None
) -> None:
    async def listed() -> None:
        store, plain = await placed(), MemoryStore()
        await plain.create(CLUSTER, FILE)
        for key in sorted(there, reverse=True):
            await store.create(key, b"12")
            await plain.create(key, b"12")
        assert await store.list(prefix, after, limit) == await plain.list(prefix, after, limit)

    asyncio.run(listed())


async def test_the_places_are_read_before_the_first_key_that_needs_them_and_for_a_newer_shard() -> None:
    inner = bare(await placed())
    other = PlacedStore(inner)
    await other.create("shard-3/manifest", b"1")
    assert (await inner.get("tenants/acme/shard-3/manifest")).data == b"1"
    found = await inner.get(CLUSTER)
    await inner.swap(CLUSTER, FILE.replace(b'["b",5]', b'["b",5],["c",6]'), found.etag)
    await other.create("shard-6/manifest", b"2")
    assert (await inner.get("tenants/c/shard-6/manifest")).data == b"2"
    assert (await other.get("shard-6/manifest")).data == b"2"


async def test_a_store_without_a_hub_has_its_keys_as_names_until_it_is_laid_out() -> None:
    store = PlacedStore(MemoryStore())
    await store.create("shard-2/manifest", b"1")
    assert (await bare(store).get("shard-2/manifest")).data == b"1"
    lay_out(store, b"no JSON")
    lay_out(store, FILE)
    with pytest.raises(NotFound):
        await store.get("shard-2/manifest")


async def test_a_damaged_file_is_an_error_of_the_store() -> None:
    store = PlacedStore(MemoryStore())
    await bare(store).create(CLUSTER, b'{"shards": 3}')
    assert (await store.get("cluster.json")).data
    with pytest.raises(StoreError, match=r"cluster\.json is damaged, or of a later release"):
        await store.get("shard-0/manifest")
