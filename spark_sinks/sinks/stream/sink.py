"""``StreamSink``: rows of a query back into a Weft stream."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.runtime.session import is_connect
from spark_sinks.sinks.stream.ends import SourceStream, TargetStream
from spark_sinks.sinks.stream.lane import LaneFact
from spark_sinks.sinks.stream.last_record import open_hub_store
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.marks import tell_marks
from spark_sinks.sinks.stream.positions import Position
from spark_sinks.sinks.stream.rows import ordered
from spark_sinks.sinks.stream.settings import ProducerSettings
from spark_sinks.sinks.stream.task import RESULT_SQL, SendTask
from spark_sinks.source.positions import in_utc, nanoseconds
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.payloads import LABELS, kind_labelled
from weft.protocols.shard.spread import QUERY_CHARACTERS_MAX, SPREAD_QUERY_CHARACTERS_MAX, SPREADS
from weft.protocols.topics import InvalidTopic, check_pattern

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
            4, 8, 16, 32 or 64. A query may go on with another number. Once it was not 1, releases without spreads
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
            target.urls, target.stream, name, os.fspath(target.store), target.tenant,
            "" if source is None else source.stream, version, _checked(topics), kind,
            counts=complete is not None, spread=spread, patience_s=patience_s,
            source_log=None if source is None else source.log,
        )  # fmt: skip
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
            raise _told(error) from error
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
            self._edges = tell_marks(settings, nanoseconds(in_utc(moment)), edges=self._edges)
        except SinkError as error:
            logger.warning("%s: the mark %s was not told: %s", settings.edge, moment, error)

    def _with_credentials(self) -> ProducerSettings:
        """Return the settings with the secrets of this process: token, certificates, keys of the store."""
        target = self._target
        return replace(self._settings, token=target.token(), ca=target.ca(), store_options=target.all_store_options())


def _told(error: Exception) -> SinkError:
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
