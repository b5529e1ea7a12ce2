"""Tasks that run beside everything else until their owner is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class BackgroundTask:
    """A task of one owner, which starts and ends it. Event loop's thread only."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the task was started, and has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Start the work.

        Args:
            name: of the task, for debuggers and for the warning about an error that nothing takes.
        """
        self._task = asyncio.get_running_loop().create_task(work, name=name)

    async def close(self) -> bool:
        """Cancel the work and wait for its end. Return false, and do nothing, if none was started.

        It waits for the task and not for its result, so a cancelled caller is cancelled, and an error that ended the
        task before does not keep the caller from closing the rest.
        """
        if (task := self._task) is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        self._task = None
        return True
