"""Asking a store in trouble again and again: bounded waits, a word in the log, and never giving up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from protocols.errors import CodecError
from storage.object_store import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")
TROUBLE = (StoreError, CodecError)
"""What a store call may end with besides its answers: nobody knows what happened. Stores bound their calls in time."""


class Patience:
    """Retries of one shard.

    Args:
        name: who waits, for the log.
        retry_min_s, retry_max_s: waits double from the one to the other, with jitter.
        random_bits: for the jitter.
    """

    def __init__(self, name: str, retry_min_s: float, retry_max_s: float, random_bits: Callable[[int], int]) -> None:
        self.trouble: str | None = None
        """The last failure; None while the store works."""
        self.retries = 0
        """Waits since the start."""
        self._name = name
        self._retry_min_s = retry_min_s
        self._retry_max_s = retry_max_s
        self._random_bits = random_bits
        self._failures = 0

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers. Trouble that there was before stays: a full disk can still be read."""
        before = self._failures, self.trouble
        while True:
            try:
                result = await call()
            except TROUBLE as error:
                await self.wait(str(error) or type(error).__name__)
                continue
            self._failures, self.trouble = before
            return result

    def answered(self) -> None:
        """The store does all that it should: trouble from now on is new trouble."""
        if self.trouble is not None:
            logger.info("%s: the store works again", self._name)
        self._failures, self.trouble = 0, None

    async def wait(self, trouble: str) -> None:
        """Sit out the next wait."""
        if self.trouble is None:
            logger.warning("%s: trying again: %s", self._name, trouble)
        self.trouble = trouble
        self.retries += 1
        longest = min(self._retry_min_s * 2 ** min(self._failures, 32), self._retry_max_s)
        self._failures += 1
        await asyncio.sleep(longest * (0.5 + self._random_bits(16) / (1 << 17)))
