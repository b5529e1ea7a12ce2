"""The state of queues in the log: records of changes, their writer, the restore when a node starts, and the number of
queues that need each stored message."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from weft.edge_node.queues.exchange import Topology, numbers_in
from weft.edge_node.queues.limits import QueueContext
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.ready import SeqRuns
from weft.edge_node.sessions.backlog import DecodedBatch
from weft.protocols.batch import records
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.message_headers import PRIORITY
from weft.protocols.ranges import RangeSet
from weft.storage.data_directory import FORMATS
from weft.storage.segment_log import LogError, SegmentLog

# Records of the stream ``weft-queues-state``: changes to exchanges, queues and bindings, and copies of the whole
# state.

VERSION = FORMATS["queues"]


class Runs(msgspec.Struct, array_like=True):
    """Numbers of messages (``SeqRuns.to_bytes``)."""

    firsts: bytes = b""
    counts: bytes = b""


class Settled(msgspec.Struct, array_like=True):
    """Messages that left a queue."""

    messages: Runs
    bytes: int
    """Their payload bytes."""


class QueueCopy(msgspec.Struct, array_like=True):
    """Content of a queue."""

    number: int
    bytes: int
    """Payload bytes of its messages, delivered ones included."""
    levels: dict[int, Runs]
    """Priority -> messages in their order."""
    others: list[tuple[int, int]]
    """Number and priority of messages outside of that order, because they were delivered or came back."""
    attempts: dict[int, int]
    marked: int
    suspect: int


class Changes(msgspec.Struct, array_like=True, omit_defaults=True):
    """Value of one record. Removals apply before additions."""

    version: int = VERSION
    settled: dict[int, Settled] = {}
    """Number of a queue -> messages that left it."""
    marked: dict[int, int] = {}
    """Number of a queue -> first message that may not have been delivered yet."""
    attempts: dict[int, dict[int, int]] = {}
    """Number of a queue -> message -> failed deliveries."""
    bindings_gone: list[BindingDefinition] = []
    queues_gone: list[int] = []
    exchanges_gone: list[str] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []
    started: int = -1
    """At the start of a run: number after the last message in the log. Earlier records about later messages are void,
    since a crash lost them."""
    stopped: bool = False
    """True for the last record of a run that ended in order: unsettled deliveries are in ``attempts``."""
    copy_begins: bool = False
    """True for the first record of a copy: all before it is void once ``copy_ends`` is there."""
    copy_ends: bool = False
    through: int = 0
    """Number of the first message that is not in the copy."""
    next_number: int = 0
    """Number of the next queue, in a copy."""
    contents: list[QueueCopy] = []


def read_changes(value: bytes) -> Changes:
    """Return the changes of a record's value. Elements behind the known ones are of a later release, and skipped.

    Raises:
        UnsupportedVersion: a later release wrote it, and this one must not guess.
        Corrupt: the value has another form.
    """
    try:
        if _BEGINNING.decode(value).version > VERSION:
            raise UnsupportedVersion("a later release has changed the queues of this node: install that again")
        return _CHANGES.decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a change of exchanges and queues cannot be read: {error}") from None


class Beginning(msgspec.Struct, array_like=True):
    """Part of a record's value that each release can read."""

    version: int


_BEGINNING = msgspec.msgpack.Decoder(Beginning)
_CHANGES = msgspec.msgpack.Decoder(Changes)


# Writer of the changes of exchanges, queues and their messages into the log.

RESERVE_BYTES = 1024
"""Room beside its value that a record takes in the log."""
COPY_CHANGES_BYTES = 1 << 20
"""Least bytes of changes after which a copy is written, in a log that is not small."""
COPY_SHARE = 256
"""Divisor of the log's budget for the same in a small log: acknowledgements need room in a full one."""
COPY_MESSAGES_BYTES = 32 << 20
"""Least bytes of messages after which a copy is written: a start reads about so many."""
MESSAGE_BYTES = 512
"""Bytes that a message counts as beside its payload, since a start reads the headers of each: 65,536 small messages
take it a second or two."""
COPY_FACTOR = 4
"""Times that the changes outweigh the last copy, and a quarter of the messages, when the next is written."""
PIECE_BYTES = 1 << 20
"""Length of a record of a copy, about."""
DEFINITION_BYTES = 200
"""Length of a definition, about."""
BINDINGS_AT_ONCE = 512
"""Bindings of a copy between two checks of its record's length."""
ENTRY_BYTES = 12
"""Length of the number of a message, about."""

