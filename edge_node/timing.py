"""The machine's clocks, and timeouts of many clients with one timer."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from weft.protocols.batch import ClockReading, ClockState
from weft.storage.host import synchronised_reader

# The machine's clocks: the time, the boot, and whether a time source has set the clock.
#
# A Raspberry Pi has no battery clock: after a power cut its wall clock may be days off until the network sets it.
# Each batch therefore names its boot, the boot's monotonic clock, and whether the kernel considered the wall clock
# right.

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
SYNC_KNOWN_NS = 100_000_000
"""Time for which the answer to "is the wall clock synchronised?" holds: a commit every millisecond need not ask."""


def read_boot_id() -> int:
    """Return 64 bits that are the same for every process of this boot; random where the kernel has no boot id."""
    try:
        with open(_BOOT_ID_FILE, encoding="ascii") as file:
            return int.from_bytes(uuid.UUID(file.read().strip()).bytes[:8], "big")
    except (OSError, ValueError):
        return int.from_bytes(os.urandom(8), "big")


def wall_clock() -> int:
    """Return nanoseconds since 1970 by the machine's wall clock."""
    return time.time_ns()


def clock_reader() -> Callable[[], ClockReading]:
    """Return a function that reads the clocks, and asks once in ``SYNC_KNOWN_NS`` whether the wall clock is
    synchronised.

    It makes a system call or two and never blocks.
    """
    boot_id = read_boot_id()
    # CLOCK_BOOTTIME counts the time of a suspended machine, as the wall clock does.
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    is_synchronised = synchronised_reader()
    state, asked = ClockState.UNSYNCED, -SYNC_KNOWN_NS

    def read() -> ClockReading:
        nonlocal state, asked
        now = time.clock_gettime_ns(clock_id)
        if now - asked >= SYNC_KNOWN_NS:
            state, asked = ClockState.SYNCED if is_synchronised() else ClockState.UNSYNCED, now
        return ClockReading(boot_id, now, state)

    return read


def seconds(nanoseconds: int | None) -> float | None:
    """Return a time in the unit of facts."""
    return None if nanoseconds is None else nanoseconds / 1e9


# Timeouts of many clients with one timer: a hashed wheel, as in Varghese and Lauck (1987), scheme 6.
#
# A timer of the event loop costs each idle client a handle, a heap entry and a bound method; here it costs an entry
# in a set. Deadlines are kept to one tick, which is enough for keep-alives.

TICK_S = 0.25
SLOTS = 512
"""Number of slots. A deadline further away than the wheel's turn (128 s) is checked once a turn."""
STEP_S = 0.002
"""Time after which the remaining due clients wait until the loop has done its other work."""
PAUSE_S = 0.001
"""Pause before the rest."""


class Timed(Protocol):
    """An object with a deadline. It keeps ``wheel_slot`` for the wheel: -1 while it waits for nothing."""

    wheel_slot: int

    def due(self, now: float) -> float | None:
        """Handle the deadline, or the end of a turn of the wheel before it.

        Returns:
            Next time to call, in seconds of the loop's clock; None for never.
        """
        ...


class TimerWheel:
    """A wheel that calls each client at its deadline. Belongs to the event loop's thread; ticks only while a client
    waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float = TICK_S) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._slots: list[set[Timed]] = [set() for _ in range(SLOTS)]
        self._waiting = 0
        self._at = 0
        """Number of the next tick to handle, counted from the start of the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def set(self, client: Timed, when: float) -> None:
        """Schedule a call of ``client.due`` at ``when`` or up to a tick later, in place of an earlier one."""
        self.cancel(client)
        if self._timer is None:
            self._at = int(self._loop.time() / self._tick_s)
            self._timer = self._loop.call_later(self._tick_s, self._tick)
        ahead = min(max(int(when / self._tick_s) + 1 - self._at, 1), SLOTS - 1)
        client.wheel_slot = (self._at + ahead) % SLOTS
        self._slots[client.wheel_slot].add(client)
        self._waiting += 1

    def cancel(self, client: Timed) -> None:
        """Remove a client; do nothing when it does not wait."""
        if client.wheel_slot >= 0:
            self._slots[client.wheel_slot].discard(client)
            client.wheel_slot = -1
            self._waiting -= 1

    def close(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        while self._at <= now / self._tick_s:
            slot = self._slots[self._at % SLOTS]
            while slot:  # a client's end may cancel another; none comes back into this slot
                client = next(iter(slot))
                self.cancel(client)
                self._ask(client, now)
                if self._loop.time() >= now + STEP_S and self._timer is not None:
                    self._timer.cancel()
                    self._timer = self._loop.call_later(PAUSE_S, self._tick)
                    return
            self._at += 1
        if not self._waiting:
            self.close()

    def _ask(self, client: Timed, now: float) -> None:
        when = client.due(now)
        if when is not None:
            self.set(client, when)
