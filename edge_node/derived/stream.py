"""One derived stream: reads its inputs, runs its chain, and writes whole steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple, cast

from weft.edge_node.derived.counters import FunctionCounters, Rejections
from weft.edge_node.derived.steps import (
    DerivedContext,
    Positions,
    Remembered,
    StateGaps,
    StepWriter,
    StreamNumbers,
    Version,
    report_gaps,
    state_gaps_of,
)
from weft.functions.chain import FOR_EVER, SECOND, Chain, Outputs, ReplayOutputs
from weft.functions.contract import Gap, NotReady, Out, Row
from weft.protocols.batch import decode_columns, decode_header, read_u32s
from weft.storage.segment_log import LogFailed, LogFull, PageReader, SegmentLog
from weft.storage.segment_log.index import reason_name

# The inputs of a derived stream, page by page, as one sequence of rows and gaps.

PAGE_BYTES = 256 << 10
"""Encoded bytes of a page, as for links: a millisecond or two of work for functions is part of it."""
Event = Row | Gap
"""A gap without numbers marks a clock that was set back: the row after it is older than the one before."""
BACK_NS = 60_000_000_000
"""Age difference to the row before from which on, in an ordered input, the clock counts as set back. For smaller
corrections the input waits."""
_TIME = attrgetter("time")


class _Input:
    """One input, with the events that were read and not returned yet."""

    def __init__(self, name: str, stream: int, seq: int, last_time: int) -> None:
        self.name = name
        self.stream = stream
        self.read_to = seq
        """Number of the first unread record."""
        self.events: deque[tuple[int, Event]] = deque()
        """Each with its place in time: the time of the row, or of the latest before it when that is later."""
        self.last_time = last_time
        """Latest time of the rows read; 0 for none."""
        self.settled = 0
        """Time up to which, by the marks, every row was returned."""

    @property
    def seq(self) -> int:
        """Return the number of the first record that was not returned."""
        if not self.events:
            return self.read_to
        _, first = self.events[0]
        return first.seq if isinstance(first, Row) else first.first


class Inputs:
    """The inputs of one derived stream, as one sequence that is the same at any time and for any division into pages.

    Rows of one input come in their order. Among several inputs the row with the least time comes first, at equal times
    the row of the input named first; so a row waits until nothing older can come from the others.

    Streams of functions are not always in the order of time: a row that was held back follows later ones of other keys.
    Such a row is placed at the time of the latest before it, so that the merged order depends on nothing else.
    """

    def __init__(
        self,
        log: SegmentLog,
        pages: PageReader,
        streams: Mapping[str, int],
        positions: Mapping[str, tuple[int, int]],
        wall_clock: Callable[[], int],
        *,
        unordered: Collection[str] = (),
    ) -> None:
        """Resume at some positions.

        Args:
            streams: name -> number, in the order in which the configuration names them.
            positions: name -> (first record to return, latest time of a row before it or 0).
            wall_clock: ns since 1970.
            unordered: names of the inputs whose rows may have times before those of earlier ones.
        """
        self._unordered = unordered
        self._log = log
        self._pages = pages
        self._wall_clock = wall_clock
        self._inputs = [_Input(name, stream, *positions[name]) for name, stream in streams.items()]

    def positions(self) -> dict[str, int]:
        """Return the number of the first record of each input that was not returned."""
        return {each.name: each.seq for each in self._inputs}

    def lag(self) -> int:
        """Return the number of durable records that were not returned."""
        return sum(self._log.durable_end(each.stream) - each.seq for each in self._inputs)

    async def read(self) -> list[Event]:
        """Return the next rows and gaps, some at a time; none when the order of the next is not decided yet.

        Raises:
            OSError, LogFailed: as ``PageReader.read``.
        """
        if len(self._inputs) == 1:
            (only,) = self._inputs
            # A single input needs no ordering, so nothing waits.
            return await self._fill(only) if only.read_to < self._log.durable_end(only.stream) else []
        while True:
            slowest = min(self._inputs, key=self._known_until)
            found = self._merged(self._known_until(slowest))
            if not found and slowest.read_to >= self._log.durable_end(slowest.stream):
                # Nothing of it can be read now. Of others a page is, as their clock may have been set back.
                unread = (each for each in self._inputs if not each.events)
                slowest = next((each for each in unread if each.read_to < self._log.durable_end(each.stream)), slowest)
            if found or slowest.read_to >= self._log.durable_end(slowest.stream):
                return found
            place = slowest.last_time
            for event in await self._fill(slowest):
                if isinstance(event, Row):
                    place = max(place, event.time)
                elif event.first == event.end:
                    place = 0
                slowest.events.append((place, event))

    def times(self) -> dict[str, int]:
        """Return the latest time of the returned rows of each input, for inputs without remaining rows."""
        return {each.name: _time_before(*each.events[0]) if each.events else each.last_time for each in self._inputs}

    def until(self) -> int:
        """Return the time up to which ticks may come: no row that is yet to be returned has an earlier place."""
        return min(self._known_until(each) if not each.events else each.events[0][0] - 1 for each in self._inputs)

    def settled(self) -> int | None:
        """Return the time up to which every row of the unordered inputs was returned; None without such inputs."""
        unordered = [each for each in self._inputs if each.name in self._unordered]
        # By their marks, which lag behind ``until``: the rows read so far prove nothing, as a later row may be older.
        for each in unordered:
            time, seq = self._log.mark(each.stream, self._wall_clock())
            if seq <= each.seq:
                each.settled = max(each.settled, time - 1)
        return min((each.settled for each in unordered), default=None)

    # --- inside

    async def _fill(self, each: _Input) -> list[Event]:
        """Read a page of an input."""
        page = await self._pages.read(each.stream, each.read_to, PAGE_BYTES)
        gone, last, found = deque(page.gone), each.last_time, list[Event]()
        for data in page.batches:
            rows = rows_of(data, each.name, each.read_to)
            while gone and rows and gone[0].first < rows[0].seq:
                found.append(_gap(each.name, *gone.popleft(), last))
            if rows:
                if each.name in self._unordered:
                    found += rows
                    last = max(last, *map(_TIME, rows))
                else:
                    last = _add_with_steps(found, each.name, rows, last)
        found += [_gap(each.name, *left, last) for left in gone]
        each.last_time, each.read_to = last, page.next_seq
        return found

    def _known_until(self, each: _Input) -> int:
        """Return the time before which no unread row can have its place."""
        if each.read_to < self._log.durable_end(each.stream):
            return each.last_time - 1
        time, seq = self._log.mark(each.stream, self._wall_clock())
        # Less one: with a coarse clock the next record may have this same time.
        return (max(time, each.last_time) if seq <= each.read_to else each.last_time) - 1

    def _merged(self, until: int) -> list[Event]:
        found: list[Event] = []
        while True:
            time, first = FOR_EVER, None
            for each in self._inputs:
                if each.events and each.events[0][0] < time:
                    time, first = each.events[0][0], each
            if first is None or time > until:
                return found
            found.append(first.events.popleft()[1])


def _add_with_steps(found: list[Event], name: str, rows: list[Row], last: int) -> int:
    """Add rows, with a gap without numbers before each for which the clock was set back. Return the latest time since
    then; ``last`` is the latest before the rows."""
    if min(map(_TIME, rows)) > max(last, rows[0].time) - BACK_NS // 2:
        found += rows
        return max(last, rows[-1].time)
    for row in rows:
        if row.time < last - BACK_NS:
            found.append(Gap(name, row.seq, row.seq, "clock", last))
            last = row.time
        found.append(row)
        last = max(last, row.time)
    return last


def _time_before(place: int, event: Event) -> int:
    return event.after if isinstance(event, Gap) and event.first == event.end else place


def _gap(name: str, first: int, end: int, reason: int | None, after: int) -> Gap:
    return Gap(name, first, end, reason_name(reason) if reason is not None else "retention", after)


def rows_of(data: bytes, name: str, seq: int) -> list[Row]:
    """Return the rows of a batch of the log from number ``seq`` on, in order. Their payloads are not decoded."""
    header = decode_header(data)
    columns = decode_columns(data, header)
    times = array("q")
    times.frombytes(columns.times)
    keys = columns.keys
    payload = bytes(columns.payload)
    headers = columns.headers
    first = max(0, seq - header.base_seq)
    base = header.base_seq
    rows = [
        Row(time, keys[key], read := payload[start:end], {}, (), at, name, read)
        for at, (time, key, (start, end)) in enumerate(
            zip(times, read_u32s(columns.key_index), pairwise(read_u32s(columns.payload_offsets)), strict=True), base
        )
    ]
    if headers:
        for index, pairs in headers.items():
            rows[index].headers = pairs
    return rows[first:] if first else rows


# Pieces of the inputs that functions handle at once.

PIECE_BYTES = 64 << 10
"""Payload bytes of a piece of more than one row. A page is 256 KiB encoded, and a hundred times that when similar texts
are decompressed; the node's loop waits for a piece."""


