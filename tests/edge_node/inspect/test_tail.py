"""What `weft edge tail` shows: from where it was asked to begin, each record once, and what is missing."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_node.inspect.logs import T0, append, corrupt, mark, newest_segment, one_batch, open_log, write_segment
from weft.edge_node.inspect.tail import Item, LogReplaced, Missing, Start, TailGap, TailRecord, follow, newest_records
from weft.edge_node.inspect.view import Choice, DamagedBytes, Durability, LogDirectory
from weft.protocols.lane import OriginKind
from weft.protocols.segment import EntryKind, GapNotice, GapReason, encode_body
from weft.storage.segment_log import SegmentLog
from weft.text.record import facts, line

SECOND_NS = 10**9


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = open_log(tmp_path)
    yield log
    log.close()


def is_telemetry(name: str) -> bool:
    return name == "telemetry"


def newest(path: Path, start: Start, *, locked: bool = False) -> list[Item]:
    durability = Durability(str(path), locked=lambda _: locked)
    return list(newest_records(LogDirectory(str(path)), is_telemetry, start, durability, wait=lambda _: True))


def seqs(items: list[Item]) -> list[int]:
    return [item.record.seq for item in items if isinstance(item, TailRecord)]


def fill(log: SegmentLog, count: int) -> None:
    """Records a second apart, in many segments, with others between."""
    for number in range(count):
        key = b"plant/a/m%d" % (number % 3)
        append(log, b"%05d" % number + bytes(range(256)) * 4, key=key, time=T0 + number * SECOND_NS)
        if number % 10 == 0:
            append(log, b"other" * 50, stream="alarms", time=T0 + number * SECOND_NS)


@pytest.mark.parametrize("last", [0, 1, 10, 77, 200, 1000])
def test_the_newest_so_many(log: SegmentLog, tmp_path: Path, last: int) -> None:
    fill(log, 200)
    assert len(list(tmp_path.glob("*.seg"))) > 3
    assert seqs(newest(tmp_path, Start(last=last))) == list(range(200))[200 - min(last, 200) :]
    log.close()
    assert seqs(newest(tmp_path, Start(last=last))) == list(range(200))[200 - min(last, 200) :]


def test_the_newest_so_many_of_a_topic(log: SegmentLog, tmp_path: Path) -> None:
    fill(log, 200)
    choice = Choice(topic_filter="plant/+/m1")
    assert seqs(newest(tmp_path, Start(choice, last=5))) == [184, 187, 190, 193, 196, 199][-5:]
    assert seqs(newest(tmp_path, Start(Choice(topic_filter="nothing/#"), last=5))) == []


def test_from_a_time_and_from_a_number(log: SegmentLog, tmp_path: Path) -> None:
    fill(log, 200)
    assert seqs(newest(tmp_path, Start(Choice(since_ns=T0 + 42 * SECOND_NS)))) == list(range(42, 200))
    assert seqs(newest(tmp_path, Start(Choice(from_seq=123)))) == list(range(123, 200))
    assert seqs(newest(tmp_path, Start(Choice(from_seq=999)))) == []
    assert seqs(newest(tmp_path, Start())) == list(range(200))


@pytest.mark.parametrize("last", [None, 1, 40, 199])
def test_a_record_says_what_made_it_wherever_the_tail_begins(log: SegmentLog, tmp_path: Path, last: int | None) -> None:
    first = log.origin(OriginKind.FUNCTION, "calm", "1", b"\1\2\3\4\5")
    for number in range(200):
        if number == 150:
            second = log.origin(OriginKind.FUNCTION, "calm", "2")
        append(log, b"x" + bytes(range(256)) * 4, origin=(0, first, first if number < 150 else second)[number % 3])
    assert len(list(tmp_path.glob("*.seg"))) > 3
    texts = {0: None, 1: "calm@1#01020304"}
    expected = [texts.get(number % 3, "calm@1#01020304" if number < 150 else "calm@2") for number in range(200)]
    for _ in range(2):
        found = [item for item in newest(tmp_path, Start(last=last)) if isinstance(item, TailRecord)]
        assert [item.origin for item in found] == (expected if last is None else expected[-last:])
        log.close()
    shown, plain = line(found[-1]), line(found[-1]._replace(origin=None))
    assert shown == plain + (f" <{found[-1].origin}>" if found[-1].origin else "")
    assert facts(found[-1]).get("origin") == found[-1].origin


def test_a_record_comes_with_everything_it_has(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"\xff\0", b"text", headers={1: (("unit", "C"), ("unit", "F"))}, flags={0: 4})
    first, second = [item.record for item in newest(tmp_path, Start()) if isinstance(item, TailRecord)]
    assert (first.key, first.payload, first.time, int(first.flags)) == (b"plant/a/m1", b"\xff\0", T0, 4)
    assert second.headers == (("unit", "C"), ("unit", "F"))


def test_what_is_not_durable_is_not_shown(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    durability = Durability(str(tmp_path), lambda: {"telemetry": 1}, locked=lambda _: True)
    waits = itertools.count()
    items = newest_records(LogDirectory(str(tmp_path)), is_telemetry, Start(), durability, lambda _: next(waits) >= 0)
    assert seqs(list(items)) == [0]
    assert next(waits) > 1, "it waited for the last commit, and not for ever"


def test_gap_notices_and_damage_are_shown(log: SegmentLog, tmp_path: Path) -> None:
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    log.close()
    corrupt(newest_segment(tmp_path), b"two")
    items = newest(tmp_path, Start())
    assert seqs(items) == [0, 2]
    assert any(isinstance(item, DamagedBytes) for item in items)
    again = open_log(tmp_path)
    assert again.read(again.stream("telemetry"), 1, 1)  # meets the damage and takes note of it
    again.committer.run_once()
    gaps = [item for item in newest(tmp_path, Start()) if isinstance(item, TailGap)]
    assert [(gap.stream, gap.notice.first, gap.notice.end) for gap in gaps] == [("telemetry", 1, 2)]
    again.close()


def test_what_was_carried_forward_for_its_segment_to_go_is_shown_once(tmp_path: Path) -> None:
    notice = GapNotice(1, 2, 4, GapReason.BUDGET, T0 + SECOND_NS)
    kept = [(EntryKind.GAP, encode_body(notice)), (EntryKind.MOVED, one_batch(4, b"four"))]
    newest_batch = (EntryKind.BATCH, one_batch(5, b"five", time=T0 + 100 * SECOND_NS))
    write_segment(tmp_path, 0, [(EntryKind.BATCH, one_batch(0, b"zero", b"one")), *kept])
    write_segment(tmp_path, 1 << 20, [newest_batch, (EntryKind.STREAMS, mark()), *kept])
    for start, expected in ((Start(), [0, 1, 4, 5]), (Start(Choice(from_seq=1)), [1, 4, 5]), (Start(last=1), [5])):
        items = newest(tmp_path, start)
        assert seqs(items) == expected
        assert sum(isinstance(item, TailGap) for item in items) == (0 if start.last else 1)


class Steps:
    """Does one thing after another each time a follower has nothing more to read, and then ends it."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def __call__(self, _seconds: float) -> bool:
        if not self._steps:
            return False
        self._steps.pop(0)()
        return True


