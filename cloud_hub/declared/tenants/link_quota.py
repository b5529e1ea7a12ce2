"""The quotas of tenants at one link: what it brings counts, and at a quota it is slowed, not refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.declared.tenants.counts import TenantCounts
from weft.cloud_hub.declared.tenants.quotas import DeclaredQuotas
from weft.cloud_hub.declared.tenants.rates import SECOND, WAIT_MAX
from weft.cloud_hub.declared.tenants.use import ACTIVE_NS, StreamUse, Tenants, TenantUse
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.units import format_size
from weft.protocols.batch import BatchHeader
from weft.protocols.lane import Lane
from weft.protocols.link import Hello, RefuseCode
from weft.protocols.link.throttle import THROTTLE, Throttled
from weft.replication.runner import LinkRefused

SLACK_NS = SECOND // 10
"""Shortest wait that is asked for. Shorter ones add up."""
PAUSE_NS_MAX = 10 * SECOND
"""Longest pause before a message of a link that does not know THROTTLED: its edge leaves after 30 s without an
acknowledgement of data that it sent."""
ON_ITS_WAY_NS = 5 * SECOND
"""Time after the request to wait in which data comes that was sent before it."""
EARLY_BYTES_MAX = 1 << 20
"""Bytes that a link may send before the end of a wait. One that sends more is read later, as one that is not asked."""
ADVICE = "nothing is lost, and it is tried again. Raise the quota (`weft hub tenant set --{}`), or use less"


class _Metered(NamedTuple):
    lane: Lane
    tenant: TenantUse
    stream: StreamUse


class LinkQuota:
    """The part of one link. Event loop's thread only."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants, self._now = tenants, tenants.monotonic
        self._lanes: dict[int, _Metered] = {}
        self._charged: dict[TenantUse, None] = {}
        """Tenants with a rate that the present message counts for."""
        self._own: tuple[TenantUse, str] | None = None
        self._say: Callable[[Throttled], None] | None = None
        """Tells an edge that knows the frame."""
        self._sent_at = self._told_at = self._told_until = 0
        self._bytes = self._records = self._early = 0

    def open(self, hello: Hello, say: Callable[[Throttled], None]) -> None:
        """Count a link whose tenant was checked.

        Raises:
            LinkRefused: its tenant has as many as it may have.
        """
        use = self._tenants.of(hello.tenant)
        quota = use.quotas.links
        if quota is not None and hello.edge not in use.edges and self._tenants.links(hello.tenant) >= quota:
            self._refuse(use, "links", f"tenant {hello.tenant} has {quota} linked edges, its quota")
        self._say = say if THROTTLE in hello.features else None
        self._own = use, hello.edge
        use.edges[hello.edge] += 1
        use.links[self] = None
        self._sent_at = -ACTIVE_NS

    async def check_lane(self, lane: Lane, sequencer: Sequencer) -> None:
        """Count a lane that is going to be opened.

        Raises:
            LinkRefused: its tenant has as many lanes or streams as it may have. The link's other lanes go on.
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
        """Count what comes on a lane for its tenant and stream."""
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
        size, records = sum(len(batch) for _, batch in batches), sum(header.count for header, _ in batches)
        known.stream.bytes += size
        known.stream.records += records
        came = self._tenants.came
        came.bytes, came.records = came.bytes + size, came.records + records
        if known.tenant.rate.is_bound:
            now = self._sent_at = self._now()
            known.tenant.rate.take(size, records, now)
            self._charged[known.tenant] = None
            self._bytes, self._records = self._bytes + size, self._records + records
            if self._told_at + ON_ITS_WAY_NS < now < self._told_until:
                self._early += size

    async def room(self) -> None:
        """Slow the link if its message was more than a quota allows by now: ask the edge to wait, or read later."""
        if not self._charged:
            return
        charged, self._charged = self._charged, {}
        now = self._now()
        use = max(charged, key=lambda each: each.rate.wait(now))
        wait = use.rate.wait(now)
        if now >= self._told_until:
            self._early = 0
        if wait < SLACK_NS:
            return
        if now >= self._told_until:
            self._told_at = now
        use.waited_ns += max(0, now + wait - max(now, self._told_until))
        self._told_until = now + wait
        if self._say is not None:
            self._tell(use, wait)
            if self._early <= EARLY_BYTES_MAX:
                return
        await asyncio.sleep(min(wait, PAUSE_NS_MAX) / SECOND)

    def is_active(self, now: int) -> bool:
        """Return whether the link sent data lately, or waits to."""
        return now - self._sent_at < ACTIVE_NS or now < self._told_until

    def tell_again(self, use: TenantUse) -> None:
        """Tell a link that waits how long it waits by other quotas."""
        now = self._now()
        if self._say is not None and self._told_until > now:
            wait = use.rate.wait(now)
            self._told_until = now + wait
            self._tell(use, wait)

    def _tell(self, use: TenantUse, wait: int) -> None:
        if self._say is None:
            return
        if not use.rate.is_bound:
            self._say(Throttled(0, 0, ""))
            return
        mean = self._bytes / self._records if self._records else 0.0
        expected = use.rate.link_bytes(use.active(self._now()), mean)
        self._say(Throttled(min(wait, WAIT_MAX), expected, _reason(use)))

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
    """Return the part of a link at a hub that knows no quotas."""
    counts = TenantCounts(lambda: None, time.monotonic)
    return LinkQuota(Tenants(DeclaredQuotas(), counts, Refusals(time.monotonic), time.monotonic_ns))
