"""``StreamSink``: rows of a query back into a Weft stream."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.runtime.session import is_connect
from spark_sinks.sinks.stream.lane import LaneFact
from spark_sinks.sinks.stream.last_record import open_hub_store
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.marks import tell_marks
from spark_sinks.sinks.stream.positions import Position
from spark_sinks.sinks.stream.rows import ordered
from spark_sinks.sinks.stream.settings import EDGE_PREFIX, ProducerSettings
from spark_sinks.sinks.stream.task import RESULT_SQL, SendTask
from spark_sinks.source.options import ReadOptions, parse_options
from spark_sinks.source.positions import in_utc, nanoseconds
from spark_sinks.source.store_options import with_environment
from weft.protocols.lane import NAME_CHARACTERS_MAX, NAME_RULE, valid_name
from weft.protocols.payloads import LABELS, kind_labelled
from weft.protocols.topics import InvalidTopic, check_pattern

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "WEFT_TOKEN"  # noqa: S105  (its name)
TOKEN_BYTES_MAX = 4096
CA_BYTES_MAX = 1 << 20
CHECK_S = 10.0
"""Longest time for which a check waits for a hub that does not answer."""
TASKS = 4
_SENTENCE = re.compile(r"(?:SinkError|Superseded): (.+)")
Complete = Callable[[DataFrame, int], datetime | None]


class BatchReport(NamedTuple):
    """Outcome of one micro-batch."""

    batch_id: int
    sent: int
    """Rows that went into the stream."""
    skipped: int
    """Rows that the stream had already."""


class StreamSink:
    """Sink into a Weft stream, for ``foreachBatch``.

    Guarantee: each row is in the stream exactly once, and durable in the hub's log when the call returns. This holds
    when a micro-batch is repeated, when it was sent in part, when the driver, an executor or a hub node is killed at
    any moment, and when the checkpoint is lost and the micro-batches are cut differently. It needs that ``_shard`` and
    ``_offset`` of a row are those of the source record that caused it, so that a repetition gives the same rows the
    same place. Rows of one source shard keep the order of their offsets.

    Each query has a lane for each source shard, under the edge name ``spark-QUERY``; the last record of a lane says how
    far the query has come, and no checkpoint is asked.

    The rows have the columns ``_shard``, ``_offset``, ``key``, ``payload`` (binary or string) and ``time`` or ``_time``
    (timestamp). Optional are ``headers`` (map of strings), ``_ordinal`` (number of the row among those of its source
    record) and ``_from`` (lineage). Other columns are left out.

    Args:
        hub: URL or URLs of the hub's nodes, ``http(s)://host:port``.
        stream: name of the stream to write.
        name: name of the query; its lanes are named after it. No two queries that run may have the same.
        store: root of the hub's store, for looking up a lane's last record at a start.
        token_file: file with a token of scope ``edge`` for ``spark-QUERY``; without it the variable ``WEFT_TOKEN`` is
            used, if it is set. Read by the driver for each micro-batch, and sent along to its tasks.
        ca_file: certificate authorities of the hub in PEM; by default the system's.
        source: name of the source stream, where a query's name may be used for another one.
        source_store: root of the store of the hub that has ``source``. With it a start compares what the stream has
            with the end of the source, and refuses one that was restored to an earlier state.
        source_tenant: whose stream ``source`` is.
        version: version of the query, for the column ``_origin``.
        topics: topic patterns of the keys, for named columns in the table.
        payload: what the payloads are: bytes, text or json.
        complete: called as (frame, batch id) after each micro-batch; returns the moment up to which no further row can
            come. Without it the lanes do not count for the stream's completeness.
        tasks: number of Spark tasks that send.
        patience_s: longest time for which a task waits for a hub that takes nothing.
        store_options: for the object store: ``{"AWS_REGION": ...}``.

    Raises:
        SinkError: an argument is not what it should be.
    """

    def __init__(
        self,
        hub: str | Sequence[str],
        stream: str,
        name: str,
        *,
        store: str | os.PathLike[str],
        tenant: str = "default",
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        source: str = "",
        source_store: str | os.PathLike[str] | None = None,
        source_tenant: str = "default",
        version: str = "",
        topics: Sequence[str] = (),
        payload: str = "bytes",
        complete: Complete | None = None,
        tasks: int = TASKS,
        patience_s: float = 60.0,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        urls = (hub,) if isinstance(hub, str) else tuple(hub)
        _check_urls(urls)
        _check_names(stream=stream, tenant=tenant)
        if not valid_name(name) or len(EDGE_PREFIX + name) > NAME_CHARACTERS_MAX:
            most = NAME_CHARACTERS_MAX - len(EDGE_PREFIX)
            raise SinkError(f"name: expected {NAME_RULE}, here {most}; got {name!r}")
        kind = kind_labelled(payload)
        if kind is None:
            raise SinkError(f"payload: expected one of {', '.join(LABELS)}; got {payload!r}")
        if tasks < 1 or patience_s <= 0:
            raise SinkError(f"tasks and patience_s must be positive; got {tasks} and {patience_s}")
        self._token_file, self._ca_file, self._complete, self._tasks = token_file, ca_file, complete, tasks
        self._settings = ProducerSettings(
            urls, stream, name, os.fspath(store), tenant, source, version, _checked(topics), kind,
            counts=complete is not None, patience_s=patience_s,
            source_log=_source_log(source, source_store, source_tenant),
            store_options=tuple(sorted((store_options or {}).items())),
        )  # fmt: skip
        self._facts: dict[int, LaneFact] = {}
        self._seen: dict[int, Position] = {}
        """Highest position of this run of the query, by source shard."""
        self._batch_id = -1
        self.last: BatchReport | None = None
        """Report of the last micro-batch."""

    def __repr__(self) -> str:
        """Return a text without credentials."""
        return f"StreamSink({', '.join(self._settings.urls)}, {self._settings.stream!r}, {self._settings.query!r})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Send a micro-batch; every row is durable in the hub's log when this returns.

        Raises:
            SinkError: the rows lack a column or are out of order, the hub refuses, or it takes nothing for
                ``patience_s``. Some rows may be in the stream; a repetition finds them there.
        """
        settings = self._with_credentials()
        if batch_id <= self._batch_id:
            self._seen.clear()  # a repetition, or another run
        task = SendTask(settings, dict(self._facts), dict(self._seen))
        sending = ordered(frame, self._tasks).mapInArrow(task.run, RESULT_SQL)
        try:
            answers = sending.collect()
        except PySparkException as error:
            self._facts.clear()
            raise _told(error) from error
        for row in answers:
            self._facts[row.shard] = LaneFact(row.end, Position(row.offset, row.ordinal), row.epoch)
            self._seen[row.shard] = Position(row.seen_offset, row.seen_ordinal)
        self._batch_id = batch_id
        self.last = BatchReport(batch_id, sum(row.sent for row in answers), sum(row.skipped for row in answers))
        if self._complete is not None:
            self._mark(settings, self._complete(frame, batch_id))

    def check(self, frame: DataFrame) -> None:
        """Check the columns of rows to come, the token, and that the hub and its store are there. Nothing is written.

        Raises:
            SinkError: the rows lack a column, the hub refuses this producer or does not answer, or the store is not
                that of the hub.
        """
        ordered(frame, self._tasks)
        if is_connect(frame.sparkSession):
            return  # The hub is asked from the server's machines, whose network and files may be others.
        settings = replace(self._with_credentials(), patience_s=min(CHECK_S, self._settings.patience_s))
        link = Link(settings, lambda _: 0)
        try:
            cluster_id = link.greet()
        finally:
            link.close()
        run(open_hub_store(settings, cluster_id))

    def _mark(self, settings: ProducerSettings, moment: datetime | None) -> None:
        """Tell the moment up to which no further row can come. Failure is no error: the next one says more."""
        if moment is None:
            return
        try:
            tell_marks(settings, nanoseconds(in_utc(moment)))
        except SinkError as error:
            logger.warning("%s: the mark %s was not told: %s", settings.edge, moment, error)

    def _with_credentials(self) -> ProducerSettings:
        """Return the settings with what only this process has: token, certificates, keys of the store."""
        settings = self._settings
        options = dict(settings.store_options)
        if settings.store.startswith("s3://"):
            options = with_environment(options, os.environ)
        return replace(
            settings, token=self._token(), ca=_text("ca_file", self._ca_file, CA_BYTES_MAX),
            store_options=tuple(sorted(options.items())),
        )  # fmt: skip

    def _token(self) -> str | None:
        text, where = _text("token_file", self._token_file, TOKEN_BYTES_MAX), f"token_file {self._token_file}"
        if text is None:
            text, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if text is None:
            return None
        words = text.split()
        if len(words) != 1 or not words[0].isascii() or not words[0].isprintable():
            raise SinkError(f"{where}: expected one token on one line; write it again")
        return words[0]


