"""The check, before every acknowledgement, that the collector has not passed this node.

A paused node can create a chunk number again that was collected meanwhile, and would then acknowledge lost records. In
a simulation 176 of 200 seeds lost acknowledged data without this check, 0 of 1,500 with it. It is step 4 of "The commit
at the hub" in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.storage.chunk_log import ShardLog

_NS = 1_000_000_000


class WatermarkGuard:
    """A copy of the manifest's watermark that is never older than its validity.

    Args:
        boot_clock: nanoseconds on a clock that counts suspend (CLOCK_BOOTTIME). With a clock that stops while the
            machine sleeps, an old copy would count as fresh.
        validity_s: V of docs/architecture.md.
    """

    def __init__(self, log: ShardLog, boot_clock: Callable[[], int], validity_s: float) -> None:
        self._log = log
        self._boot_clock = boot_clock
        self._validity = int(validity_s * _NS)
        self._looked_at: int | None = None
        self._watermark = 0

    async def passed(self, n: int) -> bool:
        """Return whether chunks that follow n may have been collected; if so, the state at n must be loaded again.

        The answer is valid until the caller's next await.

        Raises:
            StoreError: the manifest cannot be read. Nothing may be acknowledged.
            Corrupt: it does not decode.
        """
        while self._looked_at is None or self._boot_clock() - self._looked_at > self._validity:
            # The age counts from before the read: the node may be paused while the answer is in flight.
            looked_at = self._boot_clock()
            manifest, _ = await self._log.manifest()
            self._looked_at, self._watermark = looked_at, manifest.watermark
        return self._watermark > max(n, 0)
