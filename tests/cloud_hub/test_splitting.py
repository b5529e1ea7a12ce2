"""Many histories of splits; ``python -m tests.nightly repeat shard_splits SEED`` repeats one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cloud_hub.splitting import simulate_splits
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from weft.cloud_hub.shard.shard_sessions import ShardSessions
from weft.cloud_hub.splits import Splitter
from weft.protocols.shard import fold
from weft.protocols.shard.placement import ShardTree, Split
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog

HISTORIES = 100
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200, 20))])
def test_a_split_loses_and_doubles_nothing(seed: int) -> None:
    found = [simulate_splits(seed + offset) for offset in range(20)]
    assert any(each["moved"] for each in found), "some lanes have records in two shards"


@pytest.mark.search
def test_a_split_loses_and_doubles_nothing_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=200, night=100_000):
        simulate_splits(seed)


# --- that the search finds mistakes: each safety check is taken away once


def take_moved_lanes_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSessions, "refuse_moved", lambda *_: None)
    patch.setattr(fold, "_check_here", lambda *_: None)


def write_before_the_shard_has_begun(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    async def empty(log: ShardLog, only: frozenset[tuple[str, str]] | None) -> ShardState:
        return ShardState(log.cluster.cluster_id, log.shard, log.rules, only)

    patch.setattr(Splitter, "begin", nothing)
    patch.setattr(ShardLog, "_begin", empty)


def begin_without_a_look_at_the_log(patch: pytest.MonkeyPatch) -> None:
    """The state of an attempt is believed, even if another chunk got its number."""
    seal = Splitter._seal

    async def believing(splitter: Splitter, log: ShardLog, state: ShardState, shard: int, bit: int) -> None:
        await seal(splitter, log, state, shard, bit)
        listed = await log.store.list(f"shard-{shard}/snapshot/")
        n, nonce = listed[-1].key.rpartition("/")[2].split("-")
        state.splits.append(Split(shard, bit, int(n), int(nonce, 16)))

    async def following(splitter: Splitter, log: ShardLog, state: ShardState, shard: int) -> Split | None:
        await follow(splitter, log, state, shard)
        return await follow(splitter, log, state, shard)

    follow = Splitter._next
    patch.setattr(Splitter, "_seal", believing)
    patch.setattr(Splitter, "_next", following)


def begin_with_nothing(patch: pytest.MonkeyPatch) -> None:
    def nothing(state: ShardState, split: Split, created: int, footer_crc: int) -> ShardState:
        new = ShardState(state.cluster_id, split.shard, state.rules)
        new.n, new.created, new.footer_crc, new.fold_level = split.n, created, footer_crc, state.fold_level
        return new

    patch.setattr(ShardState, "moved_half", nothing)


def store_the_state_after_the_seal(patch: pytest.MonkeyPatch) -> None:
    """Who dies in between leaves a shard that cannot begin."""
    held: dict[str, Any] = {}
    put, create = ShardLog.put_snapshot, ShardLog.create

    async def later(log: ShardLog, n: int, nonce: int, data: bytes) -> str:
        if log.split is None:
            return await put(log, n, nonce, data)
        held["n"], held["nonce"], held["data"], held["log"] = n, nonce, data, log
        return ""

    async def first(log: ShardLog, n: int, data: bytes) -> None:
        await create(log, n, data)
        if held.get("n") == n and held["log"].halved.shard == log.shard:
            reported = dict(held)
            held.clear()
            await put(reported["log"], reported["n"], reported["nonce"], reported["data"])

    patch.setattr(ShardLog, "put_snapshot", later)
    patch.setattr(ShardLog, "create", first)


def split_in_any_order(patch: pytest.MonkeyPatch) -> None:
    children = ShardTree.children
    patch.setattr(ShardTree, "children", lambda tree, shard: children(tree, shard)[::-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        take_moved_lanes_again,
        write_before_the_shard_has_begun,
        begin_without_a_look_at_the_log,
        begin_with_nothing,
        store_the_state_after_the_seal,
        split_in_any_order,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as found:
        _make_some()
    error = found.value.exceptions[0] if isinstance(found.value, BaseExceptionGroup) else found.value
    print(type(error).__name__, str(error)[:200], *found.value.__notes__)


def _make_some() -> None:
    for seed in range(HISTORIES):
        simulate_splits(seed)
