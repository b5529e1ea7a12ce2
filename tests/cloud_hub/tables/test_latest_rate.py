"""A latest table keeps up with 10,000 updates a second over 100,000 keys on a part of one core."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass

import pytest

from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest, opened
from tests.cloud_hub.tables.logs import LANE, SECOND, START, LogWriter, Run
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.object_store import ObjectStore

KEYS, EDGES, ROUND = 100_000, 20, 100_000


@dataclass(frozen=True)
class Updates(Run):
    """Updates of random keys."""

    def encode(self) -> bytes:
        rnd = random.Random(f"{self.lane.edge}/{self.first}")
        seqs = range(self.first, self.first + self.count)
        times = struct.pack(f"<{self.count}q", *(START + seq * SECOND for seq in seqs))
        keys = [b"plant/a/m%d/telemetry" % rnd.randrange(KEYS) for _ in seqs]
        payloads = [b'{"temperature": %d.5, "state": "running"}' % (seq % 90) for seq in seqs]
        columns = batch.columns_from_lists(times, keys, payloads)
        return batch.encode(1, self.first, columns, ClockReading(1, 2, ClockState.SYNCED))


@pytest.mark.slow
async def test_ten_thousand_updates_a_second_over_a_hundred_thousand_keys(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, 1)
    tierer, used = await new_latest(directory, log), 0.0
    for part in range(3):
        for edge in range(EDGES):
            lane, count = LANE._replace(edge=f"edge-{edge}"), ROUND // EDGES
            await log.append(0, Updates(lane, part * count, count))
        for view in tierer._views:
            await view.log.extend(view.state)
        began = time.process_time()
        await drain_latest(tierer)
        used = time.process_time() - began
    assert opened(directory).to_pyarrow_dataset().count_rows() > 0.9 * KEYS
    assert used < ROUND / 10_000, f"a round of ten seconds took {used:.1f} s of a core"
