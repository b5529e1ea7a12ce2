"""States of quality rules: good, in alarm or unknown, as a function of what tables count and of the time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.payload_schema.model import QualityRule
from weft.config.units import approximate_duration, format_duration
from weft.hub_api.answers import moment
from weft.hub_api.status import QualityOfNode, QualityRuleOfNode, QuarantineOfNode, VanishedFieldOfNode
from weft.protocols.chunk_index import StreamKey
from weft.storage.table.quality import Counted, QualityCounts, number_of
from weft.storage.table.schemas import DeclaredQuality, Schemas, StreamQuality
from weft.storage.table_writer.service import TableService

ROWS_MIN = 20
"""Rows below which a share says little: one of three rows is no third of a stream."""
SLOTS = 16
"""Number of parts of the time over which a share is taken: its precision."""
AHEAD_US = 60_000_000
"""Time by which a receipt may be after this node's clock: clocks of hub nodes differ by less than a minute."""
NOT_YET, NONE_SEEN = "no row was checked yet", "no row came since this process began to look"
_NONE = Counted(0, 0)


class QualityState(StrEnum):
    """The state of a rule. The words are those of the API."""

    GOOD = "good"
    ALARM = "alarm"
    UNKNOWN = "unknown"


class Event(NamedTuple):
    """A line for the log."""

    level: int
    about: str
    """Name of the rule, or ``vanished/FIELD``."""
    text: str


class Recent:
    """The last rows of a check, over some time: between two readings of its counts.

    ``now`` is monotonic seconds.
    """

    def __init__(self, over_s: float, now: float, first: Counted) -> None:
        self._over_s = over_s
        self._notes: deque[tuple[float, Counted]] = deque([(now, first)])

    def note(self, now: float, counted: Counted) -> None:
        """Take a reading."""
        notes = self._notes
        if counted.rows < notes[-1][1].rows:  # another table was made in its place
            notes.clear()
            notes.append((now, _NONE))
        if len(notes) > 1 and now - notes[-2][0] < self._over_s / SLOTS:
            notes.pop()
        notes.append((now, counted))
        # The rows behind the second note are enough.
        while len(notes) > 2 and notes[1][0] <= now - self._over_s and counted.rows - notes[1][1].rows >= ROWS_MIN:
            notes.popleft()

    @property
    def counted(self) -> Counted:
        """Return the number of rows, and of those that failed."""
        first, last = self._notes[0][1], self._notes[-1][1]
        return Counted(last.rows - first.rows, last.failed - first.failed)


class Judged:
    """Something that is good, in alarm or unknown."""

    def __init__(self) -> None:
        self.state, self.why = QualityState.UNKNOWN, NOT_YET
        self.since: int | None = None

    def to(self, state: QualityState, why: str, now_ns: int) -> tuple[int, str] | None:
        """Change the state. Return level and words for the log if an alarm begins or ends."""
        was, self.why = self.state, why
        if state is was:
            return None
        self.state, self.since = state, now_ns
        if state is QualityState.ALARM:
            return logging.WARNING, why
        return (logging.INFO, f"the alarm is over{': ' if why else ''}{why}") if was is QualityState.ALARM else None


class _RuleWatch(Judged):
    """One rule that is watched."""

    def __init__(self, name: str, rule: QualityRule) -> None:
        super().__init__()
        self.name, self.rule, self.number = name, rule, number_of(rule)
        self.recent: Recent | None = None
        self.counted: Counted | None = None

    def status(self) -> QualityRuleOfNode:
        """Return the status for operators."""
        rows, failed = (None, None) if self.rule.fresh is not None else self.counted or _NONE
        recent = _NONE if self.recent is None else self.recent.counted
        why = None if self.state is QualityState.GOOD else self.why
        return QualityRuleOfNode(
            self.name,
            self.rule.words,
            self.rule.tolerate,
            self.state.value,
            moment(self.since),
            why,
            rows,
            failed,
            *recent,
        )


