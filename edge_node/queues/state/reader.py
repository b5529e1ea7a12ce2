"""Restore of the state of queues when a node starts: from the last copy, the changes since, and the messages since,
without their payloads."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from weft.edge_node.queues.queue.runs import SeqRuns
from weft.edge_node.queues.routing.targets import numbers_in
from weft.edge_node.queues.state.changes import Changes, QueueCopy, read_changes
from weft.edge_node.sessions.store.batches import DecodedBatch
from weft.protocols.batch import records
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.message_headers import PRIORITY
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

READ_BYTES = 1 << 20

logger = logging.getLogger(__name__)


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
                        copy = _Fold()
                        copy.first = record.seq
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

    def __init__(self) -> None:
        self.exchanges: dict[str, ExchangeDefinition] = {}
        self.queues: dict[int, RememberedQueue] = {}
        self.next_number = 1
        self.through = self.first = 0
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
