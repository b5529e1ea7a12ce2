"""One producer lane, without I/O: its missing rows, their sequence numbers, and its batches that are not durable yet.

The hub's answer about the lane (LANE_OPENED) is the only source of numbers. After a lost connection, the opening on the
next one reports which records arrived.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa
import zstandard
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, MapType, StringType, TimestampType

from spark_sinks.errors import SinkError
from spark_sinks.source.stream_log import Witness
from weft.protocols import batch as batch_format
from weft.protocols.batch import KEY_BYTES_MAX, ClockReading, ClockState, HeaderPairs
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.message_headers import LINEAGE, POSITION, POSITION_BEHIND, POSITION_CHUNK, stored_name
from weft.protocols.ranges import Range, RangeSet
from weft.replication.sender_lanes import LinkLaneState
from weft.replication.source import LaneSnapshot

# Positions: the identity of a query's row in a record of a producer lane.
#
# A position is the offset of the source record that caused the row, and the row's place among the rows of that
# record. Each record carries its own in the header ``weft.position``, so the lane itself stores a query's progress.
# The last record of a batch, and so of a lane, also identifies the source's log in ``weft.position-chunk``. Of a
# query that was spread, it says in ``weft.position-behind`` up to where it has seen the shard's other lanes.

_WITNESS = re.compile(r"(\d{1,19}):([0-9a-f]{8})")
_END = r"[0-9a-f]{16}:\d{1,19}"
_ENDS = re.compile(rf"{_END}(?:,{_END}){{0,15}}")
_TEXT = re.compile(r"(\d{1,10}):(\d{1,19}):(\d{1,10})")


class Position(NamedTuple):
    """The place of a row in the output of one source shard. Positions of a lane ascend."""

    offset: int
    """``_offset`` of the source record that caused the row."""
    ordinal: int
    """Number of the row among the rows of this source record."""

    def text(self, shard: int) -> str:
        """Return the value of the header."""
        return f"{shard}:{self.offset}:{self.ordinal}"


def parse_position(text: object) -> tuple[int, Position] | None:
    """Return source shard and position of a header's value; None when it has another form."""
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    shard, offset, ordinal = map(int, found.groups())
    return shard, Position(offset, ordinal)


def witness_text(witness: Witness) -> str:
    """Return the value of the header that names a chunk."""
    return f"{witness.n}:{witness.footer_crc:08x}"


def parse_witness(text: object) -> Witness | None:
    """Return the chunk of a header's value; None without one."""
    found = _WITNESS.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Witness(int(found[1]), int(found[2], 16))


def ends_text(ends: Mapping[int, int]) -> str:
    """Return the value of the header with the ends of other lanes, by log id."""
    return ",".join(f"{format_log_id(log_id)}:{end}" for log_id, end in ends.items())


def parse_ends(text: object) -> dict[int, int]:
    """Return log id -> end of a header's value; nothing without one, or of another form."""
    if not isinstance(text, str) or _ENDS.fullmatch(text) is None:
        return {}
    return {int(log, 16): int(end) for log, _, end in (each.partition(":") for each in text.split(","))}


class Superseded(SinkError):
    """Another task has taken over the lane. Its rows are the same, so this one stops."""


def went_back(lane: Lane, held: int, acked: int) -> SinkError:
    """Return the error for a hub that has fewer records than it acknowledged."""
    return SinkError(
        f"the hub has {held} records of lane {lane} and acknowledged {acked} before: its store went back to an earlier "
        "state. Start the query under another name, at the rows that the stream lacks"
    )


class Sealed(Superseded):
    """The first lane of a source shard is sealed: the query was spread, and continues in other lanes."""


SEALED_EPOCH = (1 << 63) - 1
"""Epoch of a first lane that no attempt can take over again, of whichever release: no epoch is higher."""
EPOCH_STEP = 1 << 20
"""Epochs that take over a lane of a spread query are multiples of it (about a millisecond), and those in between belong
to the attempt that took it over, and to the next ones that rely on its facts."""


class Claim(Enum):
    """Kinds of an attempt's claim to a lane."""

    NEWEST = 1
    """Claim by the hub's clock, on every connection: for the only lane of a source shard, whose end shows others."""
    TAKE_OVER = 2
    """Claim by the hub's clock at first, and then as ``NEXT``."""
    NEXT = 3
    """Claim by the next epoch only: it fails if another attempt has claimed the lane meanwhile, even without a row."""
    SEAL = 4
    """Claim by ``SEALED_EPOCH``: no other follows."""
    RELAY = 5
    """No claim: only marks are sent."""


