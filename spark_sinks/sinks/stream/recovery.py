"""The beginning of a source shard at a task: its lane is claimed, and its last row is found, in whichever lane it is.

A query that was never spread has one lane for a source shard, the first one. From the first spread on the first lane
is sealed, and the shard's rows continue in the lane of the spread: one for each edge that a spread chooses for it. A
task claims its own lane, and only then seals the first lane and takes over all others that exist, before it looks for
the last row. The order matters: of two tasks with different spreads, each claims its own lane before it looks at the
other's, so one of them at least is stopped before it sends anything.

The next micro-batches claim the epoch behind the one that they know (``Claim.NEXT``). That fails as soon as any task
has taken the lanes over, and then everything is taken over and looked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.positions import FollowedLog
from spark_sinks.sinks.stream.lane import (
    SEALED_EPOCH,
    Claim,
    LaneFact,
    Position,
    ProducerLane,
    Sealed,
    ends_text,
    parse_ends,
    parse_position,
    parse_witness,
    went_back,
)
from spark_sinks.sinks.stream.link import Link, ProducerSettings
from spark_sinks.source.stream_log import PersistedPosition, WentBack, Witness
from weft.protocols import batch
from weft.protocols.chunk import section_entries
from weft.protocols.chunk_index import Chunk
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.message_headers import POSITION, POSITION_BEHIND, POSITION_CHUNK
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, log_of_edge
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, StoreError, StoreUnfit, open_store

# The last record of a producer lane, found in the hub's store: its position is the query's progress.
#
# It is searched only when the position is otherwise unknown, at a query's start and after a fault: first in the log
# from its end, then in the stream's table, which has the records of deleted chunks.

Headers = Mapping[str, object]
AHEAD = 16
"""Number of chunk indexes requested at once."""


async def open_hub_store(settings: ProducerSettings, cluster_id: str) -> tuple[ObjectStore, Cluster]:
    """Return the hub's store.

    Args:
        cluster_id: the hub's own, from WELCOME; empty when it is not known.

    Raises:
        SinkError: it cannot be opened, holds no hub, or another one.
    """
    where = f"store {settings.store!r}"
    try:
        store = open_store(settings.store, dict(settings.store_options))
        cluster = await open_cluster(store, None)
    except (ValueError, StoreUnfit, ClusterUnusable) as error:
        raise SinkError(f"{where}: {error}") from error
    except StoreError as error:
        raise SinkError(f"{where} does not answer; check its address and credentials: {error}") from error
    if cluster_id not in ("", cluster.cluster_id.hex()):
        raise SinkError(
            f"{where} is that of hub {cluster.cluster_id.hex()}, and the hub at {settings.urls[0]} is {cluster_id}; "
            "name the store of this hub"
        )
    return store, cluster


async def lane_state(settings: ProducerSettings, cluster_id: str, lane: Lane) -> tuple[ShardLog, ShardState]:
    """Return the log and the state of a lane's shard at the log's end. Raises as ``open_hub_store``."""
    store, cluster = await open_hub_store(settings, cluster_id)
    try:
        log = await log_of_edge(store, cluster, lane.tenant, lane.edge)
        return log, await log.load(frozenset({(lane.tenant, lane.stream)}))
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error


async def kept_lane(settings: ProducerSettings, cluster_id: str, lane: Lane) -> LaneState | None:
    """Return a lane's state at the end of the hub's log, also of one that was idle for long and has left it; None
    without any. Raises as ``open_hub_store``."""
    log, state = await lane_state(settings, cluster_id, lane)
    held = state.lanes.get(lane)
    if held is not None or not state.drops:
        return held
    try:
        kept = await log.ended(lane, state.n)
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error
    return None if kept is None else snapshots.lane_state(snapshots.decode_lane(kept))


async def held_epoch(settings: ProducerSettings, cluster_id: str, lane: Lane) -> int:
    """Return the lane's epoch in the hub's log; 0 when there is none. Raises as ``open_hub_store``."""
    held = await kept_lane(settings, cluster_id, lane)
    return held.epoch if held is not None else 0


class LastRecord(NamedTuple):
    """Place of a lane's last record in the query and in its source."""

    position: Position
    witness: Witness | None
    """Chunk of the source's log with the position; None if the hub had deleted it."""
    behind: Mapping[int, int] = MappingProxyType({})
    """Log id -> end of lanes of other spreads: their rows below come before this one."""


