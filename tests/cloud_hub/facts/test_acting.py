"""Acts and their lines, whatever ends between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.storage.cluster_log.declaring import MARA, log_of
from tests.support.processes import weft
from weft.cloud_hub.facts import acts
from weft.cloud_hub.facts.acts import ACT, UNKNOWN, acting, lines
from weft.commands import common, hub_store
from weft.protocols.shard.placement import shard_of
from weft.storage import cluster_log
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import read_cluster
from weft.storage.cluster_log import ClusterLog
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

        monkeypatch.setattr(hub_store, "open_hub_store", opened)
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
