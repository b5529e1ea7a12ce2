"""One step of a derived stream, ready to write: all of it becomes durable, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from weft.edge_node.derived.counters import FunctionCounters, Rejections
from weft.functions.chain import Alert, Alerts, Chain, Outputs, Rejected, ReplayOutputs
from weft.functions.contract import Gap, Row, Source, State, Values
from weft.functions.series import source_of, text_of
from weft.protocols.batch import HeaderPairs, records
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import OriginKind
from weft.protocols.message_headers import REASON, SOURCE
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.data_directory import FORMATS
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.pending import parts_max
from weft.storage.segment_log.reader import PageReader
from weft.storage.segment_log.settings import BATCH_OVERHEAD_BYTES, run_bytes

# Positions and states of functions as records of the log.
#
# Each step of a derived stream writes one record to the stream ``weft-functions``: the positions in the inputs, and
# the changes of the states. When the changes outweigh the states, a full copy follows, in pieces within later steps,
# so that no step is long because of it. A piece has the present values of its keys, and changes are still written
# meanwhile: all records from the copy's first on, in order, give the states. Older ones are then released.
#
# A record names the one before it, and a step's record has the end of its outputs. So a start detects when the disk
# has lost one (``StateGap``), and reports it in the outputs instead of continuing with numbers that look right.

READ_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
"""Approximate length of a piece of a copy, which a step writes beside its changes."""
COPY_BYTES_MIN = 256 << 10
"""Least bytes of changes after which a copy is begun."""
COPY_FACTOR = 2
"""Ratio of the changes to the last copy at which the next one begins."""
VERSION = FORMATS["functions"]

logger = logging.getLogger(__name__)


class Positions(msgspec.Struct, array_like=True):
    """Progress of a derived stream through its inputs."""

    inputs: dict[str, int] = {}
    """Name of an input -> number of the first record that no step has read."""
    tick: int = 0
    """Last second, in ns since 1970, up to which all rows of the inputs were handled."""
    times: dict[str, int] = {}
    """Name of an input -> time of the last row that was read."""
    hold: int = 1
    """Time below which the marks of the outputs stay."""
    last: dict[int, int] = {}
    """Number of a stream -> time of the last row written to it."""
    replayed: str = ""
    """Derived stream that this one is a replay of; empty for a stream of the configuration."""
    ends: dict[int, int] = {}
    """Number of a stream that only this function writes -> number after its last record of a step."""


class StateGap(NamedTuple):
    """Rows of an input whose effects on the states may be lost by damage of the disk."""

    input: str
    first: int
    end: int
    after: int
    """Time of the last row before them, ns since 1970; 0 when it is unknown."""


class _Entry(msgspec.Struct, array_like=True):
    """Value of one record."""

    version: int
    positions: Positions
    changes: dict[str, dict[bytes, Any]]
    """Label of a function -> key -> value, None for deleted keys."""
    begins_copy: bool = False
    piece: dict[str, dict[bytes, Any]] = {}
    """Values of the copy, likewise."""
    ends_copy: bool = False
    before: int = -1
    """Number of the record before it of the same derived stream; -1 for none."""
    labels: list[str] | None = None
    """Labels of all functions from now on: states of others are deleted. None: unchanged."""
    heals: bool = False
    """True where earlier losses have been reported."""


class _Beginning(msgspec.Struct, array_like=True):
    """Part of a record's value that each release can read."""

    version: int


