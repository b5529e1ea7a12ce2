"""Many histories of competing nodes; ``python -m tests.nightly repeat simulation SEED`` repeats one."""

from __future__ import annotations

import pytest

from tests.cloud_hub.simulation import simulate


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    for offset in range(20):
        simulate(seed + offset)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 3000, 100))
def test_nothing_acknowledged_is_lost_or_doubled_in_many_histories(seed: int) -> None:
    for offset in range(100):
        simulate(seed + offset)
