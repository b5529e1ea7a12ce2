"""The link between two regions: records a second of one core, beside those that an edge's link brings, and bytes.

``python -m bench.regions [--short] [--runs N]``. An edge's link and two hubs, each on a folder, share one process on
one core. First the link brings records to the hub in the west. That hub starts again with a link to the hub in the
east, until the east has all of them. Both ways end in a commit, so their ratio says what relaying costs more. Bytes
between the regions are those of TCP connections, of both directions with all headers, without TLS. Results go to
bench/results.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from bench import payloads
from bench.common import SERVER_CORE, encode_batch, pin, write_results
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.regions.budget import read_use
from weft.cloud_hub.settings import HubSettings, RegionSettings
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.events import LinkStatus
from weft.replication.policy import BudgetRule
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.source import Epochs, LaneSnapshot, OfferedLane
from weft.storage.hub_keys import chunk_prefix
from weft.storage.object_store import ObjectStore, open_store

LANE = Lane("default", "press-1", 7, "telemetry")
KEY = b"plant/line-1/m1/telemetry"
TOPICS = ("plant/{line}/{machine}/telemetry",)
BATCHES = {"small": 10, "large": 500}
"""Kind -> records of a batch."""
RECORDS = {"small": 200_000, "large": 2_000_000}
RECORDS_SHORT = {"small": 50_000, "large": 500_000}
RUNS = 3
WARM_UP = 5_000
"""Records of a run before, which loads and compiles what is used."""
PATIENCE_S = 600.0
POLL_S = 0.005
COUNTED = BudgetRule(1 << 50, 1, ZoneInfo("UTC"))
"""A budget that nothing uses up: it counts the bytes of the links."""


class Batches:
    """An edge's log in memory (``replication.source.LogSource``): one lane of batches of one size."""

    def __init__(self, records: int, size: int) -> None:
        pool, keys = payloads.telemetry(), [KEY] * size
        now = time.time_ns()
        self._size, self._records = size, records
        self._batches = [
            encode_batch(first, now + first * 1000, 1000, keys, [pool[(first + at) % len(pool)] for at in range(size)])
            for first in range(0, records, size)
        ]
        self.released_ranges = RangeSet()

    @property
    def is_done(self) -> bool:
        """Return whether the hub has acknowledged everything."""
        return self.released_ranges.covers(0, self._records)

    def lanes(self) -> list[OfferedLane]:
        """Return the lane."""
        return [OfferedLane(1, LANE.stream, TOPICS, PayloadKind.JSON)]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return all that there is."""
        held = RangeSet([(0, self._records)])
        return {lane: LaneSnapshot(held, self._records, [], Mark(time.time_ns(), self._records)) for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:  # noqa: ARG002
        """Return batches from ``seq`` on."""
        found, size = list[bytes](), 0
        for at in range(seq // self._size, len(self._batches)):
            batch = self._batches[at]
            if found and size + len(batch) > bytes_max:
                break
            found.append(batch)
            size += len(batch)
        return found

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002
        """Return the end of all numbers."""
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Return at once."""

    def released(self, lane: int, ranges: RangeSet) -> None:  # noqa: ARG002
        """Note what the hub has made durable."""
        self.released_ranges.update(ranges)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:  # noqa: ARG002
        """Call nothing: the lane does not change."""
        return lambda: None


@dataclass
class Taken:
    """The time and processor time of some work."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def taking() -> Iterator[Taken]:
    """Measure a block."""
    taken, began, cpu = Taken(), time.perf_counter(), time.process_time()
    yield taken
    taken.seconds, taken.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu


@asynccontextmanager
async def running(root: str, regions: Mapping[str, RegionSettings] | None = None) -> AsyncIterator[Hub]:
    """Run a hub on a folder, without tables."""
    hub = await Hub.open(HubSettings(store=root, port=0, shards=1, table_interval_s=None, regions=regions or {}))
    try:
        yield hub
    finally:
        await hub.close()


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something, with looks that cost next to nothing."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 the state of a hub has no event
            await asyncio.sleep(POLL_S)


def has(hub: Hub, records: int) -> bool:
    """Return whether the hub's log has the records of the lane."""
    return any(each.state.lanes.get(LANE, LaneState()).records.covers(0, records) for each in hub.sequencers)


async def stored_bytes(store: ObjectStore) -> int:
    """Return the bytes of the log."""
    found, after = 0, None
    while listed := await store.list(chunk_prefix(0), after=after):
        found, after = found + sum(item.size for item in listed), listed[-1].key
    return found


async def measured(folder: Path, log: Batches, records: int) -> dict[str, float]:
    """Bring the records to the west, and from there to the east."""
    west_root, east_root = str(folder / "west"), str(folder / "east")
    async with running(west_root) as west:
        link = run_link(
            log,
            LinkIdentity(LANE.tenant, LANE.edge, LANE.log_id, "bench"),
            LinkSettings((west.url,)),
            Epochs("memory", lambda: b"0", lambda _: None),
            LinkStatus("west"),
        )
        with taking() as commit:
            task = asyncio.create_task(link)
            await until(lambda: log.is_done)
        task.cancel()
        await asyncio.wait([task])
    async with running(east_root) as east:
        to = {"east": RegionSettings(LinkSettings((east.url,)), budget=COUNTED)}
        async with running(west_root, to):
            with taking() as relay:
                await until(lambda: has(east, records))
    store = open_store(west_root)
    use, _ = await read_use(store, "east")
    return {
        "commit_records_per_core_second": round(records / commit.cpu_seconds),
        "relay_records_per_core_second": round(records / relay.cpu_seconds),
        "relay_over_commit": round(commit.cpu_seconds / relay.cpu_seconds, 3),
        "commit_records_per_second": round(records / commit.seconds),
        "relay_records_per_second": round(records / relay.seconds),
        "sent_over_stored_bytes": round(sum(use.taken.values()) / await stored_bytes(store), 3),
    }


def figures(kind: str, records: int, runs: int, directory: str | None = None) -> dict[str, float]:
    """Return the medians of some runs with one kind of batches."""
    found: list[dict[str, float]] = []
    for count in (WARM_UP, *[records] * runs):
        with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as folder:
            found.append(asyncio.run(measured(Path(folder), Batches(count, BATCHES[kind]), count)))
    del found[0]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def main() -> None:
    """Run both kinds and write the results."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="bench.regions", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a quarter of the records, once; nothing is written")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs, of which the medians are written")
    parser.add_argument("--directory", help="where stores are made; a temporary directory by default")
    arguments = parser.parse_args()
    pin(SERVER_CORE)
    amounts: Mapping[str, int] = RECORDS_SHORT if arguments.short else RECORDS
    results: dict[str, Any] = {}
    for kind, size in BATCHES.items():
        runs = 1 if arguments.short else arguments.runs
        results[kind] = {"batch_records": size, "records": amounts[kind], "runs": runs}
        results[kind] |= figures(kind, amounts[kind], runs, arguments.directory)
        print(f"{kind}: {results[kind]}", flush=True)
    if not arguments.short:
        print(write_results("regions", results))


if __name__ == "__main__":
    main()
