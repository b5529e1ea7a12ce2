"""Pulls in one hub process: edges are asked on their links, and what they say becomes an entry of the cluster log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Callable

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.declared.changes import CannotDeclare, Decision
from weft.cloud_hub.declared.declarations import Declarations
from weft.cloud_hub.declared.documents import PullDocument, PullStateName
from weft.cloud_hub.declared.pulls import request_of
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.pulls import changes
from weft.cloud_hub.pulls.guarded_link import GuardedLink
from weft.cloud_hub.shard.shards import READ_AGE_S_MAX, Shards
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link.pull import PullStage, PullState
from weft.protocols.ranges import RangeSet
from weft.storage.cluster_log.log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.object_store import ObjectStore, StoreError

_logger = logging.getLogger(__name__)
BY = "weft hub"
RETRY_S = 2.0
CATCH_UP_S = 5.0
LOOK_S = 10.0
"""Interval at which pulls that ran out of time are ended."""
FORGOTTEN_AT_ONCE = 64
_STEPS: dict[int, str] = {PullStage.SENDING: "sending", PullStage.DONE: "done", PullStage.REFUSED: "refused"}
DUE_MAX = 4096
"""Maximum number of words of edges that wait for the store. Of further ones the edges are asked again."""


class _NotLoaded(Exception):
    """The shard of a pull's edge is not loaded: what the hub has of the pull is unknown for now."""


class HubPulls:
    """The pulls of a process (``guarded_link.AllPulls``).

    Args:
        is_own: whether this process owns a shard.
        clock: while it is wrong, nothing is written: the times of pulls are for good.
    """

    def __init__(
        self, store: ObjectStore, cluster_id: bytes, declared: Declarations, shards: Shards,
        *, is_own: Callable[[int], bool], clock: HubClock,
    ) -> None:  # fmt: skip
        self._log = ClusterLog(store, cluster_id)
        self._declared, self._shards, self._is_own, self._clock = declared, shards, is_own, clock
        self._links: dict[NodeName, dict[GuardedLink, None]] = {}
        """Links of an edge, in their order. The last one is asked: two would take a lane from each other."""
        self._asked: set[NodeName] = set()
        """Edges with links that were asked for something."""
        self._due: dict[tuple[str, str], PullState | str] = {}
        """(pull, step) -> the edge's word about it, or the reason of its end."""
        self._unheard: set[NodeName] = set()
        """Edges of whose words some found no room."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.waits: dict[str, str] = {}
        """Pull -> the reason why its edge sends nothing for now, as its link told this process."""
        declared.pulled = self._changed

    def start(self) -> None:
        """Begin."""
        self._tasks = [
            asyncio.create_task(self._write(), name="pulls"),
            asyncio.create_task(self._look(), name="old-pulls"),
        ]

    async def close(self) -> None:
        """Stop. What was not written, the edges say again."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- links

    def guarded(self, link: EdgeLink) -> GuardedLink:
        """Return a link behind the guard of its pulls."""
        return GuardedLink(link, self, self._shards)

    def greeted(self, link: GuardedLink) -> None:
        """Ask the edge of a new link for what it is to send."""
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

    def said(self, link: GuardedLink, state: PullState) -> None:
        """Take an edge's word about one of its pulls."""
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
        """End the pulls of a stream: the edge does not send what it was asked for, or the hub cannot take it."""
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
        """Declare a pull in the place of the tenant's oldest one, if need be. Raises as ``declare``."""
        await self._log.append(changes.make_room(name.partition("/")[0], document), author)
        return await self.declare(name, changes.ask(name, document), author)

    async def declare(self, name: str, decision: Decision, author: Author) -> PullDocument:
        """Write an entry about a pull, and ask its edge at once if it is linked here.

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
                    # Behind the others: an edge that goes on talking must not keep them waiting.
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
            return changes.end(name, how, now, what, await self.held(name))
        if step == "sending":
            return changes.plan(name, what, now)
        if step == "refused":
            return changes.end(name, "refused", now, what.reason, await self.held(name))
        held, document = await self.held(name), self._declared.pulls.documents.get(name)
        if held is None and document is not None and document.log_id:
            raise _NotLoaded  # "done" without loss is a claim: it needs the ranges
        return changes.end(name, "done", now, held=held)

    async def held(self, name: str) -> RangeSet | None:
        """Return the numbers that the hub has of a pull's lane; None if that is unknown."""
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
        old = sum(each.is_over and each.ended < now - changes.KEPT_NS for each in self._documents())
        try:
            for _ in range(min(old, FORGOTTEN_AT_ONCE)):
                author = Author(now, f"{BY}@{platform.node()}", "over for a week")
                await self._log.append(changes.forget(now), author)
        except (StoreError, Contended, ChangeRefused, UnsupportedVersion) as error:
            _logger.warning("old pulls are not forgotten: %s", error)

    def _documents(self) -> list[PullDocument]:
        return list(self._declared.pulls.documents.values())


def _last(links: dict[GuardedLink, None]) -> GuardedLink:
    return next(reversed(links))
