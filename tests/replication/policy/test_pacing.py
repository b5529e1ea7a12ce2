"""The pace of data: bytes in a second, and transfers apart from each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.replication.liveness import SECOND
from weft.replication.policy import TokenBucket, Transfers


@given(st.integers(1, 1 << 30), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 3 * SECOND)), max_size=40))
def test_no_more_than_the_rate_a_second_of_burst_and_one_message_are_sent(
    rate: int, messages: list[tuple[int, int]]
) -> None:
    bucket, now, sent = TokenBucket(rate, 0), 0, 0
    longest = max((size for size, _ in messages), default=0)
    for size, pause in messages:
        now = max(now + pause, bucket.refills_at())
        bucket.take(size, now)
        sent += size
        assert sent <= rate * (now + SECOND) / SECOND + longest + 1


def test_a_link_that_always_has_more_is_as_fast_as_its_rate() -> None:
    bucket, now, sent = TokenBucket(10_000, 0), 0, 0
    while now < 100 * SECOND:
        now = max(now, bucket.refills_at())
        bucket.take(700, now)
        sent += 700
    assert 0.98 <= sent / (10_000 * 101) <= 1.02


def test_a_transfer_begins_at_the_earliest_so_long_after_the_one_before_began() -> None:
    transfers = Transfers(10 * SECOND, 0)
    transfers.is_drained()
    assert transfers.opens_at == 0  # nothing was sent
    transfers.sent(2 * SECOND)
    transfers.sent(5 * SECOND)
    assert transfers.opens_at == 0  # it continues
    transfers.is_drained()
    assert transfers.opens_at == 12 * SECOND
