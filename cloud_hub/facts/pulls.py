"""Pulls: requests for records of edges, from the declaration to the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import PULL_KIND, CannotDeclare, Decision, UnreadableDocument, decode, encode, read_fact
from weft.protocols.lane import NodeName
from weft.protocols.link import PULL_RANGES_MAX, PULLS_MAX, PullRequest, PullState
from weft.protocols.ranges import RangeSet
from weft.storage.cluster_log import Change, ClusterState, Fact

Span = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
"""Sequence numbers [first, end)."""
PullStateName = Literal["asked", "sending", "done", "refused", "failed", "cancelled", "expired"]


class PullDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a window of an edge's records; the name of the fact is TENANT/ID."""

    edge: str
    stream: str
    first: int
    """Beginning of the window, nanoseconds since 1970."""
    end: int
    """End of the window, exclusive."""
    bytes_max: int
    asked: int
    """Moment of the request by the hub's clock."""
    expires: int
    by: str = ""
    """Name of the token."""
    state: PullStateName = "asked"
    log_id: int = 0
    """Log of the edge that the numbers belong to."""
    ranges: Annotated[tuple[Span, ...], Meta(max_length=PULL_RANGES_MAX)] = ()
    """Sequence numbers of the records that the edge found at first; empty once the pull is over."""
    records: int = 0
    bytes: int = 0
    kept_from: int = 0
    """Time of the oldest record that the edge then had of the stream; 0 if unknown."""
    started: int = 0
    """Moment of the edge's plan, nanoseconds since 1970; 0 before."""
    ended: int = 0
    """Moment of the last state; 0 while the pull runs."""
    received: int = 0
    """Number of these records that the hub had at the end."""
    lost: Annotated[tuple[Span, ...], Meta(max_length=PULL_RANGES_MAX)] = ()
    """Sequence numbers that the edge no longer had, at most ``LOST_MAX`` ranges of them."""
    reason: Annotated[str, Meta(max_length=500)] = ""

    @property
    def is_over(self) -> bool:
        """Return whether the pull has ended."""
        return self.state not in ("asked", "sending")


class PullCache:
    """The pulls that a process knows, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._documents: dict[str, PullDocument] = {}
        self._running: dict[NodeName, dict[str, PullDocument]] = {}
        """Edge -> name -> pull that is not over."""
        self._seen: tuple[ClusterState, int] | None = None
        self._facts: dict[str, Fact] = {}
        self._ahead: dict[str, Fact] = {}
        """Facts that this process wrote and the followed state does not have yet."""
        self.unusable: dict[str, str] = {}
        """Names of facts that cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a pull since the last call.

        Returns:
            Whether there was one.
        """
        last = state.last(PULL_KIND)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._facts = (state, last), dict(state.facts(PULL_KIND))
        self._ahead = {name: fact for name, fact in self._ahead.items() if fact.version > state.n}
        self._take()
        return True

    def note(self, name: str, state: ClusterState) -> None:
        """Apply a pull that this process has written, before the followed state has it.

        Args:
            state: that of the log after the entry.
        """
        fact, known = state.facts(PULL_KIND).get(name), self._facts.get(name)
        if fact is not None and (known is None or known.version < fact.version):
            self._ahead[name] = fact
            self._take()

    def _take(self) -> None:
        self._documents, self._running, self.unusable = {}, {}, {}
        for name, fact in (self._facts | self._ahead).items():
            try:
                document = decode(fact.document, PullDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            self._documents[name] = document
            if not document.is_over:
                edge = NodeName(name.partition("/")[0], document.edge)
                self._running.setdefault(edge, {})[name] = document

    @property
    def documents(self) -> dict[str, PullDocument]:
        """Return all pulls by the names of their facts, in the order of their last change."""
        return self._documents

    @property
    def edges(self) -> list[NodeName]:
        """Return the edges with running pulls."""
        return list(self._running)

    def is_running(self, name: str) -> bool:
        """Return whether there is such a pull, and it is not over."""
        document = self._documents.get(name)
        return document is not None and not document.is_over

    def running(self, edge: NodeName) -> dict[str, PullDocument]:
        """Return an edge's running pulls by name, the oldest first."""
        found = self._running.get(edge)
        if found is None:
            return {}
        return dict(sorted(found.items(), key=lambda each: (each[1].asked, each[0]))[:PULLS_MAX])


def request_of(name: str, document: PullDocument) -> PullRequest:
    """Return the request of a pull as sent to the edge."""
    return PullRequest(name.partition("/")[2], document.stream, document.first, document.end, document.bytes_max)


RUNNING_PER_TENANT_MAX = 64
PULLS_PER_HOUR_MAX = 120
"""Maximum number of pulls of a tenant within an hour: each makes some permanent entries in the cluster log."""
KEPT_PER_TENANT_MAX = 1000
"""Maximum number of pulls of a tenant in the facts."""
KEPT_NS = 7 * 86_400 * 1_000_000_000
"""Time for which an ended pull is kept, unless newer ones need its place."""
LOST_MAX = 64
"""Maximum number of ranges that the edge no longer had, of those that are remembered."""
HOUR_NS = 3600 * 1_000_000_000
OTHER_LOGS = "the edge named a third log: if its disk is sound, another node has its name"


class PullsFull(CannotDeclare):
    """The bound on pulls of a tenant or an edge is reached."""


class NoPull(CannotDeclare):
    """There is no such pull."""


