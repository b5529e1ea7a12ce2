"""``StreamSink``: rows of a query back into a Weft stream."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.runtime.session import is_connect
from spark_sinks.sinks.stream.lane import (
    BATCH_BYTES,
    BATCH_ROWS,
    BatchEncoder,
    Claim,
    LaneFact,
    Position,
    ProducerLane,
    Row,
    Superseded,
    ordered,
    rows_of,
)
from spark_sinks.sinks.stream.link import Link, ProducerSettings
from spark_sinks.sinks.stream.recovery import StoredHub, begin, chunk_of, held_epoch, lane_state, open_hub_store
from spark_sinks.source.options import (
    CA_CHARACTERS_MAX,
    TOKEN_CHARACTERS_MAX,
    TOKEN_VARIABLE,
    ReadOptions,
    check_urls,
    in_utc,
    nanoseconds,
    one_token,
    parse_options,
    read_text,
    with_environment,
)
from weft.protocols.lane import NAME_RULE, Lane, valid_name
from weft.protocols.payloads import LABELS, kind_labelled
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.placement import QUERY_CHARACTERS_MAX, SPREAD_QUERY_CHARACTERS_MAX, SPREADS, first_edge
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.topics import InvalidTopic, check_pattern
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.object_store import StoreError

# The work of one Spark task: send the rows of some source shards to the hub, with a lane for each shard.

RESULT = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("end", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("ordinal", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("seen_offset", pa.int64()),
        pa.field("seen_ordinal", pa.int32()),
        pa.field("sent", pa.int64()),
        pa.field("skipped", pa.int64()),
        pa.field("is_sealed", pa.bool_()),
        pa.field("behind", pa.string()),
    ]
)
"""Columns of a task's answer: one row for each lane, when everything is durable."""
RESULT_SQL = (
    "shard int, end long, offset long, ordinal int, epoch long, seen_offset long, seen_ordinal int, sent long, "
    "skipped long, is_sealed boolean, behind string"
)
_WHOLE_FACTOR = 8
"""Rows of one source record stay in one batch up to this many times the usual size."""


@dataclass(frozen=True)
class SendTask:
    """The function of a task. ``run`` gets the rows of a partition in the order of ``rows.ordered``."""

    settings: ProducerSettings
    facts: Mapping[int, LaneFact] = field(default_factory=dict)
    """Facts about lanes, by source shard, from earlier micro-batches."""
    floors: Mapping[int, Position] = field(default_factory=dict)
    """Highest position of earlier micro-batches, by source shard."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows, and yield a row of ``RESULT`` for each lane.

        Raises:
            SinkError: a row is not valid, or the hub refuses.
            Superseded: another attempt has taken over.
        """
        sender = _Sender(self)
        try:
            for shard, row in rows_of(batches):
                sender.take(shard, row)
            yield sender.finish()
        except Superseded:
            sender.abandon()
            raise
        finally:
            sender.close()


@dataclass
class _LaneWork:
    """A lane and the rows that wait for their batch."""

    shard: int
    link: Link
    lane: ProducerLane
    seen: Position
    waiting: list[Row] = field(default_factory=list)
    waiting_bytes: int = 0
    sent: int = 0


