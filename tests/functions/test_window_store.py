"""Windows hold what brute force finds, whatever comes in whatever order, and restarts change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from tests.functions.restart import SECOND, Cut, context, cuts, row, run, same_after_restarts
from tests.functions.window_reference import Reference, Times, by_time, deviation, quantile
from tests.support.examples import given
from weft.config.functions.windows import Window
from weft.functions.contract import Gap, Row
from weft.functions.window_plan import iso_text
from weft.functions.window_store import GAPS_MAX
from weft.functions.windows import WindowFunction

UNTIL = 600 * SECOND
EMIT = {
    "sum": "sum(x)",
    "mean": "mean(x)",
    "least": "min(x)",
    "most": "max(x)",
    "first": "first(x)",
    "last": "last(x)",
    "deviation": "stddev(x)",
    "p90": "quantile(x, 0.9)",
    "p0": "quantile(x, 0)",
    "n": "count()",
    "doubled": "sum(x * 2)",
    "points": "lttb(x, 1000)",
}
FEW = {"sum": "sum(x / 3)", "last": "last(x)", "deviation": "stddev(x)", "p90": "quantile(x, 0.9)", "l": "lttb(x, 3)"}
SHAPES = [
    Times(every=10, size=10),
    Times(every=10, size=30),
    Times(gap=4),
    Times(every=10, size=10, event=True, lateness=3, idle=20),
    Times(every=5, size=20, event=True, lateness=0, idle=7),
    Times(every=5, size=10, event=True, lateness=30, idle=60),
    Times(gap=4, event=True, lateness=2, idle=10),
    Times(gap=6, event=True, lateness=15, idle=30),
]


@st.composite
def inputs(draw: st.DrawFn) -> list[Row | Gap]:
    """Rows in the order of their ingest, with events before and after their time, and gaps."""
    found: list[Row | Gap] = []
    time = draw(st.integers(0, 40)) * SECOND // 4
    for seq in range(draw(st.integers(1, 40))):
        time += draw(st.sampled_from([0, 1, 1, 2, 3, 4, 9, 40])) * SECOND // 4
        # More gaps than stay separate are put together, which the reference does not do.
        gaps = sum(isinstance(each, Gap) for each in found)
        if gaps < GAPS_MAX and draw(st.integers(0, 12)) == 0:
            last = next((each.time for each in reversed(found) if isinstance(each, Row)), 0)
            found.append(Gap("in", seq * 10, seq * 10 + 5, "expired", last))
        event = max(0.0, time / SECOND + draw(st.sampled_from([0.0, 0.0, -0.5, -2.0, -7.0, -31.0, 3.0])))
        values = {"x": draw(st.integers(-80, 80)) / 8, "ts": event}
        found.append(row(time, values, draw(st.sampled_from([b"a", b"b", b"c"])), seq * 10 + 5))
    return found


def maker(times: Times, emit: dict[str, str] | None = None, **more: object) -> Callable[[], WindowFunction]:
    chosen = Window(
        every_s=float(times.every) or None,
        size_s=float(times.size) or None,
        gap_s=float(times.gap) or None,
        time="ts" if times.event else None,
        lateness_s=float(times.lateness),
        idle_s=float(times.idle) or None,
        emit=EMIT if emit is None else emit,
        **more,  # type: ignore[arg-type]
    )
    return lambda: WindowFunction(chosen, context())


@pytest.mark.parametrize("times", SHAPES, ids=str)
@given(given=inputs(), few=3, many=25)
def test_windows_hold_what_brute_force_finds(times: Times, given: list[Row | Gap]) -> None:
    wanted = Reference(times).feed(given, UNTIL)
    found = run(maker(times), given, until=UNTIL).emitted
    digits = 6 if times.gap else 0
    assert [
        (each.key, each.time, each.values["window_start"], each.values["window_end"], each.values["count"])
        for each in found
    ] == [
        (each.key, each.first, iso_text(each.start, digits), iso_text(each.end, digits), len(each.rows))
        for each in wanted
    ]
    assert [(each.values["late"], each.values["complete"]) for each in found] == [
        (each.late, each.complete) for each in wanted
    ]
    for result, each in zip(found, wanted, strict=True):
        ordered = by_time(each.rows, times.event)
        values = result.values
        assert values["sum"] == sum(ordered)
        assert values["doubled"] == 2 * sum(ordered)
        assert math.isclose(values["mean"], sum(ordered) / len(ordered), abs_tol=1e-12)
        assert (values["least"], values["most"]) == (min(ordered), max(ordered))
        assert (values["first"], values["last"]) == (ordered[0], ordered[-1])
        assert [value for _, value in values["points"]] == ordered
        assert values["n"] == len(ordered)
        expected = deviation(ordered)
        assert (values["deviation"] is None) == (expected is None)
        if expected is not None:
            assert math.isclose(values["deviation"], expected, rel_tol=1e-9, abs_tol=1e-9)
        for name, wanted_quantile in (("p90", 0.9), ("p0", 0.0)):
            exact = quantile(ordered, wanted_quantile)
            assert abs(values[name] - exact) <= 0.01 * abs(exact) + 1e-12
        assert ("missing" in values) is not values["complete"]
        seqs = [row.seq for row in each.rows]
        assert result.source == ("in", min(seqs), max(seqs), len(seqs))


def test_a_late_window_of_a_new_key_knows_gaps_that_were_over_long_ago() -> None:
    """Its rows may have been in the gap as well, whatever the other keys' windows say."""
    given: list[Row | Gap] = [
        Gap("in", 0, 5, "expired", 0),
        row(SECOND, {"x": 0.0, "ts": 1.0}, b"a", 5),
        row(60 * SECOND, {"x": 0.0, "ts": 60.0}, b"a", 6),
        row(120 * SECOND, {"x": 0.0, "ts": 2.0}, b"new", 7),
    ]
    found = run(maker(Times(every=10, size=10, event=True, lateness=3, idle=20)), given, until=UNTIL).emitted
    complete = {(each.key, each.values["window_start"][-9:]): each.values["complete"] for each in found}
    assert complete == {(b"a", "00:00:00Z"): False, (b"a", "00:01:00Z"): True, (b"new", "00:00:00Z"): False}


