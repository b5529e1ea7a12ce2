"""Rates of streams: from two notes of positions, unknown where a shard was not followed."""

from __future__ import annotations

from weft.cloud_hub.reads.metrics import NOTE_INTERVAL_S, ShardPositions, StreamRates
from weft.cloud_hub.reads.views import LaneFacts, StreamPart, StreamTally
from weft.protocols.shard.shard_state import ShardState

KEY = ("default", "telemetry")


def states(*ends: int) -> list[ShardState]:
    made = []
    for shard, end in enumerate(ends):
        state = ShardState(b"0" * 16, shard)
        state.next_offset[KEY] = end
        made.append(state)
    return made


def parts(held: list[ShardState], key: tuple[str, str] = KEY) -> list[StreamPart]:
    return [StreamTally(LaneFacts(0, peers=False)).part(state, key, ()) for state in held]


async def test_a_rate_is_that_of_the_last_minutes_over_all_shards() -> None:
    now, followed = 100.0, states(1000, 0)
    rates = StreamRates(lambda: [ShardPositions(each.shard, now, each.next_offset) for each in followed], lambda: now)
    await rates.note()
    assert rates.rate(parts(followed), KEY, {}) is None, "of no time there is no rate"
    now += 20
    assert rates.rate(parts(states(1100, 100)), KEY, {}) == 10
    assert rates.rate(parts(states(1100, 100)), KEY, {0: 4.0, 1: 4.0}) == 12.5, (
        "by the time at which the ends were read"
    )
    for _ in range(5):  # a burst of long ago is not in it
        followed = states(5000, 100)
        now += NOTE_INTERVAL_S
        await rates.note()
    assert rates.rate(parts(states(5060, 160)), KEY, {}) == 120 / NOTE_INTERVAL_S
    assert rates.rate(parts(followed, ("default", "other")), ("default", "other"), {}) == 0


async def test_a_rate_is_unknown_while_a_shard_with_records_of_the_stream_is_not_followed() -> None:
    now, all_shards = 100.0, states(10, 10)
    rates = StreamRates(lambda: [ShardPositions(0, now, all_shards[0].next_offset)], lambda: now)
    await rates.note()
    now += 30
    assert rates.rate(parts(all_shards), KEY, {}) is None
    assert rates.rate(parts(all_shards[:1]), KEY, {}) == 0
