"""Tests of ``proofs/audit/audit.py``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.proofs.audit.stores import collect
from tests.support.processes import weft
from weft.cloud_hub.shard import lane_ends
from weft.output import Failed, Refused
from weft.proofs.audit.audit import audit
from weft.proofs.audit.counts import NameOfLog, SeqCounts, explained
from weft.proofs.audit.report import AuditReport
from weft.protocols.chunk_index import GapRange
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.cluster import ClusterUnusable
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableError


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def log(store: ObjectStore) -> LogWriter:
    """Two lanes in two shards, all in the table."""
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 10))
    await log.append(1, Run(OTHER, 0, 5))
    await log.append(0, Run(LANE, 10, 10))
    await drain(await new_tierer(store, log))
    return log


async def report(store: ObjectStore) -> AuditReport:
    return await audit(store, "default", "telemetry")


async def test_what_agrees(store: ObjectStore, log: LogWriter) -> None:
    found = await report(store)
    assert (found.agrees, found.problems) == (True, [])
    assert (found.total("records"), found.total("table_records"), found.total("waiting")) == (25, 25, 0)
    assert [(lane.edge, lane.log_id, lane.records) for lane in found.lanes] == [
        ("press-1", "0000000000000007", 20),
        ("press-2", "0000000000000008", 5),
    ]
    assert [(shard.shard, shard.log_end, shard.position) for shard in found.shards] == [(0, 20, 20), (1, 5, 5)]
    assert json.loads(msgspec.json.encode(found))["agrees"] is True


async def test_a_table_of_json_agrees_whatever_the_payloads_are(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 3, payloads=[b"{}", b"text", b"\xff"], kind=PayloadKind.JSON))
    await drain(await new_tierer(store, log))
    found = await report(store)
    assert (found.agrees, found.total("records"), found.total("table_records")) == (True, 3, 3)


async def test_rows_that_are_still_to_come_are_waiting_and_not_missing(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 20, 7, resent=True))
    found = await report(store)
    assert (found.agrees, found.total("waiting"), found.total("missing")) == (True, 7, 0)
    assert (found.total("resent"), found.total("records"), found.total("table_records")) == (7, 32, 25)


async def test_no_table_yet(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 3))
    found = await report(store)
    assert (found.agrees, found.table_version, found.total("waiting")) == (True, None, 3)


async def test_a_store_in_memory() -> None:
    store = open_store("memory://")
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 3))
    assert (await report(store)).total("waiting") == 3


async def test_gaps_and_holes_are_told_apart(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    gaps = [GapRange(5, 8, GapReason.BUDGET), GapRange(20, 21, 99)]
    await log.append(0, Run(LANE, 0, 5, gaps=gaps), Run(LANE, 10, 4))
    (lane,) = (await report(store)).lanes
    assert lane.gaps == {"budget": 3, "reason 99": 1}
    assert (lane.holes, lane.hole_ranges) == (8, [(8, 10), (14, 20)])


async def test_a_doubled_row_is_caught(store: ObjectStore, log: LogWriter) -> None:
    write_deltalake(table(store), rows(store).slice(3, 2), mode="append")
    found = await report(store)
    assert not found.agrees
    assert "press-1/0000000000000007: 2 records are in the table twice" in found.problems
    assert "shard 0: 2 offsets have a second row" in found.problems


async def test_a_missing_row_is_caught(store: ObjectStore, log: LogWriter) -> None:
    table(store).delete("_seq = 13 and _edge = 'press-1'")
    found = await report(store)
    assert not found.agrees
    assert "press-1/0000000000000007: 1 records are missing from the table" in found.problems
    assert "shard 0: 1 offsets below the table's position have no row" in found.problems
    assert [lane.missing for lane in found.lanes] == [1, 0]


async def test_a_row_that_no_log_holds_is_caught(store: ObjectStore, log: LogWriter) -> None:
    strange = rows(store).slice(0, 1)
    for name, value in (("_seq", 777), ("_offset", 900)):
        index = strange.schema.get_field_index(name)
        strange = strange.set_column(index, strange.schema.field(index), pa.array([value], pa.int64()))
    write_deltalake(table(store), strange, mode="append")
    found = await report(store)
    assert "press-1/0000000000000007: 1 records are in the table and not in the log" in found.problems
    assert "shard 0: 1 rows lie above the table's position" in found.problems


async def test_a_record_that_is_in_the_log_twice_is_caught(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 4))
    # Only a sequencer with a fault writes such a chunk; it would not pass ``ShardState.apply`` either.
    log.states[0].lanes.clear()
    await log.append(0, Run(LANE, 2, 4))
    found = await report(store)
    assert not found.agrees
    assert [(lane.records, lane.log_doubled) for lane in found.lanes] == [(6, 2)]


async def test_records_of_one_log_under_two_names_are_caught(store: ObjectStore, log: LogWriter) -> None:
    """A node that was renamed over its log sent again what it still had."""
    await log.append(1, Run(LANE._replace(edge="press-9"), 15, 10))
    found = await report(store)
    assert not found.agrees
    assert [(lane.edge, lane.named_twice) for lane in found.lanes] == [
        ("press-1", {"default/press-9": 5}),
        ("press-2", {}),
        ("press-9", {"default/press-1": 5}),
    ]
    assert "press-1/0000000000000007: 5 records of this log are also stored under the name default/press-9" in (
        found.problems
    )


async def test_records_of_one_log_under_two_tenants_are_caught(store: ObjectStore, log: LogWriter) -> None:
    await log.append(1, Run(LANE._replace(tenant="acme"), 0, 10))
    for tenant, other in (("default", "acme"), ("acme", "default")):
        found = await audit(store, tenant, "telemetry")
        assert not found.agrees
        assert found.lanes[0].named_twice == {f"{other}/press-1": 10}


async def test_rows_that_only_the_table_has_under_another_name_are_caught(store: ObjectStore, log: LogWriter) -> None:
    strange = rows(store).slice(3, 2)
    for name, values in (("_edge", ["press-9"] * 2), ("_offset", [900, 901])):
        index = strange.schema.get_field_index(name)
        strange = strange.set_column(index, strange.schema.field(index), pa.array(values, strange.schema.types[index]))
    write_deltalake(table(store), strange, mode="append")
    found = await report(store)
    assert [lane.named_twice for lane in found.lanes if lane.edge == "press-9"] == [{"default/press-1": 2}]


async def test_a_lane_that_ended_without_a_last_word_is_named(store: ObjectStore, log: LogWriter) -> None:
    shard = ShardLog(store, log.cluster, 0)

    async def plan(state: ShardState) -> lane_ends.Ending:
        return await lane_ends.retire(state, [LANE], "disk lost")

    await lane_ends.write_ending(shard, plan, wall_clock=lambda: START, random_bits=Random(7).getrandbits)
    found = await report(store)
    [gap] = found.open_gaps
    assert (gap.edge, gap.log_id, gap.first, gap.since) == ("press-1", "0000000000000007", 20, None)
    assert found.agrees, "log and table say the same of what is there"


async def test_a_log_that_was_renamed_rightly_is_good(store: ObjectStore, log: LogWriter) -> None:
    """The new name continues where the old one ended, and says whose the numbers before are."""
    gaps = [GapRange(0, 20, GapReason.RENAMED)]
    await log.append(1, Run(LANE._replace(edge="press-9"), 20, 10, gaps=gaps))
    # The same numbers of another stream, or of another log, are other records.
    await log.append(0, Run(LANE._replace(edge="press-9", stream="alarms"), 0, 10))
    await log.append(0, Run(LANE._replace(edge="press-8", log_id=9), 0, 10))
    found = await report(store)
    assert (found.agrees, found.problems) == (True, [])
    assert [(lane.gaps, lane.holes) for lane in found.lanes if lane.edge == "press-9"] == [({"renamed": 20}, 0)]


async def test_numbers_before_a_rename_that_no_name_has_are_holes(store: ObjectStore, log: LogWriter) -> None:
    """The hub was restored to a time before the rename, or a reason for them never reached it."""
    gaps = [GapRange(0, 30, GapReason.RENAMED)]
    await log.append(0, Run(LANE, 22, 1, gaps=[GapRange(20, 22, GapReason.EXPIRED)]))
    await log.append(1, Run(LANE._replace(edge="press-9"), 30, 10, gaps=gaps))
    await log.append(1, Run(LANE._replace(edge="press-3", log_id=9), 4, 1, gaps=[GapRange(0, 4, GapReason.RENAMED)]))
    found = {lane.edge: lane for lane in (await report(store)).lanes}
    assert (found["press-9"].gaps, found["press-9"].hole_ranges) == ({"renamed": 23}, [(23, 30)])
    assert (found["press-3"].gaps, found["press-3"].hole_ranges) == ({}, [(0, 4)])


@pytest.mark.parametrize("is_collected", [False, True])
@pytest.mark.parametrize(
    ("first", "gaps", "word"),
    [
        pytest.param(20, [], None, id="numbers that the hub lost"),
        pytest.param(20, [], "press-9", id="and a last word with the new name"),
        pytest.param(20, [GapRange(0, 20, GapReason.RENAMED)], "press-9", id="and a rename of its own"),
        pytest.param(29, [GapRange(20, 29, GapReason.EXPIRED)], "press-9", id="and a reason for their loss"),
    ],
)
async def test_no_other_edge_explains_what_the_hub_lost_of_a_renamed_one(
    first: int, gaps: list[GapRange], word: str | None, is_collected: bool, log: LogWriter
) -> None:
    """An edge's token takes any id for its log, and says what it likes of the numbers under its own name."""
    renamed = [GapRange(0, 30, GapReason.RENAMED)]
    await log.append(1, Run(LANE._replace(edge="press-9"), 30, 10, gaps=renamed))
    await log.append(1, Run(LANE._replace(edge="forger"), first, 30 - first, gaps=gaps, renamed_to=word))
    if is_collected:
        await drain(await new_tierer(log.store, log))
        await log.snapshot(1)
        await collect(log, 2, shard=1)
    found = {lane.edge: lane for lane in (await report(log.store)).lanes}["press-9"]
    assert RangeSet(found.hole_ranges).covers(20, 30)


