"""``python``: records through a user's own code."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import hashlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.config.functions.step import Python as Settings
from weft.config.signing import SUFFIX, CodeNotSigned, check_code
from weft.functions.contract import AsyncFunction, Context, NotReady, Out, Row, State
from weft.functions.enrich import CHECK_INTERVAL_S, WatchedFiles
from weft.functions.python_protocol import (
    EXIT_NO_MEMORY,
    FRAME_BYTES_MAX,
    LENGTH,
    LINES_MAX,
    RECORD_BYTES_MAX,
    Answer,
    Ask,
    Begin,
    Broken,
    FromProcess,
    Put,
    Ready,
    Record,
    Result,
    framed,
    waited_s,
)
from weft.functions.series import source_of

# Copies of the user's files, so that a version runs from the same bytes until the next one has passed its trial.

BYTES_MAX = 512 << 20
"""Maximum size of the code and its files, such as a model, together."""
HASH_CHARACTERS = 12
PREFIX = "weft-function-"
MARK = "WEFT_FUNCTION_FOLDER"
"""Environment variable with the folder, in the process that runs a version and all of its children."""
LOCK = "lock"


class FilesSnapshot(NamedTuple):
    """The files at one moment."""

    version: str
    """Prefix of the SHA-256 of names and contents."""
    folder: str


class Snapshots:
    """The files of a function, and copies of them in a folder of its own. The first file is the code."""

    def __init__(self, paths: Sequence[str], signed_by: Sequence[str] = ()) -> None:
        """Take no copy yet.

        Args:
            signed_by: files with the keys of which one has to have signed each file; empty where none has to.
        """
        self._paths = paths
        self._signed_by = signed_by
        self._folder: str | None = None
        self._lock: int | None = None
        self._count = 0

    async def take(self) -> FilesSnapshot:
        """Return a copy of the present files.

        Raises:
            OSError: a file cannot be read or copied.
            CodeNotSigned: a file has no signature of a key.
            ValueError: the files are too large, or two have one name.
        """
        return await asyncio.to_thread(self._take)

    def _take(self) -> FilesSnapshot:
        names = [os.path.basename(path) for path in self._paths]
        if len(set(names)) < len(names):
            raise ValueError(f"two files have the same name: {', '.join(sorted(names))}. Rename one")
        found = [os.stat(path) for path in self._paths]
        for path, each in zip(self._paths, found, strict=True):
            if not stat.S_ISREG(each.st_mode):  # a device or a pipe may have no end
                raise ValueError(f"{path} is not a regular file")
        if sum(each.st_size for each in found) > BYTES_MAX:
            raise ValueError(f"the files have more than {BYTES_MAX >> 20} MiB together")
        if self._folder is None:
            remove_left_folders()
            self._folder, self._lock = _new_folder()
        self._count += 1
        folder = os.path.join(self._folder, str(self._count))
        os.mkdir(folder)
        digest = hashlib.sha256()
        for path, name in zip(self._paths, names, strict=True):
            copy = os.path.join(folder, name)
            shutil.copyfile(path, copy)
            with open(copy, "rb") as file:
                digest.update(f"{name}\0".encode())
                content = hashlib.file_digest(file, "sha256")
                digest.update(content.digest())
            if self._signed_by:
                # Of the copy, which is what runs: the file may change at any moment.
                self._check(path, content.hexdigest(), folder)
        return FilesSnapshot(digest.hexdigest()[:HASH_CHARACTERS], folder)

    def _check(self, path: str, digest: str, folder: str) -> None:
        try:
            check_code(path, digest, self._signed_by)
        except CodeNotSigned:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def drop(self, snapshot: FilesSnapshot) -> None:
        """Remove a copy that is no longer in use."""
        await asyncio.to_thread(shutil.rmtree, snapshot.folder, ignore_errors=True)

    async def close(self) -> None:
        """Remove all copies."""
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _new_folder() -> tuple[str, int]:
    """Return a new folder, and the lock that marks it as in use."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            return folder, lock
        os.close(lock)  # another node has removed it before it was locked


