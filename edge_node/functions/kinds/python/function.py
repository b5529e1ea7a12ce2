"""``python``: records through a user's own code."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from weft.config.functions.user_code import Python as Settings
from weft.config.signing.code import SUFFIX, CodeNotSigned
from weft.edge_node.functions.contract import AsyncFunction, Context, NotReady, Out, Row, State
from weft.edge_node.functions.kinds.python.child import LoadFailed
from weft.edge_node.functions.kinds.python.runner import Runner, RunResults
from weft.edge_node.functions.kinds.python.snapshots import FilesSnapshot, Snapshots
from weft.edge_node.functions.kinds.python.wire import LINES_MAX, RECORD_BYTES_MAX, Begin, Record
from weft.edge_node.functions.kinds.watched_files import CHECK_INTERVAL_S, WatchedFiles
from weft.edge_node.functions.series.sources import source_of

log = logging.getLogger(__name__)

SOON_S = 1.0
"""Wait for a new version to load, while the former one can handle the records."""
TRIAL_RECORDS = 100
"""Number of records after which a new version has passed its trial."""
TRIAL_ROWS = 20
"""Records that a new version on trial gets at a time."""
TRIAL_FAILURES_MAX = 3
"""Failures in a trial after which it ends: each may cost the time limit."""


class Python(AsyncFunction):
    """A function of the user in a process of its own (docs/functions/python.md).

    State: the content of ``ctx.state``, at most ``state`` bytes in all. A version of the files is replaced by a later
    one without a restart of the node; a version that fails on records that the former handles is refused.
    """

    def __init__(self, settings: Settings, context: Context) -> None:
        self.state = State()
        self._settings = settings
        self._context = context
        self._name = os.path.basename(settings.file)
        files, keys = (settings.file, *settings.files), context.signed_by
        self._files = Snapshots(files, keys)
        signatures = (*keys, *(f"{each}{SUFFIX}" for each in files)) if keys else ()
        self._watched = WatchedFiles((*files, *signatures), CHECK_INTERVAL_S)
        self._encoder = msgspec.msgpack.Encoder()
        self._current: Runner | None = None
        self._trial: Runner | None = None
        self._trial_left = 0
        self._loading: asyncio.Task[Runner | FilesSnapshot | str] | None = None
        self._trouble = ""

    async def prepare(self) -> None:
        """Load the code; a version that changed since the last check is tried on the next records."""
        wait_s: float | None = 0.0
        if self._watched.changed(asyncio.get_running_loop().time()):
            await self._give_up_loading()
            self._loading = asyncio.create_task(self._loaded())
            wait_s = SOON_S
        if self._loading is not None:
            # Records do not wait for a model that takes a minute to load, as the former version can handle them.
            done, _ = await asyncio.wait({self._loading}, timeout=None if self._current is None else wait_s)
            if done:
                loading, self._loading = self._loading, None
                await self._adopt(loading.result())
        if self._current is None:
            await self._files.close()  # the chain may be created again for each try
            raise NotReady(self._trouble)

    async def _loaded(self) -> Runner | FilesSnapshot | str:
        """Return the running files; or only their snapshot, when it is the present version's; or the reason why they
        cannot run."""
        try:
            snapshot = await self._files.take()
        except CodeNotSigned as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"{self._settings.file} cannot be read: {error}"
        if self._current is not None and snapshot.version == self._current.snapshot.version:
            await self._files.drop(snapshot)
            return snapshot
        candidate = Runner(snapshot, self._begin(), self._settings.start_timeout_s)
        try:
            await candidate.start()
        except LoadFailed as error:
            await self._files.drop(snapshot)
            return str(error)
        return candidate

    async def _adopt(self, found: Runner | FilesSnapshot | str) -> None:
        if isinstance(found, str):
            self._refuse(found)
            return
        await self._end_trial(None)
        self._trouble = ""
        if isinstance(found, FilesSnapshot):
            if self._current is not None and found.version != self._current.snapshot.version:
                self._watched.forget()  # a trial has ended meanwhile, and another version is the present one
            return
        log.info("%s: loaded version %s of %s", self._context.stream, found.snapshot.version, self._name)
        if self._current is None:
            self._current = found
        else:
            self._trial, self._trial_left = found, TRIAL_RECORDS

    async def _give_up_loading(self) -> None:
        loading, self._loading = self._loading, None
        if loading is None:
            return
        loading.cancel()
        (found,) = await asyncio.gather(loading, return_exceptions=True)
        if isinstance(found, Runner):
            await found.close()
            await self._files.drop(found.snapshot)

    def _begin(self) -> Begin:
        settings = self._settings
        return Begin(
            file=self._name,
            shown_as=self._name,
            function=settings.function or ("process_batch" if settings.batch else "process"),
            by_batch=settings.batch,
            timeout_s=settings.timeout_s,
            memory_bytes=settings.memory_bytes,
            state_bytes=settings.state_bytes,
            stream=self._context.stream,
            parent=os.getpid(),
        )

    def _refuse(self, why: str) -> None:
        goes_on = f"; version {self._current.snapshot.version} goes on" if self._current is not None else ""
        trouble = f"{why}{goes_on}"
        if trouble != self._trouble:
            log.error("%s: %s", self._context.stream, trouble)
        self._trouble = trouble

    async def _end_trial(self, in_place_of: Runner | None) -> None:
        """End the trial: with the candidate in place of the former version, or without it."""
        trial, self._trial = self._trial, None
        if trial is None:
            return
        gone = trial
        if in_place_of is not None:
            gone, self._current = in_place_of, trial
        await gone.close()
        await self._files.drop(gone.snapshot)

    async def process_async(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the code's results for some rows."""
        sent: list[Row] = []
        records: list[msgspec.Raw] = []
        for row in rows:
            try:
                levels = dict(self._context.levels(row.key))
                packed = self._encoder.encode(Record(row.time, row.key, levels, row.input, row.values))
            except (TypeError, ValueError, OverflowError) as error:
                out.reject(row, f"{self._name} cannot be given this record: {error}")
                continue
            if len(packed) > RECORD_BYTES_MAX:
                out.reject(row, f"{self._name} is given records of at most {RECORD_BYTES_MAX >> 20} MiB")
                continue
            sent.append(row)
            records.append(msgspec.Raw(packed))
        made: list[Row] = []
        position = 0
        while position < len(records):
            end = min(position + TRIAL_ROWS, len(records)) if self._trial is not None else len(records)
            outcome = await self._run(records[position:end])
            self._remember(outcome)
            for row, result in zip(sent[position:end], outcome.results, strict=True):
                if isinstance(result, str):
                    out.reject(row, result)
                elif result is None:
                    out.drop(row, f"{self._name} returned None")
                else:
                    source = source_of(row)
                    made += [
                        Row(row.time, row.key, None, values, row.headers, input=row.input, source=source)
                        for values in result
                    ]
            position = end
        return made

    async def _run(self, records: Sequence[msgspec.Raw]) -> RunResults:
        assert self._current is not None
        state = self._state
        trial, former = self._trial, self._current
        if trial is None:
            return await former.run(records, state)
        try:
            tried = await trial.run(records, state, TRIAL_FAILURES_MAX)
        except NotReady as error:
            tried = RunResults([], {}, len(records) + 1, [str(error)], 0)
        if tried.failures:
            outcome = await former.run(records, state)
            if outcome.failures < tried.failures:
                reason = next((each for each in tried.results if isinstance(each, str)), "")
                await self._end_trial(None)
                self._refuse(f"version {trial.snapshot.version} of {self._name} fails: {reason or tried.lines[0]}")
                return outcome
            if len(tried.results) < len(records):  # the trial stopped early, and the former version fails as well
                trial.is_stale = True
                return outcome
        former.is_stale = True
        self._trial_left -= len(records)
        if self._trial_left <= 0:
            await self._end_trial(former)
        return tried

    def _state(self) -> dict[str, Any]:
        assert self.state is not None
        return {key.decode(): value for key, value in self.state.values.items()}

    def tell(self, line: str) -> None:
        """Write a line of the code (``ctx.log``) to the node's log."""
        log.info("%s: %s: %s", self._context.stream, self._name, line)

    def _remember(self, outcome: RunResults) -> None:
        assert self.state is not None
        for key, value in outcome.changes.items():
            if value is None:
                self.state.delete(key.encode())
            else:
                self.state.set(key.encode(), value)
        for line in outcome.lines[:LINES_MAX]:
            self.tell(line)
        if left_out := outcome.lines_left_out + max(0, len(outcome.lines) - LINES_MAX):
            self.tell(f"{left_out} more lines were left out")

    def version(self) -> str:
        """Return the prefix of the hash of the files that handled the last rows."""
        runner = self._trial or self._current
        return runner.snapshot.version if runner is not None else ""

    def trouble(self) -> str:
        """Return the reason why the newest version of the files is not in use."""
        return self._trouble

    async def close(self) -> None:
        """End the processes, and remove the copies of the files."""
        await self._give_up_loading()
        for runner in (self._trial, self._current):
            if runner is not None:
                await runner.close()
        self._trial = self._current = None
        await self._files.close()
