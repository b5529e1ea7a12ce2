"""What changes, as events: what was seen, who hears of it, and when it ends."""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.tokens import KeySetServer, claims, create_token, key_of, key_set, settings, signed, withdraw_token
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub.auth.access import CHECKED_AT_ONCE
from weft.cloud_hub.http import changes
from weft.cloud_hub.http.changes import CONSOLE, LISTENERS_MAX, NAMED_MAX, REMEMBERED_MAX, ChangesSeen
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads.metrics import ShardPositions
from weft.hub_api.acts import ChangeEvent
from weft.hub_api.rights import Scope
from weft.network.pages.assets import POLICY
from weft.protocols.lane import NodeName
from weft.replication.liveness import SECOND
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

NONE = ChangeEvent(streams=[], streams_more=0, edges=[], edges_more=0)


@asynccontextmanager
async def events(hub: Hub, token: str | None = None) -> AsyncIterator[AsyncIterator[ChangeEvent]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{hub.url}/v1/changes") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")

        async def read() -> AsyncIterator[ChangeEvent]:
            async with asyncio.timeout(PATIENCE_S):
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        yield msgspec.json.decode(line[6:], type=ChangeEvent, strict=True)

        yield read()


async def test_a_listener_hears_of_records_and_links_of_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOOK_INTERVAL_S", 0.02)
    path = str(tmp_path / "tokens")
    link = create_token(path, "link", Scope.EDGE, "acme", "press-1")
    reader, other = (create_token(path, name, Scope.READER, name) for name in ("acme", "other"))
    store = MemoryStore()
    async with running_hub(store, tokens=path, cluster_log_interval_s=0.05) as hub:
        async with events(hub, reader) as mine, events(hub, other) as theirs:
            assert await anext(mine) == NONE  # and no number of acts
            await anext(theirs)
            log = EdgeLog()
            log.append(*records(0, [b"x"]))
            streams, edges = set[str](), set[str]()
            async with running_link(hub, log, LinkIdentity("acme", "press-1", 1, "test"), link):
                async for event in mine:
                    streams.update(event.streams)
                    edges.update(event.edges)
                    if streams == {"telemetry"} and edges == {"press-1"}:
                        break
            await withdraw_token(store, "acme")
            async for _ in mine:
                pass  # it ends with the token
            await hub.close()
            assert [event async for event in theirs] == [], "other tenants heard nothing, and it ends with the process"


async def test_a_listener_with_a_token_of_an_issuer_hears_nothing_after_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "LOOK_INTERVAL_S", 0.02)
    key = key_of("ES256", "1")
    async with (
        KeySetServer(key_set(key)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, leeway_s=0.0, unknown_key_s=0.1)) as hub,
        events(hub, signed(key, "ES256", claims(60))) as short,
        events(hub, signed(key, "ES256", claims(600, sub="other"))) as long,
    ):
        await anext(long)
        now = time.time_ns() + 120 * SECOND
        assert hub._declared.credentials.jwts is not None
        monkeypatch.setattr(hub._declared.credentials.jwts, "_now", lambda: now)
        assert len([event async for event in short]) == 1, "it ends with the token"
        server.document = key_set(key_of("ES256", "2"))
        await asyncio.sleep(0.15)
        unknown = signed(key_of("ES256", "2"), "ES256", claims())
        assert (await get(hub, "/v1/whoami", unknown))[0] == 401  # and has the key set read again
        assert [event async for event in long] == [], "it ends with the key"


async def test_listeners_have_a_bound_and_leave_room_when_they_go() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession(hub.url) as session:
        open_ = [await session.get("/v1/changes") for _ in range(LISTENERS_MAX // 8)]
        async with session.get("/v1/changes") as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "30")
        assert (await get(hub, "/v1/edges"))[0] == 200
        for each in open_:
            each.close()


async def test_what_changes_while_a_listener_is_slow_is_told_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LOOK_INTERVAL_S", 0.02)
    write, written = web.StreamResponse.write, asyncio.Event()

    async def slowly(response: web.StreamResponse, data: Any) -> None:
        await write(response, data)
        if response.content_type == "text/event-stream":
            await written.wait()

    monkeypatch.setattr(web.StreamResponse, "write", slowly)
    async with running_hub(MemoryStore()) as hub, events(hub) as reported:
        await anext(reported)
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        async with running_link(hub, log, LinkIdentity("default", "press-1", 1, "test")):
            await log.until_released(1)
            await asyncio.sleep(0.2)  # looks see it while the first event is under way
            written.set()
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(reported)).streams == ["telemetry"]


