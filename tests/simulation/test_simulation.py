"""Histories of the whole fabric; ``python -m tests.simulation --seed SEED`` repeats one."""

from __future__ import annotations

import pytest

from tests.simulation.fabric import simulate
from tests.support.slices import SLICE


def test_whatever_fails_nothing_acknowledged_is_lost_doubled_or_claimed() -> None:
    for seed in range(4):
        simulate(seed)


def test_a_seed_gives_the_same_history_each_time() -> None:
    assert simulate(11) == simulate(11)


@pytest.mark.search
@pytest.mark.timeout(590)
def test_whatever_fails_nothing_acknowledged_is_lost_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=15, night=250):
        simulate(seed)