class Remembered:
    """State of one derived stream in the log."""

    def __init__(self, *, may_lack_end: bool = False) -> None:
        self.positions = Positions()
        self.states: dict[str, dict[bytes, Any]] = {}
        """Label -> key -> value."""
        self.seqs: list[int] = []
        """Numbers of the records with this state."""
        self.old: list[int] = []
        """Numbers of records that are no longer needed."""
        self.size_bytes = 0
        """Length of all records since the node's first, or since the last copy."""
        self.gaps: dict[str, StateGap] = {}
        """Input -> rows whose changes to the states are missing."""
        self.may_lack_end = may_lack_end
        """True if records after the last one may have been lost."""
        self._copy: dict[str, dict[bytes, Any]] | None = None
        self._copy_from = 0
        self._copy_gaps: dict[str, StateGap] = {}

    def learn(self, seq: int, entry: _Entry, length: int) -> None:
        """Apply the next record."""
        self._look_for_loss(entry)
        self.seqs.append(seq)
        self.size_bytes = length if entry.begins_copy else self.size_bytes + length
        self.positions = entry.positions
        if entry.begins_copy:
            self._copy, self._copy_from = {}, len(self.seqs) - 1
        for states in (self.states, self._copy):
            if states is not None:
                if entry.labels is not None:
                    for label in states.keys() - entry.labels:
                        del states[label]
                _apply(states, entry.changes)
                # Also to states that need no copy: this record may be their only one.
                _apply(states, entry.piece)
        if self._copy is not None and entry.ends_copy:
            self.states, self._copy = self._copy, None
            self.gaps = self._copy_gaps
            self.old += self.seqs[: self._copy_from]
            del self.seqs[: self._copy_from]

    def _look_for_loss(self, entry: _Entry) -> None:
        if entry.begins_copy:
            self._copy_gaps = {}
        if entry.heals:
            self.gaps, self._copy_gaps = {}, {}
        elif entry.before >= 0 and (not self.seqs or self.seqs[-1] != entry.before):
            # Records before a copy may be missing: they are released. Once the copy is complete, they no longer matter.
            for name, end in entry.positions.inputs.items():
                first, after = self.positions.inputs.get(name, 0), self.positions.times.get(name, 0)
                for gaps in (self.gaps, *(() if entry.begins_copy else (self._copy_gaps,))):
                    known = gaps.get(name, StateGap(name, first, end, after))
                    gaps[name] = known._replace(end=max(end, known.end))


def _apply(states: dict[str, dict[bytes, Any]], changes: dict[str, dict[bytes, Any]]) -> None:
    for label, values in changes.items():
        own = states.setdefault(label, {})
        for key, value in values.items():
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value


