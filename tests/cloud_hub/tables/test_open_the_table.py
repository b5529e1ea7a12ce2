"""docs/how-to/open-the-table.md: its queries of JSON run as they stand, on a table that its own settings made."""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.log_writer import Delivery, LogWriter
from tests.support.waiting import PATIENCE_S
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.payloads import PayloadKind
from weft.storage.table_writer.service import TableService

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/open-the-table.md").read_text("utf-8")
BLOCKS = re.findall(r"needs a stream of payload: json -->\n```python\n(.*?)```", PAGE, re.DOTALL)
SETTINGS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
AT = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp()) * 1_000_000_000


def reading(number: int) -> bytes:
    return json.dumps({"temperature": 20 + number}).encode()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    log = LogWriter(str(tmp_path / "store"))
    keys = [b"plant/press/m%d/telemetry" % (number % 2) for number in range(6)]
    payloads = [*map(reading, range(4)), b"not JSON", b"\xff"]
    columns = batch.columns_from_lists(struct.pack("<6q", *[AT] * 6), keys, payloads)
    data = batch.encode(1, 0, columns, ClockReading(1, 1, ClockState.SYNCED))
    said = parse(SETTINGS[0], str(tmp_path / "edge.yaml"), EdgeConfig).config
    telemetry = said.streams["telemetry"]
    assert telemetry.payload is not None
    kind = PayloadKind[telemetry.payload.kind.upper()]
    log.write(Delivery("press-1", [data], topics=telemetry.from_, payload=kind), received=AT)
    asyncio.run(TableService(log.store, log.cluster).run_once())
    return tmp_path


def run(block: str, store: Path) -> str:
    command = [sys.executable, "-c", block]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=store, env=path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "engine", ["duckdb", "polars", pytest.param("spark_sinks", marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_a_query_gives_the_mean_of_the_json(store: Path, engine: str) -> None:
    block = next(block for block in BLOCKS if engine in block)
    found = run(block, store)
    assert re.search(r"m0\W+21\.0", found)
    assert re.search(r"m1\W+22\.0", found)


def test_what_is_not_json_is_found(store: Path) -> None:
    (block,) = (block for block in BLOCKS if "_payload_bytes" in block)
    found = run(block, store)
    assert "plant/press/m0/telemetry" in found
    assert "plant/press/m1/telemetry" in found


def test_every_block_is_run_by_a_test() -> None:
    assert len(BLOCKS) == 4
