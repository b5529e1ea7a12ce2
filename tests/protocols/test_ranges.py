"""Range sets against the plainest model there is: a set of integers."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from weft.protocols import ranges
from weft.protocols.errors import Corrupt
from weft.protocols.ranges import SEQ_END, RangeSet

TOP = 24
NUMBERS = st.integers(0, TOP)


class RangeSetModel(RuleBasedStateMachine):
    """Every operation on a range set does what it does on a set of its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(first=NUMBERS, end=NUMBERS)
    def add(self, first: int, end: int) -> None:
        self.ranges.add(first, end)
        self.model |= set(range(first, end))

    @rule(first=NUMBERS, end=NUMBERS)
    def remove(self, first: int, end: int) -> None:
        self.ranges.remove(first, end)
        self.model -= set(range(first, end))

    @rule(others=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4))
    def minus(self, others: list[tuple[int, int]]) -> None:
        taken = RangeSet(others)
        left = self.ranges.minus(taken)
        assert {seq for first, end in left for seq in range(first, end)} == self.model - {
            seq for first, end in taken for seq in range(first, end)
        }
        assert left == RangeSet(left), "ranges that touch are joined"

    @rule(first=NUMBERS, end=NUMBERS)
    def within(self, first: int, end: int) -> None:
        found = [seq for low, high in self.ranges.within(first, end) for seq in range(low, high)]
        assert found == sorted(self.model & set(range(first, end)))

    @rule(others=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4))
    def update(self, others: list[tuple[int, int]]) -> None:
        self.ranges.update(RangeSet(others))
        for first, end in others:
            self.model |= set(range(first, end))

    @rule(first=NUMBERS, end=NUMBERS)
    def ask(self, first: int, end: int) -> None:
        wanted = set(range(first, end))
        missing = self.ranges.missing(first, end)
        assert [n for a, b in missing for n in range(a, b)] == sorted(wanted - self.model)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(missing))
        assert self.ranges.covers(first, end) == (wanted <= self.model)
        run = first
        while run in self.model:
            run += 1
        assert self.ranges.contiguous_end(first) == run

    @rule()
    def copies_are_independent(self) -> None:
        twin = self.ranges.copy()
        assert twin == self.ranges
        twin.add(TOP + 5, TOP + 6)
        assert TOP + 5 not in self.ranges

    @invariant()
    def same_numbers_in_normal_form(self) -> None:
        ranges = list(self.ranges)
        assert [n for first, end in ranges for n in range(first, end)] == sorted(self.model)
        assert all(first < end for first, end in ranges)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))
        assert self.ranges.count() == len(self.model)
        assert self.ranges.end == max(self.model, default=-1) + 1
        assert RangeSet.from_wire(self.ranges.to_wire()) == self.ranges


TestRangeSetModel = RangeSetModel.TestCase
TestRangeSetModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_the_order_of_adding_does_not_matter(ranges: list[tuple[int, int]]) -> None:
    assert RangeSet(ranges) == RangeSet(reversed(ranges))


def test_the_whole_number_space_is_one_range() -> None:
    ranges = RangeSet.from_wire([[0, SEQ_END]])
    assert SEQ_END - 1 in ranges
    assert SEQ_END not in ranges
    assert ranges.count() == SEQ_END


@pytest.mark.parametrize(
    "pairs",
    [
        [[0]],
        [[0, 1, 2]],
        [[1, 1]],
        [[2, 1]],
        [[-1, 1]],
        [[0, SEQ_END + 1]],
        [["a", "b"]],
        ["ab"],
        [7],
        [[0.0, 1.0]],
        [[False, True]],
        [[5, 6], [0, 1]],
        [[0, 5], [4, 6]],
    ],
    ids=repr,
)
def test_ranges_that_a_peer_may_not_send_are_refused(pairs: list[list[int]]) -> None:
    with pytest.raises(Corrupt):
        RangeSet.from_wire(pairs)


def test_ranges_that_touch_are_joined() -> None:
    assert list(RangeSet.from_wire([[0, 5], [5, 9]])) == [(0, 9)]


# --- Msgpack from others becomes a value of the type or ``Corrupt``, never anything else


TYPES = [ranges.U32, ranges.U64, ranges.Seq, ranges.Epoch, ranges.Nanoseconds, ranges.Ranges, ranges.Topics]


@pytest.mark.parametrize(
    ("kind", "smallest", "largest"),
    [
        (ranges.U32, 0, (1 << 32) - 1),
        (ranges.U64, 0, (1 << 64) - 1),
        (ranges.Seq, 0, SEQ_END),
        (ranges.Epoch, 0, (1 << 63) - 1),
        (ranges.Nanoseconds, -(1 << 63), (1 << 63) - 1),
    ],
)
def test_integers_keep_to_their_bounds(kind: type, smallest: int, largest: int) -> None:
    decoder: msgspec.msgpack.Decoder[int] = msgspec.msgpack.Decoder(kind)
    for value in (smallest, largest):
        assert ranges.unpack(decoder, msgspec.msgpack.encode(value), "a number") == value
    for value in (smallest - 1, largest + 1):
        if -(1 << 63) <= value < 1 << 64:
            with pytest.raises(Corrupt, match="a number"):
                ranges.unpack(decoder, msgspec.msgpack.encode(value), "a number")


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(st.binary(max_size=40))
def test_garbage_is_corrupt_or_a_value(kind: type, data: bytes) -> None:
    try:
        ranges.unpack(msgspec.msgpack.Decoder(kind), data, "a field")
    except Corrupt:
        pass


@pytest.mark.parametrize(
    "data", [b"\xa1\xff", b"\x91" * 100_000, b"\xc1", b""], ids=["text", "deep", "unused", "empty"]
)
def test_what_surfaces_as_other_errors_is_corrupt(data: bytes) -> None:
    class Text(msgspec.Struct, array_like=True):
        text: str

    for kind in (str, Text, object):
        decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        with pytest.raises(Corrupt):
            ranges.unpack(decoder, data, "a field")
