"""A streaming query whose driver is killed around its micro-batches, and started again with another spread.

As a script it is the query: python -m tests.spark_sinks.sinks.stream.test_spread_kills SOURCE STORE URL FOLDER SPREAD
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from spark_sinks import session
from spark_sinks.sinks import StreamSink, TargetStream
from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.sinks.killed_jobs import Jobs, arm, master
from tests.spark_sinks.sinks.stream.conftest import StreamHub
from tests.spark_sinks.sinks.stream.test_sink import even_seqs, expected, run


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_a_killed_driver_goes_on_with_another_spread_and_each_row_is_there_once(
    tmp_path: Path, own_hub: StreamHub
) -> None:
    source = Hub(str(tmp_path / "source"))
    source.write(12)
    checkpoint = tmp_path / "checkpoint"
    killed = []
    for number, (spread, kill) in enumerate([(1, "after 1"), (4, "before 2"), (2, "after 1"), (4, "after 1"), (1, "")]):
        if number == 2:
            shutil.rmtree(checkpoint)
            own_hub.kill()
            own_hub.start()
        jobs = Jobs(
            [__name__, source.root, own_hub.store, own_hub.url, str(checkpoint), str(spread)], tmp_path / "none"
        )
        jobs.run(kill)
        killed += jobs.killed
    assert len(killed) == 4
    assert sorted(record["payload"] for record in own_hub.stream_records("clean")) == expected(source)
    assert own_hub.problems("clean") == []


def main(source: str, *named: str) -> None:
    store, url, checkpoint, spread = named
    arm()
    spark = session(master(), **{"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"})
    sink = StreamSink(TargetStream(url, "clean", store), "evens", spread=int(spread))
    run(even_seqs(Hub(source), spark, max_records_per_trigger=100), sink, Path(checkpoint))


if __name__ == "__main__":
    main(*sys.argv[1:])