async def test_a_log_that_was_renamed_twice_is_good(store: ObjectStore, log: LogWriter) -> None:
    """Each name has its own numbers, and names the next one."""
    await log.append(0, Run(LANE, 20, 5, renamed_to="press-9"))
    renamed = [GapRange(0, 25, GapReason.RENAMED)]
    await log.append(1, Run(LANE._replace(edge="press-9"), 25, 5, gaps=renamed, renamed_to="press-1"))
    await log.append(0, Run(LANE, 30, 5, gaps=[GapRange(25, 30, GapReason.RENAMED)], renamed_to="press-8"))
    await log.append(1, Run(LANE._replace(edge="press-8"), 35, 5, gaps=[GapRange(0, 35, GapReason.RENAMED)]))
    found = await report(store)
    assert (found.agrees, found.total("holes")) == (True, 0)
    assert [(lane.edge, lane.gaps) for lane in found.lanes if lane.log_id == f"{LANE.log_id:016x}"] == [
        ("press-1", {"renamed": 5}),
        ("press-8", {"renamed": 35}),
        ("press-9", {"renamed": 25}),
    ]


NAMES = ["one", "two", "three"]
STRETCH = 4
"""Numbers that a log takes in under a name, until it is renamed."""
SOME = st.lists(st.integers(0, 5 * STRETCH), max_size=2 * STRETCH)


