"""What the log remembers of functions: changes, copies, and what may be forgotten."""

from __future__ import annotations

from unittest import mock

from tests.edge_node.derived.node import SECOND, START, Edge, Large, Minutes, definition
from tests.edge_node.derived.power_cuts import Seen
from tests.functions.restart import context
from tests.storage.fakes import FakeFileSystem
from weft.config.functions.windows import Window
from weft.edge_node.derived import steps as state_log
from weft.edge_node.derived.definitions import Definition
from weft.functions.windows import WindowFunction
from weft.protocols.batch import decode_header, records

MINUTE = 60 * SECOND
FIRST = (START // MINUTE + 1) * MINUTE
MINUTES = definition("minutes", ["telemetry"], lambda: [("minutes", Minutes())])


def held_states(edge: Edge) -> int:
    """Records of states that must stay."""
    number = edge.log.stream("weft-functions")
    lane = edge.log._state.lane(number)
    return sum(end - first for run in edge.log.ranges(number) for first, end in lane.released.missing(*run))


async def test_a_restart_says_again_what_functions_do_not_need() -> None:
    """A log does not remember what was released. A stream without new records would keep its old ones."""
    disk = FakeFileSystem()
    edge = Edge(disk, MINUTES)
    edge.publish("telemetry", 1, 2, 3, time=START)
    await edge.pass_time(70)
    await edge.close()
    edge = Edge(disk, MINUTES, now=edge.now)
    await edge.settle()
    assert edge.released == {("minutes", "telemetry"): 3}
    await edge.close()


async def test_records_of_states_before_a_copy_go_after_restarts_too() -> None:
    disk, now = FakeFileSystem(), START
    held = []
    with mock.patch.multiple(state_log, COPY_BYTES_MIN=600, PIECE_BYTES=100):
        for _ in range(6):
            edge = Edge(disk, MINUTES, now=now)
            for number in range(20):
                edge.publish("telemetry", number)
                await edge.pass_time(2)
            await edge.close()
            now = edge.now
            edge = Edge(disk, MINUTES, now=now)
            held.append(held_states(edge))
            await edge.close()
    assert held[-1] <= held[0] + 5, held


async def test_a_copy_does_not_bring_back_what_was_before_a_change_of_functions() -> None:
    disk = FakeFileSystem()
    edge = Edge(disk, definition("out", ["telemetry"], lambda: [("minutes", Minutes())]))
    keys = [b"key %d" % number for number in range(30)]
    with mock.patch.multiple(state_log, COPY_BYTES_MIN=600, PIECE_BYTES=100):
        for _ in range(3):
            for key in keys:
                edge.publish("telemetry", 1, key=key, time=max(edge.now, FIRST))
            await edge.pass_time(1)
        other = definition("out", ["telemetry"], lambda: [("l", Large(0)), ("minutes", Minutes())], digest=b"other")
        edge.functions.change([other])
        await edge.settle()
        for key in keys:
            edge.publish("telemetry", 1, key=key)
        await edge.pass_time(1)
        for _ in range(9):
            edge.publish("telemetry", 1, key=keys[0])
            await edge.pass_time(1)
        await edge.close()
        edge = Edge(disk, other, now=edge.now)
        await edge.pass_time(70)
    assert [record[3]["sum"] for record in edge.read("out")] == [13, *[4] * (len(keys) - 1)]
    await edge.close()


async def test_a_function_that_comes_back_begins_anew_after_a_restart_too() -> None:
    disk = FakeFileSystem()
    with_seen = definition("out", ["telemetry"], lambda: [("seen", Seen())])
    edge = Edge(disk, with_seen)
    edge.publish("telemetry", 1, key=b"a", time=START)
    await edge.pass_time(2)
    edge.functions.change([definition("out", ["telemetry"], lambda: [("large", Large(0))], digest=b"without")])
    await edge.settle()
    edge.publish("telemetry", 2)
    await edge.pass_time(2)
    edge.functions.change([with_seen])
    await edge.settle()
    edge.publish("telemetry", 3)
    await edge.pass_time(2)
    await edge.close()
    edge = Edge(disk, with_seen, now=edge.now)
    edge.publish("telemetry", 1, key=b"a")
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("out")] == [1, 2, 3, 1], "as without the restart"
    await edge.close()


async def test_an_input_that_comes_back_is_read_on_where_it_was() -> None:
    edge = Edge(FakeFileSystem(), definition("out", ["a"], lambda: [("large", Large(0))]))
    edge.publish("a", 1, 2, time=START)
    await edge.pass_time(2)
    edge.functions.change([definition("out", ["b"], lambda: [("large", Large(0))], digest=b"other")])
    await edge.pass_time(2)
    edge.publish("b", 10)
    await edge.pass_time(2)
    edge.functions.change([definition("out", ["a"], lambda: [("large", Large(0))])])
    edge.publish("a", 3)
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("out")] == [1, 2, 10, 3]
    await edge.close()


