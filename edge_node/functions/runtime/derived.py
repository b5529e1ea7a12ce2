"""One derived stream: reads its inputs, runs its chain, and writes whole steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter

from weft.edge_node.functions.chain import SECOND, Chain, Outputs, ReplayOutputs
from weft.edge_node.functions.contract import Gap, NotReady, Out, Row
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.inputs import Inputs
from weft.edge_node.functions.runtime.losses import Losses, losses_of, tell
from weft.edge_node.functions.runtime.parts import Environment, StreamNumbers, Version
from weft.edge_node.functions.runtime.pieces import pieces
from weft.edge_node.functions.runtime.rejections import Rejections
from weft.edge_node.functions.runtime.state_log import Positions, Remembered
from weft.edge_node.functions.runtime.step_writer import StepWriter
from weft.edge_node.functions.runtime.versions import RETRY_S, RETRY_S_MAX, Versions
from weft.storage.segment_log import LogFailed, LogFull

SLICE = 256
"""Maximum number of rows handled at once."""
TURN_S = 0.002
"""Time after which other work of the node has its turn, s."""
STEP_ROWS_MAX = 20_000
"""Rows after which a step is written, with or without output."""
STEP_S = 1.0
"""Longest wait of rows without output for their step, s. After a crash they are read again."""
_PAYLOAD = attrgetter("payload")

logger = logging.getLogger(__name__)


class Derived:
    """A derived stream that is running. Belongs to the event loop's thread."""

    def __init__(
        self,
        version: Version,
        streams: StreamNumbers,
        environment: Environment,
        remembered: Remembered,
    ) -> None:
        """Resume at the end of the log's steps. The stream's marks are held from now on.

        Args:
            remembered: positions and states in the log; empty for a new stream.
        """
        self.counters = FunctionCounters()
        self._name = version.name
        self._streams = streams
        self._environment = environment
        self._wake = asyncio.Event()
        self._versions = Versions(self._name, version, self.counters, environment.clock, self._wake)
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
        self._rejections = Rejections(self._name, self.counters, environment.clock)
        self._writer = StepWriter(self._name, streams, environment, self.counters, self._rejections)
        self._start_from(remembered)

    def start(self) -> None:
        """Begin to work."""
        # A restart loses the log's list of releasable records; a stream without new records would keep its old ones.
        self._writer.tell_read(Positions(self._inputs.positions()))
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. The next start repeats work that is not in a step."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._versions.close()
        if self._chain is not None:
            await self._chain.close()

    def change(self, version: Version) -> None:
        """Switch to another version of the functions after the present step, and back to this one if that fails at
        once. States of functions with equal settings are kept."""
        self._versions.want(version)

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
        environment, inputs = self._environment, self._streams.inputs
        self._losses = losses_of(environment.log, self._streams, remembered, environment.wall_clock())
        positions = remembered.positions
        self._begun_from = positions
        found = {name: positions.inputs.get(name) for name in inputs}
        self._inputs = Inputs(
            environment.log,
            environment.pages,
            inputs,
            {
                # A new input is read from the log's first record.
                name: (self._first(inputs[name]) if seq is None else seq, positions.times.get(name, 0))
                for name, seq in found.items()
            },
            environment.wall_clock,
            unordered=self._streams.written,
        )
        self._tick = positions.tick
        self._writer.go_on(remembered, forgets=self._losses.forgets, heals=bool(self._losses.of))
        self._states = remembered.states
        self._outputs, self._rows = self._no_outputs(), 0

    def _first(self, stream: int) -> int:
        held = self._environment.log.ranges(stream)
        return next((first for first, _ in held), self._environment.log.durable_end(stream))

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
                told = self._versions.refused, self._chain.trouble() if self._chain is not None else ""
                self.counters.refused = "; ".join(filter(None, told))
                wait_s = RETRY_S
                continue
            except LogFailed:
                return  # the node ends, and recovery opens the log again
            except NotReady as error:
                self._is_stale = bool(self._rows)
                self._trouble(str(error))
                if self._chain is None and self._versions.skip():
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
                if not self._versions.go_back(error):
                    self._failing_rows.failed(error)
                logger.exception("the functions of stream %s failed; they start again in %g s", self._name, wait_s)
                self._trouble(f"failed ({type(error).__name__}: {error}) and is started again")
            await self._pause(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _pause(self, wait_s: float) -> None:
        """Wait after an error, at most until the functions change."""
        self._versions.changed.clear()
        pauses = {
            asyncio.ensure_future(self._environment.sleep(wait_s)),
            asyncio.ensure_future(self._versions.changed.wait()),
        }
        try:
            await asyncio.wait(pauses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pause in pauses:
                pause.cancel()

    async def _make(self) -> None:
        chain = self._versions.present.make_chain()
        for label, state in chain.states():
            for key, value in self._states.get(label, {}).items():
                state.load(key, value)
        try:
            await chain.prepare()
        except BaseException:
            await chain.close()  # a function before the failed one may have started a process
            raise
        self._chain, self._states = chain, {}
        if self._losses.of:
            told = await tell(self._losses, chain, self._begun_from, self._outputs, self._name)
            self._losses = Losses([])
            self._rows += told
            self.counters.gaps += told

    async def _restart(self) -> None:
        if self._chain is not None:
            await self._chain.close()
            self._chain = None
        await self._environment.log.durable()
        self._start_from(await asyncio.to_thread(self._environment.read_states, self._name))
        self._is_stale = False

    async def _switched(self, chain: Chain) -> Chain:
        """Return the functions of the wanted version, with the present states, once they are ready."""
        new = await self._versions.next_chain()
        if new is None:
            return chain
        if self._rows:
            self._commit(chain)
        states = {label: state.values for label, state in chain.states()}
        for label, state in new.states():
            for key, value in states.get(label, {}).items():
                state.load(key, value)
        self._versions.take_over()
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
        chain, clock = self._chain, self._environment.clock
        assert chain is not None
        self._wake.clear()
        if self._writer.waits:
            self._writer.retry()
            self._is_written()
        if self._versions.is_changing:
            chain = await self._switched(chain)
        if not self._rows:
            await chain.prepare()
        events = await self._inputs.read()
        until = clock() + TURN_S
        for piece in pieces(events, 1 if self._failing_rows.is_searching else SLICE, by_second=chain.has_ticks):
            await self._handle(chain, piece)
            if clock() >= until:
                await self._environment.turn()
                until = clock() + TURN_S
        await self._pass_time(chain, self._inputs.until())
        self.counters.lag = self._inputs.lag()
        age_s = clock() - self._since
        if self._outputs or (self._rows and (self._rows >= STEP_ROWS_MAX or age_s >= STEP_S)):
            self._commit(chain)
        elif not self._rows:
            self._writer.hold_once_durable(self._hold_of(chain))
        # Outputs wait for the disk in memory: a long backlog must not produce them faster than they are synced.
        if self._environment.log.pending_bytes > 1 << 20:
            await self._environment.log.durable()
        if not events:
            await self._wait()

    async def _handle(self, chain: Chain, piece: Gap | list[Row]) -> None:
        if not self._rows:
            self._since = self._environment.clock()
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
        clock = self._environment.clock
        end = clock() + TURN_S

        async def turn() -> None:
            nonlocal end
            if clock() >= end:
                await self._environment.turn()
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
            {**begun.inputs, **inputs.positions()}, self._tick, {**begun.times, **inputs.times()}, hold,
            replayed=self._versions.present.replayed,
        )  # fmt: skip
        self._rows = 0
        self._writer.take(outputs, positions, chain.states(), self._versions.present, chain.version())
        self._is_written()

    def _is_written(self) -> None:
        self._versions.is_written()
        self._rejections.look()
        self._failing_rows.written(self._inputs.positions())

    def _no_outputs(self) -> Outputs:
        return ReplayOutputs() if self._versions.present.replayed else Outputs()

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
