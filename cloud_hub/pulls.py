"""Pulls in one hub process: it sends requests on the links of edges, and writes their reports to the cluster log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.declarations import Declarations, Watched
from weft.cloud_hub.facts.fact import CannotDeclare, Decision
from weft.cloud_hub.facts.pulls import (
    KEPT_NS,
    PullDocument,
    PullStateName,
    ask,
    end,
    forget,
    make_room,
    plan,
    request_of,
)
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.shard.shards import READ_AGE_S_MAX, Shards
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import PULL, Hello, LaneOpen, PullRequest, Pulls, PullStage, PullState, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LinkRefused, LinkSession
from weft.storage.cluster_log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.object_store import ObjectStore, StoreError

_logger = logging.getLogger(__name__)

# The pulls of one link: what the edge was asked for, and a guard of the lanes that bring it.

REPORTS_MAX = 256
"""Maximum number of pull reports of an edge between two requests from the hub. Each may become an entry of the cluster
log."""
SPARE_BYTES = 1 << 20
"""Bytes that an edge may send beyond twice those it announced, since it may join batches and send some again."""


class Broken(Exception):
    """Records or reports of an edge that the hub did not request. The message has the reason."""


class _Asked(NamedTuple):
    """A pull on this link."""

    request: PullRequest
    ranges: RangeSet
    """Numbers that the edge announced; empty before."""
    log_id: int
    bytes_max: int


class LinkPulls:
    """The pulls that one link was asked for, and the check of what it brings."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._came: dict[str, int] = {}
        """Pull -> bytes received on this link."""
        self._report_count = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no pull is requested on the link."""
        return not self._asked

    def ask(self, requests: Iterable[PullRequest]) -> list[PullRequest] | None:
        """Set the requested pulls. Return the content of the frame for the edge; None if it has that content
        already."""
        wanted = {each.id: each for each in requests}
        if wanted.keys() == self._asked.keys():
            return None
        self._asked = {id_: self._asked.get(id_) or _Asked(each, RangeSet(), 0, 0) for id_, each in wanted.items()}
        self._came = {id_: size for id_, size in self._came.items() if id_ in wanted}
        self._report_count = 0
        return list(wanted.values())

    def accepts(self, state: PullState) -> bool:
        """Accept a report of the edge. Return whether it is about a pull of this link.

        Raises:
            Broken: it announces records that were not requested.
        """
        asked = self._asked.get(state.id)
        if state.stage == PullStage.WAITING:
            return asked is not None  # no entry comes of it, and an edge whose disk is ill says it again and again
        self._report_count += 1
        if self._report_count > REPORTS_MAX:
            raise Broken(f"the edge sent more than {REPORTS_MAX} pull reports")
        if asked is None:
            return False
        if state.stage == PullStage.SENDING:
            if state.bytes > asked.request.bytes_max:
                raise Broken(f"the edge announced {state.bytes} bytes; the limit is {asked.request.bytes_max}")
            ranges = RangeSet((first, end) for first, end in state.ranges if first < end)
            if ranges.count() != state.records:
                raise Broken(f"the edge announced {state.records} records in ranges of {ranges.count()}")
            self._asked[state.id] = _Asked(asked.request, ranges, state.log_id, 2 * state.bytes + SPARE_BYTES)
        return True

    def covers(self, stream: str, log_id: int) -> bool:
        """Return whether an announced pull brings records of a stream of a log."""
        return any(each.request.stream == stream and each.ranges and each.log_id == log_id for each in self._all())

    def _all(self) -> Iterable[_Asked]:
        return self._asked.values()

    def check(self, stream: str, headers: Iterable[BatchHeader]) -> None:
        """Check batches of a stream.

        Raises:
            Broken: one was not announced, or is of another time.
        """
        for header in headers:
            found = next((id_ for id_, each in self._asked.items() if _has(each, stream, header)), None)
            if found is None:
                raise Broken(
                    f"records {header.base_seq} to {header.end_seq - 1} of stream {stream} are in none of the windows "
                    "that the edge was asked for"
                )
            self._came[found] = self._came.get(found, 0) + header.length
            if self._came[found] > self._asked[found].bytes_max:
                raise Broken(f"the edge sent more bytes than it announced for pull {found}")


def _has(asked: _Asked, stream: str, header: BatchHeader) -> bool:
    request, times = asked.request, (header.first_time, header.last_time)
    return (
        request.stream == stream
        and asked.ranges.covers(header.base_seq, header.end_seq)
        and min(times) < request.end
        and max(times) >= request.first
    )


# The hub's side of a link whose edge can be asked for records: an ``EdgeLink`` behind a guard.

FAULT_ADVICE = "run the same release on edge and hub; if they do, report this as a fault of the edge"
AGAIN = "nothing: the hub asks again if necessary"
COUNTS = (
    "a link of the edge carried this stream before, and its lane counts for completeness. Numbers that a pull leaves "
    "out would look like missing ones; let a link carry the stream again"
)
OTHER_LINK = (
    "another link of the edge, which connected later, sent records of this stream since. The pull continues when this "
    "link connects again"
)
"""To take the lane from it with a lower epoch would look like a copy of the edge."""


class GuardedLink:
    """One connection (``replication.runner.LinkHandler``) that refuses records in PARTIAL lanes unless a pull requested
    them. Other lanes pass unchanged.

    Args:
        link: the handler behind the guard.
        pulls: of all links.
    """

    def __init__(self, link: EdgeLink, pulls: HubPulls, shards: Shards) -> None:
        self._link, self._pulls, self._shards = link, pulls, shards
        self._session: LinkSession
        self.guard: LinkPulls | None = None
        """None for an edge whose release does not know pulls."""
        self._guarded: dict[int, Lane] = {}
        """Lanes of pulls."""
        # Processes know only their own links: an edge that stays with two of them is asked by both.
        link.taken = lambda number: OTHER_LINK if number in self._guarded else None
        self.add_origins = link.add_origins
        self.clock = link.clock
        self.canary = link.canary
        self.config_state = link.config_state
        self.report = link.report
        self.room = link.room
        self.down = link.down

    @property
    def node(self) -> NodeName | None:
        """Return the edge's name; None before HELLO."""
        hello = self._link.hello
        return None if hello is None else NodeName(hello.tenant, hello.edge)

    @property
    def is_over(self) -> bool:
        """Return whether the hub has ended the link."""
        return self._link.is_over

    def connected(self, session: LinkSession) -> None:
        """Take the session of the connection."""
        self._session = session
        self._link.connected(session)

    async def open(self, hello: Hello) -> None:
        """Accept the link, or raise ``LinkRefused``."""
        await self._link.open(hello)
        if PULL in hello.features:
            self.guard = LinkPulls()
            # The WELCOME follows at once, and has to go first.
            asyncio.get_running_loop().call_soon(self._pulls.greeted, self)

    def ask(self, requests: list[PullRequest]) -> None:
        """Replace the pulls that are requested from the edge."""
        if self.guard is None or self.is_over or (answer := self.guard.ask(requests)) is None:
            return
        self._session.send_frame(Pulls(answer))
        for number, lane in list(self._guarded.items()):
            if not self.guard.covers(lane.stream, lane.log_id):
                self._close(number, RefuseCode.CLOSED, "the pull has ended", "nothing: it is not asked for more")

    def pull_state(self, state: PullState) -> None:
        """Handle the edge's report about a pull.

        Raises:
            LinkRefused: it sends too many reports, or reports what was not requested.
        """
        try:
            if self.guard is not None and self.guard.accepts(state):
                self._pulls.take(self, state)
        except Broken as error:
            raise LinkRefused(RefuseCode.PROTOCOL_ERROR, str(error), FAULT_ADVICE) from error

    async def open_lane(self, opening: LaneOpen) -> None:
        """Begin to open a lane; a lane of a pull only if the pull is requested."""
        lane = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        if self.guard is not None and opening.flags & LaneFlag.PARTIAL and not opening.flags & LaneFlag.RELAY:
            if (why := await self._refusal(self.guard, lane, opening.epoch)) is not None:
                self._session.close_lane(opening.lane, RefuseCode.CLOSED, why, AGAIN)
                return
            self._guarded[opening.lane] = lane
        await self._link.open_lane(opening)

    async def _refusal(self, guard: LinkPulls, lane: Lane, epoch: int) -> str | None:
        if not guard.covers(lane.stream, lane.log_id):
            return f"the hub did not ask for records of stream {lane.stream}"
        sequencer = await self._shards.get(self._shards.place(lane))
        held = sequencer.state.lanes.get(lane) if sequencer.loaded else None
        if held is not None and held.epoch > epoch:
            return OTHER_LINK
        if held is None or held.partial or held.is_empty:
            return None
        self._pulls.failed(self, lane.stream, COUNTS)
        return COUNTS

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Pass verified batches on; batches of a pull only if they are requested."""
        pulled = self._guarded.get(lane)
        if pulled is not None and self.guard is not None:
            try:
                self.guard.check(pulled.stream, (header for header, _ in batches))
            except Broken as error:
                self._break(lane, pulled, str(error))
                return
        self._link.data(lane, batches)

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Pass a gap notice on. Lanes of pulls have none."""
        pulled = self._guarded.get(lane)
        if pulled is not None:
            self._break(lane, pulled, "the edge sent a gap notice in place of records that it was asked for")
        else:
            await self._link.gap(lane, gap)

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass marks on, except those of lanes of pulls, which claim no completeness."""
        self._link.marks(time, self._unguarded(lanes))

    def last_words(self, time: int, lanes: list[tuple[int, int]], renamed_to: str) -> None:
        """Pass last marks on, with the same exception."""
        self._link.last_words(time, self._unguarded(lanes), renamed_to)

    def _unguarded(self, lanes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [pair for pair in lanes if pair[0] not in self._guarded] if self._guarded else lanes

    def _break(self, number: int, lane: Lane, why: str) -> None:
        self._close(number, RefuseCode.PROTOCOL_ERROR, why, FAULT_ADVICE)
        self._pulls.failed(self, lane.stream, why)

    def _close(self, number: int, code: RefuseCode, message: str, advice: str) -> None:
        """Close the lane of a pull. What came before is still committed."""
        self.close_lane(number)
        self._session.close_lane(number, code, message, advice)

    def close_lane(self, lane: int, refusal: str = "") -> None:
        """Handle the end of a lane."""
        self._guarded.pop(lane, None)
        self._link.close_lane(lane, refusal)

    def closed(self, reason: str) -> None:
        """Handle the end of the connection."""
        self._pulls.left(self)
        self._link.closed(reason)


BY = "weft hub"
RETRY_S = 2.0
CATCH_UP_S = 5.0
LOOK_S = 10.0
"""Interval at which expired pulls are ended."""
FORGOTTEN_AT_ONCE = 64
_STEPS: dict[int, str] = {PullStage.SENDING: "sending", PullStage.DONE: "done", PullStage.REFUSED: "refused"}
DUE_MAX = 4096
"""Maximum number of reports that wait for the store. Edges are asked again for those beyond it."""


class _NotLoaded(Exception):
    """The shard of a pull's edge is not loaded: what the hub has of the pull is unknown for now."""


