"""Health of a hub process: reasons to restart it, and reasons to send it no work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster.membership import Membership
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.units import approximate_duration

if TYPE_CHECKING:
    from weft.storage.table_maker.service import TableService

STORE_SILENCE_S = 15.0
"""Time for which the store owes a shard an answer before the shard makes the node not ready. One slow response or one
retry does not count, and a load balancer detects an outage before edges fill their windows."""


class Health(NamedTuple):
    """Facts on which the health of a process depends, at one moment."""

    own: Sequence[Sequencer]
    """Its own shards."""
    tables: TableService | None
    membership: Membership | None
    clock: HubClock

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when a restart would not help.

        A failing store or a damaged shard is not a reason: a new process would have the same problem.
        """
        ended = [sequencer.log.shard for sequencer in self.own if not sequencer.is_running]
        reasons = [f"the work on shard {shard} has ended" for shard in ended]
        if self.tables is not None and not self.tables.is_running:
            reasons.append("the work on the tables has ended")
        return reasons

    def unready(self) -> list[str]:
        """Return the reasons why the node accepts no links and answers no readers; empty if it does.

        One working shard is enough: a failing shard affects only its own edges, and fails on every node.
        """
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
        general = [*self.unhealthy(), *([doubted] if doubted else []), *(["the node is leaving"] if leaves else [])]
        return general + (reasons if len(reasons) == len(self.own) else [])
