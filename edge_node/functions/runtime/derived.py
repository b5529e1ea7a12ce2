"""One derived stream: reads its inputs, runs its chain, and writes whole steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from weft.edge_node.functions.chain import SECOND, Alert, Chain, Outputs
from weft.edge_node.functions.contract import Gap, NotReady, Row
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.culprits import Culprits
from weft.edge_node.functions.runtime.holds import Holds
from weft.edge_node.functions.runtime.inputs import Event, Inputs
from weft.edge_node.functions.runtime.state_log import Positions, Remembered, StateWriter
from weft.edge_node.functions.runtime.step import Step, runs_of, write
from weft.protocols.origin import OriginKind
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFailed, LogFull, SegmentLog
from weft.storage.segment_log.read.pages import PageReader

SLICE = 256
"""Most rows that are handled in one go."""
TURN_S = 0.002
"""Time after which everything else of the node has its turn, s."""
STEP_ROWS_MAX = 20_000
"""Rows after which a step is written, whether anything came out or not."""
STEP_S = 1.0
"""Time for which rows of which nothing came out may wait for their step, s. After a crash they are read again."""
RETRY_S = 1.0
"""Wait after an error, or while the log has no room; it doubles up to a minute."""
RETRY_S_MAX = 60.0

logger = logging.getLogger(__name__)


class Streams(NamedTuple):
    """Numbers of the streams that a derived stream has to do with."""

    own: int
    errors: int
    states: int
    inputs: Mapping[str, int]
    """Name -> number, in the order of the configuration."""
    others: Mapping[str, int]
    """Likewise those that rows are routed to."""


class Alerts(Protocol):
    """Publisher to local subscribers."""

    def ready(self) -> None:
        """Make ready for alerts, before the commit that they belong to is appended."""

    def __call__(self, alert: Alert) -> None:
        """Publish within the commit that is being appended."""


class Surroundings(NamedTuple):
    """Parts of the node that derived streams work with."""

    log: SegmentLog
    pages: PageReader
    holds: Holds
    alerts: Alerts
    released: Callable[[str, str, RangeSet], None]
    """Told (derived stream, input, numbers) of what a function has read, durably."""
    read_states: Callable[[str], Remembered]
    """Reads what the log has of a derived stream. Blocks; for a thread."""
    turn: Callable[[], Awaitable[None]]
    """Returns when the node has time for more."""
    wall_clock: Callable[[], int]
    """Time in ns since 1970."""
    clock: Callable[[], float]
    """Seconds, never set."""
    sleep: Callable[[float], Awaitable[None]]
    """Waits for some seconds."""


class Version(NamedTuple):
    """Version of the functions of a stream."""

    name: str
    digest: bytes
    """Checksum of their settings."""


class Derived:
    """A derived stream that is running. Belongs to the event loop's thread."""

    def __init__(
        self,
        version: Version,
        streams: Streams,
        make_chain: Callable[[], Chain],
        around: Surroundings,
        remembered: Remembered,
    ) -> None:
        """Go on where the log ends. Its marks are held from now on.

        Args:
            make_chain: makes the functions, without any state.
            remembered: positions and states that the log has; a new one for a stream that was not there before.
        """
        self.counters = FunctionCounters(version=version.digest.hex()[:8])
        self._name = version.name
        self._version = version
        self._streams = streams
        self._make_chain = make_chain
        self._around = around
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._chain: Chain | None = None
        self._outputs = Outputs()
        self._rows = 0
        """Rows since the last step."""
        self._since = 0.0
        """Time of the first of them, by the clock."""
        self._pending: Step | None = None
        """Step that the log had no room for."""
        self._is_stale = False
        """True when the memory of the functions is not to be trusted."""
        self._culprits = Culprits()
        self._told = 0
        """Time up to which marks may have told that nothing more comes."""
        self._start_from(remembered)

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. What is not in a step is done again at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._chain is not None:
            await self._chain.close()

    def appended(self, streams: frozenset[int]) -> None:
        """Look at the inputs if one of them has more."""
        if not streams.isdisjoint(self._streams.inputs.values()):
            self._wake.set()

    # --- life

    def _start_from(self, remembered: Remembered) -> None:
        around, inputs = self._around, self._streams.inputs
        positions = remembered.positions
        found = {name: positions.inputs.get(name) for name in inputs}
        self._inputs = Inputs(
            around.log,
            around.pages,
            inputs,
            {
                # A stream that is new to the functions is read from the first record that the log has.
                name: (self._first(inputs[name]) if seq is None else seq, positions.times.get(name, 0))
                for name, seq in found.items()
            },
            around.wall_clock,
        )
        self._tick = positions.tick
        self._times = dict(positions.times)
        self._writer = StateWriter(self._name, remembered)
        self._states = remembered.states
        self._outputs, self._rows, self._pending = Outputs(), 0, None
        self._hold_at(positions.hold)

    def _first(self, stream: int) -> int:
        held = self._around.log.ranges(stream)
        return next((first for first, _ in held), self._around.log.durable_end(stream))

    async def _run(self) -> None:
        wait_s = RETRY_S
        while True:
            try:
                if self._is_stale:
                    await self._restart()
                if self._chain is None:
                    await self._make()
                await self._work()
                self.counters.trouble = self._chain.trouble() if self._chain is not None else ""
                wait_s = RETRY_S
                continue
            except LogFailed:
                return  # the node ends, and recovery opens the log again
            except NotReady as error:
                self._is_stale = bool(self._rows)
                self._trouble(str(error))
            except LogFull as error:
                self._trouble(f"waits for room in the log: {error}")
            except OSError as error:
                self._is_stale = True
                self._trouble(f"cannot read the log ({error})")
            except Exception as error:
                # A fault of a function. Its memory may be half changed: begin again with what is durable.
                self._is_stale = True
                self.counters.failures += 1
                self._culprits.failed(error)
                logger.exception("the functions of stream %s failed; they start again in %g s", self._name, wait_s)
                self._trouble(f"failed ({type(error).__name__}: {error}) and is started again")
            await self._around.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _make(self) -> None:
        chain = self._make_chain()
        for label, state in chain.states():
            for key, value in self._states.get(label, {}).items():
                state.load(key, value)
        try:
            await chain.prepare()
        except BaseException:
            await chain.close()  # a function before the one that failed may have started a process
            raise
        self._chain, self._states = chain, {}

    async def _restart(self) -> None:
        if self._chain is not None:
            await self._chain.close()
            self._chain = None
        await self._around.log.durable()
        self._start_from(await asyncio.to_thread(self._around.read_states, self._name))
        self._is_stale = False

    def _trouble(self, text: str) -> None:
        if self.counters.trouble != text:
            logger.warning("stream %s: %s", self._name, text)
        self.counters.trouble = text

    # --- work

    async def _work(self) -> None:
        """Handle a page of the inputs, or wait for one."""
        chain = self._chain
        assert chain is not None
        self._wake.clear()
        if self._pending is not None:
            self._write(self._pending)
        if not self._rows:
            await chain.prepare()
        events = await self._inputs.read()
        clock = self._around.clock
        until = clock() + TURN_S
        for piece in _pieces(events, 1 if self._culprits.is_searching else SLICE, by_second=chain.has_ticks):
            await self._handle(chain, piece)
            if clock() >= until:
                await self._around.turn()
                until = clock() + TURN_S
        await self._pass_time(chain, self._inputs.until())
        self.counters.lag = self._inputs.lag()
        age_s = clock() - self._since
        if self._outputs or (self._rows and (self._rows >= STEP_ROWS_MAX or age_s >= STEP_S)):
            self._commit(chain)
        elif not self._rows:
            self._hold(self._hold_of(chain))
        if self._around.log.pending_bytes > 1 << 20:
            await self._around.log.durable()
        if not events:
            await self._wait()

    async def _handle(self, chain: Chain, piece: list[Event]) -> None:
        if not self._rows:
            self._since = self._around.clock()
        first = piece[0]
        self._rows += 1
        if isinstance(first, Gap):
            self.counters.gaps += 1
            chain.gap(first, self._outputs)
            return
        rows = [row for row in piece if isinstance(row, Row)]
        self._rows += len(rows)
        self.counters.rows_in += len(rows)
        self.counters.bytes_in += sum(len(row.payload or b"") for row in rows)
        await self._pass_time(chain, first.time - 1 if isinstance(first, Row) else 0)
        last = rows if len(self._streams.inputs) > 1 else rows[-1:]
        self._times.update({row.input: row.time for row in last})
        if self._culprits.is_searching:
            rows = self._culprits.bearable(rows, self._outputs)
        await chain.process(rows, self._outputs)
        self._culprits.handled()

    async def _pass_time(self, chain: Chain, until: int) -> None:
        """Have every tick up to a time come, of those at which something is due."""
        last = until // SECOND * SECOND
        clock = self._around.clock
        end = clock() + TURN_S

        async def turn() -> None:
            nonlocal end
            if clock() >= end:
                await self._around.turn()
                end = clock() + TURN_S

        while (due := chain.due()) is not None and due <= last:
            self._rows += 1
            await chain.tick(due, self._outputs, turn)
        self._tick = max(self._tick, last)

    async def _wait(self) -> None:
        """Wait for more of the inputs, and look at the time now and then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEP_S):  # ``wait_for`` may swallow that the task is cancelled (Python 3.11)
                await self._wake.wait()

    # --- steps

    def _commit(self, chain: Chain) -> None:
        """Write everything since the last step.

        Raises:
            LogFull, LogFailed: it is not written. It is kept, and tried again.
        """
        outputs, self._outputs = self._outputs, Outputs()
        streams = self._streams
        runs = runs_of(outputs, streams.own, streams.errors, streams.others, self._told)
        positions = Positions(self._inputs.positions(), self._tick, dict(self._times), self._hold_of(chain))
        self._pending = Step(
            runs, outputs.alerts, self._writer.entry(positions, chain.states()), positions, chain.version()
        )
        self._rows = 0
        self._write(self._pending)

    def _write(self, step: Step) -> None:
        around, streams = self._around, self._streams
        digest = self._version.digest.hex()[:8] + (f"-{step.version}" if step.version else "")
        origin = around.log.origin(OriginKind.FUNCTION, self._name, digest, self._version.digest)
        if step.alerts:
            around.alerts.ready()
        seq = write(
            around.log, step, (streams.states, self._writer.key), origin, around.wall_clock(), around.alerts
        )  # fmt: skip
        self._pending = None
        self._culprits.written(step.positions.inputs)
        gone = self._writer.written(seq)
        around.log.on_durable(lambda error: self._durable(step, gone) if error is None else None)
        self._count(step)

    def _durable(self, step: Step, gone: RangeSet) -> None:
        around = self._around
        if gone:
            around.log.release(self._streams.states, gone)
        for name, seq in step.positions.inputs.items():
            if seq:
                around.released(self._name, name, RangeSet([(0, seq)]))
        self._hold_at(step.positions.hold)

    def _hold(self, time: int) -> None:
        """Let marks go on with the time, once everything that was written is durable."""
        self._around.log.on_durable(lambda error: self._hold_at(time) if error is None else None)

    def _hold_of(self, chain: Chain) -> int:
        """Return the time from which on more rows may come out."""
        held = chain.oldest()
        return self._tick + 1 if held is None else min(self._tick + 1, held)

    def _hold_at(self, time: int) -> None:
        streams = self._streams
        self._told = max(self._told, time - 1)
        self._around.holds.hold(self._name, (streams.own, streams.errors, *streams.others.values()), self._told + 1)
        self.counters.until = self._told

    def _count(self, step: Step) -> None:
        counters, streams = self.counters, self._streams
        counters.steps += 1
        counters.state_bytes = self._writer.size_bytes
        counters.alerts += len(step.alerts)
        counters.version = self._version.digest.hex()[:8] + (f"-{step.version}" if step.version else "")
        for run in step.runs:
            if run.stream == streams.own:
                counters.rows_out += len(run.keys)
                counters.bytes_out += sum(map(len, run.payloads))
            elif run.stream == streams.errors:
                counters.rows_rejected += len(run.keys)
            else:
                counters.rows_routed += len(run.keys)


def _pieces(events: list[Event], rows_max: int, *, by_second: bool) -> Iterator[list[Event]]:
    """Yield rows that may be handled at once: of one second where time matters, else some; and each gap alone."""
    piece: list[Event] = []
    second = 0
    for event in events:
        if isinstance(event, Gap):
            if piece:
                yield piece
            yield [event]
            piece = []
            continue
        own = (event.time - 1) // SECOND if by_second else 0
        if piece and (own != second or len(piece) >= rows_max):
            yield piece
            piece = []
        second = own
        piece.append(event)
    if piece:
        yield piece
