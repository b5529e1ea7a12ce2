"""Traces over a real store: tail, table, collected chunks, and streams that pipelines made of others."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, LogWriter, Run
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.proofs.audit.stores import collect
from weft.proofs.trace import LineageStep, TraceError, Tracer, Used, forward, parse_record, parse_used, used_by
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, HeaderPairs
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.message_headers import LINEAGE, SOURCE
from weft.protocols.shard.placement import shard_of
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore, open_store

TOPICS = ["plant/{line}/{machine}/telemetry"]
LOG = "0000000000000007"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def log(store: ObjectStore) -> LogWriter:
    """Records of two machines in turn, in chunks of ten: 0 to 59 in the table, 60 to 79 not yet."""
    log = await LogWriter.open(store)
    await machines(log, range(6))
    await drain(await new_tierer(store, log))
    await machines(log, range(6, 8))
    return log


async def machines(log: LogWriter, chunks: range) -> None:
    for n in chunks:
        runs = [
            Run(LANE, 10 * n + i, 1, key=f"plant/a/m{i % 2}/telemetry".encode(), topics=TOPICS if i == 0 else None)
            for i in range(10)
        ]
        await log.append(0, *runs, Run(OTHER, 10 * n, 10))


async def tracer(store: ObjectStore, *streams: str, records_max: int = 1000) -> Tracer:
    return Tracer(store, await open_cluster(store, None), "default", streams, records_max)


async def step(
    store: ObjectStore, used: Used, row: dict[str, object] | None = None, *, stream: str = "", **options: int
) -> LineageStep:
    streams = [stream] if stream else []
    (found,) = (await (await tracer(store, *streams, **options)).trace(row or {}, [used])).made_of
    return found


def numbers(found: LineageStep) -> list[int]:
    return [record.seq for record in found.records]


async def test_records_of_table_and_tail(store: ObjectStore, log: LogWriter) -> None:
    found = await step(store, parse_record(f"press-1/{LOG}/55-64"))
    assert numbers(found) == [*range(55, 65)]
    assert (found.stream, found.is_exact, found.more, found.narrowed_by) == ("telemetry", True, False, [])
    assert [record.payload for record in found.records[:2]] == ["press-1/7/55", "press-1/7/56"]
    assert found.records[9].key == "plant/a/m0/telemetry"


async def test_only_files_and_chunks_that_may_hold_them_are_read(store: ObjectStore, log: LogWriter) -> None:
    one = await tracer(store)
    await one.trace({}, [parse_record(f"press-1/{LOG}/12-14")])
    assert (one.looked.files, one.looked.indexes, one.looked.sections) == (1, 0, 0)
    other = await tracer(store)
    await other.trace({}, [parse_record(f"press-1/{LOG}/72")])
    assert (other.looked.files, other.looked.sections) == (0, 1)


async def test_a_range_with_other_records_is_narrowed_by_what_the_row_says(store: ObjectStore, log: LogWriter) -> None:
    window = {"start": f"{moment(4)}", "end": f"{moment(70)}"}
    row = {"machine": "m1", "mean": 3.5, "line": "a", "window": window}
    found = await step(store, Used("press-1", LOG, 5, 69, 33), row)
    assert numbers(found) == [*range(5, 70, 2)]
    assert (found.is_exact, found.narrowed_by) == (True, ["machine", "line", "window"])
    whole = await step(store, Used("press-1", LOG, 5, 69, 33))
    assert (len(whole.records), whole.is_exact, whole.narrowed_by) == (65, False, [])
    # A column of the same name with another meaning leaves nothing: all of the range is shown then.
    other = await step(store, Used("press-1", LOG, 5, 69, 33), {"machine": "Machine One"})
    assert (len(other.records), other.is_exact, other.narrowed_by) == (65, False, [])


def moment(seq: int) -> str:
    return f"2023-11-14T22:13:{20 + seq}+00:00" if seq < 40 else f"2023-11-14T22:14:{seq - 40:02}"


async def test_records_of_chunks_that_were_deleted_come_from_the_table(store: ObjectStore, log: LogWriter) -> None:
    await log.snapshot(0)
    await collect(log, 5)
    assert numbers(await step(store, parse_record(f"press-1/{LOG}/0-79"))) == [*range(80)]


async def test_bounds_and_what_is_not_there(store: ObjectStore, log: LogWriter) -> None:
    found = await step(store, parse_record(f"press-1/{LOG}/0-79"), records_max=3)
    assert (numbers(found), found.more, found.is_exact) == ([0, 1, 2], True, False)
    beyond = await step(store, parse_record(f"press-1/{LOG}/78-85"))
    assert (numbers(beyond), beyond.is_exact) == ([78, 79], False)
    with pytest.raises(TraceError, match="knows no lane press-9/0000000000000007"):
        await step(store, parse_record("press-9/7/1"))
    await log.append(0, Run(LANE._replace(stream="alarms"), 0, 3))
    with pytest.raises(TraceError, match="in the streams alarms, telemetry; name the one"):
        await step(store, parse_record("press-1/7/1"))
    (named,) = (await (await tracer(store, "alarms")).trace({}, [parse_record("press-1/7/1")])).made_of
    assert named.stream == "alarms"
    with pytest.raises(TraceError, match="is not in heat but in alarms, telemetry"):
        await (await tracer(store, "heat")).trace({}, [parse_record("press-1/7/1")])


async def test_a_record_that_a_pipeline_made_leads_to_those_of_devices(store: ObjectStore) -> None:
    devices = await LogWriter.open(store)
    await machines(devices, range(2))
    lineage = [{"edge": "press-1", "log": LOG, "first": 3, "last": 7, "count": 3}]
    await alert(devices, lineage)
    found = await step(store, parse_record("alerts-of-spark/9/0"))
    (record,) = found.records
    assert (found.stream, record.payload) == ("alerts", '{"machine":"m1","heat":99}')
    (behind,) = record.made_of
    assert (behind.stream, behind.is_exact, behind.narrowed_by) == ("telemetry", True, ["machine"])
    assert numbers(behind) == [3, 5, 7]


async def test_a_row_of_an_edge_window_leads_to_its_messages(store: ObjectStore) -> None:
    """And a record that does not say what it was made of says that, as does one of a stream that stays on its node."""
    devices = await LogWriter.open(store)
    await machines(devices, range(2))
    window = b'{"machine":"m1","window_start":"2001-01-01T00:00:00Z","window_end":"2001-01-01T00:01:00Z"}'
    await made(devices, 0, b"a/m1", window, "telemetry 3-7/3")
    await made(devices, 1, b"plant/a/m0/telemetry", b"{}", "telemetry 0-8/5, heat 4")
    await made(devices, 2, b"x", b"{}", None)
    by_fields, by_key, unknown = (await step(store, parse_record(f"press-1/{LOG}/0-2"), stream="minutes")).records
    (behind,) = by_fields.made_of
    assert (numbers(behind), behind.is_exact, behind.narrowed_by) == ([3, 5, 7], True, ["machine"])
    behind, kept = by_key.made_of
    assert (numbers(behind), behind.is_exact, behind.narrowed_by) == ([0, 2, 4, 6, 8], True, ["_key"])
    assert (kept.stream, kept.records, kept.is_exact) == ("heat", [], False)
    assert "has nothing of stream heat of lane press-1" in kept.trouble
    assert [each.is_unknown for each in (by_fields, by_key, unknown)] == [False, False, True]


async def test_a_message_leads_to_the_rows_that_were_made_of_it(store: ObjectStore) -> None:
    devices = await LogWriter.open(store)
    await machines(devices, range(2))
    await made(devices, 0, b"a/m1", b'{"machine":"m1"}', "telemetry 1-7/4")
    await made(devices, 1, b"a/m0", b'{"machine":"m0"}', "telemetry 0-8/5")
    await made(devices, 2, b"plant/a/m0/telemetry", b"{}", "telemetry 4-6/2")
    await made(devices, 3, b"all", b"{}", "heat 1-3, telemetry 0-9")
    await made(devices, 4, b"all", b"{}", "telemetry 6-9")
    await made(devices, 0, b"all", b"{}", "minutes 3-4", stream="hours")
    await made(devices, 1, b"all", b"{}", "minutes 4-5", stream="hours")
    found = await forward(await tracer(store, "telemetry"), parse_record("press-1/7/5"), timedelta(days=1))
    assert [record.seq for record in found.messages] == [5]
    assert [(each.stream, each.record.seq, each.of, each.is_certain) for each in found.made] == [
        ("minutes", 0, "telemetry", False),
        ("minutes", 3, "telemetry", True),
        ("hours", 0, "minutes", True),
    ]
    far = await forward(await tracer(store, "telemetry"), parse_record("press-1/7/5"), timedelta(seconds=1))
    assert (len(far.messages), far.made) == (1, [])
    few = await forward(await tracer(store, "telemetry", records_max=2), parse_record("press-1/7/5"), timedelta(days=1))
    assert (len(few.made), few.more) == (2, True)


async def made(
    log: LogWriter, seq: int, key: bytes, payload: bytes, source: str | None, *, stream: str = "minutes"
) -> None:
    """A record of a derived stream, as an edge function writes it."""
    headers: dict[int, HeaderPairs] = {} if source is None else {0: ((SOURCE, source),)}
    columns = batch.columns_from_lists(struct.pack("<q", START + 9 * SECOND), [key], [payload], headers)
    data = batch.encode(1, seq, columns, ClockReading(1, 2, ClockState.SYNCED), origin=3)

    class Made(Run):
        def encode(self) -> bytes:
            return data

    origin = Origin(3, OriginKind.FUNCTION, "minutes", "3f1c9a70", b"")
    await log.append(0, Made(LANE._replace(stream=stream), seq, 1, origin=origin))


async def alert(log: LogWriter, lineage: list[dict[str, object]]) -> None:
    """A record of another stream, as a pipeline writes it."""
    headers: HeaderPairs = ((LINEAGE, msgspec.json.encode(lineage).decode()),)
    columns = batch.columns_from_lists(
        struct.pack("<q", START + 9 * SECOND), [b"alerts/m1"], [b'{"machine":"m1","heat":99}'], {0: headers}
    )
    data = batch.encode(1, 0, columns, ClockReading(1, 2, ClockState.SYNCED))
    lane = LANE._replace(edge="alerts-of-spark", log_id=9, stream="alerts")

    class Made(Run):
        def encode(self) -> bytes:
            return data

    await log.append(shard_of("default", lane.edge, log.cluster.shards), Made(lane, 0, 1))


# --- Lineage as people and programs write it, and what is said of what is none


def test_what_a_row_says() -> None:
    text = '[{"edge": "press-1", "log": "2a", "first": 3, "last": 9, "count": 2}]'
    used = Used("press-1", "000000000000002a", 3, 9, 2)
    assert parse_used(text) == parse_used(text[1:-1]) == [used]
    assert used.numbers == 7
    assert used_by({"machine": "m1", "_from": [{"edge": "press-1", "log": "2a", "first": 3, "last": 9, "count": 2}]})
    assert used_by({"_edge": "press-1", "_log": "2a", "_seq": 5}) == [Used("press-1", "000000000000002a", 5, 5, 1)]
    assert parse_record("press-1/2a/5-7") == Used("press-1", "000000000000002a", 5, 7, 3)
    assert used_by({"_from": []}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the value of a column _from"),
        ("7", "expected the value of a column _from"),
        ('[{"edge": "a"}]', "missing required field `log`"),
        ('{"edge": "A!", "log": "1", "first": 0, "last": 0, "count": 1}', "edge: expected lower-case letters"),
        ('{"edge": "a", "log": "xyz", "first": 0, "last": 0, "count": 1}', "hexadecimal digits; got 'xyz'"),
        ('{"edge": "a", "log": "' + "f" * 17 + '", "first": 0, "last": 0, "count": 1}', "hexadecimal digits"),
        ('{"edge": "a", "log": "1", "first": 5, "last": 4, "count": 1}', "first 5, last 4"),
        ('{"edge": "a", "log": "1", "first": -1, "last": 4, "count": 1}', "first -1"),
        ('{"edge": "a", "log": "1", "first": 0, "last": 4, "count": 0}', "count 0"),
    ],
)
def test_what_is_no_lineage(text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        parse_used(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["press-1", "press-1/1", "press-1/1/x", "press-1/1/9-3", "Press/1/1", "press-1/-1/1"])
def test_what_is_no_record(text: str) -> None:
    with pytest.raises(TraceError):
        parse_record(text)


def test_a_row_without_lineage_says_its_columns() -> None:
    with pytest.raises(TraceError, match=r"no lineage: .* Its columns are machine, n"):
        used_by({"n": 1, "machine": "m1"})
