"""Versions and changes of shared tables that a reader gets, and the hints that leave files out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.http.test_sharing import BOTH, HOUR, TABLE, Reader, client, compared
from tests.cloud_hub.live import running_hub
from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest, opened
from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, table
from tests.cloud_hub.tables.test_erasure import PERSON, erased
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from weft.cloud_hub.reads.shares import Hints
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

TABLE_KEY = table_key("default", "telemetry")
FED = "/shares/default/schemas/latest/tables/telemetry"


@pytest.fixture
async def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def fed(store: ObjectStore, *, is_deleted: bool = False, since: int = START - 3 * HOUR) -> LogWriter:
    """Make a log, and its latest table with a feed: a version without rows, three with changes an hour apart.

    Args:
        is_deleted: a person's row is deleted in the last one.
        since: time of the first change.
    """
    log = await LogWriter.open(store, shards=1)
    for n, first in enumerate((0, 10, 20)):
        gone = [b""] * 5 if n == 2 and is_deleted else None
        await log.append(0, Run(LANE, first, 10), Run(OTHER, first, 5, key=PERSON, payloads=gone))
        await changed(store, log, since + n * HOUR)
    return log


async def changed(store: ObjectStore, log: LogWriter, at: int) -> None:
    await drain_latest(await new_latest(store, log, feed=True, clock=lambda: at))


def of_feed(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((row["_change_type"], row["_key"], row["_seq"]) for row in found.to_pylist())


async def test_changes_are_those_of_the_tables_feed(store: ObjectStore) -> None:
    await fed(store)
    newest = opened(store).version()
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(newest + 1):
            for last in range(first, newest + 1):
                path = f"{FED}/changes?startingVersion={first}&endingVersion={last}"
                status, headers, data = await reader.get(path, **BOTH)
                lines = [json.loads(line) for line in data.splitlines()]
                assert (status, headers["Delta-Table-Version"]) == (200, str(first)), lines
                assert all(first <= line["cdf"]["version"] <= last for line in lines[2:])
                files = [await reader.get(line["cdf"]["url"]) for line in lines[2:]]
                found = [row for _, _, data in files for row in of_feed(pq.read_table(io.BytesIO(data)))]
                wanted = opened(store).load_cdf(starting_version=first, ending_version=last).read_all()
                assert sorted(found) == of_feed(pa.table(wanted))
        assert (newest, len(found)) == (3, 4), "both rows of the last version, before and after"
        for path, words in (
            ("startingVersion=9", "are not versions of the table"),
            ("startingVersion=1&endingVersion=9", "are not versions of the table"),
            ("startingVersion=2&endingVersion=1", "are not versions of the table"),
        ):
            status, _, data = await reader.get(f"{FED}/changes?{path}")
            assert (status, words in json.loads(data)["message"]) == (400, True), path


@pytest.mark.parametrize("since", [START - 3 * HOUR, START])
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_changes_from_before_an_erasure_are_not_shared(store: ObjectStore, is_deleted: bool, since: int) -> None:
    """Those neither that the table was given after the command began, or by a clock that is ahead of the command's."""
    log = await fed(store, is_deleted=is_deleted, since=since)
    await erased(store, log, _key=PERSON.decode())
    version = opened(store).version()
    await log.append(0, Run(LANE, 30, 10))
    await changed(store, log, START + 4 * HOUR)
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(version + 1):
            status, _, data = await reader.get(f"{FED}/changes?startingVersion={first}&endingVersion={first}")
            assert (status, f"only those from {version + 1} on" in json.loads(data)["message"]) == (400, True), first
        status, _, data = await reader.get(f"{FED}/changes?startingVersion={version + 1}")
        assert (status, len(data.splitlines())) == (200, 3)


