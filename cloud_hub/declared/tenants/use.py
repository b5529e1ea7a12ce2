"""The use of a hub process by tenants: an account of what came, and the pace that their quotas allow."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from weft.bounds import Refusals
from weft.bounds.background import BackgroundTask
from weft.cloud_hub.declared.documents import Quotas
from weft.cloud_hub.declared.tenants.counts import TenantCounts
from weft.cloud_hub.declared.tenants.quotas import DeclaredQuotas
from weft.cloud_hub.declared.tenants.rates import SECOND, TenantRate
from weft.config.metrics.exposition import Sample
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.presence.nodes import TENANTS_MAX, Intake, NodeEntry

KNOWN_MAX = 4096
"""Maximum number of tenants with an account of their own, beside those that have links."""
STREAMS_MAX = 1000
"""Maximum number of streams of one tenant with an account of their own."""
NAMED_MAX = 100
"""Maximum number of tenants with series of their own in the metrics."""
STREAMS_NAMED_MAX = 500
"""Maximum number of streams with series of their own."""
INTAKE_NS = 90 * SECOND
"""Longest time over which the rate of all that comes is computed. A process that is alone writes it each minute."""
INTAKE_NOTES_MAX = 64
OTHERS = "(other)"
"""Name of all others. No tenant and no stream can have it."""
LOOK_S = 5.0
"""Interval at which the share of this process is set."""
ACTIVE_NS = 60 * SECOND
"""Time after its last data for which a link counts for the share of its process."""
NEW_NS = 30 * SECOND
"""Time after a tenant's first link here for which each other process counts as having as many, if it names none."""


class SlowedLink(Protocol):
    """One link (``link_quota.LinkQuota``, which knows its tenant)."""

    def is_active(self, now: int) -> bool:
        """Return whether the link sent data lately, or waits to."""
        ...

    def tell_again(self, use: TenantUse) -> None:
        """Tell a link that waits how long it waits by other quotas."""
        ...


@dataclass(slots=True)
class StreamUse:
    """The account of one stream: bytes and records that links brought."""

    bytes: int = 0
    records: int = 0


class TenantUse:
    """One tenant at this process."""

    def __init__(self, name: str, quotas: Quotas, now: int) -> None:
        self.name, self.quotas, self.since = name, quotas, now
        self.rate = TenantRate(now)
        self.edges: Counter[str] = Counter()
        """Linked edges."""
        self.links: dict[SlowedLink, None] = {}
        self.streams: dict[str, StreamUse] = {}
        self.waited_ns = 0
        """Time for which links were asked to wait."""
        self.refused = 0
        """Links and lanes that a quota refused."""
        self.share = 1.0
        """Part of the tenant's rates that this process lets in."""

    def stream(self, name: str) -> StreamUse:
        """Return the account of a stream."""
        if name not in self.streams and len(self.streams) >= STREAMS_MAX:
            name = OTHERS
        return self.streams.setdefault(name, StreamUse())

    def total(self) -> StreamUse:
        """Return what came of all streams."""
        every = self.streams.values()
        return StreamUse(sum(each.bytes for each in every), sum(each.records for each in every))

    def active(self, now: int) -> int:
        """Return the number of links that sent data lately, or wait to."""
        return sum(link.is_active(now) for link in self.links)

    def set(self, quotas: Quotas, share: float, now: int) -> None:
        """Go on with other quotas, or another share of them."""
        if quotas != self.quotas or share != self.share or not self.rate.is_bound:
            self.quotas, self.share = quotas, share
            self.rate.set(quotas.bytes_per_second, quotas.records_per_second, share, now)


