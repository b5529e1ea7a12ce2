"""``weft spark move`` on files as Spark writes them: what it replaces, keeps and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.spark_sinks.conftest import EDGES, STREAM
from tests.spark_sinks.source.following import Follower
from tests.spark_sinks.source.test_moving import Region, regions, rows
from weft.cli import cli

pytestmark = pytest.mark.spark
BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1795832083943,"conf":{}}'


def checkpoint(folder: Path, *sources: Any, done: int = 10) -> Path:
    """Write the files of a query whose batch 10 is planned, and make ``done`` the last complete one."""
    for kind, last in (("offsets", 10), ("commits", done)):
        (folder / kind).mkdir(parents=True)
        for number in (9, last):
            lines = ["v1", BATCH, *map(json.dumps, sources)] if kind == "offsets" else ["v1", "{}"]
            (folder / kind / str(number)).write_text("\n".join(lines))
            (folder / kind / f".{number}.crc").write_bytes(b"crc")
    return folder


def move(folder: Path, there: Region, here: Region, *options: str) -> tuple[int, str]:
    command = ["spark", "move", str(folder), "--from", there.root, "--to", here.root, *options]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, f"{result.output} {result.exception}"


def read_up(region: Region) -> dict[str, Any]:
    return Follower(region).batch(Follower(region).reader.initialOffset())[0]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Region, Region]:
    west, east = regions(tmp_path)
    west.take((EDGES[0], 0))
    east.take((EDGES[1], 0), (EDGES[0], 0))
    return west, east


@pytest.mark.parametrize("of_several", [False, True])
def test_the_last_position_is_replaced_and_all_else_stays(
    pair: tuple[Region, Region], tmp_path: Path, *, of_several: bool
) -> None:
    west, east = pair
    at = read_up(west)
    folder = checkpoint(tmp_path / "query", {"streams": {STREAM: at}} if of_several else at)
    before = (folder / "offsets" / "9").read_text()
    status, reported = move(folder, west, east, *([] if of_several else ["--stream", STREAM]))
    assert status == 0, reported
    assert "10 records read" in reported
    version, batch, position = (folder / "offsets" / "10").read_text().splitlines()
    assert (version, batch) == ("v1", BATCH)
    assert (folder / "offsets" / "9").read_text() == before
    assert not (folder / "offsets" / ".10.crc").exists(), "Hadoop would compare it with the new file"
    found = json.loads(position)
    assert Follower(east).batch(found["streams"][STREAM] if of_several else found)[1] == rows([(EDGES[1], 0)])


def test_what_cannot_be_moved_is_refused_and_stays(pair: tuple[Region, Region], tmp_path: Path) -> None:
    west, east = pair
    at = read_up(west)
    stream = ("--stream", STREAM)
    for name, folder, options, reported in (
        ("one", checkpoint(tmp_path / "a", at, done=9), stream, "batch 10 of the query"),
        ("two", checkpoint(tmp_path / "b", at, at), stream, "several sources"),
        ("unnamed", checkpoint(tmp_path / "c", at), (), "name the stream"),
        ("other", checkpoint(tmp_path / "d", read_up(east)), stream, "checkpoint: "),
        ("none", tmp_path / "e", stream, "no offsets of a streaming query"),
    ):
        file = folder / "offsets" / "10"
        before = file.read_text() if file.exists() else None
        status, answer = move(folder, west, east, *options)
        assert status != 0, name
        assert reported in " ".join(answer.split()), name
        assert (file.read_text() if file.exists() else None) == before, name