async def test_changes_whose_entries_are_gone_or_had_no_feed_are_refused(store: ObjectStore) -> None:
    log = await LogWriter.open(store, shards=1)
    for n in range(4):
        await log.append(0, Run(LANE, 10 * n, 10))
        await drain(await new_tierer(store, log))
        if n == 1:
            table(store).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    newest = table(store).version()
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(newest - 2):
            assert (await reader.get(f"{TABLE}/changes?startingVersion={first}"))[0] == 400, first
        status, _, data = await reader.get(f"{TABLE}/changes?startingVersion={newest - 1}")
        lines = [json.loads(line) for line in data.splitlines()]
        assert (status, [line["add"]["version"] for line in lines[2:]]) == (200, [newest - 1, newest])
        table(store).create_checkpoint()
        Path(store.location(f"{TABLE_KEY}/_delta_log/{newest - 2:020d}.json")[0]).unlink()
        status, _, data = await reader.get(f"{TABLE}/changes?startingVersion={newest - 1}")
        assert (status, "no longer has them all" in json.loads(data)["message"]) == (400, True)


FOLLOWER = """\
import json, sys
import delta_sharing
profile, table, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
for form in (False, True):
    rows = delta_sharing.load_table_changes_as_pandas(f"{profile}#{table}", first, use_delta_format=form)
    rows = rows[["_change_type", "_key", "_seq", "_commit_version"]]
    print("ROWS " + json.dumps(rows.values.tolist()))
"""


@pytest.mark.slow
async def test_pandas_has_the_changes(store: ObjectStore, tmp_path: Path) -> None:
    await fed(store, is_deleted=True)
    async with running_hub(store, shards=1, sharing=True) as hub:
        shown = {"shareCredentialsVersion": 1, "endpoint": f"{hub.url}/delta-sharing", "bearerToken": ""}
        (tmp_path / "client.share").write_text(json.dumps(shown))
        said = await client(["-c", FOLLOWER, "client.share", "default.latest.telemetry", "1"], tmp_path)
    found = [json.loads(line.removeprefix("ROWS ")) for line in said.splitlines() if line.startswith("ROWS ")]
    wanted = pa.table(opened(store).load_cdf(starting_version=1).read_all()).to_pylist()
    names = ("_change_type", "_key", "_seq", "_commit_version")
    in_both = sorted([row[name] for name in names] for row in wanted)
    assert [sorted(rows) for rows in found] == [in_both, in_both]


TYPES = {"n": "long", "s": "string", "d": "date", "f": "double", "t": "timestamp"}
OPS = {
    "equal": lambda a, b: a == b,
    "lessThan": lambda a, b: a < b,
    "lessThanOrEqual": lambda a, b: a <= b,
    "greaterThan": lambda a, b: a > b,
    "greaterThanOrEqual": lambda a, b: a >= b,
}
SIGNS = {"equal": "=", "lessThan": "<", "lessThanOrEqual": "<=", "greaterThan": ">", "greaterThanOrEqual": ">="}
_values = {"n": st.integers(-3, 3), "s": st.text("abé", max_size=2), "d": st.dates(date(2026, 1, 1), date(2026, 1, 4))}
_rows = st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in _values.items()}), max_size=4)
_leaf = st.sampled_from(sorted(_values)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from([*OPS, "isNull"]), _values[name], st.booleans())
)
_predicates = st.recursive(
    _leaf,
    lambda below: (
        st.tuples(st.sampled_from(["and", "or"]), st.lists(below, min_size=2, max_size=3))
        | st.tuples(st.just("not"), st.lists(below, min_size=1, max_size=1))
    ),
    max_leaves=6,
)


def holds(predicate: Any, row: Mapping[str, Any]) -> bool | None:
    """The outcome of a predicate for a row, in SQL's logic of three values."""
    if isinstance(predicate[1], list):
        op, below = predicate[0], [holds(each, row) for each in predicate[1]]
        if op == "not":
            return None if below[0] is None else not below[0]
        decisive = op == "or"
        return decisive if decisive in below else None if None in below else not decisive
    name, op, value, _ = predicate
    if op == "isNull":
        return row[name] is None
    return None if row[name] is None else bool(OPS[op](row[name], value))