class Tenants:
    """All tenants at this process.

    Args:
        counts: lanes and streams of tenants.
        others: entries of the other processes.
        monotonic: nanoseconds.
        changed: called when others should soon know of other links than before.
    """

    def __init__(
        self, declared: DeclaredQuotas, counts: TenantCounts, refusals: Refusals, monotonic: Callable[[], int], *,
        others: Callable[[], Iterable[NodeEntry]] = tuple, changed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.counts, self.refusals, self.monotonic = counts, refusals, monotonic
        self._declared, self._others, self._changed = declared, others, changed
        self.came = StreamUse()
        """Bytes and records that links of all tenants brought, repetitions included."""
        self._noted = deque([(monotonic(), 0, 0)], maxlen=INTAKE_NOTES_MAX)
        """Moments, and the records and bytes that had come by then."""
        self._of: dict[str, TenantUse] = {}
        self._rest = StreamUse()
        """The account of tenants without one of their own."""
        self._named: dict[str, None] = {}
        """Tenants with series of their own, in the order of their first links."""
        self._named_streams: dict[StreamKey, None] = {}
        """Streams with series of their own, in the order of their first data."""
        self._told: frozenset[str] = frozenset()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin to set the shares."""
        self._task.start(self._run(), name="tenant-shares")

    async def close(self) -> None:
        """Stop it."""
        await self._task.close()

    def __iter__(self) -> Iterator[TenantUse]:
        return iter(self._of.values())

    def of(self, tenant: str) -> TenantUse:
        """Return the use of a tenant."""
        found = self._of.get(tenant)
        if found is None:
            found = self._of[tenant] = TenantUse(tenant, self._declared.of(tenant), self.monotonic())
            if len(self._named) < NAMED_MAX:
                self._named[tenant] = None
            self._share(found, self.monotonic())
        return found

    def known(self, tenant: str) -> TenantUse | None:
        """Return the use of a tenant that had links here; None for others."""
        return self._of.get(tenant)

    def links(self, tenant: str) -> int:
        """Return the number of a tenant's linked edges, at all processes as far as this one knows."""
        known = self._of.get(tenant)
        elsewhere = sum(entry.tenants.get(tenant, (0, 0))[0] for entry in self._others())
        return elsewhere + (len(known.edges) if known is not None else 0)

    def entry(self) -> dict[str, tuple[int, int]]:
        """Return the tenants with rates or a quota of links, for the entry of this process: linked edges, and links
        that send."""
        now = self.monotonic()
        found = [use for use in self._of.values() if use.links and (use.rate.is_bound or use.quotas.links is not None)]
        found.sort(key=lambda use: -len(use.links))
        return {use.name: (len(use.edges), use.active(now)) for use in found[:TENANTS_MAX]}

    def intake(self) -> Intake | None:
        """Return the rate of all that came lately, and note the present figures for the next one; None for a second
        after the start."""
        now, came = self.monotonic(), self.came
        while len(self._noted) > 1 and self._noted[0][0] < now - INTAKE_NS:
            self._noted.popleft()
        then, records, size = self._noted[0]
        seconds = (now - then) / SECOND
        self._noted.append((now, came.records, came.bytes))
        if seconds < 1:
            return None
        return Intake((came.records - records) / seconds, (came.bytes - size) / seconds, seconds)

    def limited(self) -> None:
        """Take up other quotas, and tell links that wait."""
        now = self.monotonic()
        for use in self._of.values():
            self._share(use, now)
            for link in use.links:
                link.tell_again(use)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Set all shares, and forget tenants that left."""
        now = self.monotonic()
        for use in self._of.values():
            if use.rate.is_bound or use.quotas != self._declared.of(use.name):
                self._share(use, now)
        idle = [use for use in self._of.values() if not use.links] if len(self._of) > KNOWN_MAX else []
        for use in islice(idle, max(0, len(self._of) - KNOWN_MAX)):
            total = use.total()
            self._rest.bytes, self._rest.records = self._rest.bytes + total.bytes, self._rest.records + total.records
            del self._of[use.name]
        told = frozenset(self.entry())
        if told != self._told:
            self._told = told
            self._changed()

    def _share(self, use: TenantUse, now: int) -> None:
        own, weights = max(1, use.active(now)), 0
        for entry in self._others():
            known = entry.tenants.get(use.name)
            weights += known[1] if known is not None else own if now - use.since < NEW_NS else 0
        use.set(self._declared.of(use.name), own / (own + weights), now)

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        rest, links, waited, refused = StreamUse(self._rest.bytes, self._rest.records), 0, 0, 0
        for use in self._of.values():
            total = use.total()
            if use.name in self._named:
                yield from _samples(use.name, total, len(use.links), use.waited_ns, use.refused)
            else:
                rest.bytes, rest.records = rest.bytes + total.bytes, rest.records + total.records
                links, waited, refused = links + len(use.links), waited + use.waited_ns, refused + use.refused
        if len(self._of) > len(self._named) or self._rest.records:
            yield from _samples(OTHERS, rest, links, waited, refused)
        yield from self._streams()

    def _streams(self) -> Iterator[Sample]:
        rest = self._rest.bytes
        for use in self._of.values():
            for stream, came in use.streams.items():
                key = use.name, stream
                if stream != OTHERS and not self.counts.has_stream(*key):  # it was deleted, or its shards moved
                    continue
                if key not in self._named_streams and len(self._named_streams) < STREAMS_NAMED_MAX:
                    self._named_streams[key] = None
                if key in self._named_streams:
                    yield Sample("weft_hub_stream_received_bytes_total", came.bytes, key)
                else:
                    rest += came.bytes
        if rest:
            yield Sample("weft_hub_stream_received_bytes_total", rest, (OTHERS, OTHERS))


def _samples(name: str, total: StreamUse, links: int, waited_ns: int, refused: int) -> Iterator[Sample]:
    values: Mapping[str, float] = {
        "weft_hub_tenant_bytes_total": total.bytes, "weft_hub_tenant_records_total": total.records,
        "weft_hub_tenant_links": links, "weft_hub_tenant_throttled_seconds_total": waited_ns / SECOND,
        "weft_hub_tenant_refused_total": refused,
    }  # fmt: skip
    for metric, value in values.items():
        yield Sample(metric, value, (name,))
