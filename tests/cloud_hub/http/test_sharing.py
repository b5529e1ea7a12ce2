"""``/delta-sharing``: what clients of the protocol may list and read, by a hub over real tables."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from aiohttp import web
from click.testing import Result
from yarl import URL

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest
from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_columns import DAYS, FIRST, SECOND, WROTE, Process, joined, readings
from tests.cloud_hub.tables.test_erasure import PERSON, erased
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.storage.object_store.buckets import (
    Endpoint,
    az,  # noqa: F401
    s3,  # noqa: F401
)
from tests.support.processes import weft
from tests.support.s3_servers import VERSITYGW, S3Server, built
from tests.support.third_party import DELTA_SHARING
from tests.support.tokens import create_token, declare_tokens, withdraw_token
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.facts.streams import LatestDocument, set_table
from weft.cloud_hub.http import sharing
from weft.cloud_hub.http.exchange import Answers
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import shares
from weft.cloud_hub.reads.history import Readers
from weft.cloud_hub.reads.shares import Hints
from weft.cloud_hub.reads.summaries import Listed
from weft.hub_api.rights import Right, Rights, Scope
from weft.protocols.lane import Lane
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.hub_keys import SHARING_SECRET, table_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError, open_store
from weft.storage.object_store import bucket as bucket_store
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.table import delta_log

ROOT = Path(__file__).parents[3]
TABLE = "/shares/default/schemas/streams/tables/telemetry"
BOTH = {"delta-sharing-capabilities": "responseformat=delta,parquet;readerfeatures=deletionvectors,timestampntz"}
ACME = Lane("acme", "press-1", 7, "telemetry")
HOUR = 3600 * 10**9


class Reader:
    """A client of the protocol with a token."""

    def __init__(self, hub: Hub, token: str = "") -> None:
        self._hub, self._headers = hub, {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Get a path below the prefix, or a whole URL."""
        return await self._ask("GET", path, headers)

    async def query(self, path: str = TABLE, headers: Mapping[str, str] = {}, **body: Any) -> tuple[int, Any]:
        """Return the lines of a query, or its error."""
        status, _, data = await self._ask("POST", f"{path}/query", headers, json=body)
        lines = [json.loads(line) for line in data.splitlines()]
        return status, lines if status == 200 else lines[0]

    async def names(self, path: str, member: str = "name") -> list[str]:
        """Return the names in all pages of a list, in pages of one member."""
        found, after = list[str](), ""
        while True:
            _, _, data = await self.get(f"{path}?maxResults=1{after}")
            page = json.loads(data)
            found += [each[member] for each in page["items"]]
            if "nextPageToken" not in page:
                return found
            after = f"&pageToken={page['nextPageToken']}"

    async def rows(self, path: str = TABLE, **body: Any) -> pa.Table:
        """Return the rows of a table, by shard and offset."""
        status, lines = await self.query(path, **body)
        assert status == 200, lines
        files = [await self.get(line["file"]["url"]) for line in lines[2:]]
        read = [pq.read_table(io.BytesIO(data)) for _, _, data in files]
        found = pa.concat_tables(read, promote_options="default")
        for each in json.loads(lines[1]["metaData"]["schemaString"])["fields"]:
            if each["name"] not in found.column_names:  # no file of the version has it yet
                found = found.append_column(each["name"], pa.nulls(found.num_rows))
        return found.sort_by([("_shard", "ascending"), ("_offset", "ascending")])

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], **more: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = path if path.startswith("http") else f"{self._hub.url}/delta-sharing{path}"
        with_token = {} if path.startswith("http") else self._headers
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, URL(url, encoded=True), headers={**with_token, **headers}, **more) as answer,
        ):
            return answer.status, answer.headers, await answer.read()


async def plant(store: ObjectStore) -> LogWriter:
    """Make a log of two tenants and their tables."""
    log = await LogWriter.open(store, shards=1)
    for first in (0, 10, 20):
        await log.append(0, Run(LANE, first, 10), Run(OTHER, first, 5, key=b"plant/b/m2/telemetry"))
    await drain(await new_tierer(store, log))
    return log


@pytest.fixture
async def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


