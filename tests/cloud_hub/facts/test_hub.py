"""A running hub applies what is declared: tokens open and close it, and streams wait for their edges."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.cloud_hub.http.test_application import EDGE, STREAM, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.facts.fact import Decision
from weft.cloud_hub.facts.streams import expect_edges
from weft.cloud_hub.facts.tokens import Secret, add_token, remove_token, rotate_token
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore

OTHER_LOG = LinkIdentity("default", "press-1", 0xDEF, "test")
SOON = {"cluster_log_interval_s": 0.02}


async def declare(hub: Hub, store: ObjectStore, decision: Decision) -> None:
    """Declare a fact, and wait until the hub knows it."""
    log = ClusterLog(store, hub.cluster.cluster_id)
    state = await log.append(decision, Author(time.time_ns(), "mara@ops-1", ""))
    await until(lambda: hub._declared.position >= state.n)


def token(name: str, secret: str, scope: Scope = Scope.ADMIN, **more: Any) -> Decision:
    return add_token(TokenIdentity(name, hash_token(secret), scope, **more), None)


async def test_a_declared_token_opens_a_running_hub_and_its_withdrawal_ends_its_links() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        assert (await get(hub, "/v1/status", "admin"))[0] == 401
        await declare(hub, store, token("ops", "admin"))
        await declare(hub, store, token("press", "edge", Scope.EDGE, edge="press-1"))
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, "edge") as link:
            await log.until_released(1)
            rotated = rotate_token("press", Secret(hash_token("new")), time.time_ns(), time.time_ns() + 10**15)
            await declare(hub, store, rotated)
            await asyncio.sleep(0.05)
            assert link.state is LinkState.CONNECTED
            assert link.connections == 1, "the old secret is still in force"
            async with running_link(hub, EdgeLog(), OTHER_LOG, "new") as second:
                await until(lambda: second.connections == 1)
            await declare(hub, store, remove_token("press"))
            await until(lambda: link.state is not LinkState.CONNECTED)
            await until(lambda: "token" in (link.last_error or ""))
        _, status = await get(hub, "/v1/status", "admin")
        assert status["cluster_log"]["entry"] == 4
        assert status["cluster_log"]["tokens"] == 1
        assert status["links"] == []


async def test_the_first_token_closes_a_hub_that_was_open_and_ends_links_without_one() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            await declare(hub, store, token("ops", "admin"))
            await until(lambda: link.state is not LinkState.CONNECTED)
            assert (await get(hub, "/v1/status"))[0] == 401
            assert (await get(hub, "/v1/status", "admin"))[0] == 200
            await declare(hub, store, remove_token("ops"))
            assert (await get(hub, "/v1/status"))[0] == 401, "to withdraw all tokens opens nothing"
    async with running_hub(store, **SOON) as hub:
        assert (await get(hub, "/v1/status"))[0] == 401, "nor does a restart"


async def test_a_broken_entry_harms_no_open_link_and_is_named() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, token("ops", "admin"))
        await declare(hub, store, token("press", "edge", Scope.EDGE, edge="press-1"))
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, "edge") as link:
            await log.until_released(1)
            await store.create(hub_keys.entry_key(3), bytes(200_000))
            await declare(hub, store, remove_token("ops"))
            await declare(hub, store, token("ops", "another"))
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1
        _, status = await get(hub, "/v1/status", "another")
        (skipped,) = status["cluster_log"]["skipped"]
        assert skipped["entry"] == 3
        assert "is damaged" in skipped["why"]


async def test_a_stream_waits_for_declared_edges_on_every_hub_of_the_store() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub, running_hub(store, **SOON) as other:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE):
            await log.until_released(1)

            async def moments() -> list[str | None]:
                answers = [await get(each, f"{STREAM}/completeness") for each in (hub, other)]
                return [answer["complete_up_to"] for _, answer in answers]

            await until(lambda: all_known(moments))
            await declare(hub, store, expect_edges(("default", "telemetry"), ("press-1", "oven-1")))
            await until(lambda: other._declared.position == 1)
            assert await moments() == [None, None], "one word for all hosts"
            await declare(hub, store, expect_edges(("default", "telemetry"), None))
            await until(lambda: other._declared.position == 2)
            await until(lambda: all_known(moments))


async def all_known(moments: Any) -> bool:
    return None not in await moments()
