"""An operator gives up what waits for a hub that will never come back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.storage.segment_log.helpers import open_log, put, read_all
from weft.edge_node.inspect.maintenance import NotTheOwner, UnknownStream, stopped_log
from weft.edge_node.inspect.view import NoLog
from weft.protocols.segment import GapReason
from weft.storage.filesystem import DirectoryInUse, OSFileSystem
from weft.storage.segment_log import LogFull, LogSettings

BUDGET_BYTES = 1 << 20
SETTINGS = LogSettings(segment_bytes=1 << 17, budget_bytes=BUDGET_BYTES, tail_bytes=0)


def test_a_backlog_is_given_up_for_good(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with pytest.raises(NoLog), stopped_log(directory):
        raise AssertionError
    assert not (tmp_path / "data").exists(), "nothing is made where there is no log"
    log = open_log(OSFileSystem(), directory=directory)
    telemetry, alarms = log.stream("telemetry"), log.stream("alarms")
    for index in range(10):
        put(log, telemetry, b"%d" % index, time=index)
    put(log, alarms, b"fire")
    with pytest.raises(DirectoryInUse), stopped_log(directory):
        raise AssertionError
    log.close()
    with stopped_log(directory) as stopped:
        with pytest.raises(UnknownStream, match="has no stream vibration; it has alarms, telemetry"):
            stopped.drop_backlog("vibration")
        backlog = stopped.backlog("telemetry", 8)
        assert (list(backlog.numbers), backlog.first_time, backlog.last_time) == ([(0, 8)], 0, 7)
        assert list(stopped.backlog("telemetry", 1000).numbers) == [(0, 10)]
        assert list(stopped.drop_backlog("telemetry", 8)) == [(0, 8)]
        assert list(stopped.backlog("telemetry", 8).numbers) == []
    log = open_log(OSFileSystem(), directory=directory)
    assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(telemetry)] == [(0, 8, GapReason.OPERATOR)]
    assert read_all(log, telemetry) == {8: b"8", 9: b"9"}
    assert read_all(log, alarms) == {0: b"fire"}
    log.close()


def test_another_user_makes_no_files_in_a_nodes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(tmp_path / "data")
    open_log(OSFileSystem(), directory=directory).close()
    owner = (tmp_path / "data").stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(NotTheOwner, match="before the command"), stopped_log(directory):
        raise AssertionError


def test_a_full_log_stays_within_its_budget_while_a_backlog_is_given_up(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    log = open_log(OSFileSystem(), SETTINGS, directory=directory)
    stream = log.stream("telemetry")
    with contextlib.suppress(LogFull):
        while True:
            put(log, stream, log.next_seq(stream).to_bytes(4, "big") * 500)
    log.close()
    with stopped_log(directory) as stopped:
        stopped.drop_backlog("telemetry")
        used = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
        assert used <= BUDGET_BYTES
    log = open_log(OSFileSystem(), SETTINGS, directory=directory)
    assert log.shortage() is None
    assert put(log, stream, b"continues") == log.gaps(stream)[-1].end
    log.close()