class StreamWatch:
    """The rules of one stream. A look takes microseconds for each rule."""

    def __init__(self) -> None:
        self._declared: StreamQuality | None = None
        self._counts: QualityCounts | None = None
        self._rules: dict[str, _RuleWatch] = {}
        self._vanished: dict[str, Judged] = {}
        self._absent: dict[str, int] = {}
        self._unchecked = 0

    def look(  # noqa: PLR0917
        self,
        declared: StreamQuality,
        counts: QualityCounts,
        first: QualityCounts,
        done: int,
        why_not: Mapping[str, str],
        fields: Collection[str],
        now: float,
        now_ns: int,
        *,
        is_sound: bool,
    ) -> Iterator[Event]:
        """Take what the table counts. Yield alarms that begin or end.

        Args:
            first: the counts that this process saw first.
            done: sum of the table's positions.
            why_not: rules that cannot be checked, each with the reason.
            fields: those of the stream's schema.
            now: monotonic seconds.
            now_ns: nanoseconds since 1970.
            is_sound: whether ``now_ns`` can be believed.
        """
        is_new = self._counts is not counts or self._declared is not declared
        if self._declared is not declared:
            self._take(declared)
        self._counts = counts
        for watch in self._rules.values():
            changed = None
            if watch.rule.fresh is not None:
                changed = watch.to(*_freshness(watch.rule.fresh, counts, now_ns, is_sound), now_ns)
            elif is_new:
                changed = self._share(watch, counts, first, why_not.get(watch.name), now, now_ns)
            if changed is not None:
                yield Event(changed[0], watch.name, f"rule {watch.name}: {changed[1]}")
        if is_new:
            self._unchecked = counts.unchecked(done)
            yield from self._look_for_vanished(counts, fields, now_ns)

    def _take(self, declared: StreamQuality) -> None:
        """Take other rules. Checks that stay the same continue."""
        known = {watch.number: watch for watch in self._rules.values()}
        self._declared, self._rules = declared, {}
        for name, rule in declared.rules.rules.items():
            watch = _RuleWatch(name, rule)
            before = known.get(watch.number)
            if before is not None and before.rule.over_s == rule.over_s:
                before.name, before.rule, watch = name, rule, before
            self._rules[name] = watch

    def _share(  # noqa: PLR0917
        self,
        watch: _RuleWatch,
        counts: QualityCounts,
        first: QualityCounts,
        why_not: str | None,
        now: float,
        now_ns: int,
    ) -> tuple[int, str] | None:
        watch.counted = counted = counts.of(watch.number)
        if watch.recent is None:
            watch.recent = Recent(watch.rule.over_s, now, first.of(watch.number) or _NONE)
        if counted is not None:
            watch.recent.note(now, counted)
        if why_not is not None:
            return watch.to(QualityState.UNKNOWN, why_not, now_ns)
        recent, tolerate = watch.recent.counted, watch.rule.tolerate
        if not recent.rows:
            if watch.state is QualityState.UNKNOWN:
                watch.why = NOT_YET if counted is None else NONE_SEEN
            return None
        if recent.failed <= tolerate * recent.rows:
            return watch.to(QualityState.GOOD, "", now_ns)
        if tolerate and recent.rows < ROWS_MIN:
            return None
        return watch.to(QualityState.ALARM, _words(watch.rule, recent), now_ns)

    def _look_for_vanished(self, counts: QualityCounts, fields: Collection[str], now_ns: int) -> Iterator[Event]:
        assert self._declared is not None
        after, self._absent = self._declared.rules.vanished_after, {}
        for name in fields if after is not None else ():
            absent = counts.absent(name)
            if after is None or not absent or absent < after:
                if name in self._vanished:
                    changed = self._vanished.pop(name).to(QualityState.GOOD, "it has values again", now_ns)
                    assert changed is not None
                    yield Event(changed[0], f"vanished/{name}", f"field {name}: {changed[1]}")
                continue
            self._absent[name] = absent
            if name not in self._vanished:
                judged = self._vanished[name] = Judged()
                why = f"had values, and none in the last {absent:,} rows: it was renamed, or is no longer sent"
                changed = judged.to(QualityState.ALARM, why, now_ns)
                assert changed is not None
                yield Event(changed[0], f"vanished/{name}", f"field {name} {changed[1]}")
        for name in [name for name in self._vanished if name not in self._absent]:
            del self._vanished[name]  # the schema has it no more

    def status(self, tenant: str, stream: str, quarantine: QuarantineOfNode | None = None) -> QualityOfNode | None:
        """Return the status for operators; None before the first look."""
        if self._declared is None or self._counts is None:
            return None
        rules = [watch.status() for watch in self._rules.values()]
        vanished = [VanishedFieldOfNode(name, rows) for name, rows in sorted(self._absent.items())]
        return QualityOfNode(
            tenant, stream, self._declared.version, self._counts.rows, self._unchecked, rules, vanished, quarantine
        )

    @property
    def rules(self) -> int:
        """Return the number of rules."""
        return len(self._rules)

    @property
    def alarms(self) -> int:
        """Return the number of rules in alarm, and of vanished fields."""
        return len(self._vanished) + sum(watch.state is QualityState.ALARM for watch in self._rules.values())


