"""Tenants that are set apart: their shards, and what the fold makes of APART records."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.test_splits import EDGES, full, index, update
from weft.protocols.chunk_index import APART, BLOCKS, Chunk, Control, ControlKind, StreamBlock
from weft.protocols.errors import Corrupt
from weft.protocols.shard import snapshot
from weft.protocols.shard.fold import apart_body, apply, fold
from weft.protocols.shard.placement import ShardTree, Split
from weft.protocols.shard.shard_state import ShardState


def reported(held: ShardState, tenant: str = "acme", *, apart: bool = True) -> Chunk:
    control = Control(ControlKind.APART, tenant, "", 0, "", apart_body(apart=apart))
    return index(held, StreamBlock([], [control], []), BLOCKS | APART)


def of_acme(held: ShardState) -> Chunk:
    return index(held, StreamBlock([msgspec.structs.replace(update(EDGES[0], 0, 5), tenant="acme")], [], []))


# -- shards


@given(st.lists(st.none() | st.integers(0, 40), max_size=12), st.text(), st.text())
def test_a_tenant_apart_shares_no_shard_and_moves_no_other(wanted: list[int | None], tenant: str, edge: str) -> None:
    splits, apart = list[int](), list[tuple[str, int]]()
    for number, halved in enumerate(wanted):
        before = ShardTree(4, splits, apart)
        if halved is None:
            apart.append((f"tenant-{number}", before.count))
        else:
            splits.append(halved % before.count)
        after = ShardTree(4, splits, apart)
        assert after.count == before.count + 1
        was, now = before.shard_of(tenant, edge), after.shard_of(tenant, edge)
        assert now in ({was} if halved is None else {was, before.count})
    tree = ShardTree(4, splits, apart)
    assert tree.tenant_of(tree.shard_of(tenant, edge)) is None
    for name, first in apart:
        assert tree.tenant_of(tree.shard_of(name, edge)) == name
        assert tree.firsts_of(name) == (first,)
        assert tree.first_of(name, edge) == first
    assert {tree.tenant_of(shard) for shard in range(tree.count)} == {None, *(name for name, _ in apart)}
    assert [shard for shard in range(tree.count) if tree.parent(shard) is None] == list(tree.firsts)


@pytest.mark.parametrize(
    ("splits", "apart"),
    [((), [("a", 3)]), ((), [("a", 5)]), ((0,), [("a", 4), ("b", 4)]), ((), [("a", 4), ("a", 5)]), ((4,), [("a", 5)])],
)
def test_a_list_that_cannot_be_is_refused(splits: tuple[int, ...], apart: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="shard"):
        ShardTree(4, splits, apart)


# -- the fold


def test_a_shard_takes_nothing_of_a_tenant_that_is_apart() -> None:
    held = full()
    apply(held, reported(held))
    assert held.apart == {"acme"}
    apply(held, index(held, StreamBlock([update(EDGES[0], 90, 95)], [], [])))
    with pytest.raises(Corrupt, match=r"acme/.*whose tenant is set apart"):
        fold(held, of_acme(held))
    apply(held, reported(held, apart=False))
    assert held.apart == frozenset()
    apply(held, of_acme(held))


def test_the_new_shard_of_a_split_takes_nothing_of_it_either() -> None:
    held = full()
    apply(held, reported(held))
    assert held.moved_half(Split(9, 2, held.n + 1, 7), 0, 0).apart == {"acme"}


def test_snapshots_keep_it_and_earlier_releases_do_not_read_them() -> None:
    held = full()
    plain = snapshot.decode(held.encode()).head
    assert (plain.must_understand, plain.apart) == (0, [])
    apply(held, reported(held))
    again = ShardState.decode(held.encode())
    assert (again.apart, again.encode()) == (held.apart, held.encode())
    assert snapshot.decode(held.encode()).head.must_understand == 2
    assert ShardState.decode(held.encode(), only=frozenset({("default", "s")})).apart == {"acme"}


def test_a_record_that_does_not_fit_is_refused() -> None:
    held = full()
    with pytest.raises(Corrupt, match="sets tenant default apart, of which the shard has data"):
        fold(held, reported(held, "default"))
    alone = reported(held)
    both = StreamBlock([update(EDGES[0], 90, 95)], alone.footer.controls, [])
    with pytest.raises(Corrupt, match="an APART record and other things"):
        fold(held, index(held, both, BLOCKS | APART))
    control = alone.footer.controls[0]
    for body in (b"", b"\x90", b"\x91\x01"):
        wrong = StreamBlock([], [Control(control.kind, "acme", "", 0, "", body)], [])
        with pytest.raises(Corrupt, match="an APART record"):
            fold(held, index(held, wrong, BLOCKS | APART))
