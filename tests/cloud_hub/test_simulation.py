"""Many histories of competing nodes; ``python -m tests.nightly repeat simulation SEED`` repeats one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.cloud_hub import simulation
from tests.cloud_hub.simulation import simulate, simulate_upgrade
from tests.support.later_fold import COUNTED, LATER, counting
from tests.support.slices import SLICE
from weft.cloud_hub.shard.chunk_builder import Attempt, Drafted
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shard_sessions import Canaries
from weft.protocols.chunk_index import FIRST_LEVEL, FoldRules


@pytest.mark.parametrize(
    "seed", [*range(0, 30, 10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 60, 10))]
)
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    for offset in range(10):
        simulate(seed + offset)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (10, 20))])
def test_two_releases_on_one_store_make_one_fold(seed: int) -> None:
    counted = [COUNTED in simulate_upgrade(seed + offset).extensions for offset in range(10)]
    assert any(counted), "some histories wrote what the later release adds"


@pytest.mark.search
def test_nothing_acknowledged_is_lost_or_doubled_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=80, night=800):
        simulate(seed)


@pytest.mark.search
def test_two_releases_on_one_store_make_one_fold_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=60, night=400):
        simulate_upgrade(seed)


# --- that the search finds mistakes


def is_broken(history: Callable[[int], object]) -> bool:
    for seed in range(20):
        try:
            history(seed)
        except Exception:
            return True
    return False


def test_a_node_that_takes_an_unclear_write_for_a_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: Sequencer, drafted: Drafted) -> bool:
        draft, folded = drafted
        self._attempts[draft.chunk.header.nonce] = Attempt(draft.openings, len(draft.data))
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    monkeypatch.setattr(Sequencer, "_place", trusting)
    assert is_broken(simulate)


def test_a_node_that_answers_canaries_which_came_behind_its_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Canaries.settle

    def hasty(self: Canaries) -> None:
        self.placed = self.last
        settle(self)

    monkeypatch.setattr(Canaries, "settle", hasty)
    assert is_broken(simulate)


def test_a_release_that_writes_what_its_level_does_not_allow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = {COUNTED: counting(FIRST_LEVEL)}
    monkeypatch.setattr(simulation, "LATER", FoldRules(LATER.level, hasty))
    assert is_broken(simulate_upgrade)
