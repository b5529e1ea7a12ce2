"""A node as a process: the event loop, and the signals that end it or make it read its files again."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import re
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import msgspec

from weft.config.load import changed_settings
from weft.output import Refused
from weft.service.signals import sighup_was_held

logger = logging.getLogger(__name__)

T = TypeVar("T")


COLLECT_AFTER_OBJECTS = 20_000
"""New containers after which the garbage collector looks at the young ones. With Python's 700, thousands of messages
that wait for one commit make it look at every connection several times a second: a fifth of the processor's time at
1,000 connections. Cycles are rare here, so what it finds later than before is little."""
COLLECTIONS_BETWEEN_OLDER = 20
"""Collections of young objects before their survivors are looked at; and so on to the oldest."""
SWITCH_S = 0.0002
"""Seconds after which a thread that waits for the interpreter has it."""


def let_threads_in_soon() -> None:
    """Have a busy event loop let the process's threads have the interpreter sooner than Python does by default.

    A chunk that is written to a directory needs it some eight times, between one call of the operating system and the
    next, and waited up to 5 ms for each: beside four readers of a thousand streams an acknowledgement took 160 to
    330 ms, and takes 70 to 110 ms so.
    """
    sys.setswitchinterval(SWITCH_S)


def collect_garbage_rarely() -> None:
    """Have the garbage collector disturb little from now on. To be called once a node has started, and before a start
    that loads much: what is there is never looked at again, and what is no longer needed goes back to the kernel."""
    gc.collect()
    _give_back_free_memory()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, COLLECTIONS_BETWEEN_OLDER, COLLECTIONS_BETWEEN_OLDER)


def _give_back_free_memory() -> None:
    # glibc alone gives back only what lies at the end of its heap, so what a start has freed would stay resident: 3 to
    # 5 MiB where Python had to compile a node's modules, as at the first start of a release. musl has no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Signals:
    """Signals that the process received. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        """Event: SIGTERM or SIGINT was received."""
        self._hang_up = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)

        def hang_up(_number: int, _frame: object) -> None:
            loop.call_soon_threadsafe(self._hang_up.set)

        # Not one of the loop's own: it takes those back when it closes, and a SIGHUP then would end the process.
        signal.signal(signal.SIGHUP, hang_up)
        if sighup_was_held():
            self._hang_up.set()

    async def stopped(self, failed: Coroutine[Any, Any, T]) -> T | None:
        """Wait for SIGTERM or SIGINT, or for the end of ``failed``. Return what that returned; None after a signal."""
        tasks = asyncio.create_task(self.stop.wait()), asyncio.create_task(failed)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return None if self.stop.is_set() else tasks[1].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _stop(self, number: signal.Signals) -> None:
        logger.info("%s: stopping", number.name)
        self.stop.set()

    @contextlib.asynccontextmanager
    async def reloading(self, reload: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Call ``reload`` after each SIGHUP while the context lasts, and once for those that came before it."""
        task = asyncio.create_task(self._reload(reload), name="reload")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _reload(self, reload: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._hang_up.wait()
            self._hang_up.clear()
            try:
                await reload()
            except Exception:
                # A mistake of ours in reading files again must not end a node that runs well with those it has.
                logger.exception("SIGHUP: the reload failed; the files read before stay in force")


def run_until_stopped(serve: Callable[[Signals], Awaitable[None]]) -> None:
    """Run ``serve`` on a fresh event loop that handles SIGTERM, SIGINT and SIGHUP."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # Linux only
        import uvloop

        loop_factory = uvloop.new_event_loop

    async def main() -> None:
        try:
            await serve(Signals())
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # from here on it has no loop to tell

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


# Log lines of a node on standard error: time, level, part and a sentence that cannot pose as another line.

LINE_CHARACTERS_MAX = 2000
"""Longest message of one line. Peers write parts of some messages, and a disk holds only so much."""
_DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that make a terminal show what follows backwards (Unicode, UAX 9)."""
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_CONTROL_IN_TRACEBACKS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")


class LineFormatter(logging.Formatter):
    """``2026-11-20T07:51:26.123Z WARNING replication.runner.progress: ...``: ISO 8601, UTC.

    UTC, as in status, tables and the API: the lines of edges in three time zones and of their hub sort together, and no
    hour is there twice in autumn. The time is there under systemd too, whose journal shows it without a zone.

    Line breaks and other control characters in a message are written as escapes: a client identifier with a line
    break in it must not write a line of its own, nor drive the terminal that shows the log.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Return the record's time in UTC, to the millisecond."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, escaped and bounded."""
        message = record.message
        if len(message) > LINE_CHARACTERS_MAX:
            message = f"{message[:LINE_CHARACTERS_MAX]}... ({len(message):,} characters)"
        record.message = _CONTROL.sub(_escaped, message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        """Return a traceback in its lines; what an exception quotes is escaped too."""
        return _CONTROL_IN_TRACEBACKS.sub(_escaped, super().formatException(ei))  # type: ignore[arg-type]


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def log_to_stderr(level: str) -> None:
    """Set up logging for the long-running commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


# A disk that became read-only under a running node: Linux does that to a file system that meets errors.


def read_only_mount(path: str) -> str | None:
    """Return where the file system of ``path`` is mounted if it is read-only now; None if it is not, or unknown."""
    try:
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            return None
        place = os.path.realpath(path)
        while not os.path.ismount(place):
            place = os.path.dirname(place)
    except OSError:
        return None
    return place


def sentence(path: str, mount: str, error: BaseException) -> str:
    """Return what a node says last that ended with ``error`` because the disk below ``mount`` became read-only."""
    return (
        f"the disk mounted at {mount} became read-only, so the node cannot write to {path} and stopped ({error}). "
        "What it acknowledged is on the disk. Look for the reason in the kernel's messages (dmesg), check or replace "
        "the disk, mount it read-write, and start the node again"
    )


# Reload of the configuration at SIGHUP: name the changed settings that need a restart.

SETTINGS_NAMED_MAX = 20


class RunningSettings:
    """The settings that a process runs with, and the file that they came from.

    Args:
        load: reads the file; raises ``Refused`` when it is not valid.
    """

    def __init__(self, path: str, running: msgspec.Struct, load: Callable[[str], msgspec.Struct]) -> None:
        self._path = path
        self._running = running
        self._load = load

    async def log_what_needs_a_restart(self) -> None:
        """Read the file again and log the settings that differ. The running node adopts none of them."""
        try:
            now = await asyncio.to_thread(self._load, self._path)
        except Refused as error:
            logger.error(
                "SIGHUP: %s is not valid, and the node could not start with it. The node keeps its settings: %s",
                self._path,
                error,
            )
            return
        changed = sorted(changed_settings(self._running, now))
        if not changed:
            logger.info("SIGHUP: no setting in %s has changed", self._path)
            return
        more = len(changed) - SETTINGS_NAMED_MAX
        named = ", ".join(changed[:SETTINGS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        logger.warning("SIGHUP: settings in %s have changed and need a restart: %s", self._path, named)


# A node of several processes: started one after the other, started again when they end, stopped together.

RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
"""Waits before a process is started again double from the one to the other."""
STEADY_S = 60.0
"""Time of running after which the end of a process is new trouble, and it is started again at once."""
STOP_S_MAX = 20.0
"""Longest time that processes may take to stop; they are killed then, which loses nothing that was acknowledged."""


class DidNotStart(Exception):
    """A process ended by itself before it was ready for the first time. It has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a process ended with status {status} before it was ready")
        self.status = status


class CannotStart(Exception):
    """The machine does not start a process of the node; the sentence says why."""


class Supervisor:
    """The processes of one node, which end with this one.

    Args:
        arguments: returns the arguments of ``python -m weft`` for a process, from its number, the descriptor to give to
            ``end_with_supervisor``, and whether no process of the node was ready before.
        count: number of processes.
    """

    def __init__(self, arguments: Callable[[int, int, bool], list[str]], count: int) -> None:
        self._arguments = arguments
        self._count = count
        self._processes: dict[int, Process] = {}
        # Nothing is ever written: a read ends when this process does, whatever ended it.
        self._alive, self._held_open = os.pipe()

    async def run(self, signals: Signals) -> None:
        """Run until SIGTERM or SIGINT. A SIGHUP is passed on.

        Raises:
            DidNotStart: a process ended by itself before it was ready.
            CannotStart: the machine started none.
        """
        keepers: list[asyncio.Task[None]] = []
        stop = asyncio.create_task(signals.stop.wait())
        try:
            # The first one alone: it makes the store, and says what is wrong once instead of once per process.
            for numbers in ([0], range(1, self._count)):
                ready: list[asyncio.Future[str]] = [asyncio.Future() for _ in numbers]
                begun = [asyncio.create_task(self._keep(n, report)) for n, report in zip(numbers, ready, strict=True)]
                keepers += begun
                everything = asyncio.create_task(asyncio.wait(ready))
                waited: list[asyncio.Future[Any]] = [everything, stop, *begun]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                everything.cancel()
                for keeper in begun:
                    if keeper.done():
                        keeper.result()
                if signals.stop.is_set():
                    return
                if 0 in numbers:
                    first_line = ready[0].result()
            click.echo(first_line)

            async def hang_up() -> None:
                self._signal(signal.SIGHUP)

            async with signals.reloading(hang_up):
                await asyncio.wait([stop, *keepers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(stop, *keepers, return_exceptions=True)
            await self._stop()
            os.close(self._held_open)
            os.close(self._alive)

    async def _keep(self, number: int, ready: asyncio.Future[str]) -> None:
        """Start a process again and again."""
        loop, wait = asyncio.get_running_loop(), RESTART_MIN_S
        while True:
            started = loop.time()
            is_first = number == 0 and not ready.done()
            try:
                process = self._processes[number] = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "weft",
                    *self._arguments(number, self._alive, is_first),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=PIPE,
                    pass_fds=[self._alive],
                )
            except OSError as error:
                # A machine without memory or process ids for the moment is no reason to stop the others.
                ended = f"cannot be started: {error.strerror or error}"
                if not ready.done():
                    raise CannotStart(f"process {number} of the hub, {sys.executable}, {ended}") from error
            else:
                assert process.stdout is not None
                if (line := await process.stdout.readline()) and not ready.done():
                    ready.set_result(line.decode().rstrip())
                status = await process.wait()
                if not ready.done() and status >= 0:
                    raise DidNotStart(status)
                # Who was killed has said nothing: the machine is short of memory, or an operator tries what happens.
                ended = f"ended: {_how(status)}"
            if loop.time() - started >= STEADY_S:
                wait = RESTART_MIN_S
            logger.error("process %d %s; starting it again in %.1f s", number, ended, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RESTART_MAX_S)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    async def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        ends = asyncio.gather(*(process.wait() for process in self._processes.values()))
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await asyncio.shield(ends)
        except TimeoutError:
            logger.error("processes that have not stopped after %.0f s are killed", STOP_S_MAX)
            self._signal(signal.SIGKILL)
            await ends


def end_with_supervisor(alive: int) -> None:
    """End this process at once when its supervisor is gone: no signal would stop it any more, and it holds a port.

    Args:
        alive: the read end of a pipe that the supervisor holds open.
    """

    def watch() -> None:
        os.read(alive, 1)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


def _how(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
