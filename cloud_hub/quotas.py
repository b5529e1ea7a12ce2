"""Quotas of tenants in a hub process: accounts of received records and bytes, and the rates that quotas allow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from weft.bounds import Owner, OwnerKind, Refusals
from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.facts.tenants import DeclaredQuotas, Quotas
from weft.cloud_hub.part import Part
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.units import format_size
from weft.hub_api.status import TenantAtQuota
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import Lane
from weft.protocols.link import THROTTLE, Hello, RefuseCode, Throttled
from weft.replication.runner import LinkRefused
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence import TENANTS_MAX, Intake, NodeEntry

# The rate of one tenant at one hub process: two buckets, of bytes and of records. Monotonic nanoseconds.
#
# A bucket is one number: the time at which everything that came will have been allowed. What comes moves it on by its
# cost. It stays at most a second behind the present, so that a tenant that was idle may send a second's quota at
# once.

SECOND = 1_000_000_000
BURST = SECOND
"""Time whose quota may arrive in one burst, ns."""
WAIT_MAX = 3600 * SECOND
"""Longest time by which a bucket may be ahead, ns. What arrives beyond it no longer counts."""


class Bucket:
    """Token bucket of one quota of a tenant.

    Args:
        per_second: units of the whole tenant; None for no bound.
        share: part of the rate that this process may let in, 0 to 1.
    """

    def __init__(self, per_second: int | None, share: float, now: int) -> None:
        self._rate = _rate(per_second, share)
        self._free_at = now - BURST

    @property
    def rate(self) -> float | None:
        """Return the units a second that this process lets in; None for no bound."""
        return self._rate

    def set(self, per_second: int | None, share: float, now: int) -> None:
        """Continue with another rate. Units that came before and exceed the old rate are paid off at the new one."""
        before, self._rate = self._rate, _rate(per_second, share)
        if before is None or self._rate is None:
            self._free_at = now - BURST
        elif self._free_at > now:
            self._free_at = now + min(int((self._free_at - now) * before / self._rate), WAIT_MAX)

    def take(self, units: int, now: int) -> None:
        """Count received units."""
        if self._rate is not None:
            at = max(self._free_at, now - BURST) + int(units * SECOND / self._rate)
            self._free_at = min(at, now + WAIT_MAX)

    def wait(self, now: int) -> int:
        """Return the time until the rate allows all received units, ns; 0 if it does now."""
        return max(0, self._free_at - now) if self._rate is not None else 0


class TenantRate:
    """The rates of a tenant, in bytes and in records."""

    def __init__(self, now: int) -> None:
        self.bytes = Bucket(None, 1.0, now)
        self.records = Bucket(None, 1.0, now)
        self.is_bound = False
        """True if either rate is bounded."""

    def set(self, bytes_per_second: int | None, records_per_second: int | None, share: float, now: int) -> None:
        """Continue with other quotas, or another share of them."""
        self.bytes.set(bytes_per_second, share, now)
        self.records.set(records_per_second, share, now)
        self.is_bound = self.bytes.rate is not None or self.records.rate is not None

    def take(self, size: int, records: int, now: int) -> None:
        """Count received bytes and records."""
        self.bytes.take(size, now)
        self.records.take(records, now)

    def wait(self, now: int) -> int:
        """Return the time until the tenant may send again, ns."""
        return max(self.bytes.wait(now), self.records.wait(now))

    def link_bytes(self, links: int, record_bytes: float) -> int:
        """Return the bytes a second that each of a number of links can expect, at least 1; 0 without a bound.

        Args:
            record_bytes: mean size of the link's records.
        """
        rates = [self.bytes.rate] if self.bytes.rate is not None else []
        rates += [self.records.rate * max(1.0, record_bytes)] if self.records.rate is not None else []
        return max(1, int(min(rates) / max(1, links))) if rates else 0


def _rate(per_second: int | None, share: float) -> float | None:
    return None if per_second is None else max(per_second * share, 1.0)


# Numbers of lanes and streams of tenants over all shards, for their quotas.
#
# Only tenants with such a quota cost anything, and only when a lane opens that no shard has yet.

COUNT_AGE_S = 5.0
"""Maximum age of counts. A quota may be exceeded by the lanes that other processes open within it."""
TENANTS_AT_ONCE = 100
"""Number of tenants after which a walk over all of them yields to others."""
OPENING_MAX = 100_000
"""Maximum number of open lanes of all tenants that have no record in a shard yet."""


@dataclass
class _Counted:
    at: float
    lanes: int = 0
    streams: set[str] = field(default_factory=set)


class TenantCounts:
    """Counts of the lanes and streams of tenants, for one process.

    Args:
        shards: the shards of the store; None if there are none, so that every quota has room.
        monotonic: seconds.
    """

    def __init__(self, shards: Shards | None, monotonic: Callable[[], float]) -> None:
        self._shards, self._monotonic = shards, monotonic
        self._counted: dict[str, _Counted] = {}
        self._opening: dict[Lane, Sequencer] = {}
        """Open lanes that may have no record and no mark yet."""
        self._counting = asyncio.Lock()

    async def full(self, quotas: Quotas, lane: Lane, sequencer: Sequencer) -> str | None:
        """Count a lane. Return the name of the quota that has no room for it, ``lanes`` or ``streams``; None if it was
        counted. Lanes and streams that exist are never refused."""
        if (quotas.lanes is None and quotas.streams is None) or lane in sequencer.state.lanes or lane in self._opening:
            return None
        counted = await self.count(lane.tenant)
        is_new = lane.stream not in counted.streams
        if quotas.streams is not None and is_new and len(counted.streams) >= quotas.streams:
            return "streams"
        if quotas.lanes is not None and counted.lanes >= quotas.lanes:
            return "lanes"
        counted.lanes += 1
        counted.streams.add(lane.stream)
        if len(self._opening) < OPENING_MAX:
            self._opening[lane] = sequencer
        return None

    def has_stream(self, tenant: str, stream: str) -> bool:
        """Return whether a shard of this process has a stream. A deleted stream is in none."""
        return any(each.loaded and each.state.has_stream(tenant, stream) for each in self._shards or ())

    def closed(self, lane: Lane) -> None:
        """Note that a lane is closed. A lane without a record no longer counts."""
        self._opening.pop(lane, None)

    async def count(self, tenant: str) -> _Counted:
        """Return the numbers of a tenant's lanes and streams, at most ``COUNT_AGE_S`` old. Shards that cannot be read
        count as empty."""
        return (await self.count_all([tenant]))[tenant]

    async def count_all(self, tenants: Collection[str]) -> dict[str, _Counted]:
        """Return the same of many tenants, for whom the opening lanes are looked through once."""
        async with self._counting:
            now = self._monotonic()
            self._counted = {name: each for name, each in self._counted.items() if now - each.at < COUNT_AGE_S}
            if missing := [each for each in tenants if each not in self._counted]:
                self._counted |= await self._read(missing)
            return {each: self._counted[each] for each in tenants}

    async def _read(self, tenants: Sequence[str]) -> dict[str, _Counted]:
        shards, now = self._shards, self._monotonic()
        counted = {each: _Counted(now) for each in tenants}
        if shards is None:
            return counted
        own = shards.own
        loaded = [each for each in (own if len(own) == shards.count else await shards.all()) if each.loaded]
        for at, (tenant, found) in enumerate(counted.items(), 1):
            for each in loaded:
                found.lanes += each.state.lane_count(tenant)
                found.streams.update(each.state.tenant_streams(tenant))
            if at % TENANTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._opening = {lane: each for lane, each in self._opening.items() if lane not in each.state.lanes}
        for lane in self._opening:
            if (opening := counted.get(lane.tenant)) is not None:
                opening.lanes += 1
                opening.streams.add(lane.stream)
        return counted


KNOWN_MAX = 4096
"""Maximum number of tenants without links that have an account of their own."""
STREAMS_MAX = 1000
"""Maximum number of streams of one tenant with an account of their own."""
NAMED_MAX = 100
"""Maximum number of tenants with series of their own in the metrics."""
STREAMS_NAMED_MAX = 500
"""Maximum number of streams with series of their own."""
INTAKE_NS = 90 * SECOND
"""Longest time over which the rate of all links is computed. A process that is alone writes the rate each minute."""
INTAKE_NOTES_MAX = 64
OTHERS = "(other)"
"""Label of all other tenants or streams. No tenant and no stream can have this name."""
USE_LOOK_S = 5.0
"""Interval at which the shares of this process are set."""
ACTIVE_NS = 60 * SECOND
"""Time after its last data for which a link counts towards the share of its process."""
NEW_NS = 30 * SECOND
"""Time after a tenant's first link here during which each process that reports no links counts as having as many."""