class StateReader:
    """Reader of the states at the start of a node. Blocks; for a thread."""

    def __init__(self, log: SegmentLog, stream: int) -> None:
        """Read the whole stream.

        Raises:
            OSError, LogFailed: the log cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.streams: dict[str, Remembered] = {}
        """Name of a derived stream -> its state, also of streams that are no longer configured."""
        self._lost_end = 0
        """Number after the last record that was lost or cannot be decoded."""
        decoder = msgspec.msgpack.Decoder(_Entry)
        seq, end = 0, log.durable_end(stream)
        missing = RangeSet([(0, end)])
        while seq < end and (batches := log.read(stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    missing.remove(record.seq, seq)
                    self._learn(record.seq, record.key.decode(), record.payload, decoder)
        # Released records that were deleted have no notice.
        ends = [gone.end for gone in log.why_gone(stream, missing) if gone.reason is not None]
        self._lost_end = max(self._lost_end, *ends, 0)
        for remembered in self.streams.values():
            remembered.may_lack_end = remembered.seqs[-1] < self._lost_end

    def of(self, name: str) -> Remembered:
        """Remove the state of a derived stream from ``streams`` and return it."""
        found = self.streams.pop(name, None)
        if found is None:
            found = Remembered(may_lack_end=self._lost_end > 0)
        return found

    def _learn(self, seq: int, name: str, payload: bytes, decoder: msgspec.msgpack.Decoder[_Entry]) -> None:
        try:
            if msgspec.msgpack.decode(payload, type=_Beginning).version > VERSION:
                raise UnsupportedVersion(
                    f"the functions of stream {name} have run in a later release: install that again"
                )
            entry = decoder.decode(payload)
        except msgspec.MsgspecError as error:
            logger.error("a step of the functions of stream %s cannot be read: %s", name, error)
            self._lost_end = seq + 1
            return
        self.streams.setdefault(name, Remembered()).learn(seq, entry, len(payload))


class StateWriter:
    """Writer of the records of one derived stream, and of their release."""

    def __init__(self, name: str, remembered: Remembered, *, forgets: bool = False, heals: bool = False) -> None:
        """Continue after the log's last record.

        Args:
            forgets: the functions begin with empty memory, despite states in the log.
            heals: the next step reports the losses.
        """
        self.key = name.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._seqs = list(remembered.seqs)
        self._changed_bytes = remembered.size_bytes
        self._copied_bytes = 0
        self._copy: Iterator[tuple[str, bytes, Any]] | None = None
        self._copied: list[State] = []
        """States that the copy belongs to. Other functions have other states."""
        self._copy_from = 0
        self._has_ended = False
        self._labels: list[str] | None = None
        """Labels in the log."""
        self._forgets, self._heals = forgets, heals

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the last copy, and of the changes since."""
        return self._copied_bytes + self._changed_bytes

    def entry(self, positions: Positions, states: Iterable[tuple[str, State]]) -> bytes:
        """Return the record of a step: all changes since the last call, and a piece of a copy if one is under way. Call
        ``written`` afterwards."""
        states = list(states)
        changes = {label: changed for label, state in states if (changed := state.take_changes())}
        before = self._seqs[-1] if self._seqs else -1
        entry = _Entry(VERSION, positions, changes, before=before, heals=self._heals)
        labels = [label for label, _ in states]
        if labels != self._labels:
            entry.labels, self._labels = [] if self._forgets else labels, labels
        is_other = self._copy is not None and [id(own) for own in self._copied] != [id(own) for _, own in states]
        outweighs = self._changed_bytes > max(COPY_BYTES_MIN, COPY_FACTOR * self._copied_bytes)
        if is_other or (self._copy is None and outweighs):
            entry.begins_copy = True
            self._changed_bytes = self._copied_bytes = 0
            self._copied = [state for _, state in states]
            self._copy, self._copy_from = _all_of(states), len(self._seqs)
        if self._copy is not None:
            self._add_piece(entry, self._copy)
        payload = self._encoder.encode(entry)
        self._changed_bytes += len(payload)
        return payload

    def written(self, seq: int) -> RangeSet:
        """Set the record's number. Return the records to release once it is durable."""
        self._seqs.append(seq)
        self._forgets = self._heals = False
        gone = RangeSet()
        if self._has_ended:
            self._has_ended = False
            for old in self._seqs[: self._copy_from]:
                gone.add(old, old + 1)
            del self._seqs[: self._copy_from]
        return gone

    def _add_piece(self, entry: _Entry, copy: Iterator[tuple[str, bytes, Any]]) -> None:
        size = 0
        while size < PIECE_BYTES:
            found = next(copy, None)
            if found is None:
                entry.ends_copy = self._has_ended = True
                self._copy = None
                break
            label, key, value = found
            encoded = self._encoder.encode(value)
            entry.piece.setdefault(label, {})[key] = msgspec.Raw(encoded)
            size += len(encoded) + len(key)
        self._copied_bytes += size


def _all_of(states: Iterable[tuple[str, State]]) -> Iterator[tuple[str, bytes, Any]]:
    """Yield label, key and present value of every entry."""
    for label, state in states:
        for key in list(state.values):
            if (value := state.values.get(key)) is not None:
                yield label, key, value


def tombstone(name: str, remembered: Remembered) -> tuple[bytes, bytes]:
    """Return key and value of a record that keeps the positions of a derived stream, and none of its states: if the
    stream returns, it emits nothing twice."""
    before = remembered.seqs[-1]
    entry = _Entry(VERSION, remembered.positions, {}, begins_copy=True, ends_copy=True, before=before, labels=[])
    return name.encode(), msgspec.msgpack.encode(entry)