def pieces(events: list[Event], rows_max: int, *, by_second: bool) -> Iterator[Gap | list[Row]]:
    """Yield rows that may be handled at once: those of one second where time matters, else some; and each gap alone.

    A row that is older than one before it belongs to the second of that one. A page has thousands of rows, so checks of
    each row run in C.
    """
    second = 0
    for run in _runs(events):
        if isinstance(run, Gap):
            yield run
            continue
        at = 0
        while at < len(run):
            piece = run[at : at + rows_max]
            if len(piece) > 1 and sum(map(_size, piece)) > PIECE_BYTES:
                sizes = accumulate(map(_size, piece))
                piece = piece[: max(1, sum(size <= PIECE_BYTES for size in sizes))]
            if by_second:
                second = max(second, _second(piece[0].time))
                if _second(max(map(_TIME, piece))) > second:
                    piece = list(_until(second, piece))
            yield piece
            at += len(piece)


def _runs(events: list[Event]) -> Iterator[Gap | list[Row]]:
    """Yield gaps, and the rows between them."""
    start = 0
    if Gap in set(map(type, events)):
        for at, event in enumerate(events):
            if isinstance(event, Gap):
                yield cast("list[Row]", events[start:at])
                yield event
                start = at + 1
    yield cast("list[Row]", events[start:] if start else events)


