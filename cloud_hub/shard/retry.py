"""Calls to a failing store, repeated without end: bounded waits, and log lines at growing intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.units import approximate_duration
from weft.protocols.errors import CodecError
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.errors import TableError

logger = logging.getLogger(__name__)

T = TypeVar("T")
TROUBLE = (StoreError, CodecError)
"""Errors after which the outcome of a store call is unknown. Stores bound their calls in time."""


def told_to_others(error: Exception) -> str:
    """Return why something of the store cannot be read, for edges and readers: without folders, and without keys, which
    may name other tenants. The operator's log and status have the store's own words."""
    if isinstance(error, TableError):
        return "the stream's table cannot be read; the hub's operator sees why"
    if isinstance(error, CodecError | NotFound):
        return "an object of the hub's store is damaged or missing; the hub's operator sees which one"
    return "the hub cannot use its store at the moment; the hub's operator sees why"


class RetryLoop:
    """The retries of one shard: doubling waits, with jitter, and no last attempt.

    Args:
        name: the shard, for log lines.
        retry_min_s, retry_max_s: shortest and longest wait; waits double in between, with jitter.
        random_bits: for the jitter.
        patience_s: time of failures from which on ``on_long_trouble`` is called after every failed attempt.
    """

    def __init__(
        self,
        name: str,
        retry_min_s: float,
        retry_max_s: float,
        random_bits: Callable[[int], int],
        *,
        patience_s: float,
        on_long_trouble: Callable[[str], None],
    ) -> None:
        self._patience_s = patience_s
        self._on_long_trouble = on_long_trouble
        self.trouble: str | None = None
        """The last failure, for the operator; None while the store works."""
        self.told: str | None = None
        """The same for edges and readers."""
        self.is_long = False
        """True from the first call of ``on_long_trouble`` until the store works again."""
        self.retries = 0
        """Number of waits since the start."""
        self._name = name
        self._retry_min_s = retry_min_s
        self._retry_max_s = retry_max_s
        self._random_bits = random_bits
        self._failures = 0
        self._now = asyncio.get_running_loop().time
        self._repeats = Repeats()
        self._trouble_since: float | None = None
        """Time of the first failure since the store last worked."""
        self._asked_at: float | None = self._now()
        """Time on the loop's clock since which the store owes the shard an answer; None while it owes none."""

    @property
    def silent_s(self) -> float:
        """Return the seconds for which the store has owed the shard an answer; 0 while it owes none."""
        return 0.0 if self._asked_at is None else self._now() - self._asked_at

    def asks(self) -> None:
        """Note that the shard begins to wait for the store."""
        self._asked_at = self._now() if self._asked_at is None else self._asked_at

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers, and return its answer.

        An answer does not end earlier trouble: a full disk can still be read.
        """
        before = self._failures, self.trouble, self.told
        while True:
            try:
                result = await call()
            except TROUBLE as error:
                await self.wait(str(error) or type(error).__name__, told_to_others(error))
                continue
            self._failures, self.trouble, self.told = before
            return result

    def answered(self) -> None:
        """Note that the store works: a later failure is new trouble."""
        self._asked_at = None
        if self.trouble is not None and self._trouble_since is not None:
            away = approximate_duration(self._now() - self._trouble_since)
            logger.info("%s: the store works again, after %s", self._name, away)
        self.trouble = self.told = self._trouble_since = None
        self._failures, self.is_long = 0, False

    async def wait(self, trouble: str, told: str) -> None:
        """Wait for the next attempt.

        Args:
            trouble: the failure, for the operator.
            told: the same for edges and readers.
        """
        now = self._now()
        if self.trouble is None:
            self._repeats.clear()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        count = self._repeats.say("trouble", now)
        if count is not None:
            logger.warning("%s: trying again: %s%s", self._name, trouble, left_out(count))
        self.trouble, self.told = trouble, told
        self.retries += 1
        if now - self._trouble_since >= self._patience_s:
            self.is_long = True
            self._on_long_trouble(told)
        longest = min(self._retry_min_s * 2 ** min(self._failures, 32), self._retry_max_s)
        self._failures += 1
        await asyncio.sleep(longest * (0.5 + self._random_bits(16) / (1 << 17)))
