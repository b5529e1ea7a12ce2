"""Many histories of a log that is collected; and faults that they have to find."""

from __future__ import annotations

import pytest

from tests.cloud_hub.collecting import simulate_collection
from tests.support.slices import SLICE
from weft.cloud_hub.shard.collector import ShardCollector
from weft.storage.chunk_log import Manifest, ShardLog


def test_nothing_that_anyone_needs_is_deleted() -> None:
    assert sum(simulate_collection(seed) for seed in range(6)) > 0


@pytest.mark.search
def test_nothing_that_anyone_needs_is_deleted_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=30, night=400):
        simulate_collection(seed)


def broken() -> bool:
    """Whether one of the histories breaks a promise."""
    for seed in range(10):
        try:
            simulate_collection(seed)
        except AssertionError:
            return True
    return False


def test_a_reader_that_takes_a_deleted_chunk_for_the_head_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: ShardLog, n: int) -> None:
        return None

    monkeypatch.setattr(ShardLog, "_check_not_passed", trusting)
    assert broken()


def test_a_collector_that_does_not_wait_for_the_tables_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ShardCollector._wanted

    async def hasty(self: ShardCollector, manifest: Manifest, tabled: int) -> int:
        return await wanted(self, manifest, 1 << 40)

    monkeypatch.setattr(ShardCollector, "_wanted", hasty)
    assert broken()
