"""Configurations of edges in one hub process, put together."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterable, Sequence

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.declared.changes import Decision
from weft.cloud_hub.declared.declarations import Declarations
from weft.cloud_hub.desired.links import ConfiguredLink, LinkConfigs
from weft.cloud_hub.desired.rollouts import Rollouts
from weft.cloud_hub.desired.states import ConfigStates, StatesReader
from weft.protocols.lane import NodeName
from weft.storage.cluster_log.log import Author, ClusterLog
from weft.storage.object_store import ObjectStore

_logger = logging.getLogger(__name__)
BY = "weft hub"


class FleetConfigs:
    """Tells linked edges their configurations, keeps what they say, and takes rollouts further.

    Args:
        places: shard of an edge, and those that it was split from.
        is_own: whether this process owns a shard.
        now: nanoseconds since 1970.
        links: the open links of this process.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        declared: Declarations,
        *,
        places: Callable[[NodeName], Sequence[int]],
        is_own: Callable[[int], bool],
        now: Callable[[], int],
        links: Callable[[], Iterable[ConfiguredLink]],
    ) -> None:
        self._log = ClusterLog(store, cluster_id)
        self._declared = declared
        self._now = now
        self._states = ConfigStates(store, lambda node: places(node)[0], now)
        self.links = LinkConfigs(declared.configs, self._states, links)
        self._rollouts = Rollouts(
            declared.configs, declared.groups, lambda: is_own(0), StatesReader(store, places).read, self._declare
        )  # fmt: skip
        self._changed = asyncio.Event()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin."""
        self._declared.configured = self._note_change
        self._states.start()
        self._rollouts.start()
        self._rollouts.wake.set()
        self._task.start(self._tell(), name="tell-configurations")

    async def close(self) -> None:
        """Stop, after what edges said last is stored."""
        await self._task.close()
        await self._rollouts.close()
        await self._states.close()

    def _note_change(self) -> None:
        self._changed.set()
        self._rollouts.wake.set()

    async def _tell(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.links.changed()
            except Exception:  # without this task, linked edges would get changes only at their next link
                _logger.exception("the configurations of linked edges could not be sent")

    async def _declare(self, decision: Decision) -> None:
        author = Author(self._now(), f"{BY}@{platform.node()}", "a rollout's own step")
        await self._log.append(decision, author)
