"""Turns of readers of the log for subscribers that fell behind: one message may leave thousands of them behind, and one
commit may have records for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weft.bounds import Owner, Rounds
from weft.storage.segment_log import SegmentLog

READERS_MAX = 8
"""Number of readers that run before the event loop polls its sockets again: each assembles a page, or sends some of it,
which takes at most a millisecond or two."""


class ReadTurns:
    """A few readers at a time, fairly by owner. Belongs to the event loop's thread."""

    def __init__(self, log: SegmentLog) -> None:
        """Start without readers."""
        self._log = log
        self._rounds = Rounds(lambda: None, pause_s=0, turns_max=READERS_MAX)
        self._waiting: list[tuple[Owner | None, asyncio.Future[None]]] = []
        """Turns that begin after the next commit."""

    def call(self, owner: Owner | None, work: Callable[[], None]) -> None:
        """Call back at the owner's turn."""
        self._rounds.wait(owner, work)

    async def next(self, owner: Owner | None) -> None:
        """Return at the owner's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rounds.wait(owner, partial(_begin, turn))
        await turn

    async def after_commit(self, owner: Owner | None) -> None:
        """Return at the owner's turn after a commit, perhaps of records that were appended before.

        Raises:
            LogFailed: there will be no further commit.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        if len(self._waiting) == 1:
            self._log.on_durable(self._committed)
        await turn

    def _committed(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        for owner, turn in waiting:
            self._rounds.wait(owner, partial(_begin, turn, error))


def _begin(turn: asyncio.Future[None], error: BaseException | None = None) -> None:
    if turn.done():
        return  # the waiting task was cancelled
    if error is None:
        turn.set_result(None)
    else:
        turn.set_exception(error)
