"""A hub and a pipeline hand the tables over to each other while records come: none is lost, none is a row twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import get_json
from tests.spark_sinks.sinks.stream.conftest import StreamHub, rows, send
from tests.spark_sinks.tables.test_query import rows as table_rows
from tests.support.spark_cluster import kill_group, temporary_of_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

STREAM = "telemetry"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0
RECORDS_EACH = 50
"""Records that must have become rows under a maker before the next one takes over."""


class Flow:
    """Records that a lane of Spark's own sends into the stream, ten at a time, for as long as the block runs."""

    def __init__(self, hub: StreamHub) -> None:
        self._settings = hub.settings(STREAM)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = 0

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ending.wait(0.05):
            answer = send(self._settings, rows(0, range(self.sent, self.sent + 10)))
            assert answer
            self.sent += 10


@contextlib.contextmanager
def pipeline(hub: StreamHub, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the shipped pipeline in a process group of its own, as a person does."""
    with temporary_of_spark() as temporary, (folder / "pipeline.log").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "weft",
                "spark",
                "run",
                "tables",
                "--master",
                "local[1]",
                "--set",
                f"source.store={hub.store}",
                "--set",
                "trigger=1s",
            ],
            env=os.environ | temporary,
            cwd=ROOT,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            kill_group(process)


def table(hub: StreamHub) -> dict[str, Any]:
    """What the hub says of the stream's table."""
    found = [each for each in get_json(f"{hub.url}/v1/status", timeout_s=20)["tables"] if each["stream"] == STREAM]
    return found[0] if found else {"made_by": None, "rows_moved": 0, "shards": []}


def tabled(hub: StreamHub) -> int:
    return sum(shard["table"] for shard in table(hub)["shards"])


def await_rows(hub: StreamHub) -> None:
    """Wait until more records have become rows."""
    wanted = tabled(hub) + RECORDS_EACH
    wait_until(lambda: tabled(hub) >= wanted, PATIENCE_S, f"{wanted} rows")


def await_maker(hub: StreamHub, maker: str | None) -> None:
    def holds() -> bool:
        made_by = table(hub)["made_by"]
        return (made_by["name"] if made_by else None) == maker

    wait_until(holds, PATIENCE_S, f"the table to be made by {maker or 'the hub'}")


def test_a_hub_and_a_pipeline_hand_tables_over_under_load(tmp_path: Path) -> None:
    hub = StreamHub(tmp_path)
    hub.start()
    try:
        with Flow(hub) as flow:
            wait_until(lambda: table(hub)["rows_moved"] >= RECORDS_EACH, PATIENCE_S, "rows by the hub")
            for ending in (signal.SIGTERM, signal.SIGKILL):
                with pipeline(hub, tmp_path) as process:
                    await_maker(hub, "spark pipeline tables")
                    await_rows(hub)  # those that a step of the hub was writing may be among them
                    by_hub = table(hub)["rows_moved"]
                    await_rows(hub)
                    assert table(hub)["rows_moved"] == by_hub, "the hub makes no rows of a table that is claimed"
                    shown = subprocess.run(
                        [sys.executable, "-m", "weft", "hub", "status", str(hub.config_path)],
                        capture_output=True,
                        text=True,
                        check=True,
                    ).stdout
                    assert f"default/{STREAM}" in shown
                    assert "spark pipeline tables" in shown
                    os.killpg(process.pid, ending)
                    ended = time.monotonic()
                    await_maker(hub, None)
                    if ending == signal.SIGKILL:
                        print(f"the hub took over {time.monotonic() - ended:.1f} s after the kill")
                await_rows(hub)
                assert table(hub)["rows_moved"] > by_hub
        wait_until(lambda: tabled(hub) == flow.sent, PATIENCE_S, "all records to be rows")
        assert hub.problems(STREAM) == []
        found = table_rows(hub.store, STREAM).column("payload").to_pylist()
        assert sorted(found) == sorted(b"p:%d:0" % offset for offset in range(flow.sent))
    finally:
        hub.stop()
