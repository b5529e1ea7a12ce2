"""Power cuts through windows and memories of functions; and the faults that such a search must find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived.power_cuts import Violation, quiet, run_cuts, run_lives, run_seed
from tests.support.slices import SLICE
from weft.edge_node.derived.steps import Positions, StateWriter
from weft.edge_node.derived.stream import Derived
from weft.functions.contract import State
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

SEEDS_MAX = 60
"""Lives in which a planted fault must show."""


def test_power_cuts_change_no_output() -> None:
    run_cuts(40)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output() -> None:
    run_lives(SLICE.seeds(ci=25, night=400))


def has_violation(seed: int) -> bool:
    try:
        run_seed(seed)
    except (Violation, RuntimeError):
        return True
    return False


def parted(log: SegmentLog, reserve_bytes: int, *, uses_spare: bool) -> contextlib.AbstractContextManager[None]:
    """Appends that a power cut may part."""
    return contextlib.nullcontext()


def forgets_states(entry: Callable[..., bytes]) -> Callable[..., bytes]:
    def faulty(self: StateWriter, positions: Positions, states: Any) -> bytes:
        for _, state in states:
            state.take_changes()
        return entry(self, positions, [])

    return faulty


def forgets_positions(entry: Callable[..., bytes]) -> Callable[..., bytes]:
    def faulty(self: StateWriter, positions: Positions, states: Any) -> bytes:
        behind = {name: max(0, seq - 1) for name, seq in positions.inputs.items()}
        return entry(self, Positions(behind, positions.tick, positions.times, positions.hold), states)

    return faulty


def forgets_deletions(take: Callable[[State], dict[bytes, Any]]) -> Callable[[State], dict[bytes, Any]]:
    return lambda self: {key: value for key, value in take(self).items() if value is not None}


def lets_go(written: Callable[..., RangeSet]) -> Callable[..., RangeSet]:
    return lambda self, seq: written(self, seq) and RangeSet([(0, seq)])


FAULTS: dict[str, tuple[type, str, Any]] = {
    "outputs without their states": (StateWriter, "entry", forgets_states(StateWriter.entry)),
    "states without their positions": (StateWriter, "entry", forgets_positions(StateWriter.entry)),
    "a copy that goes with what is before it": (StateWriter, "written", lets_go(StateWriter.written)),
    "a step that a cut may part": (SegmentLog, "together", parted),
    "a mark before its windows": (Derived, "_hold_of", lambda self, chain: self._tick + 1),
    "what was deleted comes back": (State, "take_changes", forgets_deletions(State.take_changes)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    owner, attribute, faulty = FAULTS[name]
    with mock.patch.object(owner, attribute, faulty), quiet():
        assert any(has_violation(seed) for seed in range(SEEDS_MAX))