def _until(second: int, rows: list[Row]) -> Iterator[Row]:
    return takewhile(lambda row: _second(row.time) <= second, rows)


def _size(row: Row) -> int:
    return len(row.payload or b"")


def _second(time: int) -> int:
    """Return the second that a row belongs to. The tick at a whole second comes after the row of that very time."""
    return (time - 1) // SECOND


# Functions of another version, which are prepared while the present ones work.

TURNS = 3
"""Turns of the loop after which most functions are ready, since they wait for nothing. Functions that load a model or a
file may take a minute, and the rows of the stream do not wait for them."""


class NextVersion:
    """The functions of a version in preparation. Belongs to the event loop's thread."""

    def __init__(self, version: Version, wake: asyncio.Event) -> None:
        """Begin to create them.

        Args:
            wake: set when they are ready, or have failed.
        """
        self.version = version
        self._making = asyncio.get_running_loop().create_task(self._made())
        self._making.add_done_callback(lambda _: wake.set())

    async def chain(self) -> Chain | None:
        """Return the functions, without any state; None while they are not ready.

        Raises:
            Exception: they cannot be created.
        """
        for _ in range(TURNS):
            if not self._making.done():
                await asyncio.sleep(0)
        return self._making.result() if self._making.done() else None

    async def drop(self) -> None:
        """Stop the preparation."""
        self._making.cancel()
        (made,) = await asyncio.gather(self._making, return_exceptions=True)
        if isinstance(made, Chain):
            await made.close()

    async def _made(self) -> Chain:
        chain = self.version.make_chain()
        try:
            await chain.prepare()
        except BaseException:
            await chain.close()  # a function before the failed one may have started a process
            raise
        return chain


# Versions of the functions of a derived stream: the present one, the next one, and the former one.

RETRY_S = 1.0
"""Wait before a retry after a failure, or while the log has no room; it doubles up to a minute."""
RETRY_S_MAX = 60.0

logger = logging.getLogger(__name__)