async def find_last(settings: ProducerSettings, cluster_id: str, lane: Lane, shard: int, seq: int) -> LastRecord:
    """Return the place of record ``seq`` of a lane, which the hub has acknowledged.

    Args:
        shard: the source shard.

    Raises:
        SinkError: neither log nor table has the record, or a sink did not write it. As ``open_hub_store``.
    """
    log, state = await lane_state(settings, cluster_id, lane)
    headers = await _in_logs(log, state, lane, seq)
    if headers is None:
        headers = await asyncio.to_thread(_in_table, log.store, lane, seq)
    text = (headers or {}).get(POSITION)
    found = parse_position(text)
    if found is None or found[0] != shard:
        raise SinkError(
            f"record {seq} of lane {lane}, the last one, has the position {text!r}: it is not in the store, or no "
            "sink wrote it. Give the query another name, and start it behind the rows that the stream has"
        )
    of_record = headers or {}
    witness, behind = parse_witness(of_record.get(POSITION_CHUNK)), parse_ends(of_record.get(POSITION_BEHIND))
    return LastRecord(found[1], witness, behind)


async def _in_logs(log: ShardLog, state: ShardState, lane: Lane, seq: int) -> Headers | None:
    """Search the log of the lane's shard, then those of the shards that had the lane before."""
    found = await _in_log(log, state.n + 1, lane, seq)
    while found is None and log.split is not None and log.halved is not None:
        end, log = log.split.n, log.halved
        found = await _in_log(log, end, lane, seq)
    return found


async def _in_log(log: ShardLog, end: int, lane: Lane, seq: int) -> Headers | None:
    """Search the log from chunk ``end`` back to the first deleted chunk."""
    only = frozenset([(lane.tenant, lane.stream)])
    while end > log.watermark:
        first = max(log.watermark, end - AHEAD)
        indexes = (log.index(n, only) for n in range(first, end))
        for chunk in reversed(await asyncio.gather(*indexes)):
            if chunk is None:
                return None  # deleted meanwhile, so the record is in the table
            if any(
                lane_of(update) == lane and any(low <= seq < high for low, high in update.ranges)
                for update in chunk.footer.lanes
            ):
                return await _in_chunk(log, chunk, lane, seq)
        end = first
    return None


async def _in_chunk(log: ShardLog, chunk: Chunk, lane: Lane, seq: int) -> Headers | None:
    for section in chunk.footer.streams:
        if (section.tenant, section.stream) != (lane.tenant, lane.stream):
            continue
        lanes, data = chunk.footer.lanes_of(section), await log.section(chunk.header.n, section)
        for entry in section_entries(section, data, lanes):
            header = batch.decode_header(entry.batch)
            first = header.base_seq + entry.skip
            if lane_of(lanes[entry.lane]) == lane and first <= seq < first + entry.take:
                index = seq - header.base_seq
                record = next(batch.records(entry.batch, first=index, end=index + 1))
                return dict(record.headers)
    return None


def _in_table(store: ObjectStore, lane: Lane, seq: int) -> Headers | None:
    uri, options = store.location(table_key(lane.tenant, lane.stream))
    if not DeltaTable.is_deltatable(uri, options or None):
        return None
    rows = (
        DeltaTable(uri, storage_options=options or None)
        .to_pyarrow_dataset()
        .to_table(
            ["_headers"],
            (pc.field("_seq") == seq)
            & (pc.field("_edge") == lane.edge)
            & (pc.field("_log") == format_log_id(lane.log_id)),
        )
    )
    for pairs in rows.column("_headers").to_pylist():
        return dict(pairs or ())
    return None


# The log of a query's source, compared with the log that the lanes of its sink recorded.


def chunk_of(settings: ProducerSettings, shard: int, offset: int) -> Witness | None:
    """Return the chunk with a record of the source; None if the source's store is not given, or the hub has deleted the
    chunk.

    Raises:
        SinkError: the source's store does not answer.
    """
    if settings.source_log is None:
        return None
    return FollowedLog(settings.source_log).witnesses({shard: offset + 1}).get(shard)


def check_source(settings: ProducerSettings, shard: int, last: LastRecord) -> None:
    """Check that the source still has the record behind a lane's last one. A source that was restored to an earlier
    state gives the offset to another record, which would be skipped as one that the stream has.

    Raises:
        SinkError: it has another record there, the source ends before it, or its store does not answer.
    """
    if settings.source_log is None:
        return
    source = FollowedLog(settings.source_log)
    try:
        if shard >= source.shards:
            raise WentBack(f"shard {shard} of {settings.source_log.stream}, and the source has {source.shards} shards")
        source.check({shard: PersistedPosition(last.position.offset + 1, last.witness)})
    except WentBack as error:
        raise SinkError(
            f"stream {settings.stream} has rows of query {settings.query} up to {error}: the source's store was "
            "restored to an earlier state, or is another one. Start the query under another name, at the rows that the "
            "stream lacks"
        ) from None


