"""The pulls of one link: what its hub asks for, what the plant allows, and the records on their way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from weft.config.links import Pull
from weft.edge_node.links.pull.pace import PullPace
from weft.edge_node.links.pull.plan import CannotPull, PullPlan, kept_from, make_plan
from weft.edge_node.links.pull.source import PullingSource
from weft.edge_node.links.source import OfferedStream, SegmentLogSource
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.protocols.chunk import LaneFlag
from weft.protocols.link.pull import REASON_CHARACTERS_MAX, PullRequest, PullStage, PullState
from weft.protocols.ranges import RangeSet
from weft.replication.release import intersection
from weft.replication.runner.pulls import Tell
from weft.replication.source import LogSource, OfferedLane
from weft.replication.status import LinkStatus
from weft.storage.segment_log import LogError, SegmentLog

logger = logging.getLogger(__name__)
START_INTERVAL_S = 0.25
"""Least time from the beginning of one pull to the next."""
LOOKED_AT_ONCE = 1024
"""Number of steps of a plan that are looked at without a pause."""
LOOK_S = 5.0
"""Interval at which the log is asked whether it still has the records that wait."""
RETRY_S = 10.0
"""Time after which a log that could not be read is read again."""


class LinkPuller:
    """The puller of one link (``replication.runner.pulls.Puller``). It sends one pull at a time.

    Args:
        status: of the link; says which pull runs.
        allowed: the link's setting; None if it allows nothing.
        carrier: (stream, cluster id) -> why a link carries the stream to that hub already; None if none does.
        declared: stream -> its declaration to a hub.
        is_offered: returns whether the link is one that a hub may ask.
        high_watermark: (cluster id, stream) -> one past the last number that the hub can hold.
    """

    def __init__(  # noqa: PLR0917
        self,
        status: LinkStatus,
        allowed: Callable[[], Pull | None],
        log: SegmentLog,
        carrier: Callable[[str, str], str | None],
        declared: Callable[[str], OfferedStream],
        high_watermark: Callable[[str, str], int],
        is_offered: Callable[[], bool],
    ) -> None:
        self._status = status
        self._allowed, self._log, self._carrier = allowed, log, carrier
        self._declared, self._high_watermark = declared, high_watermark
        self._is_offered = is_offered
        self._source: PullingSource | None = None
        self._hub = ""
        self._tell: Tell = _nowhere
        self._wanted: list[PullRequest] = []
        self._over: set[str] = set()
        """Pulls that got their last word on this connection."""
        self._current: tuple[PullRequest, asyncio.Task[None]] | None = None
        self._plan: tuple[str, PullPlan] | None = None
        """The last pull and its plan, which the next connection uses again: looking for records reads segments."""
        self._acked = RangeSet()
        self._moved = asyncio.Event()
        """Set when the hub has more of the pull's records."""
        self._trouble = ""
        self._waits: tuple[str, str] | None = None
        """The pull that waits, and the reason, as the hub knows it on this connection."""
        self._next_start = 0.0

    @property
    def is_offered(self) -> bool:
        """Return whether the link says in its HELLO that it sends what the hub asks for."""
        return self._is_offered()

    def over(self, source: LogSource) -> LogSource:
        """Return the link's lanes with that of the pull."""
        assert isinstance(source, SegmentLogSource), "links of a node carry streams of its log"
        self._source = PullingSource(source, self._log, self._released)
        return self._source

    def opened(self, hub: str, tell: Tell) -> None:
        """Note that a connection takes pulls."""
        self.closed()
        self._hub, self._tell = hub, tell

    def closed(self) -> None:
        """Note that the connection is over: the hub asks again on the next one."""
        self._tell, self._wanted, self._waits = _nowhere, [], None
        self._over.clear()
        self._stop()

    def take(self, pulls: list[PullRequest]) -> None:
        """Serve these pulls, and no others."""
        self._wanted = pulls
        ids = {pull.id for pull in pulls}
        self._over &= ids
        if self._plan is not None and self._plan[0] not in ids:
            self._plan = None
        if self._current is not None and self._current[0].id not in ids:
            self._stop()
        self._next()

    def lane_ended(self, reason: str) -> None:
        """Note that the hub closed the pull's lane."""
        if self._current is not None:
            self._say(self._current[0], PullStage.WAITING, reason=reason)

    def _stop(self) -> None:
        if self._current is not None:
            self._current[1].cancel()
            self._current = None
        self._status.pull = ""
        if self._source is not None:
            self._source.offer(None)

    def _next(self) -> None:
        if self._current is not None:
            return
        request = next((pull for pull in self._wanted if pull.id not in self._over), None)
        if request is not None:
            self._current = request, asyncio.create_task(self._serve(request), name=f"pull-{request.id}")

    def _released(self, lane: int, ranges: RangeSet) -> None:
        if self._current is None or self._log.streams().get(self._current[0].stream) != lane:
            return
        if ranges.end > self._high_watermark(self._hub, self._current[0].stream):
            self._trouble = (
                "the hub holds records of this stream that the edge's log never had. The log was restored from an "
                "older copy, or another node has a copy of it"
            )
            if self._source is not None:
                self._source.show(RangeSet())  # before the next read: nothing goes under numbers that are in doubt
        self._acked.update(ranges)
        self._moved.set()

    async def _serve(self, request: PullRequest) -> None:
        # A hub that asks for one pull after another without end must not keep the disk busy.
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._next_start - now))
        self._next_start = max(now, self._next_start) + START_INTERVAL_S
        while True:
            try:
                await self._run(request)
            except CannotPull as error:
                self._refuse(request, str(error))
            except (OSError, LogError) as error:
                self._say(request, PullStage.WAITING, reason=f"the edge cannot read its log: {error}")
                self._offer(None)
                await asyncio.sleep(RETRY_S)
                continue
            except Exception:  # a fault in the code, which must not leave the others waiting
                logger.exception("pull %s failed", request.id)
                self._say(request, PullStage.REFUSED, reason="internal fault: see the edge's log")
            break
        self._over.add(request.id)
        self._offer(None)
        self._current, self._status.pull = None, ""
        self._next()

    async def _run(self, request: PullRequest) -> None:
        allowed = self._check(request.stream)
        stream = self._log.stream(request.stream)
        kept = await kept_from(self._log, stream)
        begin = self._log.begins().get(stream, 0)
        try:
            plan = await self._planned(request, begin, allowed.size_bytes)
        except CannotPull as error:
            self._refuse(request, str(error), kept)
            return
        self._say(request, PullStage.SENDING, plan, kept=kept)
        self._note(request, "%d records, %d bytes as stored, are sent", plan.records, plan.bytes)
        self._acked, self._trouble = RangeSet(), ""
        self._moved.clear()
        self._offer(
            OfferedLane(
                stream, request.stream, *self._declared(request.stream), flags=LaneFlag.PARTIAL,
                origin=lambda number: self._log.origins().get(number), is_background=True, continues_hub=True,
            )
        )  # fmt: skip
        await self._send(request, plan, stream, allowed.rate)
        self._say(request, PullStage.DONE, plan, kept=kept)
        self._note(request, "the hub has %d of %d records", self._count(plan), plan.records)

    def _count(self, plan: PullPlan) -> int:
        return plan.records - sum(end - first for run in plan.ranges for first, end in self._acked.missing(*run))

    def _note(self, request: PullRequest, what: str, *args: object) -> None:
        # The hub chose id and stream: they are shown with their quotes.
        logger.info("link %s: pull %r of stream %r: " + what, self._status.name, request.id, request.stream, *args)

    def _refuse(self, request: PullRequest, reason: str, kept: int = 0) -> None:
        self._note(request, "refused: %s", reason)
        self._say(request, PullStage.REFUSED, kept=kept, reason=reason)

    async def _planned(self, request: PullRequest, begin: int, bytes_max: int) -> PullPlan:
        if self._plan is None or self._plan[0] != request.id or self._plan[1].bytes > bytes_max:
            self._plan = request.id, await make_plan(self._log, request, begin, bytes_max)
        return self._plan[1]

    async def _send(self, request: PullRequest, plan: PullPlan, stream: int, rate: int) -> None:
        """Show the plan's numbers piece by piece, each when the hub has the one before."""
        now = asyncio.get_running_loop().time
        pace, piece, size = PullPace(rate, now()), RangeSet(), 0
        for at, step in enumerate(plan.steps()):
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._acked.covers(step.first, step.end):
                continue
            piece.add(step.first, step.end)
            size += step.size
            if size >= pace.piece:
                self._status.pull = f"{request.stream}: {self._count(plan)} of {plan.records} records"
                await self._send_piece(piece, size, stream, pace)
                piece, size = RangeSet(), 0
        await self._send_piece(piece, size, stream, pace)

    async def _send_piece(self, piece: RangeSet, size: int, stream: int, pace: PullPace) -> None:
        now = asyncio.get_running_loop().time
        if not piece:
            return
        if wait_s := pace.wait_s(now()):
            await asyncio.sleep(wait_s)
        pace.begins(size, now())
        if self._source is not None:
            self._source.show(piece)
        while left := [part for run in piece for part in self._acked.missing(*run)]:
            self._check_numbers()
            readable = self._log.ranges(stream)
            for run in () if self._source is None else self._source.skipped:
                readable.remove(*run)
            if not intersection(left, readable):
                return  # deleted or unreadable: the hub knows the plan, and says what it lacks
            self._moved.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._moved.wait()
            except TimeoutError:
                continue
        self._check_numbers()
        pace.ends(now())

    def _check_numbers(self) -> None:
        if self._trouble:
            raise CannotPull(self._trouble)

    def _check(self, stream: str) -> Pull:
        """Return the link's setting if it allows a stream.

        Raises:
            CannotPull: it does not.
        """
        allowed = self._allowed()
        if allowed is None:
            raise CannotPull("the edge's configuration allows no pulls: see links.<name>.pull")
        if not any(fnmatchcase(stream, pattern) for pattern in allowed.streams):
            raise CannotPull("the edge's configuration does not allow this stream: see links.<name>.pull.streams")
        if stream not in self._log.streams() or stream in STREAMS_THAT_STAY:
            raise CannotPull(f"the edge has no stream {stream}")
        why = self._carrier(stream, self._hub)
        if why is not None:
            raise CannotPull(why)
        return allowed

    def _offer(self, lane: OfferedLane | None) -> None:
        if self._source is not None:
            self._source.offer(lane)

    def _say(
        self, request: PullRequest, stage: PullStage, plan: PullPlan | None = None, *, kept: int = 0, reason: str = ""
    ) -> None:
        ranges, records, size = ([], 0, 0) if plan is None else (list(plan.ranges), plan.records, plan.bytes)
        log_id, short = self._log.log_id, reason[:REASON_CHARACTERS_MAX]
        waits = (request.id, short) if stage is PullStage.WAITING else None
        if waits is not None and waits == self._waits:
            return  # a disk stays ill for days, and the hub ends links with too many words
        self._waits = waits
        self._tell(PullState(request.id, stage, log_id, ranges, records, size, kept, short))


def carrier(
    stream: str, hub: str, carried: Mapping[str, Collection[str]], statuses: Iterable[LinkStatus]
) -> str | None:
    """Return why a stream comes to a hub without being asked for; None if no link carries it there.

    Two links with lanes of one stream would take them from each other. Of a link that never connected, the hub is
    unknown: it may be the same.

    Args:
        hub: cluster id.
        carried: link -> its streams.
    """
    for status in statuses:
        if stream in carried.get(status.name, ()) and status.cluster_id in ("", hub):
            return f"link {status.name} of the edge carries this stream: its records come by themselves"
    return None


def _nowhere(_told: PullState) -> None:
    """Tell no one: no connection is open."""
