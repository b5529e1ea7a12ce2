"""Writer of the steps of one derived stream."""

from __future__ import annotations

from collections.abc import Iterable

from weft.edge_node.functions.chain import Outputs
from weft.edge_node.functions.contract import State
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.parts import Environment, StreamNumbers, Version
from weft.edge_node.functions.runtime.rejections import Rejections
from weft.edge_node.functions.runtime.state_log import Positions, Remembered, StateWriter
from weft.edge_node.functions.runtime.step import Step, runs_of, write
from weft.protocols.message_headers import REASON
from weft.protocols.origin import OriginKind
from weft.protocols.ranges import RangeSet


class StepWriter:
    """Writer of steps, one at a time. Once a step is durable, it releases records in the log and moves the marks of the
    stream."""

    def __init__(
        self,
        name: str,
        streams: StreamNumbers,
        environment: Environment,
        counters: FunctionCounters,
        rejections: Rejections,
    ) -> None:
        """Write to some streams. Call ``go_on`` afterwards."""
        self._rejections = rejections
        self._name = name
        self._streams = streams
        self._environment = environment
        self._counters = counters
        self._written = streams.outputs
        self._pending: Step | None = None
        """Step without room in the log."""
        self._told = 0
        """Time up to which marks may have declared the stream complete."""

    def go_on(self, remembered: Remembered, *, forgets: bool = False, heals: bool = False) -> None:
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
        streams, environment = self._streams, self._environment
        runs = runs_of(outputs, streams.own, streams.errors, streams.others, after=self._told, last=self._last)
        positions.last = dict(self._last)
        # Sent marks remain valid, even when the clock is set back.
        positions.hold = max(positions.hold, self._told + 1)
        positions.ends = {stream: environment.log.next_seq(stream) for stream in (streams.own, streams.errors)}
        for run in runs:
            if run.stream in positions.ends:
                positions.ends[run.stream] += len(run.keys)
        text = version.text(files)
        self._pending = Step(
            runs, outputs.alerts, self._states.entry(positions, states), positions, text, version.digest
        )  # fmt: skip
        self.retry()

    def retry(self) -> None:
        """Write the waiting step.

        Raises:
            LogFull, LogFailed: it is not written.
        """
        step, environment = self._pending, self._environment
        assert step is not None
        origin = environment.log.origin(OriginKind.FUNCTION, self._name, step.version, step.digest)
        if step.alerts:
            environment.alerts.ready()
        place = (self._streams.states, self._states.key)
        seq = write(environment.log, step, place, origin, environment.wall_clock(), environment.alerts)
        self._pending = None
        gone = self._states.written(seq)
        environment.log.on_durable(lambda error: self._durable(step, gone) if error is None else None)
        self._count(step)

    def hold_once_durable(self, time: int) -> None:
        """Move marks to a time, once all writes are durable."""
        self._environment.log.on_durable(lambda error: self._hold(time) if error is None else None)

    def tell_read(self, positions: Positions) -> None:
        """Release the records of the inputs that durable positions have passed."""
        for name, seq in positions.inputs.items():
            if seq and name in self._streams.inputs:
                self._environment.released(self._name, name, RangeSet([(0, seq)]))

    # --- inside

    def _durable(self, step: Step, gone: RangeSet) -> None:
        environment = self._environment
        if gone:
            environment.log.release(self._streams.states, gone)
        self.tell_read(step.positions)
        self._hold(step.positions.hold)

    def _hold(self, time: int) -> None:
        self._told = max(self._told, time - 1)
        self._environment.mark_holds.hold(self._name, self._written, self._told + 1)
        self._counters.until = self._told

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
