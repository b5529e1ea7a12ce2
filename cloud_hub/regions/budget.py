"""The monthly budget of the links to a region, which all processes of all hosts of a hub use together.

What the hub may still send is counted in one object of the store. A process takes a part of the budget there before its
links use it, and takes the next part when half of the last one is used: a link's batches cost the store nothing. What a
killed process had taken counts as used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.settings import RegionSettings
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import moment_of
from weft.hub_api.regions import BudgetOfRegion
from weft.replication.liveness import SECOND
from weft.replication.policy import PERIODS_MAX, BudgetCount, BudgetRule, period_of, reserve
from weft.replication.runner.control import ALIVE_BYTES
from weft.storage import hub_keys
from weft.storage.object_store import NotFound, ObjectStore, StoreError, replace

_logger = logging.getLogger(__name__)

# A part is taken before its use. Bytes that are written after their use are lost by a kill, or cost many writes.
PARTS = 1000
"""Parts of a budget of which a process takes one at a time."""
FIRST_PARTS = 16
"""Parts of such a part of which a process takes one at first, and then twice as much each time: a hub that is killed
over and over must not use up the budget by what it had taken."""
LOOK_S = 60.0
"""Interval of looks at the count while the process takes nothing, and while nothing is left."""
RETRY_S = 5.0
"""Wait after the store failed."""
ATTEMPTS = 10
"""Attempts of a change while other processes change the count."""


class BudgetUse(msgspec.Struct, frozen=True):
    """The object."""

    taken: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    """First day of a month -> bytes that processes have taken, and not given back."""

    def of(self, month: str) -> int:
        """Return the bytes of a month."""
        return self.taken.get(month, 0)


_NOTHING = BudgetUse({})


async def read_use(store: ObjectStore, name: str) -> tuple[BudgetUse, str | None]:
    """Return the count of a region with the object's etag; nothing is counted without an object.

    Raises:
        StoreError: the store does not answer, or the object cannot be read: its bytes must not count as none.
    """
    key = hub_keys.region_budget_key(name)
    try:
        found = await store.get(key)
    except NotFound:
        return _NOTHING, None
    try:
        return msgspec.json.decode(found.data, type=BudgetUse), found.etag
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{key} cannot be read ({error}), so what the links have used is unknown. Delete the object: "
            "the count begins at 0"
        ) from None


def kept_back(settings: RegionSettings, end: int, wall: int, links: int) -> int:
    """Return the bytes of a region's budget that keep its links alive until ``end`` (ns since 1970)."""
    assert settings.budget is not None, "the caller has seen it"
    rate = links * ALIVE_BYTES * SECOND / settings.link.sender.ping_interval
    return reserve(settings.budget, end, wall, rate)


