"""A shard in the status document."""

from __future__ import annotations

from typing import Any

from weft.cloud_hub.shard.sequencer import Sequencer


def shard_status(sequencer: Sequencer) -> dict[str, Any]:
    """Return the shard's part of ``GET /v1/status``."""
    counters = sequencer.counters
    return {
        "shard": sequencer.log.shard,
        "chunk": sequencer.state.n if sequencer.state.n >= 0 else None,
        "lanes": len(sequencer.state.lanes),
        "sessions": sequencer.sessions.count,
        "pending_bytes": sequencer.sessions.pending_bytes,
        "trouble": sequencer.trouble,
        "written": {"chunks": counters.chunks, "records": counters.records, "bytes": counters.bytes},
    }