ROW_BYTES_MAX = (8 << 20) - (64 << 10)
"""Maximum bytes of a row's key and payload; longer ones are rejected. With usual headers it is a record that hubs take
by default (``limits.record``)."""
REASON_CHARACTERS_MAX = 500
_SHOWN_BYTES = 4096
"""Number of bytes kept of a payload that is too long."""


class StreamRows(NamedTuple):
    """Rows for one stream."""

    stream: int
    keys: list[bytes]
    payloads: list[bytes]
    headers: dict[int, HeaderPairs]
    times: list[int]


class Step(NamedTuple):
    """Contents of a step."""

    runs: list[StreamRows]
    alerts: list[Alert]
    entry: bytes
    """Record of positions and states."""
    positions: Positions
    version: str
    """Version of the functions, and of the files that they read."""
    digest: bytes
    """Checksum of their settings."""

    def room(self) -> int:
        """Return the bytes of all records with headers, as ``SegmentLog.together`` counts them."""
        runs = sum(run_bytes(run.keys, run.payloads, run.headers) for run in self.runs)
        batches = sum(parts_max(run.times) for run in self.runs)
        alerts = sum(len(alert.topic) + len(alert.payload) + BATCH_OVERHEAD_BYTES for alert in self.alerts)
        return runs + 4 * alerts + len(self.entry) + BATCH_OVERHEAD_BYTES * (batches + 2 * len(self.runs) + 2)


def write(  # noqa: PLR0917
    log: SegmentLog, step: Step, state: tuple[int, bytes], origin: int, now: int, alert: Callable[[Alert], None]
) -> int:
    """Append a step as a whole. Return the number of its record of positions and states.

    Args:
        state: number of the stream of states, and the key of the derived stream in it.
        origin: number of the functions' version.
        now: ns since 1970.
        alert: publishes within the same commit.

    Raises:
        LogFull, LogFailed: nothing was appended.
    """
    stream, key = state
    log.ask_room([(run.stream, run.keys, run.payloads, run.headers) for run in step.runs], now)
    with log.together(step.room(), uses_spare=True):
        for run in step.runs:
            log.append(run.stream, now, run.keys, run.payloads, run.headers or None, origin=origin, times=run.times)
        for message in step.alerts:
            alert(message)
        return log.append(stream, now, [key], [step.entry])


def runs_of(
    outputs: Outputs, own: int, errors: int, others: Mapping[str, int], *, after: int, last: dict[int, int]
) -> list[StreamRows]:
    """Return the outputs of a chain by their stream.

    Args:
        own: number of the derived stream.
        errors: number of its stream of errors.
        others: name -> number of the streams that rows are routed to.
        after: time that every row must be later than: marks may have passed it.
        last: number of a stream -> time of the last row written to it; updated by this call. Overlapping windows emit
            rows whose times go back. For a reader of the stream, a row means that all rows before its time have come,
            so such a row gets the time of the one before it.
    """
    rejected = list(outputs.rejected)
    runs = []
    for stream, rows in [(own, outputs.rows), *((others[name], rows) for name, rows in outputs.routed.items())]:
        fits = [row for row in rows if len(row.payload or b"") + len(row.key) <= ROW_BYTES_MAX]
        if len(fits) < len(rows):
            rejected += [
                Rejected(row, f"a row of more than {ROW_BYTES_MAX} bytes")
                for row in rows
                if len(row.payload or b"") + len(row.key) > ROW_BYTES_MAX
            ]
        runs.append(_run(stream, fits, after, last))
    runs.append(_run(errors, [_error_row(each) for each in rejected], after, last))
    return [run for run in runs if run.keys]


def _run(stream: int, rows: Iterable[Row], after: int, last: dict[int, int]) -> StreamRows:
    run = StreamRows(stream, [], [], {}, [])
    time = max(after + 1, last.get(stream, 0))
    for index, row in enumerate(rows):
        run.keys.append(row.key)
        run.payloads.append(row.payload or b"")
        time = max(time, row.time)
        run.times.append(time)
        headers = _with_source(row.headers, row.source) if row.source else row.headers
        if headers:
            run.headers[index] = headers
    if run.keys:
        last[stream] = time
    return run