@pytest.mark.parametrize("lateness", [0, 3])
@pytest.mark.parametrize("size", [10, 30])
def test_a_window_closes_at_the_event_that_is_lateness_later(lateness: int, size: int) -> None:
    """All rows come within one second of the node: no tick lies between them."""
    times = Times(every=10, size=size, event=True, lateness=lateness, idle=600)
    given = [
        row(SECOND + at, {"x": 1.0, "ts": ts}, b"a", at)
        for at, ts in enumerate([1.0, 9.9 + lateness, 5.0, 10.0 + lateness, 5.0, 11.0, 9.0, 20.0 + lateness, 19.0])
    ]
    found = run(maker(times, {"n": "count()"}), given, until=UNTIL)
    wanted = Reference(times).feed(given, UNTIL)
    assert [(each.values["n"], each.values["late"]) for each in found.emitted] == [
        (len(each.rows), each.late) for each in wanted
    ]
    first = [each.values["n"] for each in found.emitted if each.values["window_end"] == iso_text(10 * SECOND, 0)]
    assert first == [2 if lateness else 3]


@pytest.mark.parametrize(
    "times", [Times(every=10, size=10), Times(every=10, size=30), Times(gap=4)], ids=["tumbling", "hopping", "sessions"]
)
def test_what_a_device_kept_and_sends_behind_its_newest_is_late(times: Times) -> None:
    """Each row would be a complete window of its own."""
    times = times._replace(event=True, lateness=5, idle=20)
    backlog = [row(SECOND + at, {"x": 1.0, "ts": float(at)}, b"a", at) for at in range(1, 50)]
    given = [row(SECOND, {"x": 1.0, "ts": 100.0}, b"a", 0), *backlog]
    restarts = [Cut(at, restart=True) for at in range(1, len(given), 7)]
    found = same_after_restarts(maker(times, {"n": "count()"}), given, restarts, until=UNTIL)
    assert {each.values["window_end"] >= iso_text(100 * SECOND, 0) for each in found.emitted} == {True}
    assert {each.values["n"] for each in found.emitted} == {1}
    assert found.emitted[0].values["late"] == len(backlog)


@pytest.mark.parametrize(
    ("times", "events"),
    [
        (SHAPES[4], [8.75, 8.75, 8.75, 0.0, 0.0, 0.0, 21.25]),
        (SHAPES[3], [33.75, 44.0, 47.25, 40.75, 50.5, 17.0, 49.0]),
        (SHAPES[6], [10.0, 30.0, 11.0, 12.0, 26.5, 31.0, 27.0]),
    ],
    ids=["hopping", "tumbling", "sessions"],
)
def test_what_closes_a_window_does_not_depend_on_a_restart(times: Times, events: list[float]) -> None:
    """A row that finds its window at once, and one that looks for it after a restart, close the same windows."""
    given = [row(SECOND + at, {"x": 1.0, "ts": ts}, b"a", at) for at, ts in enumerate(events)]
    restarts = [Cut(at, restart=True) for at in range(1, len(given))]
    found = same_after_restarts(maker(times, FEW), given, restarts, until=UNTIL)
    assert [each.values["late"] for each in found.emitted] == [
        each.late for each in Reference(times).feed(given, UNTIL)
    ]


@pytest.mark.parametrize("times", SHAPES, ids=str)
@given(data=st.data(), few=3, many=25)
def test_restarts_change_no_byte(times: Times, data: st.DataObject) -> None:
    given = data.draw(inputs())
    same_after_restarts(maker(times, FEW), given, data.draw(cuts(len(given))), until=UNTIL)


@pytest.mark.parametrize("times", SHAPES, ids=str)
@given(data=st.data(), few=2, many=15)
def test_restarts_change_nothing_when_bounds_are_reached(times: Times, data: st.DataObject) -> None:
    given = data.draw(inputs())
    make = maker(times, FEW, keys_max=2, windows_max=3)
    same_after_restarts(make, given, data.draw(cuts(len(given))), until=UNTIL)


@pytest.mark.parametrize("times", SHAPES, ids=str)
@given(given=inputs(), few=2, many=15)
def test_no_result_is_older_than_what_was_said_to_be_held(times: Times, given: list[Row | Gap]) -> None:
    """The mark of a derived stream is held below ``oldest``: a result before it would come after its mark."""
    function = maker(times)()
    from tests.functions.restart import Chain

    chain = Chain(lambda: function)
    for each in given:
        if isinstance(each, Row):
            _tick_and_check(chain, function, each.time)
        chain.feed([each])
    _tick_and_check(chain, function, UNTIL)
    assert function.oldest() is None


def _tick_and_check(chain, function, time) -> None:  # type: ignore[no-untyped-def]
    held, before = function.oldest(), len(chain.emitted)
    chain.tick_before(time)
    assert all(held is not None and result.time >= held for result in chain.emitted[before:])