class _Sender:
    def __init__(self, task: SendTask) -> None:
        self._task = task
        self._settings = task.settings
        self._hub = StoredHub(self._settings, self._cluster_id)
        self._links: dict[str, Link] = {}
        """Links by edge: one, unless the rows come from elsewhere than ``rows.ordered``."""
        self._works: dict[int, _LaneWork] = {}
        self._last: _LaneWork | None = None

    def take(self, shard: int, row: Row) -> None:
        """Add the next row in order."""
        floor = self._task.floors.get(shard)
        if floor is not None and row.position <= floor:
            raise SinkError(
                f"a row of offset {row.position.offset} of shard {shard} comes after rows of an earlier micro-batch, "
                f"of offset {floor.offset}. Give each row the _shard and _offset of the record whose arrival caused it"
            )
        work = self._works.get(shard)
        if work is not self._last and self._last is not None:
            self._flush(self._last)
        if work is None:
            work = self._works[shard] = self._begin(shard, row.position)
        self._last, work.seen = work, row.position
        if not work.lane.wants(row.position):
            return
        full = work.waiting_bytes >= BATCH_BYTES or len(work.waiting) >= BATCH_ROWS
        if full and (row.position.offset != work.waiting[-1].position.offset or self._is_too_long(work)):
            self._flush(work)
        work.waiting.append(row)
        work.waiting_bytes += row.bytes

    def _is_too_long(self, work: _LaneWork) -> bool:
        bytes_max = min(_WHOLE_FACTOR * BATCH_BYTES, work.link.batch_bytes_max // 2)
        return work.waiting_bytes >= bytes_max or len(work.waiting) >= _WHOLE_FACTOR * BATCH_ROWS

    def _begin(self, shard: int, seen: Position) -> _LaneWork:
        """Claim a shard's lane, and find its position."""
        edge = self._settings.edge_of(shard)
        link = self._links.get(edge)
        if link is None:
            link = self._links[edge] = self._hub.link(edge)
        lane = begin(self._settings, self._hub, link, shard, self._task.facts.get(shard))
        return _LaneWork(shard, link, lane, seen)

    def _cluster_id(self) -> str:
        return next((link.cluster_id for link in self._links.values() if link.cluster_id), "")

    def _flush(self, work: _LaneWork) -> None:
        """Send the waiting rows; memory holds the window and one batch."""
        rows = work.waiting
        if not rows:
            return
        lane, last = work.lane, rows[-1]
        # The hub stores whole batches, so a lane always ends with the last row of one.
        rows[-1] = last.behind(lane.behind).at_chunk(chunk_of(self._settings, work.shard, last.position.offset))
        encoder = BatchEncoder(lane.identity.log_id, work.link.batch_bytes_max)
        lane.add(encoder.encode(rows, lane.end), last.position)
        work.link.send(lane)
        work.sent += len(rows)
        work.waiting, work.waiting_bytes = [], 0

    def finish(self) -> pa.RecordBatch:
        """Wait until everything is durable, and return the task's answer."""
        for work in self._works.values():
            self._flush(work)
        for link in self._links.values():
            link.wait_until_durable()
        rows = []
        for shard, work in self._works.items():
            end, position, epoch, is_sealed, behind = work.lane.fact
            assert position is not None  # every lane has got a row, or had one
            rows.append((shard, end, *position, epoch, *work.seen, work.sent, work.lane.skipped, is_sealed, behind))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(RESULT)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, RESULT, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RESULT)

    def abandon(self) -> None:
        """Drop the connections without a handshake."""
        for link in self._links.values():
            link.abandon()

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()


# The two ends of a ``StreamSink``: its target stream and the source of its rows.


@dataclass(frozen=True)
class TargetStream:
    """Stream of a hub to write into.

    Raises:
        SinkError: an argument is not valid.
    """

    hub: str | Sequence[str]
    """URL or URLs of the hub's nodes, ``http(s)://host:port``."""
    stream: str
    store: str | os.PathLike[str]
    """Root of the hub's store, in which a start looks up the last record of each lane."""
    tenant: str = "default"
    token_file: str | os.PathLike[str] | None = None
    """File with a token of scope ``edge`` for ``spark-NAME``; without it the variable ``WEFT_TOKEN`` is used, if it is
    set. The driver reads it for each micro-batch and sends the token along to its tasks."""
    ca_file: str | os.PathLike[str] | None = None
    """Certificate authorities of the hub in PEM; by default the system's."""
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the object store: ``{"AWS_REGION": ...}``."""

    def __post_init__(self) -> None:
        """Check the arguments."""
        try:
            check_urls(self.urls)
        except ValueError as error:
            raise SinkError(str(error)) from None
        for argument, name in (("stream", self.stream), ("tenant", self.tenant)):
            if not valid_name(name):
                raise SinkError(f"{argument}: expected {NAME_RULE}; got {name!r}")

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the nodes of the hub, to be tried in turn."""
        return (self.hub,) if isinstance(self.hub, str) else tuple(self.hub)

    def token(self) -> str | None:
        """Read the token of the file or of the environment; None without either."""
        text, where = _text("token_file", self.token_file, TOKEN_CHARACTERS_MAX), f"token_file {self.token_file}"
        if text is None:
            text, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if text is None:
            return None
        try:
            return one_token(text)
        except ValueError as error:
            raise SinkError(f"{where}: {error}") from None

    def ca(self) -> str | None:
        """Read the certificate authorities; None trusts the system's."""
        return _text("ca_file", self.ca_file, CA_CHARACTERS_MAX)

    def all_store_options(self) -> tuple[tuple[str, str], ...]:
        """Return the options of the store with those of this process's environment, sorted."""
        options = with_environment(dict(self.store_options), os.environ, os.fspath(self.store))
        return tuple(sorted(options.items()))