def singles(numbers: Iterable[int]) -> RangeSet:
    return RangeSet((number, number + 1) for number in sorted(numbers))


@st.composite
def forgers(draw: st.DrawFn) -> NameOfLog:
    words = draw(st.dictionaries(st.sampled_from([*NAMES, "forger 0", "forger 1"]), st.integers(0, 5 * STRETCH)))
    return NameOfLog(singles(draw(SOME)), singles(draw(SOME)), singles(draw(SOME)), words, is_in_log=True)


@given(st.data())
def test_only_the_names_that_a_log_had_explain_its_numbers(data: st.DataObject) -> None:
    """A hub that lost some of what a log's names sent, and edges that claim to be names of the log, too."""
    chain = [NAMES[0]]
    for _ in range(data.draw(st.integers(1, 4))):
        chain.append(data.draw(st.sampled_from([name for name in NAMES if name != chain[-1]])))
    is_whole = data.draw(st.booleans())
    names: dict[str, NameOfLog] = {}
    heard: dict[str, int] = {}
    for at, name in enumerate(chain):
        begin, end = at * STRETCH, (at + 1) * STRETCH
        of_log = names.setdefault(name, NameOfLog())
        there = [is_whole or data.draw(st.booleans()) for _ in range(STRETCH + 2)]
        for number, is_there in zip(range(begin, end), there, strict=False):
            if is_there:
                (of_log.lost if data.draw(st.booleans()) else of_log.records).add(number, number + 1)
        if at and there[-1]:
            others = [earlier for earlier in range(at) if chain[earlier] != name]
            of_log.before.update((earlier * STRETCH, (earlier + 1) * STRETCH) for earlier in others)
        if at + 1 < len(chain) and there[-2]:
            of_log.add_word(chain[at + 1], end)
        if any(there):
            of_log.is_in_log, heard[name] = True, end
    truth = RangeSet(each for of_log in names.values() for each in of_log.accounted())
    if is_whole:
        assert all(not of_log.before.minus(explained(names, name)) for name, of_log in names.items())
    names.update({f"forger {number}": data.draw(forgers()) for number in range(data.draw(st.integers(0, 2)))})
    # Nothing speaks for a former name of which the hub has heard nothing, or nothing since it was the name again.
    starts = [(at * STRETCH, name) for at, name in enumerate(chain)]
    known = RangeSet((begin, begin + STRETCH) for begin, name in starts if begin < heard.get(name, 0))
    for name in chain:
        lost = RangeSet(part for each in names[name].before for part in known.within(*each)).minus(truth)
        assert lost.minus(explained(names, name)) == lost, (chain, name)


