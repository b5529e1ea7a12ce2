"""Writer of the changes of exchanges, queues and their messages into the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Protocol

import msgspec

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.queues.queue.runs import SeqRuns
from weft.edge_node.queues.state.changes import Changes, QueueCopy, Runs, Settled
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, SegmentLog

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


class CopyContent(Protocol):
    """Content of a copy; implemented by ``Registry``."""

    def definitions(self) -> Iterator[ExchangeDefinition | QueueDefinition]:
        """Yield the exchanges and queues that outlive a restart."""
        ...

    def kept_bindings(self) -> Iterator[Collection[BindingDefinition]]:
        """Yield the bindings that outlive a restart, in groups."""
        ...

    def kept_queues(self) -> Iterable[Queue]:
        """Return the queues that outlive a restart."""
        ...


class QueueStateWriter:
    """Writer that gathers changes, and writes them together at the end of each turn of the loop. Event loop's thread
    only.

    Its records are first in each commit. So the log has a mark for each delivery of a message that outlives a crash;
    records about messages that a crash lost are void (``Changes.started``).

    Args:
        stream: number of the stream with the state.
        messages: number of the stream with the messages.
        end_of_turn: calls back at the end of the turn.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        stream: int,
        messages: int,
        wall_clock: Callable[[], int],
        end_of_turn: Callable[[Callable[[], None]], None],
        content: CopyContent,
    ) -> None:
        self._log = log
        self._stream = stream
        self._messages = messages
        self._wall_clock = wall_clock
        self._end_of_turn = end_of_turn
        self._content = content
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
        log.lead(stream)

    # --- changes

    def settled(self, queue: Queue, first: int, end: int, size: int) -> None:
        """Note that messages left a queue.

        Args:
            size: their charge.
        """
        if queue.kept:
            number = queue.number
            self._settled.setdefault(number, []).append((first, end))
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
        self,
        *,
        queues: Iterable[int] = (),
        bindings: Iterable[BindingDefinition] = (),
        exchanges: Iterable[str] = (),
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
                self._log.append(self._stream, self._wall_clock(), [b""], [piece])
        self.copied_bytes, self.changed_bytes, self.message_bytes = size, 0, 0
        old = RangeSet([(self.first, first)])
        self.first = first
        self._log.on_durable(lambda error: None if error else self._log.release(self._stream, old))

    def _pieces(self) -> Iterator[Changes]:
        piece = Changes(copy_begins=True, through=self._log.next_seq(self._messages), next_number=self.next_number)
        size = 0
        for each in self._content.definitions():
            if isinstance(each, ExchangeDefinition):
                piece.exchanges.append(each)
            else:
                piece.queues.append(each)
            size += DEFINITION_BYTES
            if size > PIECE_BYTES:
                yield piece
                piece, size = Changes(), 0
        for group in self._content.kept_bindings():
            # In slices, not one by one: 65,536 would take 30 ms.
            bindings = iter(group)
            while some := list(islice(bindings, BINDINGS_AT_ONCE)):
                piece.bindings += some
                size += DEFINITION_BYTES * len(some) + sum(len(each.arguments) for each in some)
                if size > PIECE_BYTES:
                    yield piece
                    piece, size = Changes(), 0
        for queue in self._content.kept_queues():
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
            self._settled or self._marked or self._attempts or self._queues_gone or self._bindings_gone
            or self._exchanges_gone or self._started >= 0
        )  # fmt: skip

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
            self._log.append(self._stream, self._wall_clock(), [b""], [payload])
            return
        with self._log.together(len(payload) + RESERVE_BYTES, uses_spare=uses_spare):
            self._log.append(self._stream, self._wall_clock(), [b""], [payload])

    def _call(self) -> None:
        if not self._awaited:
            self._awaited = True
            self._end_of_turn(self._at_end)

    def _at_end(self) -> None:
        self._awaited = False
        try:
            self.flush()
        except LogError as error:
            logger.warning("changes of queued messages are not in the log yet: %s", error)
            return
        self.copy_if_due()


def _runs_of(parts: list[tuple[int, int]]) -> Runs:
    runs = SeqRuns()
    for first, end in sorted(parts):
        runs.extend(first, end)
    firsts, counts = b"", b""
    for more_firsts, more_counts in runs.to_bytes():
        firsts += more_firsts
        counts += more_counts
    return Runs(firsts, counts)


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
