"""What a session has pending leaves it when the state holds it, never before, and nothing stays behind for good."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.fabric import make_batch
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, bounds, weight
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState

LANE = Lane("default", "edge-1", 7, "telemetry")
RANGES = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
RUNS = st.tuples(st.integers(0, 20), st.lists(st.integers(1, 6), min_size=1, max_size=6)).map(
    lambda run: [(run[0] + sum(run[1][:n]), run[0] + sum(run[1][: n + 1])) for n in range(len(run[1]))]
)


def session_with(batches: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> LaneSession:
    session = LaneSession(LANE, LaneClaim(1), [], lambda _: None, lambda *_: None)
    taken = session.append_batches([make_batch(LANE, first, end) for first, end in batches], 0)
    assert taken == session.bytes
    for first, end in gaps:
        session.append(GapRange(first, end, int(GapReason.EXPIRED)))
    return session


@given(st.one_of(RUNS, st.lists(RANGES, max_size=6)), st.lists(RANGES, max_size=2), st.lists(RANGES, max_size=4))
def test_settling_frees_what_is_held_and_leaves_nothing_that_no_commit_would_answer(
    batches: list[tuple[int, int]], gaps: list[tuple[int, int]], held_ranges: list[tuple[int, int]]
) -> None:
    async def main() -> None:
        session = session_with(batches, gaps)
        before, size = list(session.items), session.bytes
        held = LaneState(ranges=RangeSet(held_ranges))

        def is_held(item: object) -> bool:
            return held.accounts_for(item) if isinstance(item, GapRange) else held.holds(*bounds(item))  # type: ignore[arg-type]

        freed = session.settle(held)
        left = list(session.items)
        gone = [item for item in before if not any(item is other for other in left)]
        assert all(map(is_held, gone)), "nothing leaves that is not durable"
        assert left == [item for item in before if any(item is other for other in left)], "the order stays"
        assert (freed, session.bytes) == (sum(map(weight, gone)), size - freed)
        assert not left or not is_held(left[0]), "the next commit has something to do"
        if left:  # everything is committed at last, whatever way the bounds of a run were kept
            held.add_records(bounds(item) for item in left if not isinstance(item, GapRange))
            held.ranges.update(bounds(item) for item in left)
            session.settle(held)
        assert not session.items
        assert session.bytes == 0

    asyncio.run(main())


def test_a_run_is_known_by_its_bounds() -> None:
    async def main() -> None:
        session = session_with([(4, 6), (6, 9)], [])
        assert (session.run_first, session.run_end) == (4, 9)
        assert session.settle(LaneState(ranges=RangeSet([(0, 6)])))
        assert (session.run_first, session.run_end) == (6, 9)
        assert session_with([(4, 6), (7, 9)], []).run_end == -1
        assert session_with([(4, 6)], [(6, 7)]).run_end == -1

    asyncio.run(main())