OF_ALL = pytest.mark.asyncio(loop_scope="module")
"""For tests that change nothing of the hub that they share, nor of its store."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def planted(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    store = open_store(str(tmp_path_factory.mktemp("planted") / "store"))
    await plant(store)
    return store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(planted: ObjectStore) -> AsyncIterator[Hub]:
    async with running_hub(planted, shards=1, sharing=True) as hub:
        yield hub


def same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.select(wanted.column_names).to_pylist() == wanted.to_pylist()
    assert found.num_rows > 0


@OF_ALL
async def test_the_rows_of_a_share_are_those_of_the_table(hub: Hub, planted: ObjectStore) -> None:
    reader = Reader(hub)
    assert await reader.names("/shares") == ["default"]
    assert await reader.names("/shares/default/schemas") == ["latest", "streams"]
    assert await reader.names("/shares/default/schemas/streams/tables") == ["telemetry"]
    assert await reader.names("/shares/default/all-tables", "schema") == ["streams"]
    status, headers, data = await reader.get(f"{TABLE}/version")
    assert (status, headers["Delta-Table-Version"], data) == (200, str(table(planted).version()), b"")
    status, headers, data = await reader.get(f"{TABLE}/metadata", **BOTH)
    assert (status, headers["Delta-Sharing-Capabilities"]) == (200, "responseformat=parquet")
    protocol, metadata = map(json.loads, data.splitlines())
    assert protocol == {"protocol": {"minReaderVersion": 1}}
    assert metadata["metaData"]["id"] == str(table(planted).metadata().id)
    same(await reader.rows(), rows(planted))


async def test_a_hub_shares_nothing_unless_it_is_told_to(store: ObjectStore) -> None:
    async with running_hub(store) as hub:
        assert (await Reader(hub).get("/shares"))[0] == 404


@OF_ALL
async def test_parts_of_files_are_served_as_clients_ask_for_them(hub: Hub) -> None:
    reader = Reader(hub)
    _, lines = await reader.query()
    file = lines[2]["file"]
    _, headers, whole = await reader.get(file["url"])
    assert (len(whole), headers["Accept-Ranges"]) == (file["size"], "bytes")
    for span_given, span in (("bytes=0-3", slice(4)), ("bytes=-8", slice(-8, None)), ("bytes=5-", slice(5, None))):
        status, headers, data = await reader.get(file["url"], Range=span_given)
        assert (status, data) == (206, whole[span])
        assert headers["Content-Range"].endswith(f"/{file['size']}")
    assert (await reader.get(file["url"], Range=f"bytes={len(whole)}-"))[0] == 416
    status, headers, data = await reader._ask("HEAD", file["url"], {})
    assert (status, headers["Content-Length"], data) == (200, str(len(whole)), b"")


@pytest.fixture
async def tokens(tmp_path: Path, store: ObjectStore) -> dict[str, str]:
    log = await plant(store)
    await log.append(0, Run(ACME, 0, 3))
    path = str(tmp_path / "tokens.yaml")
    made = {
        "reader": create_token(path, "reader", Scope.READER),
        "acme": create_token(path, "acme", Scope.READER, "acme"),
        "share": create_token(path, "share", Scope.GRANTED, grants=("share:tele*",)),
        "other": create_token(path, "other", Scope.GRANTED, grants=("share:press",)),
        "pull": create_token(path, "pull", Scope.PULL),
        "admin": create_token(path, "admin", Scope.ADMIN),
    }
    await declare_tokens(store, path)
    return made


async def test_a_token_opens_the_tables_of_its_tenant_and_grants(tokens: dict[str, str], store: ObjectStore) -> None:
    async with running_hub(store, shards=1, sharing=True) as hub:
        readers = {name: Reader(hub, token) for name, token in tokens.items()}
        assert await readers["admin"].names("/shares") == ["acme", "default", "weft-audit"]
        for name in ("reader", "share"):
            assert await readers[name].names("/shares") == ["default"]
            assert await readers[name].names("/shares/default/all-tables") == ["telemetry"]
            same(await readers[name].rows(), rows(store))
        assert await readers["other"].names("/shares/default/all-tables") == []
        refused = {
            "other": (403, "not for the table 'telemetry'"),
            "pull": (403, "has the scope pull"),
            "acme": (403, "not for the share 'default'"),
        }
        for name, (status, words) in refused.items():
            for path in (f"{TABLE}/version", f"{TABLE}/metadata"):
                found, _, data = await readers[name].get(path)
                assert (found, json.loads(data)["errorCode"]) == (status, "PERMISSION_DENIED")
            found, said = await readers[name].query()
            assert found == status
            assert words in said["message"]
        assert await readers["acme"].names("/shares") == ["acme"]
        assert await readers["acme"].names("/shares/acme/all-tables") == ["telemetry"]
        older = ("/metadata?version=1", "/changes?startingVersion=0")
        for path in ("", "/schemas", "/schemas/streams/tables", "/all-tables", *(TABLE[15:] + each for each in older)):
            found, _, data = await readers["acme"].get(f"/shares/default{path}")
            assert (found, json.loads(data)["errorCode"]) == (403, "PERMISSION_DENIED"), path
        assert (await readers["acme"].query(version=1))[0] == 403
        status, headers, data = await Reader(hub, "wrong").get("/shares")
        assert (status, json.loads(data)["errorCode"]) == (401, "UNAUTHENTICATED")
        assert headers["WWW-Authenticate"].startswith("Bearer")
        for path in ("/v1/streams", "/v1/streams/telemetry/records"):
            url = f"{hub.url}{path}"
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {tokens['share']}"}) as session:
                assert (await session.get(url)).status == 403, "it is for sharing alone"


async def test_a_page_looks_at_no_more_rights_than_it_needs(
    tokens: dict[str, str], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, looks, allow = [f"tele{number:04}" for number in range(1000)], list[str](), Rights.allow

    async def listed(*_: object) -> dict[str, list[object]]:
        return {name: [] for name in streams}

    def counted(self: Rights, right: Right, name: str) -> bool:
        looks.append(name)
        return allow(self, right, name)

    async with running_hub(store, shards=1, sharing=True) as hub:
        monkeypatch.setattr(Listed, "streams", listed)
        monkeypatch.setattr(Rights, "allow", counted)
        _, _, data = await Reader(hub, tokens["share"]).get("/shares/default/all-tables?maxResults=3")
        page = json.loads(data)
        assert [each["name"] for each in page["items"]] == streams[:3]
        assert set(looks) == {*streams[:4]}
        looks.clear()
        path = f"/shares/default/schemas/streams/tables?maxResults=500&pageToken={page['nextPageToken']}"
        _, _, data = await Reader(hub, tokens["share"]).get(path)
        assert [each["name"] for each in json.loads(data)["items"]] == streams[3:503]
        assert not {*looks} & {*streams[:3]}


async def test_urls_that_were_changed_have_ended_or_lost_their_token_open_nothing(
    tokens: dict[str, str], store: ObjectStore
) -> None:
    now = START + 1000 * HOUR
    async with running_hub(store, shards=1, sharing=True, clocks={"wall_clock": lambda: now}) as hub:
        reader = Reader(hub, tokens["share"])
        _, lines = await reader.query()
        url = lines[2]["file"]["url"]
        assert (await reader.get(url))[0] == 200
        other = url.replace("/default/streams/", "/acme/streams/")
        changed = [
            other,
            url.replace("/telemetry/", "/telemetry/_delta_log/"),
            url.replace("by=share", "by=reader"),
            url.replace("size=", "size=9"),
            url.replace("until=", "until=9"),
            url.replace("signature=", "signature=0"),
            url.partition("?")[0],
        ]
        for each in changed:
            assert (await reader.get(each))[0] == 403, each
        now += HOUR + 10**9
        status, _, data = await reader.get(url)
        assert (status, "has ended" in json.loads(data)["message"]) == (403, True)
        _, lines = await reader.query()
        url = lines[2]["file"]["url"]
        assert (await reader.get(url))[0] == 200
        await withdraw_token(store, "share")

        async def refused() -> bool:
            return (await reader.get(url))[0] == 403

        await until(refused)


async def test_a_url_ends_with_a_change_of_its_token(
    tokens: dict[str, str], store: ObjectStore, tmp_path: Path
) -> None:
    async with running_hub(store, shards=1, sharing=True) as hub:
        _, lines = await Reader(hub, tokens["share"]).query()
        await withdraw_token(store, "share")
        again = create_token(tmp_path / "again.yaml", "share", Scope.GRANTED, grants=("share:press",))
        await declare_tokens(store, str(tmp_path / "again.yaml"))

        async def known() -> bool:
            return (await Reader(hub, again).get("/shares"))[0] == 200

        await until(known)
        status, _, data = await Reader(hub).get(lines[2]["file"]["url"])
        assert (status, "withdrawn or changed" in json.loads(data)["message"]) == (403, True)


@pytest.mark.parametrize("trouble", ["store", "removed", "end", "reader"])
async def test_a_download_that_cannot_go_on_is_broken_off_and_nothing_else_is_sent_in_it(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    await plant(store)
    now, sent, read = START + 1000 * HOUR, list[int](), DirectoryStore.get_range

    async def get_range(self: DirectoryStore, key: str, start: int, length: int) -> bytes:
        nonlocal now
        if key.endswith(".parquet"):
            sent.append(start)
        if len(sent) == 3:
            match trouble:
                case "store":
                    raise StoreError("the disk is away")
                case "removed":
                    raise NotFound(key)
                case "end":
                    now += HOUR
                case "reader":
                    monkeypatch.setattr(web.StreamResponse, "write", lambda *_: asyncio.Event().wait())
        return await read(self, key, start, length)

    async with running_hub(store, shards=1, sharing=True, clocks={"wall_clock": lambda: now}) as hub:
        (url,) = [line["file"]["url"] for line in (await Reader(hub).query())[1][2:]]
        whole = (await Reader(hub).get(url))[2]
        monkeypatch.setattr(DirectoryStore, "get_range", get_range)
        monkeypatch.setattr(sharing, "PIECE_BYTES", 100)
        monkeypatch.setattr(Answers, "longest_s", lambda *_: 0.1 if len(sent) > 2 else PATIENCE_S)
        async with aiohttp.ClientSession() as session, session.get(URL(url, encoded=True)) as answer:
            got = bytearray()

            async def read_on() -> None:
                async for data in answer.content.iter_any():
                    got.extend(data)

            with pytest.raises(aiohttp.ClientPayloadError):
                await read_on()
        assert whole.startswith(got)
        assert len(got) <= 300 < len(whole)
        assert sent[:3] == [0, 100, 200]


@OF_ALL
async def test_readers_that_wait_for_tables_do_not_keep_the_api_waiting(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ends, read = list[str](), asyncio.Event(), shares.read_version

    async def read_version(log: delta_log.TableLog, version: int | None, hints: Hints) -> shares.SharedVersion:
        began.append(log._key)
        await ends.wait()
        return await read(log, version, hints)

    monkeypatch.setattr(shares, "read_version", read_version)
    async with asyncio.TaskGroup() as tasks:
        # Two read, and two wait: as many as one owner may have answers in progress.
        queries = [tasks.create_task(Reader(hub).query()) for _ in range(4)]
        await until(lambda: len(began) == 2)
        async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/v1/streams") as answer:
            assert answer.status == 200
        assert len(began) == 2
        ends.set()
    assert [query.result()[0] for query in queries] == [200] * 4


@OF_ALL
async def test_an_answer_keeps_its_place_until_it_holds_no_list_of_files(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, at_signing, place, sign = list[str](), list[str](), Readers.place, sharing.FileUrls.sign

    @contextlib.asynccontextmanager
    async def placed(self: Readers, tenant: str) -> AsyncIterator[None]:
        async with place(self, tenant):
            inside.append(tenant)
            yield
            inside.remove(tenant)

    async def signed(*given: Any) -> Any:
        at_signing.extend(inside)
        return await sign(*given)

    monkeypatch.setattr(Readers, "place", placed)
    monkeypatch.setattr(sharing.FileUrls, "sign", signed)
    assert (await Reader(hub).query())[0] == 200
    assert (at_signing, inside) == (["default"], [])


@OF_ALL
async def test_an_answer_that_is_not_ready_in_time_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "ANSWER_S", 0.01)
    monkeypatch.setattr(delta_log.TableLog, "follow", lambda *_: asyncio.Event().wait())
    for _ in range(3):  # more than may read at one time
        status, said = await Reader(hub).query()
        assert (status, said["errorCode"]) == (503, "INTERNAL_ERROR")


async def test_an_answer_has_no_more_bytes_than_the_limit(parted: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "FILES_AT_ONCE", 2)
    async with running_hub(parted, shards=1, sharing=True) as hub:
        _, lines = await Reader(hub).query()
    size = len("".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines))
    for most, has_stats in ((size, True), (size - 1, False)):
        async with running_hub(parted, shards=1, sharing=True, response_bytes_max=most) as hub:
            _, found = await Reader(hub).query()
            assert [("stats" in line["file"]) for line in found[2:]] == [has_stats] * 7
            assert len({line["file"]["url"] for line in found[2:]}) == 7
    async with running_hub(parted, shards=1, sharing=True, response_bytes_max=1000) as hub:
        assert (await Reader(hub).query())[0] == 413


@pytest.mark.parametrize(
    ("advertise", "headers", "origin"),
    [
        ((), {}, "http://hub.example:1"),
        ((), {"X-Forwarded-Proto": "https, http"}, "https://hub.example:1"),
        (("https://tables.example/",), {"X-Forwarded-Proto": "http"}, "https://tables.example"),
    ],
)
async def test_urls_of_the_hub_begin_where_its_clients_reach_it(
    store: ObjectStore, advertise: tuple[str, ...], headers: dict[str, str], origin: str
) -> None:
    await plant(store)
    async with running_hub(store, shards=1, sharing=True, advertise=advertise) as hub:
        _, lines = await Reader(hub).query(headers={"Host": "hub.example:1", **headers})
        assert lines[2]["file"]["url"].startswith(f"{origin}/delta-sharing/files/")
        reading, writing = await asyncio.open_connection("127.0.0.1", URL(hub.url).port)
        writing.write(f"POST /delta-sharing{TABLE}/query HTTP/1.0\r\n\r\n".encode())
        said = await reading.read()
        assert (b" 400 " in said.splitlines()[0]) == (not advertise)
        writing.close()


async def test_a_damaged_secret_signs_nothing(store: ObjectStore) -> None:
    await plant(store)
    await store.create(SHARING_SECRET, b"")
    async with running_hub(store, shards=1, sharing=True) as hub:
        assert (await Reader(hub).query())[0] == 503


async def test_every_version_is_shared_until_rows_leave_the_table(store: ObjectStore) -> None:
    log = await LogWriter.open(store, shards=1)
    process = await Process.start(store, log)
    for number, known in enumerate((None, FIRST, SECOND, FIRST)):
        run = readings({"temperature": number / 4, "n": number, "unit": "é"}, first=number)
        await log.append(0, replace(run, key=PERSON if number == 2 else run.key))
        await process.write(known)
    before = await joined(store, process)
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for version in range(1, before + 1):
            opened = table(store)
            opened.load_as_version(version)
            if opened.file_uris():
                wanted = opened.to_pyarrow_table().sort_by([("_shard", "ascending"), ("_offset", "ascending")])
                same(await reader.rows(version=version), wanted)
            _, headers, data = await reader.get(f"{TABLE}/metadata?version={version}")
            assert headers["Delta-Table-Version"] == str(version)
            schema = json.loads(json.loads(data.splitlines()[1])["metaData"]["schemaString"])
            assert [each["name"] for each in schema["fields"]] == [each.name for each in opened.schema().fields]
        old = (await reader.query())[1][2]["file"]["url"]
        await erased(store, log, _key=PERSON.decode())
        same(await reader.rows(), rows(store))
        assert 2 not in (await reader.rows()).column("_seq").to_pylist()
        for version, words in ((before, "rows were removed"), (999, "the newest is")):
            status, said = await reader.query(version=version)
            assert (status, words in said["message"]) == (400, True)
        table(store).vacuum(0, dry_run=False, enforce_retention_duration=False)
        status, _, data = await reader.get(old)
        assert (status, "was removed" in json.loads(data)["message"]) == (404, True)


async def test_latest_tables_are_in_a_schema_of_their_own(store: ObjectStore) -> None:
    log = await plant(store)
    await drain_latest(await new_latest(store, log))
    document = LatestDocument(("_key",))
    decision = set_table(("default", "telemetry"), latest=document)
    await ClusterLog(store, log.cluster.cluster_id).append_all([decision], Author(START, "test", ""))
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        assert await reader.names("/shares/default/all-tables", "schema") == ["latest", "streams"]
        found = await reader.rows("/shares/default/schemas/latest/tables/telemetry")
        assert sorted(found.column("_key").to_pylist()) == ["plant/a/m1/telemetry", "plant/b/m2/telemetry"]


async def test_tables_with_local_times_come_in_the_format_that_has_them(store: ObjectStore) -> None:
    log = await LogWriter.open(store, shards=1)
    process = await Process.start(store, log)
    await log.append(0, readings(WROTE))
    await process.write(DAYS)
    async with running_hub(store, shards=1, sharing=True) as hub:
        status, said = await Reader(hub).query()
        assert (status, "times without a zone" in said["message"]) == (400, True)
        status, lines = await Reader(hub).query(headers=BOTH)
        assert status == 200
        protocol = lines[0]["protocol"]["deltaProtocol"]
        assert (protocol["minReaderVersion"], protocol["readerFeatures"]) == (3, ["timestampNtz"])
        url = lines[2]["file"]["deltaSingleAction"]["add"]["path"]
        assert pq.read_table(io.BytesIO((await Reader(hub).get(url))[2])).column("day").to_pylist() == [
            date(2026, 11, 1)
        ]


@OF_ALL
@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/shares/acme", 404, "there is no share 'acme'"),
        ("/shares/acme/schemas", 404, "there is no share"),
        ("/shares/acme/all-tables", 404, "there is no share"),
        ("/shares/default/schemas/other/tables", 404, "the schemas of a share are"),
        ("/shares/default/schemas/streams/tables/nothing/metadata", 404, "there is no such table"),
        ("/shares/default/schemas/streams/tables/..%2f..%2fx/metadata", 404, "there is no such table"),
        ("/shares?maxResults=-1", 400, "maxResults"),
        (f"{TABLE}/version?startingTimestamp=2026-01-01", 400, "by times"),
        (f"{TABLE}/metadata?timestamp=2026-01-01", 400, "by times"),
        (f"{TABLE}/metadata?version=-1", 400, "'-1' is not a version"),
        (f"{TABLE}/metadata?version=99", 400, "the newest is"),
        (f"{TABLE}/changes?startingVersion=0", 400, "has no feed of changes"),
        (f"{TABLE}/changes", 400, "startingVersion is missing"),
        (f"{TABLE}/changes?startingVersion=x", 400, "'x' is not a version"),
        (f"{TABLE}/changes?startingTimestamp=2026-01-01T00:00:00Z", 400, "by times"),
    ],
)
async def test_errors_have_the_protocols_form(hub: Hub, path: str, status: int, words: str) -> None:
    found, _, data = await Reader(hub).get(path)
    said = json.loads(data)
    assert found == status
    assert words in said["message"]
    assert said["errorCode"] in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


@OF_ALL
async def test_hints_leave_files_out_and_no_row_that_matches(hub: Hub) -> None:
    reader = Reader(hub)
    files = len((await reader.query())[1]) - 2
    assert files > 0
    none: list[dict[str, Any]] = [
        {"predicateHints": ["_offset < 0"]},
        {"jsonPredicateHints": json.dumps(compared("lessThan", "_offset", "0", "long"))},
        {"limitHint": 0},
    ]
    for body in none:
        assert len((await reader.query(**body))[1]) == 2, body
    every: list[dict[str, Any]] = [
        {"predicateHints": ["_offset >= 0", "sin(x) > 3"]},
        {"jsonPredicateHints": "nonsense"},
        {"limitHint": 1_000_000},
        {"limitHint": 1, "predicateHints": ["_offset >= 0"]},
        {"predicateHints": None, "jsonPredicateHints": None, "limitHint": None, "version": None},
    ]
    for body in every:
        assert len((await reader.query(**body))[1]) == 2 + files, body
    for number in ("many", -1):
        assert (await reader.query(limitHint=number))[0] == 400
        assert (await reader.query(version=number))[0] == 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seven_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a file of ten rows in each of its versions from 1 to 7, a checkpoint of 4, and one of 7."""
    root = tmp_path_factory.mktemp("seven") / "store"
    store = open_store(str(root))
    log = await LogWriter.open(store, shards=1)
    for first in range(0, 70, 10):
        await log.append(0, Run(LANE, first, 10))
        await drain(await new_tierer(store, log))
        if first in (30, 60):
            table(store).create_checkpoint()
    return root


