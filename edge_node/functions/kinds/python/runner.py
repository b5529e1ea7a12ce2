"""A running version of a user's code: its process, restarted when it ends, and the search for the records that end
it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.edge_node.functions.contract import NotReady
from weft.edge_node.functions.kinds.python.child import Child, ChildEnded, LoadFailed
from weft.edge_node.functions.kinds.python.snapshots import FilesSnapshot
from weft.edge_node.functions.kinds.python.wire import Answer, Begin, Result

ROWS_MAX = 256
"""Maximum number of records in a request."""
BYTES_ENOUGH = 1 << 20
"""Size of a request from which on no further records are added."""
BACKOFF_S = 0.05
BACKOFF_S_MAX = 5.0
STARTS_MAX = 5
"""Consecutive failed starts after which the step is stopped, and tried again later."""


class RunResults(NamedTuple):
    """Results of a run."""

    results: list[Result]
    """One for each record; fewer when the run was stopped."""
    changes: dict[str, Any]
    """Changes of the state; None for deleted keys."""
    failures: int
    lines: list[str]
    lines_left_out: int


class Runner:
    """One version of the code."""

    def __init__(self, snapshot: FilesSnapshot, begin: Begin, start_timeout_s: float) -> None:
        self.snapshot = snapshot
        self._begin = begin
        self._start_timeout_s = start_timeout_s
        self._child: Child | None = None
        self._backoff_s = 0.0
        self._rows_max = ROWS_MAX
        self.restarts = 0
        """Number of processes that ended or had to be ended."""
        self.is_stale = True
        """True when the state of the process may differ from the step's."""

    async def start(self) -> None:
        """Start the process.

        Raises:
            LoadFailed: the code cannot be loaded.
        """
        try:
            self._child = await Child.start(self._begin, self.snapshot.folder, self._start_timeout_s)
        except OSError as error:
            raise LoadFailed(f"the system starts no process: {error}") from error
        self.is_stale = True

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def run(
        self, records: Sequence[msgspec.Raw], state: Callable[[], dict[str, Any]], failures_max: int | None = None
    ) -> RunResults:
        """Return the results of records, in order. A record that cannot be handled has a reason as its result.

        Args:
            state: returns a copy of the state before. Called only when the process does not have it.
            failures_max: stop after so many failures.

        Raises:
            NotReady: the process cannot be started any more.
        """
        results: list[Result] = []
        outcome = RunResults(results, {}, 0, [], 0)
        parts = deque([(0, len(records))])
        suspect = -1
        while parts and (failures_max is None or outcome.failures < failures_max):
            begin, end = parts.popleft()
            if end - begin > (size := self._size(records, begin)):
                parts.appendleft((begin + size, end))
                end = begin + size
            child = await self._ready(state, outcome.changes)
            try:
                answer = await child.ask(list(records[begin:end]), self._begin.timeout_s)
            except ChildEnded as error:
                self._ended()
                if end - begin > 1:
                    parts.extendleft(self._parts(begin, end))
                elif child.answers == 0 and (error.is_by_limit or suspect == begin):
                    # This record is the cause: a fresh process had only this record, and exceeded a limit, or ended
                    # twice.
                    results.append(f"{self._begin.shown_as}: {error}")
                    outcome = outcome._replace(failures=outcome.failures + 1)
                else:
                    # The cause may be the effects of earlier records, or an external signal: try once more.
                    suspect = begin if child.answers == 0 else -1
                    parts.appendleft((begin, end))
                continue
            self._backoff_s = 0.0
            self._rows_max = min(ROWS_MAX, self._rows_max + 1 + self._rows_max // 8)
            outcome = _with(outcome, answer)
            if not answer.failed:
                if begin + len(answer.results) < end:
                    parts.appendleft((begin + len(answer.results), end))
            elif end - begin > 1:
                middle = (begin + end) // 2
                parts.extendleft([(middle, end), (begin, middle)])
            else:
                results.append(answer.failed)
                outcome = outcome._replace(failures=outcome.failures + 1)
        return outcome

    def _size(self, records: Sequence[msgspec.Raw], begin: int) -> int:
        size = count = 0
        for record in records[begin : begin + self._rows_max]:
            size += len(memoryview(record))
            if count and size > BYTES_ENOUGH:
                break
            count += 1
        return count

    def _parts(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return smaller parts of a part on which the process ended, the last one first."""
        if self._begin.by_batch:
            # The batch may only have been too large for the limit; so the next ones begin smaller.
            self._rows_max = max(1, (end - begin) // 2)
            middle = (begin + end) // 2
            return [(middle, end), (begin, middle)]
        # Every end costs up to the limit and a start: record by record there is one more for each failing record, by
        # halves there would be up to eight.
        return [(i, i + 1) for i in reversed(range(begin, end))]

    async def _ready(self, state: Callable[[], dict[str, Any]], changes: Mapping[str, Any]) -> Child:
        for _ in range(STARTS_MAX):
            try:
                if self._child is None:
                    await asyncio.sleep(self._backoff_s)
                    await self.start()
                assert self._child is not None
                if self.is_stale:
                    whole = {**state(), **changes}
                    await self._child.put({key: value for key, value in whole.items() if value is not None})
                    self.is_stale = False
            except (LoadFailed, ChildEnded) as error:
                last = str(error)
                self._ended()
                continue
            return self._child
        raise NotReady(f"{self._begin.shown_as} no longer starts: {last}")

    def _ended(self) -> None:
        self._child = None
        self.is_stale = True
        self.restarts += 1
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_S), BACKOFF_S_MAX)


def _with(outcome: RunResults, answer: Answer) -> RunResults:
    outcome.results.extend(answer.results)
    outcome.changes.update(answer.state)
    outcome.lines.extend(answer.lines)
    failed = sum(isinstance(result, str) for result in answer.results)
    return outcome._replace(
        failures=outcome.failures + failed, lines_left_out=outcome.lines_left_out + answer.lines_left_out
    )
