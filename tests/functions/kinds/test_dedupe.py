"""What ``dedupe`` drops is a repeat; memory bounds what it recognises, and nothing else is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies

from tests.functions.kinds.signals import FAR, inputs
from tests.functions.restart import SECOND, context, cuts, row, run, same_after_restarts, stateful
from tests.support.examples import given
from weft.config.functions.step import Dedupe
from weft.functions.contract import Row
from weft.functions.thinning import DedupeFunction

moves = strategies.one_of(
    strategies.integers(0, 4 * SECOND), strategies.integers(-4 * SECOND, 0), strategies.just(-1000 * SECOND)
)


def make(**settings: Any) -> DedupeFunction:
    return DedupeFunction(Dedupe(**{"within_s": 10.0, **settings}), context())


def kept(rows: list[Row], **settings: Any) -> list[int]:
    return [each.seq for each in run(lambda: make(**settings), rows).emitted]


def messages(*ids: Any, every: int = SECOND, key: bytes = b"k") -> list[Row]:
    return [row(FAR + at * every, {"id": found, "at": at}, key, at) for at, found in enumerate(ids)]


@strategies.composite
def repeated(draw: strategies.DrawFn) -> list[Row]:
    """Draw messages of which many repeat others."""
    time, rows = FAR, []
    for at in range(draw(strategies.integers(0, 40))):
        time += draw(moves)
        values = {"id": draw(strategies.integers(0, 9)), "at": at}
        rows.append(row(time, values, draw(strategies.sampled_from([b"a", b"b"])), at))
    return rows


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    rows = data.draw(strategies.one_of(inputs(), repeated()))
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [{}, {"by": ("id",)}, {"by": ("id",), "ids_max": 2}, {"by": ("x", "y"), "missing": "reject"}]
        )
    )
    same_after_restarts(lambda: make(**settings), rows, data.draw(cuts(len(rows))))


@given(repeated(), strategies.sampled_from([1, 3, 1000]), strategies.booleans())
def test_what_is_dropped_repeats_a_kept_message(rows: list[Row], ids_max: int, across: bool) -> None:
    """With room for all, what is kept repeats none."""
    emitted = set(kept(rows, by=("id",), ids_max=ids_max, across_keys=across))
    times: dict[Any, int] = {}
    for each in rows:
        found = each.values["id"] if across else (each.key, each.values["id"])
        repeats = found in times and abs(each.time - times[found]) < 10 * SECOND
        if each.seq not in emitted:
            assert repeats
        elif ids_max == 1000:
            assert not repeats
        if each.seq in emitted:
            times[found] = each.time


@given(repeated())
def test_the_state_is_bounded_and_changes_only_with_kept_rows(rows: list[Row]) -> None:
    function = make(by=("id",), ids_max=3)
    state = stateful(function)
    for each in rows:
        emitted = run(lambda: function, [each]).emitted
        assert len(state.values) <= 3
        assert bool(state.take_changes()) == bool(emitted)
    assert len(function._order) <= 2 * 3 + 64


def test_repeats_within_the_time_are_dropped_counted_from_the_kept_one() -> None:
    assert kept(messages(7, 7, 8, 7, 8, 7, 7, every=3 * SECOND), by=("id",)) == [0, 2, 5]


def test_ids_of_two_devices_are_not_the_same_unless_said() -> None:
    rows = [*messages(1, key=b"a"), *messages(1, key=b"b")]
    assert len(kept(rows, by=("id",))) == 2
    assert len(kept(rows, by=("id",), across_keys=True)) == 1


def test_without_by_the_whole_payload_counts() -> None:
    rows = [row(FAR + at, {"n": at // 2}, seq=at) for at in range(6)]
    assert kept(rows) == [0, 2, 4]
    assert not make().reads_values


def test_several_fields_identify_a_message_together() -> None:
    rows = [row(FAR + at, {"a": at // 2, "b": at % 2}, seq=at) for at in range(4)]
    assert len(kept(rows + rows, by=("a", "b"))) == 4


def test_messages_without_identity_pass_or_are_rejected() -> None:
    rows = [row(FAR, {"status": "ok"}, seq=at) for at in range(2)]
    assert kept(rows, by=("id",)) == [0, 1]
    assert run(lambda: make(by=("id",), missing="reject"), rows).out.rejected() == [
        "dedupe: the payload has no field id",
        "dedupe: the payload has no field id",
    ]


def test_memory_is_given_back_when_the_time_is_over() -> None:
    function = make(by=("id",))
    run(lambda: function, messages(*range(1000), every=1))
    assert len(stateful(function).values) == 1000
    later = [row(FAR + 20 * SECOND + at, {"id": -at}, seq=at) for at in range(1, 201)]
    run(lambda: function, later)
    assert len(stateful(function).values) == 200


def test_long_ids_take_no_more_memory() -> None:
    function = make(by=("id",))
    run(lambda: function, messages("x" * 10_000))
    assert max(map(len, stateful(function).values)) <= 32