def _words(rule: QualityRule, recent: Counted) -> str:
    failed = f"{recent.failed:,} of the last {recent.rows:,} rows fail ({recent.failed / recent.rows:.2%})"
    return f"{failed}, and {rule.tolerate:.2%} are tolerated: {rule.words}"


def _freshness(limit_s: float, counts: QualityCounts, now_ns: int, is_sound: bool) -> tuple[QualityState, str]:
    """Return whether the newest row is young enough.

    The time of a row is that of its edge node, which may be wrong; the time of receipt is a hub's. Nothing that was
    taken in is younger than its receipt says, so a late receipt decides alone. A recent one does not: what came may be
    an old backlog, or have a clock that cannot be believed.
    """
    if not is_sound:
        return QualityState.UNKNOWN, "this node's clock cannot be believed"
    if not counts.received:
        return QualityState.UNKNOWN, NOT_YET
    limit_us, now_us = limit_s * 1_000_000, now_ns // 1000
    if (silent := now_us - counts.received) < -AHEAD_US:
        return (
            QualityState.UNKNOWN,
            f"the hub received rows at {moment(counts.received * 1000)}, which is in the future",
        )
    if silent > limit_us:
        return (
            QualityState.ALARM,
            f"no row came for {approximate_duration(silent / 1e6)}; expected one each {format_duration(limit_s)}",
        )
    if now_us - counts.time <= limit_us:
        return QualityState.GOOD, ""
    if now_us - counts.doubtful <= limit_us:
        return QualityState.UNKNOWN, "rows come, from edge nodes whose clocks cannot be believed"
    newest = moment(counts.time * 1000)
    return (
        QualityState.ALARM,
        f"rows come, the newest of them of {newest}; expected one younger than {format_duration(limit_s)}",
    )


# The quality rules of streams for operators: what tables count, rates of the last rows, and alarms.
#
# The counts are in the tables. This process sees them grow, and takes rates of what it saw: after a start, a rate is
# unknown until rows come. An alarm is one line of the log when it begins and one when it ends, and not one for each
# row.

_logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
"""Interval of looks at what is due."""
SLICE_STREAMS = 25
"""Number of streams that are looked at without a pause."""
RULES_MAX = 1000
"""Maximum number of rules in a status, those of streams with alarms first, and of rules with series of their own."""


class Looks:
    """A task that looks at streams every ``INTERVAL_S``.

    Args:
        what: name of the task, and words for the log when a look fails.
    """

    def __init__(self, what: str) -> None:
        self._what, self._task = what, BackgroundTask()

    def start(self) -> None:
        """Start the looks."""
        self._task.start(self._run(), name=self._what)

    async def close(self) -> None:
        """Stop. A commit in progress may still succeed; the next reader of the table sees its outcome."""
        await self._task.close()

    async def look(self) -> None:
        """Look at all streams."""
        raise NotImplementedError

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A bug with one stream must not end what is done for the others.
                _logger.exception("%s failed", self._what)
            await asyncio.sleep(INTERVAL_S)


