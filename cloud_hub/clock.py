"""Check of a hub node's clock against the store's clock and against times that other nodes write.

What a hub writes is permanent: a chunk "of 2040" dates every later chunk of its shard, and lanes that a clock three
months ahead retires no longer hold completeness back. A node therefore trusts its wall clock only as far as others
agree.

Each measurement bounds the difference between a reference's time and this machine's boot clock, which cannot be set. A
wall clock that is set after a measurement is therefore noticed at once, not at the next measurement.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from weft.cloud_hub.part import Part
from weft.config.metrics.exposition import Sample
from weft.config.units import approximate_duration
from weft.hub_api.status import ClockOfNode
from weft.storage.chunk_log import BOOT_CLOCK
from weft.storage.host import synchronised_reader
from weft.storage.object_store import ObjectStore, StoreError, Written
from weft.storage.object_store.probe import PREFIX

logger = logging.getLogger(__name__)

SECOND = 10**9
DOUBTED_NS = 5 * SECOND
"""Error above which the node is not ready. A synchronised clock is off by milliseconds; times of stores have
seconds."""
WRONG_NS = 60 * SECOND
"""Error above which the node accepts no links, writes no chunks, retires no lanes, deletes nothing and reports no
completeness."""
PRECISION_NS = SECOND
"""Resolution of a store's times: HTTP dates have seconds (RFC 9110, section 5.6.7)."""
LOOKS = 5
"""Number of recent measurements that count, so that a single wrong answer does not stop a node."""
CHUNKS_MIN, CHUNKS_APART_NS, CHUNKS_KEPT_NS = 3, 10 * SECOND, 300 * SECOND
"""Number of chunks of other nodes that are needed, the time between them, and the time for which they count. Without a
store's clock, one node's clock contradicts another's: a node that this stops continues once the others write
nothing."""
TOOK_MAX_NS = 10 * SECOND
"""Longest write of a measurement that counts if there are others. After a pause of the node the bound is too wide to
notice minutes."""

SLOW_MAX = 2
"""Maximum number of such slow writes in one measurement. A pause of the node may explain the first."""

ADVICE = (
    "set the one that is wrong, or let a time source do it (NTP). If this machine's was just set right, start the hub "
    "again"
)


class ClockWrong(Exception):
    """The node's clock is wrong, and the call needs its time. The message has the error and the remedy."""


class _Difference(NamedTuple):
    """Bounds of a reference's time minus this machine's boot clock, ns."""

    low: int
    high: int

    def apart(self, other: _Difference) -> int:
        """Return the nanoseconds between the two ranges; negative where they overlap."""
        return max(self.low - other.high, other.low - self.high)