logger = logging.getLogger(__name__)


class QueueStateWriter:
    """Writer that gathers changes, and writes them together at the end of each turn of the loop. Event loop's thread
    only.

    Its records are first in each commit. So the log has a mark for each delivery of a message that outlives a crash;
    records about messages that a crash lost are void (``Changes.started``).

    Args:
        topology: content of a copy, beside the messages of its queues.
    """

    def __init__(self, context: QueueContext, topology: Topology) -> None:
        log = context.log
        self._log = log
        self._stream = context.state_stream
        self._messages = context.stream
        self._clock = context.clock
        self._batch = context.batch
        self._topology = topology
        self._settled: dict[int, list[tuple[int, int]]] = {}
        self._settled_bytes: dict[int, int] = {}
        self._marked: dict[int, int] = {}
        self._attempts: dict[int, dict[int, int]] = {}
        self._queues_gone: list[int] = []
        self._bindings_gone: list[BindingDefinition] = []
        self._exchanges_gone: list[str] = []
        self._started = -1
        self._awaited = False
        self.first = 0
        """Number of the first record that is needed."""
        self.changed_bytes = self.message_bytes = self.copied_bytes = 0
        """Bytes of changes and of messages since the last copy, and of that copy."""
        self.next_number = 1
        self._copy_changes_bytes = min(COPY_CHANGES_BYTES, log.stats().budget_bytes // COPY_SHARE)
        log.lead(self._stream)

    def restore(self, state: QueueState) -> None:
        """Continue after the records that a start has read."""
        self.next_number, self.first = state.next_number, state.first
        self.changed_bytes, self.message_bytes = state.changed_bytes, state.message_bytes

    # --- changes

    def settled(self, queue: Queue, runs: Iterable[tuple[int, int]], size: int) -> None:
        """Note that messages left a queue.

        Args:
            runs: first and end of their numbers.
            size: their charge.
        """
        if queue.kept:
            number = queue.number
            self._settled.setdefault(number, []).extend(runs)
            self._settled_bytes[number] = self._settled_bytes.get(number, 0) + size
            self._call()

    def marked(self, queue: Queue, end: int) -> None:
        """Note that messages of a queue below a number may be delivered from now on."""
        self._marked[queue.number] = end
        self._call()

    def attempted(self, queue: Queue, seq: int) -> None:
        """Note that a delivery failed."""
        if queue.kept:
            self._attempts.setdefault(queue.number, {})[seq] = queue.marks.attempts[seq]
            self._call()

    def gone(
        self, *, queues: Iterable[int] = (), bindings: Iterable[BindingDefinition] = (), exchanges: Iterable[str] = ()
    ) -> None:
        """Note that something was deleted."""
        for number in queues:
            self._queues_gone.append(number)
            for changes in (self._settled, self._settled_bytes, self._marked, self._attempts):
                changes.pop(number, None)
        self._bindings_gone += bindings
        self._exchanges_gone += exchanges
        if self._waits:
            self._call()

    def came(
        self,
        *,
        queues: Iterable[QueueDefinition] = (),
        bindings: Iterable[BindingDefinition] = (),
        exchanges: Iterable[ExchangeDefinition] = (),
    ) -> None:
        """Write a declaration, and all changes before it.

        Raises:
            LogFull, LogFailed: the declaration is not written; earlier changes still wait.
        """
        changes = self._take()
        changes.queues, changes.bindings, changes.exchanges = [*queues], [*bindings], [*exchanges]
        self._write_or_keep(changes, uses_spare=False)

    # --- writing

    def flush(self) -> None:
        """Write the changes. Changes without room wait for the next time: a crash before that redelivers messages.

        Raises:
            LogFailed: the log accepts no more records.
        """
        if self._waits:
            self._write_or_keep(self._take(), uses_spare=True)

    def started(self, end: int) -> None:
        """Note that a run begins, and the end of the messages. It is written before anything else."""
        self._started = end
        self._call()

    def stopped(self) -> None:
        """Write a copy, and that the run ended in order."""
        self.copy()
        self._write(Changes(stopped=True), uses_spare=True)

    def copy_if_due(self) -> None:
        """Write a copy when the changes outweigh the last one."""
        least = COPY_FACTOR * self.copied_bytes
        if self.changed_bytes > max(self._copy_changes_bytes, least) or self.message_bytes > max(
            COPY_MESSAGES_BYTES, 4 * least
        ):
            try:
                self.copy()
            except LogError as error:
                logger.warning("no copy of the state of queues was written: %s", error)

    def copy(self) -> None:
        """Write all of the state, in one commit that a crash leaves whole or not at all.

        Raises:
            LogFull, LogFailed: it is not written.
        """
        self.flush()
        encoder = msgspec.msgpack.Encoder()
        pieces = [encoder.encode(each) for each in self._pieces()]
        size = sum(map(len, pieces))
        first = self._log.next_seq(self._stream)
        with self._log.together(size + RESERVE_BYTES * len(pieces), uses_spare=True):
            for piece in pieces:
                self._log.append(self._stream, self._clock(), [b""], [piece])
        self.copied_bytes, self.changed_bytes, self.message_bytes = size, 0, 0
        old = RangeSet([(self.first, first)])
        self.first = first
        self._log.on_durable(lambda error: None if error else self._log.release(self._stream, old))

    def _pieces(self) -> Iterator[Changes]:
        piece = Changes(copy_begins=True, through=self._log.next_seq(self._messages), next_number=self.next_number)
        size = 0
        for each in self._topology.kept_definitions():
            if isinstance(each, ExchangeDefinition):
                piece.exchanges.append(each)
            else:
                piece.queues.append(each)
            size += DEFINITION_BYTES
            if size > PIECE_BYTES:
                yield piece
                piece, size = Changes(), 0
        for group in self._topology.kept_bindings():
            # In slices, not one by one: 65,536 would take 30 ms.
            bindings = iter(group)
            while some := list(islice(bindings, BINDINGS_AT_ONCE)):
                piece.bindings += some
                size += DEFINITION_BYTES * len(some) + sum(len(each.arguments) for each in some)
                if size > PIECE_BYTES:
                    yield piece
                    piece, size = Changes(), 0
        for queue in self._topology.kept_queues():
            for found in contents_of(queue):
                piece.contents.append(found)
                size += DEFINITION_BYTES + sum(2 * len(runs.firsts) for runs in found.levels.values())
                size += ENTRY_BYTES * (len(found.others) + len(found.attempts))
                if size > PIECE_BYTES:
                    yield piece
                    piece, size = Changes(), 0
        piece.copy_ends = True
        yield piece

    @property
    def _waits(self) -> bool:
        return bool(
            self._settled
            or self._marked
            or self._attempts
            or self._queues_gone
            or self._bindings_gone
            or self._exchanges_gone
            or self._started >= 0
        )

    def _take(self) -> Changes:
        return Changes(
            settled={
                number: Settled(_runs_of(parts), self._settled_bytes[number]) for number, parts in self._settled.items()
            },
            marked=self._marked,
            attempts=self._attempts,
            bindings_gone=self._bindings_gone,
            queues_gone=self._queues_gone,
            exchanges_gone=self._exchanges_gone,
            started=self._started,
        )

    def _write_or_keep(self, changes: Changes, *, uses_spare: bool) -> None:
        self._write(changes, uses_spare=uses_spare)
        self._settled, self._settled_bytes, self._marked, self._attempts = {}, {}, {}, {}
        self._queues_gone, self._bindings_gone, self._exchanges_gone = [], [], []
        self._started = -1

    def _write(self, changes: Changes, *, uses_spare: bool) -> None:
        payload = msgspec.msgpack.encode(changes)
        self.changed_bytes += len(payload)
        if self._log.appended_together() is not None:
            self._log.append(self._stream, self._clock(), [b""], [payload])
            return
        with self._log.together(len(payload) + RESERVE_BYTES, uses_spare=uses_spare):
            self._log.append(self._stream, self._clock(), [b""], [payload])

    def _call(self) -> None:
        if not self._awaited:
            self._awaited = True
            self._batch.at_end(self._at_end)

    def _at_end(self) -> None:
        self._awaited = False
        try:
            self.flush()
        except LogError as error:
            logger.warning("changes of queued messages are not in the log yet: %s", error)
            return
        self.copy_if_due()


def _runs_of(parts: list[tuple[int, int]]) -> Runs:
    firsts, counts, latest = array("Q"), array("Q"), -1
    for first, end in sorted(parts):
        if first >= end:
            continue  # a purge names one between two delivered messages that follow each other
        if first == latest:
            counts[-1] += end - first
        else:
            firsts.append(first)
            counts.append(end - first)
        latest = end
    return Runs(firsts.tobytes(), counts.tobytes())


def contents_of(queue: Queue) -> Iterator[QueueCopy]:
    """Yield the copy of a queue, in several parts if it is long."""
    others = [*queue.ready.withheld]
    others += [(delivery.seq, delivery.priority) for delivery in queue.unsettled]
    for priority, _, returned in queue.ready.levels():
        others += [(seq, priority) for seq in returned]
    size, marks = queue.ready.bytes + queue.unsettled.bytes, queue.marks
    marked = marks.highest  # earlier marks are void with this copy
    if not (size or others or queue.count or marks.attempts or marked or marks.suspect):
        return  # its definition alone restores it
    yield QueueCopy(queue.number, size, {}, others, marks.attempts, marked, marks.suspect)
    for priority, fresh, _ in queue.ready.levels():
        for firsts, counts in fresh.to_bytes():
            yield QueueCopy(queue.number, 0, {priority: Runs(firsts, counts)}, [], {}, 0, 0)


# Restore of the state of queues when a node starts: from the last copy, the changes since, and the messages since,
# without their payloads.

READ_BYTES = 1 << 20


class RememberedQueue:
    """State of one queue in the log."""

    def __init__(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self.levels: dict[int, SeqRuns] = {}
        """Priority -> messages."""
        self.others: dict[int, int] = {}
        """Message outside of that order -> its priority."""
        self.bytes = 0
        self.attempts: dict[int, int] = {}
        self.marked = self.suspect = 0
        self.left: list[tuple[int, int]] = []
        """First and end of runs of messages that left since the copy."""

    def copied(self, copy: QueueCopy) -> None:
        """Apply a part of a copy."""
        for priority, runs in copy.levels.items():
            self.levels.setdefault(priority, SeqRuns()).add_bytes(runs.firsts, runs.counts)
        self.others.update(copy.others)
        self.bytes += copy.bytes
        self.attempts.update(copy.attempts)
        self.marked = max(self.marked, copy.marked)
        self.suspect = max(self.suspect, copy.suspect)

    def add(self, seq: int, priority: int, size: int) -> None:
        """Add a message that is newer than all others."""
        level = min(priority, self.definition.arguments.priority_max)
        self.levels.setdefault(level, SeqRuns()).append(seq)
        self.bytes += size

    def crashed(self, end: int) -> None:
        """Forget the messages that a crash lost: new messages will have their numbers."""
        self.left = [(first, min(last, end)) for first, last in self.left if first < end]
        self.levels = {priority: runs.below(end) for priority, runs in self.levels.items()}
        self.others = {seq: priority for seq, priority in self.others.items() if seq < end}
        self.attempts = {seq: count for seq, count in self.attempts.items() if seq < end}
        self.marked, self.suspect = min(self.marked, end), min(self.suspect, end)
        if self.definition.since > end:
            # The declaration is first in its commit, and so outlived messages that came before it. The queue's own
            # messages may get their numbers.
            self.definition = msgspec.structs.replace(self.definition, since=end)

    def settle(self) -> None:
        """Remove the messages that left."""
        left = RangeSet()
        left.update(sorted(self.left))
        taken = SeqRuns()
        for first, end in left:
            taken.extend(first, end)
        self.levels = {priority: runs.without(taken) for priority, runs in self.levels.items()}
        self.others = {seq: priority for seq, priority in self.others.items() if not left.covers(seq, seq + 1)}
        self.attempts = {seq: count for seq, count in self.attempts.items() if not left.covers(seq, seq + 1)}
        self.left = []
        if not self.others and not any(self.levels.values()):
            self.bytes = 0  # a copy may have counted messages that a crash lost

    def __iter__(self) -> Iterator[int]:
        for runs in self.levels.values():
            yield from runs
        yield from self.others


class QueueState:
    """State that a start reads. Blocks; for a thread, or before clients are served.

    Raises:
        OSError, LogFailed: the log cannot be read.
        UnsupportedVersion: a later release wrote it.
    """

    def __init__(self, log: SegmentLog, stream: int, messages: int) -> None:
        """Read the log.

        Args:
            stream: number of the stream with the state.
            messages: number of the stream with the messages.
        """
        self.exchanges: dict[str, ExchangeDefinition] = {}
        self.queues: dict[int, RememberedQueue] = {}
        self.bindings: list[BindingDefinition] = []
        self.next_number = 1
        self.first = 0
        """Number of the first record of the state that is needed."""
        self.changed_bytes = self.message_bytes = 0
        """Bytes read since the last copy."""
        self.clean = True
        """True if the last run ended in order."""
        self.read = False
        """True if there is any state."""
        self._through = 0
        self._copy: _Fold | None = None
        self._read_changes(log, stream)
        self._fold_ends(log, messages)

    def _read_changes(self, log: SegmentLog, stream: int) -> None:
        self._fold = fold = _Fold()
        copy: _Fold | None = None
        seq, end = 0, log.durable_end(stream)
        while seq < end and (batches := log.read(stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    changes = _decoded(record.payload)
                    if changes is None:
                        continue
                    self.read = True
                    self.changed_bytes += len(record.payload)
                    if changes.copy_begins:
                        copy = _Fold(record.seq)
                    (copy or fold).take(changes)
                    if changes.copy_ends and copy is not None:
                        fold, copy = copy, None
                        self.changed_bytes = 0
                    self.clean = changes.stopped
        self._fold = fold

    def _fold_ends(self, log: SegmentLog, messages: int) -> None:
        fold = self._fold
        end = log.durable_end(messages)
        fold.crashed(end)
        seq = fold.through
        while seq < end and (batches := log.read(messages, seq, READ_BYTES)):
            for data in batches:
                batch = DecodedBatch(data)
                self.message_bytes += len(data)
                for each in range(max(seq, batch.base_seq), min(end, batch.end_seq)):
                    fold.add_message(each, batch)
                seq = batch.end_seq
        for known in fold.queues.values():
            known.settle()
            if not self.clean:
                known.suspect = max(known.suspect, known.marked)
            known.marked = 0
        self.exchanges, self.queues, self.bindings = fold.exchanges, fold.queues, fold.left_bindings()
        self.next_number, self.first = fold.next_number, fold.first


class _Fold:
    """State after a certain record."""

    def __init__(self, first: int = 0) -> None:
        """Begin with nothing.

        Args:
            first: number of the first record that is needed.
        """
        self.exchanges: dict[str, ExchangeDefinition] = {}
        self.queues: dict[int, RememberedQueue] = {}
        self.next_number = 1
        self.through = 0
        self.first = first
        self._bindings: dict[BindingDefinition, int] = {}
        """Binding -> number of the change that added it."""
        self._gone: dict[tuple[str, bool], int] = {}
        """Name, and whether it is an exchange -> number of the change that deleted it with all of its bindings: there
        may be 65,536, and no record names them."""
        self._changes = 0

    def take(self, changes: Changes) -> None:
        """Apply a record."""
        if changes.started >= 0:
            self.crashed(changes.started)
        for number, settled in changes.settled.items():
            if (known := self.queues.get(number)) is not None:
                left = SeqRuns()
                left.add_bytes(settled.messages.firsts, settled.messages.counts)
                known.left += left.runs()
                known.bytes -= settled.bytes
        for number, marked in changes.marked.items():
            if (known := self.queues.get(number)) is not None:
                known.marked = max(known.marked, marked)
        for number, attempts in changes.attempts.items():
            if (known := self.queues.get(number)) is not None:
                known.attempts.update(attempts)
        for binding in changes.bindings_gone:
            self._bindings.pop(binding, None)
        for number in changes.queues_gone:
            if (queue := self.queues.pop(number, None)) is not None:
                self._gone[queue.definition.name, False] = self._changes
        for name in changes.exchanges_gone:
            self.exchanges.pop(name, None)
            self._gone[name, True] = self._changes
        self._changes += 1
        for exchange in changes.exchanges:
            self.exchanges[exchange.name] = exchange
        for definition in changes.queues:
            self.queues[definition.number] = RememberedQueue(definition)
            self.next_number = max(self.next_number, definition.number + 1)
        self._bindings.update(dict.fromkeys(changes.bindings, self._changes))
        if changes.copy_begins:
            self.through = changes.through
        self.next_number = max(self.next_number, changes.next_number)
        for copy in changes.contents:
            if (queue := self.queues.get(copy.number)) is not None:
                queue.copied(copy)

    def left_bindings(self) -> list[BindingDefinition]:
        """Return the bindings whose source and destination were not deleted after the binding was added."""
        gone = self._gone
        return [
            each
            for each, came in self._bindings.items()
            if came > gone.get((each.source, True), -1) and came > gone.get((each.destination, each.to_exchange), -1)
        ]

    def crashed(self, end: int) -> None:
        """Forget messages from ``end`` on: a crash lost them."""
        for queue in self.queues.values():
            queue.crashed(end)
        self.through = min(self.through, end)

    def add_message(self, seq: int, batch: DecodedBatch) -> None:
        """Add a message that is newer than all others."""
        headers = batch.headers(seq)
        priority = -1
        for number in numbers_in(headers):
            queue = self.queues.get(number)
            if queue is not None and seq >= queue.definition.since:
                if priority < 0:
                    priority = priority_of(headers)
                queue.add(seq, priority, batch.payload_bytes(seq))


def priority_of(headers: tuple[tuple[str, object], ...]) -> int:
    """Return the priority of a message, 0 without one."""
    for name, value in headers:
        if name == PRIORITY and type(value) is int and value > 0:
            return value
    return 0


def _decoded(payload: bytes) -> Changes | None:
    try:
        return read_changes(payload)
    except UnsupportedVersion:
        raise
    except Corrupt as error:
        logger.error("%s", error)
        return None


# Number of queues that still need each stored message.

_BLOCK_BITS = 9
_BLOCK = 1 << _BLOCK_BITS
_ONES = b"\1" * _BLOCK
_MANY = 255
"""Number in a block that refers to the table of messages in more queues."""


class RefCounts:
    """Counts by the number of the message: a byte for each, in blocks of 512. Blocks without counts take no memory."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}
        self._needed: dict[int, int] = {}
        """Block -> messages in it that are needed."""
        self._many: dict[int, int] = {}
        """Message -> number of its queues, where it is 255 or more."""
        self._free = RangeSet()
        """Messages that no queue needs any more, and that the log still has to release."""
        self._freed: list[int] = []
        """Further ones, one by one: queues with several consumers let go of them out of order."""

    def hold(self, seq: int, queues: int = 1) -> None:
        """Note that so many more queues need a message; a new one with 0 is free at once."""
        if not queues:
            self._freed.append(seq)
            return
        number, at = seq >> _BLOCK_BITS, seq & (_BLOCK - 1)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = bytearray(_BLOCK)
            self._needed[number] = 0
        count = block[at]
        if not count:
            self._needed[number] += 1
        total = queues + (self._many.pop(seq) if count == _MANY else count)
        if total >= _MANY:
            self._many[seq] = total
        block[at] = min(total, _MANY)

    def hold_run(self, first: int, end: int) -> None:
        """Note that one more queue needs messages [first, end)."""
        while first < end:
            number, at = first >> _BLOCK_BITS, first & (_BLOCK - 1)
            until = min(_BLOCK, at + end - first)
            block = self._blocks.setdefault(number, bytearray(_BLOCK))
            if any(block[at:until]):
                self._needed.setdefault(number, 0)
                for seq in range(first, first + until - at):
                    self.hold(seq)
            else:
                block[at:until] = _ONES[: until - at]
                self._needed[number] = self._needed.get(number, 0) + until - at
            first += until - at

    def drop(self, seq: int) -> None:
        """Note that one queue no longer needs a message."""
        number, at = seq >> _BLOCK_BITS, seq & (_BLOCK - 1)
        block = self._blocks[number]
        count = block[at]
        assert count, f"message {seq} is dropped by more queues than hold it"
        if count == _MANY:
            left = self._many.pop(seq) - 1
            if left >= _MANY:
                self._many[seq] = left
            block[at] = min(left, _MANY)
            return
        block[at] = count - 1
        if count > 1:
            return
        self._freed.append(seq)
        self._needed[number] -= 1
        if not self._needed[number]:
            del self._blocks[number], self._needed[number]

    def drop_each(self, seqs: Sequence[int]) -> None:
        """Note that one queue no longer needs some messages.

        Args:
            seqs: their numbers, ascending.
        """
        if seqs[-1] - seqs[0] == len(seqs) - 1:
            self.drop_run(seqs[0], seqs[-1] + 1)
            return
        for seq in seqs:  # as in ``drop``: a call for each would cost as much as the rest
            number, at = seq >> _BLOCK_BITS, seq & (_BLOCK - 1)
            block = self._blocks[number]
            if block[at] != 1:
                self.drop(seq)
                continue
            block[at] = 0
            self._freed.append(seq)
            self._needed[number] -= 1
            if not self._needed[number]:
                del self._blocks[number], self._needed[number]

    def drop_run(self, first: int, end: int) -> None:
        """Note that one queue no longer needs messages [first, end)."""
        while first < end:
            number, at = first >> _BLOCK_BITS, first & (_BLOCK - 1)
            until = min(_BLOCK, at + end - first)
            block = self._blocks[number]
            if block[at:until] == _ONES[: until - at]:
                block[at:until] = bytes(until - at)
                self._free.add(first, first + until - at)
                self._needed[number] -= until - at
                if not self._needed[number]:
                    del self._blocks[number], self._needed[number]
            else:
                for seq in range(first, first + until - at):
                    self.drop(seq)
            first += until - at

    def take_free(self) -> RangeSet:
        """Return the messages that no queue needs any more, each once."""
        free, self._free = self._free, RangeSet()
        freed, self._freed = self._freed, []
        free.update(runs_of(freed))
        return free

    def unneeded(self, end: int) -> RangeSet:
        """Return all numbers below ``end`` that no queue needs."""
        found = RangeSet([(0, end)])
        for number in sorted(self._blocks):
            block, base = self._blocks[number], number << _BLOCK_BITS
            at = 0
            while at < _BLOCK:
                if not block[at]:
                    at += 1
                    continue
                until = block.find(0, at)
                until = _BLOCK if until < 0 else until
                found.remove(base + at, base + until)
                at = until
        return found


def runs_of(seqs: list[int]) -> list[tuple[int, int]]:
    """Return [first, end) of numbers that follow each other, ascending."""
    found: list[tuple[int, int]] = []
    first = end = -1
    for seq in sorted(seqs):
        if seq != end:
            if end >= 0:
                found.append((first, end))
            first = seq
        end = seq + 1
    if end >= 0:
        found.append((first, end))
    return found
