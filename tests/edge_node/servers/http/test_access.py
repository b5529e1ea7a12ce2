"""Who may post and read, and which pages may ask."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import aiohttp
import pytest

from tests.edge_node.servers.http.harness import HttpNode, running
from tests.support.processes import weft
from tests.support.waiting import PATIENCE_S, until

RULES = """\
user alice
topic readwrite plant/#
topic write stream/telemetry
user bob
topic write other/#
topic write plant/b/#
"""
PATH = "/v1/streams/telemetry/plant/a"


def basic(name: str, password: str | None = None) -> str:
    return "Basic " + base64.b64encode(f"{name}:{name if password is None else password}".encode()).decode()


@pytest.fixture
def guarded(tmp_path: Path) -> tuple[Path, str]:
    for user in ("alice", "bob"):
        (tmp_path / "password").write_text(f"{user}\n")
        weft("user", "add", user, "--file", tmp_path / "users", "--password-file", tmp_path / "password")
    (tmp_path / "acl").write_text(RULES)
    return tmp_path, f"auth: {{users_file: {tmp_path}/users, acl_file: {tmp_path}/acl}}"


async def test_passwords_and_rules_hold(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        status, answer, fields = await http.post(PATH, b"1")
        assert (status, "Basic" in fields["WWW-Authenticate"]) == (401, True)
        assert fields["Content-Type"] == "application/problem+json"
        reported = {"type": "about:blank", "title": "Unauthorized", "status": 401, "detail": answer["detail"]}
        assert (answer, bool(answer["detail"])) == (reported, True)
        status, _, _ = await http.post(PATH, b"1", Authorization=basic("alice", "wrong"))
        assert status == 401
        for claim in (basic("alice"), "Bearer alice:alice", "Token alice:alice"):
            status, _, _ = await http.post(PATH, b"1", Authorization=claim)
            assert status == 200
        for claim in ("Bearer alice", "Digest x", "Basic !!!"):
            status, answer, _ = await http.post(PATH, b"1", Authorization=claim)
            assert (status, "send" in answer["detail"]) == (401, True)
        status, answer, _ = await http.post(PATH, b"1", Authorization=basic("bob"))
        assert (status, "plant/a" in answer["detail"]) == (403, True)
        status, _, _ = await http.post(PATH, b"no gzip", Content_Encoding="gzip", Authorization=basic("bob"))
        assert status == 403, "a body that may go nowhere is not unpacked"
        assert (await http.get("/ping"))[0] == 204
        assert len(http.stored()) == 3


async def test_a_flood_without_a_valid_password_pays_for_a_connection_each_time(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        for claim in ("", f"Authorization: {basic('alice', 'wrong')}\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
            asked = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n{claim}\r\n1"
            writer.write(asked.encode() * 8)
            said = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            assert said.count(b"HTTP/1.1 401 ") == 1, "the others were not looked at"
            assert b"connection: close" in said.lower()


async def test_a_key_that_a_stream_does_not_match_needs_the_right_to_the_stream(guarded: tuple[Path, str]) -> None:
    """Otherwise who may write to some topics could write to every stream."""
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        status, _, _ = await http.post("/v1/streams/telemetry/plant/b/x", b"1", Authorization=basic("bob"))
        assert status == 200
        status, answer, _ = await http.post("/v1/streams/telemetry/other/x", b"1", Authorization=basic("bob"))
        assert (status, "stream/telemetry" in answer["detail"]) == (403, True)
        status, _, _ = await http.post("/v1/streams/copies/plant/b/x", b"1", Authorization=basic("bob"))
        assert status == 403
        status, _, _ = await http.post("/v1/streams/telemetry", b"1", Authorization=basic("alice"))
        assert status == 400, "the right is there, and the topic does not fit"


async def test_a_user_that_is_removed_loses_its_open_connection(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        assert (await http.post(PATH, b"1", Authorization=basic("alice")))[0] == 200
        (folder / "users").write_text(
            "".join(
                line
                for line in (folder / "users").read_text().splitlines(keepends=True)
                if not line.startswith("alice")
            )
        )
        await http.node.listeners.reloads.check(all_of_them=True)
        await until(lambda: http.node.counters.connections == 0)  # idle, it would keep a place of others
        assert http.node.counters.clients_expelled == 1
        # Over a connection of its own: the session may not have seen yet that the other one is closed.
        async with aiohttp.ClientSession() as session:
            later = HttpNode(http.node, session)
            assert (await later.post(PATH, b"1", Authorization=basic("alice")))[0] == 401


async def test_pages_of_strangers_are_refused(http: HttpNode) -> None:
    own = http.url
    status, answer, _ = await http.post(PATH, b"1", Origin="https://stranger.example")
    assert (status, "origins" in answer["detail"]) == (403, True)
    status, _, fields = await http.post(PATH, b"1", Origin=own)
    assert (status, fields["Access-Control-Allow-Origin"]) == (200, own)
    rebound = {"Host": f"stranger.example:{http.port}"}
    status, answer, _ = await http.post(PATH, b"1", **rebound)
    assert status == 421
    status, _, _ = await http.post(PATH, b"1", Origin=f"http://stranger.example:{http.port}", **rebound)
    assert status == 403
    status, _, _ = await http.get("/v1/streams/telemetry/events", **rebound)
    assert status == 421
    status, _, _ = await http.post(PATH, b"1", Origin="null")
    assert status == 403
    assert len(http.stored()) == 1


async def test_pages_that_are_named_may_ask(tmp_path: Path) -> None:
    async with running(tmp_path, ', origins: ["https://dash.example.com"]') as http:
        origin = "https://dash.example.com"
        async with http.session.options(
            http.url + PATH,
            headers={
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type, weft-key",
            },
        ) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            assert answer.headers["Access-Control-Allow-Headers"] == "content-type, weft-key"
        assert (await http.post(PATH, b"1", Origin=origin))[0] == 200
        assert (await http.post(PATH, b"1", Host="dash.example.com"))[0] == 200
        assert (await http.post(PATH, b"1", Origin="https://dash.example.com.stranger.example"))[0] == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await http.session.ws_connect(http.url + "/v1/topics?filter=%23", origin="https://stranger.example")
