"""Many histories of competing nodes; ``python -m tests.nightly repeat simulation SEED`` repeats one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.cloud_hub.simulation import COUNTED, simulate, simulate_upgrade
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols import snapshot
from weft.protocols.shard_state import ShardState


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    for offset in range(20):
        simulate(seed + offset)


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_two_releases_on_one_store_make_one_fold(seed: int) -> None:
    counted = [COUNTED in simulate_upgrade(seed + offset).extensions for offset in range(20)]
    assert any(counted), "some histories wrote what the later release adds"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 3000, 100))
def test_nothing_acknowledged_is_lost_or_doubled_in_many_histories(seed: int) -> None:
    for offset in range(100):
        simulate(seed + offset)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2000, 100))
def test_two_releases_on_one_store_make_one_fold_in_many_histories(seed: int) -> None:
    for offset in range(100):
        simulate_upgrade(seed + offset)


def broken(history: Callable[[int], object], seeds: int) -> bool:
    """Whether one of the histories breaks a promise."""
    for seed in range(seeds):
        try:
            history(seed)
        except (AssertionError, BaseExceptionGroup):
            return True
    return False


def test_a_hub_that_acknowledges_the_gaps_of_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneSession, "acknowledged", lambda _, held: held.ranges.copy())
    assert broken(simulate, 40)


def test_snapshots_of_an_earlier_release_among_later_ones_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = snapshot.decode
    monkeypatch.setattr(ShardState, "is_whole", True)
    taken_for_whole = lambda data: msgspec.structs.replace(decode(data), made_with=2)  # noqa: E731
    monkeypatch.setattr(snapshot, "decode", taken_for_whole)
    assert broken(simulate_upgrade, 60)
