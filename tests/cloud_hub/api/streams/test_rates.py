"""Rates of streams: from two notes of positions, unknown where a shard was not followed."""

from __future__ import annotations

from weft.cloud_hub.api.streams.rates import NOTE_INTERVAL_S, ShardPositions, StreamRates
from weft.protocols.shard.shard_state import ShardState

KEY = ("default", "telemetry")


def states(*ends: int) -> list[ShardState]:
    made = []
    for shard, end in enumerate(ends):
        state = ShardState(b"0" * 16, shard)
        state.next_offset[KEY] = end
        made.append(state)
    return made


async def test_a_rate_is_that_of_the_last_minutes_over_all_shards() -> None:
    now, followed = 100.0, states(1000, 0)
    rates = StreamRates(lambda: [ShardPositions(each.shard, now, each.next_offset) for each in followed], lambda: now)
    await rates.note()
    assert rates.rate(followed, KEY) is None, "of no time there is no rate"
    now += 20
    assert rates.rate(states(1100, 100), KEY) == 10
    for _ in range(5):  # a burst of long ago is not in it
        followed = states(5000, 100)
        now += NOTE_INTERVAL_S
        await rates.note()
    assert rates.rate(states(5060, 160), KEY) == 120 / NOTE_INTERVAL_S
    assert rates.rate(followed, ("default", "other")) == 0


async def test_a_rate_is_unknown_while_a_shard_with_records_of_the_stream_is_not_followed() -> None:
    now, all_shards = 100.0, states(10, 10)
    rates = StreamRates(lambda: [ShardPositions(0, now, all_shards[0].next_offset)], lambda: now)
    await rates.note()
    now += 30
    assert rates.rate(all_shards, KEY) is None
    assert rates.rate(all_shards[:1], KEY) == 0