async def test_damage_is_named_and_the_rest_still_counted(store: ObjectStore, log: LogWriter, tmp_path: Path) -> None:
    chunk = tmp_path / f"store/shard-0/chunk/{1:020d}"
    data = bytearray(chunk.read_bytes())
    data[150] ^= 1
    chunk.write_bytes(data)
    found = await report(store)
    assert not found.agrees
    assert "does not match its checksum" in found.damage[0]
    assert found.total("records") == 15


async def test_rows_in_any_order_count_the_same(store: ObjectStore, log: LogWriter) -> None:
    """Another engine may have rewritten the table, sorted by something else."""
    shuffled = rows(store).take(np.random.default_rng(1).permutation(25))
    version = table(store).version()
    uri, _ = store.location("tables/default/telemetry")
    write_deltalake(uri, shuffled, mode="overwrite")
    assert DeltaTable(uri).version() == version + 1
    assert (await report(store)).agrees


async def test_a_store_without_a_hub(store: ObjectStore) -> None:
    with pytest.raises(ClusterUnusable, match="holds no hub"):
        await report(store)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=60), st.integers(1, 60))
def test_seq_counts_count_like_a_counter(numbers: list[tuple[int, int]], batch: int) -> None:
    counts: SeqCounts[str] = SeqCounts()
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        codes, values = (np.array([pair[i] for pair in part]) for i in (0, 1))
        counts.add_rows(["a", "b", "c"], codes, values.astype(np.uint64))
    for code, key in enumerate("abc"):
        mine = [value for other, value in numbers if other == code]
        assert {n for first, end in counts.held[key] for n in range(first, end)} == set(mine)
        assert counts.doubled[key] == len(mine) - len(set(mine))


