"""Part of an open log that admits records, and makes room by hubs' releases and policies."""

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
    """The room of an open log: policies, releases, and admission. Owner's thread only."""

    def __init__(self, state: LogState, poison: Callable[[Exception], LogFailed]) -> None:
        """Manage the room of ``state``.

        Args:
            poison: called when the disk's free space cannot be read.
        """
        self._state = state
        self._poison = poison

    def set_policy(self, stream: int, policy: StreamPolicy) -> None:
        """Set how long the stream's records are kept. The default keeps all until they are released, and refuses
        records when the log is full."""
        with self._state.changed:
            self._state.lane(stream).policy = policy
            self._state.changes += 1

    def refuse(self, stream: int, reason: str | None) -> None:
        """Refuse appends to a stream as if it had no room, with this reason, until a call with None.

        Earlier appends become durable. Appends within ``together`` are accepted: see ``ask_room``.
        """
        with self._state.changed:
            self._state.lane(stream).refusal = reason

    def origin(self, kind: int, name: str, version: str, hash_: bytes = b"") -> int:
        """Return the log's number of an origin, for ``append``; a new one becomes durable with the first batch that
        names it.

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
                self._admit(ORIGIN_BYTES_MAX, uses_spare=True)  # stored only once, and functions' steps wait for it
            number, new = state.origins.number(kind, name, version, hash_)
            if new is not None:
                state.queue.add_origin(new)
            return number

    def note_clock(self, clock: ClockNotice) -> None:
        """Append a notice about a boot's clock; ``on_durable`` calls back when the log has it.

        Raises:
            LogFull: there is no room. Nothing was appended.
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
        """Treat these records and gap notices as safe elsewhere: they are deleted when the budget or retention requires
        it.

        Releases are not stored across restarts; the hub's next WELCOME repeats them.
        """
        with self._state.changed:
            self._state.lane(stream).released.update(ranges)
            self._state.changes += 1
            forget_released(self._state)

    def ask_room(self, runs: Iterable[AskedRun], time: int) -> None:
        """Make sure that streams that may refuse, or have a size of their own, have room for all of these runs. Call it
        within ``together``, before the first append. Owner's thread only.

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
                # Refusing streams first: no records must be dropped for a run that is then refused.
                for stream, size in sizes.items():
                    lane = self._state.lane(stream)
                    if (lane.policy.when_full == "refuse") is refusing:
                        admit_to_stream(self._state, stream, lane, size, time)

    def shortage(self) -> str | None:
        """Return why the log refuses records for lack of disk space, with advice, or None. Owner's thread only."""
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
            # Appends that belong together are accepted as a whole: a stream may exceed its own size by them, but not
            # the log.
            if self._state.queue.together is None:
                raise