async def test_a_derived_stream_that_comes_back_after_a_restart_makes_no_row_twice() -> None:
    disk = FakeFileSystem()
    large = definition("large", ["telemetry"], lambda: [("large", Large(0))])
    edge = Edge(disk, large, MINUTES)
    edge.publish("telemetry", 1, 2, time=START)
    await edge.pass_time(2)
    await edge.close()
    edge = Edge(disk, MINUTES, now=edge.now)
    await edge.pass_time(2)
    # The log forgets what was released: its budget may need the room at any time.
    lane = edge.log._state.lane(edge.log.stream("weft-functions"))
    for first, end in list(lane.released):
        lane.held.remove(first, end)
    edge.publish("telemetry", 3)
    await edge.pass_time(2)
    edge.functions.change([MINUTES, large])
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("large")] == [1, 2, 3]
    await edge.close()


# --- records that the disk loses


def window(name: str = "out", minutes: int = 1) -> Definition:
    settings = Window(every_s=60.0 * minutes, emit={"sum": "sum(value)"})
    return definition(name, ["telemetry"], lambda: [("window", WindowFunction(settings, context()))])


def lose(disk: FakeFileSystem, record: bytes) -> None:
    """Have a bit change in a record of the log."""
    for path in disk.paths():
        at = disk.content(path).find(record)
        if at >= 0:
            disk.flip(path, at + len(record) // 2)
            return
    raise AssertionError("the record is nowhere")


def state_record(edge: Edge, seq: int) -> bytes:
    number = edge.log.stream("weft-functions")
    return next(data for data in edge.log.read(number, seq, 1) if decode_header(data).base_seq == seq)


async def test_a_window_is_incomplete_when_the_disk_lost_rows_that_it_had_counted() -> None:
    disk = FakeFileSystem()
    edge = Edge(disk, window())
    steps = []
    for number in range(5):
        edge.publish("telemetry", number, time=FIRST + number * SECOND)
        await edge.pass_time(1)
        steps.append(edge.log.next_seq(edge.log.stream("weft-functions")) - 1)
    lost = state_record(edge, steps[2])
    await edge.close()
    lose(disk, lost)
    for _ in range(2):  # a second restart changes nothing
        edge = Edge(disk, window(), now=edge.now)
        await edge.pass_time(2)
        await edge.close()
    edge = Edge(disk, window(), now=edge.now)
    edge.publish("telemetry", 100)
    await edge.pass_time(120)
    edge.publish("telemetry", 1000)
    await edge.pass_time(60)
    (_, _, _, first), (_, _, _, second) = edge.read("out")
    assert not first["complete"]
    assert first["missing"] == "telemetry 1-2: corruption"
    assert (second["sum"], second["complete"]) == (1000, True)
    ((_, _, key, reported),) = edge.read("out-errors")
    assert (key, reported) == (b"out", {"input": "telemetry", "first": 1, "end": 3, "reason": "corruption"})
    await edge.close()


async def test_a_lost_record_of_a_copy_is_noticed_and_one_before_it_is_of_no_matter() -> None:
    disk = FakeFileSystem()
    large = definition("large", ["telemetry"], lambda: [("seen", Seen())])
    with mock.patch.multiple(state_log, COPY_BYTES_MIN=600, PIECE_BYTES=100):
        edge = Edge(disk, large)
        for number in range(60):
            edge.publish("telemetry", number, key=b"key %d" % number)
            await edge.pass_time(1)
        needed = edge.functions._running["large"]._writer._states._seqs
        first, last = state_record(edge, 1), needed[-1]
        assert 1 < needed[0] < last - 1
        await edge.close()
        lose(disk, first)
        edge = Edge(disk, large, now=edge.now)
        await edge.pass_time(3)
        assert edge.functions.counters()["large"].gaps == 0
        await edge.close()


async def test_rows_are_not_put_out_twice_when_the_disk_lost_where_the_functions_were() -> None:
    disk = FakeFileSystem()
    large = definition("large", ["telemetry"], lambda: [("large", Large(10))])
    edge = Edge(disk, large, window())
    for number in range(6):
        edge.publish("telemetry", 10 * number, time=FIRST + number * SECOND)
        await edge.pass_time(1)
    number = edge.log.stream("weft-functions")
    last = [record for data in edge.log.read(number, 0, 1 << 20) for record in records(data) if record.key == b"large"][
        -1
    ].seq
    lost, mark = state_record(edge, last), edge.mark("large")
    await edge.close()
    lose(disk, lost)
    edge = Edge(disk, large, window(), now=edge.now)
    edge.publish("telemetry", 77)
    await edge.pass_time(3)
    found = edge.read("large")
    assert [record[3]["value"] for record in found] == [10, 20, 30, 40, 50, 77]
    assert found[-1][1] > mark
    assert [record[3] for record in edge.read("large-errors")] == [
        {"input": "telemetry", "first": 5, "end": 6, "reason": "corruption"}
    ]
    assert edge.read("out-errors") == [], "all of what others know is there"
    await edge.pass_time(60)
    ((_, _, _, first),) = edge.read("out")
    assert (first["sum"], first["complete"]) == (227, True)
    await edge.close()
