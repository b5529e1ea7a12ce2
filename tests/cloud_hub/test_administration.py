"""Administrators act by requests: tokens are made, rotated and withdrawn, processes drained, and shards split."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.cloud_hub.auth.test_tokens import call
from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.regions.fabric import NODE, has, log_of, stored, to
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import hash_token, new_token
from weft.cloud_hub.facts.fact import TENANT
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.regions.regions import PAUSED
from weft.hub_api.operation import IMPORT_BYTES_MAX
from weft.hub_api.rights import Scope, role_grants
from weft.hub_api.tokens import IMPORTED_MAX
from weft.protocols.link import PAIR_PATH, spoken
from weft.replication.runner import LinkIdentity
from weft.storage.cluster_log import Change
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore

ADMIN = "root"
"""Secret of a token with the role of an administrator."""


async def open_to_an_administrator(hub: Hub, store: ObjectStore) -> None:
    await declare(hub, store, token("ada", ADMIN, Scope.GRANTED, grants=role_grants(["administrator"])))


async def act(hub: Hub, method: str, path: str, body: Any = None, bearer: str = ADMIN) -> Any:
    """Return the answer to a request that succeeds."""
    status, answer = await call(hub, method, path, bearer, body)
    assert status == 200, answer
    return answer


async def lines(hub: Hub) -> list[tuple[str, str, str]]:
    """(author, request, reason) of the acts so far."""
    acts = (await act(hub, "GET", "/v1/acts"))["acts"]
    return [(each["by"], each["command"], each["reason"]) for each in acts]


async def until_complete(hub: Hub, request: str, reason: str) -> None:
    """Wait for the line of an act: the hub reads it from the log, soon after the request is answered."""

    async def is_reported() -> bool:
        return ("token ada", request, reason) in await lines(hub)

    await until(is_reported)


async def test_a_token_is_made_rotated_and_withdrawn_and_its_secret_is_shown_once() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        wanted = {"name": "wall/7", "scope": "reader", "expires": "90d", "reason": "hall 2"}
        first = await act(hub, "POST", "/v1/tokens", wanted)
        await until(lambda: hub._declared.credentials.identify(first["token"]) is not None)
        assert (await get(hub, "/v1/streams", first["token"]))[0] == 200
        second = await act(hub, "POST", "/v1/tokens/wall%2F7/rotate", {"overlap": "1h"})
        assert second["until"] == first["until"], "a rotation keeps the end"
        await until(lambda: hub._declared.credentials.identify(second["token"]) is not None)
        assert (await get(hub, "/v1/streams", first["token"]))[0] == 200, "the one before stays for an hour"
        listed = (await act(hub, "GET", "/v1/tokens"))["tokens"]
        assert [(each["name"], each["scope"], each["secrets"]) for each in listed] == [
            ("ada", "granted", 1),
            ("wall/7", "reader", 2),
        ]
        assert first["token"] not in str(listed)
        assert await act(hub, "DELETE", "/v1/tokens/wall%2F7?reason=taken+down") == {"name": "wall/7", "left": 1}
        await until(lambda: hub._declared.credentials.identify(second["token"]) is None)
        assert (await get(hub, "/v1/streams", second["token"]))[0] == 401
        await until_complete(hub, "DELETE /v1/tokens/{name}", "taken down")
        assert (await lines(hub))[1:] == [
            ("token ada", "POST /v1/tokens", "hall 2"),
            ("token ada", "POST /v1/tokens/{name}/rotate", ""),
            ("token ada", "DELETE /v1/tokens/{name}", "taken down"),
        ]


async def test_an_edge_takes_its_token_by_a_code_that_an_administrator_asked_for_and_no_record_has() -> None:
    store, secret = MemoryStore(), new_token()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        wanted = {"edge": "press-1", "within": "1h", "expires": "90d", "reason": "hall 2"}
        made = await act(hub, "POST", "/v1/tokens/press%2F1/pair", wanted)
        assert (made["name"], made["tenant"], made["edge"]) == ("press/1", "default", "press-1")
        await until(lambda: hub._declared.credentials.is_declared("press/1"))
        listed = (await act(hub, "GET", "/v1/tokens"))["tokens"]
        assert [each["until"] for each in listed if each["name"] == "press/1"] == ["not paired yet"]
        redeemed = {"code": made["code"], "sha256": hash_token(secret), "tenant": None, "edge": None}
        assert (await call(hub, "POST", PAIR_PATH, "", redeemed))[0] == 200
        await until(lambda: hub._declared.credentials.identify(secret) is not None)
        assert hub._declared.credentials.identify(secret).edge == "press-1"  # type: ignore[union-attr]
        for body, status in (
            ({"edge": "press-1", "within": "2d"}, 400),
            ({"edge": "press-1", "expires": "soon"}, 400),
            ({"edge": "No Edge"}, 400),
            ({"edge": "press-2"}, 409),
            ({"edge": "press-1", "tenant": "acme"}, 409),
        ):
            assert (await call(hub, "POST", "/v1/tokens/press%2F1/pair", ADMIN, body))[0] == status, body
        await until_complete(hub, "POST /v1/tokens/{name}/pair", "hall 2")
        kept = [bytes(each.data) for each in store._objects.values()]
        everything = str([await act(hub, "GET", "/v1/acts"), *kept])
        assert not any(each in everything for each in (made["code"], spoken(made["code"])))


async def test_tokens_of_another_place_are_declared_together_or_not_at_all_and_stay_when_they_come_again() -> None:
    store, secrets = MemoryStore(), {name: new_token() for name in ("a", "b", "c")}
    fleet = [
        {"name": name, "sha256": hash_token(secret), "scope": "edge", "edge": name} for name, secret in secrets.items()
    ]
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        wanted = {"tokens": [*fleet, {**fleet[0], "name": "x", "tenant": "acme"}]}
        status, reported = await call(hub, "POST", "/v1/tokens:import", ADMIN, wanted)
        assert (status, "there is no tenant 'acme'" in reported["detail"]) == (409, True)
        assert [each["name"] for each in (await act(hub, "GET", "/v1/tokens"))["tokens"]] == ["ada"], "none of them"
        for one in ({"grants": ["read"]}, {"sha256": "AB"}, {"edge": None}):
            assert (await call(hub, "POST", "/v1/tokens:import", ADMIN, {"tokens": [{**fleet[0], **one}]}))[0] == 400
        many = {"tokens": [{**fleet[0], "name": f"n-{n}"} for n in range(IMPORTED_MAX + 1)]}
        assert (await call(hub, "POST", "/v1/tokens:import", ADMIN, many))[0] == 400
        long = {"tokens": fleet, "reason": "x" * IMPORT_BYTES_MAX}
        assert (await call(hub, "POST", "/v1/tokens:import", ADMIN, long))[0] == 413
        done = await act(hub, "POST", "/v1/tokens:import", {"tokens": fleet[:2], "reason": "moved"})
        assert done == {"added": ["a", "b"], "existing": 0, "other_secret": []}
        other = {**fleet[0], "sha256": hash_token("another")}
        done = await act(hub, "POST", "/v1/tokens:import", {"tokens": [other, *fleet[1:]]})
        assert done == {"added": ["c"], "existing": 2, "other_secret": ["a"]}
        await until(lambda: hub._declared.credentials.identify(secrets["c"]) is not None)
        assert hub._declared.credentials.identify("another") is None
        await until_complete(hub, "POST /v1/tokens:import", "moved")


async def test_a_tenant_is_withdrawn_after_its_tokens_and_a_list_says_what_it_has() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        await act(hub, "PUT", "/v1/tenants/acme", {"links": 3, "reason": "contract 17"})
        await act(hub, "POST", "/v1/tokens", {"name": "wall", "scope": "reader", "tenant": "acme"})
        found = await act(hub, "GET", "/v1/tenants/acme")
        assert [found[each] for each in ("tokens", "streams_with_edges", "isolation", "unusable")] == [1, 0, None, None]
        assert (found["by"], found["reason"], found["changed"] is None) == ("token ada", "contract 17", False)
        status, reported = await call(hub, "DELETE", "/v1/tenants/acme", ADMIN)
        assert (status, "has tokens: wall" in reported["detail"]) == (409, True)
        await act(hub, "DELETE", "/v1/tokens/wall")
        assert await act(hub, "DELETE", "/v1/tenants/acme?reason=over") == {"tenant": "acme"}
        assert (await call(hub, "DELETE", "/v1/tenants/acme", ADMIN))[0] == 409
        await declare(hub, store, lambda _: Change(TENANT, "later", b'{"quotas": 7}'))
        listed = (await act(hub, "GET", "/v1/tenants"))["tenants"]
        assert [(each["tenant"], each["unusable"] is None) for each in listed] == [("default", True), ("later", False)]
        assert (await call(hub, "PUT", "/v1/tenants/later", ADMIN, {"links": 1}))[0] == 409, "nothing of it is lost"
        await until_complete(hub, "DELETE /v1/tenants/{tenant}", "over")


async def test_a_schema_is_declared_by_its_tenant_for_the_streams_of_the_grant_and_kept_in_versions() -> None:
    store, path = MemoryStore(), "/v1/streams/telemetry/schema"
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        await act(hub, "PUT", "/v1/tenants/acme", {})
        for name, tenant, grant in (
            ("engineer", "acme", "declare:tele*"),
            ("reader", "acme", "read:tele*"),
            ("other", "default", "declare"),
        ):
            await declare(hub, store, token(name, name, Scope.GRANTED, tenant=tenant, grants=(grant,)))
        column = {"type": "float"}
        wanted = {"schema": {"fields": {"t": column}}, "reason": "first columns"}
        first = await act(hub, "PUT", path, {**wanted, "compatibility": "backward"}, "engineer")
        assert (first["tenant"], first["before"], first["by"]) == ("acme", None, "token engineer")
        wider = {"schema": {"fields": {"t": column, "n": {"type": "int"}}}}
        second = await act(hub, "PUT", f"{path}?tenant=acme", wider, "engineer")
        assert (second["before"], second["compatibility"]) == (first["version"], "backward")
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"t": {"type": "string"}}, 409),
            ({"t": {"type": "floaty"}}, 400),
            ({"_t": column}, 400),
            ({}, 400),
            ({f"n{n}": {**column, "description": "x" * 1000} for n in range(90)}, 400),
        ]
        for fields, status in wrong:
            got, refused = await call(hub, "PUT", path, "engineer", {"schema": {"fields": fields}})
            assert (got, bool(refused["advice"])) == (status, True), fields
        for bearer, where, status in (
            ("engineer", "/v1/streams/secret/schema", 403),
            ("engineer", f"{path}?tenant=default", 403),
            ("other", f"{path}?tenant=acme", 403),
            ("reader", path, 403),
        ):
            assert (await call(hub, "PUT", where, bearer, wanted))[0] == status, (where, bearer)
            assert (await call(hub, "DELETE", where, bearer))[0] == status, (where, bearer)
        assert (await call(hub, "GET", f"{path}?tenant=acme", "other"))[0] == 403

        async def is_known() -> bool:
            return (await call(hub, "GET", path, "reader")) == (200, second)

        await until(is_known)
        assert await act(hub, "GET", f"{path}?version={first['version']}", bearer="reader") == first
        assert (await call(hub, "GET", f"{path}?version=1", "reader"))[0] == 404, "an entry about a token"
        listed = (await act(hub, "GET", "/v1/schemas"))["schemas"]
        assert [(each["tenant"], each["stream"], each["fields"]) for each in listed] == [("acme", "telemetry", 2)]
        gone = await act(hub, "DELETE", f"{path}?reason=over", bearer="engineer")
        assert gone == {"tenant": "acme", "stream": "telemetry"}
        assert (await call(hub, "DELETE", path, "engineer"))[0] == 409
        assert await act(hub, "GET", f"{path}?version={first['version']}", bearer="reader") == first, "rows name it"

        async def is_reported() -> bool:
            return ("token engineer", "DELETE /v1/streams/{stream}/schema", "over") in await lines(hub)

        await until(is_reported)
        assert ("token engineer", "PUT /v1/streams/{stream}/schema", "first columns") in await lines(hub)


async def test_what_cannot_be_a_token_is_refused_and_so_is_the_first_one_of_a_hub() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        async with aiohttp.ClientSession(hub.url) as session:
            for way, command in (("", "add"), (":import", "import"), ("/a/pair", "pair")):
                answer = await session.post(f"/v1/tokens{way}", json={"name": "a", "scope": "admin"})
                assert (answer.status, f"weft hub token {command}" in await answer.text()) == (403, True)
            answer = await session.delete("/v1/drains?node=a", headers={"Origin": "https://evil.example"})
            assert answer.status == 403
        await open_to_an_administrator(hub, store)
        for body, status in (
            ({"name": "a"}, 400),
            ({"name": "a", "scope": "reader", "grants": ["read"]}, 400),
            ({"name": "a", "scope": "edge"}, 400),
            ({"name": "a", "grants": ["reed"]}, 400),
            ({"name": "a", "scope": "reader", "expires": "soon"}, 400),
            ({"name": "ada", "scope": "reader"}, 409),
            ({"name": "a", "scope": "reader", "tenant": "acme"}, 409),
        ):
            got, reported = await call(hub, "POST", "/v1/tokens", ADMIN, body)
            assert (got, bool(reported["advice"])) == (status, True), body
        assert [each["name"] for each in (await act(hub, "GET", "/v1/tokens"))["tokens"]] == ["ada"]


async def test_a_process_is_drained_and_takes_its_shards_again() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        (own,) = (await act(hub, "GET", "/v1/nodes"))["nodes"]
        status, reported = await call(hub, "POST", "/v1/drains", ADMIN, {"node": own["name"]})
        assert (status, "no other running process" in reported["detail"]) == (409, True)
        assert (await call(hub, "POST", "/v1/drains", ADMIN, {"node": "nobody"}))[0] == 404
        async with running_hub(store, tokens_required=True, **SOON):
            drained = await act(hub, "POST", "/v1/drains", {"node": own["name"], "reason": "new disks"})
            assert drained == {"node": own["name"], "drained": True, "links": 0}
            await until(lambda: hub._declared.drained.covers("", own["name"]))
            (found,) = (await act(hub, "GET", "/v1/drains"))["drains"]
            assert (found["node"], found["by"], found["reason"]) == (own["name"], "token ada", "new disks")
            await call(hub, "DELETE", f"/v1/drains?node={own['name']}", ADMIN)
            await until(lambda: not hub._declared.drained.covers("", own["name"]))
            assert (await act(hub, "GET", "/v1/drains"))["drains"] == []
            assert (await call(hub, "DELETE", f"/v1/drains?node={own['name']}", ADMIN))[0] == 409


async def test_a_shard_is_split_after_a_look_and_its_edges_send_on() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, shards=1, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        await declare(hub, store, token("writer", "edge", Scope.GRANTED, edge="press-1", grants=("write",)))
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, "edge"):
            await log.until_released(1)
            look = await act(hub, "GET", "/v1/splits?shard=0")
            assert (look["moving"] + look["staying"], look["shard"]) == (2, 0), (
                "the hub's own stream of acts is there, too"
            )
            assert (await call(hub, "POST", "/v1/splits", ADMIN, {"shard": 7}))[0] == 409
            done = await act(hub, "POST", "/v1/splits", {"shard": 0, "force": True, "reason": "a busy line"})
            assert (done["new_shard"], done["moved"], done["stayed"]) == (1, look["moving"], look["staying"])
            await until(lambda: hub.cluster.tree.count == 2)
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
        await until_complete(hub, "POST /v1/splits", "done")
        assert [each for each in await lines(hub) if each[1] == "POST /v1/splits"] == [
            ("token ada", "POST /v1/splits", "a busy line"),
            ("token ada", "POST /v1/splits", "done"),
        ]
        second = EdgeLog()
        second.append(*records(0, [b"c"]))
        async with running_link(hub, second, LinkIdentity("default", "press-1", 9, "test"), "edge"):
            await second.until_released(1)


async def test_quotas_that_somebody_else_changed_meanwhile_are_not_taken_back() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await open_to_an_administrator(hub, store)
        made = await act(hub, "PUT", "/v1/tenants/acme", {"links": 3, "version": 0})
        assert (await call(hub, "PUT", "/v1/tenants/acme", ADMIN, {"links": 9, "version": 0}))[0] == 409, "it is there"
        other = await act(hub, "PUT", "/v1/tenants/acme", {"lanes": 7, "version": made["version"], "reason": "hall 2"})
        status, reported = await call(hub, "PUT", "/v1/tenants/acme", ADMIN, {"links": 4, "version": made["version"]})
        assert (status, "changed meanwhile" in reported["detail"]) == (409, True)
        assert (await call(hub, "PUT", "/v1/tenants/b%0A", ADMIN, {"version": 0}))[0] == 400
        assert [each["tenant"] for each in (await act(hub, "GET", "/v1/tenants?limit=05"))["tenants"]] == [
            "acme",
            "default",
        ]
        assert (await call(hub, "GET", f"/v1/acts?after={1 << 63}", ADMIN))[0] == 400
        there = await act(hub, "GET", "/v1/tenants/acme")
        assert (there["version"], there["quotas"]["lanes"], there["quotas"]["links"]) == (other["version"], 7, None)
        await until_complete(hub, "PUT /v1/tenants/{tenant}", "hall 2")


async def test_records_for_a_region_wait_for_a_request_and_go_on_after_another() -> None:
    store = MemoryStore()
    async with running_hub(MemoryStore()) as east, running_hub(store, regions=to(east.url), **SOON) as west:
        await open_to_an_administrator(west, store)
        await declare(west, store, token("writer", "edge", Scope.GRANTED, edge="press-1", grants=("write",)))
        assert (await call(west, "PUT", "/v1/regions/south", ADMIN, {"paused": True}))[0] == 404
        assert (await call(west, "PUT", "/v1/regions/east", ADMIN, {"paused": False}))[0] == 409
        log = log_of(0, 3)
        async with running_link(west, log, NODE, "edge"):
            await until(lambda: has(east, 3))
            assert await act(west, "PUT", "/v1/regions/east", {"paused": True, "reason": "the line is needed"}) == {
                "region": "east",
                "paused": True,
            }
            await until(lambda: all(each.report().state == PAUSED for each in west.regions))
            [reported] = (await act(west, "GET", "/v1/regions"))["configured"]
            assert reported == {"region": "east", "paused": True, "pin_seconds": 7 * 86_400.0, "budget": None}
            log.append(*log_of(3, 6).batches[0])
            await log.until_released(6)
            assert stored(east) == 3
            await act(west, "PUT", "/v1/regions/east", {"paused": False})
            await until(lambda: has(east, 6))
        await until_complete(west, "PUT /v1/regions/{region}", "the line is needed")