def as_json(predicate: Any) -> dict[str, Any]:
    if isinstance(predicate[1], list):
        return {"op": predicate[0], "children": [as_json(each) for each in predicate[1]]}
    name, op, value, swapped = predicate
    kind = {"n": "int", "s": "string", "d": "date"}[name]
    if op == "isNull":
        return {"op": op, "children": [{"op": "column", "name": name, "valueType": kind}]}
    if not swapped:
        return compared(op, name, str(value), kind)
    other = {"lessThan": "greaterThan", "greaterThan": "lessThan"}
    other |= {"lessThanOrEqual": "greaterThanOrEqual", "greaterThanOrEqual": "lessThanOrEqual"}
    found = compared(other.get(op, op), name, str(value), kind)
    return found | {"children": found["children"][::-1]}


def statistics(found: list[dict[str, Any]]) -> str:
    known: dict[str, Any] = {"numRecords": len(found), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in _values:
        there = [row[name] for row in found if row[name] is not None]
        known["nullCount"][name] = len(found) - len(there)
        if there:
            shown = [each.isoformat() if isinstance(each, date) else each for each in (min(there), max(there))]
            known["minValues"][name], known["maxValues"][name] = shown
    return json.dumps(known)


@given(found=_rows, predicate=_predicates)
def test_no_hint_leaves_out_a_file_with_a_row_that_matches(found: list[dict[str, Any]], predicate: Any) -> None:
    matches = any(holds(predicate, row) is True for row in found)
    stats = statistics(found)
    assert Hints(json=json.dumps(as_json(predicate))).may_match(stats, TYPES) >= matches
    if not isinstance(predicate[1], list):
        name, op, value, swapped = predicate
        text = str(value) if name == "n" else f"'{value}'"
        sql = f"{name} IS NULL" if op == "isNull" else f"`{name}` {SIGNS[op]} {text}"
        if swapped and op == "equal":
            sql = f"{text} = {name}"
        assert Hints([sql]).may_match(stats, TYPES) >= matches


@pytest.mark.parametrize(
    "sql", ["n > 100", "n < -5", "100 < n", "n = 9", "s > 'z'", "d < '2025-01-01'", "n IS NULL", "n >= 9"]
)
def test_hints_that_are_understood_leave_files_out(sql: str) -> None:
    found = [{"n": 1, "s": "b", "d": date(2026, 1, 1)}, {"n": 3, "s": "c", "d": date(2026, 1, 2)}]
    assert not Hints([sql]).may_match(statistics(found), TYPES)
    assert Hints([sql]).may_match(None, TYPES)
    assert Hints([sql]).may_match(statistics(found), {}), "a column of another type, or none"


def test_more_predicates_than_are_held_against_files_leave_none_out() -> None:
    stats = statistics([{"n": 1, "s": "b", "d": date(2026, 1, 1)}])
    json_ = json.dumps({"op": "and", "children": [compared("greaterThan", "n", "100", "long")] * 10_000})
    assert not Hints(["n > 100"] * 20).may_match(stats, TYPES)
    for many in (Hints(["n > 100"] * 37_000), Hints(json=json_)):
        assert many.may_match(stats, TYPES)
        assert many.looks == 1


def test_constants_that_no_integer_column_has_leave_none_out() -> None:
    stats = statistics([{"n": 1, "s": "b", "d": date(2026, 1, 1)}])
    for digits, may in ((18, False), (4000, True)):
        below = compared("lessThan", "n", "-" + "9" * digits, "long")
        assert Hints(json=json.dumps(below)).may_match(stats, TYPES) == may


def test_days_that_a_writer_cut_to_those_it_knows_leave_no_file_out() -> None:
    bounds = {"minValues": {"d": "0001-01-01"}, "maxValues": {"d": "9999-12-31"}, "nullCount": {"d": 0}}
    stats = json.dumps({"numRecords": 2, **bounds})
    assert Hints(["d = '9999-12-31'", "d < '0001-01-01'", "d > '9999-12-31'"]).may_match(stats, TYPES)


@pytest.mark.parametrize("sql", ["f > 100", "t > '2030-01-01'", "n > 1.5", "n LIKE '9'", "nested.n > 100", "n > '9'"])
def test_hints_about_times_floats_and_what_is_not_understood_leave_none_out(sql: str) -> None:
    bounds = {"n": 1, "f": 1.0, "t": "2026-01-01T00:00:00.000Z"}
    stats = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {}})
    assert Hints([sql]).may_match(stats, TYPES)