def ask(name: str, document: PullDocument) -> Decision:
    """Declare a pull.

    Raises:
        PullsFull: from the decision.
    """
    tenant = name.partition("/")[0]

    def decide(state: ClusterState) -> Change:
        if len(_allowed(state, tenant, document)) >= KEPT_PER_TENANT_MAX:
            raise PullsFull(f"{KEPT_PER_TENANT_MAX} pulls of the tenant are kept, the limit: try again")
        return Change(PULL_KIND, name, encode(document))

    return decide


def make_room(tenant: str, document: PullDocument) -> Decision:
    """Withdraw the pull of a tenant that ended first, if the tenant has ``KEPT_PER_TENANT_MAX`` pulls.

    Args:
        document: the pull that needs the room.

    Raises:
        PullsFull: from the decision: there would be no room for it nevertheless.
    """

    def decide(state: ClusterState) -> Change | None:
        known = _allowed(state, tenant, document)
        over = [(each.ended, name) for name, each in known if each.is_over]
        return Change(PULL_KIND, min(over)[1], None) if len(known) >= KEPT_PER_TENANT_MAX and over else None

    return decide


def _allowed(state: ClusterState, tenant: str, document: PullDocument) -> list[tuple[str, PullDocument]]:
    """Return the pulls of a tenant that may ask for one more."""
    known = list(_of_tenant(state, tenant))
    running = [each for _, each in known if not each.is_over]
    if sum(each.edge == document.edge for each in running) >= PULLS_MAX:
        raise PullsFull(f"edge {document.edge} has {PULLS_MAX} pulls that run: wait for one, or cancel one")
    if len(running) >= RUNNING_PER_TENANT_MAX:
        raise PullsFull(f"{len(running)} pulls of the tenant run, its limit: wait for one, or cancel one")
    if sum(each.asked > document.asked - HOUR_NS for _, each in known) >= PULLS_PER_HOUR_MAX:
        raise PullsFull(f"the tenant asked for {PULLS_PER_HOUR_MAX} pulls in an hour, its limit: wait a while")
    return known


def plan(name: str, pull: PullState, now: int) -> Decision:
    """Record the edge's plan. The first plan is kept, so that records that the edge deletes later are known by number.

    An edge may change its log once. More changes, each a permanent entry, would fill the cluster log.

    Raises:
        CannotDeclare: from the decision: there is no such pull.
    """

    def decide(state: ClusterState) -> Change | None:
        before = _pull(state, name)
        if before.is_over or (before.state == "sending" and before.log_id == pull.log_id):
            return None
        if before.reason:
            return end(name, "failed", now, OTHER_LOGS)(state)
        reason = "" if not before.log_id else "the edge's log is another one since: what the first one had is lost"
        changed = msgspec.structs.replace(
            before,
            state="sending",
            log_id=pull.log_id,
            ranges=_joined(pull),
            records=pull.records,
            bytes=pull.bytes,
            kept_from=pull.kept_from,
            started=now,
            reason=reason,
        )
        return Change(PULL_KIND, name, encode(changed, state.facts(PULL_KIND)[name].document))

    return decide


def end(name: str, how: PullStateName, now: int, reason: str = "", held: RangeSet | None = None) -> Decision:
    """Record the end of a pull. A pull that is over stays unchanged.

    Args:
        held: sequence numbers of the edge's lane that the hub holds; None if unknown.

    Raises:
        CannotDeclare: from the decision: there is no such pull.
    """

    def decide(state: ClusterState) -> Change | None:
        before = _pull(state, name)
        if before.is_over:
            return None
        lost = RangeSet() if held is None else RangeSet(part for run in before.ranges for part in held.missing(*run))
        total = sum(last - first for first, last in before.ranges)
        changed = msgspec.structs.replace(
            before,
            state=how,
            ended=now,
            reason=(reason or before.reason)[:500],
            lost=tuple(lost)[:LOST_MAX],
            received=0 if held is None else total - lost.count(),
            ranges=(),
        )
        return Change(PULL_KIND, name, encode(changed, state.facts(PULL_KIND)[name].document))

    return decide


def forget(now: int) -> Decision:
    """Withdraw one pull that ended more than ``KEPT_NS`` ago."""

    def decide(state: ClusterState) -> Change | None:
        for name, fact in state.facts(PULL_KIND).items():
            try:
                document = decode(fact.document, PullDocument)
            except UnreadableDocument:
                continue
            if document.is_over and document.ended < now - KEPT_NS:
                return Change(PULL_KIND, name, None)
        return None

    return decide


def _joined(state: PullState) -> tuple[tuple[int, int], ...]:
    """Return an edge's ranges without empty ones and overlaps: it chose them, and they are counted later."""
    return tuple(RangeSet((first, end) for first, end in state.ranges if first < end))


def _pull(state: ClusterState, name: str) -> PullDocument:
    fact = state.facts(PULL_KIND).get(name)
    if fact is None:
        raise NoPull(f"there is no pull {name.partition('/')[2]}")
    return read_fact(name, PULL_KIND, fact.document, PullDocument)


def _of_tenant(state: ClusterState, tenant: str) -> Iterator[tuple[str, PullDocument]]:
    for name, fact in state.facts(PULL_KIND).items():
        if name.startswith(f"{tenant}/"):
            try:
                yield name, decode(fact.document, PullDocument)
            except UnreadableDocument:
                continue