@pytest.mark.slow
async def test_flipped_bytes_in_a_table_are_caught_or_harmless(store: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 500, payload_bytes=60))
    await drain(await new_tierer(store, log))
    (file,) = (tmp_path / "store/tables/default/telemetry").glob("*.parquet")
    sound, before = file.read_bytes(), rows(store).column("payload").to_pylist()
    assert (await audit(store, "default", "telemetry", payloads=True)).problems == []
    random = Random(5)
    caught = 0
    for position in random.sample(range(len(sound)), 60):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << random.randrange(8)
        file.write_bytes(damaged)
        if (await audit(store, "default", "telemetry", payloads=True)).agrees:
            assert rows(store).column("payload").to_pylist() == before
        else:
            caught += 1
    assert caught > 30


async def test_a_payload_that_was_rewritten_is_caught_when_payloads_are_compared(
    store: ObjectStore, log: LogWriter
) -> None:
    found = rows(store).to_pylist()
    found[7]["payload"] = b"something else"
    overwrite(store, pa.Table.from_pylist(found, rows(store).schema))
    assert (await report(store)).agrees
    problems = (await audit(store, "default", "telemetry", payloads=True)).problems
    assert problems == ["shard 0: payloads of offsets 0 to 1023 differ between log and table"]


async def test_rows_with_each_others_numbers_are_caught(store: ObjectStore, log: LogWriter) -> None:
    found = rows(store).to_pylist()
    one, two = [row for row in found if row["_log"] == found[0]["_log"]][:2]
    one["_seq"], two["_seq"] = two["_seq"], one["_seq"]
    overwrite(store, pa.Table.from_pylist(found, rows(store).schema))
    differing = "shard 0: _time or _seq of rows with offsets 0 to 65535 differ between log and table"
    assert (await report(store)).problems == [differing]
    problems = (await audit(store, "default", "telemetry", payloads=True)).problems
    assert problems == [differing, "shard 0: payloads of offsets 0 to 1023 differ between log and table"]


async def test_times_that_the_hub_corrected_agree(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 3), Run(OTHER, 0, 5, boot_offset=START + 7))
    await drain(await new_tierer(store, log))
    assert "corrected" in rows(store).column("_clock").to_pylist()
    assert (await report(store)).problems == []


async def test_a_wrong_time_is_caught(store: ObjectStore, log: LogWriter) -> None:
    """Also of a microsecond, and where two rows have each other's."""
    sound = rows(store).to_pylist()
    differing = "shard 0: _time or _seq of rows with offsets 0 to 65535 differ between log and table"
    late = [dict(row) for row in sound]
    late[4]["_time"] += timedelta(microseconds=1)
    swapped = [dict(row) for row in sound]
    swapped[4]["_time"], swapped[9]["_time"] = sound[9]["_time"], sound[4]["_time"]
    assert sound[4]["_shard"] == sound[9]["_shard"] == 0
    assert sound[4]["_time"] != sound[9]["_time"]
    for found in (late, swapped):
        overwrite(store, pa.Table.from_pylist(found, rows(store).schema))
        assert (await report(store)).problems == [differing]
    overwrite(store, pa.Table.from_pylist(sound, rows(store).schema))
    assert (await report(store)).agrees


def overwrite(store: ObjectStore, data: pa.Table) -> None:
    """Replace the rows of the table; its positions stay."""
    uri, _ = store.location("tables/default/telemetry")
    write_deltalake(uri, data, mode="overwrite")


# --- The audit tells rows that were deleted as declared from rows that are lost


KEY = ("default", "telemetry")
Declare = Callable[..., str]
in_thread = asyncio.to_thread


@pytest.fixture
def deletions_store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "hub.yaml").write_text(f"store: {tmp_path / 'store'}\n")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def deletions_log(deletions_store: ObjectStore) -> LogWriter:
    log = await LogWriter.open(deletions_store)
    await log.append(0, Run(LANE, 0, 10))
    await log.append(1, Run(OTHER, 0, 5))
    await log.append(0, Run(LANE, 10, 10))
    await drain(await new_tierer(deletions_store, log))
    return log


def counts(found: AuditReport) -> tuple[int, int]:
    """Deleted and missing."""
    assert sum(shard.deleted for shard in found.shards) == found.total("deleted")
    assert sum(shard.missing for shard in found.shards) == found.total("missing")
    return found.total("deleted"), found.total("missing")


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    def run(*options: str) -> str:
        result = weft("hub", "declare-deletion", tmp_path / "hub.yaml", "telemetry", "--reason", "a request", *options)
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