_NO_QUOTAS = Quotas()


class SlowedLink(Protocol):
    """A link as its tenant's account needs it (``LinkQuota``)."""

    def is_active(self, now: int) -> bool:
        """Return whether the link sent data lately, or waits to."""
        ...

    def report_again(self, use: TenantUse) -> None:
        """Tell a link that waits how long it waits by other quotas."""
        ...


@dataclass(slots=True)
class StreamUse:
    """Bytes and records of one stream that links brought."""

    bytes: int = 0
    records: int = 0


class TenantUse:
    """The account of one tenant at this process."""

    def __init__(self, name: str, quotas: Quotas, now: int) -> None:
        self.name, self.quotas, self.since = name, quotas, now
        self.rate = TenantRate(now)
        self.edges: Counter[str] = Counter()
        """Linked edges."""
        self.links: dict[SlowedLink, None] = {}
        self.streams: dict[str, StreamUse] = {}
        self.waited_ns = 0
        """Total time for which links were asked to wait, ns."""
        self.refused = 0
        """Number of links and lanes that a quota refused."""
        self.share = 1.0
        """Part of the tenant's rates that this process may let in, 0 to 1."""

    def stream(self, name: str) -> StreamUse:
        """Return the account of a stream."""
        if name not in self.streams and len(self.streams) >= STREAMS_MAX:
            name = OTHERS
        return self.streams.setdefault(name, StreamUse())

    def total(self) -> StreamUse:
        """Return the sums of all streams."""
        every = self.streams.values()
        return StreamUse(sum(each.bytes for each in every), sum(each.records for each in every))

    def active(self, now: int) -> int:
        """Return the number of active links."""
        return sum(link.is_active(now) for link in self.links)

    def set(self, quotas: Quotas, share: float, now: int) -> None:
        """Continue with other quotas, or another share of them."""
        if quotas != self.quotas or share != self.share or not self.rate.is_bound:
            self.quotas, self.share = quotas, share
            self.rate.set(quotas.bytes_per_second, quotas.records_per_second, share, now)


