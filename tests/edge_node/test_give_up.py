"""An operator gives up what waits for a hub that will never come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.models import EdgeConfig, Stream
from edge_node.give_up import UnknownStream, give_up
from protocols.segment import GapReason
from storage.filesystem import DirectoryInUse, OSFileSystem
from tests.storage.log_helpers import open_log, put, read_all


def test_a_backlog_is_given_up_for_good(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    config = EdgeConfig(node="edge-1", data_dir=directory, streams={"telemetry": Stream(from_=("t/#",))})
    log = open_log(OSFileSystem(), directory=directory)
    telemetry, alarms = log.stream("telemetry"), log.stream("alarms")
    for index in range(10):
        put(log, telemetry, b"%d" % index)
    put(log, alarms, b"fire")
    with pytest.raises(DirectoryInUse):
        give_up(config, "telemetry")
    log.close()
    with pytest.raises(UnknownStream, match="has no stream vibration; it has alarms, telemetry"):
        give_up(config, "vibration")
    assert list(give_up(config, "telemetry", end=8)) == [(0, 8)]
    log = open_log(OSFileSystem(), directory=directory)
    assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(telemetry)] == [(0, 8, GapReason.OPERATOR)]
    assert read_all(log, telemetry) == {8: b"8", 9: b"9"}
    assert read_all(log, alarms) == {0: b"fire"}
    log.close()