async def test_what_was_declared_before_is_no_loss_and_all_else_is(
    deletions_store: ObjectStore, deletions_log: LogWriter, declare: Declare
) -> None:
    table(deletions_store).delete("_edge = 'press-1' and _seq = 12")  # lost before: no declaration covers it
    said = await in_thread(declare, "--edge", "press-1", "--from", "10", "--to", "16", "--yes")
    assert said.startswith("declared 5 rows of default/telemetry (edge press-1, first 10, end 16) as deleted")
    assert counts(await audit(deletions_store, *KEY)) == (0, 1)  # declared, and still there: neither deleted nor lost
    table(deletions_store).delete("_edge = 'press-1' and _seq in (3, 13, 14)")
    found = await audit(deletions_store, *KEY, payloads=True)
    assert counts(found) == (2, 2)
    assert "press-1/0000000000000007: 2 records are missing from the table" in found.problems
    # Records that come later are not covered, though the choice would take them in.
    await in_thread(declare, "--until", "2100-01-01", "--yes")
    await deletions_log.append(0, Run(LANE, 20, 4))
    await drain(await new_tierer(deletions_store, deletions_log))
    table(deletions_store).delete("_edge = 'press-1' and _seq = 21")
    assert counts(await audit(deletions_store, *KEY)) == (2, 3)


@pytest.mark.slow
async def test_a_deletion_that_has_happened_is_declared_by_the_version_that_had_the_rows(
    deletions_store: ObjectStore, deletions_log: LogWriter, declare: Declare
) -> None:
    version = table(deletions_store).version()
    table(deletions_store).delete("_edge = 'press-2' and _seq < 3")
    with pytest.raises(Failed, match="has no such rows: edge press-2, end 3"):
        await in_thread(declare, "--edge", "press-2", "--to", "3", "--yes")
    assert counts(await audit(deletions_store, *KEY)) == (0, 3)
    await in_thread(declare, "--edge", "press-2", "--to", "3", "--version", str(version), "--yes")
    found = await audit(deletions_store, *KEY, payloads=True)
    assert (counts(found), found.problems) == ((3, 0), [])
    assert deletions_log.cluster is not None


async def test_what_is_no_declaration_is_refused_in_a_sentence(
    deletions_store: ObjectStore, deletions_log: LogWriter, declare: Declare
) -> None:
    with pytest.raises(Refused, match="name the rows"):
        await in_thread(declare, "--yes")
    with pytest.raises(Refused, match=r"nothing was declared: there is no terminal to ask on\. Add --yes"):
        await in_thread(declare, "--edge", "press-1")
    await deletions_store.create("deletions/default/telemetry/" + "0" * 20, b'{"format": 2}')
    with pytest.raises(TableError, match="written by a later release of Weft"):
        await audit(deletions_store, *KEY)
    assert deletions_log.cluster is not None


# --- Audits of a log whose older chunks the collector has really deleted: the table stands for them


async def collected_collect(log: LogWriter, watermark: int, shard: int = 0) -> None:
    """Publish a watermark and delete what is below it."""
    shard_log = ShardLog(log.store, log.cluster, shard)
    manifest, etag = await shard_log.manifest()
    assert await shard_log.swap_manifest(changed(manifest, watermark=watermark), etag)
    for n in range(watermark):
        await log.store.delete(chunk_key(shard, n))


@pytest.fixture
async def collected_log(store: ObjectStore) -> LogWriter:
    """Two lanes, six chunks in the table, of which three are gone; and one chunk that is not in the table."""
    log = await LogWriter.open(store)
    for n in range(5):
        gaps = [GapRange(50, 52, GapReason.BUDGET)] if n == 1 else ()
        await log.append(0, Run(LANE, 10 * n, 10, gaps=gaps), Run(OTHER, 5 * n, 5))
    await log.append(1, Run(LANE._replace(edge="press-9", log_id=9), 0, 4))
    await drain(await new_tierer(store, log))
    await log.snapshot(0)
    await log.append(0, Run(LANE, 52, 8))
    await collected_collect(log, 3)
    return log


