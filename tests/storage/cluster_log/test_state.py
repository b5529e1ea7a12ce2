"""The fold of the cluster log as a pure machine, and the bytes of entries and snapshots."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.storage import cluster_log as entries
from weft.storage import cluster_log as states
from weft.storage.cluster_log import (
    DOCUMENT_BYTES_MAX,
    KINDS_MAX,
    SEVERAL,
    SKIPPED_KEPT_MAX,
    ClusterState,
    Declaration,
    Fact,
    NamedFact,
)

CLUSTER = bytes(range(16))
DAMAGED = None

changes = st.tuples(
    st.sampled_from(["token", "tenant", "of-a-later-release"]),
    st.sampled_from(["a", "b", "acme/telemetry"]),
    st.none() | st.binary(max_size=8),
)
histories = st.lists(changes | st.just(DAMAGED), max_size=12)


def entry_of(n: int, kind: str, name: str, document: bytes | None, previous: int = 0) -> Declaration:
    return Declaration(CLUSTER, n, previous, 0, kind, name, document, 1_000 + n, "mara@ops-1", f"reason {n}", n)


def folded(history: list[tuple[str, str, bytes | None] | None], state: ClusterState | None = None) -> ClusterState:
    state = state or ClusterState(CLUSTER)
    for change in history:
        if change is None:
            state.skip(f"entry {state.n + 1} is damaged")
        else:
            made = entry_of(state.n + 1, *change)
            data = entries.encode_entry(made)
            assert entries.decode_entry(data) == made
            state.apply(made, states.crc_of(data))
    return state


@given(histories, st.integers(0, 12))
def test_a_fold_from_a_snapshot_anywhere_is_the_fold_from_the_start(
    history: list[tuple[str, str, bytes | None] | None], cut: int
) -> None:
    whole = folded(history)
    resumed = folded(history[cut:], states.decode_snapshot(states.encode_snapshot(folded(history[:cut]))))
    assert states.encode_snapshot(resumed) == states.encode_snapshot(whole)


@given(histories)
def test_a_fact_is_what_its_last_usable_entry_says(history: list[tuple[str, str, bytes | None] | None]) -> None:
    state = folded(history)
    expected: dict[tuple[str, str], tuple[int, bytes]] = {}
    last: dict[str, int] = {}
    for n, change in enumerate(history, 1):
        if change is None:
            continue
        kind, name, document = change
        last[kind] = n
        expected.pop((kind, name), None)
        if document is not None:
            expected[kind, name] = n, document
    found = {
        (kind, name): (fact.version, fact.document)
        for kind in state.kinds()
        for name, fact in state.facts(kind).items()
    }
    assert found == expected
    assert {kind: state.last(kind) for kind in state.kinds()} == last
    assert [each.n for each in state.skipped] == [n for n, change in enumerate(history, 1) if change is None]
    assert state.n == len(history)


@given(st.binary(max_size=200))
def test_bytes_of_others_are_refused_and_nothing_worse(data: bytes) -> None:
    for decode in (entries.decode_entry, states.decode_snapshot):
        with pytest.raises(CodecError):
            decode(data)


@given(st.integers(0, 10_000), st.integers(0, 7), st.booleans())
def test_a_flipped_bit_or_a_cut_is_noticed(at: int, bit: int, is_cut: bool) -> None:
    made = bytearray(entries.encode_entry(entry_of(1, "token", "a", b"{}")))
    at %= len(made)
    if is_cut:
        del made[at:]
    else:
        made[at] ^= 1 << bit
    with pytest.raises(CodecError) as caught:
        entries.decode_entry(bytes(made))
    assert not isinstance(caught.value, UnsupportedVersion), "that would stop every reader"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "Token"),
        ("kind", ""),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("by", "x" * 257),
        ("reason", "x" * 513),
        ("document", bytes(DOCUMENT_BYTES_MAX + 1)),
        ("n", 0),
        ("cluster_id", b"short"),
    ],
)
def test_fields_out_of_bounds_are_refused(field: str, value: object) -> None:
    made = msgspec.structs.replace(entry_of(1, "token", "a", b"{}"), **{field: value})
    with pytest.raises(CodecError):
        entries.decode_entry(entries.encode_entry(made))


def test_what_a_later_release_wrote_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    later = msgspec.structs.replace(entry_of(1, "token", "a", b"{}"), must_understand=SEVERAL << 1)
    with pytest.raises(UnsupportedVersion):
        entries.decode_entry(entries.encode_entry(later))
    with monkeypatch.context() as patch:
        patch.setattr(entries, "VERSION", 2)
        data = entries.encode_entry(entry_of(1, "token", "a", b"{}"))
    with pytest.raises(UnsupportedVersion, match="of version 2; this release knows version 1"):
        entries.decode_entry(data)


def test_an_entry_beyond_a_bound_changes_nothing_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "FACTS_PER_KIND_MAX", 2)
    state = folded([("token", name, b"1") for name in "abc"])
    assert set(state.facts("token")) == {"a", "b"}
    assert [each.n for each in state.skipped] == [3]
    assert state.full([NamedFact("token", "a", b"longer")]) is None, "facts that are there may change"
    folded([("token", "a", None), ("token", "c", b"1")], state)
    assert set(state.facts("token")) == {"b", "c"}
    kinds = folded([(f"kind-{i}", "a", None) for i in range(KINDS_MAX + 1)])
    assert len(kinds.kinds()) == KINDS_MAX
    assert kinds.skipped[-1].n == KINDS_MAX + 1
    monkeypatch.setattr(states, "DOCUMENTS_BYTES_MAX", 8)
    full = folded(
        [("token", "a", bytes(6)), ("token", "b", bytes(3)), ("token", "a", bytes(1)), ("token", "b", b"123")]
    )
    assert {fact.name: fact.version for fact in full.facts("token").values()} == {"a": 3, "b": 4}


def several(n: int, *facts: NamedFact, must_understand: int = SEVERAL) -> Declaration:
    first = entry_of(n, *facts[0])
    return msgspec.structs.replace(first, must_understand=must_understand, more=list(facts[1:]))


def test_facts_of_one_entry_change_at_once_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, gone = NamedFact("token", "a", b"1"), NamedFact("token", "b", b"2"), NamedFact("tenant", "x", None)
    state = folded([("tenant", "x", b"{}")])
    made = several(2, a, b, gone)
    data = entries.encode_entry(made)
    assert entries.decode_entry(data) == made
    state.apply(made, states.crc_of(data))
    assert {name: (fact.version, fact.document) for name, fact in state.facts("token").items()} == {
        "a": (2, b"1"),
        "b": (2, b"2"),
    }
    assert (state.last("token"), state.last("tenant"), dict(state.facts("tenant"))) == (2, 2, {})
    assert states.encode_snapshot(states.decode_snapshot(states.encode_snapshot(state))) == states.encode_snapshot(
        state
    )
    monkeypatch.setattr(states, "FACTS_PER_KIND_MAX", 3)
    state.apply(several(3, NamedFact("token", "c", b"3"), NamedFact("token", "d", b"4")), 0)
    assert set(state.facts("token")) == {"a", "b"}
    assert state.skipped[-1].n == 3


def test_an_entry_with_wrong_further_facts_is_refused() -> None:
    a, b = NamedFact("token", "a", b"1"), NamedFact("token", "b", b"2")
    many = [NamedFact("token", f"{i}", b"") for i in range(entries.FACTS_MAX + 1)]
    long = [NamedFact("token", f"{i:0200}", b"") for i in range(100)]
    large = [NamedFact("token", f"{i}", bytes(DOCUMENT_BYTES_MAX)) for i in range(6)]
    for made in (
        several(1, a, a),
        several(1, a, b, must_understand=0),
        several(1, a, NamedFact("To", "b", b"")),
        several(1, *many),
        several(1, *long),
        several(1, *large),
    ):
        with pytest.raises(CodecError) as caught:
            entries.decode_entry(entries.encode_entry(made))
        assert not isinstance(caught.value, UnsupportedVersion)


def test_only_the_newest_of_many_skipped_entries_are_named() -> None:
    state = folded([DAMAGED] * 100)
    assert [each.n for each in state.skipped] == list(range(101 - SKIPPED_KEPT_MAX, 101))


def test_a_snapshot_whose_facts_are_not_in_order_is_refused() -> None:
    fact = Fact("a", 5, b"1", 0, "", "")
    for kinds, n in (
        ([states.KindSnapshot("token", 4, [fact])], 9),
        ([states.KindSnapshot("token", 5, [fact])], 4),
        ([states.KindSnapshot("token", 5, [fact, fact])], 9),
        ([states.KindSnapshot("To", 5, [fact])], 9),
    ):
        body = msgspec.msgpack.encode(states.ClusterSnapshot(CLUSTER, n, 0, 0, kinds, []))
        with pytest.raises(CodecError):
            states.decode_snapshot(entries.with_header(entries.SNAPSHOT_MAGIC, body))