class Versions:
    """Choice of the running version of the functions. Another one takes over only when it is ready; the former one
    returns where the new one fails on its first rows. Belongs to the event loop's thread."""

    def __init__(
        self, name: str, first: Version, counters: FunctionCounters, clock: Callable[[], float], wake: asyncio.Event
    ) -> None:
        """Begin with a version.

        Args:
            name: of the derived stream.
            counters: get the version, and the reason why another one was refused.
            clock: monotonic seconds.
            wake: set when there is work.
        """
        self.changed = asyncio.Event()
        """Set when another version is wanted."""
        self.refused = ""
        """Line with the reason why the configuration's version is not running; empty when it is."""
        self._name = name
        self._present = first
        self._next: Version | None = None
        self._former: Version | None = None
        """Version to go back to, until a step of the present one is written."""
        self._making: NextVersion | None = None
        """Functions of the next version, from their preparation until they take over."""
        self._try_at = 0.0
        """Time of the next try, by the clock."""
        self._wait_s = RETRY_S
        self._counters = counters
        self._clock = clock
        self._wake = wake
        counters.version = first.text()

    @property
    def present(self) -> Version:
        """Return the running version."""
        return self._present

    @property
    def is_changing(self) -> bool:
        """Return whether ``next_chain`` has work."""
        return self._next is not None or self._making is not None

    def want(self, version: Version) -> None:
        """Switch to a version, as soon as it is ready."""
        if version.works_like(self._present):
            self._next, self.refused = None, ""
        elif self._next is None or not version.works_like(self._next):
            self._next, self._try_at, self._wait_s, self.refused = version, 0.0, RETRY_S, ""
            self._wake.set()
            self.changed.set()

    async def next_chain(self) -> Chain | None:
        """Return the functions of the next version, without any state, once they are ready: the same ones until
        ``take_over`` is called."""
        version, making = self._next, self._making
        if making is not None and making.version is not version:  # the configuration has changed once more
            self._making = None
            await making.drop()
        if version is None or self._clock() < self._try_at:
            return None
        if self._making is None:
            self._making = NextVersion(version, self._wake)
        try:
            chain = await self._making.chain()
        except Exception as error:
            if not isinstance(error, ValueError | NotReady):
                logger.exception("the new functions of stream %s cannot be made", self._name)
            self._making = None
            if self._next is version:
                # A missing file may still appear. Rows do not wait for it meanwhile.
                self._refuse(f"the former functions remain in use, as the new ones cannot work: {error}")
                self._try_at = self._clock() + self._wait_s
                self._wait_s = min(2 * self._wait_s, RETRY_S_MAX)
            return None
        return chain if self._next is version else None

    def take_over(self) -> None:
        """Make the next version the present one: its functions have the states."""
        assert self._next is not None
        self._former = self._present
        self._set_present(self._next)
        self._next, self._making, self.refused = None, None, ""

    def is_written(self) -> None:
        """Keep the present version: a step of it is written."""
        self._former = None

    def go_back(self, error: Exception) -> bool:
        """Return to the former version after the present one failed. Return whether there is one."""
        if self._former is None:
            return False
        self._refuse(
            f"the former functions remain in use, as the new ones fail on their first rows "
            f"({type(error).__name__}: {error})"
        )
        self._set_present(self._former)
        self._former = None
        return True

    def skip(self) -> bool:
        """Replace the present version, which cannot begin, by the next one. Return whether there is one."""
        if self._next is None:
            return False
        self._present, self._next = self._next, None
        return True

    async def close(self) -> None:
        """Stop the preparation of functions."""
        if self._making is not None:
            await self._making.drop()

    def _set_present(self, version: Version) -> None:
        self._present = version
        self._counters.version = version.text()

    def _refuse(self, text: str) -> None:
        if self.refused != text:
            logger.warning("stream %s: %s", self._name, text)
        self.refused = self._counters.refused = text


SLICE = 256
"""Maximum number of rows handled at once."""
TURN_S = 0.002
"""Time after which other work of the node has its turn, s."""
STEP_ROWS_MAX = 20_000
"""Rows after which a step is written, with or without output."""
STEP_S = 1.0
"""Longest wait of rows without output for their step, s. After a crash they are read again."""
_PAYLOAD = attrgetter("payload")


