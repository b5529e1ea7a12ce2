"""Tests of ``cloud_hub/auth/tokens.py``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.auth.tokens import TokenIdentity, TokensUnusable, check_identity, hash_token, read_tokens
from weft.cloud_hub.facts.tokens import Credentials
from weft.cloud_hub.hub import Hub
from weft.hub_api.operation import EVENTS
from weft.hub_api.operations import OPERATIONS
from weft.hub_api.rights import GRANTS_MAX, InvalidGrant, Right, Rights, Scope, parse_grant, role_grants
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

OF_NOTHING = hash_token("").encode()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tokens.yaml")


def test_a_file_has_the_hashes_of_tokens_and_what_they_open(path: str) -> None:
    edge = create_token(path, "press 7", Scope.EDGE, "acme", "press-7")
    reader = create_token(path, "anna", Scope.READER, "acme")
    assert read_tokens(Path(path).read_bytes(), path) == [
        TokenIdentity("press 7", hash_token(edge), Scope.EDGE, "acme", "press-7"),
        TokenIdentity("anna", hash_token(reader), Scope.READER, "acme"),
    ]
    assert len({edge, reader}) == 2
    assert len(edge) >= 43


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("tokens: [{name: a, sha256: zz, scope: reader}]", "sha256"),
        ("tokens: [{name: a, sha256: %s, scope: edge}]" % ("ab" * 32), "needs an edge"),
        ("tokens: [{name: a, sha256: %s, scope: reader, edge: b}]" % ("ab" * 32), "needs an edge"),
        ("tokens: [{name: a, sha256: %s, scope: owner}]" % ("ab" * 32), "scope"),
        ("tokens: [{name: a, sha256: %s, scope: reader, tenant: A/B}]" % ("ab" * 32), "tenant"),
        ("tokens: [{name: a, sha256: %s, scope: reader, expires: 1}]" % ("ab" * 32), "expires"),
        ("tokens: 5", "tokens"),
        ("[", "expected"),
    ],
)
def test_a_file_that_is_wrong_says_where(path: str, content: str, text: str) -> None:
    with pytest.raises(TokensUnusable, match=text):
        read_tokens(content.encode(), path)


@pytest.mark.parametrize("content", [b"", b"false", b"tokens:\n- name: a\n  scope: reader\n  sha256: " + OF_NOTHING])
def test_a_file_that_declares_no_token_that_opens_something_is_refused(content: bytes) -> None:
    with pytest.raises(TokensUnusable):
        read_tokens(content, "tokens.yaml")


def test_a_fleet_of_tokens_is_read() -> None:
    rest = "\n  scope: edge\n  edge: edge-"
    lines = [f"- name: edge-{n}\n  sha256: {hash_token(f'token {n}')}{rest}{n}" for n in range(10_100)]
    read = read_tokens("\n".join(["tokens:", *lines]).encode(), "tokens")
    assert len(read) == 10_100
    assert (read[-1].sha256, read[-1].edge) == (hash_token("token 10099"), "edge-10099")


# --- Rights of tokens: every request is held against them, and those with patterns open some streams or edges only


REQUESTS: Mapping[str, tuple[Right | None, str, str]] = {
    "openapi": (None, "GET", "/v1/openapi.json"),
    "whoami": (None, "GET", "/v1/whoami"),
    "status": (Right.STATUS, "GET", "/v1/status"),
    "nodes": (Right.STATUS, "GET", "/v1/nodes"),
    "regions": (Right.STATUS, "GET", "/v1/regions"),
    "troubles": (Right.STATUS, "GET", "/v1/troubles"),
    "edges": (Right.EDGES, "GET", "/v1/edges"),
    "losses": (Right.EDGES, "GET", "/v1/losses"),
    "edge": (Right.EDGES, "GET", "/v1/edges/press-1"),
    "changes": (Right.READ, "GET", "/v1/changes"),
    "streams": (Right.READ, "GET", "/v1/streams"),
    "stream": (Right.READ, "GET", "/v1/streams/telemetry"),
    "lanes": (Right.READ, "GET", "/v1/streams/telemetry/lanes"),
    "completeness": (Right.READ, "GET", "/v1/streams/telemetry/completeness"),
    "records": (Right.READ, "GET", "/v1/streams/telemetry/records"),
    "rows": (Right.READ, "GET", "/v1/streams/telemetry/rows?shard=0"),
    "tail": (Right.READ, "GET", "/v1/streams/telemetry/tail?position=x"),
    "series": (Right.READ, "GET", "/v1/streams/telemetry/series?since=2020-01-01T00:00:00Z"),
    "sql": (Right.READ, "POST", "/v1/sql"),
    "trace": (Right.READ, "GET", "/v1/streams/telemetry/trace?shard=0&offset=0"),
    "messages": (Right.PUBLISH, "GET", "/v1/messages?edge=press-1"),
    "publish": (Right.PUBLISH, "POST", "/v1/messages"),
    "pulls": (Right.PULL, "GET", "/v1/pulls"),
    "pull": (Right.PULL, "POST", "/v1/pulls"),
    "cancel_pull": (Right.PULL, "DELETE", "/v1/pulls/0"),
    "schema": (Right.READ, "GET", "/v1/streams/telemetry/schema"),
    "set_schema": (Right.DECLARE, "PUT", "/v1/streams/telemetry/schema"),
    "remove_schema": (Right.DECLARE, "DELETE", "/v1/streams/telemetry/schema"),
    "schemas": (Right.STATUS, "GET", "/v1/schemas"),
    "metrics": (Right.METRICS, "GET", "/metrics"),
    "acts": (Right.ACTS, "GET", "/v1/acts"),
    "usage": (Right.READ, "GET", "/v1/usage"),
    "tenant": (Right.TENANTS, "GET", "/v1/tenants/default"),
    "set_tenant": (Right.TENANTS, "PUT", "/v1/tenants/default"),
    "remove_tenant": (Right.TENANTS, "DELETE", "/v1/tenants/none"),
    "tenants": (Right.TENANTS, "GET", "/v1/tenants"),
    "tokens": (Right.ACTS, "GET", "/v1/tokens"),
    "add_token": (Right.TOKENS, "POST", "/v1/tokens"),
    "rotate_token": (Right.TOKENS, "POST", "/v1/tokens/none/rotate"),
    "pair_token": (Right.TOKENS, "POST", "/v1/tokens/none/pair"),
    "import_tokens": (Right.TOKENS, "POST", "/v1/tokens:import"),
    "remove_token": (Right.TOKENS, "DELETE", "/v1/tokens/none"),
    "pipelines": (Right.READ, "GET", "/v1/pipelines"),
    "report_pipeline": (Right.REPORT, "PUT", "/v1/pipelines/none"),
    "forget_pipeline": (Right.REPORT, "DELETE", "/v1/pipelines/none"),
    "drains": (Right.STATUS, "GET", "/v1/drains"),
    "drain": (Right.NODES, "POST", "/v1/drains"),
    "undo_drain": (Right.NODES, "DELETE", "/v1/drains?node=none"),
    "look_at_split": (Right.NODES, "GET", "/v1/splits?shard=0"),
    "pause_region": (Right.NODES, "PUT", "/v1/regions/none"),
    "split": (Right.NODES, "POST", "/v1/splits"),
}
"""Operation -> its right, and a request of it."""


async def call(hub: Hub, method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        answer = await session.request(method, hub.url + path, json=body)
        if answer.content_type == EVENTS:
            return answer.status, await answer.content.readline()  # the stream itself does not end
        return answer.status, await answer.json() if answer.content_type.endswith("json") else await answer.read()


def made(path: Path, **grants: tuple[str, ...]) -> dict[str, str]:
    """Tokens with grants, by name."""
    edge = {name: "press-1" if any(each.startswith("write") for each in of) else None for name, of in grants.items()}
    return {
        name: create_token(str(path), name, Scope.GRANTED, "default", edge[name], grants=of)
        for name, of in grants.items()
    }


def test_every_operation_has_a_right() -> None:
    assert REQUESTS.keys() == {each.name for each in OPERATIONS} | {"metrics"}


@pytest.mark.slow
async def test_each_right_opens_its_requests_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = made(path, **{str(right): (str(right),) for right in Right})
    opened: dict[str, set[str]] = {}
    async with running_hub(MemoryStore(), tokens=str(path)) as hub:
        for name, token in tokens.items():
            for operation, (_, method, way) in REQUESTS.items():
                status, answer = await call(hub, method, way, token)
                if status != 403:
                    opened.setdefault(name, set()).add(operation)
                else:
                    assert "the rights" in answer["detail"]
                    assert answer["advice"]
    for right in Right:
        expected = {name for name, (needed, *_) in REQUESTS.items() if needed in (None, right)}
        assert opened[right] == expected


async def test_patterns_of_a_reader_open_some_streams_and_list_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = made(path, writer=("write",), reader=("read:tele*", "read:x"))
    admin = create_token(str(path), "ops", Scope.ADMIN)
    async with running_hub(MemoryStore(), tokens=str(path)) as hub:
        for number, stream in enumerate(("telemetry", "secret")):
            log = EdgeLog(stream)
            log.append(*records(0, [b"a"]))
            identity = LinkIdentity("default", "press-1", number + 1, "test")
            async with running_link(hub, log, identity, tokens["writer"]):
                await log.until_released(1)
        both, some = [await get(hub, "/v1/streams", each) for each in (admin, tokens["reader"])]
        assert [each["stream"] for each in both[1]["streams"]] == ["secret", "telemetry"]
        assert [each["stream"] for each in some[1]["streams"]] == ["telemetry"]
        for below in (
            "",
            "/lanes",
            "/completeness",
            "/records",
            "/rows?shard=0",
            "/series?since=0",
            "/trace?shard=0&offset=0",
        ):
            assert (await call(hub, "GET", f"/v1/streams/telemetry{below}", tokens["reader"]))[0] == 200
            for stream in ("secret", "unknown"):
                status, answer = await call(hub, "GET", f"/v1/streams/{stream}{below}", tokens["reader"])
                assert (status, answer["detail"]) == (403, f"the token 'reader' is not for stream '{stream}'")
                assert "read:tele*, read:x" in answer["advice"]
        _, me = await get(hub, "/v1/whoami", tokens["reader"])
        assert (me["scope"], me["rights"]) == ("granted", ["read:tele*", "read:x"])


async def test_an_edge_writes_the_streams_of_its_grants_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = made(path, narrow=("write:secret",), wide=("write:*",), reader=("read",))
    log, epochs = EdgeLog("telemetry"), MemoryEpochs()
    log.append(*records(0, [b"a"]))
    async with running_hub(MemoryStore(), tokens=str(path)) as hub:
        async with running_link(hub, log, EDGE, tokens["narrow"], epochs) as link:
            await until(lambda: "is not for stream telemetry" in link.last_error)
            assert not log.released_ranges
        async with running_link(hub, log, EDGE, tokens["wide"], epochs):
            await log.until_released(1)
        async with running_link(hub, log, EDGE, tokens["reader"], epochs) as link:
            await until(lambda: link.state is LinkState.REFUSED)


async def test_messages_and_pulls_are_for_the_edges_and_streams_of_the_grants(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = made(path, writer=("write",), act=("publish:press-*", "pull:telemetry"), other=("publish:oven", "pull:x"))
    window = {"edge": "press-1", "stream": "telemetry", "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:01:00Z"}
    async with running_hub(MemoryStore(), tokens=str(path)) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, tokens["writer"]):
            await log.until_released(1)
        message = {"topic": "down/a", "payload": "", "edges": ["press-1", "oven"]}
        _, answer = await call(hub, "POST", "/v1/messages", tokens["act"], message)
        assert ["number" in each for each in answer["messages"]] == [True, False]
        assert (answer["messages"][1]["status"], answer["messages"][1]["error"]) == (
            403,
            "the token 'act' is not for edge 'oven'",
        )
        assert (await call(hub, "GET", "/v1/messages?edge=press-1", tokens["other"]))[0] == 403
        status, asked = await call(hub, "POST", "/v1/pulls", tokens["act"], window)
        assert status == 202
        assert (await call(hub, "POST", "/v1/pulls", tokens["other"], window))[0] == 403
        lists = [(await call(hub, "GET", "/v1/pulls", tokens[name]))[1]["pulls"] for name in ("act", "other")]
        assert [len(each) for each in lists] == [1, 0]
        assert (await call(hub, "DELETE", f"/v1/pulls/{asked['id']}", tokens["other"]))[0] == 403
        assert (await call(hub, "DELETE", f"/v1/pulls/{asked['id']}", tokens["act"]))[0] == 200


@pytest.mark.parametrize(
    "text",
    ["", "admin", "read:", "read:Press", "read:a b", "status:x", "READ", "read:a:b", "write:" + "a" * 65, "read:*/"],
)
def test_what_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(InvalidGrant, match=r"expected|leave out"):
        parse_grant(text)


def test_roles_are_sets_of_rights_of_which_each_has_those_of_the_one_before() -> None:
    names = ("viewer", "operator", "administrator")
    viewer, operator, administrator = (set(role_grants([name])) for name in names)
    part_of_read = {"share"}
    assert viewer < operator < administrator == {right.value for right in Right} - {"write", "relay"} - part_of_read
    assert role_grants(["read:press-*", "viewer", "edges"]) == ("read:press-*", "read", "edges")
    for each in administrator:
        parse_grant(each)


def test_grants_are_bounded_and_fit_the_scope() -> None:
    with pytest.raises(InvalidGrant, match="more than 64"):
        Rights(["read:a"] * (GRANTS_MAX + 1))
    for scope, edge, grants in (
        (Scope.READER, None, ("read:a",)),
        (Scope.GRANTED, None, ()),
        (Scope.GRANTED, None, ("write:a",)),
        (Scope.GRANTED, "press-1", ("read:a",)),
        (Scope.GRANTED, None, ("reed:a",)),
    ):
        with pytest.raises(TokensUnusable):
            check_identity(TokenIdentity("x", "0" * 64, scope, "default", edge, grants), "here")


def test_a_pattern_costs_little_whatever_it_is() -> None:
    rights = Rights([f"read:{'a*' * 31}c"] * GRANTS_MAX)
    assert not rights.allow(Right.READ, "a" * 63 + "b")
    assert rights.allow(Right.READ, "a" * 63 + "c")


# --- Owners that are charged for the requests of readers


@pytest.mark.parametrize(
    ("remote", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
    ],
)
def test_without_tokens_all_addresses_of_one_customer_share_a_budget(remote: str, owner: str) -> None:
    access = Access(Credentials(False, lambda: 0), open_to_network=True)
    request = make_mocked_request("GET", "/v1/streams").clone(remote=remote)
    assert access.charged(request).owner == Owner(OwnerKind.ADDRESS, owner)


async def test_refused_requests_and_links_are_events_with_an_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = str(tmp_path / "tokens")
    reader, admin = (create_token(path, name, Scope(name)) for name in ("reader", "admin"))
    async with running_hub(MemoryStore(), tokens=path) as hub:
        for _ in range(3):
            await get(hub, "/v1/streams", "forged-token")
        await get(hub, "/v1/streams")
        await get(hub, "/v1/status", reader)
        await get(hub, "/v1/nowhere", reader)
        async with running_link(hub, EdgeLog(), LinkIdentity("default", "press-1", 7, "test"), "forged-token") as link:
            await until(lambda: "token" in (link.last_error or ""))
        _, metrics = await get(hub, "/metrics", admin)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "weft.events"]
    found = [(each["event"], each["severity"], each["owner"], each["on"]) for each in lines]
    assert found == [
        ("login_failed", "warning", "address 127.0.0.1", "GET /v1/streams"),
        ("access_refused", "warning", "token reader", "GET /v1/status"),
    ], "the same owner with the same trouble: one line a minute, whatever it asked for"
    assert "forged" not in caplog.text
    assert 'weft_hub_security_events_total{event="access_refused"} 1' in metrics
    assert 'weft_hub_security_events_total{event="login_failed"} 5' in metrics
