"""Renaming a log's owner."""

from __future__ import annotations

from weft.protocols.lane import NodeName
from weft.protocols.segment import Owner
from weft.storage.segment_log.commit.committer import Committer
from weft.storage.segment_log.errors import LogFull
from weft.storage.segment_log.state.log_state import LogState


def rename(state: LogState, committer: Committer, owner: NodeName, *, from_now_on: bool) -> None:
    """Rename the log's owner, durably when this returns. For the writer thread.

    Args:
        from_now_on: True to keep its present records under the former name; otherwise all records of that name get the
            new one.

    Raises:
        LogFull: there is no room on the disk. Nothing was changed.
        LogFailed: a write failed; the next opening of the log shows which name counts.
    """
    while committer.run_once():
        pass
    no_room = LogFull(f"the disk of {state.directory} has no room to note the new name: make space on it")
    if not state.queue.idle:
        # A power cut could lose these records, and then no name would have their numbers.
        raise state.failed or no_room
    former = state.owner
    begins = former.begins if former is not None else []
    if from_now_on:
        begins = [(stream, lane.durable_end) for stream, lane in state.lanes.items() if lane.durable_end]
    state.owner = Owner(*owner, begins)
    if not committer.state_owner():
        state.owner = former
        raise state.failed or no_room
