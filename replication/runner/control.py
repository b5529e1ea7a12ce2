"""An operator's orders to a running link, and its count of bytes, kept across its connections."""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections.abc import Callable, Mapping

from weft.replication.liveness import SECOND
from weft.replication.policy.budget import BudgetCount
from weft.replication.policy.rules import PolicyRules
from weft.replication.policy.send_policy import SendPolicy
from weft.replication.runner.line_queue import LineQueue
from weft.replication.runner.meter import WireMeter
from weft.replication.status import LinkStatus

log = logging.getLogger(__name__)

SAVES_A_MONTH = 5000
"""Parts of a budget after which its count is saved: a killed node has counted all but one part."""
ALIVE_BYTES = 400
"""Bytes of a PING, its PONG and the marks with it, with all headers: each ``ping_interval``, they keep a link alive."""


def nothing_saved(_is_paused: bool, _counts: Mapping[str, int]) -> None:
    """Save nothing: for links that end with their process."""


class LinkControl:
    """The orders to one link. Event loop's thread only.

    Args:
        is_paused: as the last process left it.
        counts: bytes by month, likewise.
        save: stores both durably. Blocks; raises ``OSError``.
        wall_clock: ns since 1970, as right as the node knows: schedules and months are by it.
        counts_bytes: False for a link that never gets a budget, which saves a handle of each socket.
    """

    def __init__(
        self,
        rules: PolicyRules,
        *,
        wall_clock: Callable[[], int],
        is_paused: bool = False,
        counts: Mapping[str, int] | None = None,
        save: Callable[[bool, Mapping[str, int]], None] = nothing_saved,
        counts_bytes: bool = True,
    ) -> None:
        self.policy = SendPolicy(rules, is_paused=is_paused, count=BudgetCount(counts))
        self.meter = WireMeter(is_on=counts_bytes)
        self._wall_clock = wall_clock
        self._save = save
        self._saved = dict(self.policy.count.counts)
        self._saving = asyncio.Lock()
        self._queue = LineQueue(None)
        self._wake: Callable[[], None] = lambda: None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after each order, in place of the former one."""
        self._wake = wake

    def opened(self, tcp: sockets.socket | None) -> None:
        """Watch the queue before the line of a new connection."""
        self._queue = LineQueue(tcp)

    def adopt(self, rules: PolicyRules) -> None:
        """Go on by other rules, on an open connection too."""
        if self.policy.rules.budget is None:
            self.meter.take()  # bytes from before there was a budget
        self.policy.adopt(rules)
        self._wake()

    async def pause(self, is_paused: bool) -> None:
        """Let data wait, or go on, also after a restart.

        Raises:
            OSError: the order cannot be stored. It counts until the process ends.
        """
        self.policy.is_paused = is_paused
        self.policy.version += 1
        self._wake()
        await self.save()

    def set_ping_interval(self, interval: int) -> None:
        """Set the time between two PINGs, ns: the budget keeps bytes for them."""
        self.policy.alive_rate = ALIVE_BYTES * SECOND / interval

    async def look(self, now: int) -> None:
        """Let the policy know the time (monotonic ns) and the bytes since the last call."""
        self.policy.look(now, self._wall_clock())
        if self.policy.rules.budget is not None:
            await self._count(self.policy.rules.budget.size // SAVES_A_MONTH)
            self.policy.look(now, self._wall_clock())
        self._queue.look(self.policy, now)

    async def _count(self, step: int) -> None:
        self.policy.count.add(self.meter.take())
        await self._keep(step)

    async def _keep(self, step: int) -> None:
        """Save the count if ``step`` bytes were used since the last time."""
        count = self.policy.count
        if count.used - self._saved.get(count.period.name, 0) >= max(1, step):
            try:
                await self.save()
            except OSError as error:
                log.warning("the count of a link's bytes cannot be saved, and a restart will count less: %s", error)
                self._saved = dict(count.counts)

    def sent(self, size: int) -> None:
        """Note that a message of ``size`` bytes was handed to the socket."""
        self.policy.sent(size)

    def attempt_ended(self) -> None:
        """Count the rest of an attempt's bytes, and let its sockets go."""
        rest, self._queue = self.meter.close(), LineQueue(None)
        if self.policy.rules.budget is not None:
            self.policy.look(self.policy.now, self._wall_clock())
            self.policy.count.add(rest)

    async def keep_count(self) -> None:
        """Save the count after attempts, if they took enough: attempts that all fail use bytes, too."""
        if self.policy.rules.budget is not None:
            await self._keep(self.policy.rules.budget.size // SAVES_A_MONTH)

    async def save(self) -> None:
        """Store the orders and the count.

        Raises:
            OSError: they are not stored.
        """
        async with self._saving:
            counts = dict(self.policy.count.counts)
            await asyncio.to_thread(self._save, self.policy.is_paused, counts)
            self._saved = counts

    def describe(self, status: LinkStatus) -> None:
        """Bring what an operator sees up to date."""
        policy, budget = self.policy, self.policy.rules.budget
        status.is_paused, status.hold = policy.is_paused, policy.why_held()
        if budget is None:
            status.budget_bytes = status.budget_used = status.budget_ends = None
        else:
            status.budget_bytes, status.budget_used = budget.size, policy.count.used
            status.budget_ends = policy.count.period.end or None
