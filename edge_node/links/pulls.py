"""The pulls of one link: what its hub asks for, what the plant allows, and the records on their way."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from weft.config.links import Pull
from weft.edge_node.links.source import OfferedStream, PullingSource, SegmentLogSource
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.link import PULL_RANGES_MAX, REASON_CHARACTERS_MAX, PullRequest, PullStage, PullState
from weft.protocols.ranges import RangeSet
from weft.replication.events import LinkStatus
from weft.replication.runner.settings import Tell
from weft.replication.source import LogSource, OfferedLane, intersection
from weft.storage.segment_log import LogError, SegmentLog
from weft.storage.segment_log.reader import FoundBatch

# The pace of a pull: pieces that grow while the link takes them easily, one at a time.

PIECE_BYTES_MIN, PIECE_BYTES_START, PIECE_BYTES_MAX = 4 << 10, 16 << 10, 256 << 10
"""Bytes of a piece. A live record waits for one piece at most; one batch is a piece if it is longer."""
RATE_SHARE = 0.5
"""Longest piece, in seconds of the rate."""
GROWTH, SLOWER, NOISE_S = 1.25, 1.25, 0.15
"""A piece that takes more than ``SLOWER`` times the shortest time, and ``NOISE_S``, halves the next one: the link's
queue grows. The hub's commits alone vary by less."""
SHORTEST_KEPT = 64
"""Number of pieces after which the shortest time is measured again, with a short one: the link may be another one by
then."""


