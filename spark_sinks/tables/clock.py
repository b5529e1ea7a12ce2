"""A driver's clock compared with the store's, before files are removed by their age."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError
from weft.storage.object_store.probe import PREFIX

SECOND = 1_000_000_000
OFF_NS_MAX = 60 * SECOND
"""Difference from which on a clock is wrong."""
LOOK_S = 600.0
"""Interval of comparisons: each costs three requests."""


class DriverClock:
    """Tells whether the clock of this machine may decide about ages: a wrong one would delete files that are needed.

    The measure is the store's time of an object that was just written, and the hub's time of its newest chunks: a clock
    that is behind these is wrong as well.

    Args:
        newest: nanoseconds since 1970 of the newest chunk that the driver knows; 0 without one.
        clock: nanoseconds since 1970.
    """

    def __init__(
        self, store: ObjectStore, newest: Callable[[], int], *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._store, self._newest, self._clock = store, newest, clock
        self._agrees = False

    def is_sound(self) -> bool:
        """Return whether the clock is known to be right, within a minute."""
        return self._agrees and self._newest() - self._clock() <= OFF_NS_MAX

    async def look(self) -> None:
        """Compare the clock with the store's. Without an answer, what was seen last holds."""
        key = f"{PREFIX}/clock-{secrets.token_hex(8)}"
        before = self._clock()
        with contextlib.suppress(StoreError, NotFound, AlreadyExists):
            await self._store.create(key, b"")
            after = self._clock()
            written = (await self._store.get(key)).written
            await self._store.delete(key)
            # The store's time has whole seconds. Without one, nothing says that the clock is right.
            self._agrees = written is not None and before - OFF_NS_MAX <= written.time + SECOND and (
                written.time <= after + OFF_NS_MAX
            )  # fmt: skip
