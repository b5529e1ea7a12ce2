"""Acts and their lines, whatever ends between them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.storage.declaring import MARA, declares, log_of
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.facts import acts, approvals
from weft.cloud_hub.facts.acts import ACT, UNKNOWN, acting, lines
from weft.cloud_hub.facts.approvals import (
    REQUEST,
    Approval,
    AskedAct,
    NeedsApproval,
    SecondPersonDocument,
    allow,
    approve,
    change_setting,
    requests_of,
)
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.cloud_hub.facts.tokens import add_token
from weft.cloud_hub.hub import Hub
from weft.commands import common, hub_access
from weft.hub_api.rights import Scope
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.protocols.lane import AUDIT_STREAM, AUDIT_TENANT
from weft.protocols.shard.placement import shard_of
from weft.replication.runner import LinkIdentity
from weft.storage import cluster_log, hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster, read_cluster, restored
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare
from weft.storage.object_store.probe import ReadOnly, read_only
from weft.storage.object_store.protocol import Buffer, Listing, Object


class Killed(BaseException):
    """The end of a process."""


class Dying:
    """A store whose process is killed at one of its writes: before it, or when it is durable."""

    def __init__(self, inner: ObjectStore, left: int, *, before: bool) -> None:
        self._inner, self.left, self._before = inner, left, before

    async def _write(self, write: Callable[[], object]) -> object:
        self.left -= 1
        if self.left == 0 and self._before:
            raise Killed
        done = await write()  # type: ignore[misc]
        if self.left == 0:
            raise Killed
        return done

    async def create(self, key: str, data: Buffer) -> str:
        return await self._write(lambda: self._inner.create(key, data))  # type: ignore[return-value]

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        return await self._write(lambda: self._inner.create_from(key, parts))  # type: ignore[return-value]

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        return await self._write(lambda: self._inner.swap(key, data, expected_etag))  # type: ignore[return-value]

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def sync(self, key: str) -> None:
        await self._inner.sync(key)

    async def get(self, key: str) -> Object:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get_range(key, start, length)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        return await self._inner.list(prefix, after, limit)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return self._inner.location(key)


async def reported(folder: Path) -> tuple[bool, list[tuple[str, str]]]:
    """Return whether the lane is retired, and act and reason of all lines."""
    store = open_store(str(folder))
    cluster = await read_cluster(store)
    state = await ShardLog(store, cluster, shard_of(LANE.tenant, LANE.edge, 2)).load()
    log = ClusterLog(store, cluster.cluster_id)
    found = await lines(log, 1, (await log.load()).n + 1)
    return not state.lanes[LANE].counts, [(each.act, each.reason) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_no_act_is_without_its_line_wherever_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    real, seen = common.open_hub_store, set[tuple[bool, int]]()
    for write in range(1, 100):
        folder = tmp_path / f"store-{write}"
        config = tmp_path / "hub.yaml"
        config.write_text(f"store: {folder}\n")

        async def prepare(folder: Path = folder) -> None:
            log = await LogWriter.open(open_store(str(folder)))
            await log.append(shard_of(LANE.tenant, LANE.edge, 2), Run(LANE, 0, 3))

        asyncio.run(prepare())
        dying: list[Dying] = []

        def opened(uri: str, write: int = write, dying: list[Dying] = dying) -> ObjectStore:
            dying.append(Dying(bare(real(uri)), write, before=before))
            return PlacedStore(dying[0])

        monkeypatch.setattr(hub_access, "open_hub_store", opened)
        try:
            weft("hub", "retire", config, "press-1", "--reason", "gone", "--yes")
        except Killed:
            pass
        is_retired, found = asyncio.run(reported(folder))
        assert [("began", "gone"), ("ended", "done")][: len(found)] == found
        assert len(found) >= is_retired, "an act without its line"
        seen.add((is_retired, len(found)))
        if dying[0].left > 0:  # the process came to its end
            assert found[1:] == [("ended", "done")]
            break
    assert seen == {(False, 0), (False, 1), (True, 1), (True, 2)}, "killed at every stage"


async def test_an_error_is_the_end_of_an_act_and_a_line_that_cannot_be_written_prevents_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_log, "RETRY_MAX_S", 0.0)
    store = MemoryStore()
    log = log_of(store)
    with pytest.raises(LookupError):
        async with acting(log, "a", "shard 3", MARA, lambda: 2_000):
            raise LookupError("no such shard")
    ended = (await lines(log, 1, 3))[1]
    assert (ended.act, ended.reason, ended.name) == ("ended", "failed: no such shard", "a")

    async def fails(*_: object) -> str:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(store, "create", fails)
    with pytest.raises(StoreError):
        async with acting(log, "b", "shard 3", MARA._replace(reason="x"), lambda: 2_000):
            raise AssertionError("it must not begin")


async def test_acts_whose_end_is_missing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "OPEN_MAX", 2)
    store = MemoryStore()
    for name in "abc":
        with pytest.raises(Killed):
            async with acting(log_of(store), name, "", MARA, lambda: 2_000):
                raise Killed
    state = await log_of(store).load()
    assert sorted(state.facts(ACT)) == ["b", "c"]
    assert [each.reason for each in await lines(log_of(store), 3, 4)] == [UNKNOWN]


async def test_a_store_for_reading_cannot_be_changed() -> None:
    store = read_only(MemoryStore())
    for change in (store.create("cluster/x", b""), store.swap("x", b"", ""), store.delete("x")):
        with pytest.raises(ReadOnly):
            await change
    await store.create("probe/0/clock", b"")
    await store.delete("probe/0/clock")


# --- Requests for acts that need a second person: who may approve, and how often an approval counts


S = 10**9
SECOND_PERSON_MARA = Author(1_000 * S, "mara", "case 12", "mara@ops-1", "hub erase")
ERASE = AskedAct("hub erase", "rows of default/visits", {"key": "person-4711", "reason": "case 12"})
BEN = Approval("ben", "ben@ops-2", 1_100 * S)


async def turned_on() -> MemoryStore:
    store = MemoryStore()
    await log_of(store).append(change_setting(SecondPersonDocument("names", 3600)), SECOND_PERSON_MARA)
    return store


async def asked(store: MemoryStore, wanted: AskedAct = ERASE, author: Author = SECOND_PERSON_MARA) -> str:
    with pytest.raises(NeedsApproval) as refused:
        await allow(store, log_of(store), wanted, author)
    (name,) = [name for name in requests_of(await log_of(store).load()) if name in str(refused.value)]
    return name


async def test_an_approved_act_is_allowed_once_and_only_as_it_was_asked() -> None:
    store = await turned_on()
    name = await asked(store)
    assert await asked(store) == name, "the same act has one request"
    await log_of(store, 1).append(approve(name, BEN), SECOND_PERSON_MARA)
    assert await asked(store, ERASE._replace(options={"key": "person-4712", "reason": "case 12"})) != name
    assert await allow(store, log_of(store, 2), ERASE, SECOND_PERSON_MARA) == name
    assert [each.key for each in await store.list(hub_keys.REQUESTS)] != []
    assert hub_keys.request_key(name) not in [each.key for each in await store.list(hub_keys.REQUESTS)]
    assert await asked(store) != name, "an approval counts once"


async def test_who_asked_cannot_approve_under_one_of_two_names() -> None:
    store = await turned_on()
    name = await asked(store)
    for by, origin in (
        ("mara", "ben@ops-2"),
        (" Mara", "ben@ops-2"),
        ("ben", "mara@ops-1"),
        ("ben", "mara@laptop"),
        ("ben", "root@ops-1 (sudo by mara)"),
        ("ben", "weft@ops-2 (sudo by mara)"),
    ):
        with pytest.raises(CannotDeclare, match="another person"):
            await log_of(store).append(approve(name, Approval(by, origin, BEN.at)), SECOND_PERSON_MARA)
    with pytest.raises(CannotDeclare, match="no request"):
        await log_of(store).append(approve("f" * 16, BEN), SECOND_PERSON_MARA)
    with pytest.raises(CannotDeclare, match="is over"):
        await log_of(store).append(approve(name, msgspec.structs.replace(BEN, at=9_000 * S)), SECOND_PERSON_MARA)


async def test_people_behind_one_user_are_told_apart_by_sudo() -> None:
    store = await turned_on()
    name = await asked(store, author=SECOND_PERSON_MARA._replace(origin="root@ops-1 (sudo by mara)"))
    for origin in ("mara@ops-1", "root@ops-2 (sudo by mara)"):
        with pytest.raises(CannotDeclare, match="another person"):
            await log_of(store).append(approve(name, Approval("ben", origin, BEN.at)), SECOND_PERSON_MARA)
    state = await log_of(store).append(
        approve(name, Approval("ben", "root@ops-1 (sudo by ben)", BEN.at)), SECOND_PERSON_MARA
    )
    assert [each.by for each in requests_of(state)[name].approvals] == ["ben"]


async def test_what_is_over_leaves_no_options_and_other_acts_need_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await turned_on()
    name = await asked(store)
    assert await allow(store, log_of(store), ERASE._replace(command="hub split"), SECOND_PERSON_MARA) is None
    later = await asked(store, author=SECOND_PERSON_MARA._replace(at=9_000 * S))
    assert later != name
    assert [each.key for each in await store.list(hub_keys.REQUESTS)] == [hub_keys.request_key(later)]
    assert list((await log_of(store).load()).facts(REQUEST)) == [later]
    monkeypatch.setattr(approvals, "REQUESTS_MAX", 1)
    with pytest.raises(CannotDeclare, match="1 requests wait"):
        await allow(store, log_of(store), ERASE._replace(options={}), SECOND_PERSON_MARA)


async def test_a_setting_of_a_later_release_is_not_passed_over() -> None:
    store = MemoryStore()
    await log_of(store).append(declares("acts", b'{"approvals":"three-keys"}', "second-person"), SECOND_PERSON_MARA)
    with pytest.raises(CannotDeclare, match="later release"):
        await allow(store, log_of(store), ERASE, SECOND_PERSON_MARA)


# --- The stream of acts has each entry of the cluster log once, in its order, also when its writer ends


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
