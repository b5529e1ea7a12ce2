"""The quality rules of streams for operators: what tables count, rates of the last rows, and alarms.

The counts are in the tables. This process sees them grow, and takes rates of what it saw: after a start, a rate is
unknown until rows come. An alarm is one line of the log when it begins and one when it ends, and not one for each row.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.tables.quality_states import Event, QualityState, StreamQualityStatus, StreamWatch
from weft.cloud_hub.tables.quarantine_work import QuarantineStatus
from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.table.quality.declared import DeclaredQuality, StreamQuality
from weft.storage.table.schemas import Schemas
from weft.storage.table_maker.service import TableService

_logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
SLICE_STREAMS = 25
"""Number of streams that are looked at without a pause."""
RULES_MAX = 1000
"""Maximum number of rules in a status, those of streams with alarms first, and of rules with series of their own."""


class QualityWatch:
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
        quarantine: Callable[[StreamKey], QuarantineStatus | None] = lambda _: None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables, self._declared, self._schemas = tables, declared, schemas
        self._clock, self._quarantine, self._monotonic = clock, quarantine, monotonic
        self._streams: dict[StreamKey, StreamWatch] = {}
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start the looks."""
        self._task.start(self._run(), name="quality-watch")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A bug with one stream must not end the others' alarms.
                _logger.exception("the look at quality rules failed")
            await asyncio.sleep(INTERVAL_S)

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
            quality, found.counts, first, tierer.done, found.why_not,
            () if schema is None else schema.schema.fields, now, now_ns, is_sound=is_sound,
        )  # fmt: skip
        for event in events:
            self._say(key, event)

    def _say(self, key: StreamKey, event: Event) -> None:
        what = "/".join((*key, event.about))
        if event.level < logging.WARNING:
            _logger.log(event.level, "quality of %s/%s: %s", *key, event.text)
            return
        # Logged with a limit: rows may be good and bad by turns.
        count = self._repeats.say(what, self._monotonic())
        if count is not None:
            _logger.log(event.level, "quality of %s/%s: %s%s", *key, event.text, left_out(count))

    def status(self) -> list[StreamQualityStatus]:
        """Return the status of streams, with a bounded number of rules."""
        keys = sorted(self._streams, key=lambda key: (not self._streams[key].alarms, key))
        left, shown = RULES_MAX, list[StreamKey]()
        for key in keys:
            left -= self._streams[key].rules
            if left < 0:
                break
            shown.append(key)
        found = (self._streams[key].status(*key) for key in sorted(shown))
        return [each for each in found if each is not None]

    def views(self) -> list[dict[str, Any]]:
        """Return the same for the API, with the quarantines."""
        return [
            {**msgspec.to_builtins(each), "quarantine": msgspec.to_builtins(self._quarantine(_key(each)))}
            for each in self.status()
        ]

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        yield Sample("weft_hub_quality_alarms", sum(watch.alarms for watch in self._streams.values()))
        rules = ((each, rule) for each in self.status() for rule in each.rules)
        for stream, rule in rules:
            labels = (stream.tenant, stream.stream, rule.name)
            if rule.rows is not None and rule.failed is not None:
                yield Sample("weft_hub_quality_rows_total", rule.rows, labels)
                yield Sample("weft_hub_quality_failed_rows_total", rule.failed, labels)
            yield Sample("weft_hub_quality_rule_alarm", rule.state == QualityState.ALARM, labels)
            yield Sample("weft_hub_quality_rule_unknown", rule.state == QualityState.UNKNOWN, labels)


def _key(status: StreamQualityStatus) -> StreamKey:
    return status.tenant, status.stream