def _with_source(headers: HeaderPairs, source: Source) -> HeaderPairs:
    """Return headers with the source of their row, in place of the source of an input record."""
    return (*(pair for pair in headers if pair[0] != SOURCE), (SOURCE, text_of(source)))


def _error_row(rejected: Rejected) -> Row:
    row, reason = rejected.row, rejected.reason
    headers = (*(() if row.is_private else row.headers), (REASON, reason[:REASON_CHARACTERS_MAX]))
    if source := source_of(row):
        headers = _with_source(headers, source)
    payload = row.payload if row.original is None else row.original
    if row.is_private:
        payload = b""
    elif payload is None:
        payload = _as_json(row.values)
    if len(payload) + len(row.key) > ROW_BYTES_MAX:
        payload = payload[:_SHOWN_BYTES]
    return Row(row.time, row.key, payload, {}, headers)


def _as_json(values: Values) -> bytes:
    """Return the values of a row that a function created as JSON. The stream's own format may be unable to hold
    them."""
    try:
        return msgspec.json.encode(values, enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(values)[:_SHOWN_BYTES].encode(errors="replace")


# Holds on the marks of streams that functions write.


class MarkHolds:
    """Times below which the marks of streams stay, since rows from then on may still come. Several functions may write
    to one stream: the least of their times counts."""

    def __init__(self, hold_mark: Callable[[int, int | None], None]) -> None:
        """Set the log's function (``SegmentLog.hold_mark``)."""
        self._hold_mark = hold_mark
        self._times: dict[int, dict[str, int]] = {}

    def hold(self, writer: str, streams: tuple[int, ...], time: int) -> None:
        """Hold the marks of streams below a time for one writer."""
        for stream in streams:
            own = self._times.setdefault(stream, {})
            own[writer] = time
            self._hold_mark(stream, min(own.values()))

    def hold_also(self, writer: str, streams: tuple[int, ...]) -> None:
        """Hold the marks of further streams at the time of the writer's other streams; for a new writer, at their
        present time."""
        times = [own[writer] for own in self._times.values() if writer in own]
        for stream in streams:
            if writer not in self._times.get(stream, {}):
                self.hold(writer, (stream,), min(times, default=1))

    def keep_only(self, writer: str, streams: tuple[int, ...]) -> None:
        """Release all other streams of a writer, which only writes to these from now on."""
        for stream, own in self._times.items():
            if stream not in streams and own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))

    def lift(self, writer: str) -> None:
        """Release all holds of a writer that has ended."""
        for stream, own in self._times.items():
            if own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))


# Parts that a derived stream uses.


class StreamNumbers(NamedTuple):
    """Numbers of the streams that a derived stream reads and writes."""

    own: int
    errors: int
    states: int
    inputs: Mapping[str, int]
    """Name -> number, in the order of the configuration."""
    others: Mapping[str, int]
    """Name -> number, of streams that rows are routed to."""
    written: Set[str] = frozenset()
    """Names of all streams that functions write, whose rows are not in the order of time. It may change."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return the streams that rows are written to, whose marks are held."""
        return (self.own, self.errors, *self.others.values())


