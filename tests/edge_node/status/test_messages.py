"""Messages on the node's page: who sees which, and how much of them."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.live_node import running
from tests.support.mqtt_client import PahoClient
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.access import users
from weft.edge_node.node import EdgeNode
from weft.edge_node.status import messages

OPEN = """
node: press-shop-7
data_dir: data
listeners: {mqtt: {bind: 127.0.0.1:0}}
http: {bind: 127.0.0.1:0}
streams: {telemetry: {from: ["plant/#"]}}
"""
GUARDED = OPEN + "auth: {users_file: users, acl_file: acl}\n"
READER = "Basic " + b64encode(b"reader:correct horse").decode()


def guard(folder: Path) -> None:
    users.add(str(folder / "users"), "reader", b"correct horse")
    users.add(str(folder / "users"), "writer", b"battery staple")
    (folder / "acl").write_text("user reader\ntopic read plant/a/#\nuser writer\ntopic readwrite #\n")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def url(node: EdgeNode, path: str) -> str:
    assert node.http is not None
    return f"http://{node.http.host}:{node.http.port}/{path}"


async def publisher(node: EdgeNode, **options: Any) -> PahoClient:
    client = PahoClient(**options)
    await client.connect(node.addresses["mqtt"].port)  # type: ignore[union-attr]
    return client


async def topics(session: aiohttp.ClientSession, node: EdgeNode, query: str = "", **headers: str) -> dict[str, Any]:
    async with session.get(url(node, f"topics{query}"), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_the_newest_message_of_each_topic_is_there_with_its_numbers(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "POINT_INTERVAL_S", 0.0)
    async with running(tmp_path, OPEN) as node:
        client = await publisher(node)
        await client.publish("plant/a/early", b"not seen: nobody looked")
        assert (await topics(session, node))["topics"] == []
        for celsius in (20.5, 21, 22.25):
            await client.publish("plant/a/temperature", json.dumps({"celsius": celsius, "ok": True, "at": "x"}))
        await client.publish("plant/b/raw", bytes(range(200, 256)))
        await client.publish("office/long", "ü" * 400)
        found = {each["topic"]: each for each in (await topics(session, node))["topics"]}
        assert set(found) == {"plant/a/temperature", "plant/b/raw", "office/long"}
        assert found["plant/a/temperature"]["numbers"] == {"celsius": [20.5, 21.0, 22.25]}
        assert found["plant/a/temperature"]["messages"] == 3
        assert json.loads(found["plant/a/temperature"]["payload"]["text"])["celsius"] == 22.25
        assert found["plant/b/raw"]["payload"] == {"hex": bytes(range(200, 256)).hex(), "bytes": 56}
        assert found["office/long"]["payload"] == {"text": "ü" * 256, "bytes": 800}
        assert [each["topic"] for each in (await topics(session, node, "?filter=plant/%2B/raw"))["topics"]] == [
            "plant/b/raw"
        ]
        limited = await topics(session, node, "?limit=1")
        assert ([each["topic"] for each in limited["topics"]], limited["is_whole"]) == (["office/long"], False)
        await client.close()


async def test_a_node_that_nobody_looks_at_does_not_look_at_messages(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "WATCHED_S", 0.05)
    async with running(tmp_path, OPEN) as node:
        await topics(session, node)
        subscriptions = node._context.subscriptions
        assert subscriptions.recipients(b"plant/a").clients
        await until(lambda: not subscriptions.recipients(b"plant/a").clients)


async def test_topics_are_bounded_and_the_newest_stay(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "TOPICS_MAX", 3)
    async with running(tmp_path, OPEN) as node:
        await topics(session, node)
        client = await publisher(node)
        for number in (0, 1, 2, 0, 3, 4):
            await client.publish(f"plant/{number}")
        found = await topics(session, node)
        assert [each["topic"] for each in found["topics"]] == ["plant/4", "plant/3", "plant/0"]
        assert not found["is_whole"]
        await client.close()


async def test_users_see_what_access_rules_let_them_read(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    guard(tmp_path)
    async with running(tmp_path, GUARDED) as node:
        for path in ("topics", "live"):
            for header in ({}, {"Authorization": "Basic cmVhZGVyOndyb25n"}, {"Authorization": "Basic ???"}):
                async with session.get(url(node, path), headers=header) as answer:
                    assert answer.status == 401
                    assert "Basic" not in answer.headers["WWW-Authenticate"].split()
                    assert set(await answer.json()) == {"type", "title", "status", "detail", "advice"}
        await topics(session, node, Authorization=READER)
        client = PahoClient()
        client.paho.username_pw_set("writer", "battery staple")
        await client.connect(node.addresses["mqtt"].port)  # type: ignore[union-attr]
        async with session.get(url(node, "live"), headers={"Authorization": READER}) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            await client.publish("plant/b/secret", "1")
            await client.publish("plant/a/open", "2")
            assert [each["topic"] for each in (await event(answer))["messages"]] == ["plant/a/open"]
            assert [each["topic"] for each in (await topics(session, node, Authorization=READER))["topics"]] == [
                "plant/a/open"
            ]
            # Who is no user any more sees nothing more.
            (tmp_path / "users").write_text((tmp_path / "users").read_text().replace("reader:", "former:"))
            await node.reload()
            await client.publish("plant/a/open", "3")
            async with asyncio.timeout(PATIENCE_S):
                assert b"open" not in b"".join([line async for line in answer.content if b"data" in line][1:])
        async with session.get(url(node, "topics"), headers={"Authorization": READER}) as answer:
            assert answer.status == 401
        await client.close()


async def event(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        async for line in answer.content:
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found
    raise AssertionError("the answer ended")


async def test_a_page_of_strangers_gets_no_message(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as node:
        for path in ("topics", "live"):
            for site in ("cross-site", "same-site"):
                async with session.get(url(node, path), headers={"Sec-Fetch-Site": site}) as answer:
                    assert answer.status == 403
            async with session.get(url(node, path), headers={"Host": "stranger.example"}) as answer:
                assert answer.status in (403, 421)
        async with session.get(url(node, "topics"), headers={"Sec-Fetch-Site": "same-origin"}) as answer:
            assert answer.status == 200
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_without_users_other_machines_get_no_messages_under_any_setting(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.edge_node.status.messages.is_loopback", lambda _: False)
    text = OPEN.replace("http: {bind: 127.0.0.1:0}", "http: {bind: 127.0.0.1:0, anonymous: allowed_beyond_loopback}")
    async with running(tmp_path, text) as node, session.get(url(node, "topics")) as answer:
        assert answer.status == 403
        assert "weft user add" in (await answer.json())["advice"]


async def test_a_flood_is_counted_and_not_shown(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as node:
        client = await publisher(node)
        async with session.get(url(node, "live?filter=plant/%23")) as answer:
            for _ in range(5 * messages.PER_S_MAX):
                client.paho.publish("plant/a", b"x", 0)
            await client.publish("office", "not matched")
            await client.publish("plant/a", "last")
            shown = skipped = 0
            while shown + skipped < 5 * messages.PER_S_MAX + 1:
                found = await event(answer)
                shown, skipped = shown + len(found["messages"]), skipped + found["skipped"]
                assert all(each["topic"] == "plant/a" for each in found["messages"])
            assert skipped > 0
        await client.close()


async def test_what_is_asked_wrongly_or_too_often_is_refused_with_advice(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running(tmp_path, OPEN) as node:
        for path in ("topics?filter=a%23", "live?filter=%23/x", "topics?limit=0", "topics?limit=501", "topics?limit=x"):
            async with session.get(url(node, path)) as answer:
                assert answer.status == 400
                assert (await answer.json())["advice"]
        held = [await session.get(url(node, "live")) for _ in range(messages.LIVE_OF_OWNER_MAX)]
        async with session.get(url(node, "live")) as answer:
            assert answer.status == 429
        for each in held:
            each.close()
        async with asyncio.timeout(PATIENCE_S):
            while (again := await session.get(url(node, "live"))).status != 200:
                again.close()
                await asyncio.sleep(0.05)
        again.close()


async def test_a_node_ends_though_a_page_is_open(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as node:
        answer = await session.get(url(node, "live"))
        await topics(session, node)
        closing = asyncio.create_task(node.close())
        await until(closing.done, 10)
        await closing
        assert b"data" not in await answer.content.read()
