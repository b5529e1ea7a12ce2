"""A hub with an issuer of tokens: requests and links with real tokens, keys that change, an issuer that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.issuer import Key, KeySetServer, claims, key_of, key_set, settings, signed
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import until
from weft.cloud_hub.auth import jwt
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.links import open_links
from weft.hub_api.status import KeysOfIssuer
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

pytestmark = pytest.mark.slow
KEY = key_of("ES256", "1")


def token(key: Key = KEY, seconds: float = 600, **more: Any) -> str:
    return signed(key, "ES256", claims(seconds, **more))


def of_issuer(hub: Hub) -> KeysOfIssuer:
    found = hub.status().jwt
    assert isinstance(found, KeysOfIssuer)
    return found


async def test_requests_say_what_a_token_opens_and_why_it_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    roles = {"reader": ("reader",), "operator": ("admin",)}
    async with (
        KeySetServer(key_set(KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, roles=roles, tenant="acme")) as hub,
    ):
        ends = time.time() + 600
        status, reported = await get(hub, "/v1/whoami", token(exp=int(ends)))
        assert (status, reported["token"], reported["tenant"], reported["scope"]) == (
            200,
            "jwt:press-1",
            "acme",
            "granted",
        )
        assert reported["rights"] == ["read:*", "edges"]
        assert reported["until"] == time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(int(ends)))
        assert (await get(hub, "/v1/whoami"))[0] == 401, "with an issuer, every request needs a token"
        assert (await get(hub, "/v1/streams?tenant=other", token()))[0] == 403
        expired = token(seconds=-600)
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{hub.url}/v1/streams", headers={"Authorization": f"Bearer {expired}"})
            assert answer.status == 401
            assert "the JWT of 'press-1' expired at 20" in (await answer.json())["detail"]
            assert "expired at" in answer.headers["WWW-Authenticate"]
        status, reported = await get(hub, "/v1/streams", "eyJ" + "x" * 8000 + ".e30.")
        assert (status, "more than 8,000" in reported["detail"]) == (401, True)
        status, _ = await get(hub, "/v1/status", token())
        assert status == 403
        _, facts = await get(hub, "/v1/status", token(scope="operator"))
        assert (facts["jwt"]["keys"], facts["jwt"]["trouble"]) == (1, None)
        _, metrics = await get(hub, "/metrics", token(scope="operator"))
        assert "weft_hub_jwt_keys 1" in metrics
        assert "weft_hub_jwt_keys_failing_seconds 0" in metrics
        async with running_link(
            hub, EdgeLog(), LinkIdentity("acme", "press-2", 7, "test"), token(scope="reader")
        ) as link:
            await until(lambda: "token" in (link.last_error or ""))
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "weft.events"]
    assert [each["reason"] for each in lines if "expired" in each["reason"]], "refusals are events with their reason"
    assert {"token jwt:press-1", "address 127.0.0.1"} <= {each["owner"] for each in lines}
    assert expired.split(".")[2] not in caplog.text


async def test_short_tokens_and_changing_keys_lose_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_links, "LOOK_INTERVAL_S", 0.05)
    rules = {"leeway_s": 0.0, "unknown_key_s": 0.1, "roles": {"edge": ("edge",), "reader": ("reader",)}}
    path, count, connected = tmp_path / "token", 60, set[str]()

    def write(key: Key) -> None:
        (tmp_path / "new").write_text(token(key, 1.0, scope="edge", nbf=None))
        os.replace(tmp_path / "new", path)

    async with (
        KeySetServer(key_set(KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, **rules)) as hub,
    ):
        log, at = EdgeLog(), [KEY]
        write(KEY)
        async with running_link(hub, log, EDGE, token_file=str(path)) as link:
            for number in range(count):
                if number % 20 == 10:  # the issuer shows a new key, signs with it, and withdraws the old one
                    at.append(key_of("ES256", str(len(at) + 1)))
                    server.document = key_set(*at[-2:])
                if number % 20 == 15:
                    server.document = key_set(at[-1])
                write(at[-1])
                log.append(*records(number, [b"%d" % number]))
                await asyncio.sleep(0.08)
                connected |= {each.connected_since for each in hub.status().links}
            await log.until_released(count)
            assert link.last_error is None or "key" in link.last_error or "expired" in link.last_error
        _, answer = await get(hub, "/v1/streams/telemetry/records?since=0", token(at[-1], scope="reader"))
        assert [each["seq"] for each in answer["records"]] == list(range(count)), "each once, in their order"
        assert len(connected) >= 3, "links ended with their tokens, and came again with others"


async def test_a_thousand_new_tokens_cost_little_and_keep_no_one_waiting() -> None:
    edges = {each: key_of(each, each) for each in ("RS256", "ES256", "EdDSA")}
    async with (
        KeySetServer(key_set(*edges.values())).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url)) as hub,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=20)) as session,
    ):
        jwts = hub._declared.credentials.jwts
        assert jwts is not None
        figures = {}
        for algorithm, key in edges.items():
            tokens = [signed(key, algorithm, claims(sub=f"reader-{each}")) for each in range(1000)]
            await jwts.check(tokens[0])
            began = time.thread_time()
            for each in tokens:
                await jwts.check(each)
            figures[algorithm] = (time.thread_time() - began) * 1000
        print("microseconds per verification:", {name: round(ms) for name, ms in figures.items()})
        assert max(figures.values()) < 2000, "a verification takes some 0.1 ms"

        async def ask(each: int) -> int:
            bearer = signed(edges["ES256"], "ES256", claims(sub=f"other-{each}"))
            async with session.get(f"{hub.url}/v1/whoami", headers={"Authorization": f"Bearer {bearer}"}) as answer:
                return answer.status

        assert set(await asyncio.gather(*map(ask, range(1000)))) == {200}


async def test_an_issuer_that_hangs_harms_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt, "WAIT_S", 0.5)
    monkeypatch.setattr(jwt, "READ_S", 1.0)
    async with (
        KeySetServer(key_set(KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, unknown_key_s=0.1, roles={"reader": ("admin",)})) as hub,
    ):
        assert (await get(hub, "/v1/whoami", token()))[0] == 200
        server.hangs = True
        await asyncio.sleep(0.15)
        strangers = [
            asyncio.create_task(get(hub, "/v1/streams", token(key_of("ES256", f"new-{n}")))) for n in range(50)
        ]
        took = []
        for _ in range(20):
            stopwatch = Stopwatch()
            assert (await get(hub, "/v1/whoami", token()))[0] == 200, "its key is known"
            assert (await get(hub, "/healthz"))[0] == 200
            took.append(stopwatch.seconds())
        answers = await asyncio.gather(*strangers)
        assert {status for status, _ in answers} == {503}
        assert "could not be read again" in answers[0][1]["detail"]
        assert statistics.median(took) < 0.4, "no one waits for the issuer whose key is known"
        await until(lambda: of_issuer(hub).trouble is not None)
        facts = (await get(hub, "/v1/status", token()))[1]["jwt"]
        assert facts["trouble"] == "no answer within 1 s"
        assert facts["kept_until"].startswith("20")
        server.hangs = False
        await until(lambda: of_issuer(hub).trouble is None)


async def test_a_hub_starts_without_its_issuer() -> None:
    server = KeySetServer(key_set(KEY))
    server.status = 500
    async with server.running(), running_hub(MemoryStore(), jwt=settings(server.url, unknown_key_s=0.1)) as hub:
        status, reported = await get(hub, "/v1/whoami", token())
        assert (status, reported["detail"]) == (503, "the hub has no keys of the issuer")
        assert "HTTP status 500" in reported["advice"]
        async with running_link(hub, EdgeLog(), LinkIdentity("default", "press-1", 7, "test"), token()) as link:
            await until(lambda: "(503): the hub has no keys of the issuer" in (link.last_error or ""))
        server.status = 200
        with contextlib.suppress(TimeoutError):
            await until(lambda: of_issuer(hub).keys == 1)
        assert (await get(hub, "/v1/whoami", token()))[0] == 200


async def test_links_of_one_bearer_count_together_whatever_tokens_they_came_with() -> None:
    roles = {"edge": ("edge",), "admin": ("admin",)}
    async with (
        KeySetServer(key_set(KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, roles=roles), links_per_token_max=2) as hub,
        contextlib.AsyncExitStack() as links,
    ):
        for number in range(3):
            bearer = token(seconds=600 + number, scope="edge")
            await links.enter_async_context(running_link(hub, EdgeLog(), EDGE._replace(log_id=number + 1), bearer))

        async def is_bounded() -> bool:
            _, metrics = await get(hub, "/metrics", token(scope="admin"))
            return 'bound="limits.links_per_token",owner="edge default/press-1"' in metrics

        await until(is_bounded)
