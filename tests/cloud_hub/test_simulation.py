"""Many histories of competing nodes; ``python -m tests.nightly repeat simulation SEED`` repeats one."""

from __future__ import annotations

import pytest

from tests.cloud_hub.simulation import COUNTED, simulate, simulate_upgrade
from tests.support.slices import SLICE


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    for offset in range(10):
        simulate(seed + offset)


@pytest.mark.parametrize("seed", range(0, 30, 10))
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
