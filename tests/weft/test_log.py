"""`weft log dump`: what is on an edge's disk, told without changing it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edge_node.clock import clock_reader, wall_clock
from storage.segment_log import LogSettings, SegmentLog
from weft.cli import cli
from weft.output import Failed


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = SegmentLog.open(
        str(tmp_path / "data"),
        LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.Random(1).getrandbits,
        post=lambda callback: callback(),
        start_writer=False,
    )
    yield log
    log.close()


def append(log: SegmentLog, *payloads: bytes) -> None:
    log.append(log.stream("telemetry"), 7, [b"plant/a"] * len(payloads), list(payloads))
    log.committer.run_once()


def dump(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(cli, ["log", "dump", str(path), "--json", *options], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, [json.loads(line) for line in done.output.splitlines()]


def test_batches_and_records_of_a_running_log(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one", b"two")
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert lines[0]["log_id"] == f"{log.log_id:016x}"
    (batch,) = [line for line in lines if line.get("kind") == "batch"]
    assert (batch["first"], batch["end"], batch["first_time"]) == (0, 2, 7)
    records = [line for line in lines if line.get("kind") == "record"]
    assert [(each["seq"], each["key"], each["payload"]) for each in records] == [
        (0, "plant/a", "one"),
        (1, "plant/a", "two"),
    ]


def test_a_sealed_segment_ends_with_its_footer(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    status, lines = dump(file)
    assert status == 0
    assert lines[-1]["kind"] == "footer"
    assert lines[-1]["value"]["streams"] == {"1": "telemetry"}


def test_damage_is_named_and_is_exit_status_1(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b"one")] ^= 1
    file.write_bytes(data)
    file.chmod(0o400)
    status, lines = dump(file, "--records")
    assert status == 1
    (error,) = [line["error"] for line in lines if "error" in line]
    assert "checksum" in error
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["two"]
    assert lines[-1]["kind"] == "footer"


def test_a_file_kept_aside_is_shown_though_its_header_is_gone(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    file.write_bytes(bytes(32) + file.read_bytes()[32:])
    aside = file.rename(f"{file}.damaged")
    status, lines = dump(aside, "--records")
    assert status == 1
    assert "expected a segment" in lines[0]["error"]
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]


def test_a_file_that_is_no_segment_is_told(tmp_path: Path) -> None:
    for content in (b"", b"x" * 10_000):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        status, lines = dump(path)
        assert status == 1
        assert len(lines) == 1


def test_text_for_people_is_one_line_per_entry(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    text = CliRunner().invoke(cli, ["log", "dump", str(tmp_path / "data"), "--records"], standalone_mode=False).output
    assert "payload='one'" in text


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["log", "dump", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, Failed)
    assert "holds no log" in str(done.exception)


def test_a_torn_tail_is_told_and_is_no_damage(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    (file,) = (tmp_path / "data").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b"two")] ^= 1
    file.write_bytes(data)
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]
    assert "nothing was acknowledged" in lines[-1]["torn"]
    assert lines[-1]["offset"] == next(line["offset"] for line in lines if "error" in line)


def test_a_segment_deleted_while_the_log_is_dumped_is_told(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"one")
    listed = os.listdir(tmp_path / "data")
    monkeypatch.setattr(os, "listdir", lambda _: [*listed, "00000000000000000007.seg"])
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]
    assert "deleted" in lines[-1]


def test_what_an_earlier_file_left_behind_is_never_shown_as_records(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    header, entries = file.read_bytes()[:32], file.read_bytes()[32:]
    moved = tmp_path / "00000000000000000032.seg"
    moved.write_bytes(header + bytes(32) + entries)
    _, lines = dump(moved, "--records")
    assert [line for line in lines if line.get("kind") == "record"] == []
    for empty in (b"", header, header + bytes(1 << 20)):
        moved.write_bytes(empty)
        _, lines = dump(moved)
        assert len(lines) == 1