def followed(path: Path, *steps: Callable[[], object], last: int = 10) -> list[Item]:
    durability = Durability(str(path), locked=lambda _: False)
    return list(follow(LogDirectory(str(path)), is_telemetry, Start(last=last), durability, Steps(*steps)))


def test_a_follower_gets_what_comes_across_restarts(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"zero")
    logs = [log]

    def restart() -> None:
        logs[-1].close()
        logs.append(open_log(tmp_path))

    items = followed(
        tmp_path,
        lambda: append(logs[-1], b"one", b"two"),
        restart,
        lambda: None,
        lambda: append(logs[-1], b"three"),
        restart,
        lambda: fill(logs[-1], 100),
    )
    assert seqs(items) == list(range(104))
    assert all(isinstance(item, TailRecord) for item in items)
    logs[-1].close()


def test_a_follower_that_fell_behind_says_what_it_missed(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"zero")

    def outrun() -> None:
        fill(log, 300)
        for path in sorted(tmp_path.glob("*.seg"))[:-1]:
            if path != first:
                path.unlink()

    first = newest_segment(tmp_path)
    items = followed(tmp_path, outrun)
    (missing,) = [item for item in items if isinstance(item, Missing)]
    shown = seqs(items)
    assert shown == [*range(missing.first), *range(missing.end, 301)]


def test_a_reader_that_is_overtaken_on_its_way_says_what_it_missed(log: SegmentLog, tmp_path: Path) -> None:
    fill(log, 300)
    durability = Durability(str(tmp_path), locked=lambda _: False)
    reader = newest_records(LogDirectory(str(tmp_path)), is_telemetry, Start(Choice()), durability)
    items = [next(reader)]
    segments = sorted(tmp_path.glob("*.seg"))
    for path in segments[1:-1]:
        path.unlink()
    items += reader
    (missing,) = [item for item in items if isinstance(item, Missing)]
    assert seqs(items) == [*range(missing.first), *range(missing.end, 300)]


def test_a_follower_survives_a_new_log(log: SegmentLog, tmp_path: Path) -> None:
    path = tmp_path / "data"
    old = open_log(path)
    append(old, b"zero", b"one")
    new: list[SegmentLog] = []

    def replace() -> None:
        old.close()
        shutil.rmtree(path)
        path.mkdir()

    def begin() -> None:
        new.append(open_log(path))
        append(new[0], b"first of the new")

    items = followed(path, replace, begin)
    assert [item.record.payload for item in items if isinstance(item, TailRecord)] == [
        b"zero",
        b"one",
        b"first of the new",
    ]
    assert sum(isinstance(item, LogReplaced) for item in items) == 1
    new[0].close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=5), min_size=1, max_size=30), st.integers(0, 60))
def test_whatever_was_written_the_newest_are_the_newest(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[int]], last: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    log = open_log(path, segment_bytes=1 << 13)
    for lengths in commits:
        append(log, *(bytes(n % 256 for n in range(length)) for length in lengths))
    count = sum(map(len, commits))
    assert seqs(newest(path, Start(last=last))) == list(range(count))[count - min(last, count) :]
    assert seqs(newest(path, Start())) == list(range(count))
    log.close()
