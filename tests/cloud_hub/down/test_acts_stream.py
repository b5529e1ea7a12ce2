"""The stream of acts has each entry of the cluster log once, in its order, also when its writer ends."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.facts.acts import acting
from weft.cloud_hub.facts.approvals import (
    Approval,
    AskedAct,
    NeedsApproval,
    SecondPersonDocument,
    allow,
    approve,
    change_setting,
    requests_of,
)
from weft.cloud_hub.facts.tokens import add_token
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.protocols.lane import AUDIT_STREAM, AUDIT_TENANT
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster, restored
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore

SOON = {"cluster_log_interval_s": 0.02}
WAY = f"/v1/streams/{AUDIT_STREAM}/records?tenant={AUDIT_TENANT}&limit=1000"


def author() -> Author:
    return Author(time.time_ns(), "mara", "case 12", "root@ops-1", "hub tenant add")


async def declare(store: ObjectStore, *names: str) -> None:
    """Declare tokens of the stream's tenant, which need no declared tenant."""
    log = ClusterLog(store, (await open_cluster(store, 2)).cluster_id)
    for name in names:
        identity = TokenIdentity(name, hash_token(f"secret of {name}"), Scope.READER, AUDIT_TENANT)
        await log.append(add_token(identity, None), author())


async def copied(hub: Hub, count: int, token: str) -> list[dict[str, Any]]:
    """Return the lines of the stream, once there are so many."""
    found: list[Any] = []

    async def are_there() -> bool:
        status, answer = await get(hub, WAY, token)
        found[:] = answer["records"] if status == 200 else []
        return len(found) >= count

    await until(are_there)
    assert [each["seq"] for each in found] == list(range(count))
    return [json.loads(each["payload"]) for each in found]


async def test_each_act_is_a_record_once_also_of_a_log_that_was_there_before() -> None:
    store = MemoryStore()
    await declare(store, *(f"t-{number}" for number in range(70)))
    async with running_hub(store, **SOON) as hub:
        await copied(hub, 70, "secret of t-0")
        await declare(store, "later")
        async with acting(ClusterLog(store, hub.cluster.cluster_id), "ab", "shard 3", author(), time.time_ns):
            pass
        found = await copied(hub, 73, "secret of t-0")
        assert [each["entry"] for each in found] == list(range(1, 74))
        assert found[70] == found[70] | {
            "by": "mara",
            "origin": "root@ops-1",
            "command": "hub tenant add",
            "act": "declared",
            "kind": "token",
            "name": "later",
            "reason": "case 12",
        }
        assert [(each["act"], each["target"]) for each in found[71:]] == [("began", "shard 3"), ("ended", "")]
        assert "sha256" not in json.dumps(found)
    await declare(store, "while-none-runs")
    async with running_hub(store, **SOON) as first, running_hub(store, **SOON) as second:
        for hub in (first, second):
            assert (await copied(hub, 74, "secret of t-0"))[-1]["name"] == "while-none-runs"


async def test_a_restored_store_gives_numbers_again_in_another_lane() -> None:
    store = MemoryStore()
    await declare(store, "a", "b")
    async with running_hub(store, **SOON) as hub:
        await copied(hub, 2, "secret of a")
    found = await store.get(hub_keys.CLUSTER)
    await store.swap(hub_keys.CLUSTER, restored(found.data, 1, 9_999), found.etag)
    await store.delete(hub_keys.entry_key(2))
    await declare(store, "c")
    async with running_hub(store, **SOON) as hub:

        async def names() -> list[str]:
            records = (await get(hub, WAY, "secret of a"))[1]["records"]
            return [json.loads(each["payload"])["name"] for each in records]

        await until(lambda: _is(names, ["a", "b", "a", "c"]))


async def test_a_backup_brings_the_acts_back_and_the_stream_goes_on_but_no_approval_that_waits() -> None:
    store, place, target = MemoryStore(), MemoryStore(), MemoryStore()
    await declare(store, "a", "b")
    log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
    await log.append(change_setting(SecondPersonDocument("names")), author())
    erase = AskedAct("hub erase", "rows of default/visits", {"key": "person-4711"})
    with pytest.raises(NeedsApproval):
        await allow(store, log, erase, author())
    async with running_hub(store, **SOON) as hub:
        await copied(hub, 4, "secret of a")
    (name,) = requests_of(await log.load())
    await log.append(approve(name, Approval("ben", "ben@ops-2", time.time_ns())), author())
    await make_backup(store, place, clock=time.time_ns, note=lambda line: None)
    assert await allow(store, log, erase, author()) == name, "what was done since is not in the backup"
    assert b"person-4711" not in b"".join([(await place.get(each.key)).data for each in await place.list("")])
    view = await open_backup(place)
    assert view is not None
    await restore(view, target, clock=time.time_ns, note=lambda line: None)
    with pytest.raises(NeedsApproval):
        await allow(target, ClusterLog(target, log._cluster_id), erase, author())
    async with running_hub(target, **SOON) as hub:

        async def reported() -> list[tuple[str, str]]:
            records = (await get(hub, WAY, "secret of a"))[1]["records"]
            lines = [json.loads(each["payload"]) for each in records]
            return [(each["act"], each["kind"]) for each in lines]

        before = [("declared", kind) for kind in ("token", "token", "second-person", "request")]
        again = [*before, ("declared", "request"), ("declared", "request")]
        await until(lambda: _is(reported, [*before, *again]))


async def _is(ask: Callable[[], Awaitable[list[Any]]], wanted: list[Any]) -> bool:
    return await ask() == wanted


async def test_readers_of_other_tenants_and_edges_have_no_part_in_the_stream() -> None:
    store = MemoryStore()
    await declare(store, "auditor")
    log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
    for name, scope, tenant, edge in (
        ("ops", Scope.ADMIN, "default", None),
        ("reader", Scope.READER, "default", None),
        ("edge", Scope.EDGE, AUDIT_TENANT, "press-1"),
    ):
        await log.append(add_token(TokenIdentity(name, hash_token(name), scope, tenant, edge), None), author())
    async with running_hub(store, **SOON) as hub:
        assert (await copied(hub, 4, "ops"))[0]["name"] == "auditor"
        assert (await get(hub, WAY, "reader"))[0] == 403
        assert (await get(hub, "/v1/acts", "secret of auditor"))[0] == 403, "another tenant's acts: admins alone"
        assert (await get(hub, "/v1/edges", "ops"))[1]["edges"] == [], "the hub's own lane is no edge"
        forged = EdgeLog(AUDIT_STREAM)
        forged.append(*records(0, [b"{}"]))
        async with running_link(hub, forged, LinkIdentity(AUDIT_TENANT, "press-1", 7, "test"), "edge") as link:
            await until(lambda: "is the hub's own" in (link.last_error or ""))


async def test_a_line_that_is_lost_is_a_record_that_says_so_and_the_others_follow() -> None:
    store = MemoryStore()
    await declare(store, "a", "b", "c")
    await store.delete(hub_keys.entry_key(2))
    async with running_hub(store, **SOON) as hub:
        found = await copied(hub, 3, "secret of a")
        assert [each["act"] for each in found] == ["declared", "unusable", "declared"]