class PullPace:
    """The pace on one connection.

    Args:
        rate: bytes a second.
        now: monotonic seconds, as everywhere here.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._longest = max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, int(rate * RATE_SHARE)))
        self.piece = min(PIECE_BYTES_START, self._longest)
        """Bytes of the next piece."""
        self._shortest: float | None = None
        self._count = 0
        self._next_at = self._began = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next piece may go."""
        return max(0.0, self._next_at - now)

    def begins(self, size: int, now: float) -> None:
        """Note that a piece of some bytes may go now."""
        self._began = now
        self._next_at = max(self._next_at, now - 1.0) + size / self._rate

    def ends(self, now: float) -> None:
        """Note that the piece is durable at the hub."""
        took, self._count = now - self._began, self._count + 1
        if self._count % SHORTEST_KEPT == 0:
            # A long piece must not become the measure of the next ones.
            self.piece, self._shortest = min(PIECE_BYTES_START, self._longest), None
            return
        self._shortest = took if self._shortest is None else min(self._shortest, took)
        if took > SLOWER * self._shortest + NOISE_S:
            self.piece = max(PIECE_BYTES_MIN, self.piece // 2)
        else:
            self.piece = min(self._longest, int(self.piece * GROWTH))


# The records of a pull, found in the log before the first of them is sent.

STEP_BYTES = 4096
"""Neighbouring batches are joined to steps of at least so many bytes: a gigabyte has 260,000 of them at most."""


class CannotPull(Exception):
    """A pull that the edge refuses. The message says why."""


class PullPlan:
    """The numbers of a pull, in steps: pieces that are sent whole."""

    def __init__(self, found: list[FoundBatch]) -> None:
        self.ranges = RangeSet()
        self.bytes = 0
        self._firsts, self._ends, self._sizes = array("Q"), array("Q"), array("Q")
        end = 0
        for each in sorted(found):
            first = max(each.first, end)
            if first >= each.end:
                continue  # a batch that was moved is found twice
            end = each.end
            self.ranges.add(first, end)
            self.bytes += each.size
            if self._ends and self._ends[-1] == first and self._sizes[-1] < STEP_BYTES:
                self._ends[-1], self._sizes[-1] = end, self._sizes[-1] + each.size
            else:
                self._firsts.append(first)
                self._ends.append(end)
                self._sizes.append(each.size)

    @property
    def records(self) -> int:
        """Return the number of records."""
        return self.ranges.count()

    def steps(self) -> Iterator[FoundBatch]:
        """Yield the steps, ascending."""
        return map(FoundBatch, self._firsts, self._ends, self._sizes)


async def make_plan(log: SegmentLog, request: PullRequest, begin: int, bytes_max: int) -> PullPlan:
    """Find the records of a pull.

    Args:
        begin: first number of the stream under the node's present name.
        bytes_max: bytes that the edge's configuration allows.

    Raises:
        CannotPull: there are none, or too many.
        OSError: the log cannot be read.
    """
    steps = log.batches_between(log.stream(request.stream), request.first, request.end)
    found: list[FoundBatch] = []
    size, limit = 0, min(request.bytes_max, bytes_max)
    while (more := await asyncio.to_thread(next, steps, None)) is not None:
        # Joined at once, so that small batches take little memory.
        for each in more:
            if each.first < begin:
                continue
            size += each.size
            last = found[-1] if found else None
            if last is not None and last.end == each.first and last.size < STEP_BYTES:
                found[-1] = FoundBatch(last.first, each.end, last.size + each.size)
            else:
                found.append(each)
        if size > limit:
            raise CannotPull(
                f"the window has more than {limit} bytes, the limit of the pull and of links.<name>.pull.size: ask for "
                "a shorter one"
            )
    plan = await asyncio.to_thread(PullPlan, found)
    if not plan.bytes:
        raise CannotPull("the edge has no records of that time")
    if len(plan.ranges) > PULL_RANGES_MAX:
        raise CannotPull(f"the window's records lie in {len(plan.ranges)} pieces: ask for a shorter one")
    return plan


async def kept_from(log: SegmentLog, stream: int) -> int:
    """Return the time of the oldest record that the log has of a stream; 0 if it has none.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    first = next(iter(log.ranges(stream)), None)
    batches = [] if first is None else await asyncio.to_thread(log.read, stream, first[0], 1)
    return decode_header(batches[0]).first_time if batches else 0


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
    """The puller of one link (``replication.runner.settings.Puller``). It sends one pull at a time.

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
            self._report(self._current[0], PullStage.WAITING, reason=reason)

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
                self._report(request, PullStage.WAITING, reason=f"the edge cannot read its log: {error}")
                self._offer(None)
                await asyncio.sleep(RETRY_S)
                continue
            except Exception:  # a fault in the code, which must not leave the others waiting
                logger.exception("pull %s failed", request.id)
                self._report(request, PullStage.REFUSED, reason="internal fault: see the edge's log")
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
        self._report(request, PullStage.SENDING, plan, kept=kept)
        self._note(request, "%d records, %d bytes as stored, are sent", plan.records, plan.bytes)
        self._acked, self._trouble = RangeSet(), ""
        self._moved.clear()
        self._offer(
            OfferedLane(
                stream,
                request.stream,
                *self._declared(request.stream),
                flags=LaneFlag.PARTIAL,
                origin=lambda number: self._log.origins().get(number),
                is_background=True,
                continues_hub=True,
            )
        )
        await self._send(request, plan, stream, allowed.rate)
        self._report(request, PullStage.DONE, plan, kept=kept)
        self._note(request, "the hub has %d of %d records", self._count(plan), plan.records)

    def _count(self, plan: PullPlan) -> int:
        return plan.records - sum(end - first for run in plan.ranges for first, end in self._acked.missing(*run))

    def _note(self, request: PullRequest, what: str, *args: object) -> None:
        # The hub chose id and stream: they are shown with their quotes.
        logger.info("link %s: pull %r of stream %r: " + what, self._status.name, request.id, request.stream, *args)

    def _refuse(self, request: PullRequest, reason: str, kept: int = 0) -> None:
        self._note(request, "refused: %s", reason)
        self._report(request, PullStage.REFUSED, kept=kept, reason=reason)

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

    def _report(
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


def _nowhere(_state: PullState) -> None:
    """Tell no one: no connection is open."""