class RegionBudget(BudgetCount):
    """The part of one process in the budget of one region. Event loop's thread only.

    The object in the store is never behind what links of living and killed processes have used, but for what each had
    sent beyond its part: a message of 256 KiB, or a longer batch, and what buffers of the connection held, for each
    link, and the bytes of a minute by which idle links stay alive.

    Args:
        links: returns the number of the region's links, those of all processes.
        wall_clock: nanoseconds since 1970.
        holds: False for links that do not wait for the budget, and only count.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        settings: RegionSettings,
        *,
        links: Callable[[], int],
        wall_clock: Callable[[], int],
        holds: bool = True,
    ) -> None:
        super().__init__()
        assert settings.budget is not None, "the caller has seen it"
        self.name, self.rule = name, settings.budget
        self.version = 0
        """Raised when links that waited may continue."""
        self._store, self._settings, self._links, self._holds = store, settings, links, holds
        self._wall_clock = wall_clock
        self._part_max = max(1, self.rule.size // PARTS)
        self._part = max(1, self._part_max // FIRST_PARTS)
        """Bytes to take next."""
        self._taken: dict[str, int] = {}
        """First day of a month -> bytes that this process has taken."""
        self._known: int | None = None
        """Bytes of the month as the store had them last; None before the first look in this month."""
        self._known_of = ""
        self._is_asked = False
        """True since a link has looked, until the next part is taken."""
        self._used_up = ""
        """Month of which nothing is left."""
        self._trouble = ""
        self._repeats = Repeats()
        self._wanted = asyncio.Event()
        self._task = BackgroundTask()

    # -- the links' side

    def is_spent(self, rule: BudgetRule, wall: int, rate: float) -> bool:  # noqa: ARG002
        """Return whether data has to wait at ``wall``: this process has used what it took."""
        left, self._is_asked = self._left, True
        if left < self._low or self._known_of != self.period.name:
            self._wanted.set()
        return self._holds and left <= 0

    @property
    def _is_used_up(self) -> bool:
        return bool(self._used_up) and self._used_up == self.period.name

    @property
    def _low(self) -> int:
        """Return the bytes below which the next part is taken: half of the last one."""
        return max(1, self._part // 4)

    @property
    def _left(self) -> int:
        """Return the bytes that this process may still use; negative if it used more than it took."""
        return self._taken.get(self.period.name, 0) - self.counts.get(self.period.name, 0)

    @property
    def used(self) -> int:
        """Return the bytes of this month of all processes, as far as this one knows."""
        known = self._known if self._known_of == self.period.name and self._known is not None else 0
        return max(known - max(0, self._left), self.counts.get(self.period.name, 0))

    def why_spent(self, rule: BudgetRule) -> str:
        """Return a sentence for people about data that waits, and until when."""
        if self._is_used_up:
            return super().why_spent(rule)
        if self._trouble:
            return f"data waits, since the count of the month's budget cannot be changed: {self._trouble}"
        return "data waits a moment for the count of the month's budget in the store"

    # -- the store's side

    def start(self) -> None:
        """Begin to take parts when links want them."""
        self._task.start(self._run(), name=f"budget-{self.name}")

    async def close(self) -> None:
        """Give back what the process has taken and not used. Its links have to be closed."""
        if await self._task.close():
            with contextlib.suppress(StoreError):  # it then counts as used
                await self.settle()

    async def settle(self) -> None:
        """Bring the store's count to what this process has used.

        Raises:
            StoreError: the store did not answer.
        """
        await self._change(lambda _: -self._left)

    async def _run(self) -> None:
        while True:
            self.look(self.rule, self._wall_clock())
            self._wanted.clear()
            try:
                await self._change(self._more)
            except StoreError as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            self._note("")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await (self._next_month() if self._is_used_up else self._wanted.wait())

    async def _next_month(self) -> None:
        month = self.period.name
        while self.period.name == month:
            self._wanted.clear()
            await self._wanted.wait()

    def _more(self, known: int) -> int:
        """Return the bytes to take, where ``known`` were taken by all: what was used beyond them, and the next part."""
        over, wall = max(0, -self._left), self._wall_clock()
        room = self.rule.size - kept_back(self._settings, self.period.end, wall, self._links()) - known - over
        self._used_up = self.period.name if room <= 0 and self._left <= 0 else ""
        is_asked, self._is_asked = self._is_asked, False
        if not is_asked or self._left >= self._low:
            return over
        return over + min(self._part, max(0, room))

    async def _change(self, more: Callable[[int], int]) -> None:
        """Change the store's count of the month by what ``more`` returns for it."""
        for _ in range(ATTEMPTS):
            month = self.period.name
            use, etag = await read_use(self._store, self.name)
            self._known, self._known_of = use.of(month), month
            change = more(self._known)
            if not change:
                return
            months = {**use.taken, month: max(0, use.of(month) + change)}
            for name in sorted(months)[:-PERIODS_MAX]:
                del months[name]
            key, data = hub_keys.region_budget_key(self.name), msgspec.json.encode(BudgetUse(months))
            if await replace(self._store, key, data, etag) is None:
                continue
            self._known = months.get(month, 0)
            self._taken[month] = self._taken.get(month, 0) + change
            for name in list(self._taken)[:-PERIODS_MAX]:
                del self._taken[name]
            if change > 0:
                self._part = min(self._part * 2, self._part_max)
            self.version += 1
            return

    def _note(self, trouble: str) -> None:
        self._trouble = trouble
        if not trouble:
            self._repeats.clear()
        elif (count := self._repeats.due(trouble, self._wall_clock() / 1e9)) is not None:
            _logger.warning("the budget of region %s: %s%s", self.name, trouble, left_out(count))

    def samples(self) -> list[Sample]:
        """Return the figures for Prometheus; none before the store's count is known."""
        if self._known is None:
            return []
        labels = (self.name,)
        return [
            Sample("weft_hub_region_budget_bytes", self.rule.size, labels),
            Sample("weft_hub_region_budget_used_bytes", self.used, labels),
            Sample("weft_hub_region_budget_used_up", int(self._is_used_up), labels),
        ]


# What people see of it.


async def budget_views(
    store: ObjectStore, regions: Mapping[str, RegionSettings], links: int, now: int
) -> dict[str, BudgetOfRegion | None]:
    """Return the budget of each region, as it is counted in the store; None for one without.

    Args:
        links: number of the links to one region.
        now: nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    return {name: await _view(store, name, settings, links, now) for name, settings in sorted(regions.items())}


async def _view(store: ObjectStore, name: str, settings: RegionSettings, links: int, now: int) -> BudgetOfRegion | None:
    if settings.budget is None:
        return None
    month = period_of(settings.budget, now)
    use, _ = await read_use(store, name)
    used, kept = use.of(month.name), kept_back(settings, month.end, now, links)
    return BudgetOfRegion(
        bytes=settings.budget.size,
        used_bytes=used,
        kept_bytes=kept,
        used_up=used >= settings.budget.size - kept,
        ends=moment_of(month.end),
    )
