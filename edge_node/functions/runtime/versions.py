"""Versions of the functions of a derived stream: the present one, the next one, and the former one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.edge_node.functions.chain import Chain
from weft.edge_node.functions.contract import NotReady
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.functions.runtime.next_version import NextVersion
from weft.edge_node.functions.runtime.parts import Version

RETRY_S = 1.0
"""Wait before a retry after a failure, or while the log has no room; it doubles up to a minute."""
RETRY_S_MAX = 60.0

logger = logging.getLogger(__name__)


class Versions:
    """Choice of the running version of the functions. Another one takes over only when it is ready; the former one
    returns where the new one fails on its first rows. Belongs to the event loop's thread."""

    def __init__(
        self, name: str, first: Version, counters: FunctionCounters, clock: Callable[[], float], wake: asyncio.Event
    ) -> None:
        """Begin with a version.

        Args:
            name: of the derived stream.
            counters: get the version, and the reason why another one was refused.
            clock: monotonic seconds.
            wake: set when there is work.
        """
        self.changed = asyncio.Event()
        """Set when another version is wanted."""
        self.refused = ""
        """Line with the reason why the configuration's version is not running; empty when it is."""
        self._name = name
        self._present = first
        self._next: Version | None = None
        self._former: Version | None = None
        """Version to go back to, until a step of the present one is written."""
        self._making: NextVersion | None = None
        """Functions of the next version, from their preparation until they take over."""
        self._try_at = 0.0
        """Time of the next try, by the clock."""
        self._wait_s = RETRY_S
        self._counters = counters
        self._clock = clock
        self._wake = wake
        counters.version = first.text()

    @property
    def present(self) -> Version:
        """Return the running version."""
        return self._present

    @property
    def is_changing(self) -> bool:
        """Return whether ``next_chain`` has work."""
        return self._next is not None or self._making is not None

    def want(self, version: Version) -> None:
        """Switch to a version, as soon as it is ready."""
        if version.works_like(self._present):
            self._next, self.refused = None, ""
        elif self._next is None or not version.works_like(self._next):
            self._next, self._try_at, self._wait_s, self.refused = version, 0.0, RETRY_S, ""
            self._wake.set()
            self.changed.set()

    async def next_chain(self) -> Chain | None:
        """Return the functions of the next version, without any state, once they are ready: the same ones until
        ``take_over`` is called."""
        version, making = self._next, self._making
        if making is not None and making.version is not version:  # the configuration has changed once more
            self._making = None
            await making.drop()
        if version is None or self._clock() < self._try_at:
            return None
        if self._making is None:
            self._making = NextVersion(version, self._wake)
        try:
            chain = await self._making.chain()
        except Exception as error:
            if not isinstance(error, ValueError | NotReady):
                logger.exception("the new functions of stream %s cannot be made", self._name)
            self._making = None
            if self._next is version:
                # A missing file may still appear. Rows do not wait for it meanwhile.
                self._refuse(f"the former functions remain in use, as the new ones cannot work: {error}")
                self._try_at = self._clock() + self._wait_s
                self._wait_s = min(2 * self._wait_s, RETRY_S_MAX)
            return None
        return chain if self._next is version else None

    def take_over(self) -> None:
        """Make the next version the present one: its functions have the states."""
        assert self._next is not None
        self._former = self._present
        self._set_present(self._next)
        self._next, self._making, self.refused = None, None, ""

    def is_written(self) -> None:
        """Keep the present version: a step of it is written."""
        self._former = None

    def go_back(self, error: Exception) -> bool:
        """Return to the former version after the present one failed. Return whether there is one."""
        if self._former is None:
            return False
        self._refuse(f"the former functions remain in use, as the new ones fail on their first rows "
                     f"({type(error).__name__}: {error})")  # fmt: skip
        self._set_present(self._former)
        self._former = None
        return True

    def skip(self) -> bool:
        """Replace the present version, which cannot begin, by the next one. Return whether there is one."""
        if self._next is None:
            return False
        self._present, self._next = self._next, None
        return True

    async def close(self) -> None:
        """Stop the preparation of functions."""
        if self._making is not None:
            await self._making.drop()

    def _set_present(self, version: Version) -> None:
        self._present = version
        self._counters.version = version.text()

    def _refuse(self, text: str) -> None:
        if self.refused != text:
            logger.warning("stream %s: %s", self._name, text)
        self.refused = self._counters.refused = text
