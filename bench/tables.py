"""The table step on one core: sections of a log to Parquet bytes, for each kind of payload.

``python -m bench.tables [--batches N] [--repeat N]``. Batches of 5,000 readings in JSON, about 100 bytes each, become
record batches and then a Parquet file in memory: what the table step does between reading the store and writing to it.
The kinds take turns and the best of several runs counts, in processor time, so that the ratios also hold on a busy
machine. Results go to bench/results.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from crc32c import crc32c

from bench.common import SERVER_CORE, encode_batch, pin, write_results
from weft.protocols.chunk import LaneUpdate, StreamSection, encode_entry_header
from weft.protocols.payloads import PayloadKind
from weft.storage.table.rows import RowsOf, row_schema, rows_of
from weft.storage.table_maker.parquet_file import ParquetFile

BATCH_RECORDS = 5000
EDGES = 8
LEVELS = ["line", "machine"]
PATTERNS = ["plant/{line}/{machine}/telemetry"]


def reading(rng: random.Random, index: int) -> bytes:
    """Return a reading as a device would send it."""
    return json.dumps(
        {
            "device": f"press-{index % 50:02d}",
            "temperature": round(rng.gauss(60, 8), 2),
            "rms": round(rng.random(), 4),
            "state": rng.choice(["running", "idle", "setup"]),
            "count": index,
        }
    ).encode()


def make_section(batches: int) -> tuple[StreamSection, bytes, list[LaneUpdate]]:
    """Return a section of a chunk as several edges filled it."""
    rng = random.Random(1)
    keys = [b"plant/7/press-%02d/telemetry" % (index % 50) for index in range(BATCH_RECORDS)]
    now = time.time_ns()
    parts = []
    for number in range(batches):
        payloads = [reading(rng, index) for index in range(BATCH_RECORDS)]
        data = encode_batch(0, now, 1000, keys, payloads)
        parts += [encode_entry_header(number % EDGES, 0, BATCH_RECORDS, len(data), now), data]
    whole = b"".join(parts)
    lanes = [LaneUpdate("default", f"edge-{i}", i, "telemetry", 1, [], [], None, None) for i in range(EDGES)]
    count = batches * BATCH_RECORDS
    return StreamSection("default", "telemetry", 0, count, 0, 0, 0, len(whole), crc32c(whole)), whole, lanes


def step(section: StreamSection, data: bytes, lanes: list[LaneUpdate], kind: PayloadKind) -> tuple[float, int]:
    """Processor seconds and bytes of one file."""
    started = time.process_time()
    out = ParquetFile(row_schema(LEVELS, kind))
    out.add(rows_of([RowsOf(section, data, lanes)], 0, LEVELS, lambda _: PATTERNS, payload=kind))
    size = len(out.finish())
    out.data_file("bench.parquet", size, 0)
    return time.process_time() - started, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    pin(SERVER_CORE)
    section, data, lanes = make_section(arguments.batches)
    best: dict[PayloadKind, tuple[float, int]] = {}
    for _ in range(arguments.repeat):
        for kind in PayloadKind:
            found = step(section, data, lanes, kind)
            best[kind] = min(found, best.get(kind, found))
    plain = best[PayloadKind.BYTES][0]
    results = [
        {
            "payload": kind.label,
            "records": section.count,
            "records_per_s": round(section.count / seconds),
            "file_bytes": size,
            "time_against_bytes": round(seconds / plain, 3),
        }
        for kind, (seconds, size) in best.items()
    ]
    for result in results:
        print(f"{result['payload']}: {result['records_per_s']:,} records/s, {result['time_against_bytes']} x the time")
    print(write_results("tables", results))


if __name__ == "__main__":
    main()