async def test_collected_records_are_in_the_table(store: ObjectStore, collected_log: LogWriter) -> None:
    found = await audit(store, "default", "telemetry", payloads=True)
    assert (found.problems, found.damage, found.agrees) == ([], [], True)
    lane = next(lane for lane in found.lanes if lane.edge == LANE.edge)
    assert (lane.records, lane.table_records, lane.waiting, lane.holes) == (58, 50, 8, 0)
    assert lane.gaps == {"budget": 2}
    assert [(shard.chunks, shard.log_end, shard.position) for shard in found.shards] == [(3, 83, 75), (1, 4, 4)]


async def test_a_stream_all_of_whose_chunks_were_collected(store: ObjectStore, collected_log: LogWriter) -> None:
    await collected_log.append(0, Run(LANE._replace(stream="alarms"), 0, 3))
    await drain(await new_tierer(store, collected_log))
    await collected_log.snapshot(0)
    await collected_collect(collected_log, 6)
    found = await audit(store, "default", "telemetry")
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 87, 0)


async def test_a_collected_record_without_a_row_is_missing(store: ObjectStore, collected_log: LogWriter) -> None:
    table(store).delete("_seq = 3 and _edge = 'press-1'")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 1 records are missing from the table" in found.problems
    assert "shard 0: 1 offsets below the table's position have no row" in found.problems


async def test_a_collected_record_with_two_rows_is_doubled(store: ObjectStore, collected_log: LogWriter) -> None:
    write_deltalake(table(store), rows(store).slice(3, 2), mode="append")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 2 records are in the table twice" in found.problems
    assert not any("log twice" in problem for problem in found.problems)


async def test_a_collected_record_that_came_again_is_doubled_in_the_log(
    store: ObjectStore, collected_log: LogWriter
) -> None:
    collected_log.states[0].lanes.clear()  # a sequencer with a fault
    await collected_log.append(0, Run(LANE, 5, 2))
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 2 records are in the log twice" in found.problems


async def test_collected_chunks_without_a_table_are_a_problem(store: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(store)
    for n in range(3):
        await log.append(0, Run(LANE, 10 * n, 10))
    await log.snapshot(0)
    await collected_collect(log, 2)
    found = await audit(store, "default", "telemetry")
    assert found.damage == ["shard 0: chunks with offsets up to 20 were deleted, and the table ends at 0"]


async def test_rows_above_the_chunks_that_are_left_are_not_the_logs(
    store: ObjectStore, collected_log: LogWriter
) -> None:
    strange = rows(store).slice(0, 1)
    for name, value in (("_seq", 777), ("_offset", 900)):
        index = strange.schema.get_field_index(name)
        strange = strange.set_column(index, strange.schema.field(index), pa.array([value], pa.int64()))
    write_deltalake(table(store), strange, mode="append")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 1 records are in the table and not in the log" in found.problems


async def test_the_collector_passes_an_audit_that_reads(
    store: ObjectStore, collected_log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks that are in the table are deleted between the index of the first and its records."""
    section = ShardLog.section
    collected: list[int] = []

    async def slow(self: ShardLog, n: int, wanted: object) -> bytes:
        if not collected:
            collected.append(n)
            await collected_collect(collected_log, 5)
        return await section(self, n, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardLog, "section", slow)
    found = await audit(store, "default", "telemetry", payloads=True)
    assert collected == [3]
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 87, 8)


async def test_a_table_that_is_older_than_what_was_collected_is_read_again(
    store: ObjectStore, collected_log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ShardLog.load_snapshot
    ran: list[bool] = []

    async def slow(self: ShardLog, *only: Any) -> object:
        if not ran:
            ran.append(True)
            await drain(await new_tierer(store, collected_log))
            await collected_log.append(0, Run(LANE, 60, 1))
            await collected_log.snapshot(0)
            await collected_collect(collected_log, 6)
            await self.manifest()
        return await load(self, *only)

    monkeypatch.setattr(ShardLog, "load_snapshot", slow)
    found = await audit(store, "default", "telemetry")
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 88, 1)