def remove_left_folders() -> None:
    """Remove folders of killed nodes, and end processes of their code that the kernel has not ended with the node. A
    lock marks folders in use, independent of process ids."""
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # in use, or another user's
            lock = os.open(os.path.join(folder, LOCK), os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    _end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _end_processes(folder: str) -> None:
    """End the processes that have a folder in their environment, which child processes inherit. Other users'
    environments cannot be read."""
    mark = f"{MARK}={folder}/".encode()
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            if any(each.startswith(mark) for each in file.read().split(b"\0")):
                os.kill(int(path.split("/")[2]), signal.SIGKILL)


# The process of a user's code, on the node's side: start, requests, end.

WORKER = "weft.functions.python_worker"
PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""Variables of the node's environment that the process gets. Others may hold secrets."""
SET = {
    # Otherwise numeric libraries start a thread for each processor, each with memory of its own.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # From version 1.29 on, onnxruntime sends telemetry to its maker, unless this is set before it is imported.
    "ORT_DISABLE_TELEMETRY": "1",
}
"""Further variables of the process."""
PRINTED_BYTES = 64 << 10
PRINT_PAUSE_S = 0.05
"""Pause after reading what the code printed. A pipe holds 64 KiB: code that prints without end blocks, not the node."""
PRINTED_SHOWN = 300
STARVED_FACTOR = 10
"""Maximum factor by which a limit grows while the process waits for a processor."""
GRACE_S = 0.25
"""Time over the limit of a call in which the process may end the call itself."""
_REAP_PAUSE_S = 0.005
_REAP_TRIES = 400


class ChildEnded(Exception):
    """The process has ended, or was ended because it took too long. The text has the reason."""

    def __init__(self, why: str, *, is_by_limit: bool) -> None:
        super().__init__(why)
        self.is_by_limit = is_by_limit
        """True where a limit ended it; another end may have an external cause, such as a signal of the kernel."""


class LoadFailed(Exception):
    """The user's code cannot be loaded. The text has the reason."""


class Child:
    """One process, from its start to its end. One request at a time."""

    def __init__(self, begin: Begin, folder: str) -> None:
        self._begin = begin
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromProcess)
        self._why = ""
        self._is_by_limit = False
        self._printed = b""
        self.answers = 0
        """Number of answered requests."""
        # Not asyncio's: uvloop copies the node's page tables with fork, and Popen does not (vfork).
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-X", "utf8", "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ} | SET | {MARK: folder},
            start_new_session=True,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(cls, begin: Begin, folder: str, timeout_s: float) -> Child:
        """Return a process that has loaded its code.

        Raises:
            LoadFailed: it cannot be loaded.
            OSError: the system cannot start a process.
        """
        child = cls(begin, folder)
        try:
            await child._connect()
            answer = await child._asked(framed(begin, child._encoder), timeout_s, timeout_s)
        except ChildEnded as error:
            raise LoadFailed(f"{begin.shown_as}: while it was loaded, {error}") from None
        except BaseException:
            child.kill()
            raise
        if isinstance(answer, Broken):
            await child.end()
            raise LoadFailed(answer.reason)
        return child

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._answers = asyncio.StreamReader(limit=1 << 20)
        printed = asyncio.StreamReader(limit=PRINTED_BYTES)
        for reader, pipe in ((self._answers, process.stdout), (printed, process.stderr)):
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]
            self._transports.append(transport)
        writing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
        self._transports.append(writing)
        self._writer = asyncio.StreamWriter(writing, flow, None, loop)
        self._tasks.append(asyncio.create_task(self._collect(printed)))

    async def _collect(self, printed: asyncio.StreamReader) -> None:
        while part := await printed.read(PRINTED_BYTES):
            self._printed = (self._printed + part)[-2 * PRINTED_SHOWN :]
            await asyncio.sleep(PRINT_PAUSE_S)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    async def put(self, state: dict[str, Any]) -> None:
        """Replace the state of the process.

        Raises:
            ChildEnded: the process has ended.
        """
        await self._send(framed(Put(state), self._encoder))

    async def ask(self, records: list[msgspec.Raw], timeout_s: float) -> Answer:
        """Return the results of some records.

        Args:
            timeout_s: limit of one call. The process ends a call that takes longer, and answers before many calls add
                up to a quarter of it; so a process that is silent beyond that is ended.

        Raises:
            ChildEnded: the process has ended.
        """
        limit_s = timeout_s * 1.25 + GRACE_S
        answer = await self._asked(framed(Ask(records), self._encoder), limit_s, timeout_s)
        if not isinstance(answer, Answer) or len(answer.results) > len(records):
            await self._stop("sent an invalid reply")
            raise self._ended()
        if not answer.results and not answer.failed:
            await self._stop("sent an empty answer")
            raise self._ended()
        self.answers += 1
        return answer

    async def _send(self, frame: bytes) -> None:
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except (OSError, RuntimeError):
            await self._stop("")
            raise self._ended() from None

    async def _asked(self, frame: bytes, limit_s: float, call_s: float) -> Ready | Broken | Answer:
        exchange = asyncio.create_task(self._exchange(frame))
        try:
            if not await self._in_time(exchange, limit_s):
                exchange.cancel()
                await self._stop(f"took longer than {call_s:g} s")
                raise self._ended()
            return exchange.result()
        except asyncio.CancelledError:
            # The unread answer would be treated as the answer to the next request.
            exchange.cancel()
            self.kill()
            raise

    async def _in_time(self, exchange: asyncio.Task[Any], limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        began, waited = loop.time(), waited_s(str(self.pid))
        left_s = limit_s
        while True:
            await asyncio.wait({exchange}, timeout=left_s)
            if exchange.done():
                return True
            elapsed_s = loop.time() - began
            starved_s = max(waited_s(str(self.pid)) - waited, 0.0)
            left_s = limit_s - (elapsed_s - starved_s)
            if left_s <= 0.01 or elapsed_s > STARVED_FACTOR * limit_s:
                return False

    async def _exchange(self, frame: bytes) -> Ready | Broken | Answer:
        await self._send(frame)
        try:
            (length,) = LENGTH.unpack(await self._answers.readexactly(LENGTH.size))
            if length > FRAME_BYTES_MAX:
                raise msgspec.DecodeError(f"{length:,} bytes")
            answer: Ready | Broken | Answer = self._decoder.decode(await self._answers.readexactly(length))
            return answer
        except (asyncio.IncompleteReadError, OSError):
            await self._stop("")
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            await self._stop(f"sent an invalid reply ({error})")
        raise self._ended()

    def _ended(self) -> ChildEnded:
        return ChildEnded(self._why, is_by_limit=self._is_by_limit)

    async def _stop(self, why: str) -> None:
        """End the process, and note why."""
        if not why:
            # Its pipe is closed: it is about to end, with a status that explains more than a signal of the node would.
            await self._reap()
        self.kill()
        status = await self._reap()
        self._is_by_limit = bool(why) or status == EXIT_NO_MEMORY
        self._why = self._why or why or _meaning(status, self._begin.memory_bytes) + self._said()
        await self.end()

    def _said(self) -> str:
        lines = self._printed.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its last output: {last[:PRINTED_SHOWN]}" if last else ""

    def kill(self) -> None:
        """End the process and those that it started, at once. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _reap(self) -> int | None:
        """Return the exit status; None when the process has not ended in time. The wait polls: a wait in a thread would
        delay the node's end when the kernel cannot end the process."""
        for _ in range(_REAP_TRIES):
            if (status := self._process.poll()) is not None:
                return status
            await asyncio.sleep(_REAP_PAUSE_S)
        return None

    async def end(self) -> None:
        """End the process and forget it."""
        self.kill()
        for task in self._tasks:
            task.cancel()
        for transport in self._transports:
            if not transport.is_closing():
                # Data that the process has not read is lost anyway, and close() would wait for it.
                transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
        await self._reap()


def _meaning(status: int | None, memory_bytes: int) -> str:
    if status == EXIT_NO_MEMORY:
        return f"needed more memory than {memory_bytes >> 20} MiB"
    if status is None:
        return "closed its pipe"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = str(-status)
        return f"its process was ended by {name}"
    return f"ended its process with status {status}"


# A running version of a user's code: its process, restarted when it ends, and the search for the records that end it.

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
        continues = f"; version {self._current.snapshot.version} continues" if self._current is not None else ""
        trouble = f"{why}{continues}"
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

    def log(self, line: str) -> None:
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
            self.log(line)
        if left_out := outcome.lines_left_out + max(0, len(outcome.lines) - LINES_MAX):
            self.log(f"{left_out} more lines were left out")

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