class DerivedContext(NamedTuple):
    """Parts of the node that derived streams work with."""

    log: SegmentLog
    pages: PageReader
    mark_holds: MarkHolds
    alerts: Alerts
    released: Callable[[str, str, RangeSet], None]
    """Called with (derived stream, input, numbers) for records that a function has read, durably."""
    read_states: Callable[[str], Remembered]
    """Reads the state of a derived stream from the log. Blocks; for a thread."""
    turn: Callable[[], Awaitable[None]]
    """Returns when the node has time for more."""
    wall_clock: Callable[[], int]
    """Time in ns since 1970."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], Awaitable[None]]
    """Waits for some seconds."""


class Version(NamedTuple):
    """Version of the functions of a stream."""

    name: str
    digest: bytes
    """Checksum of their settings."""
    make_chain: Callable[[], Chain]
    """Creates the functions, without any state."""
    replayed: str = ""
    """Derived stream that is computed again; empty for a stream of the configuration."""
    whole: bytes = b""
    """Checksum of the settings with the folders of files."""

    def works_like(self, other: Version) -> bool:
        """Return whether another version has the same functions."""
        return (self.digest, self.whole) == (other.digest, other.whole)

    def text(self, files: str = "") -> str:
        """Return the text of the version in the origin of rows; ``files`` is the version of the files that the
        functions read."""
        return self.digest.hex()[:8] + (f"-{files}" if files else "")


# Losses of functions' states by damage of the disk: they must not lead to wrong results that look right.

CORRUPTION = GapReason.CORRUPTION.name.lower()


class StateGaps(NamedTuple):
    """Losses that the outputs report before the next row."""

    of: list[StateGap]
    forgets: bool = False
    """True where the latest records are lost: the functions' positions are unknown, so they resume at the next record,
    with empty memory. The records between are reported, and a replay can compute them."""


def state_gaps_of(log: SegmentLog, streams: StreamNumbers, remembered: Remembered, now: int) -> StateGaps:
    """Return the losses of a derived stream. Where the latest records are lost, move its positions to the end.

    It has written outputs without a record of them: reading the same rows again would emit them twice.

    Args:
        now: ns since 1970.
    """
    known = remembered.positions
    outputs = (streams.own, streams.errors)
    if remembered.may_lack_end and any(log.next_seq(stream) > known.ends.get(stream, 0) for stream in outputs):
        ends = {name: log.durable_end(stream) for name, stream in streams.inputs.items()}
        lost = [StateGap(name, known.inputs.get(name, 0), end, known.times.get(name, 0)) for name, end in ends.items()]
        remembered.positions = msgspec.structs.replace(
            known, inputs={**known.inputs, **ends}, hold=max(known.hold, now), last={}
        )
        remembered.states = {}
        return StateGaps(_named(lost), forgets=True)
    return StateGaps(_named([gap for name, gap in remembered.gaps.items() if name in streams.inputs]))


def _named(gaps: list[StateGap]) -> list[StateGap]:
    """Return the losses that name rows; a loss between two rows names the row before."""
    found = [gap for gap in gaps if gap.end > gap.first]
    return found or [gap._replace(first=gap.end - 1) for gap in gaps[:1] if gap.end]


async def report_gaps(gaps: StateGaps, chain: Chain, positions: Positions, out: Outputs, name: str) -> int:
    """Mark windows that lack rows as incomplete, and report the losses in the stream of errors. Return the number of
    reported losses: 0 for functions without a memory."""
    if not gaps.forgets and not any(True for _ in chain.states()):
        return 0
    # Due rows were emitted by then, and the record of that may be among the lost ones.
    while (due := chain.due()) is not None and due <= positions.tick:
        await chain.tick(due, ReplayOutputs())
    for gap in gaps.of:
        chain.gap(Gap(gap.input, gap.first, gap.end, CORRUPTION, gap.after), out)
        payload = {"input": gap.input, "first": gap.first, "end": gap.end, "reason": CORRUPTION}
        out.reject(Row(positions.hold, name.encode(), msgspec.json.encode(payload), {}), _sentence(gap))
    return len(gaps.of)


def _sentence(gap: StateGap) -> str:
    return (
        f"the disk lost what the functions knew of {gap.input} {gap.first} to {gap.end - 1}: "
        "these records may be counted in part or not at all"
    )


# Writer of the steps of one derived stream.


class StepWriter:
    """Writer of steps, one at a time. Once a step is durable, it releases records in the log and moves the marks of the
    stream."""

    def __init__(
        self,
        name: str,
        streams: StreamNumbers,
        context: DerivedContext,
        counters: FunctionCounters,
        rejections: Rejections,
    ) -> None:
        """Write to some streams. Call ``resume`` afterwards."""
        self._rejections = rejections
        self._name = name
        self._streams = streams
        self._context = context
        self._counters = counters
        self._written = streams.outputs
        self._pending: Step | None = None
        """Step without room in the log."""
        self._declared_until = 0
        """Time up to which marks may have declared the stream complete."""

    def resume(self, remembered: Remembered, *, forgets: bool = False, heals: bool = False) -> None:
        """Continue after the log's last record; drop a step that is not in the log.

        Args:
            forgets: the functions begin with empty memory.
            heals: the next step reports the losses of their states.
        """
        self._states = StateWriter(self._name, remembered, forgets=forgets, heals=heals)
        self._last = dict(remembered.positions.last)
        self._pending = None
        self._hold(remembered.positions.hold)

    @property
    def waits(self) -> bool:
        """Return whether a step waits for room in the log."""
        return self._pending is not None

    def take(
        self, outputs: Outputs, positions: Positions, states: Iterable[tuple[str, State]], version: Version, files: str
    ) -> None:
        """Write a step.

        Args:
            files: version of the files that the functions read.

        Raises:
            LogFull, LogFailed: the step is not written; ``retry`` tries again.
        """
        streams, context = self._streams, self._context
        runs = runs_of(
            outputs, streams.own, streams.errors, streams.others, after=self._declared_until, last=self._last
        )
        positions.last = dict(self._last)
        # Sent marks remain valid, even when the clock is set back.
        positions.hold = max(positions.hold, self._declared_until + 1)
        positions.ends = {stream: context.log.next_seq(stream) for stream in (streams.own, streams.errors)}
        for run in runs:
            if run.stream in positions.ends:
                positions.ends[run.stream] += len(run.keys)
        text = version.text(files)
        self._pending = Step(
            runs, outputs.alerts, self._states.entry(positions, states), positions, text, version.digest
        )
        self.retry()

    def retry(self) -> None:
        """Write the waiting step.

        Raises:
            LogFull, LogFailed: it is not written.
        """
        step, context = self._pending, self._context
        assert step is not None
        origin = context.log.origin(OriginKind.FUNCTION, self._name, step.version, step.digest)
        if step.alerts:
            context.alerts.ready()
        place = (self._streams.states, self._states.key)
        seq = write(context.log, step, place, origin, context.wall_clock(), context.alerts)
        self._pending = None
        gone = self._states.written(seq)
        context.log.on_durable(lambda error: self._durable(step, gone) if error is None else None)
        self._count(step)

    def hold_once_durable(self, time: int) -> None:
        """Move marks to a time, once all writes are durable."""
        self._context.log.on_durable(lambda error: self._hold(time) if error is None else None)

    def release_read(self, positions: Positions) -> None:
        """Release the records of the inputs that durable positions have passed."""
        for name, seq in positions.inputs.items():
            if seq and name in self._streams.inputs:
                self._context.released(self._name, name, RangeSet([(0, seq)]))

    # --- inside

    def _durable(self, step: Step, gone: RangeSet) -> None:
        context = self._context
        if gone:
            context.log.release(self._streams.states, gone)
        self.release_read(step.positions)
        self._hold(step.positions.hold)

    def _hold(self, time: int) -> None:
        self._declared_until = max(self._declared_until, time - 1)
        self._context.mark_holds.hold(self._name, self._written, self._declared_until + 1)
        self._counters.until = self._declared_until

    def _count(self, step: Step) -> None:
        counters, streams = self._counters, self._streams
        counters.steps += 1
        counters.state_bytes = self._states.size_bytes
        counters.alerts += len(step.alerts)
        counters.version = step.version
        for run in step.runs:
            if run.stream == streams.own:
                counters.rows_out += len(run.keys)
                counters.bytes_out += sum(map(len, run.payloads))
            elif run.stream == streams.errors:
                counters.rows_rejected += len(run.keys)
                found = (text for pairs in run.headers.values() for name, text in pairs if name == REASON)
                self._rejections.note(map(str, found))
            else:
                counters.rows_routed += len(run.keys)
