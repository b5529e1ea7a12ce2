"""A tierer that dies, at every step it takes: what is left is whole, and the next one finishes the work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, expected, rows, table
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from weft.config.load import parse_rules, parse_schema
from weft.storage.hub_keys import keeper_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError, open_store
from weft.storage.presence import KEEPER_BEAT_S, MISSED_MAX, Claim
from weft.storage.table.delta import DeltaHandle
from weft.storage.table.quality import number_of
from weft.storage.table.schemas import StreamQuality, StreamSchema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

STORE_CALLS = ("create", "create_from", "swap", "get", "get_range", "list", "sync", "delete")
DELTA_CALLS = ("open", "create", "checkpoint", "clean_log", "vacuum")


class Crash(BaseException):
    """The process is gone: nothing may catch this and continue."""


class Boundaries:
    """Counts the calls that leave the process, and dies before or after one of them."""

    def __init__(self, fatal: int | None = None, after: bool = False) -> None:
        self.calls: list[str] = []
        self.fatal, self._after = fatal, after

    def crossing(self, name: str) -> bool:
        """Note a call. Returns whether the process dies when it has been made; dies at once if it shall not be."""
        self.calls.append(name)
        fatal = self.fatal == len(self.calls) - 1
        if fatal and not self._after:
            raise Crash(name)
        return fatal


class WatchedStore:
    """A store whose calls cross ``boundaries``."""

    def __init__(self, store: ObjectStore, boundaries: Boundaries) -> None:
        self._store, self._boundaries = store, boundaries

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in STORE_CALLS:
            return call

        async def watched(*arguments: Any, **named: Any) -> Any:
            fatal = self._boundaries.crossing(name)
            try:
                return await call(*arguments, **named)
            finally:
                if fatal:
                    raise Crash(name)

        return watched


def watch_delta(patch: pytest.MonkeyPatch, boundaries: Boundaries) -> None:
    for name in DELTA_CALLS:
        original = DeltaHandle.__dict__[name]
        call = original.__func__ if isinstance(original, classmethod) else original

        def watched(first: Any, *arguments: Any, call: Any = call, name: str = name) -> Any:
            fatal = boundaries.crossing(f"delta.{name}")
            try:
                return call(first, *arguments)
            finally:
                if fatal:
                    raise Crash(name)

        patch.setattr(DeltaHandle, name, classmethod(watched) if isinstance(original, classmethod) else watched)


Runs = dict[int, list[Run]]
"""Shard -> what its log has."""


async def fill(store: ObjectStore) -> tuple[LogWriter, Runs]:
    """A log whose first part is in the table already, under fewer columns than the rest needs."""
    log = await LogWriter.open(store)
    runs: Runs = {0: [Run(LANE, 0, 3, topics=["plant/{line}/+/telemetry"])], 1: []}
    await log.append(0, runs[0][0])
    await drain(await new_tierer(store, log))
    for shard, run in ((0, Run(LANE, 3, 4, topics=TOPICS)), (1, Run(OTHER, 0, 5, topics=TOPICS)), (0, Run(LANE, 7, 2))):
        await log.append(shard, run)
        runs[shard].append(run)
    return log, runs


FIRST = StreamSchema(3, parse_schema("t float, line string"))
SECOND = StreamSchema(9, parse_schema("t string, n int"))
QUALITY = StreamQuality(
    4, parse_rules("rules: {fits: {fits: true}, line: {not_null: machine}, once: {unique: [machine]}}")
)


async def prepare(root: Path, fresh: bool) -> Runs:
    """Make the store of ``die_at``, with a table that is there or one that is to be made."""
    store = open_store(str(root))
    if not fresh:
        return (await fill(store))[1]
    log = await LogWriter.open(store)
    runs = {0: [Run(LANE, 0, 3, topics=TOPICS)], 1: [Run(OTHER, 0, 2)]}
    for shard, (run,) in runs.items():
        await log.append(shard, run)
    return runs


async def die_at(
    log: LogWriter, runs: Runs, fatal: int | None, after: bool, *, fresh: bool, typed: bool = False
) -> list[str]:
    """Run one step that dies at boundary ``fatal``, then a new tierer; returns the boundaries that were crossed.

    Args:
        typed: the first one knows a schema, the new one another version of it.
    """
    store, boundaries = log.store, Boundaries(fatal, after)
    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        tierer = Tierer(
            WatchedStore(store, boundaries),
            log.cluster,
            "default",
            "telemetry",
            await load_shards(store, log.cluster),
            schema=lambda: FIRST if typed else None,
            quality=lambda: QUALITY if typed else None,
        )
        try:
            await tierer.step()
            crashed = False
        except Crash:
            crashed = True
        assert crashed == (fatal is not None)
    tierer = Tierer(
        store,
        log.cluster,
        "default",
        "telemetry",
        await load_shards(store, log.cluster),
        schema=lambda: SECOND if typed else None,
        quality=lambda: QUALITY if typed else None,
    )
    await drain(tierer)
    with outcome():
        assert contents(store) == expected(runs)
    if typed:
        found = rows(store, columns=["_shard", "_offset", "machine", "_misfit"]).slice(0 if fresh else 3)
        misfits, nowhere = found.num_rows - found["_misfit"].null_count, found["machine"].null_count
        counts = [tierer.quality.counts.of(number_of(rule)) for rule in QUALITY.rules.rules.values()]
        machines = rows(store, columns=["_shard", "_offset", "machine"])["machine"].to_pylist()
        again = [name for at, name in enumerate(machines) if name and name in machines[:at]]
        again = again if fresh else again[-found.num_rows :]
        assert counts == [(found.num_rows, misfits), (found.num_rows, nowhere), (found.num_rows, len(again))], (
            "each row counts once"
        )
        versions = rows(store, columns=["_shard", "_offset", "_schema"])["_schema"].to_pylist()
        assert {*versions} <= ({3, 9} if fresh else {None, 3, 9}), "each row by a version that its writer knew"
    return boundaries.calls


@pytest.mark.search(turns=2)
@pytest.mark.parametrize("fresh", [True, False], ids=["new table", "growing table"])
async def test_dying_while_columns_of_a_schema_are_added_loses_and_doubles_nothing(tmp_path: Path, fresh: bool) -> None:
    runs = await prepare(tmp_path / "prepared", fresh)

    async def die(fatal: int | None, after: bool) -> list[str]:
        log = await LogWriter.of_copy(tmp_path / "prepared", tmp_path / f"{fatal}-{after}")
        return await die_at(log, runs, fatal, after, fresh=fresh, typed=True)

    calls = await die(None, False)
    for fatal in range(len(calls)):
        for after in (False, True):
            await die(fatal, after)


@pytest.mark.parametrize(
    "fresh", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["new table", "growing table"]
)
async def test_dying_at_any_step_loses_and_doubles_nothing(tmp_path: Path, fresh: bool) -> None:
    runs = await prepare(tmp_path / "prepared", fresh)

    async def die(fatal: int | None, after: bool) -> list[str]:
        log = await LogWriter.of_copy(tmp_path / "prepared", tmp_path / f"{fatal}-{after}")
        return await die_at(log, runs, fatal, after, fresh=fresh)

    calls = await die(None, False)
    assert calls.count("create") >= 3, "two files and a version"
    assert ("delta.create" in calls) == fresh
    for fatal in range(len(calls)):
        for after in (False, True):
            await die(fatal, after)


async def test_rows_that_another_moves_while_columns_are_added_are_not_moved_again(directory: ObjectStore) -> None:
    runs = [Run(LANE, 0, 3, topics=TOPICS), Run(LANE, 3, 4)]
    log = await LogWriter.open(directory)
    await log.append(0, runs[0])
    await drain(await new_tierer(directory, log))
    await log.append(0, runs[1])
    other = await new_tierer(directory, log)  # knows of no schema yet
    views = await load_shards(directory, log.cluster)
    tierer = Tierer(directory, log.cluster, "default", "telemetry", views, schema=lambda: FIRST)
    alter = tierer.log.alter

    async def late(*arguments: Any) -> Any:
        await other.step()
        return await alter(*arguments)

    tierer.log.alter = late  # type: ignore[method-assign, assignment]
    await drain(tierer)
    assert contents(directory) == expected({0: runs})
    assert "t" in dict(tierer.columns)


async def die_maintaining(log: LogWriter, runs: Runs, fatal: int | None, after: bool) -> list[str]:
    """Join, write a checkpoint and vacuum, and die at boundary ``fatal``; then a node that has just started does it."""
    store = log.store
    bounds = TableSettings(compact_files_min=2, checkpoint_versions=2, vacuum_interval_s=0.0)
    boundaries = Boundaries(fatal, after)
    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        watched: Any = WatchedStore(store, boundaries)
        tierer = Tierer(watched, log.cluster, "default", "telemetry", await load_shards(store, log.cluster))
        try:
            await tierer.open()
            await Maintenance(watched, tierer, settings=bounds).maintain()
            crashed = False
        except Crash:
            crashed = True
        assert crashed == (fatal is not None)
    with outcome():
        assert contents(store) == expected(runs), "at no moment is a row missing or doubled"
    await log.append(0, last := Run(LANE, 9, 3))
    tierer = await new_tierer(store, log)
    await drain(tierer)
    await Maintenance(store, tierer, settings=bounds).maintain()
    assert contents(store) == expected(runs | {0: [*runs[0], last]})
    assert len(table(store).file_uris()) <= 3
    return boundaries.calls


@pytest.mark.slow
async def test_dying_while_files_are_joined_loses_and_doubles_nothing(tmp_path: Path) -> None:
    made = await LogWriter.open(open_store(str(tmp_path / "prepared")))
    runs: Runs = {0: [], 1: []}
    for first in range(0, 9, 3):
        for shard, lane in ((0, LANE), (1, OTHER)):
            runs[shard].append(Run(lane, first, 3, topics=TOPICS))
            await made.append(shard, runs[shard][-1])
        await drain(await new_tierer(made.store, made))

    async def die(fatal: int | None, after: bool) -> list[str]:
        log = await LogWriter.of_copy(tmp_path / "prepared", tmp_path / f"{fatal}-{after}")
        return await die_maintaining(log, runs, fatal, after)

    calls = await die(None, False)
    assert {"create", "delta.checkpoint", "delta.vacuum"} <= set(calls)
    assert (calls.count("create_from"), calls.count("create")) == (2, 2), "two files and two versions"
    for fatal in range(len(calls)):
        for after in (False, True):
            await die(fatal, after)


async def die_handing_over(root: Path, fatal: int | None, after: bool) -> list[str]:
    """Let a hub die at boundary ``fatal`` while a pipeline takes its tables: the hub makes rows before it knows of the
    claim, at the same time as the pipeline, and looks on afterwards."""
    store = open_store(str(root))
    log, runs = await fill(store)
    boundaries, now = Boundaries(None, after), 100.0
    watched: Any = WatchedStore(store, boundaries)
    bounds = TableSettings(compact_files_min=2, checkpoint_versions=2)
    claim = Claim("spark pipeline tables", 1, "*", "*")
    hub = TableService(watched, log.cluster, settings=bounds, name="hub", monotonic=lambda: now)
    pipeline = TableService(store, log.cluster, settings=bounds, name="spark", claim=claim, monotonic=lambda: now)

    async def hand_over() -> None:
        await hub.run_once()
        await hub.owners.look()
        await hub.run_once()

    await hub.owners.look()
    await pipeline.owners.look()
    boundaries.calls.clear()
    boundaries.fatal = fatal
    ended, _ = await asyncio.gather(hand_over(), pipeline.run_once(), return_exceptions=True)
    # The two take turns as they come, so that the hub's last calls may be some fewer than when they were counted.
    assert isinstance(ended, Crash) == (fatal is not None and len(boundaries.calls) > fatal), ended
    for number, maker in enumerate((pipeline, hub)):
        found = contents(store)
        with outcome():
            assert len(found) == len(set(found)), "at no moment is a row doubled"
        runs[1].append(Run(OTHER, 5 + 2 * number, 2))
        await log.append(1, runs[1][-1])
        if maker is hub and fatal is not None:
            break
        if maker is hub:
            await store.delete(keeper_key("spark"))
            now += MISSED_MAX * KEEPER_BEAT_S + 1
            await hub.owners.look()
        await maker.run_once()
        assert contents(store) == expected(runs)
    return boundaries.calls


@pytest.mark.search(turns=2)
async def test_a_hub_that_dies_while_it_hands_over_to_a_pipeline_loses_and_doubles_nothing(tmp_path: Path) -> None:
    calls = await die_handing_over(tmp_path / "whole", None, False)
    assert {"create", "list", "get"} <= set(calls)
    steps = [(fatal, after) for fatal in range(len(calls)) for after in (False, True)]
    for fatal, after in SLICE.some(steps, ci=20):
        await die_handing_over(tmp_path / f"{fatal}-{after}", fatal, after)


async def test_a_store_that_does_not_answer_leaves_the_tierer_usable(directory: ObjectStore) -> None:
    log, runs = await fill(directory)
    outage = {"on": True}

    class Unanswering(WatchedStore):
        def __getattr__(self, name: str) -> Any:
            call = super().__getattr__(name)
            if name != "create":
                return call

            async def create(*arguments: Any) -> Any:
                if outage["on"]:
                    raise StoreError("the network is down")
                return await call(*arguments)

            return create

    views = await load_shards(directory, log.cluster)
    tierer = Tierer(Unanswering(directory, Boundaries()), log.cluster, "default", "telemetry", views)
    with pytest.raises(StoreError):
        await tierer.step()
    outage["on"] = False
    assert await drain(tierer) == 11
    assert contents(directory) == expected(runs)


class TestPowerCut:
    """deltalake syncs nothing: the newest entry of the table's log, and a new checkpoint, may be cut short."""

    @pytest.mark.parametrize("keep", [0, 1, 300, -1, "lines"])
    async def test_a_torn_entry_is_removed_and_its_rows_moved_again(
        self, directory: ObjectStore, tmp_path: Path, keep: int | str
    ) -> None:
        log = await LogWriter.open(directory)
        await log.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(directory, log))
        await log.append(0, Run(LANE, 3, 3))
        await drain(await new_tierer(directory, log))
        entry = max((tmp_path / "store/tables/default/telemetry/_delta_log").glob("*.json"))
        data = entry.read_bytes()
        lines = data.splitlines(keepends=True)
        entry.write_bytes(b"".join(lines[:-1]) if isinstance(keep, str) else data[:keep])
        await log.append(0, Run(LANE, 6, 3))
        assert await drain(await new_tierer(directory, log)) == 6
        assert contents(directory) == expected({0: [Run(LANE, 0, 9)]})

    async def test_a_torn_first_entry(self, directory: ObjectStore, tmp_path: Path) -> None:
        log = await LogWriter.open(directory)
        await log.append(0, Run(LANE, 0, 3))
        await (await new_tierer(directory, log)).open()
        (tmp_path / f"store/tables/default/telemetry/_delta_log/{0:020d}.json").write_bytes(b"")
        assert await drain(await new_tierer(directory, log)) == 3
        assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})

    @pytest.mark.parametrize("damage", ["empty", "half", "gone", "pointer"])
    async def test_a_torn_checkpoint_is_removed(self, directory: ObjectStore, tmp_path: Path, damage: str) -> None:
        log = await LogWriter.open(directory)
        await log.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(directory, log))
        table(directory).create_checkpoint()
        folder = tmp_path / "store/tables/default/telemetry/_delta_log"
        (checkpoint,) = folder.glob("*.checkpoint.parquet")
        data = checkpoint.read_bytes()
        if damage == "gone":
            checkpoint.unlink()
        elif damage == "pointer":
            (folder / "_last_checkpoint").write_bytes(b"")
        else:
            checkpoint.write_bytes(data[: len(data) // 2 if damage == "half" else 0])
        await log.append(0, Run(LANE, 3, 3))
        assert await drain(await new_tierer(directory, log)) == 3
        assert contents(directory) == expected({0: [Run(LANE, 0, 6)]})

    async def test_everything_below_a_commit_is_synced_before_it(self, directory: ObjectStore) -> None:
        """Also what other nodes wrote: version n+1 must not survive a power cut that version n does not."""
        log = await LogWriter.open(directory)
        synced: list[str] = []
        commits: dict[str, list[str]] = {}
        """Name of an entry -> what was synced before it was made."""

        class Noting(WatchedStore):
            def __getattr__(self, name: str) -> Any:
                if name == "sync":

                    async def sync(key: str) -> None:
                        synced.append(key.rpartition("/")[2])
                        await directory.sync(key)

                    return sync
                if name == "create":

                    async def create(key: str, data: bytes) -> str:
                        if key.endswith(".json"):
                            commits[key.rpartition("/")[2]] = [*synced]
                        return await directory.create(key, data)

                    return create
                return super().__getattr__(name)

        await log.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(directory, log))
        table(directory).alter.set_table_description("by somebody else")
        await log.append(0, Run(LANE, 3, 3))
        views = await load_shards(directory, log.cluster)
        tierer = Tierer(Noting(directory, Boundaries()), log.cluster, "default", "telemetry", views)
        assert await tierer.step() == 3
        assert commits
        for made, before in commits.items():
            # What the store creates is durable.
            known = {*before, *(name for name in commits if name < made)}
            assert known == {f"{version:020d}.json" for version in range(int(made[:20]))}


TIERER = """
import asyncio, sys
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer
from weft.storage.chunk_log import open_cluster
from weft.storage.object_store import open_store

async def main():
    store = open_store(sys.argv[1])
    cluster = await open_cluster(store, None)
    views = await load_shards(store, cluster)
    tierer = Tierer(store, cluster, "default", "telemetry", views, settings=TableSettings(file_rows_max=7))
    print("ready", flush=True)
    while await tierer.step():
        pass
    print("done", flush=True)

asyncio.run(main())
"""


async def kill_until_done(root: Path, records: int, kills: int, seed: int) -> None:
    """Kill tierer processes at moments that the seed chooses, then let one finish."""
    store = open_store(str(root))
    log = await LogWriter.open(store)
    runs: dict[int, list[Run]] = {0: [], 1: []}
    for first in range(0, records, 25):
        for shard, lane in ((0, LANE), (1, OTHER)):
            runs[shard].append(Run(lane, first, 25, topics=TOPICS))
            await log.append(shard, runs[shard][-1])
    moments = random.Random(seed)
    for remaining in range(kills, -1, -1):
        command = [sys.executable, "-c", TIERER, str(root)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
        assert process.stdout is not None
        with process.stdout:
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
            if remaining:
                await asyncio.sleep(moments.uniform(0, 0.25))
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        try:
            found = contents(store)
        except Exception:
            # Only while the table has not been made yet.
            with pytest.raises(NotFound):
                await store.get(f"tables/default/telemetry/_delta_log/{0:020d}.json")
            continue
        wanted = set(expected(runs))
        assert len(found) == len(set(found))
        assert set(found) <= wanted
    assert contents(store) == expected(runs)


@pytest.mark.search
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SLICE.seeds(ci=1, night=6))
async def test_sigkill_at_random_moments(tmp_path: Path, seed: int) -> None:
    await kill_until_done(tmp_path / "store", 1500, kills=12, seed=seed)


# --- Several makers of one table that do not know of each other: rows, joins and new columns at the same time
#
# Nodes divide the tables of a store only as far as they know of each other. Each history has three that all make the
# table, with calls to the store in an order of its own, while the log and the declared schema grow.


HISTORIES = SLICE.amount(ci=8, night=60)
ROUNDS, MAKERS = 5, 3
WAITS, WAIT_S_MAX = 0.15, 0.05
"""Share of the calls that wait, and their longest wait: as long as a step of another maker takes."""
BOUNDS = TableSettings(compact_files_min=2, checkpoint_versions=3, file_rows_max=4)


class SlowStore:
    """A store whose calls take a while, each another one."""

    def __init__(self, store: ObjectStore, chance: random.Random) -> None:
        self._store, self._chance = store, chance

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in STORE_CALLS:
            return call

        async def slow(*arguments: Any, **named: Any) -> Any:
            await self._wait()
            result = await call(*arguments, **named)
            await self._wait()
            return result

        return slow

    async def _wait(self) -> None:
        if self._chance.random() < WAITS:
            await asyncio.sleep(self._chance.random() * WAIT_S_MAX)


class Makers:
    """Makers of the tables of one store, and a log that grows."""

    def __init__(self, root: Path, log: LogWriter, chance: random.Random) -> None:
        self._log, self._chance = log, chance
        self.store = open_store(str(root))
        self.runs: dict[int, list[Run]] = {0: [], 1: []}
        self._schema = [None] * MAKERS
        self._makers = [
            TableService(
                SlowStore(self.store, random.Random(chance.random())),
                log.cluster,
                settings=BOUNDS,
                terms=TableTerms(schema=lambda _, number=number: self._schema[number]),  # type: ignore[misc]
            )
            for number in range(MAKERS)
        ]
        for each in self._makers:
            each._makes_all = True

    async def write(self) -> None:
        for shard, lane in ((0, LANE), (1, OTHER)):
            for _ in range(self._chance.randrange(3)):
                first = sum(run.count for run in self.runs[shard])
                run = Run(lane, first, self._chance.randint(1, 6), topics=None if first else TOPICS)
                self.runs[shard].append(run)
                await self._log.append(shard, run)

    async def make(self) -> None:
        """Let all of them make a round at once, each with the schema that it knows of by now."""
        for number in range(MAKERS):
            if self._chance.random() < 0.3:
                self._schema[number] = self._chance.choice([FIRST, SECOND])  # type: ignore[call-overload]
        await asyncio.gather(*(maker.run_once() for maker in self._makers))


@pytest.mark.search(turns=2)
@pytest.mark.timeout(1800)
async def test_makers_that_do_not_know_of_each_other_double_and_lose_nothing(tmp_path: Path) -> None:
    for number in range(HISTORIES):
        seed = SLICE.seed * 1000 + number
        root = tmp_path / str(number)
        makers = Makers(root, await LogWriter.open(open_store(str(root))), random.Random(seed))
        for _ in range(ROUNDS):
            await makers.write()
            await makers.make()
            found = contents(makers.store) if any(makers.runs.values()) else []
            assert len(found) == len(set(found)), f"history {seed}"
        await makers.make()
        await makers.make()
        assert contents(makers.store) == expected(makers.runs), f"history {seed}"
