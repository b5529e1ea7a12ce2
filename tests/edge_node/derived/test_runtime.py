"""Derived streams on a real log: what comes out, when it counts as complete, and what a restart changes (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.derived.node import SECOND, START, Edge, Large, Minutes, definition
from tests.functions.restart import context
from tests.storage.fakes import FakeFileSystem
from weft.config.functions.windows import Window
from weft.edge_node.derived.counters import FunctionCounters, Rejections
from weft.edge_node.derived.definitions import Definition
from weft.edge_node.derived.stream import REPLAYS_MAX, Event, ReplayRefused, pieces
from weft.functions.contract import AsyncFunction, Function, Gap, NotReady, Out, Row
from weft.functions.windows import WindowFunction
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFull, LogSettings

LARGE = definition("large", ["telemetry"], lambda: [("large", Large(10))])
MINUTES = definition("minutes", ["telemetry"], lambda: [("minutes", Minutes())])


async def test_a_derived_stream_has_what_its_function_keeps() -> None:
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 5, 10, 15, time=START + 5)
    edge.publish("telemetry", 20, key=b"other", time=START + 7)
    await edge.settle()
    assert edge.read("large") == [
        (0, START + 5, b"k", {"value": 10}),
        (1, START + 5, b"k", {"value": 15}),
        (2, START + 7, b"other", {"value": 20}),
    ]
    assert edge.released == {("large", "telemetry"): 4}
    counters = edge.functions.counters()["large"]
    assert (counters.rows_in, counters.rows_out, counters.lag) == (4, 3, 0)
    await edge.close()


async def test_a_window_comes_out_once_its_time_has_passed_and_its_mark_waits_for_it() -> None:
    edge = Edge(FakeFileSystem(), MINUTES)
    first = (START // (60 * SECOND) + 1) * 60 * SECOND
    edge.publish("telemetry", 1, time=first + 7)
    await edge.pass_time(30)
    edge.publish("telemetry", 2)
    await edge.pass_time(20)
    assert edge.read("minutes") == []
    assert edge.mark("minutes") == first + 6, "a row of the time first + 7 may yet come"
    await edge.pass_time(11)
    assert edge.read("minutes") == [(0, first + 7, b"k", {"end": first // SECOND + 60, "count": 2, "sum": 3})]
    assert edge.mark("minutes") > first + 59 * SECOND
    await edge.close()


async def test_a_restart_goes_on_in_the_middle_of_a_window() -> None:
    disk = FakeFileSystem()
    edge = Edge(disk, MINUTES)
    first = (START // (60 * SECOND) + 1) * 60 * SECOND
    edge.publish("telemetry", 1, time=first)
    await edge.pass_time(3)
    await edge.close()
    edge = Edge(disk, MINUTES, now=first + 5 * SECOND)
    assert edge.mark("minutes") < first
    edge.publish("telemetry", 2)
    await edge.pass_time(70)
    assert [record[3]["sum"] for record in edge.read("minutes")] == [3]
    await edge.close()


async def test_what_no_function_can_handle_goes_to_the_stream_of_errors() -> None:
    edge = Edge(FakeFileSystem(), MINUTES)
    edge.publish("telemetry", 1, "none", 2, time=START)
    await edge.pass_time(61)
    assert [(record[1], record[3]) for record in edge.read("minutes-errors")] == [(START, {"value": "none"})]
    assert sum(record[3]["sum"] for record in edge.read("minutes")) == 3
    await edge.close()


def windows(name: str, inputs: list[str], **chosen: Any) -> Definition:
    emit = {"n": "count()"}
    settings = Window(every_s=10.0, by=("none",), emit=emit, **chosen)
    return definition(name, inputs, lambda: [("window", WindowFunction(settings, context(inputs=tuple(inputs))))])


async def test_a_row_says_which_records_it_was_made_of() -> None:
    """Also where the node restarts in the middle of a window, and where rows of rows are made."""
    disk = FakeFileSystem()
    made = windows("tens", ["telemetry", "other"]), windows("of-tens", ["tens"])
    edge = Edge(disk, *made)
    first = (START // (10 * SECOND) + 1) * 10 * SECOND
    edge.publish("telemetry", 1, 2, time=first)
    edge.publish("other", 1, time=first + 1)
    await edge.pass_time(3)
    await edge.close()
    edge = Edge(disk, *made, now=first + 5 * SECOND)
    edge.publish("telemetry", 3, "none")
    await edge.pass_time(30)
    edge.publish("other", 5)
    await edge.pass_time(30)
    assert [each["weft.source"] for each in edge.headers("tens")] == ["telemetry 0-3, other 0", "other 1"]
    assert [each["weft.source"] for each in edge.headers("of-tens")][:1] == ["tens 0"]
    await edge.close()


LATE = "arrived too late: its time is 2026-01-01T00:00:0%d, and its group's windows up to 2026-01-02T00:00:00Z "
"are closed"
MISSING = "field %d is missing"


@pytest.mark.parametrize(
    ("reasons", "said", "advice"),
    [
        (
            [LATE % 1, LATE % 2, "alert: no number"],
            "most often: arrived too late: its time is ...,",
            "A longer `lateness`",
        ),
        ([MISSING % 1, MISSING % 2, LATE % 1], "most often: field ... is missing", "`missing: null` beside a function"),
        (['v: expected a number, got "mara"'], "most often: v: expected a number, got ...", "edge tail"),
    ],
)
def test_the_commonest_reason_is_told_with_what_helps_against_it(
    reasons: list[str], said: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    counters = FunctionCounters(rows_in=10, rows_rejected=len(reasons))
    rejections = Rejections("ev-minutes", counters, lambda: 0.0)
    rejections.note(reasons)
    rejections.look()
    assert said in counters.warning
    (line,) = caplog.messages
    assert said in line
    assert advice in line
    assert ("`missing: null`" in line, "`lateness`" in line) == ("missing:" in advice, "lateness" in advice)
    assert "mara" not in line


async def test_one_rejected_row_in_a_hundred_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    edge = Edge(FakeFileSystem(), MINUTES)
    edge.publish("telemetry", *([1] * 199), "none", time=START)
    await edge.settle()
    counters = edge.functions.counters()["minutes"]
    assert (counters.rows_rejected, counters.warning) == (1, "")
    for at in range(3):
        edge.publish("telemetry", *([1] * 9), "none", time=START + at)
        await edge.settle()
    assert counters.warning.startswith("4 of 230 rows (1 %) went to minutes-errors")
    lines = [line for line in caplog.messages if "minutes-errors" in line]
    assert len(lines) == 1
    assert "; most often: " in lines[0]
    for _ in range(51):
        edge.publish("telemetry", *([1] * 400), time=START + 9)
        await edge.settle()
    assert counters.warning == ""
    await edge.close()


async def test_functions_may_read_what_functions_wrote() -> None:
    edge = Edge(FakeFileSystem(), LARGE, definition("large-minutes", ["large"], lambda: [("minutes", Minutes())]))
    first = (START // (60 * SECOND) + 1) * 60 * SECOND
    edge.publish("telemetry", 1, 11, 12, time=first)
    await edge.pass_time(62)
    assert [record[3] for record in edge.read("large-minutes")] == [
        {"end": first // SECOND + 60, "count": 2, "sum": 23}
    ]
    assert edge.mark("large-minutes") <= edge.mark("large") <= edge.now
    await edge.close()


async def test_rows_of_several_inputs_come_by_time() -> None:
    edge = Edge(FakeFileSystem(), definition("all", ["a", "b"], lambda: [("large", Large(0))]))
    for number in range(20):
        edge.publish("ab"[number % 3 == 0], number, time=START + number * SECOND)
        if number % 4 == 0:
            await edge.settle()
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("all")] == list(range(20))
    await edge.close()


async def test_a_row_that_functions_fail_on_stops_nothing() -> None:
    edge = Edge(FakeFileSystem(), MINUTES, LARGE)
    edge.publish("telemetry", 11, time=START)
    await edge.pass_time(2)
    edge.publish("telemetry", 12, {"poison": True, "value": 13}, 14, {"poison": True, "value": 15}, 16)
    await edge.pass_time(65)
    assert len(edge.read("large")) == 6
    counters = edge.functions.counters()["minutes"]
    assert counters.failures == 3, "once for all of them, and once for each row that is to blame"
    assert [record[3]["value"] for record in edge.read("minutes-errors")] == [13, 15]
    assert [record[3]["sum"] for record in edge.read("minutes")] == [11 + 12 + 14 + 16]
    assert not counters.trouble
    await edge.close()


async def test_other_functions_go_on_in_the_middle_of_a_window() -> None:
    """The memory of functions whose settings stay the same stays, too."""
    edge = Edge(FakeFileSystem(), definition("out", ["telemetry"], lambda: [("minutes", Minutes())]))
    first = (START // (60 * SECOND) + 1) * 60 * SECOND
    edge.publish("telemetry", 1, 100, time=first)
    await edge.pass_time(5)
    edge.functions.change(
        [definition("out", ["telemetry"], lambda: [("large", Large(50)), ("minutes", Minutes())], digest=b"other")]
    )
    await edge.settle()
    edge.publish("telemetry", 1, 200)
    await edge.pass_time(60)
    assert [record[3]["sum"] for record in edge.read("out")] == [1 + 100 + 200]
    assert edge.functions.counters()["out"].version == b"other".hex()[:8]
    await edge.close()


async def test_derived_streams_come_and_go() -> None:
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(2)
    edge.functions.change([MINUTES])
    await edge.pass_time(2)
    edge.publish("telemetry", 11)
    await edge.pass_time(61)
    assert len(edge.read("large")) == 1
    assert sum(record[3]["sum"] for record in edge.read("minutes")) == 21
    edge.functions.change([MINUTES, LARGE])
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("large")] == [10, 11], "it continues where it was"
    await edge.close()


async def test_a_replay_gives_the_same_records_the_same_numbers() -> None:
    disk = FakeFileSystem()
    edge = Edge(disk, MINUTES)
    for number in range(8):
        edge.publish("telemetry", number, key=b"ab"[number % 2 :][:1])
        await edge.pass_time(31)
    await edge.pass_time(61)
    expected = edge.read("minutes")
    assert len(expected) > 4
    assert (await edge.functions.replay("minutes", "again")).left == 8
    await edge.pass_time(3)
    assert edge.functions.replay_progress("again").left == 0
    assert edge.read("again") == expected
    assert (await edge.functions.replay("minutes", "again")).left == 0, "there is nothing more"
    await edge.pass_time(3)
    await edge.close()

    edge = Edge(disk, MINUTES, now=edge.now)
    edge.publish("telemetry", 9)
    await edge.pass_time(90)
    assert (await edge.functions.replay("minutes", "again")).left == 1, "what came since, also after a restart"
    await edge.pass_time(3)
    assert edge.read("again") == edge.read("minutes")
    with pytest.raises(ReplayRefused, match="Choose another name"):
        await edge.functions.replay("minutes", "telemetry")
    with pytest.raises(ReplayRefused, match="Derived streams: minutes"):
        await edge.functions.replay("minute", "other")
    await edge.close()


async def run_with_a_clock_set_back(inputs: list[str], *, restarts: bool) -> list[Any]:
    disk = FakeFileSystem()
    minutes = definition("minutes", inputs, lambda: [("minutes", Minutes())])
    edge = Edge(disk, minutes)
    reported, found = 0, list[Any]()
    for at in (START + 10**9 * SECOND, START):  # a clock far ahead, until it is set right
        edge.now = at
        for number in range(4):
            edge.publish("telemetry", number)
            await edge.pass_time(40)
            new = edge.read("minutes", len(found))
            assert all(record[1] > reported for record in new), "a mark had said that this time was complete"
            found, reported = [*found, *new], max(reported, edge.mark("minutes"))
            if restarts:
                now = edge.now
                await edge.close()
                edge = Edge(disk, minutes, now=now)
                await edge.settle()
    await edge.pass_time(100)
    found = edge.read("minutes")
    await edge.close()
    return [record[3] for record in found]


@pytest.mark.parametrize("inputs", [["telemetry"], ["telemetry", "events"]])
async def test_windows_go_on_when_the_clock_was_set_back(inputs: list[str]) -> None:
    found = await run_with_a_clock_set_back(inputs, restarts=False)
    right = [window for window in found if window["end"] < 2 * 10**9]
    assert sum(window["count"] for window in right) == 4
    assert sum(window["count"] for window in found) >= 7, "the last window of the former time waits for it"
    assert await run_with_a_clock_set_back(inputs, restarts=True) == found


async def test_a_log_full_of_what_functions_have_not_read_gets_room_again() -> None:
    """Only a step of the functions lets the input go, and takes room itself."""
    small = LogSettings(segment_bytes=1 << 18, budget_bytes=1 << 21, tail_bytes=1 << 14, pending_bytes_max=1 << 22)
    disk = FakeFileSystem()
    large = definition("large", ["telemetry"], lambda: [("large", Large(990))])
    edge = Edge(disk, settings=small)
    chance = random.Random(1)
    with contextlib.suppress(LogFull):
        while True:
            pad = chance.randbytes(400).hex()
            edge.publish("telemetry", *({"value": chance.randint(0, 1000), "pad": pad} for _ in range(20)))
            edge.commit()
    await edge.close()
    edge = Edge(disk, large, settings=small, now=edge.now)
    telemetry, states = edge.log.stream("telemetry"), edge.log.stream("weft-functions")
    while edge.functions.counters()["large"].lag or not edge.released:
        before = edge.log.next_seq(states)
        await edge.settle()
        assert edge.log.next_seq(states) > before, edge.functions.counters()["large"].trouble
        edge.log.release(telemetry, RangeSet([(0, edge.released["large", "telemetry"])]))
    assert edge.log.stats().bytes_on_disk <= small.budget_bytes
    for number in range(20):  # devices can continue, too
        edge.publish("telemetry", {"value": number, "pad": pad})
        await edge.settle()
        edge.log.release(telemetry, RangeSet([(0, edge.released["large", "telemetry"])]))
    await edge.close()


# --- Functions that change while they run: what an operator sees of it, and what becomes of a version that cannot
# work


CHANGES_LARGE = definition("large", ["telemetry"], lambda: [("large", Large(0))])


class Faulty(Large):
    def process(self, rows: list[Row], out: Out) -> list[Row]:
        raise RuntimeError("a fault of the new version")


class Resource(AsyncFunction):
    """Works with something that has to be closed, and counts what is open."""

    open = 0

    async def prepare(self) -> None:
        if not hasattr(self, "_is_open"):
            self._is_open = True
            Resource.open += 1

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows

    async def close(self) -> None:
        if hasattr(self, "_is_open"):
            del self._is_open
            Resource.open -= 1


class WithFile(AsyncFunction):
    """Needs a file, which may be missing."""

    is_there = False

    async def prepare(self) -> None:
        if not WithFile.is_there:
            raise NotReady("machines.csv is missing")

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows


def needs_file() -> Sequence[tuple[str, Function]]:
    return [("resource", Resource()), ("file", WithFile())]


async def test_a_version_that_fails_on_its_first_rows_is_taken_back_and_named_until_the_next_change() -> None:
    edge = Edge(FakeFileSystem(), CHANGES_LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.settle()
    edge.functions.change([definition("large", ["telemetry"], lambda: [("faulty", Faulty(0))], digest=b"faulty")])
    await edge.settle()
    edge.publish("telemetry", 5, 20)
    await edge.pass_time(5)
    assert [record[3]["value"] for record in edge.read("large")] == [10, 5, 20], "by the former version"
    figures = edge.functions.counters()["large"]
    assert figures.version == CHANGES_LARGE.digest.hex()[:8]
    assert figures.lag == 0
    assert figures.trouble == "", "the stream continues"
    assert "new ones fail on their first rows (RuntimeError: a fault of the new version)" in figures.refused
    edge.functions.change([CHANGES_LARGE])
    await edge.pass_time(2)
    assert figures.refused == ""
    await edge.close()


async def test_a_version_without_its_file_is_named_holds_nothing_up_and_is_taken_when_the_file_comes() -> None:
    WithFile.is_there, Resource.open = False, 0
    edge = Edge(FakeFileSystem(), CHANGES_LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(1)
    wanted = definition("large", ["telemetry"], needs_file, digest=b"with file")
    edge.functions.change([wanted])
    edge.publish("telemetry", 11)
    await edge.pass_time(20)
    figures = edge.functions.counters()["large"]
    assert [record[3]["value"] for record in edge.read("large")] == [10, 11]
    assert (figures.trouble, figures.version) == ("", CHANGES_LARGE.digest.hex()[:8])
    assert "machines.csv is missing" in figures.refused
    assert Resource.open == 0, "what a function before it has opened is closed again"
    WithFile.is_there = True
    await edge.pass_time(61)
    assert (figures.refused, figures.version) == ("", wanted.digest.hex()[:8])
    assert Resource.open == 1
    await edge.close()
    assert Resource.open == 0


class Model(AsyncFunction):
    """Loads as long as the test likes."""

    loaded: ClassVar[asyncio.Event]
    given_up = 0

    async def prepare(self) -> None:
        try:
            if not hasattr(self, "is_loaded"):
                await Model.loaded.wait()
            self.is_loaded = True
        except asyncio.CancelledError:
            Model.given_up += 1
            raise

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows


async def test_rows_do_not_wait_for_a_version_that_takes_long_to_load() -> None:
    Model.loaded, Model.given_up = asyncio.Event(), 0
    edge = Edge(FakeFileSystem(), CHANGES_LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(1)
    slow = definition("large", ["telemetry"], lambda: [("model", Model())], digest=b"slow")
    other = definition("large", ["telemetry"], lambda: [("model", Model())], digest=b"other")
    figures = edge.functions.counters()["large"]
    for wanted in (slow, CHANGES_LARGE, other):  # one is taken back while it loads
        edge.functions.change([wanted])
        edge.publish("telemetry", 11)
        await edge.pass_time(3)
        assert (figures.lag, figures.version) == (0, CHANGES_LARGE.digest.hex()[:8])
    assert Model.given_up == 1
    Model.loaded.set()
    edge.publish("telemetry", 12)
    await edge.pass_time(2)
    assert figures.version == other.digest.hex()[:8]
    assert [record[3]["value"] for record in edge.read("large")] == [10, 11, 11, 11, 12]
    Model.loaded.clear()
    edge.functions.change([slow])
    await edge.pass_time(1)
    await edge.close()
    assert Model.given_up == 2


async def test_functions_that_could_never_start_make_way_for_others_at_once() -> None:
    WithFile.is_there = False
    edge = Edge(FakeFileSystem(), definition("large", ["telemetry"], needs_file, digest=b"with file"))
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(5)
    assert "machines.csv" in edge.functions.counters()["large"].trouble
    edge.functions.change([CHANGES_LARGE])
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("large")] == [10]
    assert edge.functions.counters()["large"].trouble == ""
    await edge.close()


async def test_replays_that_are_done_count_no_more() -> None:
    edge = Edge(FakeFileSystem(), CHANGES_LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(2)
    for number in range(REPLAYS_MAX + 2):
        await edge.functions.replay("large", f"again-{number}")
        await edge.pass_time(2)
        assert edge.functions.replay_progress(f"again-{number}").left == 0
    for number in range(REPLAYS_MAX):
        # Nothing is durable of them before the next commit.
        await edge.functions.replay("large", f"more-{number}")
    with pytest.raises(ReplayRefused, match="run already"):
        await edge.functions.replay("large", "too-many")
    await edge.close()


# --- Pieces of the inputs: what functions get in one go


PIECES_SECOND = 1_000_000_000
ROWS_MAX = 4


def row(time: int) -> Row:
    """Return a row of a time."""
    return Row(time, b"k", b"{}", {})


def gap() -> Gap:
    """Return a gap."""
    return Gap("load", 1, 2, "expired", 0)


EVENTS = st.lists(
    st.one_of(
        st.integers(1, 4 * PIECES_SECOND).map(row),
        st.sampled_from([1, 2]).map(lambda each: row(each * PIECES_SECOND)),
        st.builds(gap),
    ),
    max_size=30,
)


def one_by_one(events: list[Event], *, by_second: bool) -> list[list[Event]]:
    """Return the pieces by a walk through all events."""
    found: list[list[Event]] = []
    latest, is_open = 0, False
    for event in events:
        if isinstance(event, Gap):
            found.append([event])
            is_open = False
            continue
        second = max(latest, (event.time - 1) // PIECES_SECOND)
        if not is_open or len(found[-1]) == ROWS_MAX or (by_second and second > latest):
            found.append([])
        found[-1].append(event)
        latest, is_open = second, True
    return found


@pytest.mark.parametrize("by_second", [False, True])
@given(events=EVENTS)
def test_pieces_hold_all_events_in_order_and_part_at_gaps_and_seconds(events: list[Event], by_second: bool) -> None:
    found = [[piece] if isinstance(piece, Gap) else piece for piece in pieces(events, ROWS_MAX, by_second=by_second)]
    assert found == one_by_one(events, by_second=by_second)


def test_a_row_of_a_whole_second_comes_before_the_tick_of_that_second() -> None:
    rows = [row(PIECES_SECOND), row(PIECES_SECOND + 1)]
    assert list(pieces(list(rows), 10, by_second=True)) == [rows[:1], rows[1:]]


def test_the_loop_waits_for_few_large_rows_at_a_time() -> None:
    """A dear expression over 64 KiB of text takes milliseconds, and so does decoding it."""
    sizes = [10, 20_000, 30_000, 30_000, 200_000, 10, 10, 60_000]
    rows: list[Event] = [Row(1, b"k", b"x" * size, {}) for size in sizes]
    found = [
        [len(row.payload or b"") for row in piece]
        for piece in pieces(rows, 256, by_second=False)
        if not isinstance(piece, Gap)
    ]
    assert found == [[10, 20_000, 30_000], [30_000], [200_000], [10, 10, 60_000]]


def test_rows_are_nothing_that_the_garbage_collector_walks_through() -> None:
    """A page has thousands of rows: to look for cycles among them took a tenth of the time of functions."""
    assert not gc.is_tracked(Row(1, b"k", b"{}", {"list": [1]}))
