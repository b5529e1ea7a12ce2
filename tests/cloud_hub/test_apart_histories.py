"""Histories in which a tenant is set apart while its edges come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cloud_hub.apart_histories import simulate_apart
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from weft.cloud_hub import splits
from weft.cloud_hub.shard.shard_sessions import ShardSessions
from weft.cloud_hub.splits import Apart
from weft.protocols.shard import fold

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 5), *(pytest.param(50 * n, 50, marks=pytest.mark.search) for n in SLICE.seeds(ci=2, night=8))],
)
def test_a_tenant_that_is_set_apart_loses_and_doubles_nothing(first: int, count: int) -> None:
    found = [simulate_apart(seed)["apart"] for seed in range(first, first + count)]
    assert set(found) == {0, 1}, "sometimes its edges were first"


# --- that the histories find mistakes: each safety check is taken away once


def say_nothing_in_the_logs(patch: pytest.MonkeyPatch) -> None:
    async def said(*_: object, apart: bool) -> bool:
        return True

    patch.setattr(Apart, "_set_apart_in", said)


def take_its_lanes_nevertheless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSessions, "refuse_moved", lambda *_: None)
    patch.setattr(fold, "_check_here", lambda *_: None)


def set_apart_what_has_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(splits, "has_traces", lambda *_: False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [say_nothing_in_the_logs, take_its_lanes_nevertheless, set_apart_what_has_data],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as found:
        _play_some()
    assert any("seed" in note for note in found.value.__notes__)


def _play_some() -> None:
    for seed in range(50):
        simulate_apart(seed)
