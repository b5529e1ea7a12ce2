"""The shards in the status document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Ownership


def shard_views(sequencers: Iterable[Sequencer], owners: Ownership) -> list[dict[str, Any]]:
    """Return the part of ``GET /v1/status`` on the shards that a process holds."""
    return [_view(sequencer, owners) for sequencer in sequencers]


def _view(sequencer: Sequencer, owners: Ownership) -> dict[str, Any]:
    counters, shard = sequencer.counters, sequencer.log.shard
    return {
        "shard": shard,
        "owner": owners.owner(shard),
        "own": owners.is_own(shard),
        "chunk": sequencer.state.n if sequencer.state.n >= 0 else None,
        "lanes": len(sequencer.state.lanes),
        "sessions": sequencer.sessions.count,
        "pending_bytes": sequencer.sessions.pending_bytes,
        "trouble": sequencer.trouble,
        "written": {"chunks": counters.chunks, "records": counters.records, "bytes": counters.bytes},
    }
