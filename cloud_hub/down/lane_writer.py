"""Writer of one lane of the hub's own, such as an edge's messages: a session of the shard, as a link has one for each
lane of its edge.

Its epoch fences every other process that writes the lane, so a number of the lane has one record, ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.batch import decode_header
from weft.protocols.chunk import LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import NOTHING

IDLE_S = 60.0
"""Seconds after its last append when a writer gives its session back."""
OPEN_S_MAX = 10.0
"""Longest wait for the epoch of a session to become durable."""


RecordT = TypeVar("RecordT")


class CannotWrite(Exception):
    """The shard does not take records of the lane now."""


class WriterLost(Exception):
    """The session ended. Whether the shard has the last records is unknown."""


class _Append(NamedTuple, Generic[RecordT]):
    first: int
    end: int
    records: Sequence[RecordT]
    done: asyncio.Future[None]


class LaneWriter(Generic[RecordT]):
    """The writer of one lane. Belongs to the event loop's thread.

    Args:
        encode: returns a batch of records, given the number of the first.
        applied: called with each record, and its seq, when it is durable.
        payload: kind of the payloads.
    """

    def __init__(
        self, sequencer: Sequencer, lane: Lane, *, encode: Callable[[int, Sequence[RecordT]], bytes],
        applied: Callable[[int, RecordT], None], payload: int = 0,
    ) -> None:  # fmt: skip
        self._sequencer, self._lane = sequencer, lane
        self._encode, self._applied, self._payload = encode, applied, payload
        self._session: LaneSession | None = None
        self._opening = asyncio.Lock()
        self._pending: deque[_Append[RecordT]] = deque()
        self._next = 0
        self._used_at = 0.0

    def wrote(self, epoch: int) -> bool:
        """Return whether records of the lane under this epoch are from this writer."""
        session = self._session
        return session is not None and session.claim.granted and session.epoch == epoch

    async def open(self) -> None:
        """Make sure that the writer may append.

        Raises:
            CannotWrite: the shard has no room, or trouble.
            WriterLost: another process took the lane at the same moment.
        """
        async with self._opening:
            if self._session is not None:
                return
            sequencer = self._sequencer
            if not sequencer.loaded or sequencer.is_unavailable or not sequencer.is_running:
                raise CannotWrite(f"shard {sequencer.log.shard} is not available: {sequencer.told or 'it is loaded'}")
            if (full := sequencer.no_room(self._lane, [])) is not None:
                raise CannotWrite(f"{full.reason}; see {full.setting}")
            held = sequencer.state.lanes.get(self._lane, NOTHING)
            session = LaneSession(
                self._lane, LaneClaim(held.epoch + 1), [], self._acknowledge, self._refuse, payload=self._payload,
                flags=LaneFlag.PARTIAL,
            )  # fmt: skip
            sequencer.open(session)
            try:
                async with asyncio.timeout(OPEN_S_MAX):
                    ranges = await session.opened
            except SessionRefused as refusal:
                raise WriterLost(refusal.message) from refusal
            except TimeoutError:
                sequencer.leave(session)
                raise CannotWrite(f"shard {sequencer.log.shard} does not write: {sequencer.told}") from None
            self._session, self._next = session, ranges.end
            self._leave_later()

    @property
    def is_open(self) -> bool:
        """Return whether ``append`` may be called."""
        return self._session is not None

    @property
    def next_seq(self) -> int:
        """Return the number that the next record gets."""
        return self._next

    def append(self, records: Sequence[RecordT], mark: Mark | None) -> asyncio.Future[None]:
        """Append records, which is done when the future is: they are durable then, and applied.

        The future raises ``WriterLost`` if the session ends before.

        Args:
            mark: the lane's mark from now on; None leaves it unchanged.
        """
        loop, session = asyncio.get_running_loop(), self._session
        assert session is not None, "open comes first"
        data, first = self._encode(self._next, records), self._next
        self._next += len(records)
        self._used_at = loop.time()
        done = loop.create_future()
        self._pending.append(_Append(first, self._next, records, done))
        self._sequencer.put(session, [(decode_header(data), memoryview(data))])
        if mark is not None:
            self._sequencer.put_mark(session, mark)
        return done

    def mark(self, mark: Mark) -> None:
        """Move the lane's mark; it is committed in a while, without records. ``open`` comes first."""
        assert self._session is not None, "open comes first"
        self._used_at = asyncio.get_running_loop().time() + IDLE_S
        self._sequencer.put_mark(self._session, mark)

    def _acknowledge(self, held: RangeSet) -> None:
        while self._pending and held.covers(self._pending[0].first, self._pending[0].end):
            first, _, records, done = self._pending.popleft()
            for seq, record in enumerate(records, first):
                self._applied(seq, record)
            if not done.done():
                done.set_result(None)

    def _refuse(self, _code: RefuseCode, message: str, _advice: str) -> None:
        self._session = None
        pending, self._pending = self._pending, deque()
        for each in pending:
            if not each.done.done():
                each.done.set_exception(WriterLost(message))
                each.done.exception()  # the caller may have gone

    def close(self) -> None:
        """Give the session back. What was appended is still committed."""
        if self._session is not None:
            self._sequencer.leave(self._session)
            self._refuse(RefuseCode.CLOSED, "this process no longer writes the lane", "")

    def _leave_later(self) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            left = self._used_at + IDLE_S - loop.time()
            if self._session is None:
                return
            if left > 0 or self._pending:
                loop.call_later(max(left, 1.0), look)
            else:
                self.close()

        self._used_at = loop.time()
        loop.call_later(IDLE_S, look)
