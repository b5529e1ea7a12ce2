"""Changes to the pulls of the cluster log: decisions on its state, as all its changes are."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, read_fact
from weft.cloud_hub.declared.documents import (
    PULL,
    PullDocument,
    PullStateName,
    UnreadableDocument,
    decode,
    encode,
)
from weft.protocols.link.pull import PULLS_MAX, PullState
from weft.protocols.ranges import RangeSet
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState

RUNNING_PER_TENANT_MAX = 64
PULLS_PER_HOUR_MAX = 120
"""Maximum number of pulls that a tenant asks for within an hour: each is some entries of the cluster log, for good."""
KEPT_PER_TENANT_MAX = 1000
"""Maximum number of pulls of a tenant that are remembered."""
KEPT_NS = 7 * 86_400 * 1_000_000_000
"""Time for which a pull that is over is remembered, unless newer ones need its place."""
LOST_MAX = 64
"""Maximum number of ranges that the edge no longer had, of those that are remembered."""
HOUR_NS = 3600 * 1_000_000_000
OTHER_LOGS = "the edge named a third log: if its disk is sound, another node has its name"


class PullsFull(CannotDeclare):
    """A tenant or an edge has as many pulls as it may have."""


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
            raise PullsFull(f"{KEPT_PER_TENANT_MAX} pulls of the tenant are remembered, its limit: ask again")
        return Change(PULL, name, encode(document))

    return decide


def make_room(tenant: str, document: PullDocument) -> Decision:
    """Withdraw the pull of a tenant that ended first, if as many are remembered as may be.

    Args:
        document: the pull that is to have its place.

    Raises:
        PullsFull: from the decision: there would be no room for it nevertheless.
    """

    def decide(state: ClusterState) -> Change | None:
        known = _allowed(state, tenant, document)
        over = [(each.ended, name) for name, each in known if each.is_over]
        return Change(PULL, min(over)[1], None) if len(known) >= KEPT_PER_TENANT_MAX and over else None

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


def plan(name: str, told: PullState, now: int) -> Decision:
    """Note what the edge sends. What it found first stays: records that it deletes later are then known by number.

    An edge may have another log once. With one after the other, each an entry for good, it would fill the cluster log.

    Raises:
        CannotDeclare: from the decision: there is no such pull.
    """

    def decide(state: ClusterState) -> Change | None:
        before = _pull(state, name)
        if before.is_over or (before.state == "sending" and before.log_id == told.log_id):
            return None
        if before.reason:
            return end(name, "failed", now, OTHER_LOGS)(state)
        reason = "" if not before.log_id else "the edge's log is another one since: what the first one had is lost"
        changed = msgspec.structs.replace(
            before, state="sending", log_id=told.log_id, ranges=_joined(told), records=told.records,
            bytes=told.bytes, kept_from=told.kept_from, started=now, reason=reason,
        )  # fmt: skip
        return Change(PULL, name, encode(changed, state.facts(PULL)[name].document))

    return decide


def end(name: str, how: PullStateName, now: int, reason: str = "", held: RangeSet | None = None) -> Decision:
    """Note that a pull is over.

    Args:
        held: numbers of the edge's lane that the hub has; None if that is unknown.

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
            before, state=how, ended=now, reason=(reason or before.reason)[:500], lost=tuple(lost)[:LOST_MAX],
            received=0 if held is None else total - lost.count(), ranges=(),
        )  # fmt: skip
        return Change(PULL, name, encode(changed, state.facts(PULL)[name].document))

    return decide


def forget(now: int) -> Decision:
    """Withdraw one pull that is over for long."""

    def decide(state: ClusterState) -> Change | None:
        for name, fact in state.facts(PULL).items():
            try:
                document = decode(fact.document, PullDocument)
            except UnreadableDocument:
                continue
            if document.is_over and document.ended < now - KEPT_NS:
                return Change(PULL, name, None)
        return None

    return decide


def _joined(told: PullState) -> tuple[tuple[int, int], ...]:
    """Return an edge's ranges without empty ones and overlaps: it chose them, and they are counted later."""
    return tuple(RangeSet((first, end) for first, end in told.ranges if first < end))


def _pull(state: ClusterState, name: str) -> PullDocument:
    fact = state.facts(PULL).get(name)
    if fact is None:
        raise NoPull(f"there is no pull {name.partition('/')[2]}")
    return read_fact(name, PULL, fact.document, PullDocument)


def _of_tenant(state: ClusterState, tenant: str) -> Iterator[tuple[str, PullDocument]]:
    for name, fact in state.facts(PULL).items():
        if name.startswith(f"{tenant}/"):
            try:
                yield name, decode(fact.document, PullDocument)
            except UnreadableDocument:
                continue