class LaneFact(NamedTuple):
    """A fact about a lane: when it was durable, record ``end - 1`` was its last one, and with it the source shard's."""

    end: int
    position: Position | None
    """Position of the source shard's last row; None without any. It is in another lane while ``end`` is 0."""
    epoch: int = 0
    """Highest known epoch of the lane."""
    is_sealed: bool = False
    """True when the first lane of the source shard is sealed."""
    behind: str = ""
    """Ends of the source shard's other lanes, as in the header ``weft.position-behind``."""


class Batch(NamedTuple):
    """A batch of the lane."""

    first: int
    end: int
    data: bytes


class ProducerLane:
    """A lane of one task attempt.

    ``opening`` and ``opened`` begin each connection, and ``resume`` follows the first opening. Then ``wants`` chooses
    rows and ``add`` accepts their batches. A ``Sender`` gets them by ``snapshot`` and ``read`` until they are durable.

    Args:
        epoch: the highest known epoch of the lane.
        claim: how the attempt claims it. ``NEXT`` requires the epoch.
    """

    def __init__(self, identity: Lane, epoch: int = 0, claim: Claim = Claim.NEWEST) -> None:
        self.identity = identity
        self.state = LinkLaneState.CLOSED
        self.epoch, self.claim = epoch, claim
        self._was_open, self._was_next = False, claim is Claim.NEXT
        self.acked = 0
        """Numbers below are durable at the hub."""
        self.end = 0
        """The next number to assign."""
        self.position: Position | None = None
        """Position of record ``end - 1``."""
        self.behind = ""
        """Ends of the source shard's other lanes, for the last record of each batch."""
        self.skipped = 0
        """Rows that the lane had already."""
        self.is_known = False
        """True when the position that belongs to ``end`` is known."""
        self.complete_up_to: int | None = None
        """Moment (ns since 1970) up to which no record beyond ``end`` can come; None without a claim."""
        self._batches: deque[Batch] = deque()
        """Batches that are not durable, oldest first."""

    @property
    def is_durable(self) -> bool:
        """Return whether the hub has acknowledged everything."""
        return not self._batches

    @property
    def fact(self) -> LaneFact:
        """Return the present fact about the lane. Useful when everything is durable."""
        return LaneFact(self.end, self.position, self.epoch, self.is_exact, self.behind)

    @property
    def is_exact(self) -> bool:
        """Return whether an attempt that another one has overtaken must stop, even if it has nothing to send: the other
        one may continue in another lane."""
        return self.claim in (Claim.TAKE_OVER, Claim.NEXT)

    @property
    def is_next(self) -> bool:
        """Return whether the first opening was by ``Claim.NEXT``: no other attempt has claimed the lane since."""
        return self._was_next

    def offer(self, clock: int) -> int:
        """Return the epoch with which to offer the lane, on a new connection or again.

        Args:
            clock: the hub's, ns since 1970.

        Raises:
            Superseded: no epoch is left between this attempt's and those of others.
        """
        self.state = LinkLaneState.OPENING
        if self.claim is Claim.NEXT and (self.epoch + 1) % EPOCH_STEP == 0:
            self._lose_claim()
        match self.claim:
            case Claim.NEXT:
                self.epoch += 1
            case Claim.NEWEST:
                # A known epoch takes precedence if the clock was set back, or another node's is behind.
                self.epoch = max(clock, self.epoch + 1)
            case Claim.TAKE_OVER:
                self.epoch = -(-max(clock, self.epoch + 1) // EPOCH_STEP) * EPOCH_STEP
            case Claim.SEAL:
                self.epoch = SEALED_EPOCH
        return self.epoch

    def refused(self, held: int) -> None:
        """Consider that the hub refused an epoch of the link, perhaps of another lane.

        Args:
            held: the epoch of this lane in the hub's log.

        Raises:
            Sealed: the lane is sealed.
            Superseded: another attempt has the lane.
        """
        if self.state is not LinkLaneState.OPENING:
            if held > self.epoch and (self.is_exact or not self.is_durable):
                raise self._overtaken()
        elif held == SEALED_EPOCH:
            raise Sealed(f"lane {self.identity} is sealed: the query was spread since")
        elif self.claim is Claim.NEXT and held >= self.epoch:
            self._lose_claim()
        self.epoch = max(self.epoch, held)

    def _lose_claim(self) -> None:
        """Take the lane over again, if nothing was done under the former claim."""
        if self._was_open:
            raise self._overtaken()
        self.claim, self._was_next = Claim.TAKE_OVER, False

    def _overtaken(self) -> Superseded:
        return Superseded(
            f"another task sends for {self.identity.edge} now, so this one stops; nothing is lost or doubled. Two "
            "queries must not have one name"
        )

    def opened(self, held: Iterable[Range]) -> None:
        """Apply the hub's answer about the lane.

        Raises:
            SinkError: the lane has holes, so no producer wrote it; or it has fewer records than were acknowledged.
            Superseded: another task has sent more than this one.
        """
        ranges = list(held)
        end = ranges[0][1] if ranges else 0
        # A producer sends in order from 0, so its lane is one range.
        if len(ranges) > 1 or (ranges and ranges[0][0] != 0):
            raise SinkError(f"lane {self.identity} has holes, which no sink leaves; give the query another name")
        self.state, self._was_open = LinkLaneState.OPEN, True
        if self.claim is Claim.TAKE_OVER:
            self.claim = Claim.NEXT
        # First opening: the hub's end decides where this attempt continues.
        if not self.is_known:
            self.acked = self.end = end
            return
        if end < self.acked:
            raise went_back(self.identity, end, self.acked)
        # The hub stores whole batches, so any other end is of another task's batch.
        if end not in (self.acked, *(batch.end for batch in self._batches)):
            raise Superseded(
                f"another task has sent records of lane {self.identity} meanwhile; nothing is lost or doubled"
            )
        self._settle(end)

    def resume(self, position: Position | None) -> None:
        """Set the position of the source shard's last row, found after the first opening: that of the lane's last
        record, or of one in a lane of another spread.

        Raises:
            SinkError: an empty lane has a position and no other lane, or a lane with records has none.
        """
        # A lane with records and an unknown position would send rows twice.
        if (position is None and self.end) or (position is not None and not self.end and not self.is_exact):
            raise SinkError(f"lane {self.identity} ends at {self.end}, and its last record's position is {position}")
        self.position, self.is_known = position, True

    def wants(self, position: Position) -> bool:
        """Return whether the lane lacks the row with a position."""
        if self.position is None or position > self.position:
            return True
        self.skipped += 1
        return False

    def add(self, batch: Batch, last: Position) -> None:
        """Add a batch that begins at ``end``.

        Args:
            last: position of its last record.

        Raises:
            ValueError: the batch does not continue the lane, or its positions do not ascend.
        """
        if batch.first != self.end or batch.end <= batch.first:
            raise ValueError(f"batch [{batch.first}, {batch.end}) does not continue a lane that ends at {self.end}")
        if self.position is not None and last <= self.position:
            raise ValueError(f"position {last} after {self.position}")
        self.end, self.position = batch.end, last
        self._batches.append(batch)

    @property
    def snapshot(self) -> LaneSnapshot:
        """Return the state of the lane for a ``Sender``, which can read the batches that are not durable."""
        first = self._batches[0].first if self._batches else self.end
        held = RangeSet([(first, self.end)] if first < self.end else [])
        mark = None if self.complete_up_to is None else Mark(self.complete_up_to, self.end)
        return LaneSnapshot(held, self.end, [], mark)

    def read(self, seq: int, bytes_max: int) -> list[bytes]:
        """Return the batches from the one with ``seq`` on: at least that one, and about ``bytes_max`` bytes."""
        found: list[bytes] = []
        size = 0
        for batch in self._batches:
            if batch.end > seq and (not found or size + len(batch.data) <= bytes_max):
                found.append(batch.data)
                size += len(batch.data)
        return found

    def acknowledged(self, ranges: Iterable[Range]) -> None:
        """Apply an ACK.

        Raises:
            Superseded: the hub has records of the lane that this task did not send.
        """
        # Only a range that continues the acknowledged records: numbers before a hole are not durable yet.
        end = max((end for first, end in ranges if first <= self.acked), default=0)
        if end > self.end:
            raise Superseded(
                f"another task has sent records of lane {self.identity} meanwhile; nothing is lost or doubled"
            )
        self._settle(end)

    def _settle(self, end: int) -> None:
        """Forget the batches below ``end``. A batch that the hub has in part is sent again: the hub trims the records
        that it has."""
        while self._batches and self._batches[0].end <= end:
            self._batches.popleft()
        self.acked = max(self.acked, end)


# Rows of a lane as batches.

ORIGIN = 1
"""Number of the query's origin in its lanes."""
STREAM_NUMBER = 1
BATCH_BYTES = 512 << 10
"""Payload, key and header bytes from which a batch is full."""
BATCH_ROWS = 4096
_ROW_BYTES = 64
_COMPRESSION_LEVEL = 3


class Row(NamedTuple):
    """One row to send."""

    position: Position
    time: int
    """Nanoseconds since 1970."""
    key: bytes
    payload: bytes
    headers: HeaderPairs
    """Own headers of the row, by the names under which they are stored."""

    @property
    def bytes(self) -> int:
        """Return roughly the row's size in a batch."""
        headers = sum(len(name) + len(str(value)) for name, value in self.headers)
        return len(self.key) + len(self.payload) + headers + _ROW_BYTES

    def at_chunk(self, witness: Witness | None) -> Row:
        """Return the row with the source chunk of its position."""
        if witness is None:
            return self
        return self._with(POSITION_CHUNK, witness_text(witness))

    def behind(self, ends: str) -> Row:
        """Return the row with the ends of the source shard's other lanes, as ``ends_text`` writes them."""
        return self._with(POSITION_BEHIND, ends) if ends else self

    def _with(self, name: str, value: str) -> Row:
        position, *others = self.headers
        return self._replace(headers=(position, (name, value), *others))


def headers_of(position: Position, shard: int, own: Sequence[tuple[str, str]], lineage: str | None) -> HeaderPairs:
    """Return the headers of a record: its position, its lineage, and the row's own."""
    pairs = [(POSITION, position.text(shard))]
    if lineage is not None:
        pairs.append((LINEAGE, lineage))
    return (*pairs, *((stored_name(name), value) for name, value in own))


class BatchEncoder:
    """Encoder of one task. Rows of one source record stay in one batch if they fit, so that the hub stores all or none
    of them."""

    def __init__(self, boot: int, batch_bytes_max: int) -> None:
        self._clock = ClockReading(boot, 0, ClockState.SYNCED)
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
        self._bytes_max = batch_bytes_max

    def encode(self, rows: Sequence[Row], first: int) -> Batch:
        """Return the batch of rows that begins at sequence number ``first``.

        Raises:
            SinkError: a row is longer than the hub or the format allows.
        """
        for row in rows:
            if len(row.key) > KEY_BYTES_MAX:
                raise SinkError(
                    f"{_named(row)} has a key of {len(row.key)} bytes; at most {KEY_BYTES_MAX} are possible"
                )
        columns = batch_format.columns_from_lists(
            struct.pack(f"<{len(rows)}q", *(row.time for row in rows)),
            [row.key for row in rows],
            [row.payload for row in rows],
            {index: row.headers for index, row in enumerate(rows)},
        )
        try:
            data = batch_format.encode(STREAM_NUMBER, first, columns, self._clock, self._compressor, origin=ORIGIN)
        except ValueError as error:
            raise SinkError(f"{_named(rows[0])} cannot be sent: {error}") from error
        if len(data) > self._bytes_max:
            raise SinkError(
                f"{_named(rows[0])} begins a batch of {len(data)} bytes, and the hub's limit is {self._bytes_max}. "
                "Make the rows shorter, or raise the hub's limits.batch"
            )
        return Batch(first, first + len(rows), data)


def _named(row: Row) -> str:
    return f"the row of source offset {row.position.offset}, number {row.position.ordinal},"


# Rows of a micro-batch in the order of their lanes.

NANOSECONDS = 1000
"""Nanoseconds in a microsecond, the unit of Spark's times."""
TIME_US_MAX = ((1 << 63) - 1) // NANOSECONDS


def ordered(frame: DataFrame, tasks: int, spread: int = 1) -> DataFrame:
    """Return the rows in sending order: the rows of a source shard in one partition, in the order of its lane. A
    partition has the rows of one edge.

    Rows of one source record are ordered by ``_ordinal``, or without that column by their content: a repeated
    micro-batch gives each row the same place.

    Args:
        tasks: number of partitions; of a query that is spread, rounded up to the next multiple of ``spread``.
        spread: number of the query's edges, as in ``ProducerSettings``.

    Raises:
        SinkError: a column is missing, or of another type.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, why in (
        ("_shard", "the source shard of the record that caused the row"),
        ("_offset", "the offset of the record that caused the row"),
        ("key", "the record's key: a topic or routing key"),
        ("payload", "the record's bytes; pack columns with to_json(struct(...)) before"),
    ):
        if name not in types:
            raise SinkError(f"the rows have no column {name}, {why}; they have {', '.join(types) or 'no column'}")
    for name in ("key", "payload"):
        if not isinstance(types[name], StringType | BinaryType):
            raise SinkError(f"column {name} is {types[name].simpleString()}; cast it to string or binary")
    picked = frame.select(
        F.col("_shard").cast("int").alias("_shard"),
        F.col("_offset").cast("long").alias("_offset"),
        _ordinal(types).alias("_ordinal"),
        F.unix_micros(_time(types)).alias("_time"),
        F.col("key").cast("binary").alias("_key"),
        F.col("payload").cast("binary").alias("_payload"),
        _headers(types).alias("_headers"),
        _lineage(types).alias("_lineage"),
    )
    by: list[str | Column] = ["_offset", "_ordinal", "_key", "_payload", "_time", "_lineage"]
    if "headers" in types:
        by.append(F.array_sort(F.map_entries("_headers")))
    if spread == 1:
        parted = picked.repartition(tasks, "_shard")
    else:
        # A link is of one edge. Each task has one, since the hub bounds the links of a token.
        count = -(-tasks // spread) * spread
        parted = picked.repartitionById(count, F.coalesce(F.pmod("_shard", F.lit(count)), F.lit(0)))
    return parted.sortWithinPartitions("_shard", *by)


def _ordinal(types: dict[str, Any]) -> Column:
    return F.col("_ordinal").cast("int") if "_ordinal" in types else F.lit(None).cast("int")


def _time(types: dict[str, Any]) -> Column:
    """Return the record's time: the column ``time``, else the time of the source record."""
    for name in ("time", "_time"):
        if name in types:
            if not isinstance(types[name], TimestampType):
                raise SinkError(f"column {name} is {types[name].simpleString()}; cast it to timestamp")
            return F.col(name)
    raise SinkError("the rows have no column time, the moment that the record is about; keep _time of the cause")


def _headers(types: dict[str, Any]) -> Column:
    kind = types.get("headers")
    if kind is None:
        return F.lit(None).cast("map<string,string>")
    if not isinstance(kind, MapType):
        raise SinkError(f"column headers is {kind.simpleString()}; expected map<string,string>")
    return F.col("headers").cast("map<string,string>")


def _lineage(types: dict[str, Any]) -> Column:
    return F.to_json(F.col("_from")) if "_from" in types else F.lit(None).cast("string")


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Row]]:
    """Yield source shard and row, in order, from the batches of ``ordered``.

    Raises:
        SinkError: a row has no position, key, payload or time, or two rows have one position.
    """
    shard_before, offset_before, ordinal = -1, -1, -1
    for batch in batches:
        for shard, offset, given, time, key, payload, headers, lineage in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if shard is None or offset is None or shard < 0 or offset < 0:
                raise SinkError(
                    f"a row has the shard {shard} and the offset {offset}; _shard and _offset must be those of the "
                    "record that caused it"
                )
            is_next = (shard, offset) == (shard_before, offset_before)
            if given is not None and (given < 0 or (is_next and given <= ordinal)):
                raise SinkError(
                    f"a row of offset {offset} of shard {shard} has the _ordinal {given}, negative or again; number "
                    "the rows of one source record from 0"
                )
            ordinal = given if given is not None else ordinal + 1 if is_next else 0
            shard_before, offset_before = shard, offset
            _check(shard, offset, key=key, payload=payload, time=time)
            if abs(time) > TIME_US_MAX:
                raise SinkError(
                    f"the row of offset {offset} of shard {shard} has the time {time} us; a stream accepts times "
                    "between the years 1678 and 2262"
                )
            position = Position(offset, ordinal)
            # Arrow returns a map as pairs; a null value has no text.
            own = sorted((name, value) for name, value in headers or () if value is not None)
            pairs = headers_of(position, shard, own, lineage)
            yield shard, Row(position, time * NANOSECONDS, key, payload, pairs)


def _check(shard: int, offset: int, **values: object) -> None:
    for name, value in values.items():
        if value is None:
            raise SinkError(
                f"the row of offset {offset} of shard {shard} has no {name} (null); filter such rows, or fill them"
            )
