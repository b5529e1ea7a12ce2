"""Comparison of an audit's merged counts: lanes and shards, and differences between log and table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from weft.proofs.audit.contents import payload_problems
from weft.proofs.audit.counts import LaneKey, without
from weft.proofs.audit.deletions import DeclaredDeletions
from weft.proofs.audit.log_plan import ShardBase
from weft.proofs.audit.part import Part, Stretch
from weft.proofs.audit.report import (
    DAMAGE_LISTED_MAX,
    HOLES_LISTED_MAX,
    AuditReport,
    LaneAudit,
    ShardAudit,
    lane_problems,
    reason_name,
    shard_problems,
)
from weft.proofs.audit.scope import Scope
from weft.proofs.audit.times import time_problems
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason


def shard_end(part: Part, shard: int, base: ShardBase) -> tuple[int, RangeSet]:
    """Return the offset after a shard's last one, and the offsets of chunks that were deleted.

    A run of chunks that does not continue the previous one is recorded as damage in ``part``.
    """
    collected, end, last_n = RangeSet(), 0, -1
    for stretch in sorted(each for each in part.stretches if each.shard == shard):
        if stretch.base > end and last_n + 1 < base.watermark:
            collected.add(end, stretch.base)
        elif stretch.base != end:
            _note_break(part, stretch, end)
        end, last_n = stretch.end, stretch.last_n
    if last_n < base.watermark and base.ended > end:
        # Without a record in the existing chunks, the snapshot has the stream's next offset.
        collected.add(end, base.ended)
        end = base.ended
    return end, collected


def _note_break(part: Part, stretch: Stretch, end: int) -> None:
    part.note(
        stretch.shard, stretch.first_n, f"chunk {stretch.first_n} of shard {stretch.shard} does not continue at {end}"
    )


class Comparison:
    """All findings of an audit.

    Args:
        part: all counts, merged.
        stated: records of lanes according to snapshots of shards whose chunks were deleted.
        skipped: records that an operator skipped.
        ends: shard -> end of the log.
        version: compared version of the table; None without one.
        declared: declared deletions.
    """

    def __init__(  # noqa: PLR0917
        self,
        scope: Scope,
        part: Part,
        stated: Mapping[LaneKey, RangeSet],
        skipped: Mapping[LaneKey, RangeSet],
        ends: Mapping[int, int],
        version: int | None,
        declared: DeclaredDeletions,
    ) -> None:
        self._declared = declared
        self._scope, self._part, self._ends, self._version = scope, part, ends, version
        self._stated = defaultdict(RangeSet, stated)
        self._skipped = defaultdict(RangeSet, skipped)

    def report(self) -> AuditReport:
        """Return the report: equal counts give equal reports."""
        part, scope = self._part, self._scope
        for (edge, log_id), ranges in part.table.held.items():
            part.named[log_id][f"{scope.tenant}/{edge}"].update(ranges)
        keys = sorted({*part.log.held, *part.table.held, *part.indexed, *part.gaps, *self._stated})
        lanes = [self._lane(key) for key in keys]
        shards = [
            self._shard(shard)
            for shard in range(scope.cluster.tree.count)
            if self._ends.get(shard, 0) or part.offsets.held[shard]
        ]
        damage = [each.sentence for each in part.listed_damage()][:DAMAGE_LISTED_MAX]
        problems = [
            *damage,
            *lane_problems(lanes),
            *shard_problems(shards),
        ]
        if not scope.only_latest:  # their sums are of all rows
            problems += time_problems(part.log_times, part.table_times)
            problems += payload_problems(part.log_payloads, part.table_payloads)
        return AuditReport(
            scope.tenant, scope.stream, self._version, lanes, shards, damage, problems, agrees=not problems,
            only_latest=scope.only_latest,
        )  # fmt: skip

    def _lane(self, key: LaneKey) -> LaneAudit:
        part, skipped = self._part, self._skipped[key]
        chunks, table, below, indexed = part.log.held[key], part.table.held[key], part.below[key], part.indexed[key]
        above, collected = without(chunks, below), part.collected.held[key]
        chunks = chunks.copy()
        chunks.update(without(skipped, collected))
        lost = without(without(self._stated[key], chunks), collected)
        log = chunks.copy()
        log.update(collected)
        log.update(lost)
        gaps, end = self._gaps(key, log.end)
        accounted = log.copy()
        for told in gaps.values():
            accounted.update(told)
        holes = accounted.missing(0, end)
        absent = without(below, table)
        absent.update(without(lost, table))
        replaced = absent if self._scope.only_latest else RangeSet()
        missing = without(without(absent, replaced), self._declared.lanes.get(key, RangeSet()))
        return LaneAudit(
            edge=key[0],
            log_id=key[1],
            records=log.count(),
            log_doubled=part.log.doubled[key] + chunks.count() - without(chunks, collected).count(),
            unindexed=without(chunks, indexed).count() + without(indexed, chunks).count(),
            table_records=table.count(),
            table_doubled=part.table.doubled[key],
            waiting=without(above, table).count(),
            missing=missing.count(),
            deleted=absent.count() - replaced.count() - missing.count(),
            replaced=replaced.count(),
            unknown=without(table, log).count(),
            gaps={reason: told.count() for reason, told in gaps.items() if told},
            holes=sum(end - first for first, end in holes),
            hole_ranges=holes[:HOLES_LISTED_MAX],
            resent=part.resent[key],
            skipped=without(skipped, table).count(),
            named_twice=self._named_twice(key),
            origins=dict(sorted(part.origins.counts[key].items())),
        )

    def _gaps(self, key: LaneKey, end: int) -> tuple[dict[str, RangeSet], int]:
        """Return the lane's gaps that need no further explanation, by reason, and the end of its numbers.

        Numbers before a rename that no name has are not such gaps: this hub lost them, or never received them.
        """
        explained, found = self._part.explained[key[1]], {}
        for reason, numbers in sorted(self._part.gaps[key].items()):
            told = numbers
            if reason == GapReason.RENAMED:
                told = without(numbers, without(numbers, explained))
            found[reason_name(reason)] = told
            end = max(end, numbers.end)
        return found, end

    def _named_twice(self, key: LaneKey) -> dict[str, int]:
        """Return other names of the lane's log, with the number of its records that each also has."""
        own, names = f"{self._scope.tenant}/{key[0]}", self._part.named[key[1]]
        counts = {name: names[own].count() - without(names[own], ranges).count() for name, ranges in names.items()}
        return {name: count for name, count in sorted(counts.items()) if name != own and count}

    def _shard(self, shard: int) -> ShardAudit:
        position, held = self._scope.positions.get(shard, 0), self._part.offsets.held[shard]
        absent = RangeSet(held.missing(0, position))
        unskipped = without(absent, self._scope.skips.get(shard, RangeSet()))
        if self._scope.only_latest:
            unskipped = RangeSet()
        missing = without(unskipped, self._declared.offsets.get(shard, RangeSet())).count()
        return ShardAudit(
            shard=shard,
            chunks=self._part.chunks[shard],
            log_end=self._ends.get(shard, 0),
            position=position,
            missing=missing,
            doubled=self._part.offsets.doubled[shard],
            ahead=held.count() - (position - absent.count()),
            skipped=0 if self._scope.only_latest else absent.count() - unskipped.count(),
            deleted=unskipped.count() - missing,
        )