class HubPulls:
    """The pulls of a process.

    Args:
        is_own: whether this process owns a shard.
        clock: while it is wrong, nothing is written, since the times of pulls are permanent.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        declared: Declarations,
        shards: Shards,
        *,
        is_own: Callable[[int], bool],
        clock: HubClock,
    ) -> None:
        self._log = ClusterLog(store, cluster_id)
        self._declared, self._shards, self._is_own, self._clock = declared, shards, is_own, clock
        self._links: dict[NodeName, dict[GuardedLink, None]] = {}
        """Links of an edge in the order of their start. Pulls go to the last one: two would take a lane from each
        other."""
        self._asked: set[NodeName] = set()
        """Edges with a link on which pulls are requested."""
        self._due: dict[tuple[str, str], PullState | str] = {}
        """(pull, step) -> the edge's report, or the reason of the pull's end."""
        self._unheard: set[NodeName] = set()
        """Edges some of whose reports were discarded for lack of room."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.waits: dict[str, str] = {}
        """Pull -> the reason why its edge sends nothing at present, as reported on its link to this process."""
        declared.watch(Watched.PULLS, self._changed)

    def start(self) -> None:
        """Begin."""
        self._tasks = [
            asyncio.create_task(self._write(), name="pulls"),
            asyncio.create_task(self._look(), name="old-pulls"),
        ]

    async def close(self) -> None:
        """Stop. Edges repeat the reports that were not written."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- links

    def guarded(self, link: EdgeLink) -> GuardedLink:
        """Return a handler that guards a link."""
        return GuardedLink(link, self, self._shards)

    def greeted(self, link: GuardedLink) -> None:
        """Send the requests of pulls to the edge of a new link."""
        if link.node is not None and not link.is_over:
            links = self._links.setdefault(link.node, {})
            for earlier in links:
                earlier.ask([])
            links[link] = None
            self._ask(link.node)

    def left(self, link: GuardedLink) -> None:
        """Note the end of a link."""
        if link.node is None or link not in (links := self._links.get(link.node, {})):
            return
        was_asked = link is _last(links)
        del links[link]
        if links and not was_asked:
            return
        for name in self._declared.pulls.running(link.node):
            self.waits.pop(name, None)
        if links:
            self._ask(link.node)
        else:
            del self._links[link.node]
            self._asked.discard(link.node)

    def is_linked(self, edge: NodeName) -> bool:
        """Return whether an edge that knows pulls is linked to this process."""
        return edge in self._links

    def _ask(self, edge: NodeName) -> None:
        if (links := self._links.get(edge)) is None:
            return
        link = _last(links)
        running = self._declared.pulls.running(edge)
        link.ask([request_of(name, document) for name, document in running.items()])
        if running:
            self._asked.add(edge)
        else:
            self._asked.discard(edge)

    def _changed(self) -> None:
        known = self._declared.pulls
        self.waits = {name: why for name, why in self.waits.items() if known.is_running(name)}
        for edge in {*known.edges, *self._asked}:
            self._ask(edge)

    def take(self, link: GuardedLink, state: PullState) -> None:
        """Handle an edge's report about one of its pulls."""
        if link.node is None:
            return
        name = f"{link.node.tenant}/{state.id}"
        if state.stage == PullStage.WAITING:
            self.waits[name] = state.reason
            return
        self.waits.pop(name, None)
        if (step := _STEPS.get(state.stage)) is not None and not self._is_noted(name, state):
            self._put(name, step, state)

    def _is_noted(self, name: str, state: PullState) -> bool:
        """Return whether the cluster log has a word already: an edge says it on each link."""
        known = self._declared.pulls.documents.get(name)
        return (
            state.stage == PullStage.SENDING
            and known is not None
            and (known.state, known.log_id) == ("sending", state.log_id)
        )

    def failed(self, link: GuardedLink, stream: str, reason: str) -> None:
        """End the pulls of a stream whose records the edge does not send or the hub cannot store."""
        if link.node is not None:
            for name, document in self._declared.pulls.running(link.node).items():
                if document.stream == stream:
                    self._put(name, "failed", reason)

    def _put(self, name: str, step: str, what: PullState | str) -> None:
        if len(self._due) < DUE_MAX or (name, step) in self._due:
            self._due[name, step] = what
            self._wake.set()
        elif step != "expired" and (document := self._declared.pulls.documents.get(name)) is not None:
            self._unheard.add(NodeName(name.partition("/")[0], document.edge))

    def _put_again(self, name: str, step: str, what: PullState | str) -> None:
        if (name, step) not in self._due and self._declared.pulls.is_running(name):
            self._put(name, step, what)

    # -- the cluster log

    async def ask(self, name: str, document: PullDocument, author: Author) -> PullDocument:
        """Declare a pull. If the tenant has as many as are kept, it replaces the oldest that is over. Raises as
        ``declare``."""
        await self._log.append(make_room(name.partition("/")[0], document), author)
        return await self.declare(name, ask(name, document), author)

    async def declare(self, name: str, decision: Decision, author: Author) -> PullDocument:
        """Write an entry about a pull, durably, and send the request at once if the edge is linked here.

        Returns:
            The pull after it.

        Raises:
            CannotDeclare: from the decision.
            ChangeRefused, Contended, UnsupportedVersion, StoreError: as ``ClusterLog.append``.
        """
        state = await self._log.append(decision, author)
        self._declared.pulls.note(name, state)
        self._changed()
        return self._declared.pulls.documents[name]

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                if self._clock.wrong() is not None:
                    await asyncio.sleep(RETRY_S)
                    continue
                key, what = next(iter(self._due.items()))
                try:
                    await self.declare(key[0], await self._decision(*key, what), self._author(what))
                except (StoreError, Contended) as error:
                    _logger.warning("what became of pull %s waits for the store: %s", key[0], error)
                    await asyncio.sleep(RETRY_S)
                    continue
                except _NotLoaded:
                    asyncio.get_running_loop().call_later(RETRY_S, self._put_again, *key, what)
                except (CannotDeclare, ChangeRefused, UnsupportedVersion, KeyError) as error:
                    _logger.warning("what became of pull %s is not noted: %s", key[0], error)
                except Exception:  # without this task, pulls would never end
                    _logger.exception("what became of pull %s could not be noted", key[0])
                latest = self._due.pop(key)
                if latest is not what:
                    # Behind the others: an edge that continues talking must not keep them waiting.
                    self._due[key] = latest
            self._ask_again()

    def _ask_again(self) -> None:
        edges, self._unheard = self._unheard, set()
        for edge in edges:
            if (links := self._links.get(edge)) is not None:
                _last(links).ask([])  # of what it is asked for still, an edge says nothing twice
                self._ask(edge)

    def _author(self, what: PullState | str) -> Author:
        return Author(self._clock.now(), f"{BY}@{platform.node()}", "" if isinstance(what, str) else "the edge's word")

    async def _decision(self, name: str, step: str, what: PullState | str) -> Decision:
        now = self._clock.now()
        if isinstance(what, str):
            how: PullStateName = "expired" if step == "expired" else "failed"
            return end(name, how, now, what, await self.held(name))
        if step == "sending":
            return plan(name, what, now)
        if step == "refused":
            return end(name, "refused", now, what.reason, await self.held(name))
        held, document = await self.held(name), self._declared.pulls.documents.get(name)
        if held is None and document is not None and document.log_id:
            raise _NotLoaded  # "done" without loss is a claim: it needs the ranges
        return end(name, "done", now, held=held)

    async def held(self, name: str) -> RangeSet | None:
        """Return the sequence numbers that the hub holds of a pull's lane; None if unknown."""
        document = self._declared.pulls.documents.get(name)
        if document is None or not document.log_id:
            return None
        edge = NodeName(name.partition("/")[0], document.edge)
        sequencer = await self._shards.get(self._shards.place(edge))
        if not sequencer.loaded:
            return None
        with contextlib.suppress(TimeoutError):  # a store that hangs: what is known counts
            async with asyncio.timeout(CATCH_UP_S):
                await sequencer.catch_up(READ_AGE_S_MAX)
        held = sequencer.state.lanes.get(Lane(*edge, document.log_id, document.stream))
        return RangeSet() if held is None else held.ranges

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            # By a wrong clock, any pull may seem to be out of time.
            if not self._is_own(0) or not self._declared.pulls.documents or self._clock.wrong() is not None:
                continue
            now, looks = self._clock.now(), looks + 1
            for name, document in list(self._declared.pulls.documents.items()):
                if not document.is_over and document.expires <= now:
                    self._put(name, "expired", "the edge did not send all of it in time")
            if looks % 360 == 1:
                await self._forget(now)

    async def _forget(self, now: int) -> None:
        """Withdraw pulls that are over for long, some at a time."""
        old = sum(each.is_over and each.ended < now - KEPT_NS for each in self._documents())
        try:
            for _ in range(min(old, FORGOTTEN_AT_ONCE)):
                author = Author(now, f"{BY}@{platform.node()}", "over for a week")
                await self._log.append(forget(now), author)
        except (StoreError, Contended, ChangeRefused, UnsupportedVersion) as error:
            _logger.warning("old pulls are not forgotten: %s", error)

    def _documents(self) -> list[PullDocument]:
        return list(self._declared.pulls.documents.values())


def _last(links: dict[GuardedLink, None]) -> GuardedLink:
    return next(reversed(links))
