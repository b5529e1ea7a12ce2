"""Many histories of processes that come, go and split; ``python -m tests.nightly repeat members SEED`` repeats one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cloud_hub.member_histories import PLANNED_ACK_S, simulate_members
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from weft.cloud_hub import cluster
from weft.cloud_hub.cluster import READY, Membership, Owners, divide
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.splits import Splitter
from weft.protocols.shard.placement import Split
from weft.protocols.shard.shard_state import ShardState
from weft.storage.presence import NodeEntry, Seen

HISTORIES = 150
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


def test_a_history_meets_splits_drains_and_members_that_flap() -> None:
    found = Counter[str]()
    for seed in range(4):
        found += simulate_members(seed)
    assert found["splits"]
    assert found["drain"]
    assert found["suspend"]


@pytest.mark.search
@pytest.mark.timeout(590)
def test_whoever_owns_a_shard_nothing_is_lost_and_edges_are_served_in_many_histories() -> None:
    found = Counter[str]()
    for seed in SLICE.seeds(ci=30, night=250):
        found += simulate_members(seed)
    acks, late = found["acks"], found["late acks"]
    assert acks, "no record was made while owners changed"
    assert 100 * late <= acks, f"{late} of {acks} acknowledgements took {PLANNED_ACK_S} s during planned changes"


# --- that the search finds mistakes: each safety check is taken away once


def own_at_once(patch: Patch) -> None:
    """A process that joins owns shards before others know of it."""
    patch.setattr(cluster, "KNOWN_BEATS", 0.0)


def own_again_after_a_pause(patch: Patch) -> None:
    """A process that others took for gone continues as if nothing had been."""
    entered = Owners.entered

    def unaware(self: Owners, entry: NodeEntry, interval_s: float) -> NodeEntry:
        self._gone_at = float("inf")
        return entered(self, entry, interval_s)

    patch.setattr(Owners, "entered", unaware)


def believe_the_first_write_after_a_pause(patch: Patch) -> None:
    """A write that was under way when its process was stopped gives it shards again."""
    patch.setattr(Owners, "_is_back", lambda *_: True)


def believe_who_is_gone(patch: Patch) -> None:
    """An entry counts although no process writes it any more."""
    look = Owners.look

    async def late(self: Owners, others: dict[str, Seen]) -> None:
        await look(self, {name: seen._replace(age_s=0.0) for name, seen in others.items()})

    patch.setattr(Owners, "look", late)


def keep_what_was_drained(patch: Patch) -> None:
    """A process that is drained owns its shards as before."""
    patch.setattr(Owners, "state", property(lambda _: READY))


def divide_as_each_likes(patch: Patch) -> None:
    """The division depends on who makes it."""
    made = iter(range(1 << 30))
    patch.setattr(cluster, "divide", lambda shards, weights: _turned(divide(shards, weights), next(made)))


def _turned(found: list[str], by: int) -> list[str]:
    by %= len(found)
    return found[by:] + found[:by]


def write_because_it_owns(patch: Patch) -> None:
    """An owner takes each chunk for its own, though another process has written that number."""

    async def trusting(self: Sequencer, drafted: Any) -> bool:
        draft, folded = drafted
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    patch.setattr(Sequencer, "_place", trusting)


def split_without_the_lanes(patch: Patch) -> None:
    """A new shard begins with nothing of the halved one."""

    def nothing(state: ShardState, split: Split, created: int, footer_crc: int) -> ShardState:
        new = ShardState(state.cluster_id, split.shard, state.rules)
        new.n, new.created, new.footer_crc, new.fold_level = split.n, created, footer_crc, state.fold_level
        return new

    patch.setattr(ShardState, "moved_half", nothing)


def write_before_the_new_shard_has_begun(patch: Patch) -> None:
    """No process writes the SEAL of a split."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(Splitter, "begin", nothing)


def leave_without_a_word(patch: Patch) -> None:
    """A process that ends keeps its shards until the others miss it."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(Membership, "drain", nothing)
    patch.setattr("weft.cloud_hub.cluster.Presence.close", nothing)


PLANTS: tuple[Plant, ...] = (
    own_at_once,
    own_again_after_a_pause,
    believe_the_first_write_after_a_pause,
    believe_who_is_gone,
    keep_what_was_drained,
    divide_as_each_likes,
    write_because_it_owns,
    split_without_the_lanes,
    write_before_the_new_shard_has_begun,
    leave_without_a_word,
)


@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            simulate_members(seed)
        except BaseException as error:
            found: BaseException = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            print(f"seed {seed}: {type(found).__name__}: {str(found)[:200]}")
            return
    raise AssertionError("no history needs this check")
