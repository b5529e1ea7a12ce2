"""The follower of the cluster log in a process: the facts as of some seconds ago, also while the store is silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.bounds.background import BackgroundTask
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.errors import UnsupportedVersion
from weft.storage.cluster_log.log import ClusterLog, Rewritten
from weft.storage.cluster_log.state import ClusterState
from weft.storage.object_store import StoreError

_logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
"""Interval of looks for the next entry, one GET each: 0.52 US dollars a month for each process in a bucket."""
LOOKS_PER_CHECK = 30
"""Number of looks after which the follower looks whether the log is still the one that it read: a GET and a LIST."""
ENTRIES_PER_LOOK_MAX = 256
"""Maximum number of entries that a step reads before it calls ``changed``."""
SLOW_DOWN_MAX = 4
"""Factor to which the interval doubles while looks fail, and an answer would change nothing."""


class ClusterLogFollower:
    """The state of the cluster log, read on in the background.

    A store that does not answer leaves the last state in force: links and readers go on with what was known.

    Args:
        changed: called after entries were read, in the event loop. If it fails, it is called again at the next look.
        interval_s: interval of looks.
    """

    def __init__(self, log: ClusterLog, changed: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._log = log
        self._changed = changed
        self._interval_s = interval_s
        self._state: ClusterState | None = None
        self._now = asyncio.get_running_loop().time
        self._seen_at = 0.0
        self._looks = 0
        self._is_untold = False
        self.trouble: str | None = None
        """The reason why the state is not that of the log; None if it is."""
        self._repeats = Repeats()
        self._task = BackgroundTask()

    @property
    def state(self) -> ClusterState:
        """Return the state as of the last look."""
        assert self._state is not None, "the follower has not been started"
        return self._state

    @property
    def age_s(self) -> float:
        """Return the seconds since the end of the log was last seen."""
        return self._now() - self._seen_at

    async def start(self) -> None:
        """Read the log, and go on in the background.

        Raises:
            UnsupportedVersion: a later release wrote an entry.
            StoreError: the store did not answer.
        """
        self._state, self._seen_at = await self._log.load(), self._now()
        self._name_skipped(0)
        self._task.start(self._run(), name="cluster-log")

    async def close(self) -> None:
        """Stop following."""
        await self._task.close()

    async def look(self) -> None:
        """Read the entries that are new. A failure leaves the state as it is, and is logged."""
        try:
            while await self._look():
                pass
        except (StoreError, UnsupportedVersion) as error:
            self.trouble = str(error)
        except Exception as error:  # without looks, a withdrawn token would stay in force
            _logger.exception("a look at the cluster log failed")
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            self.trouble = None
            self._repeats.clear()
            return
        count = self._repeats.say(self.trouble, self._now())
        if count is not None:
            _logger.warning(
                "the cluster log cannot be read on, its last known facts stay in force: %s%s",
                self.trouble, left_out(count),
            )  # fmt: skip

    async def _look(self) -> bool:
        """Read some entries. Return whether there may be more."""
        self._looks += 1
        state, before = self.state, self.state.n
        try:
            if self._looks % LOOKS_PER_CHECK == 0 and not await self._is_same():
                raise Rewritten
            count = await self._log.extend(state, ENTRIES_PER_LOOK_MAX)
        except Rewritten:
            self._state, count, before = await self._log.load(), 0, -1
            _logger.warning("the cluster log is not the one that was read before; it was read again")
        finally:
            # Entries that were read before an error count, too.
            if self.state.n != before:
                self._name_skipped(before)
                self._is_untold = True
            if self._is_untold:  # also if the last call failed
                self._changed()
                self._is_untold = False
        if count == ENTRIES_PER_LOOK_MAX:
            return True
        self._seen_at = self._now()
        return False

    async def _is_same(self) -> bool:
        """Return whether the log has what was read of it, and no entry behind a missing one."""
        if not await self._log.holds(self.state):
            return False
        behind = await self._log.behind(self.state)
        return behind is None or behind == self.state.n + 1

    def _name_skipped(self, before: int) -> None:
        for skipped in self.state.skipped:
            if skipped.n > before:
                _logger.error("entry %d of the cluster log is passed over: %s", skipped.n, skipped.why)

    async def _run(self) -> None:
        slower = 1
        while True:
            await asyncio.sleep(self._interval_s * slower)
            await self.look()
            slower = 1 if self.trouble is None else min(2 * slower, SLOW_DOWN_MAX)
