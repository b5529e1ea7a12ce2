"""Sizes of the tables of tenants that have a quota of them: at it, tables stand and the log keeps the records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.declared.tenants.quotas import DeclaredQuotas
from weft.cloud_hub.declared.tenants.use import NAMED_MAX
from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.units import format_size
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)
LOOK_S = 60.0
"""Interval of looks. A table may grow beyond the quota by what it gets in this time."""
LISTED_MAX = 50_000
"""Maximum number of objects of one table that count. A table with more is larger than it seems."""


class TenantSizes:
    """The sizes, as listings of the store have them: files that are not vacuumed yet count too, as they cost too.

    Args:
        streams: those that may have tables.
    """

    def __init__(
        self, store: ObjectStore, quotas: DeclaredQuotas, streams: Callable[[], Iterable[StreamKey]],
        interval_s: float = LOOK_S,
    ) -> None:  # fmt: skip
        self._store, self._quotas, self._streams = store, quotas, streams
        self._interval_s = interval_s
        self._sizes: dict[str, int] = {}
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin to look."""
        self._task.start(self._run(), name="tenant-sizes")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    def of(self, tenant: str) -> int | None:
        """Return the bytes of a tenant's tables of all rows; None without a quota, and before the first look."""
        return self._sizes.get(tenant)

    def samples(self) -> Iterator[Sample]:
        """Yield the sizes for Prometheus. At most ``NAMED_MAX`` tenants have quotas of them in the metrics."""
        for tenant, size in islice(sorted(self._sizes.items()), NAMED_MAX):
            yield Sample("weft_hub_tenant_table_bytes", size, (tenant,))

    def held(self, key: StreamKey) -> str | None:
        """Return why a stream's table gets no rows for now; None if it does."""
        quota, size = self._quotas.of(key[0]).table_bytes, self._sizes.get(key[0])
        if quota is None or size is None or size < quota:
            return None
        return (
            f"the tables of tenant {key[0]} have {format_size(size)}, its quota is {format_size(quota)}; the log keeps "
            "the records. Raise it (`weft hub tenant set --table-bytes`), or remove old rows (`weft hub table set`)"
        )

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.say("sizes", asyncio.get_running_loop().time())
                if count is not None:
                    logger.warning("the sizes of tables are not known: %s%s", error, left_out(count))
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Read the sizes.

        Raises:
            StoreError: the store did not answer.
        """
        sizes: dict[str, int] = {}
        for key in list(self._streams()):
            if self._quotas.of(key[0]).table_bytes is not None:
                listed = await self._store.list(table_key(*key), limit=LISTED_MAX)
                sizes[key[0]] = sizes.get(key[0], 0) + sum(each.size for each in listed)
        self._sizes = sizes
