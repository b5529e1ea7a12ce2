"""A hub that starts on the log of a fleet: what it needs grows with the lanes, and fits the large fleet's targets."""

from __future__ import annotations

import pytest

from bench.hub.cold_start import PROCESSES, Start, Written, measure
from bench.hub.followers import EDGES, SHARDS, STREAMS

PART = 20
"""Part of the large fleet."""
SNAPSHOT_BYTES_MAX, CPU_S_MAX = 5_000_000, 5.0
"""Targets for a shard, and for a process, of the large fleet."""
SPARE = 3
"""Factor that a busy machine may add."""


@pytest.mark.slow
def test_a_cold_start_grows_with_the_lanes_and_fits_the_large_fleet() -> None:
    small, large = measure(EDGES // (4 * PART), chunks=10), measure(EDGES // PART, chunks=10)
    for written, starts in (small, large):
        assert sorted(shard for each in starts for shard in each.loaded) == list(range(SHARDS)), "each shard once"
        assert {lanes for each in starts for lanes in each.loaded.values()} == {written.lanes}
        assert len(starts) == PROCESSES
    assert bytes_of(*large) <= 4.5 * bytes_of(*small), "in proportion to the lanes"
    assert bytes_of(*large) * PART < SNAPSHOT_BYTES_MAX
    assert large[0].lanes == EDGES // PART // SHARDS * STREAMS
    grown = max(each.cpu_s for each in large[1]) - max(each.cpu_s for each in small[1])
    assert grown * PART * 4 / 3 < SPARE * CPU_S_MAX


def bytes_of(written: Written, _: list[Start]) -> int:
    return written.snapshot_bytes