class Tenants(Part):
    """The accounts of all tenants at this process.

    Args:
        counts: numbers of lanes and streams of tenants.
        others: entries of the other processes.
        monotonic: nanoseconds.
        changed: called when the entry of this process should be written soon, since links began or ended.
    """

    def __init__(
        self,
        declared: DeclaredQuotas,
        counts: TenantCounts,
        refusals: Refusals,
        monotonic: Callable[[], int],
        *,
        others: Callable[[], Iterable[NodeEntry]] = tuple,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts, self.refusals, self.monotonic = counts, refusals, monotonic
        self._declared, self._others, self._changed = declared, others, changed
        self.came = StreamUse()
        """Bytes and records that links of all tenants brought, repetitions included."""
        self._noted = deque([(monotonic(), 0, 0)], maxlen=INTAKE_NOTES_MAX)
        """Moments, and the records and bytes received until then."""
        self._of: dict[str, TenantUse] = {}
        self._rest = StreamUse()
        """The account of tenants without one of their own."""
        self._named: dict[str, None] = {}
        """Tenants with series of their own, in the order of their first links."""
        self._named_streams: dict[StreamKey, None] = {}
        """Streams with series of their own, in the order of their first data."""
        self._reported: frozenset[str] = frozenset()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin to set the shares, each ``USE_LOOK_S``."""
        self._task.start(self._run(), name="tenant-shares")

    async def close(self) -> None:
        """Stop it."""
        await self._task.close()

    def __iter__(self) -> Iterator[TenantUse]:
        return iter(self._of.values())

    def of(self, tenant: str) -> TenantUse:
        """Return the account of a tenant; the common one beyond ``KNOWN_MAX``."""
        found = self._of.get(tenant)
        if found is None:
            found = self._of[tenant] = TenantUse(tenant, self._declared.of(tenant), self.monotonic())
            if len(self._named) < NAMED_MAX:
                self._named[tenant] = None
            self._share(found, self.monotonic())
        return found

    def known(self, tenant: str) -> TenantUse | None:
        """Return the account of a tenant that had links here; None for others."""
        return self._of.get(tenant)

    def links(self, tenant: str) -> int:
        """Return the number of a tenant's linked edges at all processes, as far as this one knows."""
        known = self._of.get(tenant)
        elsewhere = sum(entry.tenants.get(tenant, (0, 0))[0] for entry in self._others())
        return elsewhere + (len(known.edges) if known is not None else 0)

    async def at_quota(self) -> list[TenantAtQuota]:
        """Return the tenants with links here that have reached a quota, by name and quota."""
        now, found = self.monotonic(), list[TenantAtQuota]()
        bound = [use for use in sorted(self._of.values(), key=lambda use: use.name) if use.quotas != _NO_QUOTAS]
        of_lanes = [each.name for each in bound if each.quotas.lanes is not None or each.quotas.streams is not None]
        counts = await self.counts.count_all(of_lanes)
        for at, use in enumerate(bound, 1):
            if at % TENANTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            quotas, links = use.quotas, self.links(use.name)
            waits = {"bytes_per_second": use.rate.bytes.wait(now), "records_per_second": use.rate.records.wait(now)}
            found += [
                TenantAtQuota(use.name, name, getattr(quotas, name), wait / SECOND, links)
                for name, wait in waits.items()
                if wait > SLACK_NS
            ]
            has = {"links": links}
            if (counted := counts.get(use.name)) is not None:
                has |= {"lanes": counted.lanes, "streams": len(counted.streams)}
            for name, number in has.items():
                if (limit := getattr(quotas, name)) is not None and number >= limit:
                    found.append(TenantAtQuota(use.name, name, limit, 0.0, links))
        return found

    def entry(self) -> dict[str, tuple[int, int]]:
        """Return linked edges and active links of each tenant with rates or a quota of links, for the entry of this
        process."""
        now = self.monotonic()
        found = [use for use in self._of.values() if use.links and (use.rate.is_bound or use.quotas.links is not None)]
        found.sort(key=lambda use: -len(use.links))
        return {use.name: (len(use.edges), use.active(now)) for use in found[:TENANTS_MAX]}

    def intake(self) -> Intake | None:
        """Return the recent rate of all links, and note the current figures for the next call. None in the first second
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
        """Apply changed quotas, and notify links that wait."""
        now = self.monotonic()
        for use in self._of.values():
            self._share(use, now)
            for link in use.links:
                link.report_again(use)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(USE_LOOK_S)
            self.look()

    def look(self) -> None:
        """Set all shares, and forget tenants without links."""
        now = self.monotonic()
        for use in self._of.values():
            if use.rate.is_bound or use.quotas != self._declared.of(use.name):
                self._share(use, now)
        idle = [use for use in self._of.values() if not use.links] if len(self._of) > KNOWN_MAX else []
        for use in islice(idle, max(0, len(self._of) - KNOWN_MAX)):
            total = use.total()
            self._rest.bytes, self._rest.records = self._rest.bytes + total.bytes, self._rest.records + total.records
            del self._of[use.name]
        entry = frozenset(self.entry())
        if entry != self._reported:
            self._reported = entry
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
        "weft_hub_tenant_bytes_total": total.bytes,
        "weft_hub_tenant_records_total": total.records,
        "weft_hub_tenant_links": links,
        "weft_hub_tenant_throttled_seconds_total": waited_ns / SECOND,
        "weft_hub_tenant_refused_total": refused,
    }
    for metric, value in values.items():
        yield Sample(metric, value, (name,))


# The quotas of tenants at one link: what it brings counts, and at a quota it is slowed, not refused.

SLACK_NS = SECOND // 10
"""Shortest requested wait, ns. Shorter ones add up."""
PAUSE_NS_MAX = 10 * SECOND
"""Longest pause before reading a message of a link that does not know THROTTLED, ns. Its edge disconnects after 30 s
without an acknowledgement."""
ON_ITS_WAY_NS = 5 * SECOND
"""Time after the request to wait during which data may arrive that was sent before it, ns."""
EARLY_BYTES_MAX = 1 << 20
"""Bytes that a link may send before the end of a wait. A link that sends more is read later, as one that does not know
THROTTLED."""
ADVICE = "nothing is lost, and it is tried again. Raise the quota (`weft hub tenant set HUB NAME --{} N`), or use less"


class _Metered(NamedTuple):
    lane: Lane
    tenant: TenantUse
    stream: StreamUse


class LinkQuota:
    """Quotas of one link. Event loop's thread only."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants, self._now = tenants, tenants.monotonic
        self._lanes: dict[int, _Metered] = {}
        self._charged: dict[TenantUse, None] = {}
        """Tenants with a rate to which the current message counts."""
        self._own: tuple[TenantUse, str] | None = None
        self._send: Callable[[Throttled], None] | None = None
        """Sends THROTTLED to an edge that knows the frame."""
        self._sent_at = self._throttled_at = self._throttled_until = 0
        self._bytes = self._records = self._early = 0

    def open(self, hello: Hello, say: Callable[[Throttled], None]) -> None:
        """Count a link. The caller has authenticated its tenant.

        Raises:
            LinkRefused: its tenant's quota of links is used up.
        """
        use = self._tenants.of(hello.tenant)
        quota = use.quotas.links
        if quota is not None and hello.edge not in use.edges and self._tenants.links(hello.tenant) >= quota:
            self._refuse(use, "links", f"tenant {hello.tenant} has {quota} linked edges, its quota")
        self._send = say if THROTTLE in hello.features else None
        self._own = use, hello.edge
        use.edges[hello.edge] += 1
        use.links[self] = None
        self._sent_at = -ACTIVE_NS

    async def check_lane(self, lane: Lane, sequencer: Sequencer) -> None:
        """Count a lane before it is opened.

        Raises:
            LinkRefused: its tenant's quota of lanes or streams is used up. The link's other lanes continue.
        """
        use = self._tenants.of(lane.tenant)
        full = await self._tenants.counts.full(use.quotas, lane, sequencer)
        if full is not None:
            quota = getattr(use.quotas, full)
            self._refuse(use, full, f"tenant {lane.tenant} has {quota} {full}, its quota; {lane.stream} is one more")

    def _refuse(self, use: TenantUse, quota: str, message: str) -> None:
        use.refused += 1
        advice = ADVICE.format(quota)
        self._tenants.refusals.note(f"quota.{quota}", Owner(OwnerKind.TENANT, use.name), advice)
        raise LinkRefused(RefuseCode.OVERLOADED, message, advice)

    def lane_opened(self, number: int, lane: Lane) -> None:
        """Count what arrives on a lane from now on for its tenant and stream."""
        use = self._tenants.of(lane.tenant)
        self._lanes[number] = _Metered(lane, use, use.stream(lane.stream))

    def lane_closed(self, number: int) -> None:
        """Forget a lane."""
        if (known := self._lanes.pop(number, None)) is not None:
            self._tenants.counts.closed(known.lane)

    def data(self, number: int, batches: Sequence[tuple[BatchHeader, memoryview]]) -> None:
        """Count batches of a lane."""
        known = self._lanes.get(number)
        if known is None:
            return
        size = records = 0
        for header, batch in batches:
            size += len(batch)
            records += header.count
        known.stream.bytes += size
        known.stream.records += records
        came = self._tenants.came
        came.bytes, came.records = came.bytes + size, came.records + records
        if known.tenant.rate.is_bound:
            now = self._sent_at = self._now()
            known.tenant.rate.take(size, records, now)
            self._charged[known.tenant] = None
            self._bytes, self._records = self._bytes + size, self._records + records
            if self._throttled_at + ON_ITS_WAY_NS < now < self._throttled_until:
                self._early += size

    @property
    def has_charged(self) -> bool:
        """Return whether a quota counts records of the current message."""
        return bool(self._charged)

    async def room(self) -> None:
        """Slow the link if its message exceeds what a quota allows now: ask the edge to wait, or delay the next
        read."""
        if not self._charged:
            return
        charged, self._charged = self._charged, {}
        now = self._now()
        use = max(charged, key=lambda each: each.rate.wait(now))
        wait = use.rate.wait(now)
        if now >= self._throttled_until:
            self._early = 0
        if wait < SLACK_NS:
            return
        if now >= self._throttled_until:
            self._throttled_at = now
        use.waited_ns += max(0, now + wait - max(now, self._throttled_until))
        self._throttled_until = now + wait
        if self._send is not None:
            self._report(use, wait)
            if self._early <= EARLY_BYTES_MAX:
                return
        await asyncio.sleep(min(wait, PAUSE_NS_MAX) / SECOND)

    def is_active(self, now: int) -> bool:
        """Return whether the link sent data lately, or waits to."""
        return now - self._sent_at < ACTIVE_NS or now < self._throttled_until

    def report_again(self, use: TenantUse) -> None:
        """Tell a link that waits how long it waits by other quotas."""
        now = self._now()
        if self._send is not None and self._throttled_until > now:
            wait = use.rate.wait(now)
            self._throttled_until = now + wait
            self._report(use, wait)

    def _report(self, use: TenantUse, wait: int) -> None:
        if self._send is None:
            return
        if not use.rate.is_bound:
            self._send(Throttled(0, 0, ""))
            return
        mean = self._bytes / self._records if self._records else 0.0
        expected = use.rate.link_bytes(use.active(self._now()), mean)
        self._send(Throttled(min(wait, WAIT_MAX), expected, _reason(use)))

    def close(self) -> None:
        """Forget the link."""
        for number in list(self._lanes):
            self.lane_closed(number)
        if self._own is None:
            return
        (use, edge), self._own = self._own, None
        use.links.pop(self, None)
        use.edges[edge] -= 1
        if not use.edges[edge]:
            del use.edges[edge]


def _reason(use: TenantUse) -> str:
    rates = [] if use.quotas.bytes_per_second is None else [format_size(use.quotas.bytes_per_second)]
    rates += [] if use.quotas.records_per_second is None else [f"{use.quotas.records_per_second} records"]
    return f"tenant {use.name} has {' and '.join(rates)} a second"


def unbound() -> LinkQuota:
    """Return the quotas of a link at a hub that has none."""
    counts = TenantCounts(None, time.monotonic)
    return LinkQuota(Tenants(DeclaredQuotas(), counts, Refusals(time.monotonic), time.monotonic_ns))


# Sizes of the tables of tenants that have a quota of them: at it, tables stand and the log keeps the records.

logger = logging.getLogger(__name__)
SIZES_LOOK_S = 60.0
"""Interval at which sizes are read. A table may exceed the quota by what it gets in this time."""
LISTED_MAX = 50_000
"""Maximum number of objects of one table that are counted. The size of a table with more is underestimated."""


class TenantSizes:
    """Sizes of the tables of tenants with such a quota, from listings of the store. Replaced files count until they are
    vacuumed, since they cost storage."""

    def __init__(self, store: ObjectStore, quotas: DeclaredQuotas, interval_s: float = SIZES_LOOK_S) -> None:
        self._store, self._quotas = store, quotas
        self._interval_s = interval_s
        self._sizes: dict[str, int] = {}
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self, streams: Callable[[], Iterable[StreamKey]]) -> None:
        """Begin to read sizes in the background.

        Args:
            streams: returns the streams that may have tables.
        """
        self._task.start(self._run(streams), name="tenant-sizes")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    def of(self, tenant: str) -> int | None:
        """Return the bytes of a tenant's tables of all rows; None without a quota, and before the first read."""
        return self._sizes.get(tenant)

    def samples(self) -> Iterator[Sample]:
        """Yield the sizes for Prometheus, of at most ``NAMED_MAX`` tenants."""
        for tenant, size in islice(sorted(self._sizes.items()), NAMED_MAX):
            yield Sample("weft_hub_tenant_table_bytes", size, (tenant,))

    def held(self, key: StreamKey) -> str | None:
        """Return why a stream's table gets no rows at present; None if it does."""
        quota, size = self._quotas.of(key[0]).table_bytes, self._sizes.get(key[0])
        if quota is None or size is None or size < quota:
            return None
        return (
            f"the tables of tenant {key[0]} have {format_size(size)}, its quota is {format_size(quota)}; the log keeps "
            "the records. Raise it (`weft hub tenant set HUB NAME --table-bytes SIZE`), or remove old rows "
            "(`weft hub table set`)"
        )

    async def _run(self, streams: Callable[[], Iterable[StreamKey]]) -> None:
        while True:
            try:
                await self.look(list(streams()))
            except StoreError as error:
                count = self._repeats.due("sizes", asyncio.get_running_loop().time())
                if count is not None:
                    logger.warning("the sizes of tables are not known: %s%s", error, left_out(count))
            await asyncio.sleep(self._interval_s)

    async def look(self, streams: Iterable[StreamKey]) -> None:
        """Read the sizes of the tables of some streams.

        Raises:
            StoreError: the store did not answer.
        """
        sizes: dict[str, int] = {}
        for key in streams:
            if self._quotas.of(key[0]).table_bytes is not None:
                listed = await self._store.list(table_key(*key), limit=LISTED_MAX)
                sizes[key[0]] = sizes.get(key[0], 0) + sum(each.size for each in listed)
        self._sizes = sizes