@pytest.fixture
def parted(seven_versions: Path, tmp_path: Path) -> ObjectStore:
    """A store of the test's own with that table."""
    return open_store(str(shutil.copytree(seven_versions, tmp_path / "parted")))


async def test_a_limit_counts_before_the_bound_on_files(parted: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "FILES_MAX", 2)
    async with running_hub(parted, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        assert (await reader.query(predicateHints=["_offset < 10"]))[0] == 200
        for limit, status in ((5, 200), (20, 200), (21, 413), (None, 413)):
            assert (await reader.query(limitHint=limit))[0] == status, limit


async def test_predicates_are_held_against_a_bounded_number_of_files(
    parted: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_hub(parted, shards=1, sharing=True) as hub:
        monkeypatch.setattr(shares, "LOOKS_MAX", 20)
        assert (await Reader(hub).query())[0] == 200
        status, said = await Reader(hub).query(predicateHints=["_offset < 10"])
        assert (status, "too many files" in said["message"]) == (413, True)


async def test_a_version_is_read_from_the_checkpoint_before_it_among_other_files(
    parted: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "NAMES_MAX", 1)
    entries = [item.key for item in await parted.list(f"{table_key('default', 'telemetry')}/_delta_log")]
    newest = table(parted).version()
    for key in (key for key in entries if key.endswith(".json")):
        version = int(key[-25:-5])
        await parted.create(f"{key.removesuffix('json')}crc", b"{}")
        await parted.create(f"{key.removesuffix('json')}checkpoint.80a083e8.parquet", b"of Delta's version 2")
        if version < newest - 3:
            await parted.delete(key)
    async with running_hub(parted, shards=1, sharing=True) as hub:
        for back in range(4):
            assert (await Reader(hub).rows(version=newest - back)).num_rows == 70 - 10 * back


async def test_a_damaged_schema_is_an_error_of_the_protocol(parted: ObjectStore) -> None:
    log = f"{table_key('default', 'telemetry')}/_delta_log"
    (item,) = [item for item in await parted.list(log) if item.key.endswith(f"{0:020d}.json")]
    lines = [json.loads(line) for line in (await parted.get(item.key)).data.splitlines()]
    metadata = next(line["metaData"] for line in lines if "metaData" in line) | {"schemaString": "{"}
    key = f"{log}/{table(parted).version() + 1:020d}.json"
    await parted.create(key, json.dumps({"metaData": metadata}).encode())
    async with running_hub(parted, shards=1, sharing=True) as hub:
        status, said = await Reader(hub).query()
        assert (status, said["errorCode"]) == (503, "INTERNAL_ERROR")
        assert (await Reader(hub).get(f"{TABLE}/metadata"))[0] == 503


def compared(op: str, name: str, value: str, kind: str) -> dict[str, Any]:
    column = {"op": "column", "name": name, "valueType": kind}
    return {"op": op, "children": [column, {"op": "literal", "value": value, "valueType": kind}]}


async def test_a_reading_that_is_given_up_ends_in_its_thread(
    parted: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, goes_on = list[str | None](), threading.Event()

    def may_match(_: Hints, stats: str | None, types: Mapping[str, str]) -> bool:
        looks.append(stats)
        return goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(Hints, "may_match", may_match)
    log = delta_log.TableLog(parted, table_key("default", "telemetry"))
    reading = asyncio.create_task(shares.read_version(log, None, Hints(["_offset < 10"])))
    await until(lambda: bool(looks))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    goes_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(looks) == 1, "of seven files"


# --- the client that pandas has, over every version of a table, and the page that shows it


CLIENT = """\
import json, sys
import delta_sharing
profile, table, versions = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = {}
for version in versions:
    rows = delta_sharing.load_as_pandas(f"{profile}#{table}", version=version)
    rows = rows.sort_values(["_shard", "_offset"])
    found[version] = json.loads(rows.to_json(orient="records", date_format="iso", date_unit="us", default_handler=str))
print("ROWS " + json.dumps(found))
"""


async def by_client(
    hub: Hub, folder: Path, table_name: str, versions: list[int], token: str = ""
) -> list[list[dict[str, Any]]]:
    """The rows of versions of a table, as the client for pandas has them."""
    profile = folder / "client.share"
    shown = {"shareCredentialsVersion": 1, "endpoint": f"{hub.url}/delta-sharing", "bearerToken": token}
    profile.write_text(json.dumps(shown))
    said = await client(["-c", CLIENT, str(profile), table_name, json.dumps(versions)], folder)
    (line,) = [line for line in said.splitlines() if line.startswith("ROWS ")]
    return [*json.loads(line.removeprefix("ROWS ")).values()]


async def client(arguments: list[str], folder: Path) -> str:
    """Run Python with the client. Return what it printed."""
    try:
        libraries = str(DELTA_SHARING.obtain())
    except LookupError as error:
        pytest.skip(str(error))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": libraries},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S * 4)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()[-3000:]
    return said.decode()


def shown(found: pa.Table) -> list[dict[str, Any]]:
    """Rows as the client's are printed."""
    frame = found.sort_by([("_shard", "ascending"), ("_offset", "ascending")]).to_pandas(date_as_object=True)
    text = frame.to_json(orient="records", date_format="iso", date_unit="us", default_handler=str)
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_pandas_has_the_rows_of_every_version(store: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(store, shards=1)
    process = await Process.start(store, log)
    schemas = (None, FIRST, SECOND, DAYS, FIRST)
    for number, known in enumerate(schemas):
        values = [WROTE | {"temperature": number + at / 4, "n": at, "unit": "é" * at} for at in range(4)]
        await log.append(0, readings(*values, first=number * 4))
        await process.write(known)
    newest = await joined(store, process)
    async with running_hub(store, shards=1, sharing=True) as hub:
        opened, wanted = table(store), dict[int, pa.Table]()
        for version in range(1, newest + 1):
            opened.load_as_version(version)
            if opened.file_uris():
                wanted[version] = opened.to_pyarrow_table()
        found = await by_client(hub, tmp_path, "default.streams.telemetry", [*wanted])
        for version, of_client in zip(wanted, found, strict=True):
            for row, of_table in zip(of_client, shown(wanted[version]), strict=True):
                for name, value in of_table.items():
                    assert comparable(row[name]) == comparable(value), (version, name)


def comparable(value: Any) -> Any:
    """A value that is the same by both ways: pandas has numbers with nulls as floats, and maps in two forms."""
    if isinstance(value, str) and value.startswith("[("):
        return sorted(map(list, ast.literal_eval(value)))
    if isinstance(value, str) and value.endswith("Z"):
        return value.removesuffix("Z")
    if isinstance(value, dict):
        return sorted([key, item] for key, item in value.items())
    return value


@pytest.mark.slow
async def test_the_page_is_followed_and_its_profile_ends_with_its_token(store: ObjectStore, tmp_path: Path) -> None:
    await plant(store)
    config = tmp_path / "hub.yaml"
    page = (ROOT / "docs/how-to/share-tables.md").read_text("utf-8")
    (command,) = re.findall(r"^weft (hub share .+)$", page, re.MULTILINE)
    program, *_ = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    async with running_hub(store, shards=1, sharing=True) as hub:
        config.write_text(f"listen: {hub.url.removeprefix('http://')}\nstore: store\nsharing: true\ntables: null\n")
        made = await asyncio.to_thread(weft_in, tmp_path, *shlex.split(command), "--yes")
        assert made.exception is None, made.output
        profile = tmp_path / "quality-team.share"
        assert profile.stat().st_mode & 0o777 == 0o600
        token = json.loads(profile.read_text())["bearerToken"]

        async def admitted() -> bool:
            return (await Reader(hub, token).get("/shares"))[0] == 200

        await until(admitted)
        said = await client(["-c", program], tmp_path)
        assert "Table(name='telemetry', share='default', schema='streams')" in said
        assert re.search(r"plant/a/m1/telemetry +30", said)
        removed = await asyncio.to_thread(weft_in, tmp_path, "hub", "token", "remove", "hub.yaml", "quality-team")
        assert removed.exception is None, removed.output

        async def refused() -> bool:
            return (await Reader(hub, token).get("/shares"))[0] == 401

        await until(refused)


def weft_in(folder: Path, *arguments: str) -> Result:
    """A command whose files are in a folder."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        return weft(*arguments)
    finally:
        os.chdir(here)


@pytest.mark.slow
@pytest.mark.parametrize("service", [pytest.param("s3", marks=pytest.mark.s3), "az"])
async def test_files_of_a_bucket_come_from_there_if_it_signs(
    request: pytest.FixtureRequest, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint: Endpoint = request.getfixturevalue(service)
    bucket = open_store(f"{endpoint.new_bucket()}/root", endpoint.options)
    await plant(bucket)
    async with running_hub(bucket, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        _, lines = await reader.query()
        url = lines[2]["file"]["url"]
        assert not url.startswith(hub.url)
        same(await reader.rows(), rows(bucket))
        assert (await reader.get(url.replace("telemetry", "telemetri")))[0] >= 400
        asked = []

        async def refused(*given: object) -> None:
            asked.append(given)
            raise OSError("the credentials cannot sign")

        monkeypatch.setattr(bucket_store, "sign_async", refused)
        for _ in range(2):
            same(await reader.rows(), rows(bucket))
        assert len(asked) == 1


@pytest.fixture
def versity(tmp_path: Path) -> Iterator[S3Server]:
    """A server that checks signatures and their ends, as moto's does not."""
    try:
        binary = built(VERSITYGW)
    except LookupError as error:
        pytest.skip(str(error))
    with S3Server(VERSITYGW, binary, tmp_path / "versity") as server:
        yield server


@pytest.mark.slow
@pytest.mark.s3
async def test_a_signed_url_of_a_bucket_opens_its_file_alone_and_ends(
    versity: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = versity.store()
    log = await plant(bucket)
    await log.append(0, Run(ACME, 0, 3))
    path = str(tmp_path / "tokens.yaml")
    acme = create_token(path, "acme", Scope.READER, "acme")
    own = create_token(path, "own", Scope.READER)
    await declare_tokens(bucket, path)
    of_acme = "/shares/acme/schemas/streams/tables/telemetry"
    async with running_hub(bucket, shards=1, sharing=True, table_interval_s=0.05) as hub:
        reader = Reader(hub, acme)

        async def made() -> bool:
            return len((await reader.query(of_acme))[1]) > 2

        await until(made)
        assert (await reader.rows(of_acme)).num_rows == 3
        _, lines = await reader.query(of_acme)
        url = lines[2]["file"]["url"]
        assert url.startswith(versity.options()["AWS_ENDPOINT_URL"])
        _, lines = await Reader(hub, own).query()
        foreign = lines[2]["file"]["url"]
        assert (await reader.get(foreign))[0] == 200, "a URL opens its file to anyone who has it"
        assert (await reader.query())[0] == 403, "and nobody of another tenant gets one"
        paths = URL(url, encoded=True).raw_path, URL(foreign, encoded=True).raw_path
        for changed in (
            url.replace(*paths),
            url.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000"),
            url.partition("?")[0],
        ):
            assert changed != url
            assert (await reader.get(changed))[0] == 403, changed
        assert (await reader._ask("PUT", url, {}, data=b"x"))[0] == 403
        monkeypatch.setattr(sharing, "URL_S", 1)
        _, lines = await reader.query(of_acme)
        short = lines[2]["file"]["url"]
        assert "X-Amz-Expires=1&" in short

        async def ended() -> bool:
            return (await reader.get(short))[0] == 403

        await until(ended)
