"""Health of a hub process: reasons to restart it, and reasons to send it no work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster.membership import Membership
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.units import approximate_duration
from weft.storage.fenced_store import FencedStore

if TYPE_CHECKING:
    from weft.storage.table_maker.service import TableService

STORE_SILENCE_S = 15.0
"""Time for which the store owes a shard an answer before the shard makes the node not ready. One slow response or one
retry does not count, and a load balancer detects an outage before edges fill their windows."""
LOOK_AGE_S, LOOK_S_MAX = 1.0, 2.0
"""Age of a look at a bucket with which a probe is content, so that probes cost at most one request a second; and the
longest time that a probe waits for one."""


class Health(NamedTuple):
    """Facts on which the health of a process depends, at one moment."""

    own: Sequence[Sequencer]
    """Its own shards."""
    tables: TableService | None
    membership: Membership | None
    clock: HubClock
    store: FencedStore

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when a restart would not help.

        A failing store or a damaged shard is not a reason: a new process would have the same problem.
        """
        ended = [sequencer.log.shard for sequencer in self.own if not sequencer.is_running]
        reasons = [f"the work on shard {shard} has ended" for shard in ended]
        if self.tables is not None and not self.tables.is_running:
            reasons.append("the work on the tables has ended")
        return reasons

    async def unready(self) -> list[str]:
        """Look at the store, and return the reasons why the node accepts no links and answers no readers; empty if it
        does.

        One working shard is enough: a failing shard affects only its own edges, and fails on every node.
        """
        await self.store.look(LOOK_AGE_S, LOOK_S_MAX)
        reasons = []
        if self.membership is not None and self.membership.is_outdated:
            return [f"the cluster is at level {self.membership.level}, above this release"]
        for sequencer in self.own:
            shard, silent_s = sequencer.log.shard, sequencer.silent_s
            if not sequencer.loaded:
                reasons.append(f"shard {shard} is not loaded")
            elif silent_s > STORE_SILENCE_S:
                reasons.append(f"the store has not answered for {approximate_duration(silent_s)} (shard {shard})")
        doubted, leaves = self.clock.doubted(), self.membership is not None and self.membership.is_leaving
        if self.store.trouble is not None:
            return [self.store.trouble]
        if (silent_s := self.store.silent_s) > STORE_SILENCE_S:
            return [f"the store has not answered for {approximate_duration(silent_s)}"]
        general = [*self.unhealthy(), *([doubted] if doubted else []), *(["the node is leaving"] if leaves else [])]
        return general + (reasons if len(reasons) == len(self.own) else [])