class HubClock(Part):
    """The wall clock of one hub process, and the evidence of others about it.

    The clock of a bucket's server is authoritative. Times of a folder usually come from this machine's clock and follow
    it when it is set; they count only while the kernel reports the clock as synchronised. Otherwise chunks of other
    nodes count.

    Args:
        wall: nanoseconds since 1970.
        boot: nanoseconds on a clock that counts suspend.
        is_synchronised: whether a time source keeps the wall clock right.
    """

    def __init__(
        self, wall: Callable[[], int], boot: Callable[[], int], is_synchronised: Callable[[], bool] | None = None
    ) -> None:
        self.now = wall
        self.boot = boot
        self._is_synchronised = is_synchronised or synchronised_reader()
        self._looks: deque[_Difference] = deque(maxlen=LOOKS)
        self._chunks: deque[tuple[int, _Difference]] = deque(maxlen=LOOKS)
        """Chunks, each with the reading of the boot clock when it was read."""
        self._wide: _Difference | None = None
        """Last slow measurement. It may be the only one, and still reveals an error of years."""
        self._ahead = 0
        """Wall clock minus boot clock at the last measurement, ns."""
        self._by_store = False
        self._was = 0
        """Grade of the clock that was last logged: 0 sound, 1 doubted, 2 wrong."""

    async def measure(self, store: ObjectStore) -> None:
        """Compare the clock with the store's, by writing an object and deleting it again.

        Raises:
            StoreError: the store did not answer.
        """
        # The store's time of an object of one's own: the Date of answers is hidden by the library, and an older object
        # says nothing of now.
        key, slow = f"{PREFIX}/clock-{os.urandom(8).hex()}", 0
        for _ in range(LOOKS):
            before = self.boot()
            try:
                await store.create(key, b"weft: what time is it?")
                after = self.boot()
                written = (await store.get(key)).written
            finally:
                with contextlib.suppress(StoreError):
                    await store.delete(key)
            if written is None:
                return
            self.wrote(before, after, written)
            if after - before > TOOK_MAX_NS:
                slow += 1
                if slow == SLOW_MAX:
                    return
            elif not self._grade(self.off_ns):
                return  # only an answer that disagrees is asked for again

    def wrote(self, before: int, after: int, written: Written) -> None:
        """Record the store's time of an object that this node wrote.

        Args:
            before, after: the boot clock just before and after the write.
        """
        # The object was written between the two looks at the boot clock, so the difference lies within bounds that the
        # request's length gives. Stores tell whole seconds.
        found = _Difference(written.time - after, written.time + PRECISION_NS - before)
        # A slow answer tells years, not seconds; it only counts while there is no precise one.
        if after - before > TOOK_MAX_NS:
            self._wide = found
            return
        ahead = self.now() - self.boot()
        # Kept as a difference to the boot clock, which no one sets, a clock that is set between two looks is found out
        # at once.
        jumps = bool(self._looks) and found.apart(self._looks[-1]) > WRONG_NS
        if jumps and abs(ahead - self._ahead) > WRONG_NS:
            # Both clocks differ from what they were: this one was set, or the machine stood still.
            if self._is_synchronised():
                self._looks.clear()
            elif not written.by_store:
                self.wrong()
                return  # it is one clock: nothing says that it was set rightly
        self._looks.append(found)
        self._ahead, self._by_store = ahead, written.by_store
        self.wrong()

    def read_chunk(self, created: int, absent: int) -> None:
        """Record the time in a chunk that another node has just written.

        Args:
            created: by the other node's clock.
            absent: the boot clock when the chunk did not exist yet.
        """
        now = self.boot()
        if self._chunks and now - self._chunks[-1][0] < CHUNKS_APART_NS:
            return  # what came at one moment is one word: perhaps that of a node that was paused
        self._chunks.append((now, _Difference(created - now, created + PRECISION_NS - absent)))

    @property
    def off_ns(self) -> int:
        """Return the least error of the clock in nanoseconds (positive: ahead) on which most recent measurements
        agree."""
        return self._off_at(self.now())

    def wrong(self, now: int | None = None) -> str | None:
        """Return why the clock cannot be trusted; None while it can.

        Args:
            now: the reading that the caller will use, since the clock may be set before the next one.
        """
        off = self._off_at(self.now() if now is None else now)
        self._log(off)
        return self._sentence(off) if self._grade(off) == 2 else None

    def doubted(self) -> str | None:
        """Return the clock's error as text if it is above ``DOUBTED_NS``; None otherwise."""
        off = self.off_ns
        return self._sentence(off) if self._grade(off) else None

    def samples(self) -> Iterator[Sample]:
        """Yield the clock's error for Prometheus."""
        yield Sample("weft_hub_clock_off_seconds", self.off_ns / 1e9)

    def views(self) -> dict[str, object]:
        """Return the part of the status about the clock."""
        return {"clock": ClockOfNode(self.off_ns / 1e9, self.doubted())}

    def agreed(self) -> int:
        """Return the wall clock's time, corrected by the error on which most recent measurements agree, in nanoseconds
        since 1970.

        Use it for moments that a wrong clock must not move, such as the end of a token.
        """
        now = self.now()
        return now - self._off_at(now)

    def sound(self) -> int:
        """Return the wall clock's time, nanoseconds since 1970.

        Raises:
            ClockWrong: the clock cannot be believed.
        """
        now = self.now()
        if (reason := self.wrong(now)) is not None:
            raise ClockWrong(f"{reason}; {ADVICE}")
        return now

    def _off_at(self, now: int) -> int:
        boot = self.boot()
        by_store = self._by_looks(now - boot)
        # A bucket has a clock of its own and decides. A folder's times are this machine's own, so there the chunks of
        # other nodes count, unless the kernel follows a time source.
        if self._by_store or abs(by_store) > WRONG_NS or not self._chunks or self._is_synchronised():
            return by_store
        fresh = [found for read, found in self._chunks if boot - read < CHUNKS_KEPT_NS]
        # Three of different moments: one node with a wrong clock, or one that was paused, must not stop another.
        return _median(fresh, now - boot) if len(fresh) >= CHUNKS_MIN else by_store

    def _by_looks(self, ahead: int) -> int:
        looks = self._looks or ([self._wide] if self._wide is not None else [])
        return _median(looks, ahead)

    def _sentence(self, off: int) -> str:
        by_store = self._by_store or self._by_looks(self.now() - self.boot())
        whose = "the store's" if by_store else "those of other nodes"
        far = approximate_duration(abs(off) / SECOND)
        return f"this machine's clock is {far} {'ahead of' if off > 0 else 'behind'} {whose}"

    def _grade(self, off: int) -> int:
        return (abs(off) > DOUBTED_NS) + (abs(off) > WRONG_NS)

    def _log(self, off: int) -> None:
        grade, was = self._grade(off), self._was
        self._was = grade
        if grade == was:
            return
        if grade == 2:
            nothing = "until it is set, the node accepts no links, writes no chunks, and retires and collects nothing"
            logger.error("%s: %s; %s", self._sentence(off), nothing, ADVICE)
        elif grade == 1:
            logger.warning("%s: the node is not ready; %s", self._sentence(off), ADVICE)
        else:
            logger.info("this machine's clock agrees with the store's again")


def _median(looks: Iterable[_Difference], ahead: int) -> int:
    """Return by how much a clock that is ``ahead`` of the boot clock is off at least, as more than half of the looks
    have it."""
    # The median: a single odd answer stops no node, and hides no clock that is wrong.
    found = sorted(max(ahead - look.high, min(ahead - look.low, 0)) for look in looks)
    if not found:
        return 0
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    return max(low, min(high, 0))  # of two in the middle the one nearer to 0: half of the looks are not most


class OtherNodes:
    """Chunks that other nodes write to one shard, as evidence about this node's clock."""

    def __init__(self, clock: HubClock) -> None:
        self._clock = clock
        self._began = self._absent = clock.boot()

    def look(self) -> None:
        """Record that a read of the log begins."""
        self._began = self._clock.boot()

    def looked(self) -> None:
        """Record that the read ended: chunks that it did not find are written after its beginning."""
        self._absent = self._began

    def wrote(self, created: int, before: int) -> None:
        """Record a chunk that the current read has found.

        Args:
            created: its time.
            before: time of the chunk before it. A node whose clock is behind repeats that time, which is no evidence.
        """
        if created > before:
            self._clock.read_chunk(created, self._absent)


async def sound_clock(store: ObjectStore) -> Callable[[], int]:
    """Return this machine's wall clock, compared once with the store's, for a command that writes to the log.

    Raises:
        ClockWrong: from the function, too, if the clock is set meanwhile.
        StoreError: the store did not answer.
    """
    clock = HubClock(time.time_ns, BOOT_CLOCK)
    await clock.measure(store)
    clock.sound()
    return clock.sound
