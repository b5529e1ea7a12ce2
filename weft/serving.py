"""Running a node as a process: the event loop, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from importlib.metadata import version


def software() -> str:
    """Name and version, which nodes tell each other."""
    return f"weft {version('weft-fabric')}"


def run_until_stopped(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``serve`` on a fresh event loop; the event it is given is set by SIGTERM and SIGINT."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # Linux only
        import uvloop

        loop_factory = uvloop.new_event_loop

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(stop)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