@dataclass(frozen=True)
class SourceStream:
    """Stream whose records cause the rows.

    With ``store`` a start compares what the target has with the end of the source, and refuses a source that was
    restored to an earlier state.

    Raises:
        SinkError: an argument is not valid.
    """

    stream: str
    """Part of the identity of the lanes: a query over another source has lanes of its own."""
    store: str | os.PathLike[str] | None = None
    """Root of the store of the hub that has the stream."""
    tenant: str = "default"

    def __post_init__(self) -> None:
        """Check the arguments."""
        _ = self.log

    @property
    def log(self) -> ReadOptions | None:
        """Return what to read the source's log with; None without its store."""
        if self.store is None:
            return None
        try:
            return parse_options({"store": os.fspath(self.store), "stream": self.stream, "tenant": self.tenant})
        except ReadError as error:
            raise SinkError(f"source: {error}") from None


def _text(argument: str, path: str | os.PathLike[str] | None, most: int) -> str | None:
    try:
        return read_text(path, most)
    except ValueError as error:
        raise SinkError(f"{argument} {error}") from None


# Marks of a producer's lanes: the moment up to which the derived stream is complete.
#
# The driver sends them when every row of a micro-batch is durable, for all lanes of the query at once, so that no
# lane claims a moment that another one has not reached.

NO_SHARD = -1
"""Number instead of a source shard, for the lane without records that only causes a commit."""
LINKS_MAX = 4
"""Maximum number of edges that get their marks at one time."""