async def test_one_step_checks_few_streams_of_a_listener_with_many_rights() -> None:
    known = Known()
    seen = ChangesSeen(known.positions, known.linked)
    await seen.look()
    known.ends = {("acme", f"line-{n:05d}"): 1 for n in range(5000)}
    await seen.look()
    steps, asked = [0], 0

    def is_readable(_: str) -> bool:
        nonlocal asked
        asked += 1
        steps[-1] += 1
        return True

    async def count() -> None:
        while asked < 5000:
            steps.append(0)
            await asyncio.sleep(0)

    await asyncio.gather(seen.since(0, "acme", is_readable), count())
    assert asked == 5000
    assert max(steps) <= CHECKED_AT_ONCE


class Known:
    """What a process knows, to be changed by a test."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str], int] = {}
        self.edges: dict[NodeName, int] = {}

    def positions(self) -> list[ShardPositions]:
        return [ShardPositions(0, 0.0, self.ends)]

    def linked(self) -> Mapping[NodeName, Any]:
        return dict(self.edges)


async def test_changes_are_told_once_to_each_and_named_up_to_a_bound() -> None:
    known = Known()
    known.ends = {("acme", "old"): 1}
    seen = ChangesSeen(known.positions, known.linked)
    await seen.look()
    assert await seen.since(0, "acme", lambda _: True) == NONE, "what was there is no change"
    known.ends |= {("acme", f"s{n:04d}"): 1 for n in range(NAMED_MAX + 5)} | {("other", "x"): 1}
    known.edges = {NodeName("acme", "press"): 1, NodeName("other", "saw"): 1}
    await seen.look()
    event = await seen.since(1, "acme", lambda name: name != "s0000")
    assert (len(event.streams), event.streams[0], event.streams_more) == (NAMED_MAX, "s0001", 4)
    assert (event.edges, event.edges_more) == (["press"], 0)
    assert await seen.since(seen.look_number, "acme", lambda _: True) == NONE
    known.edges = {}
    await seen.look()
    assert (await seen.since(2, "acme", lambda _: True)).edges == ["press"]
    known.ends |= {("acme", f"t{n}"): 1 for n in range(REMEMBERED_MAX + 10)}
    await seen.look()
    assert len(seen.streams) == REMEMBERED_MAX


# --- The console's files: open to everyone, and nothing in them comes from elsewhere


STATIC = files("weft.cloud_hub.console").joinpath("static")
SHARED = files("weft.network.pages").joinpath("static")
FILES = [*STATIC.iterdir(), *SHARED.iterdir()]


async def test_the_files_need_no_token_and_everything_else_does(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    create_token(tokens, "reader", Scope.READER, "acme")
    async with running_hub(MemoryStore(), tokens=tokens) as hub, aiohttp.ClientSession(hub.url) as session:
        for name in ("", *(f"/{each.name}" for each in FILES)):
            answer = await session.get(f"{CONSOLE}{name}")
            assert answer.status == 200, name
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Set-Cookie" not in answer.headers
            assert answer.headers["Content-Encoding"] == "gzip"
            again = await session.get(f"{CONSOLE}{name}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        for name in ("none.js", "assets.py", "..%2Fassets.py", "%2e%2e%2fassets.py", "static"):
            assert (await session.get(f"{CONSOLE}/{name}")).status == 404
        for path in ("/v1/whoami", "/v1/edges", "/v1/changes"):
            assert (await get(hub, path))[0] == 401


async def test_the_hubs_address_leads_to_the_console() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession(hub.url) as session:
        answer = await session.get("/")
        assert (answer.status, answer.url.path, answer.content_type) == (200, CONSOLE, "text/html")


async def test_a_page_under_a_foreign_name_is_refused() -> None:
    async with running_hub(MemoryStore(), hosts=frozenset()) as hub, aiohttp.ClientSession(hub.url) as session:
        for path in ("/", CONSOLE, f"{CONSOLE}/console.js", "/v1/changes"):
            assert (await session.get(path, headers={"Host": "evil.example"})).status == 421


async def test_a_page_is_small() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession(hub.url) as session:
        loaded = 0
        for name in ("", *(f"/{each.name}" for each in FILES if not each.name.endswith((".html", ".txt")))):
            loaded += len(zlib.compress(await (await session.get(f"{CONSOLE}{name}")).read()))
    assert loaded < 200_000


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup() -> None:
    """What the policy would refuse in the browser is not there to begin with."""
    own = [each for each in FILES if not each.name.startswith("uplot")]
    for file in own:
        text = file.read_text().replace("http://www.w3.org", "")  # names of SVG, which nothing asks for
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", text) == []
        assert re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text) is None
    page = STATIC.joinpath("console.html").read_text()
    assert re.search(r"<script(?![^>]*src=)|<style|\son[a-z]+=|\sstyle=", page) is None
    assert "Permission is hereby granted" in SHARED.joinpath("uplot-license.txt").read_text()
