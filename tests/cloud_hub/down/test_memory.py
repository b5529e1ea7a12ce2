"""Keys and outcomes that a process remembers, shared by tenants, whatever one of them sends. Pure."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft.cloud_hub.down import edge_queue
from weft.cloud_hub.down.edge_queue import DownContext, Draft, EdgeQueue, Settled, TenantMemory, Waiting, lane_of
from weft.protocols.chunk_index import Mark

PUTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=200)


@given(PUTS, st.integers(1, 20))
def test_a_tenant_with_less_than_an_equal_part_loses_nothing(puts: list[tuple[str, int]], total: int) -> None:
    memory, before = TenantMemory[int, int](total), Counter[str]()
    for at, (tenant, key) in enumerate(puts):
        memory.put(tenant, key, at)
        held = Counter({each: sum(1 for _ in memory.newest(each)) for each in "abcd"})
        assert len(memory) == held.total() <= total
        tenants = sum(count > 0 for count in (before | Counter([tenant])).values())
        for each, count in before.items():
            if count * tenants < total:
                assert held[each] >= count
        before = held


def test_a_tenants_oldest_are_forgotten_first() -> None:
    memory = TenantMemory[int, str](3)
    for key in (1, 2, 3, 4):
        memory.put("a", key, str(key))
    assert [key for key, _ in memory.newest("a")] == [4, 3, 2]
    memory.forget("a", 3)
    assert [memory.get("a", 3), memory.get("b", 2), memory.get("a", 2)] == [None, None, "2"]
    assert len(memory) == 2


def test_keys_and_outcomes_of_a_tenant_survive_the_flood_of_another() -> None:
    shared = DownContext()
    shared.keys, shared.recent = TenantMemory(10), TenantMemory(10)
    small, large = (EdgeQueue(lane_of(tenant, "press-1"), 0, 0, shared) for tenant in ("acme", "flood"))
    draft = Draft("down/x", b"one", 10**9, key="k")
    small.apply(0, Waiting(0, 1, 10**9, "down/x", b"one", key="k"))
    small.apply(1, Settled(0, 1, 2, "down/x", "published"))
    for seq in range(0, 100, 2):
        large.apply(seq, Waiting(seq, 1 + seq, 10**9, "down/x", b"", key=f"k{seq}"))
        large.apply(seq + 1, Settled(seq, 1 + seq, 2 + seq, "down/x", "published"))
    found = small.known(draft)
    assert found is not None
    assert found.number == 0
    assert [each.outcome for each in small.outcomes()] == ["published"]
    assert len(large.outcomes()) == 9


def test_one_tenant_may_have_all_of_them() -> None:
    assert edge_queue.KEYS_MAX == 100_000
    memory = TenantMemory[int, int](100)
    for key in range(1000):
        memory.put("a", key, key)
    assert len(list(memory.newest("a"))) == 100


def test_a_message_of_a_chunk_that_is_read_late_is_sent_and_no_mark_passes_it() -> None:
    queue = EdgeQueue(lane_of("acme", "press-1"), 0, 0, DownContext())
    for number in (0, 2, 1):
        queue.apply(number, Waiting(number, 10 + number, 10**9, "down/x", b""))
    queue.apply(3, Settled(0, 10, 20, "down/x", "published"))
    assert [message.number for message in queue.after(-1)] == [1, 2]
    assert queue.position(4, 30) == Mark(10, 1)
