"""The table step on one core: sections of a log to Parquet bytes, for each kind of payload.

``python -m bench.tables [--batches N] [--repeat N]``. Batches of 5,000 readings in JSON, about 100 bytes each, become
record batches and then a Parquet file in memory: what the table step does between reading the store and writing to it.
The kinds take turns, and so do five typed fields, where all payloads fit, one in a hundred does not, and none does, and
with ten quality rules. The best of several runs counts, in processor time, so that the ratios also hold on a busy
machine. Results go to bench/results.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from bench.common import SERVER_CORE, encode_batch, pin, write_results
from weft.config.load import parse_rules, parse_schema
from weft.protocols.chunk import encode_entry_header
from weft.protocols.chunk_index import LaneUpdate, StreamSection
from weft.protocols.payloads import PayloadKind
from weft.storage.table.quality import Tally, checking
from weft.storage.table.rows import RowsOf, row_schema, rows_of
from weft.storage.table.schemas import StreamQuality, StreamSchema
from weft.storage.table.typed_columns import TypedPart, TypedRows, arrow_fields, assign
from weft.storage.table_writer.parquet_file import ParquetFile

BATCH_RECORDS = 5000
EDGES = 8
LEVELS = ["line", "machine"]
FIVE = StreamSchema(1, parse_schema("device string, temperature float, rms float, state string, count int"))
TEN = StreamQuality(
    2,
    parse_rules(
        """
        rules:
          hot: {range: {field: temperature, min: -40, max: 125}}
          warm: {range: {field: temperature, max: 80}}
          rms: {range: {field: rms, min: 0, max: 1}}
          count: {range: {field: count, min: 0}}
          device: {not_null: device}
          state: {not_null: state}
          line: {not_null: line}
          machine: {not_null: machine}
          fits: {fits: true}
          newest: {fresh: 10m}
        """
    ),
)
PATTERNS = ["plant/{line}/{machine}/telemetry"]


def reading(rng: random.Random, index: int, misfits: float) -> bytes:
    """Return a reading as a device would send it; with text for a number in some."""
    temperature = round(rng.gauss(60, 8), 2)
    return json.dumps(
        {
            "device": f"press-{index % 50:02d}",
            "temperature": "hot" if rng.random() < misfits else temperature,
            "rms": round(rng.random(), 4),
            "state": rng.choice(["running", "idle", "setup"]),
            "count": index,
        }
    ).encode()


def make_section(batches: int, misfits: float = 0) -> tuple[StreamSection, bytes, list[LaneUpdate]]:
    """Return a section of a chunk as several edges filled it."""
    rng = random.Random(1)
    keys = [b"plant/7/press-%02d/telemetry" % (index % 50) for index in range(BATCH_RECORDS)]
    now = time.time_ns()
    parts = []
    for number in range(batches):
        payloads = [reading(rng, index, misfits) for index in range(BATCH_RECORDS)]
        data = encode_batch(0, now, 1000, keys, payloads)
        parts += [encode_entry_header(number % EDGES, 0, BATCH_RECORDS, len(data), now), data]
    whole = b"".join(parts)
    lanes = [LaneUpdate("default", f"edge-{i}", i, "telemetry", 1, [], [], None, None) for i in range(EDGES)]
    count = batches * BATCH_RECORDS
    return StreamSection("default", "telemetry", 0, count, 0, 0, 0, len(whole), crc32c(whole)), whole, lanes


class Case(NamedTuple):
    """Rows of one form."""

    name: str
    kind: PayloadKind
    section: tuple[StreamSection, bytes, list[LaneUpdate]]
    declared: StreamSchema | None = None
    rules: StreamQuality | None = None


def cases(batches: int) -> list[Case]:
    """Return the forms of rows, the plain one first."""
    fitting = make_section(batches)
    found = [Case(kind.label, kind, fitting) for kind in PayloadKind]
    for name, misfits in (("five fields", 0), ("five fields, 1 % misfits", 0.01), ("five fields, all misfits", 1)):
        section = make_section(batches if misfits < 1 else max(1, batches // 8), misfits) if misfits else fitting
        found.append(Case(name, PayloadKind.BYTES, section, FIVE))
    found.append(Case("json and five fields", PayloadKind.JSON, fitting, FIVE))
    found.append(Case("five fields and ten rules", PayloadKind.BYTES, fitting, FIVE, TEN))
    return found


def step(case: Case) -> tuple[float, int]:
    """Processor seconds and bytes of one file."""
    started = time.process_time()
    schema, typed = row_schema(LEVELS, case.kind), None
    if case.declared is not None:
        assigned = assign([], case.declared)
        schema = pa.schema([*schema, *arrow_fields(assigned.fields or [])])
        rows = TypedRows(case.declared.version, case.declared.schema, assigned.columns)
        typed = TypedPart.of(schema, rows)
    out = ParquetFile(schema)
    tally = None
    if case.rules is not None and typed is not None and typed.rows is not None:
        tally = Tally(checking(case.rules, typed.rows.columns, schema).checks)
    for batch in rows_of([RowsOf(*case.section)], 0, LEVELS, lambda _: PATTERNS, payload=case.kind, typed=typed):
        if tally is not None:
            tally.add(batch)
        out.add([batch])
    size = len(out.groups.finish())
    out.data_file("bench.parquet", size, 0)
    return time.process_time() - started, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    pin(SERVER_CORE)
    found, best = cases(arguments.batches), dict[str, tuple[float, int]]()
    for _ in range(arguments.repeat):
        for case in found:
            made = step(case)
            best[case.name] = min(made, best.get(case.name, made))
    plain = best[found[0].name][0] / found[0].section[0].count
    results = []
    for case in found:
        (seconds, size), records = best[case.name], case.section[0].count
        results.append(
            {
                "payload": case.name,
                "records": records,
                "records_per_s": round(records / seconds),
                "file_bytes": size,
                "time_against_bytes": round(seconds / records / plain, 3),
            }
        )
    for result in results:
        print(f"{result['payload']}: {result['records_per_s']:,} records/s, {result['time_against_bytes']} x the time")
    print(write_results("tables", results))


if __name__ == "__main__":
    main()