class QualityWatch(Looks):
    """A watch over the rules of the streams whose tables are this node's to look after.

    What it costs without a declaration is a look at an empty mapping every two seconds.

    Args:
        tables: the table step of this process.
        clock: while it cannot be believed, nothing is known to be fresh.
        quarantine: returns the status of a stream's quarantine.
        monotonic: seconds.
    """

    def __init__(
        self,
        tables: TableService,
        declared: DeclaredQuality,
        schemas: Schemas,
        clock: HubClock,
        quarantine: Callable[[StreamKey], QuarantineOfNode | None] = lambda _: None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables, self._declared, self._schemas = tables, declared, schemas
        self._clock, self._quarantine, self._monotonic = clock, quarantine, monotonic
        self._streams: dict[StreamKey, StreamWatch] = {}
        self._repeats = Repeats()
        super().__init__("the look at quality rules")

    async def look(self) -> None:
        """Look at what the tables count, and log what changed."""
        declared = self._declared.streams
        for gone in self._streams.keys() - declared.keys():
            del self._streams[gone]
        moment = self._monotonic(), self._clock.now(), self._clock.wrong() is None
        for number, (key, quality) in enumerate(declared.items(), 1):
            if self._tables.keeps_beside(key):
                self._look_at(key, quality, *moment)
            else:
                self._streams.pop(key, None)  # another node looks after it
            if number % SLICE_STREAMS == 0:
                await asyncio.sleep(0)

    def _look_at(self, key: StreamKey, quality: StreamQuality, now: float, now_ns: int, is_sound: bool) -> None:
        watch = self._streams.setdefault(key, StreamWatch())
        tierer = self._tables.tierer(key)
        first = None if tierer is None else tierer.quality.first
        if tierer is None or first is None:
            return
        schema, found = self._schemas.of(key), tierer.quality
        events = watch.look(
            quality,
            found.counts,
            first,
            tierer.done,
            found.why_not,
            () if schema is None else schema.schema.fields,
            now,
            now_ns,
            is_sound=is_sound,
        )
        for event in events:
            self._log(key, event)

    def _log(self, key: StreamKey, event: Event) -> None:
        what = "/".join((*key, event.about))
        if event.level < logging.WARNING:
            _logger.log(event.level, "quality of %s/%s: %s", *key, event.text)
            return
        # Logged with a limit: rows may be good and bad by turns.
        count = self._repeats.due(what, self._monotonic())
        if count is not None:
            _logger.log(event.level, "quality of %s/%s: %s%s", *key, event.text, left_out(count))

    def status(self) -> list[QualityOfNode]:
        """Return the status of streams and their quarantines, with a bounded number of rules."""
        keys = sorted(self._streams, key=lambda key: (not self._streams[key].alarms, key))
        left, shown = RULES_MAX, list[StreamKey]()
        for key in keys:
            left -= self._streams[key].rules
            if left < 0:
                break
            shown.append(key)
        found = (self._streams[key].status(*key, self._quarantine(key)) for key in sorted(shown))
        return [each for each in found if each is not None]

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        yield Sample("weft_hub_quality_alarms", sum(watch.alarms for watch in self._streams.values()))
        rules = ((each, rule) for each in self.status() for rule in each.rules)
        for stream, rule in rules:
            labels = (stream.tenant, stream.stream, rule.name)
            if rule.rows is not None and rule.failed is not None:
                yield Sample("weft_hub_quality_rows_total", rule.rows, labels)
                yield Sample("weft_hub_quality_failed_rows_total", rule.failed, labels)
            yield Sample("weft_hub_quality_rule_alarm", rule.state == QualityState.ALARM.value, labels)
            yield Sample("weft_hub_quality_rule_unknown", rule.state == QualityState.UNKNOWN.value, labels)
