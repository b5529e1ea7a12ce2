"""A log that a later release wrote: every command that reads it says so, and none calls it damage or changes it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.protocols.strategies import make_batch
from tests.support.processes import weft
from weft.protocols.segment import (
    EntryKind,
    SegmentHeader,
    StreamEntry,
    encode_entry_header,
    encode_header,
    encode_streams,
    file_name,
)

EVENT_TIME = 8


def write_log(directory: Path, *, version: int = 1, columns: int = 0) -> None:
    data = encode_header(SegmentHeader(77, 0, 0, version))
    later = bytearray(make_batch(3))
    later[9] |= columns
    struct.pack_into("<I", later, 4, crc32c(bytes(later[8:])))
    mark = encode_streams({1: StreamEntry("telemetry", 0)})
    for kind, body in ((EntryKind.STREAMS, mark), (EntryKind.STREAMS, mark), (EntryKind.BATCH, bytes(later))):
        data += encode_entry_header(len(data), kind, body) + body
    directory.mkdir()
    (directory / file_name(0)).write_bytes(data)


@pytest.mark.parametrize("later", [{"version": 3}, {"columns": EVENT_TIME}], ids=["header", "batch"])
def test_commands_that_look_into_a_log_of_a_later_release(tmp_path: Path, later: dict[str, int]) -> None:
    directory, config = tmp_path / "data", tmp_path / "edge.yaml"
    write_log(directory, **later)
    config.write_text(f"node: pi\ndata_dir: {directory}\nstreams: {{telemetry: {{from: 't/#'}}}}\nhttp: null\n")
    before = (directory / file_name(0)).read_bytes()
    for arguments in (
        ["log", "dump", str(directory)],
        ["edge", "status", str(config)],
        ["edge", "tail", str(config), "--from", "0"],
        ["edge", "query", str(config), "SELECT count(*) FROM telemetry"],
        ["edge", "run", str(config)],
    ):
        done = weft(*arguments)
        said = f"{done.output}\n{done.exception}"
        assert done.exception is not None, arguments
        assert "later release" in said, (arguments, said)
        assert "damage" not in said, (arguments, said)
        assert "torn" not in said, (arguments, said)
    assert (directory / file_name(0)).read_bytes() == before
    assert [path.name for path in directory.glob("*.seg*")] == [file_name(0)]
