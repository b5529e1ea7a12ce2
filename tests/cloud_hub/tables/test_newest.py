"""Which row of a key counts: a pure function of the rows, however they come."""

from __future__ import annotations

import random
from collections import defaultdict

import pyarrow as pa
import pytest

from weft.cloud_hub.facts.streams import wrong_part
from weft.cloud_hub.tables import buckets as module
from weft.cloud_hub.tables.buckets import HIDDEN_US, Bucket, BucketFiles, Key, hashes, newest
from weft.storage.table.actions import Action, AddedFile, TableError
from weft.storage.table.rows import TIMESTAMP

SCHEMA = pa.schema(
    [
        ("_key", pa.string()),
        ("_edge", pa.string()),
        ("_log", pa.string()),
        ("_seq", pa.int64()),
        ("_received", TIMESTAMP),
        ("_shard", pa.int32()),
        ("_offset", pa.int64()),
        ("_tombstone", pa.bool_()),
    ]
)
NOW_US = 100 * HIDDEN_US
Row = tuple[str | None, str, str, int, int, int, int, bool]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def recount(rows: list[Row]) -> set[Row]:
    """The rows that a reader finds, row by row in Python."""
    lanes: dict[str, dict[tuple[str, str], Row]] = defaultdict(dict)
    for row in rows:
        key, edge, log, seq, *_ = row
        assert key is not None
        if (edge, log) not in lanes[key] or lanes[key][edge, log][3] < seq:
            lanes[key][edge, log] = row
    winners = [max(found.values(), key=lambda row: row[4:7]) for found in lanes.values() if found]
    return {row for row in winners if not row[7]}


def made(seed: int) -> list[Row]:
    rnd = random.Random(seed)
    rows: list[Row] = []
    offsets = [0, 0]
    seqs: dict[tuple[str, str], list[int]] = defaultdict(lambda: [*rnd.sample(range(40), 40)])
    for received in range(60):
        lane, shard = rnd.choice([("a", "1"), ("a", "2"), ("b", "1"), ("c", "3")]), rnd.randrange(2)
        key = rnd.choice(["x", "y", "z", "w"])
        seq = seqs[lane].pop() if seqs[lane] else 100 + received
        rows.append((key, *lane, seq, received // 3, shard, offsets[shard], rnd.random() < 0.2))
        offsets[shard] += 1
    return rows


def as_rows(found: pa.Table) -> set[Row]:
    return {
        (row["_key"], row["_edge"], row["_log"], row["_seq"], _us(row["_received"]), *_rest(row))
        for row in found.to_pylist()
    }


def _us(moment: object) -> int:
    return int(pa.scalar(moment, TIMESTAMP).value)


def _rest(row: dict[str, object]) -> tuple[int, int, bool]:
    return row["_shard"], row["_offset"], row["_tombstone"]  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(20))
def test_portions_in_any_order_and_more_than_once_give_what_a_recount_gives(seed: int) -> None:
    rows, rnd = made(seed), random.Random(seed)
    wanted = recount(rows)
    assert as_rows(_visible(table(rows))) == wanted
    rnd.shuffle(rows)
    state = SCHEMA.empty_table()
    while rows:
        portion = [rows.pop() for _ in range(min(len(rows), rnd.randrange(1, 9)))]
        rows += [portion[0]] if rnd.random() < 0.2 else []  # a portion that is taken again in part
        both = pa.concat_tables([state, table(portion)])
        found = newest(both, ["_key"], NOW_US)
        state = both.take([*found.visible, *found.hidden])
    assert as_rows(_visible(state)) == wanted


def _visible(rows: pa.Table) -> pa.Table:
    return rows.take(newest(rows, ["_key"], NOW_US).visible)


def test_rows_without_a_key_have_no_row() -> None:
    found = newest(table([(None, "a", "1", 1, 1, 0, 0, False), ("x", "a", "1", 2, 2, 0, 1, False)]), ["_key"], NOW_US)
    assert (found.visible.tolist(), found.hidden.tolist()) == ([1], [])


def test_tombstones_are_forgotten_after_a_week_and_many_lanes_of_a_key_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, young = ("x", "a", "1", 1, 0, 0, 0, True), ("y", "a", "1", 2, HIDDEN_US, 0, 1, True)
    assert newest(table([old, young]), ["_key"], 2 * HIDDEN_US).hidden.tolist() == [1]
    assert newest(table([old, young]), ["_key"], HIDDEN_US - 1).hidden.tolist() == [0, 1], "a chunk was ahead"
    assert module.young(table([old]), table([young]), 2 * HIDDEN_US).num_rows == 0
    assert module.young(table([old]), table([young]), HIDDEN_US - 1).num_rows == 1
    monkeypatch.setattr(module, "LANES_PER_KEY_MAX", 2)
    rows: list[Row] = [("x", f"edge-{n}", "1", 0, n, 0, n, False) for n in range(6)]
    found = newest(table(rows), ["_key"], NOW_US)
    assert (found.visible.tolist(), sorted(found.hidden.tolist())) == ([5], [3, 4]), "the last ones are kept"


def test_a_hash_is_in_one_bucket_also_where_none_has_a_file() -> None:
    files, rnd = BucketFiles("latest/default/x"), random.Random(7)
    low, high = Bucket(0, 0).halves()
    for bucket in (low, high.halves()[1]):
        files.take(Action(add=AddedFile(bucket.path("7"), 10)))
    values = table([(f"k{n}", "a", "1", n, n, 0, n, False) for n in range(200)])
    found = files.of(hashes(values, ["_key"]))
    assert set(found) <= {low, *high.halves()}
    assert sorted(number for numbers in found.values() for number in numbers) == [*range(200)]
    assert all(
        bucket.first <= value < bucket.end
        for bucket, numbers in found.items()
        for value in hashes(values, ["_key"])[numbers].tolist()
    )
    with pytest.raises(TableError, match="which is none of the hub's files"):
        files.take(Action(add=AddedFile(f"part-{rnd.random()}.parquet", 10)))


def test_a_key_may_be_fields_of_payloads() -> None:
    key = Key(["payload.order.id", "_edge"])
    rows = table([(None, "a", "1", n, n, 0, n, False) for n in range(5)])
    payloads = ['{"order": {"id": 7}}', '{"order": {"id": "7"}}', '{"order": []}', "no JSON", None]
    rows = rows.append_column("payload", pa.array(payloads)).append_column("_by_order_id", pa.nulls(5, pa.string()))
    found = key.filled(rows)
    assert found.column("_by_order_id").to_pylist() == ["7", "7", None, None, None]
    assert key.is_complete(found).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "1 to 8 parts"),
        (["a"] * 9, "1 to 8 parts"),
        (["a", "A"], "differ in case"),
        (["_seq"], "'_seq' cannot"),
        (["payload"], "'payload' cannot"),
        (["payload.a", "payload.a"], "are the same"),
        (["a b"], "'a b' cannot"),
    ],
)
def test_what_cannot_be_a_key_is_said(parts: list[str], why: str) -> None:
    assert why in str(wrong_part(parts))
    with pytest.raises(ValueError, match=why):
        Key(parts)
