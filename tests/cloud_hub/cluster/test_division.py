"""Division of shards among processes: everyone has a share, and few shards move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft.cloud_hub.cluster import divide

NAMES = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.floats(0.25, 64), min_size=1, max_size=12)


@given(st.sampled_from([1, 2, 16, 64]), NAMES)
def test_every_shard_has_an_owner_and_nobody_more_than_a_share(shards: int, weights: dict[str, float]) -> None:
    owners = divide(shards, weights)
    assert len(owners) == shards
    total = sum(weights.values())
    for name, count in Counter(owners).items():
        assert count < shards * weights[name] / total + 1 + 1e-9
    assert divide(shards, dict(reversed(weights.items()))) == owners, "whoever sees the same divides alike"


def test_a_process_that_joins_or_leaves_moves_its_shards_and_few_others() -> None:
    moved = []
    for hosts in range(1, 9):
        before = divide(64, {f"host-{host}": 1.0 for host in range(hosts)})
        after = divide(64, {f"host-{host}": 1.0 for host in range(hosts + 1)})
        assert set(Counter(after).values()) <= {64 // (hosts + 1), 64 // (hosts + 1) + 1}
        moved.append(sum(old != new for old, new in zip(before, after, strict=True)) / (64 / (hosts + 1)))
    assert sum(moved) / len(moved) < 1.6, moved


def test_more_cores_get_more_shards() -> None:
    counts = Counter(divide(64, {"small": 1.0, "large": 3.0}))
    assert counts == {"small": 16, "large": 48}