class StoredHub:
    """The hub of some settings and its store, as the beginning of a source shard needs them.

    Args:
        cluster_id: returns the hub's own, as its WELCOME said it; empty while it is not known.
    """

    def __init__(self, settings: ProducerSettings, cluster_id: Callable[[], str] = lambda: "") -> None:
        self._settings, self._cluster_id = settings, cluster_id

    def link(self, edge: str) -> Link:
        """Return a new link of an edge."""
        return Link(self._settings, lambda lane: run(held_epoch(self._settings, "", lane)), edge=edge)

    def kept(self, lane: Lane) -> LaneState | None:
        """Return the state of a lane at the log's end; None without one."""
        return run(kept_lane(self._settings, self._cluster_id(), lane))

    def last(self, lane: Lane, shard: int, seq: int) -> LastRecord:
        """Return the place of the last record of a lane."""
        return run(find_last(self._settings, self._cluster_id(), lane, shard, seq))

    def check(self, shard: int, last: LastRecord) -> None:
        """Check that the source still has the record behind the last row."""
        check_source(self._settings, shard, last)


def begin(settings: ProducerSettings, hub: StoredHub, link: Link, shard: int, fact: LaneFact | None) -> ProducerLane:
    """Claim the lane of a source shard, and return it with the position of the shard's last row.

    Args:
        link: of the edge that has the lane under the settings' spread.
        fact: of an earlier micro-batch with the same spread.

    Raises:
        SinkError: the hub refuses or does not answer, or the lane's last record is not found.
        Superseded: another task sends for the query.
    """
    if settings.spread == 1 and (fact is None or not fact.is_sealed):
        # An open first lane proves that no spread has begun: that would have sealed it.
        lane = ProducerLane(settings.lane(shard), 0 if fact is None else fact.epoch)
        try:
            link.open(lane)
        except Sealed:
            fact = None
        else:
            return _resumed(hub, lane, shard, fact)
    if fact is None:
        lane = ProducerLane(settings.spread_lane(shard), 0, Claim.TAKE_OVER)
    else:
        lane = ProducerLane(settings.spread_lane(shard), fact.epoch, Claim.NEXT)
    link.open(lane)
    if fact is not None and lane.is_next:
        lane.behind = fact.behind
        return _resumed(hub, lane, shard, fact)
    others = others_of(settings, hub, shard)
    lane.behind = ends_text({each.log_id: end for each, end in others.items()})
    return _resumed(hub, lane, shard, fact, others)


def others_of(settings: ProducerSettings, hub: StoredHub, shard: int) -> dict[Lane, int]:
    """Stop all that send in other lanes of a source shard, and return the ends of those with records."""
    first, spreads = settings.lane(shard), settings.lanes_of_other_spreads(shard)
    ends = {each: _stopped(hub, each, seals=each == first) for each in (first, *spreads)}
    return {each: end for each, end in ends.items() if end}


def _resumed(
    hub: StoredHub,
    lane: ProducerLane,
    shard: int,
    fact: LaneFact | None,
    others: Mapping[Lane, int] = MappingProxyType({}),
) -> ProducerLane:
    """Return a claimed lane with the position of the shard's last row.

    Args:
        others: ends of the other lanes that have records; none if no other task has claimed them since the fact.
    """
    if fact is not None and lane.end < fact.end:
        raise went_back(lane.identity, lane.end, fact.end)
    if fact is not None and fact.end == lane.end and not others:
        lane.resume(fact.position)
        return lane
    last = _last_of(hub, shard, ({lane.identity: lane.end} if lane.end else {}) | dict(others))
    if last is not None:
        hub.check(shard, last)
    lane.resume(None if last is None else last.position)
    return lane


def _last_of(hub: StoredHub, shard: int, ends: Mapping[Lane, int]) -> LastRecord | None:
    """Return the last record of several lanes of a source shard; None of none.

    Raises:
        SinkError: a lane's last record is not found, and no other one says that it comes behind it. Retention deletes
            the records of lanes that a query has left long ago.
    """
    found: list[LastRecord] = []
    unknown: dict[Lane, SinkError] = {}
    for lane, end in ends.items():
        if any(each.behind.get(lane.log_id) == end for each in found):
            continue
        try:
            found.append(hub.last(lane, shard, end - 1))
        except SinkError as error:
            unknown[lane] = error
    for lane, reason in unknown.items():
        if not any(each.behind.get(lane.log_id) == ends[lane] for each in found):
            raise reason
    return max(found, key=lambda each: each.position, default=None)


def _stopped(hub: StoredHub, lane: Lane, *, seals: bool) -> int:
    """Stop all that send in another lane of the shard, and return its end.

    Args:
        seals: whether the lane is the first one, which stays closed: tasks of releases without spreads know no other,
            and would continue there whenever they connect.
    """
    held = hub.kept(lane)
    if held is None and not seals:
        return 0  # a task that makes it from here on, looks at this task's lane afterwards
    if held is not None and held.epoch == SEALED_EPOCH:
        return held.ranges.end
    claimed = ProducerLane(lane, 0 if held is None else held.epoch, Claim.SEAL if seals else Claim.TAKE_OVER)
    link = hub.link(lane.edge)
    try:
        link.open(claimed)
    except Sealed:  # another task was quicker, or this one before a lost connection
        held = hub.kept(lane)
        return 0 if held is None else held.ranges.end
    finally:
        link.close()
    return claimed.end
