"""Completeness of a hub's streams: from the states of its shards, and the expected edges of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from weft.cloud_hub.api.streams.summary import LaneFacts, StreamPart, StreamSummary, merged, renamed_lanes, stream_parts
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import KnownShard
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import Completeness, HeldBack, LostRecords, Reason, Tally
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.every_shard import missing_shards

SLICE_LANES = 500
"""Number of lanes walked without a pause: some milliseconds."""


class StreamCompleteness:
    """The moments of all streams.

    Args:
        shards: the shards that this process holds at present.
        known: every shard of the store, as far as this process knows it.
        expected: stream -> names and patterns of edges that it needs to be complete.
        wall_clock: nanoseconds since 1970.
        peers: whether another cluster may have records that this one lacks.
        table_error: returns the reason why a stream's table is not being updated; None if it is.
    """

    def __init__(
        self,
        shards: Iterable[Sequencer],
        expected: Mapping[StreamKey, tuple[str, ...]],
        clock: HubClock,
        *,
        known: Iterable[KnownShard] = (),
        peers: bool = False,
        table_error: Callable[[StreamKey], str | None] = lambda _: None,
    ) -> None:
        self._table_error = table_error
        self.peers = peers
        self._shards = shards
        self._known = known
        self._expected = expected
        self._clock = clock

    async def of(self, states: Sequence[ShardState], tenant: str, stream: str) -> Completeness:
        """Return the moment up to which a stream is complete, and the reasons that hold it back, without blocking the
        event loop.

        Chunks may be applied meanwhile: moments only advance, so an older one claims nothing false.

        Args:
            states: of all shards.
        """
        expected = self._expected.get((tenant, stream), ())
        ended = renamed_lanes(states, tenant, stream, peers=self.peers)
        tally = Tally(expected, self._clock.now(), peers=self.peers, behind=self.behind, lost=self.lost, renamed=ended)
        for state in states:
            for gap in state.open_gaps.get((tenant, stream), ()):
                tally.add_gap(gap)
            await asyncio.sleep(0)
            names = state.stream_lane_names(tenant, stream)
            for start in range(0, len(names), SLICE_LANES):
                for lane in names[start : start + SLICE_LANES]:
                    held = state.lanes.get(lane)
                    if held is not None:  # it has not left the state meanwhile
                        tally.add(lane, held)
                await asyncio.sleep(0)
        answer, error = tally.answer(), self._table_error((tenant, stream))
        if answer.slowest is not None:
            answer = answer._replace(held_back_by=[answer.slowest, *answer.held_back_by])
        if error is not None:
            answer = answer._replace(held_back_by=[_stands_still(tenant, stream, error), *answer.held_back_by])
        if (wrong := self._clock.wrong()) is not None:
            # Which edges are silent, and which left as not seen for long, is by a clock.
            answer = answer._replace(complete_up_to=None, held_back_by=[_by_clock(wrong), *answer.held_back_by])
        return answer

    @property
    def facts(self) -> LaneFacts:
        """Return what is known of lanes beside their states at present."""
        return LaneFacts(self._clock.now(), self.peers, self.behind, self.lost)

    def expected(self, key: StreamKey) -> Sequence[str]:
        """Return the names and patterns of edges that a stream needs to be complete."""
        return self._expected.get(key, ())

    async def parts(self, states: Sequence[ShardState], tenant: str, stream: str) -> list[StreamPart]:
        """Return facts about a stream's lanes in each shard, without blocking the event loop."""
        key = tenant, stream
        return await stream_parts(states, key, self.expected(key), self.facts)

    def summary(self, parts: Sequence[StreamPart], key: StreamKey) -> StreamSummary:
        """Return facts about a stream's lanes, including its moment, from its parts of all shards."""
        found = merged(parts, self.expected(key))
        if (wrong := self._clock.wrong()) is None:
            return found
        return found._replace(complete_up_to=None, held_back_by=[_by_clock(wrong), *found.held_back_by])

    async def summarise(self, states: Sequence[ShardState], tenant: str, stream: str) -> StreamSummary:
        """Return facts about a stream's lanes, including its moment, without blocking the event loop."""
        return self.summary(await self.parts(states, tenant, stream), (tenant, stream))

    def expecting(self) -> dict[StreamKey, Callable[[], Awaitable[int | None]]]:
        """Return the streams with expected edges, each with a function that returns its moment."""
        return {key: partial(self._moment, *key) for key, edges in self._expected.items() if edges}

    async def _moment(self, tenant: str, stream: str) -> int | None:
        states = [shard.state for shard in self._known]
        moment = (await self.summarise(states, tenant, stream)).complete_up_to
        return None if missing_shards(states) else moment

    def lost(self, lane: Lane, held: LaneState) -> LostRecords | None:
        """Return the acknowledged records of a lane that this hub lacks, by a linked edge's account; None without
        any."""
        found = (sequencer.sessions.lost_of(lane, held) for sequencer in self._shards)
        return next((each for each in found if each is not None), None)

    def behind(self, lane: Lane) -> int | None:
        """Return the nanoseconds by which the clock of a linked edge was set back; None if it was not."""
        found = (sequencer.sessions.behind.get(lane) for sequencer in self._shards)
        return next((each for each in found if each is not None), None)


def _by_clock(wrong: str) -> HeldBack:
    return HeldBack("", None, Reason.HUB_CLOCK, None, None, wrong, ADVICE)


def _stands_still(tenant: str, stream: str, error: str) -> HeldBack:
    """Return the reason for a reader of only the table: the moment is about the log."""
    return HeldBack(
        "", None, Reason.TABLE, None, None,
        f"the moment speaks of the log, and the table of {tenant}/{stream} is not being updated: {error}",
        "do what the error says; until then read the stream through the hub, not from the table alone",
    )  # fmt: skip
