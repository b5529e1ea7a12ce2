"""A node as a process: the event loop, and the signals that end it or make it read its files again."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any, TypeVar

from weft.service.hang_up import hang_up_has_come

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


def software() -> str:
    """Return name and version, which nodes tell each other."""
    return f"weft {version('weft-fabric')}"


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
        if hang_up_has_come():
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
