"""A node of several processes: started one after the other, started again when they end, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Any

import click

from weft.service.serving import Signals

logger = logging.getLogger(__name__)

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
                begun = [asyncio.create_task(self._keep(n, told)) for n, told in zip(numbers, ready, strict=True)]
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
                    sys.executable, "-m", "weft", *self._arguments(number, self._alive, is_first),
                    stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, pass_fds=[self._alive],
                )  # fmt: skip
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
