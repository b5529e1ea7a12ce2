"""Side of an open log that admits records, and that makes room by what hubs release and policies allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.protocols.batch import HeaderPairs
from weft.protocols.origin import HASH_BYTES_MAX, ORIGIN_TEXT_MAX
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ClockNotice
from weft.storage.segment_log.errors import LogFailed, LogFull
from weft.storage.segment_log.room.budget import admit, admit_to_stream, forget_released, shortage
from weft.storage.segment_log.settings import StreamPolicy
from weft.storage.segment_log.state.log_state import LogState, StreamState
from weft.storage.segment_log.state.origins import ORIGIN_BYTES_MAX
from weft.storage.segment_log.state.run_sizes import BATCH_OVERHEAD_BYTES, run_bytes

AskedRun = tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs] | None]
"""(stream, keys, payloads, headers) as for ``SegmentLog.append``."""


class LogRoom:
    """The room of an open log: policies, what was released, and whether more fits in. Owner's thread only."""

    def __init__(self, state: LogState, poison: Callable[[Exception], LogFailed]) -> None:
        """Judge by ``state``.

        Args:
            poison: told that the disk does not say how much is free.
        """
        self._state = state
        self._poison = poison

    def set_policy(self, stream: int, policy: StreamPolicy) -> None:
        """Set how long the stream's records stay. The default keeps all until they are released, then refuses."""
        with self._state.changed:
            self._state.lane(stream).policy = policy
            self._state.changes += 1

    def refuse(self, stream: int, reason: str | None) -> None:
        """Refuse appends to a stream as if it had no room, with this reason, until called with None.

        What was appended before becomes durable. Appends within ``together`` are taken: see ``ask_room``.
        """
        with self._state.changed:
            self._state.lane(stream).refusal = reason

    def origin(self, kind: int, name: str, version: str, hash_: bytes = b"") -> int:
        """Return the log's number of an origin, for ``append``; a new one is durable with what names it.

        Args:
            kind: an ``OriginKind``.
            hash_: checksum of the content.

        Raises:
            LogFull: there is no room.
            LogFailed: the log is poisoned.
            ValueError: a text or hash is too long, or there are more than ``ORIGINS_MAX`` in use.
        """
        if max(len(name), len(version)) > ORIGIN_TEXT_MAX or len(hash_) > HASH_BYTES_MAX:
            raise ValueError(f"the origin {name[:40]!r} has a name or version over {ORIGIN_TEXT_MAX} characters or a "
                             f"hash over {HASH_BYTES_MAX} bytes: shorten it")  # fmt: skip
        state = self._state
        with state.changed:
            if state.failed:
                raise state.failed
            if not state.origins.knows(kind, name, version, hash_):
                self._admit(ORIGIN_BYTES_MAX, uses_spare=True)  # it is there once, and steps wait for it
            number, new = state.origins.number(kind, name, version, hash_)
            if new is not None:
                state.queue.add_origin(new)
            return number

    def note_clock(self, clock: ClockNotice) -> None:
        """Note what became known of a boot's clock; ``on_durable`` tells when the log has it.

        Raises:
            LogFull: there is no room. Nothing was noted.
            LogFailed: the log is poisoned.
        """
        state = self._state
        with state.changed:
            if state.failed:
                raise state.failed
            self._admit(BATCH_OVERHEAD_BYTES)
            state.clocks.learn([clock])
            state.queue.add_clock(clock)
            state.changed.notify()

    def release(self, stream: int, ranges: RangeSet) -> None:
        """Take these records and gap notices as safe elsewhere: they go once the budget needs it or retention says so.

        Not remembered across restarts; the hub's next WELCOME says it again.
        """
        with self._state.changed:
            self._state.lane(stream).released.update(ranges)
            self._state.changes += 1
            forget_released(self._state)

    def ask_room(self, runs: Iterable[AskedRun], time: int) -> None:
        """Make sure that streams that refuse, or have a size of their own, take all of these runs; within ``together``,
        before the first is appended. Owner's thread only.

        Args:
            time: ns since 1970.

        Raises:
            LogFull: one of the streams is full or refuses. Nothing was changed: append none of them.
        """
        sizes: dict[int, int] = {}
        for stream, keys, payloads, headers in runs:
            refusal = self._state.lane(stream).refusal
            if keys and refusal is not None:
                raise LogFull(refusal)
            if keys and self._state.lane(stream).policy.retain_bytes is not None:
                size = run_bytes(keys, payloads, headers) + BATCH_OVERHEAD_BYTES
                sizes[stream] = sizes.get(stream, 0) + size
        with self._state.lock:
            for refusing in (True, False):
                # Those that refuse first: no records are dropped for a run that is not taken.
                for stream, size in sizes.items():
                    lane = self._state.lane(stream)
                    if (lane.policy.when_full == "refuse") is refusing:
                        admit_to_stream(self._state, stream, lane, size, time)

    def shortage(self) -> str | None:
        """Return why the log refuses records for want of disk, and what to do, or None. Owner's thread only."""
        with self._state.changed:
            try:
                return shortage(self._state)
            except OSError as error:
                self._poison(error)
                return None

    def _admit(self, length: int, *, uses_spare: bool = False) -> None:
        try:
            admit(self._state, length, uses_spare=uses_spare)
        except OSError as error:
            raise self._poison(error) from error

    def _admit_to_stream(self, stream: int, lane: StreamState, length: int, now: int) -> None:
        try:
            admit_to_stream(self._state, stream, lane, length, now)
        except LogFull:
            # What belongs together is taken as a whole: a stream may grow beyond its own size by it, not the log.
            if self._state.queue.together is None:
                raise
