"""What a log's files say of it when its node does not run."""

from __future__ import annotations

from pathlib import Path

from tests.edge_node.inspect.view.logs import T0, append, corrupt, crash, newest_segment, open_log
from weft.edge_node.inspect.summary import LogSummary, summarise
from weft.edge_node.inspect.view import LogDirectory
from weft.protocols.segment import GapReason

HOUR_NS = 3600 * 10**9


def test_sealed_and_open_segments_count_together(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(300):
        append(log, bytes(range(256)) * 4, time=T0 + number, stream="telemetry" if number % 2 else "alarms")
    summary = summarise(LogDirectory(str(tmp_path)))
    assert summary.segments > 1
    assert summary.log_id == log.log_id
    assert summary.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.seg"))
    for name, first in (("telemetry", 1), ("alarms", 0)):
        stream = summary.streams[name]
        assert (list(stream.held), stream.next_seq) == ([(0, 150)], 150)
        assert (stream.first_time, stream.last_time) == (T0 + first, T0 + 298 + first)
    assert (summary.damage, summary.torn_bytes) == ([], 0)
    log.close()


def test_a_torn_tail_and_lost_records_are_told(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    crash(log)
    path = newest_segment(tmp_path)
    corrupt(path, b"two")
    with path.open("r+b") as file:
        file.seek(len(path.read_bytes().rstrip(b"\0")) + 8)
        file.write(b"\x33" * 100)
    before = summarise(LogDirectory(str(tmp_path)))
    assert before.torn_bytes >= 100
    assert len(before.damage) == 1
    assert list(before.streams["telemetry"].held) == [(0, 1), (2, 3)]
    again = open_log(tmp_path)
    after = summarise(LogDirectory(str(tmp_path)))
    (gap,) = after.streams["telemetry"].gaps
    assert (gap.first, gap.end, gap.reason) == (1, 2, GapReason.CORRUPTION)
    assert after.torn_bytes == 0
    assert after.streams["telemetry"].next_seq == 3
    again.close()


def test_the_last_known_rate_is_that_of_the_last_hour_with_records() -> None:
    summary = LogSummary(growth=[(T0, T0 + HOUR_NS, 10**9), (T0 + HOUR_NS, T0 + 3 * HOUR_NS, 7_200_000)])
    assert summary.bytes_per_second() == 1000
    assert LogSummary(growth=[(T0, T0 + 10**9, 1000)]).bytes_per_second() is None
    assert LogSummary().bytes_per_second() is None