class Derived:
    """A derived stream that is running. Belongs to the event loop's thread."""

    def __init__(
        self, version: Version, streams: StreamNumbers, context: DerivedContext, remembered: Remembered
    ) -> None:
        """Resume at the end of the log's steps. The stream's marks are held from now on.

        Args:
            remembered: positions and states in the log; empty for a new stream.
        """
        self.counters = FunctionCounters()
        self._name = version.name
        self._streams = streams
        self._context = context
        self._wake = asyncio.Event()
        self.versions = Versions(self._name, version, self.counters, context.clock, self._wake)
        """The functions that run, and those that are wanted."""
        self._task: asyncio.Task[None] | None = None
        self._chain: Chain | None = None
        self._outputs = self._no_outputs()
        self._rows = 0
        """Rows since the last step."""
        self._since = 0.0
        """Time of the first of these rows, by the clock."""
        self._is_stale = False
        """True when the memory of the functions is not reliable."""
        self._failing_rows = FailingRows()
        self._rejections = Rejections(self._name, self.counters, context.clock)
        self._writer = StepWriter(self._name, streams, context, self.counters, self._rejections)
        self._start_from(remembered)

    def start(self) -> None:
        """Begin to work."""
        # A restart loses the log's list of releasable records; a stream without new records would keep its old ones.
        self._writer.release_read(Positions(self._inputs.positions()))
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. The next start repeats work that is not in a step."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.versions.close()
        if self._chain is not None:
            await self._chain.close()

    def has_streams(self, inputs: Sequence[str], others: Sequence[str]) -> bool:
        """Return whether the stream's inputs and outputs are these."""
        return tuple(inputs) == tuple(self._streams.inputs) and tuple(others) == tuple(self._streams.others)

    def positions(self) -> dict[str, int]:
        """Return the number of the first unread record of each input."""
        return self._inputs.positions()

    def appended(self, streams: frozenset[int]) -> None:
        """Wake up if one of the inputs has more records."""
        if not streams.isdisjoint(self._streams.inputs.values()):
            self._wake.set()

    # --- life

    def _start_from(self, remembered: Remembered) -> None:
        context, inputs = self._context, self._streams.inputs
        self._gaps = state_gaps_of(context.log, self._streams, remembered, context.wall_clock())
        positions = remembered.positions
        self._begun_from = positions
        found = {name: positions.inputs.get(name) for name in inputs}
        self._inputs = Inputs(
            context.log,
            context.pages,
            inputs,
            {
                # A new input is read from the log's first record.
                name: (self._first(inputs[name]) if seq is None else seq, positions.times.get(name, 0))
                for name, seq in found.items()
            },
            context.wall_clock,
            unordered=self._streams.written,
        )
        self._tick = positions.tick
        self._writer.resume(remembered, forgets=self._gaps.forgets, heals=bool(self._gaps.of))
        self._states = remembered.states
        self._outputs, self._rows = self._no_outputs(), 0

    def _first(self, stream: int) -> int:
        held = self._context.log.ranges(stream)
        return next((first for first, _ in held), self._context.log.durable_end(stream))

    async def _run(self) -> None:
        wait_s = RETRY_S
        while True:
            try:
                if self._is_stale:
                    await self._restart()
                if self._chain is None:
                    await self._make()
                await self._work()
                self.counters.trouble = ""
                trouble = self.versions.refused, self._chain.trouble() if self._chain is not None else ""
                self.counters.refused = "; ".join(filter(None, trouble))
                wait_s = RETRY_S
                continue
            except LogFailed:
                return  # the node ends, and recovery opens the log again
            except NotReady as error:
                self._is_stale = bool(self._rows)
                self._trouble(str(error))
                if self._chain is None and self.versions.skip():
                    continue  # the failed version is no longer the wanted one
            except LogFull as error:
                self._trouble(f"waits for room in the log: {error}")
            except OSError as error:
                self._is_stale = True
                self._trouble(f"cannot read the log ({error})")
            except Exception as error:
                # A fault of a function. Its memory may be half changed: begin again with the durable state.
                self._is_stale = True
                self.counters.failures += 1
                if not self.versions.go_back(error):
                    self._failing_rows.failed(error)
                logger.exception("the functions of stream %s failed; they start again in %g s", self._name, wait_s)
                self._trouble(f"failed ({type(error).__name__}: {error}) and is started again")
            await self._pause(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _pause(self, wait_s: float) -> None:
        """Wait after an error, at most until the functions change."""
        self.versions.changed.clear()
        pauses = {
            asyncio.ensure_future(self._context.sleep(wait_s)),
            asyncio.ensure_future(self.versions.changed.wait()),
        }
        try:
            await asyncio.wait(pauses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pause in pauses:
                pause.cancel()

    async def _make(self) -> None:
        chain = self.versions.present.make_chain()
        for label, state in chain.states():
            for key, value in self._states.get(label, {}).items():
                state.load(key, value)
        try:
            await chain.prepare()
        except BaseException:
            await chain.close()  # a function before the failed one may have started a process
            raise
        self._chain, self._states = chain, {}
        if self._gaps.of:
            gaps = await report_gaps(self._gaps, chain, self._begun_from, self._outputs, self._name)
            self._gaps = StateGaps([])
            self._rows += gaps
            self.counters.gaps += gaps

    async def _restart(self) -> None:
        if self._chain is not None:
            await self._chain.close()
            self._chain = None
        await self._context.log.durable()
        self._start_from(await asyncio.to_thread(self._context.read_states, self._name))
        self._is_stale = False

    async def _switched(self, chain: Chain) -> Chain:
        """Return the functions of the wanted version, with the present states, once they are ready."""
        new = await self.versions.next_chain()
        if new is None:
            return chain
        if self._rows:
            self._commit(chain)
        states = {label: state.values for label, state in chain.states()}
        for label, state in new.states():
            for key, value in states.get(label, {}).items():
                state.load(key, value)
        self.versions.take_over()
        self._chain = new
        await chain.close()
        return new

    def _trouble(self, text: str) -> None:
        if self.counters.trouble != text:
            logger.warning("stream %s: %s", self._name, text)
        self.counters.trouble = text

    # --- work

    async def _work(self) -> None:
        """Handle a page of the inputs, or wait for one."""
        chain, clock = self._chain, self._context.clock
        assert chain is not None
        self._wake.clear()
        if self._writer.waits:
            self._writer.retry()
            self._is_written()
        if self.versions.is_changing:
            chain = await self._switched(chain)
        if not self._rows:
            await chain.prepare()
        events = await self._inputs.read()
        until = clock() + TURN_S
        for piece in pieces(events, 1 if self._failing_rows.is_searching else SLICE, by_second=chain.has_ticks):
            await self._handle(chain, piece)
            if clock() >= until:
                await self._context.turn()
                until = clock() + TURN_S
        await self._pass_time(chain, self._inputs.until())
        self.counters.lag = self._inputs.lag()
        age_s = clock() - self._since
        if self._outputs or (self._rows and (self._rows >= STEP_ROWS_MAX or age_s >= STEP_S)):
            self._commit(chain)
        elif not self._rows:
            self._writer.hold_once_durable(self._hold_of(chain))
        # Outputs wait for the disk in memory: a long backlog must not produce them faster than they are synced.
        if self._context.log.pending_bytes > 1 << 20:
            await self._context.log.durable()
        if not events:
            await self._wait()

    async def _handle(self, chain: Chain, piece: Gap | list[Row]) -> None:
        if not self._rows:
            self._since = self._context.clock()
        self._rows += 1
        if isinstance(piece, Gap) and piece.first == piece.end:
            # The clock was set back. Time continues with the next row; otherwise no window would close until the clock
            # catches up.
            self._tick = 0
            return
        if isinstance(piece, Gap):
            self.counters.gaps += 1
            chain.gap(piece, self._outputs)
            return
        rows = piece
        self._rows += len(rows)
        self.counters.rows_in += len(rows)
        self.counters.bytes_in += sum(map(len, map(_PAYLOAD, rows)))
        await self._pass_time(chain, rows[0].time - 1)
        if self._failing_rows.is_searching:
            rows = self._failing_rows.bearable(rows, chain.entry(self._outputs))
        await chain.process(rows, self._outputs)
        self._failing_rows.handled()

    async def _pass_time(self, chain: Chain, until: int) -> None:
        """Run every due tick up to a time."""
        last = until // SECOND * SECOND
        if last <= self._tick:
            # A row that is older than the last tick may cause a deadline in the past. It waits for the next tick: a
            # tick between two rows of a second would depend on the division into pages.
            return
        clock = self._context.clock
        end = clock() + TURN_S

        async def turn() -> None:
            nonlocal end
            if clock() >= end:
                await self._context.turn()
                end = clock() + TURN_S

        # Only due seconds: after a long silence every second in between would cost a call.
        while (due := chain.due()) is not None and due <= last:
            self._rows += 1
            await chain.tick(due, self._outputs, turn)
        self._tick = last

    async def _wait(self) -> None:
        """Wait for more records of the inputs, and check the time at intervals."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEP_S):  # ``wait_for`` may swallow a cancellation (Python 3.11)
                await self._wake.wait()

    # --- steps

    def _commit(self, chain: Chain) -> None:
        """Write everything since the last step.

        Raises:
            LogFull, LogFailed: the step is not written. It is kept, and tried again.
        """
        outputs, self._outputs = self._outputs, self._no_outputs()
        inputs, hold = self._inputs, self._hold_of(chain)
        # Inputs of earlier settings may return: their rows must not be read twice.
        begun = self._begun_from
        positions = Positions(
            {**begun.inputs, **inputs.positions()},
            self._tick,
            {**begun.times, **inputs.times()},
            hold,
            replayed=self.versions.present.replayed,
        )
        self._rows = 0
        self._writer.take(outputs, positions, chain.states(), self.versions.present, chain.version())
        self._is_written()

    def _is_written(self) -> None:
        self.versions.is_written()
        self._rejections.look()
        self._failing_rows.written(self._inputs.positions())

    def _no_outputs(self) -> Outputs:
        return ReplayOutputs() if self.versions.present.replayed else Outputs()

    def _hold_of(self, chain: Chain) -> int:
        """Return the time from which on more rows may be emitted."""
        until, held, settled = self._tick + 1, chain.oldest(), self._inputs.settled()
        if held is not None:
            until = min(until, held)
        return until if settled is None else min(until, settled + 1)


class FailingRows:
    """Finder of the rows that functions fail on.

    After a failure the functions get the rows one by one. The row on which they fail then is rejected at the next try.
    """

    def __init__(self) -> None:
        """Suspect nothing."""
        self.is_searching = False
        """True while the functions get rows one by one."""
        self._alone: Row | None = None
        self._found: dict[tuple[str, int], str] = {}
        """(input, number) -> description of the failure."""

    def failed(self, error: Exception) -> None:
        """Note that the functions failed."""
        if self._alone is not None and self._alone.seq >= 0:
            self._found[self._alone.input, self._alone.seq] = f"the functions failed: {type(error).__name__}: {error}"
        self._alone, self.is_searching = None, True

    def bearable(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows for the functions, and reject the one on which they failed."""
        for row in rows:
            reason = self._found.get((row.input, row.seq))
            if reason is not None:
                out.reject(row, reason)
                return []
            self._alone = row
        return rows

    def handled(self) -> None:
        """Note that the functions did not fail."""
        self._alone = None

    def written(self, positions: Mapping[str, int]) -> None:
        """Forget rows that a step has passed, by the inputs' positions."""
        self._found = {(name, seq): how for (name, seq), how in self._found.items() if seq >= positions.get(name, 0)}
        self.is_searching = bool(self._found)


# Derived streams that are computed again, each into a stream of its own.

REPLAYS_MAX = 8
"""Maximum number of concurrent replays."""


class ReplayProgress(NamedTuple):
    """Progress of a replay."""

    rows: int
    """Rows read since the request."""
    left: int
    """Records still to read; 0 when the replay is done."""


class ReplayRefused(Exception):
    """A refused replay; the text has the reason and the remedy."""


class Replay:
    """One running replay. It is done when it has read, durably, the records that the inputs had at the request."""

    def __init__(self, derived: Derived, ends: Mapping[str, int]) -> None:
        """Follow a derived stream that was created for this.

        Args:
            ends: input -> number of the first record that it need not read.
        """
        self.derived = derived
        self._ends = ends
        self._read = derived.positions()

    def has_read(self, name: str, seq: int) -> None:
        """Set the durable position in an input."""
        self._read[name] = max(seq, self._read.get(name, 0))

    def progress(self) -> ReplayProgress:
        """Return its progress."""
        left = sum(max(0, end - self._read.get(name, 0)) for name, end in self._ends.items())
        return ReplayProgress(self.derived.counters.rows_in, left)
