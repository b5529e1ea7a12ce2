"""The beginning of a source shard at a task: its lane is claimed, and its last row is found, in whichever lane it is.

A query that was never spread has one lane for a source shard, the first one. From the first spread on the first lane
is sealed, and the shard's rows continue in the lane of the spread: one for each edge that a spread chooses for it. A
task claims its own lane, and only then seals the first lane and takes over all others that exist, before it looks for
the last row. The order matters: of two tasks with different spreads, each claims its own lane before it looks at the
other's, so one of them at least is stopped before it sends anything.

The next micro-batches claim the epoch behind the one that they know (``Claim.NEXT``). That fails as soon as any task
has taken the lanes over, and then everything is taken over and looked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import SEALED_EPOCH, Claim, LaneFact, ProducerLane, Sealed, went_back
from spark_sinks.sinks.stream.last_record import LastRecord, find_last, held_epoch, kept_lane
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.positions import ends_text
from spark_sinks.sinks.stream.settings import ProducerSettings
from spark_sinks.sinks.stream.source import check_source
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import LaneState


class StoredHub:
    """The hub of some settings and its store, as the beginning of a source shard needs them.

    Args:
        cluster_id: returns the hub's own, as its WELCOME said it; empty while it is not known.
    """

    def __init__(self, settings: ProducerSettings, cluster_id: Callable[[], str] = lambda: "") -> None:
        self._settings, self._cluster_id = settings, cluster_id

    def link(self, edge: str) -> Link:
        """Return a new link of an edge."""
        return Link(self._settings, lambda lane: run(held_epoch(self._settings, "", lane)), edge=edge)

    def kept(self, lane: Lane) -> LaneState | None:
        """Return the state of a lane at the log's end; None without one."""
        return run(kept_lane(self._settings, self._cluster_id(), lane))

    def last(self, lane: Lane, shard: int, seq: int) -> LastRecord:
        """Return the place of the last record of a lane."""
        return run(find_last(self._settings, self._cluster_id(), lane, shard, seq))

    def check(self, shard: int, last: LastRecord) -> None:
        """Check that the source still has the record behind the last row."""
        check_source(self._settings, shard, last)


def begin(settings: ProducerSettings, hub: StoredHub, link: Link, shard: int, fact: LaneFact | None) -> ProducerLane:
    """Claim the lane of a source shard, and return it with the position of the shard's last row.

    Args:
        link: of the edge that has the lane under the settings' spread.
        fact: of an earlier micro-batch with the same spread.

    Raises:
        SinkError: the hub refuses or does not answer, or the lane's last record is not found.
        Superseded: another task sends for the query.
    """
    if settings.spread == 1 and (fact is None or not fact.is_sealed):
        # An open first lane proves that no spread has begun: that would have sealed it.
        lane = ProducerLane(settings.lane(shard), 0 if fact is None else fact.epoch)
        try:
            link.open(lane)
        except Sealed:
            fact = None
        else:
            return _resumed(hub, lane, shard, fact)
    if fact is None:
        lane = ProducerLane(settings.spread_lane(shard), 0, Claim.TAKE_OVER)
    else:
        lane = ProducerLane(settings.spread_lane(shard), fact.epoch, Claim.NEXT)
    link.open(lane)
    if fact is not None and lane.is_next:
        lane.behind = fact.behind
        return _resumed(hub, lane, shard, fact)
    others = others_of(settings, hub, shard)
    lane.behind = ends_text({each.log_id: end for each, end in others.items()})
    return _resumed(hub, lane, shard, fact, others)


def others_of(settings: ProducerSettings, hub: StoredHub, shard: int) -> dict[Lane, int]:
    """Stop all that send in other lanes of a source shard, and return the ends of those with records."""
    first, spreads = settings.lane(shard), settings.lanes_of_other_spreads(shard)
    ends = {each: _stopped(hub, each, seals=each == first) for each in (first, *spreads)}
    return {each: end for each, end in ends.items() if end}


def _resumed(
    hub: StoredHub,
    lane: ProducerLane,
    shard: int,
    fact: LaneFact | None,
    others: Mapping[Lane, int] = MappingProxyType({}),
) -> ProducerLane:
    """Return a claimed lane with the position of the shard's last row.

    Args:
        others: ends of the other lanes that have records; none if no other task has claimed them since the fact.
    """
    if fact is not None and lane.end < fact.end:
        raise went_back(lane.identity, lane.end, fact.end)
    if fact is not None and fact.end == lane.end and not others:
        lane.resume(fact.position)
        return lane
    last = _last_of(hub, shard, ({lane.identity: lane.end} if lane.end else {}) | dict(others))
    if last is not None:
        hub.check(shard, last)
    lane.resume(None if last is None else last.position)
    return lane


def _last_of(hub: StoredHub, shard: int, ends: Mapping[Lane, int]) -> LastRecord | None:
    """Return the last record of several lanes of a source shard; None of none.

    Raises:
        SinkError: a lane's last record is not found, and no other one says that it comes behind it. Retention deletes
            the records of lanes that a query has left long ago.
    """
    found: list[LastRecord] = []
    unknown: dict[Lane, SinkError] = {}
    for lane, end in ends.items():
        if any(each.behind.get(lane.log_id) == end for each in found):
            continue
        try:
            found.append(hub.last(lane, shard, end - 1))
        except SinkError as error:
            unknown[lane] = error
    for lane, reason in unknown.items():
        if not any(each.behind.get(lane.log_id) == ends[lane] for each in found):
            raise reason
    return max(found, key=lambda each: each.position, default=None)


def _stopped(hub: StoredHub, lane: Lane, *, seals: bool) -> int:
    """Stop all that send in another lane of the shard, and return its end.

    Args:
        seals: whether the lane is the first one, which stays closed: tasks of releases without spreads know no other,
            and would go on there whenever they connect.
    """
    held = hub.kept(lane)
    if held is None and not seals:
        return 0  # a task that makes it from here on, looks at this task's lane afterwards
    if held is not None and held.epoch == SEALED_EPOCH:
        return held.ranges.end
    claimed = ProducerLane(lane, 0 if held is None else held.epoch, Claim.SEAL if seals else Claim.TAKE_OVER)
    link = hub.link(lane.edge)
    try:
        link.open(claimed)
    except Sealed:  # another task was quicker, or this one before a lost connection
        held = hub.kept(lane)
        return 0 if held is None else held.ranges.end
    finally:
        link.close()
    return claimed.end
