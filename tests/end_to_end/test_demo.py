"""``./run demo``, the whole of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from examples.demo.run import MachineHours, Seen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CHECKS = {
    "iot-device-01": r"13,821 │ by MQTT, 13,821 in the table",
    "iot-device-02": r"12,959 │ by AMQP, 12,959 in the table",
    "iot-device-03": r"23,490 │ by HTTP, 23,490 in the table",
    "sent again, stored twice": r"[\d,]+ │ [\d,]+ were sent again",
    "points of what stays": r"[\d,]+ │ [\d.]+%, by a function",
    "incomplete now": r"0 │ must be 0",
}
WINDOW = r"window (\S+) at (\S+): {}, ([\d,]+) records of (\d) devices"


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TMPDIR": str(directory), "COLUMNS": "80"}
    command = [sys.executable, "-m", "examples.demo.run", *arguments]
    # A shell that runs tests in the background has them ignore Ctrl-C, and what they start would, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        signal.signal(signal.SIGINT, before)


def left_behind(directory: Path) -> list[list[str]]:
    """Command lines of processes that name the directory."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if any(str(directory) in word for word in line)]


def wait_for_services(directory: Path) -> None:
    """Until the hub and both edges run, the devices with them, and Spark starts."""
    wait_until(lambda: list(directory.glob("weft-demo-*/machine-hours.out")), 40, "the pipeline")
    assert len(left_behind(directory)) >= 3


def the_window_that_was_late(said: str) -> None:
    """The demo names the window of the outage twice, before and after, and the edge's records are in the second."""
    early, whole = (re.search(WINDOW.format(word), said) for word in ("incomplete", "complete"))
    assert early is not None, said
    assert whole is not None, said
    assert early[1] == whole[1]
    assert int(early[4]) + 1 == int(whole[4]), "without and with the device of the edge that was cut off"
    lines = [said.index(word) for word in ("cut   press", early[0], "back  press", whole[0])]
    assert lines == sorted(lines)
    records = [re.search(rf"{early[1]} {word} *│ *([\d,]+) │", said) for word in ("incomplete", "complete")]
    assert [found and found[1] for found in records] == [early[3], whole[3]]
    assert re.search(r"records in them *│ *[\d,]+ │ must equal the hub's log *│ ok │", said), said


@pytest.mark.spark
@pytest.mark.timeout(2400)
def test_devices_log_and_table_agree(tmp_path: Path) -> None:
    demo = start(tmp_path)
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    for what, count in CHECKS.items():
        assert re.search(rf"{what}\s*│\s*{count}\s*│ ok │", said), f"{what}: {said}"
    for stream in ("telemetry", "temperature"):
        lanes, end = said[said.index(f"weft audit {stream}\n") :].split("good: every record is in the log once", 1)
        rows = [line.split("\t") for line in lanes.splitlines()[2:] if "\t" in line]
        assert [row[0] for row in rows] == ["greenhouse", "press-shop"]
        for _, _, log, table, *wrong, _ in rows:
            assert log == table
            assert set(wrong) == {"0"}, "waiting, doubled, missing, gaps, holes"
        assert re.search(rf"{stream} is complete up to 20[\d-]+T[\d:]+Z\n", end), said
    assert re.search(r"records were made by temperature@\w+\n", said), said
    for line in ("kill  greenhouse", "up    greenhouse again", "up    pipeline machine-hours"):
        assert line in said
    the_window_that_was_late(said)
    assert "iot-device-02 by AMQP, iot-device-03 by HTTP" in said
    assert "iot-device-01 │ 2020-07-13 00:00" in said
    assert max(len(line) for line in said.splitlines()[1:] if "\t" not in line) <= 80
    assert not left_behind(tmp_path)
    assert not list(tmp_path.glob("weft-demo-*"))


def test_the_window_of_the_outage_lacks_the_edge_that_is_cut_off_alone(tmp_path: Path) -> None:
    """The other edge is killed in the same minute, and on a busy machine is away for whole windows."""
    cut_at, devices = datetime(2026, 1, 1, tzinfo=UTC), ["iot-device-02", "iot-device-03"]
    rows = [(-2, devices), (0, devices[:1]), (2, devices), (4, devices)]
    table = [
        {"window_start": cut_at + timedelta(seconds=second), "machine": name, "_complete": False, "records": 7}
        for second, names in rows
        for name in names
    ]
    write_deltalake(str(tmp_path / "machine-hours"), pa.Table.from_pylist(table))

    def first(others: list[str]) -> Seen | None:
        return MachineHours(tmp_path, "store", []).look(cut_at, others)

    early = first(devices)
    assert early is not None
    assert (early.start - cut_at, early.records, early.devices) == (timedelta(seconds=2), 14, 2)
    early = first([])  # they have sent all, and no further window has them
    assert early is not None
    assert (early.start - cut_at, early.devices) == (timedelta(0), 1)
    assert first([*devices, "iot-device-04"]) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(900)
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    demo = start(tmp_path)
    wait_for_services(tmp_path)
    demo.send_signal(number)
    said, _ = demo.communicate()
    assert demo.returncode == 1
    assert not left_behind(tmp_path)
    folder = next(iter(tmp_path.glob("weft-demo-*")))
    assert said.rstrip().endswith(f"The files and logs are in {folder}")
    assert (folder / "hub.log").exists()


@pytest.mark.timeout(900)
def test_a_demo_that_fails_says_where_to_look(tmp_path: Path) -> None:
    demo = start(tmp_path)
    wait_for_services(tmp_path)
    (config,) = tmp_path.glob("weft-demo-*/hub.yaml")
    for process in psutil.process_iter(["cmdline"]):
        if str(config) in (process.info["cmdline"] or []):
            process.kill()
    said, _ = demo.communicate()
    assert demo.returncode == 1
    assert re.search(r"The demo failed: hub does not answer .*; see .*hub\.log", said)
    assert said.rstrip().endswith(f"The files and logs are in {config.parent}")
    assert not left_behind(tmp_path)