def send_marks(
    settings: ProducerSettings,
    moment: int,
    wall_clock: Callable[[], int] = time.time_ns,
    edges: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Send marks that the query's lanes are complete up to ``moment`` (ns since 1970); durable when this returns.

    Args:
        edges: edges of the query that have lanes, as an earlier call returned them; none makes it look in all shards.

    Returns:
        The edges of the query that have lanes.

    Raises:
        SinkError: the hub or its store does not answer, or refuses.
    """
    # A hub treats a mark of the future as one of the present.
    moment = min(moment, wall_clock())
    lanes = run(_lanes(settings, edges))
    behind: dict[str, list[Lane]] = {}
    for lane, held in lanes.items():
        if held.ranges and (held.newest_mark is None or held.newest_mark.time < moment):
            behind.setdefault(lane.edge, []).append(lane)
    with ThreadPoolExecutor(LINKS_MAX) as threads:
        reports = [threads.submit(_send_mark, settings, edge, each, moment) for edge, each in sorted(behind.items())]
    for each in reports:
        each.result()
    return frozenset(lane.edge for lane in lanes)


def _send_mark(settings: ProducerSettings, edge: str, lanes: Iterable[Lane], moment: int) -> None:
    """Send the marks of one edge. They claim no lane, so tasks need not take it over again."""
    link = Link(settings, lambda lane: run(held_epoch(settings, "", lane)), edge=edge)
    try:
        link.mark(moment, [ProducerLane(lane, 0, Claim.RELAY) for lane in lanes])
        # Marks are not acknowledged, and alone they wait for a commit for up to a minute. The hub commits the opening
        # of a lane at once, and with it the marks before it: all lanes of an edge are in one shard.
        link.open(ProducerLane(settings.lane(NO_SHARD)._replace(edge=edge)))
    finally:
        link.close()


async def _lanes(settings: ProducerSettings, edges: frozenset[str]) -> dict[Lane, LaneState]:
    """Return the query's lanes of the stream, under every spread."""
    if edges:
        # A task makes the lane of its shard at this spread; the others were there before, or their driver marks them.
        # Powers of two keep the lanes of a source shard at seven under all spreads; any number would have as many
        # lanes as there were numbers.
        own = {settings.edge_at(place) for place in range(settings.spread)}
        at = [settings.lane(0)._replace(edge=edge) for edge in sorted(edges | own)]
        states = [state for _, state in await asyncio.gather(*(lane_state(settings, "", lane) for lane in at))]
    else:
        states = await _every_state(settings)
    return {
        lane: held
        for state in states
        for lane, held in state.stream_lanes(settings.tenant, settings.stream).items()
        if first_edge(lane.edge) == settings.edge
    }


async def _every_state(settings: ProducerSettings) -> list[ShardState]:
    store, cluster = await open_hub_store(settings, "")
    only = frozenset({(settings.tenant, settings.stream)})
    try:
        return [state for _, state in await load_every_shard(first_logs(store, cluster, tenant=settings.tenant), only)]
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error


logger = logging.getLogger(__name__)

CHECK_S = 10.0
"""Longest time that a check waits for a hub that does not answer."""
TASKS = 4
_SENTENCE = re.compile(r"(?:SinkError|Superseded): (.+)")
Complete = Callable[[DataFrame, int], datetime | None]


class BatchReport(NamedTuple):
    """Outcome of one micro-batch."""

    batch_id: int
    sent: int
    """Rows written to the stream."""
    skipped: int
    """Rows that the stream had already, which were skipped."""


class StreamSink:
    """Sink into a Weft stream, for ``foreachBatch``.

    Guarantee: each row is in the stream exactly once, and durable in the hub's log when the call returns. This holds
    when a micro-batch is repeated, when it was sent in part, when the driver, an executor or a hub node is killed at
    any moment, and when the checkpoint is lost and the micro-batches are cut differently. It requires that ``_shard``
    and ``_offset`` of a row are those of the source record that caused it, so that a repetition gives the same rows the
    same place. Rows of one source shard keep the order of their offsets.

    Each query has a lane for each source shard, under the edge name ``spark-NAME`` or those of its spread; the last
    record of a shard's lanes holds the query's progress, and no checkpoint is used.

    The rows have the columns ``_shard``, ``_offset``, ``key``, ``payload`` (binary or string) and ``time`` or ``_time``
    (timestamp). Optional are ``headers`` (map of strings), ``_ordinal`` (number of the row among those of its source
    record) and ``_from`` (lineage). Other columns are left out.

    Args:
        target: stream to write into, its hub, and the credentials.
        name: name of the query; its lanes are named after it. Two running queries must not have the same.
        source: source stream of the rows. Needed if a query's name may be used for another source, and to detect that
            the source was restored to an earlier state.
        version: version of the query, for the column ``_origin``.
        topics: topic patterns of the keys, for named columns in the table.
        payload: kind of the payloads: bytes, text or json.
        complete: called as (frame, batch id) after each micro-batch; returns the moment up to which no further row can
            come. Without it the lanes do not count for the stream's completeness.
        tasks: number of Spark tasks that send; rounded up to a multiple of ``spread``.
        spread: number of edges over which the lanes are spread, and so of shards of the hub that share the work: 1, 2,
            4, 8, 16, 32 or 64. A query may continue with another number. Once it was not 1, releases without spreads
            refuse the query.
        patience_s: longest time that a task waits for a hub that accepts nothing.

    Raises:
        SinkError: an argument is not valid.
    """

    def __init__(
        self,
        target: TargetStream,
        name: str,
        *,
        source: SourceStream | None = None,
        version: str = "",
        topics: Sequence[str] = (),
        payload: str = "bytes",
        complete: Complete | None = None,
        tasks: int = TASKS,
        spread: int = 1,
        patience_s: float = 60.0,
    ) -> None:
        if not isinstance(target, TargetStream):
            raise SinkError(f"target: expected TargetStream(hub, stream, store), got {type(target).__name__}")
        if spread not in SPREADS:
            raise SinkError(f"spread: expected one of {', '.join(map(str, SPREADS))}; got {spread!r}")
        most = QUERY_CHARACTERS_MAX if spread == 1 else SPREAD_QUERY_CHARACTERS_MAX
        if not valid_name(name) or len(name) > most:
            raise SinkError(f"name: expected {NAME_RULE}, here {most}; got {name!r}")
        kind = kind_labelled(payload)
        if kind is None:
            raise SinkError(f"payload: expected one of {', '.join(LABELS)}; got {payload!r}")
        if tasks < 1 or patience_s <= 0:
            raise SinkError(f"tasks and patience_s must be positive; got {tasks} and {patience_s}")
        self._target, self._complete, self._tasks = target, complete, tasks
        self._settings = ProducerSettings(
            target.urls,
            target.stream,
            name,
            os.fspath(target.store),
            target.tenant,
            "" if source is None else source.stream,
            version,
            _checked(topics),
            kind,
            counts=complete is not None,
            spread=spread,
            patience_s=patience_s,
            source_log=None if source is None else source.log,
        )
        self._facts: dict[int, LaneFact] = {}
        self._seen: dict[int, Position] = {}
        """Highest position of this run of the query, by source shard."""
        self._edges: frozenset[str] = frozenset()
        """Edges of the query that have lanes; none before the first mark of a run."""
        self._batch_id = -1
        self.last: BatchReport | None = None
        """Report of the last micro-batch."""

    def __repr__(self) -> str:
        """Return a text without credentials."""
        return f"StreamSink({', '.join(self._settings.urls)}, {self._settings.stream!r}, {self._settings.query!r})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Send a micro-batch; every row is durable in the hub's log when this returns.

        Raises:
            SinkError: the rows lack a column or are out of order, the hub refuses, or it accepts nothing for
                ``patience_s``. Some rows may be in the stream; a repetition skips them.
        """
        settings = self._with_credentials()
        if batch_id <= self._batch_id:
            self._seen.clear()  # a repetition, or another run
        task = SendTask(settings, dict(self._facts), dict(self._seen))
        sending = ordered(frame, self._tasks, settings.spread).mapInArrow(task.run, RESULT_SQL)
        try:
            answers = sending.collect()
        except PySparkException as error:
            self._facts.clear()
            self._edges = frozenset()
            raise _as_sink_error(error) from error
        for row in answers:
            self._facts[row.shard] = LaneFact(
                row.end, Position(row.offset, row.ordinal), row.epoch, row.is_sealed, row.behind
            )
            self._seen[row.shard] = Position(row.seen_offset, row.seen_ordinal)
        self._batch_id = batch_id
        self.last = BatchReport(batch_id, sum(row.sent for row in answers), sum(row.skipped for row in answers))
        if self._complete is not None:
            self._mark(settings, self._complete(frame, batch_id))

    def check(self, frame: DataFrame) -> None:
        """Check the columns of future rows, the token, the hub and its store. Nothing is written.

        Raises:
            SinkError: the rows lack a column, the hub refuses this producer or does not answer, or the store is not
                that of the hub.
        """
        ordered(frame, self._tasks, self._settings.spread)
        if is_connect(frame.sparkSession):
            return  # The server's machines contact the hub, and their network and files may be different.
        settings = replace(self._with_credentials(), patience_s=min(CHECK_S, self._settings.patience_s))
        cluster_id = ""
        for place in sorted({0, settings.spread - 1}):  # a hub of an earlier release refuses all but the first edge
            link = Link(settings, lambda _: 0, edge=settings.edge_at(place))
            try:
                cluster_id = link.greet()
            finally:
                link.close()
        run(open_hub_store(settings, cluster_id))

    def _mark(self, settings: ProducerSettings, moment: datetime | None) -> None:
        """Send the moment up to which no further row can come. A failure is only logged: the next mark includes this
        one."""
        if moment is None:
            return
        try:
            self._edges = send_marks(settings, nanoseconds(in_utc(moment)), edges=self._edges)
        except SinkError as error:
            logger.warning("%s: the mark %s was not sent: %s", settings.edge, moment, error)

    def _with_credentials(self) -> ProducerSettings:
        """Return the settings with the secrets of this process: token, certificates, keys of the store."""
        target = self._target
        return replace(self._settings, token=target.token(), ca=target.ca(), store_options=target.all_store_options())


def _as_sink_error(error: Exception) -> SinkError:
    """Return a task's own message, which Spark prints behind hundreds of lines."""
    found = _SENTENCE.findall(str(error))
    return SinkError(found[-1].strip() if found else str(error))


def _checked(topics: Sequence[str]) -> tuple[str, ...]:
    try:
        for topic in topics:
            check_pattern(topic)
    except InvalidTopic as error:
        raise SinkError(f"topics: {error}") from None
    return tuple(topics)