def _source_log(source: str, store: str | os.PathLike[str] | None, tenant: str) -> ReadOptions | None:
    if store is None:
        return None
    if not source:
        raise SinkError("source_store: name the stream in it, too, as source")
    try:
        return parse_options({"store": os.fspath(store), "stream": source, "tenant": tenant})
    except ReadError as error:
        raise SinkError(f"source: {error}") from None


def _told(error: Exception) -> SinkError:
    """Return a task's own sentence, which Spark prints behind hundreds of lines."""
    found = _SENTENCE.findall(str(error))
    return SinkError(found[-1].strip() if found else str(error))


def _text(argument: str, path: str | os.PathLike[str] | None, bytes_max: int) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(bytes_max + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise SinkError(f"{argument} {os.fspath(path)} cannot be read: {error}") from None
    if len(text) > bytes_max:
        raise SinkError(f"{argument} {os.fspath(path)} has more than {bytes_max} characters")
    return text


def _check_urls(urls: Sequence[str]) -> None:
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise SinkError(
                f"hub: expected http://host:port or https://host:port without a password; got {parts.scheme}://{parts.hostname}"
            )
    if not urls:
        raise SinkError("hub: expected the URL of at least one node, such as http://127.0.0.1:8090")


def _check_names(**names: str) -> None:
    for argument, name in names.items():
        if not valid_name(name):
            raise SinkError(f"{argument}: expected {NAME_RULE}; got {name!r}")


def _checked(topics: Sequence[str]) -> tuple[str, ...]:
    try:
        for topic in topics:
            check_pattern(topic)
    except InvalidTopic as error:
        raise SinkError(f"topics: {error}") from None
    return tuple(topics)
